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
        self.look_again()

    def look_again(self) -> None:
        """Optimizers that were looked at are so once more."""
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


@dataclass(frozen=True)
class _Change:
    """What a verb did to one layer; nothing of it is kept alive."""

    verb: str
    known_by: ReferenceType[Tensor]  # a parameter from before it: what holds it and not `added` was made before
    added: tuple[ReferenceType[Tensor], ...]  # none: `known_by` is no longer the model's


_changes: list[_Change] = []


def changed(verb: str, layers: Collection[tuple[Tensor, Collection[Tensor]]]) -> None:
    """From now on optimizers that know only what was before are warned of, once, when they step.

    Args:
        verb: what changed the model.
        layers: a parameter that an optimizer from before holds, and those that it should hold too; none if the first
            is no longer the model's.
    """
    gone = {known_by for known_by, added in layers if not added}
    _changes[:] = [
        each for each in _changes if each.known_by() is not None and not any(new() in gone for new in each.added)
    ]
    _changes.extend(_Change(verb, ref(known_by), tuple(map(ref, added))) for known_by, added in layers)
    _outdated.look_again()


def _look_for_outdated(optimizer: Optimizer, _: list[nn.Module]) -> None:
    held = _held(optimizer)
    for change in _changes:
        known_by = change.known_by()
        if known_by is None or known_by not in held:
            continue
        name = f"{type(optimizer).__name__} was made before hypersphere.{change.verb}"
        if not change.added:
            warn_once(f"{name} and holds parameters that the model no longer has: make it after")
            continue
        missing = {p for each in change.added if (p := each()) is not None and p.requires_grad and p not in held}
        if missing and not _held_elsewhere(missing):
            warn_once(f"{name} and does not hold the parameters that this added: make it after")


def _held(optimizer: Optimizer) -> set[Tensor]:
    return {parameter for group in getattr(optimizer, "param_groups", ()) for parameter in group["params"]}


def _held_elsewhere(parameters: set[Tensor]) -> bool:
    """Whether some optimizer holds one of them: two may share a layer. Takes a while, and is asked in doubt alone."""
    optimizers = (each for each in gc.get_objects() if issubclass(type(each), Optimizer))
    return any(not parameters.isdisjoint(_held(each)) for each in optimizers)


_outdated = Watch(_look_for_outdated)
