"""Find the neurons in a state_dict by names and shapes.

Floating point tensors of two or more dimensions named ``weight``, ``in_proj_weight`` or ``{q,k,v}_proj_weight``, and
the stacked weights of experts, hold neurons. These are rows (dimension 0), except where names and shapes tell another
layout. Layers have the names that :func:`select` gives them. Rotated layers are merged first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from os import PathLike
from typing import Any

from torch import Tensor
from torch.nn.parameter import is_lazy

from .._internal.sharding import gather
from ..rotation.merging import holds_rotations, merge_state_dict
from ..selection import Layout, Specs, as_list, neuron_rows
from ..selection.layouts import EXPERTS, expert_layouts, fused_parts

_PROJECTIONS = ("q_proj_weight", "k_proj_weight", "v_proj_weight")
_CONV1D = ("c_attn", "q_attn", "c_fc", "c_proj")
_RECURRENT = ("weight_ih", "weight_hh", "weight_hr")


@dataclass(frozen=True)
class StoredNeurons:
    """A tensor of neurons without its module."""

    tensor: Tensor
    is_output: bool
    layout: Layout

    def matrix(self) -> Tensor:
        """Return the neurons as rows: (groups, N, d)."""
        return neuron_rows(gather(self.tensor), self.layout)


def select_stored(
    verb: str, state_dict: Any, layers: Specs | None, exclude: Specs, output: str | None
) -> dict[str, StoredNeurons]:
    """Return the neurons of a state_dict by layer name, in its order; raise TypeError or ValueError if impossible.

    Recurrent weights and embeddings (by name) are included only if `layers` matches them.
    """
    weights, layouts = _find_weights(state_dict)
    listed = ", ".join(name or "(root)" for name in weights) or "none"
    wanted, unwanted = None if layers is None else _check_strings("layers", layers), _check_strings("exclude", exclude)
    for spec in wanted or []:
        if not _matches([spec], *weights):
            raise ValueError(f"{verb}: no weight named {spec!r}; the state_dict's weights are: {listed}")
    if output is not None and not isinstance(output, str):
        raise TypeError(f"output must be 'auto', a layer's name or None, got {output!r}")
    if output not in (None, "auto", *weights):
        raise ValueError(f"output must be 'auto', None or one of {', '.join(map(repr, weights))}; got {output!r}")
    selected = {
        name: StoredNeurons(tensor, name == output, layouts.get(name, Layout()))
        for name, tensor in weights.items()
        if (_matches(wanted, name) if wanted is not None else not _is_skipped(name, tensor))
        and not _matches(unwanted, name)
    }
    if not selected:
        inside = [key for key, value in state_dict.items() if isinstance(value, Mapping)]
        hint = f"; pass the state_dict itself, maybe under {' or '.join(map(repr, inside))}" if inside else ""
        raise ValueError(f"{verb}: no weight to work on; the state_dict's weights are: {listed}{hint}")
    return selected


def _find_weights(state_dict: Any) -> tuple[dict[str, Tensor], dict[str, Layout]]:
    """Return all tensors that may hold neurons, and the layouts that are not plain rows, by layer name."""
    allowed = "model_or_state_dict must be an nn.Module or a mapping of names to tensors"
    if isinstance(state_dict, str | PathLike):
        raise TypeError(
            f"{allowed}, got the path {str(state_dict)!r}: load it with safetensors.torch.load_file(path), or with "
            "torch.load(path, weights_only=True)"
        )
    if not isinstance(state_dict, Mapping):
        raise TypeError(f"{allowed}, got {type(state_dict).__name__}")
    if holds_rotations(state_dict):
        try:
            state_dict = merge_state_dict(state_dict)
        except ValueError as error:
            hint = "merge it with hypersphere.merge_state_dict(state_dict, task=...) first"
            raise ValueError(f"the state_dict is that of a rotated model; {hint} ({error})") from None
    tensors = {
        key: value
        for key, value in state_dict.items()
        if isinstance(key, str) and isinstance(value, Tensor) and not is_lazy(value) and value.is_floating_point()
    }
    known = _find_layouts({key: tuple(value.shape) for key, value in tensors.items()})
    found: dict[str, Tensor] = {}
    layouts: dict[str, Layout] = {}
    for key, value in tensors.items():
        if value.dim() >= 2:
            module, _, tensor = key.rpartition(".")
            if tensor in ("weight", "in_proj_weight"):
                name = key if module in found else module
            elif tensor in _PROJECTIONS or tensor.startswith(_RECURRENT) or (tensor in EXPERTS and key in known):
                name = key
            else:
                continue
            found[name] = value
            if key in known:
                layouts[name] = known[key]
    return found, layouts


def _find_layouts(shapes: dict[str, tuple[int, ...]]) -> dict[str, Layout]:
    """Return the layouts that are not plain rows, by key: of fused attention, transformers' Conv1D and its experts."""
    found: dict[str, Layout] = {}
    columns = _has_columns(shapes)
    for key, shape in shapes.items():
        module, _, tensor = key.rpartition(".")
        if tensor == "in_proj_weight" and len(shape) == 2 and shape[0] == 3 * shape[1]:
            found[key] = Layout(parts=3)
        elif tensor == "weight" and len(shape) == 2:
            transposed = columns and module.rpartition(".")[2] in _CONV1D
            parts = fused_parts(module, shape[::-1] if transposed else shape)
            if transposed or parts > 1:
                found[key] = Layout(parts=parts, transposed=transposed)
        elif tensor == EXPERTS[0]:
            prefix = key.removesuffix(tensor)
            of_experts = expert_layouts({name: shapes.get(prefix + name, ()) for name in EXPERTS})
            found |= {prefix + name: layout for name, layout in of_experts.items()}
    return found


def _has_columns(shapes: dict[str, tuple[int, ...]]) -> bool:
    """Return whether layers named as in GPT-2 have inputs before outputs, by the bias of one that is not square.

    Other networks use these names for nn.Linear.
    """
    for key, shape in shapes.items():
        module, _, tensor = key.rpartition(".")
        if tensor == "weight" and len(shape) == 2 and shape[0] != shape[1] and module.rpartition(".")[2] in _CONV1D:
            bias = shapes.get(f"{module}.bias")
            if bias is not None:
                return bias == (shape[1],)
    return False


def _is_skipped(name: str, tensor: Tensor) -> bool:
    last = name.rpartition(".")[2]
    embedding = tensor.dim() == 2 and ("embed" in last.lower() or last in ("wte", "wpe"))
    return embedding or last.startswith(_RECURRENT)


def _check_strings(argument: str, specs: Specs) -> list[str]:
    strings = []
    for spec in as_list(argument, specs):
        if not isinstance(spec, str):
            allowed = "names and patterns for a state_dict (types and predicates need a model)"
            raise TypeError(f"{argument} must hold {allowed}, got {spec!r}")
        strings.append(spec)
    return strings


def _matches(specs: list[str], *names: str) -> bool:
    return any(name == spec or fnmatchcase(name, spec) for name in names for spec in specs)
