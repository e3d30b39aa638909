"""What the engine says of itself: /model_info, /server_info, /v1/loads."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

from embedded_engine.engine import Engine
from embedded_engine.errors import RefusedRequest
from gristmill import __version__

SECTIONS = frozenset({"core", "memory", "spec", "lora", "disagg", "queues", "all"})


def model_info(engine: Engine) -> dict[str, Any]:
    """SGLang's /model_info."""
    spec = engine.model.spec
    return {
        "model_path": engine.model_path,
        "tokenizer_path": engine.config.tokenizer_path or engine.config.model_path,
        "is_generation": True,
        "preferred_sampling_params": None,
        "weight_version": engine.weight_version,
        "has_image_understanding": False,
        "has_audio_understanding": False,
        "model_type": spec.model_type,
        "architectures": [spec.architecture],
    }


def models(engine: Engine) -> dict[str, Any]:
    """SGLang's /v1/models: the base model, then the loaded adapters with the base as their parent."""
    base = engine.config.served_name or engine.config.model_path
    common = {"object": "model", "created": int(engine.created), "owned_by": "gristmill"}
    length = engine.model.spec.context_length
    cards = [{**common, "id": base, "root": base, "parent": None, "max_model_len": length}]
    for name, path in engine.adapters.names().items():
        cards.append({**common, "id": name, "root": path, "parent": base, "max_model_len": None})
    return {"object": "list", "data": cards}


def server_info(engine: Engine) -> dict[str, Any]:
    """Settings in force and internal state; the API key is masked."""
    spec = engine.model.spec
    settings = engine.config.model_dump(mode="json", exclude={"api_key"})
    return {
        **settings,
        "engine": "gristmill",
        "version": __version__,
        "api_key": None if engine.config.api_key is None else "***",
        "model_path": engine.model_path,
        "tokenizer_path": engine.config.tokenizer_path or engine.config.model_path,
        "weight_version": engine.weight_version,
        "device": str(engine.model.device),
        "dtype": str(engine.model.dtype).removeprefix("torch."),
        "threads": engine.model.threads,
        "context_length": spec.context_length,
        "vocab_size": spec.vocab_size,
        "max_total_num_tokens": engine.scheduler.max_total_tokens,
        "tp_size": 1,
        "dp_size": 1,
        "pp_size": 1,
        # Decoding is not captured in CUDA graphs, so no size of the batch is better than its neighbours.
        "cuda_graph_max_bs_decode": None,
        "cuda_graph_config": None,
        "internal_states": [_internal_state(engine)],
        "enable_lora": True,
        "loaded_adapters": engine.adapters.names(),
        "paused": engine.gate.paused,
        "parameters": engine.model.transformer.weights.parameters,
    }


def _internal_state(engine: Engine) -> dict[str, Any]:
    stats = engine.scheduler.stats
    return {
        "last_gen_throughput": stats.throughput,
        "effective_max_running_requests_per_dp": engine.scheduler.max_running,
        "memory_usage": _memory(engine),
    }


def _memory(engine: Engine) -> dict[str, Any]:
    """Gigabytes of weights and cache, and the tokens that the cache holds."""
    weights = engine.model.transformer.weights.parameters * engine.model.dtype.itemsize
    return {
        "weight": weights / 2**30,
        "kvcache": engine.model.cache.bytes() / 2**30,
        "graph": 0.0,
        "token_capacity": engine.scheduler.max_total_tokens,
    }


def loads(engine: Engine, include: str | None) -> dict[str, Any]:
    """SGLang's /v1/loads with its single rank.

    Raises:
        RefusedRequest: an unknown section.
    """
    sections = {part.strip() for part in include.split(",")} if include else {"all"}
    if not sections <= SECTIONS:
        raise RefusedRequest(f"Invalid include sections: {sections - SECTIONS}. Valid options: {sorted(SECTIONS)}")
    stats = engine.scheduler.stats
    total = engine.scheduler.max_total_tokens
    waiting = stats.waiting + engine.gate.blocked
    load: dict[str, Any] = {
        "timestamp": time.time(),
        "dp_rank": 0,
        "num_running_reqs": stats.running,
        "num_waiting_reqs": waiting,
        "num_waiting_uncached_tokens": 0,
        "num_used_tokens": stats.running_tokens,
        "num_total_tokens": stats.running_tokens + stats.stored_tokens,
        "max_total_num_tokens": total,
        "max_running_requests": engine.scheduler.max_running,
        "token_usage": stats.running_tokens / total,
        "gen_throughput": stats.throughput,
        "cache_hit_rate": stats.cache_hit_rate,
        "utilization": stats.running / engine.scheduler.max_running,
    }
    everything = "all" in sections
    if everything or "memory" in sections:
        used = _memory(engine)
        load["memory"] = {
            "weight_gb": used["weight"],
            "kv_cache_gb": used["kvcache"],
            "graph_gb": used["graph"],
            "token_capacity": total,
        }
    if everything or "lora" in sections:
        slots, limit = len(engine.adapters), engine.config.max_loaded_loras
        load["lora"] = {"slots_used": slots, "slots_total": limit, "utilization": slots / limit}
    if everything or "queues" in sections:
        load["queues"] = {"waiting": waiting, "grammar": 0, "paused": 0, "retracted": 0}
    return {"timestamp": datetime.now(UTC).isoformat(), "version": __version__, "loads": [load]}
