"""Apache Kafka as a child process, out of the jars of an unpacked release."""

from __future__ import annotations

import base64
import ctypes
import os
import shutil
import signal
import subprocess
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from gristmill.broker import free_port

START_S = 60.0
EAGER_CLEANING = {"log.retention.check.interval.ms": "500", "log.cleaner.backoff.ms": "200"}
"""Settings of a broker that compacts and forgets at once. It goes through all of its topics for that, so one that keeps
the topics of many tests is better off without."""
DEV_HOMES = (Path(__file__).parents[3] / "shared" / "kafka",)

LOG4J = """
Configuration:
  Appenders:
    Console: {name: OUT, PatternLayout: {pattern: "%d %p %m (%c{1})%n"}}
  Loggers:
    Root: {level: WARN, AppenderRef: [{ref: OUT}]}
"""


def kafka_home() -> Path | None:
    """Folder with ``libs/*.jar``: ``KAFKA_HOME``, else the shared copy next to the checkout."""
    named = os.environ.get("KAFKA_HOME")
    homes = [Path(named)] if named else list(DEV_HOMES)
    return next((home for home in homes if any((home / "libs").glob("*.jar"))), None)


def missing_for_kafka() -> str | None:
    """Why Kafka cannot be started here, or None."""
    if kafka_home() is None:
        return "Apache Kafka is not here: set KAFKA_HOME to a folder with its libs/*.jar"
    if shutil.which("java") is None:
        return "Apache Kafka needs Java 17, which is not on the PATH"
    return None


class KafkaBroker:
    """One KRaft broker on loopback. Stop and start keep its data and its port."""

    def __init__(self, home: Path, data_dir: Path, port: int = 0, settings: dict[str, str] | None = None) -> None:
        self._home = home
        self._dir = data_dir
        self.port = port or free_port()
        self._settings = settings or {}
        self._controller_port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self.sasl_port = free_port()

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def sasl_bootstrap(self) -> str:
        """Listener that wants SASL/PLAIN, user ``gristmill``, password ``secret``."""
        return f"127.0.0.1:{self.sasl_port}"

    def start(self) -> None:
        self._dir.mkdir(parents=True, exist_ok=True)
        properties = self._dir / "server.properties"
        properties.write_text("\n".join(f"{key}={value}" for key, value in self._properties().items()))
        (self._dir / "log4j2.yaml").write_text(LOG4J)
        if not (self._dir / "log" / "meta.properties").exists():
            cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=").replace("-", "A", 1)
            self._java("128m", "kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(properties)).wait(START_S)
        self._process = self._java("384m", "kafka.Kafka", str(properties))
        self._wait_ready()

    def _java(self, memory: str, *command: str) -> subprocess.Popen[bytes]:
        java = ["java", "-cp", f"{self._home}/libs/*", f"-Dlog4j2.configurationFile={self._dir}/log4j2.yaml"]
        options = ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xms64m", f"-Xmx{memory}"]
        with (self._dir / "kafka.log").open("ab") as log:
            return subprocess.Popen(
                [*java, *options, *command], stdout=log, stderr=subprocess.STDOUT, preexec_fn=die_with_parent
            )

    def _wait_ready(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + START_S
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0, "reconnect.backoff.max.ms": 100})
        while True:
            assert self._process.poll() is None, self.tail()
            try:
                admin.list_topics(timeout=1)
                return
            except KafkaException:
                assert time.monotonic() < deadline, self.tail()

    def tail(self) -> str:
        return (self._dir / "kafka.log").read_text(errors="replace")[-3000:]

    def kill(self) -> None:
        """As power loss would."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """In good order, which takes Kafka some seconds."""
        self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            try:
                self._process.wait(20)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None

    def _properties(self) -> dict[str, str]:
        jaas = "org.apache.kafka.common.security.plain.PlainLoginModule required user_gristmill=secret;"
        return {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@127.0.0.1:{self._controller_port}",
            "listeners": (
                f"PLAINTEXT://127.0.0.1:{self.port},SASL_PLAINTEXT://127.0.0.1:{self.sasl_port},"
                f"CONTROLLER://127.0.0.1:{self._controller_port}"
            ),
            "advertised.listeners": (f"PLAINTEXT://127.0.0.1:{self.port},SASL_PLAINTEXT://127.0.0.1:{self.sasl_port}"),
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "PLAINTEXT",
            "listener.security.protocol.map": (
                "PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT"
            ),
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.sasl_plaintext.plain.sasl.jaas.config": jaas,
            "log.dirs": str(self._dir / "log"),
            "auto.create.topics.enable": "false",
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "4",
            "group.initial.rebalance.delay.ms": "0",
            "group.min.session.timeout.ms": "1000",
            "broker.session.timeout.ms": "3000",
            "broker.heartbeat.interval.ms": "500",
            "log.initial.task.delay.ms": "500",
            "message.max.bytes": str(9 * 1024 * 1024),
            **self._settings,
        }


@contextmanager
def running_kafka(folder: Path, settings: dict[str, str] | None = None) -> Iterator[KafkaBroker]:
    """A broker of a fixture; the tests are skipped where there can be none."""
    missing, home = missing_for_kafka(), kafka_home()
    if missing or home is None:
        pytest.skip(missing or "no Kafka")
    broker = KafkaBroker(home, folder, settings=settings)
    try:
        broker.start()
        yield broker
    finally:
        broker.kill()


def die_with_parent() -> None:
    """For ``preexec_fn``: a killed test run leaves nothing behind."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
