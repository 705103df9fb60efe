"""Count the parameters of a rotated model."""

from __future__ import annotations

from torch import Tensor, nn

from .._internal import checks
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
    for layer in find_rotated(model):
        plan, rotation = layer.rotation.plan, layer.rotation
        excluded |= set(rotation.parameters())
        if not plan.learned and not plan.frozen:
            excluded.add(layer.neurons)
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
