"""The class of a rotated layer: torch's parametrized class, with pickling and errors for tools that write its weight.

torch makes a class for each parametrized layer, which pickle cannot find by name. A rotated layer is pickled as its
plain class, the names of its parametrized tensors and its state, which holds the rotations.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrize

from .._internal.quantized import QCONFIG
from . import optimizer_checks
from .activations import make_forward

_NOT_PLAIN = (
    "the layer is rotated, its weight is computed and what is written to it is lost: call hypersphere.merge first"
)


def own_class(layer: nn.Module) -> None:
    """Give a layer that is parametrized already a class of its own: deepcopies share the one that parametrize made."""
    if parametrize.is_parametrized(layer):
        layer.__class__ = copied_class(type(layer))


def copied_class(original: Any, without: str = "") -> Any:
    """Return a new class with the attributes of `original`, except `without`."""
    attributes = {k: v for k, v in vars(original).items() if k not in (without, "__dict__", "__weakref__")}
    return type(original.__name__, original.__bases__, attributes)


def extend_class(layer: nn.Module) -> None:
    """Add pickling and clear errors to the class that parametrize made for `layer`, and check its optimizers."""
    rotated_class = type(layer)
    plain = rotated_class.__bases__[0]
    object_state: Any = plain.__getstate__  # not torch's, which raises

    def reduce_ex(self: nn.Module, protocol: Any) -> tuple[Any, ...]:
        if type(self) is not rotated_class:  # FSDP, for example, derives from it
            raise TypeError(f"a rotated layer that became a {type(self).__name__} cannot be pickled: use state_dict()")
        return _rebuild, (plain, tuple(self.parametrizations)), object_state(self)  # type: ignore[arg-type]

    def register_parameter(self: nn.Module, name: str, param: nn.Parameter | None) -> None:
        if name.removesuffix("_orig") in self.parametrizations:  # type: ignore[operator]  # _orig: torch's prune
            raise ValueError(f"{name} of a {plain.__name__} cannot be replaced: {_NOT_PLAIN}")
        plain.register_parameter(self, name, param)  # type: ignore[attr-defined]

    if getattr(plain, "__reduce_ex__") is getattr(object, "__reduce_ex__"):  # noqa: B009 (else it has its own way)
        rotated_class.__reduce_ex__ = reduce_ex  # type: ignore[assignment, method-assign]
    rotated_class.register_parameter = register_parameter  # type: ignore[method-assign]
    forward = make_forward(plain, layer)
    if forward is not None:
        rotated_class.forward = forward
    rotated_class.not_plain = _NOT_PLAIN  # type: ignore[attr-defined]
    rotated_class.qconfig = QCONFIG  # type: ignore[attr-defined]
    optimizer_checks.ROTATED.add(layer)


def _rebuild(plain: type[nn.Module], names: tuple[str, ...]) -> nn.Module:
    """Return a layer of the class `plain` whose tensors `names` are parametrized; its state follows."""
    layer = plain.__new__(plain)
    nn.Module.__init__(layer)
    for name in names:
        layer.register_parameter(name, nn.Parameter(torch.empty(0)))
        parametrize.register_parametrization(layer, name, nn.Identity(), unsafe=True)
    extend_class(layer)
    return layer
