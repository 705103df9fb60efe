"""Warn of two silent mistakes with optimizers.

A sphere layer's output does not change with its weights' length, so weight decay regularizes nothing; it only shortens
the weights, and with them the gradient grows as 1/‖w‖. :func:`hypersphere.param_groups` keeps decay away from them.

An optimizer made before `rotate`, `merge` or `spherize` lacks the parameters that these add, or steps parameters that
the model no longer has.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any
from weakref import ReferenceType, WeakSet, ref

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from .checks import warn_once


class OptimizerCheck:
    """Check every optimizer once, before its first step, and again after another module was added.

    Args:
        check: gets the optimizer and the modules; warns or raises. After an error the optimizer is checked again.
    """

    def __init__(self, check: Callable[[Optimizer, list[nn.Module]], None]) -> None:
        self._check = check
        self._modules: WeakSet[nn.Module] = WeakSet()
        self._seen: WeakSet[Optimizer] = WeakSet()
        self._hook: RemovableHandle | None = None

    def add(self, module: nn.Module) -> None:
        self._modules.add(module)
        self.recheck()

    def recheck(self) -> None:
        """Check all optimizers again."""
        self._seen.clear()
        if self._hook is None:
            self._hook = register_optimizer_step_pre_hook(self._before_step)

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if optimizer not in self._seen:
            self._check(optimizer, list(self._modules))
            self._seen.add(optimizer)


def watch_weight_decay(module: nn.Module) -> None:
    """Warn when an optimizer decays this module's weights."""
    _WEIGHT_DECAY.add(module)


def is_scale_free(name: str) -> bool:
    """Return whether a sphere layer ignores the length of this parameter (an LSTM's projection is plain)."""
    return name.startswith("weight") and not name.startswith("weight_hr")


def _check_weight_decay(optimizer: Optimizer, modules: list[nn.Module]) -> None:
    decayed = {p for group in optimizer.param_groups if group.get("weight_decay") for p in group["params"]}
    named = (item for module in modules for item in module.named_parameters(recurse=False))
    if any(is_scale_free(name) and p.requires_grad and p in decayed for name, p in named):
        warn_once(
            f"{type(optimizer).__name__} decays weights of sphere layers or angular losses, whose length does not "
            "matter: make its parameter groups with hypersphere.param_groups(model, weight_decay)"
        )


_WEIGHT_DECAY = OptimizerCheck(_check_weight_decay)


@dataclass(frozen=True)
class _Change:
    """How a verb changed one layer; holds weak references only."""

    verb: str
    old: ReferenceType[Tensor]  # from before the change: an optimizer that holds it but not `added` is outdated
    added: tuple[ReferenceType[Tensor], ...]  # empty: the model no longer has `old`


_changes: list[_Change] = []


def record_change(verb: str, layers: Collection[tuple[Tensor, Collection[Tensor]]]) -> None:
    """Warn once when an optimizer that was made before this change steps.

    Args:
        verb: what changed the model.
        layers: pairs of a parameter from before the change and the parameters that were added; none were added if the
            model no longer has the first.
    """
    gone = {old for old, added in layers if not added}
    _changes[:] = [each for each in _changes if each.old() is not None and not any(new() in gone for new in each.added)]
    _changes.extend(_Change(verb, ref(old), tuple(map(ref, added))) for old, added in layers)
    _OUTDATED.recheck()


def _check_outdated(optimizer: Optimizer, _: list[nn.Module]) -> None:
    held = _parameters_of(optimizer)
    for change in _changes:
        old = change.old()
        if old is None or old not in held:
            continue
        name = f"{type(optimizer).__name__} was made before hypersphere.{change.verb}"
        if not change.added:
            warn_once(f"{name} and holds parameters that the model no longer has: make it after")
            continue
        missing = {p for each in change.added if (p := each()) is not None and p.requires_grad and p not in held}
        if missing and not _any_optimizer_holds(missing):
            warn_once(f"{name} and does not hold the parameters that this added: make it after")


def _parameters_of(optimizer: Optimizer) -> set[Tensor]:
    return {parameter for group in getattr(optimizer, "param_groups", ()) for parameter in group["params"]}


def _any_optimizer_holds(parameters: set[Tensor]) -> bool:
    """Return whether any optimizer holds one of them: two may share a layer. Slow, so called last."""
    optimizers = (each for each in gc.get_objects() if issubclass(type(each), Optimizer))
    return any(not parameters.isdisjoint(_parameters_of(each)) for each in optimizers)


_OUTDATED = OptimizerCheck(_check_outdated)
