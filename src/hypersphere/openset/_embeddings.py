"""Checks and directions of embeddings."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .._internal import checks


def check_embeddings(name: str, value: Any, expected: str, dims: int, shape: tuple[int, ...] | None = None) -> None:
    """Require finite floats with `dims` dimensions (of this shape), none 0 but the first; `expected` says which."""
    checks.floating(name, value)
    if value.dim() != dims or 0 in value.shape[1:] or (shape is not None and value.shape != shape):
        raise ValueError(f"{name} must be {expected}, got {tuple(value.shape)}")
    if not value.isfinite().all():
        raise ValueError(f"{name} must be finite, got NaN or infinity")


def unit_rows(x: Tensor) -> Tensor:
    """Return the directions of the rows of `x` (..., d) in float64, whatever their lengths; zero rows stay zero."""
    x = x.detach().double()
    return F.normalize(x / x.abs().amax(-1, keepdim=True).clamp(min=torch.finfo(x.dtype).tiny), dim=-1)
