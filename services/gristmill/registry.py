"""Schema ids from a registry with the Confluent API (Confluent, Karapace, Apicurio)."""

from __future__ import annotations

import json
from typing import Any

import fastavro
import fastavro.schema

from gristmill.codec import Codec
from gristmill.config import CommonConfig
from gristmill.errors import ConfigError, DecodeError, InfrastructureError, MissingExtra
from gristmill.schemas import Schema


class RegistryIds:
    """Registers each schema under its record name (``gristmill.<Record>``): both completion topics share one."""

    def __init__(self, url: str, auth: str | None = None) -> None:
        try:
            from confluent_kafka.schema_registry import SchemaRegistryClient
        except ModuleNotFoundError as error:
            raise MissingExtra("registry mode", "registry", error.name or str(error)) from error
        config: dict[str, Any] = {"url": url}
        if auth:
            config["basic.auth.user.info"] = auth
        self._url = url
        self._client = SchemaRegistryClient(config)

    def id_of(self, schema: Schema) -> int:
        """Register the schema (idempotent) and give its id.

        Raises:
            ConfigError: the registry refuses it as incompatible or invalid.
            InfrastructureError: the registry does not answer.
        """
        from confluent_kafka.schema_registry import Schema as RegistrySchema
        from confluent_kafka.schema_registry.error import SchemaRegistryError

        subject = str(schema.parsed["name"])
        try:
            return int(self._client.register_schema(subject, RegistrySchema(schema.text, "AVRO")))
        except SchemaRegistryError as error:
            if error.http_status_code >= 500:
                raise InfrastructureError(f"schema registry {self._url}: {error}") from error
            raise ConfigError(f"schema registry {self._url} refuses schema {subject}: {error}") from error
        except OSError as error:
            raise InfrastructureError(f"schema registry {self._url} does not answer: {error}") from error

    def writer_schema(self, schema_id: int) -> Any:
        """Fetch and parse the schema behind an id.

        Raises:
            DecodeError: the registry does not know it.
            InfrastructureError: the registry does not answer.
        """
        from confluent_kafka.schema_registry.error import SchemaRegistryError

        try:
            found = self._client.get_schema(schema_id)
        except SchemaRegistryError as error:
            if error.http_status_code == 404:
                raise DecodeError(f"schema registry {self._url} knows no schema {schema_id}") from error
            raise InfrastructureError(f"schema registry {self._url}: {error}") from error
        except OSError as error:
            raise InfrastructureError(f"schema registry {self._url} does not answer: {error}") from error
        try:
            return fastavro.parse_schema(json.loads(found.schema_str or ""))
        except (json.JSONDecodeError, fastavro.schema.SchemaParseException) as error:
            raise DecodeError(f"schema {schema_id} of registry {self._url} is not Avro: {error}") from error


def open_codec(common: CommonConfig) -> Codec:
    """The codec that the configuration asks for: registry ids when ``registry_url`` is set, else fingerprints."""
    if common.registry_url is None:
        return Codec()
    auth = common.security.registry_auth
    return Codec(RegistryIds(common.registry_url, auth.get_secret_value() if auth else None))
