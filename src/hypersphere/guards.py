"""Two traps of optimizers that are silent: one warning, one refusal.

A sphere layer's output does not change with its weights' length, so weight decay regularizes nothing; it only shortens
the weights, and with them the gradient grows as 1/‖w‖. :func:`hypersphere.param_groups` keeps decay away from them.

Matrices that :class:`hypersphere.OGD` keeps orthogonal would be so no more after one step of another optimizer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakSet

from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from ._checks import warn_once
from .ogd import OGD

_orthogonal_hook: RemovableHandle | None = None


class Watch:
    """Modules whose optimizers are looked at: each once, when it steps, and again after another module came.

    Args:
        look: sees the optimizer and the modules, and may warn or refuse; what it refuses it sees again.
    """

    def __init__(self, look: Callable[[Optimizer, list[nn.Module]], None]) -> None:
        self._look = look
        self._modules: WeakSet[nn.Module] = WeakSet()
        self._seen: WeakSet[Optimizer] = WeakSet()
        self._hook: RemovableHandle | None = None

    def add(self, module: nn.Module) -> None:
        self._modules.add(module)
        self._seen.clear()
        if self._hook is None:
            self._hook = register_optimizer_step_pre_hook(self._before_step)

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if optimizer not in self._seen:
            self._look(optimizer, list(self._modules))
            self._seen.add(optimizer)


def watch(module: nn.Module) -> None:
    """From now on optimizers are looked at for decay on this module's weights."""
    _scale_free.add(module)


def watch_orthogonal() -> None:
    """From now on optimizers other than OGD are refused when they step a group with ``orthogonal=True``."""
    global _orthogonal_hook
    if _orthogonal_hook is None:
        _orthogonal_hook = register_optimizer_step_pre_hook(_refuse_orthogonal)


def is_scale_free(name: str) -> bool:
    """Whether the length of this parameter of a sphere layer does not matter (an LSTM's projection is plain)."""
    return name.startswith("weight") and not name.startswith("weight_hr")


def _look_for_decay(optimizer: Optimizer, modules: list[nn.Module]) -> None:
    decayed = {p for group in optimizer.param_groups if group.get("weight_decay") for p in group["params"]}
    named = (item for module in modules for item in module.named_parameters(recurse=False))
    if any(is_scale_free(name) and p.requires_grad and p in decayed for name, p in named):
        warn_once(
            f"{type(optimizer).__name__} decays weights of sphere layers or angular losses, whose length does not "
            "matter: make its parameter groups with hypersphere.param_groups(model, weight_decay)"
        )


_scale_free = Watch(_look_for_decay)


def _refuse_orthogonal(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    if isinstance(getattr(optimizer, "optim", optimizer), OGD):  # a ZeroRedundancyOptimizer steps the one it holds
        return
    for i, group in enumerate(optimizer.param_groups):
        if group.get("orthogonal"):
            raise ValueError(
                f"{type(optimizer).__name__} would not keep the matrices of group {group.get('name', i)!r} orthogonal: "
                "give the groups of param_groups(model, ogd=True) to hypersphere.OGD"
            )
