"""The class of a rotated layer: torch's parametrized class, with pickling, errors for tools that write its weight, and
a forward pass that need not read it: the rotation acts on inputs and outputs, or the weight is formed without gradient.

torch makes a class for each parametrized layer, which pickle cannot find by name. A rotated layer is pickled as its
plain class, the names of its parametrized tensors and its state, which holds the rotations.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrize

from .._internal.quantized import QCONFIG
from .._internal.sharding import RefuseSplit, is_sharded
from ..neurons import is_transformers_conv1d
from . import optimizer_checks
from .block_rotation import rotate_activations
from .cheapest_path import cheapest_path
from .formed_weight import formed_linear
from .parametrization import NeuronRotation

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


def plain_class(layer: nn.Module, name: str) -> Any:
    """Return the class that a layer had before its tensor `name` was parametrized; FSDP may have derived from it."""
    return next(cls for cls in type(layer).__mro__ if name in vars(cls)).__bases__[0]


def class_without(cls: Any, name: str, *, last: bool) -> Any:
    """Return the class of a layer whose tensor `name` is no longer parametrized; `last`: nor is another one."""
    if name in vars(cls):
        return cls.__bases__[0] if last else copied_class(cls, without=name)
    bases = tuple(class_without(base, name, last=last) if hasattr(base, name) else base for base in cls.__bases__)
    attributes = {k: v for k, v in vars(cls).items() if k not in ("__dict__", "__weakref__")}
    return type(f"FSDP{bases[-1].__name__}", bases, attributes)  # FSDP derives from the parametrized class


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
    forward = _make_forward(plain, layer)
    if forward is not None:
        rotated_class.forward = forward
    rotated_class._distribute_module_applied = RefuseSplit(_why_unsplit)  # type: ignore[attr-defined]
    rotated_class.not_plain = _NOT_PLAIN  # type: ignore[attr-defined]
    rotated_class.qconfig = QCONFIG  # type: ignore[attr-defined]
    optimizer_checks.ROTATED.add(layer)


def _why_unsplit(layer: nn.Module) -> str:
    return (
        f"a rotated {type(layer).__bases__[0].__name__} cannot be split over processes: call parallelize_module before "
        "rotate, or leave the layer out of the plan"
    )


def _rebuild(plain: type[nn.Module], names: tuple[str, ...]) -> nn.Module:
    """Return a layer of the class `plain` whose tensors `names` are parametrized; its state follows."""
    layer = plain.__new__(plain)
    nn.Module.__init__(layer)
    for name in names:
        layer.register_parameter(name, nn.Parameter(torch.empty(0)))
        parametrize.register_parametrization(layer, name, nn.Identity(), unsafe=True)
    extend_class(layer)
    return layer


def _make_forward(plain: type[nn.Module], layer: nn.Module) -> Callable[[Any, Tensor], Tensor] | None:
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
    path = "weight" if is_sharded(weight) else plan.apply
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
