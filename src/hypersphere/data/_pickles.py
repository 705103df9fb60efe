"""Read official pickles, CIFAR's Python batches and Planetoid's graphs: plain values and arrays of numbers, no code."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

KINDS = {b"b1", b"u1", b"i1", b"i2", b"i4", b"i8", b"f4", b"f8"}  # dtypes of official arrays


class Matrix:
    """A sparse matrix in CSR format: `parts` are its attributes."""

    def __init__(self) -> None:
        self.parts: dict[Any, Any] = {}

    def __setstate__(self, state: Any) -> None:
        self.parts = dict(state)


class DType:
    """A numeric dtype. numpy's own would take a damaged state."""

    def __init__(self, code: bytes, *_: object) -> None:
        if code not in KINDS:
            raise pickle.UnpicklingError("it has an array with a dtype that is not numeric")
        self.code, self.order = code.decode(), "|"

    def __setstate__(self, state: Any) -> None:
        self.order = state[1].decode()


class Array:
    """An array of numbers, `values`."""

    def __init__(self, *_: object) -> None:
        self.values: npt.NDArray[Any] = np.empty(0)

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, is_fortran, content = state
        flat = np.frombuffer(content, np.dtype(dtype.order + dtype.code))
        self.values = flat.reshape(shape, order="F" if is_fortran else "C")


# What official files name, and what stands for it; nothing else can be called.
GLOBALS: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): Array,
    ("numpy", "ndarray"): None,
    ("numpy", "dtype"): DType,
    ("scipy.sparse.csr", "csr_matrix"): Matrix,
    ("collections", "defaultdict"): lambda *_: {},
    ("__builtin__", "list"): None,
}


# pickle's Unpickler in C allocates memory for any memo index; this one has a dict.
class _Unpickler(pickle._Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return GLOBALS[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it refers to {f'{module}.{name}'[:80]!r}") from None


class _Bounded:
    """A file that refuses to read beyond its end, before memory is taken for it."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self.file, self.size, self.readline = file, size, lambda: file.readline(256)

    def read(self, length: int) -> bytes:
        if (left := self.size - self.file.tell()) < length:
            raise pickle.UnpicklingError(f"it declares {length} bytes, but {left} are left")
        return self.file.read(length)


def load(path: Path) -> Any:
    """Load a pickle of None, bool, int, bytes, tuple, list, dict, :class:`Array` and :class:`Matrix`.

    Raises:
        ValueError: the file is damaged or not an official one.
    """
    with open(path, "rb") as file:
        try:
            value = _Unpickler(_Bounded(file, path.stat().st_size), encoding="bytes").load()
            if file.read(1):
                raise pickle.UnpicklingError(f"data after its end, at byte {file.tell() - 1}")
        except Exception as error:  # damaged files raise anything
            why = " ".join(f"{error}".split())[:200] or type(error).__name__
            raise ValueError(f"{path} is not an official pickle: {why}; nothing of it was run") from None
    return value
