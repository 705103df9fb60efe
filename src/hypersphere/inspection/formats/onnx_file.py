"""Read the initializers of an ONNX file. The graph says how a weight holds its neurons."""

from __future__ import annotations

import math
import os
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..._internal.text import one_line
from ...neurons import Layout
from .stored_tensors import TYPES, Opened, StoredTensor

LARGEST = 2 << 30  # of protobuf
_NAMES = {1: "F32", 10: "F16", 11: "F64", 16: "BF16"}


def read_onnx(path: Path) -> Opened:
    """Read an ONNX file; tensors in files beside it are read when they are needed."""
    size = path.stat().st_size
    if not size or size > LARGEST:
        raise ValueError(f"{path} is {'too large for an ONNX file' if size else 'empty'}")
    try:
        import onnx
    except ImportError:
        raise ValueError(f"{path}: reading ONNX needs the package onnx: pip install onnx") from None
    model = onnx.ModelProto()
    try:
        model.ParseFromString(path.read_bytes())
    except Exception as error:  # protobuf's own type
        raise ValueError(f"{path} is not an ONNX file: {one_line(error)[:200]}") from None
    tensors = {stored.name: _describe(path, stored) for stored in model.graph.initializer}
    if not tensors:
        raise ValueError(f"{path} is not an ONNX file with weights")
    layouts = {
        name: layout
        for name, layout in _find_layouts(model.graph).items()
        if name in tensors and len(shape := tensors[name].shape) > 1 and shape[0] % layout.groups == 0
    }
    return Opened("ONNX", size, tensors, layouts)


def _describe(path: Path, stored: Any) -> StoredTensor:
    shape = tuple(stored.dims)
    if any(n < 0 for n in shape):
        raise ValueError(f"{path} is damaged: tensor {stored.name[:80]!r} has the shape {shape[:8]}")
    dtype = _NAMES.get(stored.data_type, f"ONNX type {stored.data_type}")
    return StoredTensor(dtype, shape, partial(_read, path, stored, dtype))


def _read(path: Path, stored: Any, dtype: str) -> Tensor:
    """Read a floating point tensor, from the file or from one in its folder or below."""
    from onnx.numpy_helper import to_array

    if stored.data_location == 1:
        _check_location(path, stored, math.prod(stored.dims) * TYPES[dtype].itemsize)
    try:
        values = to_array(stored, str(path.resolve().parent))
    except Exception as error:  # of onnx, numpy and files
        raise ValueError(f"{path} is damaged: tensor {stored.name[:80]!r}: {one_line(error)[:200]}") from None
    # numpy has no bfloat16, and what was read cannot be written
    return torch.from_numpy(np.array(values, np.float32 if dtype == "BF16" else None))


def _check_location(path: Path, stored: Any, length: int) -> None:
    """Refuse a tensor outside of the folder, or of another length than its shape has."""
    where = {entry.key: entry.value for entry in stored.external_data}
    folder = path.resolve().parent
    place = Path(os.path.realpath(folder / where.get("location", "").replace("\0", "/")))
    if not place.is_relative_to(folder) or place == folder:
        raise ValueError(f"{path}: tensor {stored.name[:80]!r} lies outside of the file's folder")
    if (claimed := where.get("length", str(length))) != str(length):
        raise ValueError(f"{path} is damaged: tensor {stored.name[:80]!r} has {claimed[:20]} of {length} bytes")


def _find_layouts(graph: Any) -> dict[str, Layout]:
    """Return the layouts of the weights of MatMul, Gemm and convolutions."""
    layouts = {}
    for node in graph.node:
        options = {option.name: option.i for option in node.attribute}
        if len(node.input) > 1 and node.op_type in ("MatMul", "Gemm", "Conv", "ConvTranspose"):
            transposed = node.op_type != "Conv" and not (node.op_type == "Gemm" and options.get("transB"))
            layouts[node.input[1]] = Layout(groups=max(options.get("group", 1), 1), transposed=transposed)
    return layouts
