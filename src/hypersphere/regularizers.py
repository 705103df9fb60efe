"""Terms that keep neurons apart (SphereNet, 2.4)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from . import _checks
from .cosine import accumulation_dtype, unit
from .selection import Specs, nothing_found, select_to_change


def orthonormal(weight: Tensor, *, normalized: bool = False) -> Tensor:
    """‖WᵀW − I‖²_F for kernels as the columns of W (SphereNet, 2.4), here the rows of `weight`.

    Only the smaller of the two Gram matrices is formed: ‖WᵀW − I_N‖² = ‖WWᵀ − I_d‖² + N − d.

    Args:
        weight: (N, ...), flattened to (N, d): rows are neurons.
        normalized: scale the neurons to length one first, so that only angles count.

    Example:
        >>> orthonormal(torch.eye(3)), orthonormal(2 * torch.eye(3)), orthonormal(2 * torch.eye(3), normalized=True)
        (tensor(0.), tensor(27.), tensor(0.))
    """
    _checks.floating("weight", weight)
    if weight.dim() < 2 or not weight.numel():
        raise ValueError(f"weight must be (N, ...) and not empty, got {tuple(weight.shape)}")
    return _orthonormal(weight.flatten(1)[None], normalized)


def _orthonormal(weight: Tensor, normalized: bool) -> Tensor:
    """The sum over groups of neurons (G, N, d)."""
    rows = weight.to(accumulation_dtype(weight.dtype))
    rows = unit(rows) if normalized else rows
    groups, n, d = rows.shape
    with torch.autocast(rows.device.type, enabled=False):
        gram = rows @ rows.mT if n <= d else rows.mT @ rows
        deviation = gram - torch.eye(min(n, d), dtype=rows.dtype, device=rows.device)
        return deviation.square().sum() + max(n - d, 0) * groups


def orthonormal_penalty(
    model: nn.Module,
    weight: float = 1e-4,
    *,
    normalized: bool = False,
    layers: Specs | None = None,
    exclude: Specs = (),
    output: str | None = "auto",
) -> Tensor:
    """weight·Σ‖WᵀW − I‖²_F over the kernels of a model's hidden layers; add it to the loss.

    Args:
        weight: the factor (1e-4 as SphereNet is trained).
        normalized: look at the kernels' directions only.
        layers, exclude, output: which layers, as in :func:`select`.

    Example:
        >>> net = nn.Sequential(nn.Conv2d(3, 16, 3), nn.Flatten(), nn.Linear(16, 10))
        >>> orthonormal_penalty(net).backward()
    """
    factor = _checks.number("weight", weight, low=0.0)
    found = select_to_change("orthonormal_penalty", model, layers, exclude, output)
    if not found:
        raise nothing_found(model, "orthonormal_penalty")
    return factor * torch.stack([_orthonormal(n.matrix(), normalized) for n in found.values()]).sum()
