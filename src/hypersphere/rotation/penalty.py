"""Penalize matrices that are not orthogonal."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .._internal import checks
from .._internal.precision import accumulation_dtype, without_autocast
from .._internal.sharding import gather, reshard
from ..energy.measures import deviation_from_orthonormal
from .parametrization import find_rotated


def rotation_penalty(model: nn.Module, weight: float = 0.1, *, squared: bool = True) -> Tensor:
    """Compute weight·Σ‖RᵀR − I‖²_F over the layers rotated with method="regularized" (OPT, Eq. 5); add it to the loss.

    Args:
        weight: β.
        squared: False: the norm itself, as in the authors' released code.

    Example:
        >>> import hypersphere as hs
        >>> net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
        >>> rotation_penalty(hs.rotate(net, "regularized")).item()  # R starts at the identity
        0.0
    """
    factor = checks.number("weight", weight, low=0.0)
    checks.module("model", model)
    rotations = [layer.rotation for layer in find_rotated(model) if layer.rotation.plan.method == "regularized"]
    if not rotations:
        raise ValueError('rotation_penalty: no layer is rotated with method="regularized"')
    reshard(model)
    terms = []
    for rotation in rotations:
        for side in rotation.plan.sides:
            matrix = gather(rotation.task.rotations[side.prefix + "regularized"])
            with without_autocast(matrix):
                # the sum over the blocks of R; a shared block counts once per use
                square = deviation_from_orthonormal(matrix.to(accumulation_dtype(matrix.dtype))).sum()
                square = square * (side.blocks if rotation.plan.shared else 1)
                terms.append(square if squared else _safe_sqrt(square))
    return factor * torch.stack([term.to(terms[0]) for term in terms]).sum()


def _safe_sqrt(square: Tensor) -> Tensor:
    """Compute √x with gradient 0 at 0."""
    positive = square > 0
    return torch.where(positive, torch.where(positive, square, 1.0).sqrt(), 0.0)
