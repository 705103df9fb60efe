"""Forward passes of layers whose rotation acts on their inputs and outputs instead of on the weight."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from .parametrization import Rotation
from .turns import turn_conv, turn_linear

Forward = Callable[[Any, Tensor], Tensor]


def rotate_linear(layer: nn.Module, x: Tensor) -> Tensor:
    """Compute a rotated Linear (or transformers' Conv1D)."""
    rotation, weight = _rotation_of_inputs(layer)
    if rotation is None:
        return _plain_forward(layer)(layer, x)
    turns, magnitude = rotation.task.turns(rotation.plan, dropout=rotation.training), rotation.task.magnitudes
    return turn_linear(x, weight, layer.bias, turns, rotation.plan.layout, magnitude)


def rotate_conv(layer: nn.Module, x: Tensor) -> Tensor:
    """Compute a rotated convolution with 1×1 kernels."""
    rotation, weight = _rotation_of_inputs(layer)
    if rotation is None:
        return _plain_forward(layer)(layer, x)
    turns, magnitude = rotation.task.turns(rotation.plan, dropout=rotation.training), rotation.task.magnitudes
    return turn_conv(layer._conv_forward, x, weight, layer.bias, turns, magnitude)


# What the class of a rotated layer of these classes computes; Conv1D of transformers is added where it is found.
INPUT_FORWARDS: dict[type[nn.Module], Forward] = {
    nn.Linear: rotate_linear,
    nn.Conv1d: rotate_conv,
    nn.Conv2d: rotate_conv,
    nn.Conv3d: rotate_conv,
}


def _rotation_of_inputs(layer: Any) -> tuple[Rotation | None, Tensor]:
    """Return the rotation, if it acts on the inputs, and the neurons."""
    parts = layer.parametrizations["weight"]
    rotation, original = parts[0], parts.original
    if len(parts) > 1 or not isinstance(rotation, Rotation) or rotation.plan.apply != "input":
        return None, original
    return rotation, rotation.detached(original)


def _plain_forward(layer: nn.Module) -> Forward:
    forward: Forward = type(layer).__bases__[0].forward  # type: ignore[attr-defined]
    return forward
