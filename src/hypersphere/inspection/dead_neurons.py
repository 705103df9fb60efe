"""Decide which neurons are dead, and which are broken."""

from __future__ import annotations

import torch
from torch import Tensor

from .._internal.precision import accumulation_dtype
from ..layers.cosine import inverse_row_norm


def neuron_lengths(rows: Tensor, exact: bool) -> Tensor:
    """Compute the lengths (G, N) of neurons (G, N, d): 0 for dead ones, NaN for those with NaN or infinity.

    A neuron is dead if it is zero, or too short to have a direction: what :func:`inverse_row_norm` takes for zero.
    """
    dtype = torch.float64 if exact else accumulation_dtype(rows.dtype)
    lengths = torch.linalg.vector_norm(rows, dim=-1, dtype=dtype).double()
    if not bool(((lengths > 1e-15) & (lengths < 1e15)).all()):
        size = rows.abs().amax(-1, keepdim=True).double()
        scaled = rows / size.where(size > 0, 1.0)  # 1e300 has no square, infinity / infinity is NaN
        lengths = torch.linalg.vector_norm(scaled, dim=-1, dtype=torch.float64) * size.squeeze(-1)
        lengths = lengths.clamp(max=torch.finfo(torch.float64).max)
    if bool((lengths < 1e-3).any()):
        too_short = (inverse_row_norm(rows.flatten(0, 1)) == 0).view_as(lengths)
        lengths = lengths.where(~too_short | lengths.isnan(), 0.0)
    return lengths
