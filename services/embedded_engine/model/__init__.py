"""The model: checkpoint to weights, batched forward, KV cache, adapters, sampling. No HTTP, no threads."""
