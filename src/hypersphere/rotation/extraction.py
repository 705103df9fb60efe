"""Find the rotations between a network and a fine-tuned copy of it.

Shapes: N neurons, d inputs, B blocks of m dimensions.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn

from .._internal import checks
from .._internal.linalg import nearest_orthogonal
from .._internal.sharding import read, refuse_sharded, reshard
from ..neurons import neuron_rows, unwrapped
from ..orthogonal import pack
from .parametrization import RotatedWeight, find_rotated, layer_label
from .rotating import rotate

M = TypeVar("M", bound=nn.Module)
_NEAR_IDENTITY = 1e-10  # share of W₀ᵀW₁ that prefers the identity where the weights leave R open
_STEEPEST = 2000.0  # tan(θ/2) of the largest turn, 0.001 below π: Cayley does not reach π


@dataclass(frozen=True)
class ExtractedRotations(Generic[M]):
    """The result of :func:`extract_rotations`."""

    model: M
    """A rotated copy of the base model. What is not rotated is as in the base model."""
    explained: dict[str, float | None]
    """By layer, the share of the change that its rotation explains, 1 − ‖W − V Rᵀ‖²/‖W − V‖²; None without a change."""


@torch.no_grad()
def extract_rotations(base: M, tuned: nn.Module, block_size: int | None = None) -> ExtractedRotations[M]:
    """Find the rotation of each layer that leads from `base` as near as possible to `tuned`.

    Minimizes ‖W − V Rᵀ‖ over rotations R (the orthogonal Procrustes problem), for the layers that :func:`rotate` takes
    by default. Where the weights leave R open, as with fewer neurons than dimensions, R stays near the identity. The
    result can be used like any rotated model: :func:`save_rotations`, :func:`use_task` with a strength,
    :func:`merge`.

    Args:
        base: a plain model, which is not changed.
        tuned: the same network with other weights, plain or rotated. FSDP2 may have sharded it, but not `base`.
        block_size: the size of the blocks of R, as for :func:`rotate`; None: one block.

    Example:
        >>> import copy, hypersphere as hs
        >>> net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
        >>> tuned = hs.rotate(copy.deepcopy(net))
        >>> _ = tuned[0].parametrizations.weight[0].default.cayley.data.normal_(std=0.1)
        >>> found = extract_rotations(net, tuned)
        >>> torch.allclose(found.model[0].weight, tuned[0].weight, atol=1e-5)
        True
        >>> round(found.explained["0"], 6)
        1.0
    """
    checks.module("base", base)
    checks.module("tuned", tuned)
    refuse_sharded("extract_rotations of base", base, "pass the model from before fully_shard (tuned may be sharded)")
    reshard(tuned)
    others = dict(unwrapped(tuned).named_modules())
    # DDP does not average the gradients of rotations that its module gets later: return a plain copy
    plain = base.module if isinstance(base, nn.parallel.DistributedDataParallel) else base
    model: M = copy.deepcopy(plain)
    rotate(unwrapped(model), block_size=block_size)
    targets = {layer: _tuned_weight(layer, others) for layer in find_rotated(unwrapped(model))}
    return ExtractedRotations(model, {layer.name: _extract(layer, target) for layer, target in targets.items()})


def _tuned_weight(layer: RotatedWeight, others: dict[str, nn.Module]) -> Tensor:
    label = layer_label(layer.name)
    other = others.get(layer.name)
    weight = None
    for rotated in find_rotated(other) if other is not None else ():
        if rotated.module is other and rotated.tensor_name == layer.tensor_name and not rotated.is_frozen:
            weight = rotated.merged()
    if other is not None and weight is None and hasattr(other, layer.tensor_name):
        weight = read(other, layer.tensor_name)
    if not isinstance(weight, Tensor):
        raise ValueError(f"tuned has no {layer.tensor_name} of layer {label!r}: it must be the same network as base")
    if weight.shape != layer.neurons.shape:
        shapes = f"{tuple(layer.neurons.shape)} in base and {tuple(weight.shape)} in tuned"
        raise ValueError(f"the {layer.tensor_name} of layer {label!r} must have the same shape in both, got {shapes}")
    for values in (layer.neurons, weight):
        checks.has_values(label, values)
    checks.finite_weight(label, weight)
    return weight


def _extract(layer: RotatedWeight, target: Tensor) -> float | None:
    """Set the rotation of one layer; return the share of the change that it explains."""
    plan, rotation = layer.rotation.plan, layer.rotation
    old, new = (
        neuron_rows(weight.detach().to(layer.neurons.device, torch.float64), plan.layout).flatten(0, 1)
        for weight in (layer.neurons, target)
    )
    moved = float((new - old).norm())
    if moved == 0:
        return None
    before, after = (rows.unflatten(1, (plan.blocks, plan.size)).transpose(0, 1) for rows in (old, new))
    rotation.task.rotations["cayley"].copy_(pack(_skew_between(before, after)))
    turned = neuron_rows(rotation(layer.neurons.double()), plan.layout).flatten(0, 1)
    return 1.0 - (float((new - turned).norm()) / moved) ** 2


def _skew_between(old: Tensor, new: Tensor) -> Tensor:
    """Return A (B, m, m) of the Cayley transforms R that minimize ‖new − old Rᵀ‖ for rows (B, N, m)."""
    if 2 * old.shape[1] < old.shape[2]:  # R is the identity outside of the span of all rows
        basis = torch.linalg.qr(torch.cat([old, new], 1).mT).Q
        return basis @ _skew_between(old @ basis, new @ basis) @ basis.mT
    cross = new.mT @ old
    shift = _NEAR_IDENTITY * torch.linalg.matrix_norm(cross).clamp(min=torch.finfo(cross.dtype).tiny)
    return _inverse_cayley(nearest_orthogonal(cross + shift[:, None, None] * _eye(cross), proper=True))


def _inverse_cayley(rotation: Tensor) -> Tensor:
    """Return A = (R + I)⁻¹(R − I) of rotations (B, m, m); turns by nearly π become slightly smaller."""
    eye = _eye(rotation)
    a = torch.linalg.solve_ex(rotation + eye, rotation - eye).result
    for block in ((~torch.isfinite(a)) | (a.abs() > _STEEPEST)).flatten(1).any(1).nonzero().flatten().tolist():
        a[block] = _inverse_of_half_turns(rotation[block])
    return (a - a.mT) / 2


def _inverse_of_half_turns(rotation: Tensor) -> Tensor:
    """Return A of one rotation (m, m) with planes that turn by π, or nearly: they turn by 2·atan(_STEEPEST)."""
    cosines, vectors = torch.linalg.eigh((rotation + rotation.mT) / 2)
    count = int((cosines < 2 / (1 + _STEEPEST**2) - 1).sum())
    planes = vectors[:, : count + count % 2]  # the determinant is +1: in pairs
    rest = rotation + 2 * planes @ planes.mT  # the identity in these planes
    a = torch.linalg.solve(rest + _eye(rest), rest - _eye(rest))
    first, second = planes[:, 0::2], planes[:, 1::2]
    return a + _STEEPEST * (first @ second.mT - second @ first.mT)


def _eye(like: Tensor) -> Tensor:
    return torch.eye(like.shape[-1], dtype=like.dtype, device=like.device)
