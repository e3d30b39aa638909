"""Schema ids from a registry with the Confluent API (Confluent, Karapace, Apicurio).

A schema is registered under the full name of its record (``gristmill.Completion``), the "record name strategy":
both completion topics share one subject, and the topic prefix does not matter. What the registry's compatibility
level for that subject allows is the registry's business; ``gristmill schemas register`` sets FULL_TRANSITIVE.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from gristmill.codec import Codec
from gristmill.config import CommonConfig
from gristmill.errors import ConfigError, DecodeError, GristmillError, InfrastructureError, MissingExtra
from gristmill.schemas import Schema, parse_schema

T = TypeVar("T")

COMPATIBILITY = "FULL_TRANSITIVE"
"""Old and new readers read old and new records, over all versions: what ``gristmill schemas check`` checks too."""


class RegistryIds:
    """Registers each schema when it is first written and fetches others by id."""

    def __init__(self, url: str, auth: str | None = None, *, retries: int = 3, timeout_s: float = 10.0) -> None:
        """``retries`` and ``timeout_s`` apply to one request; the worker's own retries come on top.

        Raises:
            MissingExtra: the client is not installed.
            ConfigError: the address is not one.
        """
        try:
            from confluent_kafka.schema_registry import SchemaRegistryClient
            from confluent_kafka.schema_registry.error import SchemaRegistryError
        except ModuleNotFoundError as error:
            raise MissingExtra("registry mode", "registry", error.name or str(error)) from error
        config: dict[str, Any] = {"url": url, "max.retries": retries, "timeout": timeout_s}
        if auth:
            config["basic.auth.user.info"] = auth
        self._url = url
        self._refused = SchemaRegistryError
        self._unreachable: tuple[type[Exception], ...] = (OSError, json.JSONDecodeError, *_transport_errors())
        try:
            self._client = SchemaRegistryClient(config)
        except ValueError as error:
            raise ConfigError(f"schema registry {url}: {error}") from error

    def id_of(self, schema: Schema) -> int:
        """Register the schema (idempotent) and give its id.

        Raises:
            ConfigError: the registry refuses it as incompatible or invalid.
            InfrastructureError: the registry does not answer.
        """
        from confluent_kafka.schema_registry import Schema as RegistrySchema

        what = f"refuses schema {schema.record}"
        registered = RegistrySchema(schema.text, "AVRO")
        return int(self._ask(lambda: self._client.register_schema(schema.record, registered), ConfigError, what))

    def writer_schema(self, schema_id: int) -> Schema:
        """Fetch and parse the schema behind an id.

        Raises:
            DecodeError: the registry does not know it, or it is not the schema of an Avro record.
            InfrastructureError: the registry does not answer.
        """
        found: Any = self._ask(lambda: self._client.get_schema(schema_id), DecodeError, f"gives no schema {schema_id}")
        if found.schema_type not in (None, "AVRO"):
            raise DecodeError(f"schema {schema_id} of registry {self._url} is {found.schema_type}, not Avro")
        try:
            return parse_schema(f"registry/{schema_id}", found.schema_str or "")
        except ValueError as error:
            raise DecodeError(f"schema {schema_id} of registry {self._url}: {error}") from error

    def protect(self, schema: Schema) -> None:
        """Make the registry refuse versions of this schema that are not compatible both ways with all others.

        Raises:
            ConfigError: the registry does not allow it.
            InfrastructureError: the registry does not answer.
        """
        what = f"does not set compatibility of {schema.record}"
        self._ask(
            lambda: self._client.set_compatibility(subject_name=schema.record, level=COMPATIBILITY), ConfigError, what
        )

    def _ask(self, request: Callable[[], T], refusal: type[GristmillError], what: str) -> T:
        try:
            return request()
        except self._refused as error:
            if self._decided(error, refusal):
                raise refusal(f"schema registry {self._url} {what}: {error}") from error
            raise InfrastructureError(f"schema registry {self._url}: {error}") from error
        except self._unreachable as error:
            raise InfrastructureError(
                f"schema registry {self._url} does not answer: {type(error).__name__}: {error}"
            ) from error

    @staticmethod
    def _decided(error: Any, refusal: type[GristmillError]) -> bool:
        """Whether an error answer is about the schema. A record is given up only when a registry itself says that
        it does not know the id: a proxy's 404, a missing login or a full server say nothing about it."""
        status, code = int(error.http_status_code), int(error.error_code or 0)
        if refusal is DecodeError:
            return status == 404 and code // 100 == 404
        return status < 500 and status not in (408, 429)


def _transport_errors() -> Iterator[type[Exception]]:
    """Base errors of the HTTP library under confluent-kafka's client: which one depends on its version."""
    for library in ("httpx", "httpx2"):
        try:
            yield importlib.import_module(library).HTTPError
        except ModuleNotFoundError:
            continue


def registry_ids(common: CommonConfig) -> RegistryIds:
    """Client of the configured registry.

    Raises:
        ConfigError: ``registry_url`` is not set.
    """
    if common.registry_url is None:
        raise ConfigError("no schema registry is configured: set registry_url (GRISTMILL_REGISTRY_URL)")
    auth = common.security.registry_auth
    return RegistryIds(common.registry_url, auth.get_secret_value() if auth else None)


def open_codec(common: CommonConfig) -> Codec:
    """The codec that the configuration asks for: registry ids when ``registry_url`` is set, else fingerprints."""
    return Codec() if common.registry_url is None else Codec(registry_ids(common))
