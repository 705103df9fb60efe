"""Check optimizers of rotated models for silent mistakes, once, before their first step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn
from torch.optim import Optimizer

from .._internal.checks import warn_once
from .._internal.global_hooks import OptimizerCheck
from .parametrization import RotatedWeight, find_rotated, layer_label


def _check_optimizer(optimizer: Optimizer, layers: list[nn.Module]) -> None:
    groups = {parameter: group for group in optimizer.param_groups for parameter in group["params"]}
    for layer in layers:
        for weight in find_rotated(layer):
            if weight.module is layer:
                _check_rotation(type(optimizer).__name__, groups, weight)


def _check_rotation(name: str, groups: Mapping[nn.Parameter, Mapping[str, Any]], weight: RotatedWeight) -> None:
    plan, numbers = weight.rotation.plan, next(iter(weight.rotation.task.rotations.values()), None)
    if numbers is None:
        return
    if numbers not in groups:
        if numbers.requires_grad and any(other in groups for other in weight.rotation.parameters()):
            warn_once(f"{name} holds the rotations of another task than {weight.rotation.active!r}: make one per task")
    elif groups[numbers].get("hyperball"):
        raise ValueError(
            f"Hyperball would keep the norm of the rotations of layer {layer_label(weight.name)!r}, which are angles: "
            "make its optimizer's groups with hypersphere.param_groups(model), or give their group hyperball=False"
        )
    elif groups[numbers].get("rotated"):
        raise ValueError(
            f"{name} would rotate the rotations of layer {layer_label(weight.name)!r}: use "
            f"hypersphere.{name}(param_groups(model, pion=True))"
        )
    elif plan.method == "ogd" and not groups[numbers].get("orthogonal"):
        raise ValueError(
            f"{name} would not keep the matrix of layer {layer_label(weight.name)!r} orthogonal: use "
            "hypersphere.OGD(param_groups(model, ogd=True))"
        )
    elif plan.redrawn and not weight.rotation.resampled:
        some = f"of {plan.sample} of {plan.dimension} dimensions" if plan.sample else "with shuffle"
        warn_once(f"{name} learns rotations {some} without a Resampler: make a hypersphere.Resampler(model, optimizer)")


ROTATED = OptimizerCheck(_check_optimizer)  # layers whose optimizers are checked
