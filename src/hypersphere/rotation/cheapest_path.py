"""Decide how a rotated layer is computed: what ``apply="auto"`` means.

There are three paths, which give the same output:

- weight: rotate the weight; the backward pass takes the gradient to the weight.
- activation: rotate the layer's inputs and outputs; the weight is not touched.
- formed: form the rotated weight without the gradient to it (see formed_weight.py).

Multiplications of forward and backward pass, beyond the layer's own, for T rows of inputs, N neurons of d dimensions
and blocks of m. The cost of the weight path that does not grow with the rows is not counted.

==========  ==================  ===================
path        R of the inputs     R of the outputs
==========  ==================  ===================
weight      T·d·N (the gradient to the weight, once)
activation  3·T·d·m             3·T·N·m
formed      2·N·d·m + T·d·m     2·N·d·m + T·N·m
==========  ==================  ===================
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .._internal.functions import is_transformed
from .._internal.precision import autocast_enabled
from ..neurons import Neurons, is_transformers_conv1d
from ..orthogonal import BUILT_IN
from .parametrization import layer_label
from .plan import OUTPUT, Plan
from .quantized_or_tied import FrozenNeurons

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_FORMED_DTYPES = (torch.float32, torch.float64)


def cheapest_path(
    plan: Plan, outputs: int, *, is_linear: bool, x: Tensor | None = None, dtype: torch.dtype | None = None
) -> str:
    """Return the path with the fewest multiplications for a layer with `outputs` neurons: see the module.

    Args:
        x: the inputs of a call. None, when the layer is planned: "auto" if calls take another path than "weight".
        dtype: of the neurons, with `x`.
    """
    if plan.sample is not None:  # dimensions that are chosen one by one cost copies of the inputs
        return "weight"
    rotating, weight_gradient = plan.multiplications, plan.dimension * outputs  # per row of inputs
    by_activation = 3 * rotating <= weight_gradient
    can_form = is_linear and rotating <= weight_gradient and _can_form(plan)
    if x is None:
        return "auto" if can_form or by_activation else "weight"
    if is_linear and (x.layout is not torch.strided or x.is_nested):
        return "weight"
    if can_form and x.dtype == dtype and _may_form(plan, x):
        rows = x.shape[:-1].numel()
        sides = ((side, plan.dimension if side.prefix == OUTPUT else outputs) for side in plan.sides)
        if sum(side.rotated * side.size * width for side, width in sides) < rows * rotating:
            return "formed"
    return "activation" if by_activation else "weight"


def planned_path(plan: Plan, neurons: Neurons, apply: str, name: str) -> str:
    """Return the path of a layer's plan: "auto" only if calls decide; ValueError if `apply` is not possible."""
    method = plan.orthogonalizer
    possible = method is not None and method.orthogonal and _can_rotate_activations(neurons)
    if apply == "activation" and not possible:
        raise ValueError(
            "apply='activation' needs an orthogonal method and a Linear, or a convolution with 1×1 kernels and one "
            f"group; got method={plan.method!r} and layer {layer_label(name)!r} [{type(neurons.module).__name__}]: use "
            "apply='auto' or exclude it"
        )
    if apply != "auto":
        return apply
    if isinstance(neurons, FrozenNeurons):
        return "activation"
    outputs = neurons.stored.numel() // plan.dimension
    is_linear = not isinstance(neurons.module, _CONVOLUTIONS)
    return cheapest_path(plan, outputs, is_linear=is_linear) if possible else "weight"


def _can_rotate_activations(neurons: Neurons) -> bool:
    """Return whether all neurons of the layer see the same inputs, and see them once."""
    module = neurons.module
    if isinstance(neurons, FrozenNeurons):
        return True
    if isinstance(module, _CONVOLUTIONS):
        return type(module) in _CONVOLUTIONS and module.groups == 1 and set(module.kernel_size) == {1}
    return type(module) is nn.Linear or is_transformers_conv1d(module)


def _can_form(plan: Plan) -> bool:
    """Return whether forming the weight is possible and can be cheaper.

    The neurons must be fixed and R orthogonal by construction: not OGD's, and not by a method of the user's, which may
    be an approximation. A whole R is cheaper without its matrix.
    """
    orthogonal = plan.method in BUILT_IN and plan.method != "ogd"
    return orthogonal and not plan.learned and all(side.blocks > 1 for side in plan.sides)


def _may_form(plan: Plan, x: Tensor) -> bool:
    """Return whether the weight may be formed for these inputs."""
    if x.dim() == 0 or x.shape[-1] != plan.dimension:  # the layer says what is wrong
        return False
    if x.dtype not in _FORMED_DTYPES or autocast_enabled(x):
        return False
    return not is_transformed() and not torch.compiler.is_exporting()  # an export would hold for these many rows alone
