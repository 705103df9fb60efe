"""Tensors by name, of a state_dict or of files of any format: type and shape at once, values when they are read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..._internal.text import one_line
from ...neurons import Layout
from ...rotation.merging import holds_rotations, merge_state_dict

TYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
}
"""Floating point types, as safetensors names them."""
_NAMES = {dtype: name for name, dtype in TYPES.items()}
_PARAMETRIZED = ".parametrizations."


@dataclass(frozen=True)
class StoredTensor:
    """A tensor of a state_dict or a file."""

    dtype: str
    """A floating point type of :data:`TYPES`, or another."""
    shape: tuple[int, ...]
    read: Callable[[], Tensor]

    @property
    def is_floating(self) -> bool:
        return self.dtype in TYPES


Tensors = dict[str, StoredTensor]


@dataclass(frozen=True)
class Opened:
    """A model's tensors, and what lies beside them."""

    format: str
    size: int
    """Bytes of all files."""
    tensors: Tensors
    layouts: dict[str, Layout] = field(default_factory=dict)
    """How tensors hold neurons, where the file tells: ONNX has a graph."""
    skipped: dict[str, str] = field(default_factory=dict)
    """Tensors that were not read, and why."""


def dtype_name(dtype: torch.dtype) -> str:
    """Return a type as safetensors names it, if it is floating point."""
    return _NAMES.get(dtype, str(dtype).removeprefix("torch."))


def join(shards: Iterable[Tensors]) -> Tensors:
    """Return the tensors of several files."""
    tensors: Tensors = {}
    for shard in shards:
        if doubled := tensors.keys() & shard.keys():
            raise ValueError(f"two files have a tensor {min(doubled)[:80]!r}: pass one of them")
        tensors |= shard
    return tensors


def rename(tensors: Tensors, rename: Callable[[str], str | None]) -> Tensors:
    """Return the tensors under other names; None leaves a tensor out."""
    return {new: tensor for name, tensor in tensors.items() if (new := rename(name)) is not None}


def merge_rotations(tensors: Tensors, where: str) -> Tensors:
    """Put the weights of rotated layers in place of neurons and rotations; they are merged when they are read.

    Args:
        where: what is read, for error messages.
    """
    rotated: dict[str, list[str]] = {}  # by the name of the weight
    for name in tensors:
        layer, parametrized, rest = name.rpartition(_PARAMETRIZED)
        if parametrized:
            rotated.setdefault(f"{layer}.{rest.partition('.')[0]}", []).append(name)
    placeholder = torch.empty(0)
    rotated = {weight: names for weight, names in rotated.items() if holds_rotations(dict.fromkeys(names, placeholder))}
    weights = {name: weight for weight, names in rotated.items() for name in names}
    merged: Tensors = {}
    for name, tensor in tensors.items():
        if name not in weights:
            merged[name] = tensor
        elif name.endswith(".original"):
            weight = weights[name]
            read = _reader_of_merged({part: tensors[part] for part in rotated[weight]}, weight, where)
            merged[weight] = StoredTensor(tensor.dtype, tensor.shape, read)
    return merged


def _reader_of_merged(parts: Mapping[str, StoredTensor], weight: str, where: str) -> Callable[[], Tensor]:
    def read() -> Tensor:
        try:
            merged: Tensor = merge_state_dict({name: part.read() for name, part in parts.items()})[weight]
        except (ValueError, RuntimeError) as error:
            raise ValueError(f"{where}: {one_line(error)}") from None
        return merged

    return read
