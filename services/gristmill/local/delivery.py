"""How weights get from trainer to engines on one machine: settings that must agree, and the weight source's address.

Trainer and generator are other packages, so their settings are looked up by name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pydantic import SecretStr

from gristmill.config import ENV_PREFIX, Settings
from gristmill.errors import ConfigError

FULL = ("disk", "tensor", "nccl")
"""Deliveries of whole weights; the other one is ``lora``."""


def setting(settings: Settings, path: str, default: Any = None) -> Any:
    """The value at a dotted path, ``default`` where some installed package knows no such setting."""
    node: Any = settings
    for name in path.split("."):
        node = getattr(node, name, None)
        if node is None:
            return default
    return node


def is_chosen(settings: Settings, path: str) -> bool:
    """Whether the user (or a profile) set the value at a dotted path."""
    node: Any = settings
    *parents, last = path.split(".")
    for name in parents:
        node = getattr(node, name, None)
    return last in getattr(node, "model_fields_set", ())


@dataclass(frozen=True, slots=True)
class Agreement:
    """Settings that follow from what was chosen, and what to say about them."""

    values: dict[str, Any] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()

    @property
    def full(self) -> bool:
        """Whether it makes the trainer train whole weights."""
        return bool(self.values.get("trainer", {}).get("weights") == "full")


def agree(settings: Settings) -> Agreement:
    """Make what the trainer publishes and how it is delivered fit.

    Raises:
        ConfigError: both were chosen, and contradict.
    """
    delivery, weights = setting(settings, "generator.delivery"), setting(settings, "trainer.weights")
    if (delivery in FULL) == (weights == "full"):
        return Agreement()
    if is_chosen(settings, "generator.delivery") and is_chosen(settings, "trainer.weights"):
        wanted = "full" if delivery in FULL else "lora"
        raise ConfigError(
            f"generator.delivery {delivery} delivers {'whole weights' if delivery in FULL else 'adapters'}, and "
            f"trainer.weights is {weights}: set it to {wanted} or leave it out"
        )
    if delivery in FULL:
        return Agreement(
            {"trainer": {"weights": "full"}}, (f"generator.delivery {delivery}: the trainer trains full weights",)
        )
    return Agreement(
        {"generator": {"delivery": "disk"}}, ("trainer.weights full: they are delivered by disk (generator.delivery)",)
    )


def by_ipc(settings: Settings) -> bool:
    """Whether weights go by CUDA IPC, for which trainer and engines must see each other's GPU."""
    return bool(
        setting(settings, "generator.delivery") == "tensor" and setting(settings, "generator.tensor_transfer") == "ipc"
    )


def needs_source(settings: Settings) -> bool:
    """Whether the generator asks the trainer's weight source for weights."""
    return setting(settings, "generator.delivery") == "nccl" or by_ipc(settings)


def source_values(settings: Settings, free_port: Callable[[], int], addressed: bool) -> dict[str, Any]:
    """Settings that connect the generator with the trainer's weight source; none when it is not needed.

    Args:
        settings: what is known; the source's address may be a placeholder.
        free_port: picks a port when none is set.
        addressed: the user gave the generator the address.

    Raises:
        ConfigError: the trainer's weight source is turned off.
    """
    if not needs_source(settings):
        return {}
    delivery = setting(settings, "generator.delivery")
    section = setting(settings, "trainer.weight_source")
    if is_chosen(settings, "trainer.weight_source.enabled") and not section.enabled:
        raise ConfigError(
            f"generator.delivery {delivery} takes weights from the trainer's weight source, and "
            "trainer.weight_source.enabled is false: leave it out"
        )
    if by_ipc(settings) and setting(settings, "trainer.device") == "cpu":
        raise ConfigError("generator.tensor_transfer ipc shares GPU memory, and trainer.device is cpu: use inline")
    port = setting(settings, "trainer.weight_source.port") or free_port()
    values: dict[str, Any] = {"trainer": {"weight_source": {"enabled": True, "port": port}}}
    if not addressed:
        host = setting(settings, "trainer.weight_source.host", "127.0.0.1")
        reached = "127.0.0.1" if host in ("0.0.0.0", "::") else host  # noqa: S104 (compared, not bound)
        values["generator"] = {"weight_source": f"http://{reached}:{port}"}
    return values


def source_secrets(settings: Settings) -> dict[str, str]:
    """The weight source's key for the side that was not given it, as environment variables."""
    ours = {
        f"{ENV_PREFIX}TRAINER__WEIGHT_SOURCE__KEY": setting(settings, "trainer.weight_source.key"),
        f"{ENV_PREFIX}GENERATOR__WEIGHT_SOURCE_KEY": setting(settings, "generator.weight_source_key"),
    }
    known = next((key for key in ours.values() if isinstance(key, SecretStr)), None)
    if known is None or not needs_source(settings):
        return {}
    return {name: known.get_secret_value() for name, key in ours.items() if key is None}
