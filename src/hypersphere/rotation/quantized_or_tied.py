"""Rotate the inputs of layers whose weight cannot be changed: quantized, or tied to another layer's.

Such a layer keeps its weight and its key. The rotation is stored under the usual keys, without
``parametrizations.weight.original``, and acts on the inputs: x Wᵀ = (x R) Vᵀ.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from .._internal.checks import warn_once
from .._internal.functions import is_recorded
from .._internal.quantized import is_quantized_tensor
from ..neurons import Layout, Neurons
from . import optimizer_checks
from .parametrization import NeuronRotation

_QUANTIZED = ("torch.ao.nn.quantized", "torch.ao.nn.sparse.quantized", "bitsandbytes.nn")
_NOT_PLAIN = "its inputs are rotated: a layer that takes its weight would ignore the rotation"


class FrozenNeurons(Neurons):
    """The neurons of a Linear whose weight cannot be read or written as a plain parameter."""

    @property
    def stored(self) -> Tensor:
        """A stand-in of the weight's shape; it takes no memory."""
        module: Any = self.module
        return torch.empty(1).expand(module.out_features, module.in_features)


def frozen_neurons(module: nn.Module) -> FrozenNeurons:
    return FrozenNeurons(module, "weight", False, Layout())


def is_quantized(module: nn.Module) -> bool:
    """Return whether a Linear holds its weight in another form than a floating point parameter.

    Quantized by torch (dynamic int8 too), by bitsandbytes (layers of its own) or by torchao (tensors of its own).
    """
    if any(base.__module__.startswith(_QUANTIZED) for base in type(module).__mro__):
        return hasattr(module, "weight")
    return isinstance(module, nn.Linear) and is_quantized_tensor(module._parameters.get("weight"))


def is_linear(module: nn.Module) -> bool:
    """Return whether a quantized layer is a Linear, whose inputs can be rotated."""
    return all(isinstance(getattr(module, name, None), int) for name in ("in_features", "out_features"))


def attach_frozen(layer: nn.Module, rotation: NeuronRotation) -> None:
    """Let the layer rotate its inputs; its weight and its other parameters stay as they are."""
    plain: Any = type(layer)
    layer.__class__ = _frozen_class(plain)
    layer.register_module("parametrizations", nn.ModuleDict({"weight": nn.ModuleList([rotation])}))
    optimizer_checks.ROTATED.add(layer)


@cache
def _frozen_class(plain: Any) -> Any:
    def forward(self: Any, input: Tensor) -> Tensor:
        rotation = self.parametrizations["weight"][0]
        (block_rotation,) = rotation.task.block_rotations(rotation.plan, dropout=rotation.training)
        rotated = block_rotation.rotate_features(input)
        output: Tensor = plain.forward(self, rotated)
        if rotated.requires_grad and rotation.training and not rotation.gradient_checked and not is_recorded():
            rotation.gradient_checked = True
            _warn_without_gradient(plain.__name__, rotated, output)
        return output

    def reduce_ex(self: Any, protocol: Any) -> tuple[Any, ...]:
        return _rebuild, (plain,), plain.__getstate__(self)

    names = {"forward": forward, "__reduce_ex__": reduce_ex, "not_plain": _NOT_PLAIN}
    return type(f"Rotated{plain.__name__}", (plain,), names)


def _warn_without_gradient(layer: str, rotated: Tensor, output: Tensor) -> None:
    """Warn if no gradient reaches the rotated inputs; the output may require one for its bias, or without reason."""
    seen = output.requires_grad and torch.autograd.grad(output.sum(), rotated, retain_graph=True, allow_unused=True)[0]
    if not isinstance(seen, Tensor):
        warn_once(
            f"a {layer} with quantized activations passes no gradient to its inputs: its rotation is not trained; "
            "quantize its weight alone"
        )


def _rebuild(plain: Any) -> nn.Module:
    layer: nn.Module = plain.__new__(plain)
    nn.Module.__init__(layer)
    layer.__class__ = _frozen_class(plain)
    optimizer_checks.ROTATED.add(layer)
    return layer
