"""Registry mode, against a real registry: ids, evolution, refusals, outages."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest
from confluent_kafka.schema_registry import Schema as RegistrySchema
from confluent_kafka.schema_registry import SchemaRegistryClient
from typer.testing import CliRunner

from gristmill.broker import free_port
from gristmill.cli import build
from gristmill.codec import Codec
from gristmill.config import CommonConfig
from gristmill.errors import ConfigError, DecodeError, InfrastructureError
from gristmill.messages import MESSAGES, Message, Problem, Verdict
from gristmill.registry import RegistryIds, open_codec, registry_ids
from gristmill.schemas import Schema, load_schema, parse_schema
from support.messages import small_message
from support.registry import Registry

pytestmark = pytest.mark.registry
by_message = pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.__name__)


def changed(name: str, change: Any) -> Schema:
    raw = json.loads(load_schema(name).text)
    change(raw)
    return parse_schema(name, json.dumps(raw))


@by_message
def test_round_trip_with_the_ids_of_the_registry(registry: Registry, message: type[Message]) -> None:
    codec = open_codec(CommonConfig(registry_url=registry.url))
    value = small_message(message)
    encoded = codec.encode(value)
    assert codec.decode(encoded, message) == value
    client = SchemaRegistryClient({"url": registry.url})
    registered = client.get_latest_version(f"gristmill.{message.__name__}")
    assert struct.unpack_from(">I", encoded, 1) == (registered.schema_id,)
    assert parse_schema("x", registered.schema.schema_str or "").canonical == load_schema(message.schema).canonical


def test_another_process_reads_what_it_has_never_written(registry: Registry) -> None:
    encoded = Codec(RegistryIds(registry.url)).encode(small_message(Problem))
    assert Codec(RegistryIds(registry.url)).decode(encoded, Problem) == small_message(Problem)


def test_registering_is_idempotent(registry: Registry) -> None:
    schema = load_schema("verdict")
    assert RegistryIds(registry.url).id_of(schema) == RegistryIds(registry.url).id_of(schema)


def test_an_incompatible_schema_is_refused_and_a_compatible_one_is_not(registry: Registry) -> None:
    ids = RegistryIds(registry.url)
    current = load_schema("rejection")
    ids.id_of(current)
    ids.protect(current)

    def retype(raw: Any) -> None:
        raw["fields"][0]["type"] = "double"

    def require(raw: Any) -> None:
        raw["fields"].append({"name": "novel", "type": "string", "doc": "No default."})

    for change in (retype, require):
        with pytest.raises(ConfigError, match=r"refuses schema gristmill\.Rejection"):
            ids.id_of(changed("rejection", change))

    def extend(raw: Any) -> None:
        raw["fields"].append({"name": "novel", "type": "string", "default": "", "doc": "With a default."})

    assert ids.id_of(changed("rejection", extend)) != ids.id_of(current)


def test_a_record_of_another_version_in_the_registry_is_resolved(registry: Registry) -> None:
    import io

    import fastavro
    import msgspec

    def extend(raw: Any) -> None:
        raw["fields"].insert(2, {"name": "novel", "type": "string", "default": "", "doc": "With a default."})

    newer = changed("verdict", extend)
    ids = RegistryIds(registry.url)
    number = ids.id_of(newer)
    value = small_message(Verdict)
    out = io.BytesIO()
    fastavro.schemaless_writer(out, newer.parsed, {**msgspec.to_builtins(value, builtin_types=(bytes,)), "novel": "x"})
    assert Codec(ids).decode(struct.pack(">bI", 0, number) + out.getvalue(), Verdict) == value


def test_unknown_and_foreign_ids_are_decode_errors(registry: Registry) -> None:
    codec = Codec(RegistryIds(registry.url))
    with pytest.raises(DecodeError, match="gives no schema 987654"):
        codec.decode(struct.pack(">bI", 0, 987654) + b"x", Problem)
    client = SchemaRegistryClient({"url": registry.url})
    for text, message in (
        ('"string"', "not the schema of a record"),
        ('{"type": "record", "name": "Other", "fields": []}', r"is a Other, not the expected gristmill\.Problem"),
    ):
        number = client.register_schema(f"foreign-{len(text)}", RegistrySchema(text, "AVRO"))
        with pytest.raises(DecodeError, match=message):
            codec.decode(struct.pack(">bI", 0, number) + b"x", Problem)


def test_a_record_of_registryless_mode_is_a_decode_error_not_an_outage(registry: Registry) -> None:
    with pytest.raises(DecodeError):
        Codec(RegistryIds(registry.url)).decode(Codec().encode(small_message(Problem)), Problem)


def test_schemas_register_command(registry: Registry) -> None:
    done = CliRunner().invoke(build(), ["schemas", "register", f"--registry-url={registry.url}"])
    assert done.exit_code == 0, done.output
    client = SchemaRegistryClient({"url": registry.url})
    for message in MESSAGES:
        subject = f"gristmill.{message.__name__}"
        assert subject in done.output
        assert client.get_compatibility(subject) == "FULL_TRANSITIVE"


def test_an_outage_is_an_infrastructure_error_and_passes(registry: Registry, tmp_path: Any) -> None:
    flaky = Registry(tmp_path / "flaky.log")
    ids = RegistryIds(flaky.url, retries=0, timeout_s=2)
    codec = Codec(ids)
    with pytest.raises(InfrastructureError, match="does not answer"):
        codec.encode(small_message(Problem))
    with pytest.raises(InfrastructureError, match="does not answer"):
        codec.decode(struct.pack(">bI", 0, 1) + b"x", Problem)
    flaky.start()
    try:
        codec.decode(codec.encode(small_message(Problem)), Problem)
    finally:
        flaky.stop()
    # What is known stays known: an outage stops only what needs a new schema.
    assert codec.decode(codec.encode(small_message(Problem)), Problem) == small_message(Problem)


def test_no_registry_configured() -> None:
    with pytest.raises(ConfigError, match="no schema registry is configured: set registry_url"):
        registry_ids(CommonConfig())
    with pytest.raises(ConfigError, match="schema registry nonsense"):
        registry_ids(CommonConfig(registry_url="nonsense"))


def test_a_server_that_is_no_registry_is_not_believed() -> None:
    """A proxy's error page must not send records to the dead letters."""
    import http.server
    import threading

    class Page(http.server.BaseHTTPRequestHandler):
        status = 503

        def do_GET(self) -> None:
            self.send_response(self.status)
            self.end_headers()
            self.wfile.write(b"<html>sorry</html>")

        do_POST = do_GET

        def log_message(self, *args: object) -> None:
            """Quiet."""

    port = free_port()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Page)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        for status in (503, 401, 429, 404):
            Page.status = status
            ids = RegistryIds(f"http://127.0.0.1:{port}", retries=0, timeout_s=2)
            with pytest.raises(InfrastructureError):
                ids.writer_schema(5)
    finally:
        server.shutdown()
        server.server_close()
