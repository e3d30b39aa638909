// Decodes records from standard input, one a line in base64, with the registry client for KafkaJS, and prints each
// as a line of JSON. No broker needed.
//
// usage: node decode.mjs REGISTRY_URL
import { createInterface } from 'node:readline'
import { SchemaRegistry } from '@kafkajs/confluent-schema-registry'

const registry = new SchemaRegistry({ host: process.argv[2] })
for await (const line of createInterface({ input: process.stdin })) {
  console.log(JSON.stringify(await registry.decode(Buffer.from(line, 'base64'))))
}
