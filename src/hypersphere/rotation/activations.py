"""Forward passes of rotated layers that do not read their rotated weight: its rotation acts on inputs and outputs, or
the weight is formed without a gradient to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from ..neurons import is_transformers_conv1d
from .block_rotation import rotate_activations
from .cheapest_path import cheapest_path
from .formed_weight import formed_linear
from .parametrization import NeuronRotation

Forward = Callable[[Any, Tensor], Tensor]


def make_forward(plain: type[nn.Module], layer: nn.Module) -> Forward | None:
    """Return the forward pass of a rotated layer of the class `plain`; None: as the class has it.

    "weight" in the rotation's plan calls the forward pass of `plain`, which reads the rotated weight; "activation"
    rotates inputs and outputs; "auto" takes the :func:`cheapest_path` of each call.
    """
    if plain is nn.Linear or is_transformers_conv1d(layer):
        compute: Callable[[Any, Tensor, Tensor, NeuronRotation], Tensor | None] = _compute_linear
    elif plain in (nn.Conv1d, nn.Conv2d, nn.Conv3d):
        compute = _compute_conv
    else:
        return None

    def forward(self: Any, input: Tensor) -> Tensor:
        rotations: Any = getattr(self.parametrizations, "weight", ())
        output: Tensor | None = None
        if len(rotations) == 1 and isinstance(rotations[0], NeuronRotation) and rotations[0].plan.apply != "weight":
            output = compute(self, input, rotations[0].detached(rotations.original), rotations[0])
        if output is None:
            output = plain.forward(self, input)
        return output

    return forward


def _compute_linear(layer: Any, x: Tensor, weight: Tensor, rotation: NeuronRotation) -> Tensor | None:
    """Compute the layer by its cheapest path; None: by the forward pass that reads the rotated weight."""
    plan, task = rotation.plan, rotation.task
    rows = weight.mT if plan.layout.transposed else weight
    path = plan.apply
    if path == "auto":
        path = cheapest_path(plan, len(rows), is_linear=True, x=x, dtype=rows.dtype)
    if path == "weight":
        return None
    rotations = task.block_rotations(plan, dropout=rotation.training)
    if path == "formed":
        return rotate_activations(
            lambda x, bias: formed_linear(x, rows, bias, rotations), x, layer.bias, [], task.magnitudes
        )
    return rotate_activations(lambda x, bias: F.linear(x, rows, bias), x, layer.bias, rotations, task.magnitudes)


def _compute_conv(layer: Any, x: Tensor, weight: Tensor, rotation: NeuronRotation) -> Tensor:
    """Compute a convolution with 1×1 kernels; one that is planned as "auto" is always cheaper by its activations."""

    def compute(x: Tensor, bias: Tensor | None) -> Tensor:
        output: Tensor = layer._conv_forward(x, weight, bias)
        return output

    rotations = rotation.task.block_rotations(rotation.plan, dropout=rotation.training)
    return rotate_activations(compute, x, layer.bias, rotations, rotation.task.magnitudes, 1 - weight.dim())
