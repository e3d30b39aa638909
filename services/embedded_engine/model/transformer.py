"""The batched forward pass: m requests, n new tokens each, over their slots of the KV cache.

Decoding is n = 1 for every running request; prefill is n > 1 for new ones, right-padded. Padded positions
write stale entries beyond their request's length, which the mask hides and later tokens overwrite.
Grouped-query attention folds the query heads that share a key head into the query length, so keys are never
repeated.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from embedded_engine.model.kv_cache import KVCache
from embedded_engine.model.lora import BatchAdapters
from embedded_engine.model.spec import ModelSpec
from embedded_engine.model.weights import LayerWeights, Weights

KEY_GRAIN = 32


@dataclass(frozen=True)
class Layout:
    """Index tensors of one forward pass, shared by all layers."""

    rows: int
    columns: int
    first_slot: int
    keys: int
    cos: torch.Tensor
    sin: torch.Tensor
    mask: torch.Tensor
    write: tuple[torch.Tensor, torch.Tensor, torch.Tensor]


class Transformer:
    """Forward pass of one model over one KV cache. Not thread-safe: one thread owns it."""

    def __init__(self, spec: ModelSpec, weights: Weights, cache: KVCache) -> None:
        self.spec = spec
        self.weights = weights
        self.cache = cache
        device, dtype = cache.device, cache.dtype
        frequencies = torch.tensor(spec.inverse_frequencies, dtype=torch.float32)
        angles = torch.outer(torch.arange(spec.context_length + 1, dtype=torch.float32), frequencies)
        both = torch.cat((angles, angles), dim=-1)
        self._cos = both.cos().to(device=device, dtype=dtype)
        self._sin = both.sin().to(device=device, dtype=dtype)
        self._heads = torch.arange(spec.kv_heads, device=device)[None, :, None]
        self._key_positions = torch.arange(0, device=device)

    def forward(
        self, ids: torch.Tensor, starts: list[int], first_slot: int, adapters: BatchAdapters | None
    ) -> torch.Tensor:
        """Run new tokens through the model.

        Args:
            ids: new token ids [m, n], on the model's device.
            starts: position of each request's first new token, m of them.
            first_slot: the m requests occupy slots first_slot..first_slot+m-1.
            adapters: LoRA deltas bound to the m x n tokens, or None for the base model alone.

        Returns:
            Hidden states after the final norm [m, n, hidden].
        """
        layout = self._layout(ids, starts, first_slot)
        hidden = F.embedding(ids, self.weights.embedding).reshape(-1, self.spec.hidden_size)
        for number, layer in enumerate(self.weights.layers):
            hidden = self._layer(number, layer, hidden, layout, adapters)
        hidden = F.rms_norm(hidden, (self.spec.hidden_size,), self.weights.norm, self.spec.rms_eps)
        return hidden.view(layout.rows, layout.columns, -1)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Float32 logits [..., vocabulary] of hidden states."""
        return F.linear(hidden, self.weights.head).float()

    def _layout(self, ids: torch.Tensor, starts: list[int], first_slot: int) -> Layout:
        rows, columns = ids.shape
        device = ids.device
        first = torch.tensor(starts, device=device)
        positions = first[:, None] + torch.arange(columns, device=device)[None]
        longest = max(starts) + columns
        self.cache.ensure(first_slot + rows, longest)
        keys = min(-(-longest // KEY_GRAIN) * KEY_GRAIN, self.cache.capacity)
        if self._key_positions.numel() < keys:
            self._key_positions = torch.arange(self.cache.capacity, device=device)
        hidden_keys = self._key_positions[None, None, :keys] > positions[:, :, None]
        mask = torch.zeros(hidden_keys.shape, dtype=self.cache.dtype, device=device)
        mask.masked_fill_(hidden_keys, float("-inf"))
        group = self.spec.heads // self.spec.kv_heads
        if columns > 1:
            mask = mask[:, None].expand(rows, group, columns, keys).reshape(rows, group * columns, keys)
        in_table = positions.clamp(max=self._cos.shape[0] - 1).reshape(-1)
        slots = torch.arange(first_slot, first_slot + rows, device=device)[:, None, None]
        return Layout(
            rows=rows,
            columns=columns,
            first_slot=first_slot,
            keys=keys,
            cos=self._cos[in_table][:, None],
            sin=self._sin[in_table][:, None],
            mask=mask[:, None],
            write=(slots, self._heads, positions[:, None]),
        )

    def _layer(
        self,
        number: int,
        layer: LayerWeights,
        hidden: torch.Tensor,
        layout: Layout,
        adapters: BatchAdapters | None,
    ) -> torch.Tensor:
        spec = self.spec
        normed = F.rms_norm(hidden, (spec.hidden_size,), layer.input_norm, spec.rms_eps)
        qkv = F.linear(normed, layer.qkv, layer.qkv_bias)
        if adapters is not None:
            qkv = adapters.add(number, "qkv", normed, qkv)
        attended = self._attention(number, layer, qkv, layout)
        output = F.linear(attended, layer.output, layer.output_bias)
        if adapters is not None:
            output = adapters.add(number, "o", attended, output)
        hidden = hidden + output
        normed = F.rms_norm(hidden, (spec.hidden_size,), layer.post_norm, spec.rms_eps)
        gate_up = F.linear(normed, layer.gate_up, layer.gate_up_bias)
        if adapters is not None:
            gate_up = adapters.add(number, "gate_up", normed, gate_up)
        gate, up = gate_up.split(spec.intermediate_size, dim=-1)
        activated = F.silu(gate) * up
        down = F.linear(activated, layer.down, layer.down_bias)
        if adapters is not None:
            down = adapters.add(number, "down", activated, down)
        return hidden + down

    def _attention(self, number: int, layer: LayerWeights, qkv: torch.Tensor, layout: Layout) -> torch.Tensor:
        """Attention output [m x n, query size] of fused projections [m x n, query + 2 kv]."""
        spec = self.spec
        rows, columns, kv, dim = layout.rows, layout.columns, spec.kv_heads, spec.head_dim
        group = spec.heads // kv
        heads = qkv.view(rows * columns, spec.heads + 2 * kv, dim)
        query_key, value = heads[:, : spec.heads + kv], heads[:, spec.heads + kv :]
        if layer.query_norm is not None and layer.key_norm is not None:
            query_key = torch.cat(
                (
                    F.rms_norm(query_key[:, : spec.heads], (dim,), layer.query_norm, spec.rms_eps),
                    F.rms_norm(query_key[:, spec.heads :], (dim,), layer.key_norm, spec.rms_eps),
                ),
                dim=1,
            )
        half = dim // 2
        turned = torch.cat((-query_key[..., half:], query_key[..., :half]), dim=-1)
        query_key = torch.addcmul(query_key * layout.cos, turned, layout.sin)
        shape = (self.cache.slots, kv, self.cache.capacity, dim)
        keys, values = self.cache.keys[number].view(shape), self.cache.values[number].view(shape)
        keys[layout.write] = query_key[:, spec.heads :].view(rows, columns, kv, dim).transpose(1, 2)
        values[layout.write] = value.view(rows, columns, kv, dim).transpose(1, 2)
        batch = slice(layout.first_slot, layout.first_slot + rows)
        query = query_key[:, : spec.heads].view(rows, columns, kv, group, dim)
        query = query.permute(0, 2, 3, 1, 4).reshape(rows, kv, group * columns, dim)
        attended = F.scaled_dot_product_attention(
            query, keys[batch, :, : layout.keys], values[batch, :, : layout.keys], attn_mask=layout.mask
        )
        attended = attended.view(rows, kv, group, columns, dim).permute(0, 3, 1, 2, 4)
        return attended.reshape(rows * columns, spec.query_size)
