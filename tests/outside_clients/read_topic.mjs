// Reads COUNT records of a topic with KafkaJS and the registry client for it, and prints each as a line of JSON:
// {"key": ..., "schema": name of the record, "value": ...}. Bytes fields become {"type": "Buffer", "data": [...]}.
//
// usage: node read_topic.mjs BOOTSTRAP TOPIC REGISTRY_URL COUNT
import { SchemaRegistry } from '@kafkajs/confluent-schema-registry'
import kafkajs from 'kafkajs'
import lz4 from 'lz4js'

const [bootstrap, topic, host, count] = process.argv.slice(2)
const { CompressionCodecs, CompressionTypes, Kafka, logLevel } = kafkajs

// Our producers compress with lz4, for which KafkaJS has no codec of its own.
CompressionCodecs[CompressionTypes.LZ4] = () => ({
  compress: async (encoder) => Buffer.from(lz4.compress(encoder.buffer)),
  decompress: async (buffer) => Buffer.from(lz4.decompress(buffer)),
})

const registry = new SchemaRegistry({ host })
const kafka = new Kafka({ clientId: 'outside', brokers: bootstrap.split(','), logLevel: logLevel.ERROR })
const consumer = kafka.consumer({ groupId: `outside-${process.pid}-${Date.now()}`, maxWaitTimeInMs: 100 })
await consumer.connect()
await consumer.subscribe({ topic, fromBeginning: true })

let left = Number(count)
await new Promise((resolve, reject) => {
  consumer.on(consumer.events.CRASH, ({ payload }) => reject(payload.error))
  consumer.run({
    eachMessage: async ({ message }) => {
      if (left <= 0) return
      const value = await registry.decode(message.value)
      const schema = value.constructor.name
      console.log(JSON.stringify({ key: message.key.toString(), schema, value }))
      left -= 1
      if (left === 0) resolve()
    },
  })
})
await consumer.disconnect()
