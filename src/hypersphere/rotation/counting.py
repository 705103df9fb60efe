"""Count the parameters of a rotated model, and penalize matrices that are not orthogonal."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .._internal import checks
from .._internal.precision import accumulation_dtype, without_autocast
from ..energy.measures import deviation_from_orthonormal
from .parametrization import find_rotated


def count_parameters(model: nn.Module) -> dict[str, int]:
    """Count parameters as the paper does (OPT, Tables 10–13, 19, 20).

    Returns:
        - rotations: degrees of freedom of the active task's rotations, m(m−1)/2 per block of m dimensions if orthogonal
        - matrices: m² per block, as in Tables 19 and 20
        - weights: elements of learned weight matrices, including the output layer
        - other: learned biases, norms, scales and so on
        - total: rotations + weights + other
        - stored: elements of all parameters, including fixed neurons and inactive tasks

    Example:
        >>> import hypersphere as hs
        >>> net = nn.Sequential(nn.Linear(576, 64, bias=False), nn.ReLU(), nn.Linear(64, 100, bias=False))
        >>> (
        ...     hs.rotation.count_parameters(net)["total"],
        ...     hs.rotation.count_parameters(hs.rotate(net))["total"],
        ... )  # 576·575/2 + 6400
        (43264, 172000)
    """
    checks.module("model", model)
    counts = dict.fromkeys(("rotations", "matrices", "weights", "other"), 0)
    excluded: set[Tensor] = set()
    for each in find_rotated(model):
        plan, rotation = each.rotation.plan, each.rotation
        excluded |= set(rotation.parameters())
        if not plan.learned and not plan.frozen:
            excluded.add(each.neurons)
        numbers, method = rotation.task.rotations, rotation.task.method
        for side in plan.sides if method is not None else ():
            assert method is not None
            parameter = numbers[side.prefix + method.name]
            if parameter.requires_grad:
                counts["rotations"] += len(parameter) * method.count(side.size)
                counts["matrices"] += len(parameter) * side.size**2
        if rotation.task.magnitudes is not None:
            excluded.discard(rotation.task.magnitudes)  # counts as other
    for parameter in model.parameters():
        if parameter.requires_grad and parameter not in excluded:
            counts["weights" if parameter.dim() > 1 else "other"] += parameter.numel()
    total = counts["rotations"] + counts["weights"] + counts["other"]
    return counts | {"total": total, "stored": sum(p.numel() for p in model.parameters())}


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
    found = [each.rotation for each in find_rotated(model) if each.rotation.plan.method == "regularized"]
    if not found:
        raise ValueError('rotation_penalty: no layer is rotated with method="regularized"')
    terms = []
    for rotation in found:
        for side in rotation.plan.sides:
            matrix = rotation.task.rotations[side.prefix + "regularized"]
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
