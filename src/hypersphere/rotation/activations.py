"""Forward passes of rotated layers that do not read their rotated weight: its rotation acts on inputs and outputs, or
the weight is formed without a gradient to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..neurons import is_transformers_conv1d
from .block_rotation import rotate_activations
from .formed_weight import can_form, formed_linear, is_cheaper_formed
from .parametrization import NeuronRotation
from .plan import Plan

Forward = Callable[[Any, Tensor], Tensor]


def make_forward(plain: type[nn.Module], layer: nn.Module) -> Forward | None:
    """Return the forward pass of a rotated layer of the class `plain`; None: as the class has it.

    What the plan of the rotation says: "weight" calls the forward pass of `plain`, which reads the rotated weight.
    "activation" rotates inputs and outputs. "auto" takes the fewest multiplications at each call; a Linear may form its
    weight.
    """
    if plain is nn.Linear or is_transformers_conv1d(layer):
        turned: Callable[[Any, Tensor, Tensor, NeuronRotation], Tensor | None] = _rotate_linear
    elif plain in (nn.Conv1d, nn.Conv2d, nn.Conv3d):
        turned = _rotate_conv
    else:
        return None

    def forward(self: Any, input: Tensor) -> Tensor:
        rotations: Any = getattr(self.parametrizations, "weight", ())
        output: Tensor | None = None
        if len(rotations) == 1 and isinstance(rotations[0], NeuronRotation) and rotations[0].plan.apply != "weight":
            output = turned(self, input, rotations[0].detached(rotations.original), rotations[0])
        if output is None:
            output = plain.forward(self, input)
        return output

    return forward


def is_cheaper_on_inputs(plan: Plan, outputs: int) -> bool:
    """Return whether rotating inputs and outputs takes fewer multiplications than rotating the weight.

    Per row of inputs, forward and backward pass: R on d inputs takes 3·d·m, R on N outputs 3·N·m. Rotating the weight
    takes the gradient to the weight instead, d·N, and more that does not grow with the rows and is not counted.
    """
    return 3 * plan.multiplications <= plan.dimension * outputs


def _rotate_linear(layer: Any, x: Tensor, weight: Tensor, rotation: NeuronRotation) -> Tensor | None:
    """Compute the layer the cheapest way; None: by the gradient to its weight."""
    plan, task = rotation.plan, rotation.task
    if plan.apply == "auto" and (x.layout is not torch.strided or x.is_nested):
        return None
    rows = weight.mT if plan.layout.transposed else weight
    formed = plan.apply == "auto" and can_form(plan, len(rows)) and is_cheaper_formed(plan, x, rows)
    if plan.apply == "auto" and not formed and not is_cheaper_on_inputs(plan, len(rows)):
        return None
    block_rotations = task.block_rotations(plan, dropout=rotation.training)
    if formed:
        return rotate_activations(
            lambda x, bias: formed_linear(x, rows, bias, block_rotations), x, layer.bias, [], task.magnitudes
        )
    return rotate_activations(lambda x, bias: F.linear(x, rows, bias), x, layer.bias, block_rotations, task.magnitudes)


def _rotate_conv(layer: Any, x: Tensor, weight: Tensor, rotation: NeuronRotation) -> Tensor:
    def compute(x: Tensor, bias: Tensor | None) -> Tensor:
        output: Tensor = layer._conv_forward(x, weight, bias)
        return output

    block_rotations = rotation.task.block_rotations(rotation.plan, dropout=rotation.training)
    return rotate_activations(compute, x, layer.bias, block_rotations, rotation.task.magnitudes, 1 - weight.dim())
