"""Find the layers to measure: of a model, a state_dict or a file. Rotated layers are merged first."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from .._internal import checks
from .._internal.sharding import gather
from .._internal.text import escaped
from ..neurons import Layout, Neurons, Specs, as_list, check_names, no_layer_error, select
from ..neurons.layouts import EMBEDDING, RECURRENT
from ..neurons.stored import find_stored
from .formats import Opened, StoredTensor, Tensors
from .formats.stored_tensors import dtype_name, merge_rotations

MOST_DIMENSIONS = 16
_NO_LAYER = re.compile(r"bias|mask|running_|num_batches|anchor|inv_freq|_scale|scale_|zero_point|table$", re.IGNORECASE)
_ROTATED = (
    "the state_dict is that of a rotated model; merge it with hypersphere.rotation.merge_state_dict(state_dict, "
    "task=...) first"
)


@dataclass(frozen=True)
class LayerSource:
    """A layer: its neurons, which are read when it is measured, and what its report says of it."""

    name: str
    read: Callable[[], Tensor]
    """Read the tensor."""
    as_rows: Callable[[Tensor], Tensor]
    """Return the neurons of the tensor as rows, (groups, N, d)."""
    tensor: str
    shape: tuple[int, ...]
    dtype: str
    kind: str = "linear"
    is_output: bool = False
    assumed: str = ""
    passed_over: str = ""

    def matrix(self) -> Tensor:
        """Read the neurons as rows, (groups, N, d)."""
        return self.as_rows(self.read())


def layers_of_model(model: nn.Module, layers: Specs | None, exclude: Specs) -> list[LayerSource]:
    """Return the layers of a model; ValueError if there are none, or if a name in `layers` matches nothing."""
    selected = select(model, layers, exclude)
    if layers is not None:
        check_names("diagnose", model, selected, layers, exclude)
    if not selected:
        raise no_layer_error(selected, "diagnose")
    return [_source_in_model(name, neurons) for name, neurons in selected.items()]


def _source_in_model(name: str, neurons: Neurons) -> LayerSource:
    parameter = neurons.module._parameters.get(neurons.tensor_name)
    if parameter is not None and is_lazy(parameter):
        raise ValueError(f"layer {name!r} is lazy and has no weight yet: run the model once first")
    weight = neurons.stored

    def read() -> Tensor:
        with _without_side_effects(neurons.module):
            return neurons.matrix()

    return LayerSource(
        name,
        read,
        partial(_check_rows, name, tuple(weight.shape)),
        tensor=f"{name}.{neurons.tensor_name}",
        shape=tuple(weight.shape),
        dtype=dtype_name(weight.dtype),
        kind="convolution" if weight.dim() > 2 and not neurons.layout.stacked else "linear",
        is_output=neurons.is_output,
    )


@contextmanager
def _without_side_effects(module: nn.Module) -> Iterator[None]:
    """Switch the parametrizations to eval mode: in training mode, reading a weight with spectral norm changes it."""
    parametrizations = getattr(module, "parametrizations", None)
    inside = parametrizations.modules() if isinstance(parametrizations, nn.Module) else ()
    training = [m for m in inside if m.training]
    for m in training:
        m.training = False
    try:
        yield
    finally:
        for m in training:
            m.training = True


def layers_of_state_dict(state_dict: Any, layers: Specs | None, exclude: Specs) -> list[LayerSource]:
    """Return the layers of a state_dict, in its order; raise TypeError or ValueError if that is impossible.

    Recurrent weights and embeddings (by name) are included only if `layers` matches them.
    """
    allowed = "model_or_state_dict must be an nn.Module or a mapping of names to tensors"
    if isinstance(state_dict, str | PathLike):
        raise TypeError(f"{allowed}, got the path {str(state_dict)!r}: call hypersphere.inspect(path)")
    if not isinstance(state_dict, Mapping):
        raise TypeError(f"{allowed}, got {type(state_dict).__name__}")
    tensors = {
        key: StoredTensor(dtype_name(value.dtype), tuple(value.shape), partial(gather, value))
        for key, value in state_dict.items()
        if isinstance(key, str) and isinstance(value, Tensor) and not is_lazy(value)
    }
    known = ("", EMBEDDING, RECURRENT)
    weights = {
        source.name: source
        for source in _stored_layers(merge_rotations(tensors, _ROTATED), {})
        if source.passed_over in known
    }
    listed = ", ".join(escaped(name) or "(root)" for name in weights) or "none"
    wanted, unwanted = None if layers is None else _check_strings("layers", layers), _check_strings("exclude", exclude)
    for spec in wanted or []:
        if not any(_matches([spec], name) for name in weights):
            raise ValueError(f"diagnose: no weight named {spec!r}; the state_dict's weights are: {listed}")
    selected = [
        source
        for name, source in weights.items()
        if (_matches(wanted, name) if wanted is not None else not source.passed_over) and not _matches(unwanted, name)
    ]
    if not selected:
        inside = [key for key, value in state_dict.items() if isinstance(value, Mapping)]
        hint = f"; pass the state_dict itself, maybe under {' or '.join(map(repr, inside))}" if inside else ""
        raise ValueError(f"diagnose: no weight to work on; the state_dict's weights are: {listed}{hint}")
    return [replace(source, as_rows=_checked(source)) for source in selected]


def layers_of_file(path: Path, opened: Opened) -> tuple[list[LayerSource], dict[str, str]]:
    """Return the layers of a file, and why its other matrices are left out. ValueError if it has no layers."""
    skipped = dict(opened.skipped)
    for key, tensor in opened.tensors.items():
        if len(tensor.shape) > 1 and (why := _why_not(key, tensor)):
            skipped[key] = why
    sources = []
    for source in _stored_layers(opened.tensors, opened.layouts):
        if source.passed_over and math.prod(source.shape[:-1]) == 1:
            skipped.setdefault(source.tensor, "a single vector")
        elif source.tensor not in skipped:
            sources.append(source)
    if not sources:
        count = len(opened.tensors) + len(opened.skipped)
        raise ValueError(f"{path} has no layer to inspect: none of its {count} tensors is a matrix of weights")
    return sources, skipped


def _why_not(key: str, tensor: StoredTensor) -> str:
    """Return why a tensor holds no neurons, by its name, type and shape; empty if it may."""
    if not tensor.is_floating:
        return f"{tensor.dtype}, not floating point"
    if _NO_LAYER.search(key.rpartition(".")[2]):
        return "not a weight by its name"
    if len(tensor.shape) > MOST_DIMENSIONS:
        return f"{len(tensor.shape)} dimensions"
    return "empty" if 0 in tensor.shape else ""


def _stored_layers(tensors: Tensors, layouts: Mapping[str, Layout]) -> list[LayerSource]:
    """Return the matrices of a state_dict or a file, by the names that :func:`select` gives their layers."""
    shapes = {key: tensor.shape for key, tensor in tensors.items() if tensor.is_floating}
    return [
        LayerSource(
            name,
            tensors[stored.key].read,
            stored.matrix,
            tensor=stored.key,
            shape=tensors[stored.key].shape,
            dtype=tensors[stored.key].dtype,
            kind=stored.kind,
            assumed=stored.assumed,
            passed_over=stored.passed_over,
        )
        for name, stored in find_stored(shapes, layouts).items()
    ]


def _checked(source: LayerSource) -> Callable[[Tensor], Tensor]:
    return lambda tensor: _check_rows(source.name, source.shape, source.as_rows(tensor))


def _check_rows(name: str, shape: tuple[int, ...], rows: Tensor) -> Tensor:
    """Raise if the neurons of a layer are not there, or not finite; return them, on a device that has float64."""
    checks.has_values(name, rows)
    checks.floating(f"the weight of {name!r}", rows)
    if not rows.numel():
        raise ValueError(f"the weight of {name!r} must not be empty, got the shape {shape}")
    if rows.device.type not in ("cpu", "cuda"):  # others may not have float64
        rows = rows.cpu()
    checks.finite_weight(name, rows.float() if rows.dtype.itemsize == 1 else rows)
    return rows


def _check_strings(argument: str, specs: Specs) -> list[str]:
    strings = []
    for spec in as_list(argument, specs):
        if not isinstance(spec, str):
            allowed = "names and patterns for a state_dict (types and predicates need a model)"
            raise TypeError(f"{argument} must hold {allowed}, got {spec!r}")
        strings.append(spec)
    return strings


def _matches(specs: list[str], name: str) -> bool:
    return any(name == spec or fnmatchcase(name, spec) for spec in specs)
