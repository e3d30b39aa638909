"""SHA-256 of tensors, by their bytes."""

from __future__ import annotations

import hashlib

import torch


def sha256(tensor: torch.Tensor) -> str:
    """Hexadecimal digest of the bytes of a tensor, wherever it lies."""
    flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return hashlib.sha256(memoryview(flat.numpy())).hexdigest()
