"""Read the initializers of an ONNX file. The graph says how a weight holds its neurons."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..neurons import Layout
from .stored import Entry, open_regular

LARGEST = 2 << 30  # of protobuf
_NAMES = {1: "F32", 10: "F16", 11: "F64", 16: "BF16"}
_TYPES = {"F32": torch.float32, "F16": torch.float16, "F64": torch.float64, "BF16": torch.bfloat16}


class OnnxFile:
    """The initializers of an ONNX file, and the layouts of those that the graph uses as weights."""

    def __init__(self, descriptor: int, path: Path) -> None:
        """Read the file; the descriptor is closed."""
        with open(descriptor, "rb") as file:
            if not (size := os.fstat(descriptor).st_size) or size > LARGEST:
                raise ValueError(f"{path} is {'too large for an ONNX file' if size else 'empty'}")
            try:
                import onnx
            except ImportError:
                raise ValueError(f"{path}: reading ONNX needs the package onnx: pip install onnx") from None
            model = onnx.ModelProto()
            try:
                model.ParseFromString(file.read())
            except Exception as error:  # protobuf's own type
                raise ValueError(f"{path} is not an ONNX file: {' '.join(str(error).split())[:200]}") from None
        self.path = path
        self._tensors: dict[str, Any] = {each.name: each for each in model.graph.initializer}
        if not self._tensors:
            raise ValueError(f"{path} is not an ONNX file with weights")
        self.entries = {
            name: Entry(_NAMES.get(each.data_type, f"ONNX type {each.data_type}"), self._shape(name, tuple(each.dims)))
            for name, each in self._tensors.items()
        }
        self.layouts = {
            name: layout
            for name, layout in _find_layouts(model.graph).items()
            if name in self.entries and _fits(layout, self.entries[name].shape)
        }

    def _shape(self, name: str, dims: tuple[int, ...]) -> tuple[int, ...]:
        if any(n < 0 for n in dims):
            raise ValueError(f"{self.path} is damaged: tensor {name[:80]!r} has the shape {dims[:8]}")
        return dims

    def read(self, name: str) -> Tensor:
        """Read a floating point tensor."""
        stored, entry = self._tensors[name], self.entries[name]
        dtype = _TYPES[entry.dtype]
        count = math.prod(stored.dims)
        if stored.data_location == 1:
            value = self._read_external(stored, count * dtype.itemsize).view(dtype)
        elif stored.raw_data:
            self._check(name, len(stored.raw_data), count * dtype.itemsize)
            value = torch.frombuffer(bytearray(stored.raw_data), dtype=dtype)
        elif entry.dtype in ("F16", "BF16"):  # their bits, each in an int32
            self._check(name, len(stored.int32_data), count)
            bits = np.array(stored.int32_data, dtype=np.int64).astype(np.uint16)
            value = torch.from_numpy(bits.view(np.int16)).view(dtype)
        else:
            numbers = stored.double_data if entry.dtype == "F64" else stored.float_data
            self._check(name, len(numbers), count)
            value = torch.tensor(np.array(numbers), dtype=dtype)
        return value.view(tuple(stored.dims))

    def _read_external(self, stored: Any, length: int) -> Tensor:
        """Read a tensor from a file beside this one, in its folder or below."""
        where = {each.key: each.value for each in stored.external_data}
        folder = self.path.resolve().parent
        location = where.get("location", "").replace("\0", "/")
        place = Path(os.path.realpath(folder / location))
        if not place.is_relative_to(folder) or place == folder:
            raise ValueError(f"{self.path}: tensor {stored.name[:80]!r} lies outside of the file's folder")
        try:
            offset = int(where.get("offset") or 0)
            said = int(where.get("length") or length)
        except ValueError:
            offset = said = -1
        self._check(stored.name, said, length)
        with open(open_regular(place), "rb") as file:
            if not 0 <= offset <= os.fstat(file.fileno()).st_size - length:
                raise ValueError(f"{self.path}: tensor {stored.name[:80]!r} lies outside of {place.name}")
            file.seek(offset)
            return torch.frombuffer(bytearray(file.read(length)), dtype=torch.uint8)

    def _check(self, name: str, got: int, expected: int) -> None:
        if got != expected:
            raise ValueError(f"{self.path} is damaged: tensor {name[:80]!r} has {got} of {expected} bytes or numbers")


def _find_layouts(graph: Any) -> dict[str, Layout]:
    """Return the layouts of the weights of MatMul, Gemm and convolutions."""
    found = {}
    for node in graph.node:
        options = {each.name: each.i for each in node.attribute}
        if len(node.input) > 1 and node.op_type in ("MatMul", "Gemm", "Conv", "ConvTranspose"):
            transposed = node.op_type != "Conv" and not (node.op_type == "Gemm" and options.get("transB"))
            found[node.input[1]] = Layout(groups=max(options.get("group", 1), 1), transposed=transposed)
    return found


def _fits(layout: Layout, shape: tuple[int, ...]) -> bool:
    return len(shape) > 1 and shape[0] % layout.groups == 0
