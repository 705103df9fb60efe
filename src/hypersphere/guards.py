"""One warning for a trap that is silent: weight decay on weights whose length does not matter.

A sphere layer's output does not change with its weights' length, so decay regularizes nothing; it only shortens the
weights, and with them the gradient grows as 1/‖w‖. :func:`hypersphere.param_groups` keeps decay away from them.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakSet

from torch.nn import Parameter
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from ._checks import warn_once

_watch: RemovableHandle | None = None
_seen: WeakSet[Optimizer] = WeakSet()


def mark_scale_free(parameter: Parameter) -> None:
    """Remember that the length of this weight's rows does not matter; from now on each optimizer is looked at once."""
    global _watch
    parameter._hypersphere_scale_free = True  # type: ignore[attr-defined]
    if _watch is None:
        _watch = register_optimizer_step_pre_hook(_look)


def is_scale_free(parameter: Parameter) -> bool:
    return getattr(parameter, "_hypersphere_scale_free", False)


def _look(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    if optimizer in _seen:
        return
    _seen.add(optimizer)
    if any(is_scale_free(p) for group in optimizer.param_groups if group.get("weight_decay") for p in group["params"]):
        warn_once(
            f"{type(optimizer).__name__} decays weights of sphere layers or angular losses, whose length does not "
            "matter: make its parameter groups with hypersphere.param_groups(model, weight_decay)"
        )
