"""How a policy version gets onto one engine, and how the engine's word for it is checked: one module per mode."""

from __future__ import annotations

from sglang_generator.config import GeneratorConfig
from sglang_generator.delivery.artifact import require_torch
from sglang_generator.delivery.base import Delivery, Receipt, confirm
from sglang_generator.delivery.disk import DiskDelivery
from sglang_generator.delivery.lora import LoraDelivery
from sglang_generator.delivery.nccl import NcclDelivery
from sglang_generator.delivery.tensor import InlineDelivery, IpcDelivery
from sglang_generator.delivery.weight_source import WeightSource

__all__ = ["Delivery", "Receipt", "confirm", "make_delivery"]


def make_delivery(config: GeneratorConfig, run_id: str) -> Delivery:
    """The delivery that a configuration asks for.

    Raises:
        MissingExtra: what it needs is not installed.
    """
    timeout_s = config.control_timeout_s
    if config.delivery == "lora":
        if config.lora_transfer == "tensors":
            require_torch("generator.lora_transfer: tensors")
        return LoraDelivery(run_id, transfer=config.lora_transfer, adopt=config.adopt_adapters, timeout_s=timeout_s)
    if config.delivery == "disk":
        return DiskDelivery(run_id, timeout_s=timeout_s)
    if config.delivery == "tensor" and config.tensor_transfer == "inline":
        require_torch("generator.delivery: tensor")
        return InlineDelivery(run_id, chunk_bytes=round(config.tensor_chunk_mb * 1e6), timeout_s=timeout_s)
    assert config.weight_source is not None
    key = config.weight_source_key
    source = WeightSource(
        config.weight_source,
        key.get_secret_value() if key else None,
        connect_timeout_s=config.connect_timeout_s,
        brief_s=config.health_timeout_s,
        timeout_s=timeout_s,
    )
    if config.delivery == "tensor":
        return IpcDelivery(run_id, source, timeout_s=timeout_s)
    return NcclDelivery(run_id, source, backend=config.group_backend, timeout_s=timeout_s)
