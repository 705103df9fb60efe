"""Directions of embeddings."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def unit_rows(x: Tensor) -> Tensor:
    """Return the directions of the rows of `x` (..., d) in float64, whatever their lengths; zero rows stay zero."""
    x = x.detach().double()
    return F.normalize(x / x.abs().amax(-1, keepdim=True).clamp(min=torch.finfo(x.dtype).tiny), dim=-1)
