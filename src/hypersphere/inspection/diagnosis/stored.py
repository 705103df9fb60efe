"""Select neurons of a state_dict, as :func:`select` does of a model. Rotated layers are merged first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from os import PathLike
from typing import Any

from torch import Tensor
from torch.nn.parameter import is_lazy

from ..._internal.sharding import gather
from ..._internal.text import escaped
from ...neurons import Specs, as_list
from ...neurons.layouts import EMBEDDING, RECURRENT
from ...neurons.stored import StoredNeurons, find_stored
from ...rotation.merging import holds_rotations, merge_state_dict


@dataclass(frozen=True)
class LoadedNeurons:
    """A tensor of neurons without its module."""

    tensor: Tensor
    stored: StoredNeurons
    is_output = False

    def matrix(self) -> Tensor:
        """Return the neurons as rows: (groups, N, d); those that FSDP2 sharded are gathered."""
        return self.stored.matrix(gather(self.tensor))


def select_stored(verb: str, state_dict: Any, layers: Specs | None, exclude: Specs) -> dict[str, LoadedNeurons]:
    """Return the neurons of a state_dict by layer name, in its order; raise TypeError or ValueError if impossible.

    Recurrent weights and embeddings (by name) are included only if `layers` matches them.
    """
    weights = _find_weights(state_dict)
    listed = ", ".join(escaped(name) or "(root)" for name in weights) or "none"
    wanted, unwanted = None if layers is None else _check_strings("layers", layers), _check_strings("exclude", exclude)
    for spec in wanted or []:
        if not _matches([spec], *weights):
            raise ValueError(f"{verb}: no weight named {spec!r}; the state_dict's weights are: {listed}")
    selected = {
        name: neurons
        for name, neurons in weights.items()
        if (_matches(wanted, name) if wanted is not None else not neurons.stored.passed_over)
        and not _matches(unwanted, name)
    }
    if not selected:
        inside = [key for key, value in state_dict.items() if isinstance(value, Mapping)]
        hint = f"; pass the state_dict itself, maybe under {' or '.join(map(repr, inside))}" if inside else ""
        raise ValueError(f"{verb}: no weight to work on; the state_dict's weights are: {listed}{hint}")
    return selected


def _find_weights(state_dict: Any) -> dict[str, LoadedNeurons]:
    """Return the tensors of layers, embeddings and recurrent layers, by layer name."""
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
            hint = "merge it with hypersphere.rotation.merge_state_dict(state_dict, task=...) first"
            raise ValueError(f"the state_dict is that of a rotated model; {hint} ({error})") from None
    tensors = {
        key: value
        for key, value in state_dict.items()
        if isinstance(key, str) and isinstance(value, Tensor) and not is_lazy(value) and value.is_floating_point()
    }
    stored = find_stored({key: tuple(value.shape) for key, value in tensors.items()})
    return {
        name: LoadedNeurons(tensors[found.key], found)
        for name, found in stored.items()
        if found.passed_over in ("", EMBEDDING, RECURRENT)
    }


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
