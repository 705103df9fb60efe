"""Read official pickles without `pickle`: CIFAR's Python batches and Planetoid's graphs.

A pickle is a program. This interprets only the instructions of those files (protocol 2, written by Python 2) and
compares "globals" with a table of names: nothing is imported, looked up or called. Strings stay bytes. Of long strings
(the numbers of an array) only the position is stored; the numbers are read directly into their destination.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import numpy as np
import numpy.typing as npt

from . import _files

# One byte of instruction can create an object of about 60 bytes: this bounds the memory. The largest official file has
# 360,000 instructions.
LIMIT = 2_000_000


@dataclass(frozen=True)
class Span:
    """The position of a string in the file."""

    offset: int
    length: int


class Kind:
    """The dtype of an array."""

    def __init__(self, code: str) -> None:
        self.code, self.order = code, "|"


class Array:
    """An array in the file; :meth:`numpy` reads it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.shape: tuple[int, ...] = ()
        self.dtype: np.dtype[Any] = np.dtype("u1")
        self.fortran = False
        self.content: Span | bytes = b""

    def numpy(self) -> npt.NDArray[Any]:
        """Read the array, in native byte order."""
        if isinstance(self.content, bytes):
            flat = np.frombuffer(self.content, self.dtype)
        else:
            flat = np.empty(math.prod(self.shape), self.dtype)
            with open(self.path, "rb", buffering=0) as file:
                file.seek(self.content.offset)
                _files.read_into(file, flat, self.path)
        return flat.reshape(self.shape, order="F" if self.fortran else "C").astype(self.dtype.newbyteorder("="))


class Matrix:
    """A sparse matrix in CSR format."""

    def __init__(self) -> None:
        self.parts: dict[Any, Any] = {}


class _Placeholder:
    """A placeholder for a global: no attributes, not callable."""

    __slots__ = ()


RECONSTRUCT, NDARRAY, DTYPE, CSR, DEFAULTDICT, LIST = (_Placeholder() for _ in range(6))
GLOBALS = {
    (b"numpy.core.multiarray", b"_reconstruct"): RECONSTRUCT,
    (b"numpy", b"ndarray"): NDARRAY,
    (b"numpy", b"dtype"): DTYPE,
    (b"scipy.sparse.csr", b"csr_matrix"): CSR,
    (b"collections", b"defaultdict"): DEFAULTDICT,
    (b"__builtin__", b"list"): LIST,
}
KINDS = {b"b1", b"u1", b"i1", b"i2", b"i4", b"i8", b"f4", b"f8"}
# Instructions that push a value.
_CONSTANTS: dict[bytes, Callable[[], Any]] = {
    b"N": lambda: None,
    b"\x88": lambda: True,
    b"\x89": lambda: False,
    b")": tuple,
    b"]": list,
    b"}": dict,
}
_INTEGERS = {b"K": (1, False), b"M": (2, False), b"J": (4, True)}
_TUPLES = {b"\x85": 1, b"\x86": 2, b"\x87": 3}


def load(path: Path) -> Any:
    """Load a pickle: None, bool, int, bytes, Span, tuple, list, dict, :class:`Array` or :class:`Matrix`.

    Raises:
        ValueError: the file is damaged or not an official one.
    """
    size = _files.file_size(path)
    with open(path, "rb", buffering=1 << 16) as file:
        try:
            value = _interpret(file, path, size)
        except (IndexError, KeyError):  # an empty stack, no mark, an unknown memo
            refuse(path, f"invalid instruction before byte {file.tell()}")
        if file.read(1):
            refuse(path, f"data after its end, at byte {file.tell() - 1}")
    return value


def refuse(path: Path, why: str) -> NoReturn:
    raise ValueError(f"{path} is not an official pickle: {why}; nothing of it was run")


def _interpret(file: BinaryIO, path: Path, size: int) -> Any:
    read = file.read
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[int, Any] = {}

    def number(length: int, signed: bool = False) -> int:
        raw = read(length)
        if len(raw) < length:
            refuse(path, "it is truncated")
        return int.from_bytes(raw, "little", signed=signed)

    def pop_mark() -> list[Any]:
        start = marks.pop()
        items = stack[start:]
        del stack[start:]
        return items

    def top(kind: type) -> Any:
        if type(stack[-1]) is not kind:
            refuse(path, f"byte {file.tell() - 1} adds to a {type(stack[-1]).__name__}, not to a {kind.__name__}")
        return stack[-1]

    for _ in range(LIMIT):
        code = read(1)
        if code == b"q":
            memo[number(1)] = stack[-1]
        elif code == b"r":
            memo[number(4)] = stack[-1]
        elif code in _INTEGERS:
            stack.append(number(*_INTEGERS[code]))
        elif code == b"U":
            length = number(1)
            stack.append(read(length))
            if len(stack[-1]) < length:
                refuse(path, "it is truncated")
        elif code == b"T":
            length, offset = number(4, True), file.tell()
            if not 0 <= length <= size - offset:
                refuse(path, f"byte {offset - 5} declares {length} bytes, but {size - offset} are left")
            stack.append(Span(offset, length))
            file.seek(length, 1)
        elif code == b"(":
            marks.append(len(stack))
        elif code in _CONSTANTS:
            stack.append(_CONSTANTS[code]())
        elif code == b"a":
            item = stack.pop()
            top(list).append(item)
        elif code == b"e":
            items = pop_mark()
            top(list).extend(items)
        elif code == b"s":
            value, key = stack.pop(), stack.pop()
            _set_items(top(dict), [key, value], path)
        elif code == b"u":
            items = pop_mark()
            _set_items(top(dict), items, path)
        elif code in _TUPLES:
            count = _TUPLES[code]
            if len(stack) < count:
                raise IndexError
            stack[-count:] = [tuple(stack[-count:])]
        elif code == b"t":
            stack.append(tuple(pop_mark()))
        elif code == b"h":
            stack.append(memo[number(1)])
        elif code == b"j":
            stack.append(memo[number(4)])
        elif code == b"c":
            name = file.readline(128).rstrip(b"\n"), file.readline(128).rstrip(b"\n")
            if name not in GLOBALS:
                refuse(path, f"it refers to {b'.'.join(name).decode('latin1')!r}")
            stack.append(GLOBALS[name])
        elif code == b"R" or code == b"\x81":
            arguments, function = stack.pop(), stack.pop()
            stack.append(_call(function, arguments, path))
        elif code == b"b":
            state = stack.pop()
            _set_state(stack[-1], state, path)
        elif code == b"\x80":
            if (protocol := number(1)) != 2:
                refuse(path, f"protocol must be 2, got {protocol}")
        elif code == b".":
            if len(stack) != 1 or marks:
                refuse(path, f"it ends with {len(stack)} objects instead of one")
            return stack[0]
        elif not code:
            refuse(path, "it is truncated" if size else "it is empty")
        else:
            refuse(path, f"unexpected instruction {code!r} at byte {file.tell() - 1}")
    refuse(path, f"it has more than {LIMIT} instructions")


def _set_items(target: dict[Any, Any], items: list[Any], path: Path) -> None:
    if len(items) % 2:
        raise IndexError
    for key, value in zip(items[::2], items[1::2], strict=True):
        # Other keys may be slow to hash, or not hashable.
        if type(key) is not bytes and type(key) is not int:
            refuse(path, f"a dict has a {type(key).__name__} as a key")
        target[key] = value


def _call(function: Any, arguments: Any, path: Path) -> Any:
    """Return the result of a call; only calls that official files make are allowed."""
    if function is RECONSTRUCT and arguments == (NDARRAY, (0,), b"b"):
        return Array(path)
    if function is DTYPE and type(arguments) is tuple and len(arguments) == 3 and arguments[1:] == (0, 1):
        if type(arguments[0]) is bytes and arguments[0] in KINDS:
            return Kind(arguments[0].decode())
        refuse(path, "it has an array with a dtype that is not numeric")
    if function is CSR and arguments == ():
        return Matrix()
    if function is DEFAULTDICT and arguments == (LIST,):
        return {}
    refuse(path, "it makes an unexpected call")


def _set_state(target: Any, state: Any, path: Path) -> None:
    if type(target) is Kind and type(state) is tuple and len(state) == 8:
        order = state[1]
        if order not in (b"<", b">", b"|", b"=") or state[2:] != (None, None, None, -1, -1, 0):
            refuse(path, "it has an array with a dtype that is not numeric")
        target.order = order.decode()
    elif type(target) is Array and type(state) is tuple and len(state) == 5:
        _, shape, kind, fortran, content = state
        valid = type(shape) is tuple and len(shape) <= 4 and all(type(n) is int and n >= 0 for n in shape)
        if not valid or type(kind) is not Kind or type(content) not in (bytes, Span) or type(fortran) is not bool:
            refuse(path, "it has an array without shape, dtype or data")
        dtype = np.dtype(kind.order + kind.code)
        have = content.length if type(content) is Span else len(content)
        if math.prod(shape) * dtype.itemsize != have:
            refuse(path, f"it has an array of shape {shape} and dtype {dtype} with {have} bytes")
        target.shape, target.dtype, target.fortran, target.content = shape, dtype, fortran, content
    elif type(target) is Matrix and type(state) is dict:
        target.parts = state
    else:
        refuse(path, f"it sets the state of a {type(target).__name__}")
