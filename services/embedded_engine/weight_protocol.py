"""Bodies of the weight and adapter endpoints, field for field as SGLang names them."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, StrictBool, StrictInt, StrictStr

from embedded_engine.protocol import Body


class LoadLoraRequest(Body):
    """POST /load_lora_adapter."""

    lora_name: StrictStr = Field(min_length=1)
    lora_path: StrictStr = Field(min_length=1)
    pinned: StrictBool = False


class LoadLoraTensorsRequest(Body):
    """POST /load_lora_adapter_from_tensors."""

    lora_name: StrictStr = Field(min_length=1)
    config_dict: dict[str, Any]
    """The content of `adapter_config.json`."""
    serialized_tensors: StrictStr
    """Base64 of a pickle: a dict of name to tensor, or a flattened bucket."""
    pinned: StrictBool = False
    added_tokens_config: None = None
    load_format: Literal["flattened_bucket"] | None = None
    expected_checksums: dict[str, StrictStr] | None = None
    """SHA-256 of every tensor's bytes, by its name."""


class UnloadLoraRequest(Body):
    """POST /unload_lora_adapter."""

    lora_name: StrictStr = Field(min_length=1)


class UpdateBody(Body):
    """What all updates of the weights have in common."""

    abort_all_requests: StrictBool = False
    weight_version: StrictStr | None = None
    flush_cache: StrictBool = True
    torch_empty_cache: StrictBool = False


class UpdateWeightsRequest(UpdateBody):
    """POST /update_weights_from_disk."""

    model_path: StrictStr = Field(min_length=1)
    load_format: Literal["auto", "safetensors"] | None = None
    keep_pause: StrictBool = False
    """An update never ends a pause, so either value holds."""
    recapture_cuda_graph: Literal[False] = False
    is_async: Literal[False] = False
    token_step: StrictInt = 0
    manifest: None = None


class UpdateTensorsRequest(UpdateBody):
    """POST /update_weights_from_tensor."""

    serialized_named_tensors: list[StrictStr] = Field(min_length=1, max_length=1)
    """One base64 pickle for the one rank of this engine."""
    load_format: Literal["flattened_bucket"] | None = None
    disable_draft_model: StrictBool | None = None
    """There is no draft model, so either value holds."""


class UpdateDistributedRequest(UpdateBody):
    """POST /update_weights_from_distributed."""

    names: list[StrictStr] = Field(min_length=1)
    dtypes: list[StrictStr]
    shapes: list[list[StrictInt]]
    group_name: StrictStr = "weight_update_group"
    load_format: Literal["flattened_bucket"] | None = None


class InitGroupRequest(Body):
    """POST /init_weights_update_group."""

    master_address: StrictStr = Field(min_length=1)
    master_port: StrictInt = Field(ge=1, le=65535)
    rank_offset: StrictInt = Field(ge=1)
    """The rank of this engine: it has one."""
    world_size: StrictInt = Field(ge=2)
    group_name: StrictStr = "weight_update_group"
    backend: StrictStr = "nccl"


class DestroyGroupRequest(Body):
    """POST /destroy_weights_update_group."""

    group_name: StrictStr = "weight_update_group"


class UpdateVersionRequest(Body):
    """POST /update_weight_version."""

    new_version: StrictStr
    abort_all_requests: StrictBool = True


class CheckWeightsRequest(Body):
    """POST /weights_checker."""

    action: StrictStr = "checksum"
    allow_quant_error: StrictBool = False
