"""What the line is doing, read from its own topics and metrics: nothing is asked of the services themselves."""

from __future__ import annotations

import threading
import time
import urllib.error
import urllib.request
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka import Message as KafkaMessage
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from gristmill.codec import Codec
from gristmill.config import CommonConfig
from gristmill.errors import BadInput, InfrastructureError
from gristmill.kafka import reader_config
from gristmill.messages import Completion, PolicyVersion, TrainingStep, Verdict
from gristmill.topics import Topic, Topics

RATE_WINDOW_S = 10.0
LAG_METRIC = "gristmill_consumer_lag"
TIMED = ("gristmill_generator_delivery", "gristmill_generator_update")
"""Beginnings of the names of the histograms of seconds that are kept."""


class Rate:
    """Events per second over the last :data:`RATE_WINDOW_S` seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._events: deque[tuple[float, int]] = deque()
        self._sum = 0

    def add(self, count: int) -> None:
        self._events.append((self._clock(), count))
        self._sum += count
        self._forget()

    def per_second(self) -> float:
        self._forget()
        return self._sum / RATE_WINDOW_S

    def _forget(self) -> None:
        """Also when nobody asks: without a terminal most rates are never shown."""
        horizon = self._clock() - RATE_WINDOW_S
        while self._events and self._events[0][0] < horizon:
            self._sum -= self._events.popleft()[1]


@dataclass(slots=True)
class RewardMean:
    """Running mean of rewards."""

    count: int = 0
    total: float = 0.0

    def add(self, reward: float) -> None:
        self.count += 1
        self.total += reward

    @property
    def mean(self) -> float:
        return self.total / self.count if self.count else 0.0


@dataclass(slots=True)
class TopicStats:
    """Traffic of one topic."""

    records: int = 0
    rate: Rate = field(default_factory=Rate)
    lag: int | None = None


class Timings:
    """Histograms of seconds that the services show, as sums and counts by process, metric and phase."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str, str], dict[str, float]] = {}

    def take(self, process: str, family: Metric) -> None:
        """Keep the newest sums of one metric of one process."""
        newest: dict[str, dict[str, float]] = {}
        for sample in family.samples:
            part = sample.name.rpartition("_")[2]
            if part in ("sum", "count"):
                sums = newest.setdefault(sample.labels.get("phase", ""), {"sum": 0.0, "count": 0.0})
                sums[part] += sample.value
        for phase, sums in newest.items():
            self._seen[process, family.name, phase] = sums

    def means(self) -> dict[tuple[str, str], float]:
        """Mean seconds by metric and phase over all processes; those never observed are left out."""
        totals: dict[tuple[str, str], list[float]] = {}
        for (_process, name, phase), sums in self._seen.items():
            total = totals.setdefault((name, phase), [0.0, 0.0])
            total[0] += sums["sum"]
            total[1] += sums["count"]
        return {key: seconds / count for key, (seconds, count) in totals.items() if count}


class LineStats:
    """Counts and last values; the watcher writes them, the view reads them under ``lock``.

    What is kept does not grow with the run, but for one reward mean per policy version.
    """

    def __init__(self, topics: Topics, run_id: str) -> None:
        self.lock = threading.Lock()
        self.run_id = run_id
        self.topics: dict[str, TopicStats] = {topic.name: TopicStats() for topic in topics}
        self.highest_ordinal = 0
        self.statuses: Counter[str] = Counter()
        self.rewards: dict[int, RewardMean] = {}
        self.tokens = Rate()
        self.timings = Timings()
        self.policy: PolicyVersion | None = None
        self.last_step: TrainingStep | None = None
        self.last_dead_letter: str | None = None
        self._sampled_tokens = 0
        self._sampled_ms: tuple[int, int] | None = None

    @property
    def mean_tokens_per_second(self) -> float | None:
        """Sampled tokens a second from the beginning of the first completion to the end of the last."""
        if self._sampled_ms is None or self._sampled_ms[1] <= self._sampled_ms[0]:
            return None
        return self._sampled_tokens / (self._sampled_ms[1] - self._sampled_ms[0]) * 1000

    @property
    def reward_curve(self) -> dict[int, float]:
        """Mean reward of all completions that each policy version sampled, whether or not they were trained on."""
        return {version: self.rewards[version].mean for version in sorted(self.rewards)}

    @property
    def groups_in_flight(self) -> int:
        """Groups that were started and are not settled yet. Credit starts them by ordinal: the highest counts them."""
        settled = self.policy.settled_groups if self.policy else 0
        return max(0, self.highest_ordinal - settled)

    def take(self, topic: Topic, record: KafkaMessage, codec: Codec) -> None:
        """Count one record and keep what the view shows of it."""
        stats = self.topics[topic.name]
        stats.records += 1
        stats.rate.add(1)
        value = record.value()
        if topic.message is None:
            headers = dict(record.headers() or [])
            error = headers.get("error", b"")
            self.last_dead_letter = (error or b"").decode(errors="replace")[:200]
        elif topic.message in (Completion, Verdict, PolicyVersion, TrainingStep):
            self._keep(codec.decode(value, topic.message))

    def _keep(self, message: object) -> None:
        match message:
            case Completion(run_id=self.run_id):
                self.highest_ordinal = max(self.highest_ordinal, message.ordinal)
                tokens = len(message.completion_token_ids) // 4
                self.tokens.add(tokens)
                self._sampled_tokens += tokens
                began = message.completed_at_ms - round(1000 * message.generation_s)
                first, last = self._sampled_ms or (began, message.completed_at_ms)
                self._sampled_ms = (min(first, began), max(last, message.completed_at_ms))
            case Verdict(run_id=self.run_id):
                self.highest_ordinal = max(self.highest_ordinal, message.ordinal)
                self.statuses[message.status] += 1
                if message.reward is not None:
                    self.rewards.setdefault(message.policy_version_oldest, RewardMean()).add(message.reward)
            case PolicyVersion(run_id=self.run_id):
                self.policy = message
            case TrainingStep(run_id=self.run_id):
                if self.last_step is None or message.step > self.last_step.step:
                    self.last_step = message
            case _:
                pass


class LineWatcher:
    """Reads every topic from the beginning on a thread of its own, and scrapes lag from the services' metrics."""

    def __init__(
        self,
        common: CommonConfig,
        topics: Topics,
        codec: Codec,
        metrics_ports: Mapping[str, int],
    ) -> None:
        self.stats = LineStats(topics, common.run_id)
        self._common, self._topics, self._codec = common, topics, codec
        self._ports = dict(metrics_ports)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="line-watcher", daemon=True)
        self.error: Exception | None = None

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(10)

    def _run(self) -> None:
        by_name = {topic.name: topic for topic in self._topics}
        consumer = Consumer(reader_config(self._common))
        try:
            consumer.assign(_all_partitions(consumer, by_name))
            scraped = 0.0
            while not self._stop.is_set():
                for record in consumer.consume(500, 0.2):
                    self._take(by_name, record)
                if time.monotonic() - scraped > 1.0:
                    scraped = time.monotonic()
                    self.scrape()
        except (KafkaException, InfrastructureError) as error:
            self.error = error
        finally:
            consumer.close()

    def _take(self, by_name: Mapping[str, Topic], record: KafkaMessage) -> None:
        if record.error() is not None:
            if record.error().code() != KafkaError._PARTITION_EOF and record.error().fatal():
                raise KafkaException(record.error())
            return
        topic = by_name[record.topic() or ""]
        with self.stats.lock:
            try:
                self.stats.take(topic, record, self._codec)
            except BadInput as error:
                self.stats.last_dead_letter = f"unreadable record on {topic.name}: {error}"[:200]

    def scrape(self) -> None:
        """Read the services' metrics once; the thread does it every second."""
        lags: dict[str, float] = {}
        for process, port in self._ports.items():
            for family in _fetch(port):
                if family.name.startswith(TIMED) and family.type == "histogram":
                    with self.stats.lock:
                        self.stats.timings.take(process, family)
                if family.name != LAG_METRIC:
                    continue
                for sample in family.samples:
                    topic = sample.labels.get("topic", "")
                    lags[topic] = lags.get(topic, 0.0) + max(0.0, sample.value)
        with self.stats.lock:
            for name, lag in lags.items():
                if name in self.stats.topics:
                    self.stats.topics[name].lag = int(lag)


def _all_partitions(consumer: Consumer, topics: Mapping[str, Topic]) -> list[TopicPartition]:
    metadata = consumer.list_topics(timeout=30)
    return [
        TopicPartition(name, partition, OFFSET_BEGINNING)
        for name in topics
        if name in metadata.topics
        for partition in metadata.topics[name].partitions
    ]


def _fetch(port: int) -> list[Metric]:
    """Metric families of one process; none while it does not answer."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=1) as response:
            return list(text_string_to_metric_families(response.read().decode()))
    except (urllib.error.URLError, OSError, ValueError):
        return []
