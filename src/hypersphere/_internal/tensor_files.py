"""Read safetensors, for the whole package: a file that cannot be read is a ValueError in one line that names it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

from safetensors import SafetensorError, safe_open
from torch import Tensor

from .checksummed_json import parse
from .tensors import checksum_of
from .text import one_line

T = TypeVar("T")


@dataclass(frozen=True)
class TensorInfo:
    """Type and shape of a stored tensor; the type as safetensors names it: F32, BF16, I64, ..."""

    dtype: str
    shape: tuple[int, ...]


class TensorFile:
    """A safetensors file: names, shapes and metadata at once, values when they are read.

    safetensors checks that no tensor leaves the file or overlaps another. The file is mapped anew for every read, so
    that memory holds what is in use.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        with self._opened() as file:
            self.metadata: dict[str, str] = file.metadata() or {}
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 (no dict)
            self.infos = {name: TensorInfo(x.get_dtype(), tuple(x.get_shape())) for name, x in slices.items()}

    @contextmanager
    def _opened(self) -> Iterator[Any]:
        check_file(self.path)
        try:
            with safe_open(self.path, framework="pt") as file:
                yield file
        except (SafetensorError, ValueError, RuntimeError, OSError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{self.path} cannot be read: {one_line(error)}") from None

    def read(self, name: str) -> Tensor:
        """Read one tensor."""
        with self._opened() as file:
            tensor: Tensor = file.get_tensor(name)
            return tensor

    def read_all(self, *, copy: bool = False) -> dict[str, Tensor]:
        """Read all tensors: mapped to the file, or copied, so that later changes of the file do not matter."""
        with self._opened() as file:
            tensors = {name: file.get_tensor(name) for name in self.infos}
            return {name: tensor.clone() for name, tensor in tensors.items()} if copy else tensors

    @cached_property
    def aliases(self) -> dict[str, str]:
        """Other names of the tensors that our files store once, from the metadata: {alias: name}."""
        try:
            aliases = dict(parse(self.metadata.get("aliases", "{}").encode()))
            add_aliases(self.infos, aliases)
        except (ValueError, TypeError) as error:
            raise ValueError(f"{self.path} cannot be read: {one_line(error)}") from None
        return aliases


def check_file(path: str | os.PathLike[str]) -> None:
    """Raise ValueError unless `path` is a file, or a link to one: opening a pipe would block."""
    if not os.path.isfile(path):
        raise ValueError(f"{path} {'is not a file' if os.path.exists(path) else 'does not exist'}")


def add_aliases(tensors: Mapping[str, T], aliases: Mapping[str, str]) -> dict[str, T]:
    """Return the tensors with other names for some of them; an alias must not replace a tensor."""
    for alias, name in aliases.items():
        if alias in tensors or not isinstance(name, str) or name not in tensors:
            raise ValueError(f"its alias {alias[:80]!r} must be a new name for an existing tensor")
    return {**tensors, **{alias: tensors[name] for alias, name in aliases.items()}}


def check_sums(
    path: str | os.PathLike[str],
    tensors: Mapping[str, Tensor],
    checksums: Mapping[str, Any],
    compute: Callable[[Tensor], str] = checksum_of,
) -> None:
    """Raise ValueError unless the tensors are those that were saved."""
    for name in checksums:
        if name not in tensors:
            raise ValueError(f"{path} has no tensor {name!r}")
    if more := sorted(tensors.keys() - checksums.keys()):
        raise ValueError(f"{path} has a tensor {more[0]!r} that was not saved")
    for name, checksum in checksums.items():
        if compute(tensors[name]) != checksum:
            raise ValueError(f"{path} is damaged: the checksum of {name!r} does not match")
