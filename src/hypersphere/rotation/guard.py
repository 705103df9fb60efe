"""Silent mistakes with optimizers of rotated models: each optimizer is looked at once, when it steps."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.optim import Optimizer

from .._internal.checks import warn_once
from .._internal.guards import OptimizerCheck
from .parametrization import Rotated, rotated, shown


def _look(optimizer: Optimizer, layers: list[nn.Module]) -> None:
    groups = {parameter: group for group in optimizer.param_groups for parameter in group["params"]}
    for layer in layers:
        for each in rotated(layer):
            if each.module is layer:
                _check(type(optimizer).__name__, groups, each)


def _check(name: str, groups: dict[nn.Parameter, dict[str, Any]], each: Rotated) -> None:
    plan, numbers = each.rotation.plan, each.rotation.task.parameter
    if numbers is None:
        return
    if numbers not in groups:
        others = [task.parameter for task in each.rotation.tasks.values()]
        if numbers.requires_grad and any(other in groups for other in others):
            warn_once(f"{name} holds the rotations of another task than {each.rotation.active!r}: make one for each")
    elif plan.method == "ogd" and not groups[numbers].get("orthogonal"):
        raise ValueError(
            f"{name} would not keep the matrix of layer {shown(each.name)!r} orthogonal: give the groups of "
            "param_groups(model, ogd=True) to hypersphere.OGD"
        )
    elif plan.sample is not None and not each.rotation.resampled:
        warn_once(
            f"{name} learns rotations of {plan.sample} of {plan.dimension} dimensions, and no hypersphere.Resampler "
            "draws others: make one and step it after the optimizer"
        )


ROTATED = OptimizerCheck(_look)  # layers whose parameters an optimizer may step wrongly
