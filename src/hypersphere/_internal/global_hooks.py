"""All hooks that this package registers with torch for the whole process, to find silent mistakes.

One hook sees every module that becomes a child of another. It refuses tools that take a sphere or rotated layer for a
plain one (see :mod:`.quantized`), and remembers what DistributedDataParallel wraps.

The other sees every optimizer before its step, and looks at each once:

- A sphere layer's output does not change with its weights' length, so weight decay regularizes nothing; it only
  shortens the weights, and with them the gradient grows as 1/‖w‖. :func:`hypersphere.param_groups` avoids that.
- An optimizer made before `rotate`, `merge` or `spherize` lacks the parameters that these add, or steps parameters
  that the model no longer has.
- :mod:`hypersphere.rotation` and :mod:`hypersphere.optim` add checks of their own.

Modules, parameters and optimizers are referenced weakly.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, ClassVar
from weakref import ReferenceType, WeakSet, ref

from torch import Tensor, nn
from torch.nn.modules.module import register_module_module_registration_hook
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, Adagrad, Optimizer, SparseAdam
from torch.optim.optimizer import register_optimizer_step_pre_hook

from .adapters import has_adapters
from .checks import warn_once
from .quantized import USE_FILTER

_data_parallel: WeakSet[DistributedDataParallel] = WeakSet()


def _before_registration(parent: nn.Module, name: str, child: Any) -> None:
    """Raise when a layer of PEFT takes a sphere or rotated layer as its base layer, or one of torchao its place."""
    if isinstance(parent, DistributedDataParallel):
        _data_parallel.add(parent)
        return
    before: Any = parent._modules.get(name)
    if hasattr(type(before), "not_plain") and type(child).__module__.startswith("torchao."):
        raise ValueError(
            f"torchao cannot replace {name} = {type(before).__name__}({before.extra_repr()}) by a "
            f"{type(child).__name__}: {before.not_plain}, {USE_FILTER}. Layers before it are replaced already"
        )
    if name == "base_layer" and hasattr(type(child), "not_plain") and has_adapters(parent):
        raise ValueError(
            f"PEFT cannot adapt {type(child).__name__}({child.extra_repr()}): {child.not_plain}; or leave it out of "
            "target_modules. Layers before it have adapters already: model.unload() of a PEFT model, or a fresh model, "
            "is without"
        )


register_module_module_registration_hook(_before_registration)


def refuse_new_parameters(verb: str, model: nn.Module, layers: Collection[nn.Module]) -> None:
    """Raise if DDP or FSDP wraps one of the layers: it averages only the gradients of parameters that it knows.

    Of DDP: the model itself, or what was wrapped after this module was imported.
    """
    if any(getattr(layer, "_is_fsdp_managed_module", False) for layer in layers):
        wrapper = "fully_shard"
    elif isinstance(model, DistributedDataParallel) or _is_data_parallel(layers):
        wrapper = "DistributedDataParallel"
    else:
        return
    raise ValueError(
        f"{verb} adds parameters to a model that is wrapped already ({wrapper}): their gradients would not be "
        f"averaged over the processes; call {verb} before wrapping"
    )


def _is_data_parallel(layers: Collection[nn.Module]) -> bool:
    def is_wrapped() -> bool:
        return any(not set(layers).isdisjoint(wrapper.modules()) for wrapper in _data_parallel)

    if is_wrapped():
        gc.collect()  # a wrapper that is no longer used
    return is_wrapped()


class OptimizerCheck:
    """Check every optimizer once, before its first step, and again after another module was added.

    Args:
        check: gets the optimizer and the modules; warns or raises. After an error the optimizer is checked again.
    """

    active: ClassVar[list[OptimizerCheck]] = []

    def __init__(self, check: Callable[[Optimizer, list[nn.Module]], None]) -> None:
        self._check = check
        self._modules: WeakSet[nn.Module] = WeakSet()
        self._seen: WeakSet[Optimizer] = WeakSet()

    def add(self, module: nn.Module) -> None:
        self._modules.add(module)
        self.recheck()

    def recheck(self) -> None:
        """Check all optimizers again."""
        self._seen.clear()
        if self not in self.active:
            if not self.active:
                register_optimizer_step_pre_hook(_before_step)
            self.active.append(self)

    def look(self, optimizer: Optimizer) -> None:
        if optimizer not in self._seen:
            self._check(optimizer, list(self._modules))
            self._seen.add(optimizer)


def _before_step(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    for check in OptimizerCheck.active:
        check.look(optimizer)


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


def watch_sparse(module: nn.Module) -> None:
    """Raise when an optimizer that cannot step sparse gradients holds this module's weight."""
    _SPARSE.add(module)


def _check_sparse(optimizer: Optimizer, modules: list[nn.Module]) -> None:
    if not type(optimizer).__module__.startswith("torch.optim") or isinstance(optimizer, SparseAdam):
        return
    for module in modules:
        weight: Any = module._parameters.get("weight")
        for group in optimizer.param_groups:
            if weight is None or not any(weight is p for p in group["params"]):
                continue
            plain = not group.get("weight_decay") and not group.get("momentum")
            if not (plain and isinstance(optimizer, SGD | Adagrad)):
                raise ValueError(
                    f"{type(optimizer).__name__} with these options cannot step the sparse gradient of "
                    f"{type(module).__name__}: use hypersphere.optim.RowSGD, or of torch.optim SparseAdam, or SGD or "
                    "Adagrad without momentum and weight decay"
                )


_SPARSE = OptimizerCheck(_check_sparse)


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
    _changes[:] = [
        change
        for change in _changes
        if change.old() is not None and not any(parameter() in gone for parameter in change.added)
    ]
    _changes.extend(_Change(verb, ref(old), tuple(map(ref, added))) for old, added in layers)
    _OUTDATED.recheck()


def _check_outdated(optimizer: Optimizer, _: list[nn.Module]) -> None:
    held = {parameter for group in getattr(optimizer, "param_groups", ()) for parameter in group["params"]}
    for change in _changes:
        old = change.old()
        if old is None or old not in held:
            continue
        name = f"{type(optimizer).__name__} was made before hypersphere.{change.verb}"
        if not change.added:
            warn_once(f"{name} and holds parameters that the model no longer has: make it after")
            continue
        added = [parameter for reference in change.added if (parameter := reference()) is not None]
        if any(parameter.requires_grad and parameter not in held for parameter in added):
            warn_once(
                f"{name} and does not hold the parameters that this added: make it after, unless another optimizer "
                "has them"
            )


_OUTDATED = OptimizerCheck(_check_outdated)
