"""Forward passes of layers whose rotation acts on their inputs and outputs instead of on the weight."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from ..selection import is_transformers_conv1d
from .parametrization import Rotation
from .turns import turn_layer

Forward = Callable[[Any, Tensor], Tensor]


def make_forward(plain: type[nn.Module], layer: nn.Module) -> Forward | None:
    """Return the forward pass of a rotated layer of the class `plain`; None: as the class has it.

    It rotates inputs if the plan of the rotation says so, else it calls the forward pass of `plain`.
    """
    if plain is nn.Linear or is_transformers_conv1d(layer):
        turned: Callable[[Any, Tensor, Tensor, Rotation], Tensor] = _rotate_linear
    elif plain in (nn.Conv1d, nn.Conv2d, nn.Conv3d):
        turned = _rotate_conv
    else:
        return None

    def forward(self: Any, input: Tensor) -> Tensor:
        rotations: Any = getattr(self.parametrizations, "weight", ())
        if len(rotations) != 1 or not isinstance(rotations[0], Rotation) or rotations[0].plan.apply != "input":
            output: Tensor = plain.forward(self, input)
            return output
        return turned(self, input, rotations[0].detached(rotations.original), rotations[0])

    return forward


def _rotate_linear(layer: Any, x: Tensor, weight: Tensor, rotation: Rotation) -> Tensor:
    rows = weight.mT if rotation.plan.layout.transposed else weight
    return _turn(rotation, lambda x, bias: F.linear(x, rows, bias), x, layer.bias)


def _rotate_conv(layer: Any, x: Tensor, weight: Tensor, rotation: Rotation) -> Tensor:
    return _turn(rotation, lambda x, bias: layer._conv_forward(x, weight, bias), x, layer.bias, 1 - weight.dim())


def _turn(rotation: Rotation, compute: Any, x: Tensor, bias: Tensor | None, dim: int = -1) -> Tensor:
    turns = rotation.task.turns(rotation.plan, dropout=rotation.training)
    return turn_layer(compute, x, bias, turns, rotation.task.magnitudes, dim)
