"""Two traps of optimizers that are silent: one warning, one refusal.

A sphere layer's output does not change with its weights' length, so weight decay regularizes nothing; it only shortens
the weights, and with them the gradient grows as 1/‖w‖. :func:`hypersphere.param_groups` keeps decay away from them.

Matrices that :class:`hypersphere.OGD` keeps orthogonal would be so no more after one step of another optimizer.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakSet

from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from ._checks import warn_once
from .ogd import OGD

_watched: WeakSet[nn.Module] = WeakSet()
_seen: WeakSet[Optimizer] = WeakSet()
_hook: RemovableHandle | None = None
_orthogonal_hook: RemovableHandle | None = None


def watch(module: nn.Module) -> None:
    """From now on each optimizer is looked at once, when it steps, for decay on this module's weights."""
    global _hook
    _watched.add(module)
    _seen.clear()
    if _hook is None:
        _hook = register_optimizer_step_pre_hook(_look)


def watch_orthogonal() -> None:
    """From now on optimizers other than OGD are refused when they step a group with ``orthogonal=True``."""
    global _orthogonal_hook
    if _orthogonal_hook is None:
        _orthogonal_hook = register_optimizer_step_pre_hook(_refuse_orthogonal)


def is_scale_free(name: str) -> bool:
    """Whether the length of this parameter of a sphere layer does not matter (an LSTM's projection is plain)."""
    return name.startswith("weight") and not name.startswith("weight_hr")


def _look(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    if optimizer in _seen:
        return
    _seen.add(optimizer)
    decayed = {p for group in optimizer.param_groups if group.get("weight_decay") for p in group["params"]}
    named = (item for module in list(_watched) for item in module.named_parameters(recurse=False))
    if any(is_scale_free(name) and p.requires_grad and p in decayed for name, p in named):
        warn_once(
            f"{type(optimizer).__name__} decays weights of sphere layers or angular losses, whose length does not "
            "matter: make its parameter groups with hypersphere.param_groups(model, weight_decay)"
        )


def _refuse_orthogonal(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    if isinstance(getattr(optimizer, "optim", optimizer), OGD):  # a ZeroRedundancyOptimizer steps the one it holds
        return
    for i, group in enumerate(optimizer.param_groups):
        if group.get("orthogonal"):
            raise ValueError(
                f"{type(optimizer).__name__} would not keep the matrices of group {group.get('name', i)!r} orthogonal: "
                "give the groups of param_groups(model, ogd=True) to hypersphere.OGD"
            )
