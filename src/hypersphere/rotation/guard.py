"""Silent mistakes with optimizers of rotated models: each optimizer is looked at once, when it steps."""

from __future__ import annotations

from typing import Any
from weakref import WeakSet

from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from .._checks import warn_once
from .parametrization import Rotated, rotated, shown

_watched: WeakSet[nn.Module] = WeakSet()
_seen: WeakSet[Optimizer] = WeakSet()
_hook: RemovableHandle | None = None


def watch(layer: nn.Module) -> None:
    """From now on optimizers that step this layer's parameters are looked at."""
    global _hook
    _watched.add(layer)
    _seen.clear()
    if _hook is None:
        _hook = register_optimizer_step_pre_hook(_look)


def _look(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    if optimizer in _seen:
        return
    groups = {parameter: group for group in optimizer.param_groups for parameter in group["params"]}
    for layer in list(_watched):
        for each in rotated(layer):
            if each.module is layer:
                _check(type(optimizer).__name__, groups, each)
    _seen.add(optimizer)


def _check(name: str, groups: dict[nn.Parameter, dict[str, Any]], each: Rotated) -> None:
    plan, numbers = each.rotation.plan, each.rotation.task.parameter
    if numbers is None:
        return
    if numbers not in groups:
        if each.neurons in groups and not plan.learned and numbers.requires_grad:
            warn_once(
                f"{name} holds fixed neurons and not their rotation: it was made before hypersphere.rotate (or for "
                "another task); make it after"
            )
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
