"""librdkafka's mock cluster, for faults that a real broker shows only when it likes.

It lives inside this process; clients reach it over loopback like any other. Driven by ctypes through the
library that confluent-kafka brings along.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from types import TracebackType

import confluent_kafka
import pytest

RD_KAFKA_PRODUCER = 0
PRODUCE, FETCH, OFFSET_COMMIT, JOIN_GROUP = 0, 1, 8, 11
"""Api keys of the Kafka protocol."""


def _library() -> ctypes.CDLL:
    folder = Path(confluent_kafka.__file__).parents[1] / "confluent_kafka.libs"
    found = sorted(folder.glob("librdkafka-*.so*"))
    if not found:
        pytest.skip("confluent-kafka brings no librdkafka of its own here")
    return ctypes.CDLL(str(found[0]))


class MockCluster:
    """A cluster of one broker."""

    def __init__(self) -> None:
        self._lib = _library()
        for name in ("rd_kafka_conf_new", "rd_kafka_new", "rd_kafka_mock_cluster_new"):
            getattr(self._lib, name).restype = ctypes.c_void_p
        self._lib.rd_kafka_mock_cluster_bootstraps.restype = ctypes.c_char_p
        error = ctypes.create_string_buffer(512)
        conf = ctypes.c_void_p(self._lib.rd_kafka_conf_new())
        self._client = ctypes.c_void_p(self._lib.rd_kafka_new(RD_KAFKA_PRODUCER, conf, error, len(error)))
        assert self._client.value, error.value
        self._cluster = ctypes.c_void_p(self._lib.rd_kafka_mock_cluster_new(self._client, 1))
        assert self._cluster.value

    @property
    def bootstrap(self) -> str:
        text: bytes = self._lib.rd_kafka_mock_cluster_bootstraps(self._cluster)
        return text.decode()

    def create_topic(self, name: str, partitions: int) -> None:
        assert self._lib.rd_kafka_mock_topic_create(self._cluster, name.encode(), partitions, 1) == 0

    def fail(self, api: int, *codes: int) -> None:
        """Answer the next requests of this kind with these error codes, one each."""
        array = (ctypes.c_int * len(codes))(*codes)
        self._lib.rd_kafka_mock_push_request_errors_array(
            self._cluster, ctypes.c_int16(api), ctypes.c_size_t(len(codes)), array
        )

    def slow(self, milliseconds: int) -> None:
        """Answer after this time, so that requests pile up on the way."""
        assert self._lib.rd_kafka_mock_broker_set_rtt(self._cluster, ctypes.c_int32(1), ctypes.c_int(milliseconds)) == 0

    def down(self) -> None:
        """The broker closes its connections and its port."""
        assert self._lib.rd_kafka_mock_broker_set_down(self._cluster, ctypes.c_int32(1)) == 0

    def up(self) -> None:
        assert self._lib.rd_kafka_mock_broker_set_up(self._cluster, ctypes.c_int32(1)) == 0

    def close(self) -> None:
        self._lib.rd_kafka_mock_cluster_destroy(self._cluster)
        self._lib.rd_kafka_destroy(self._client)

    def __enter__(self) -> MockCluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
