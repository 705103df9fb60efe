"""Open files of embeddings and of their labels; nothing is unpickled but by torch.load(weights_only=True)."""

from __future__ import annotations

import csv
import re
import zipfile
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from ..._internal.tensor_files import check_file
from ..._internal.text import one_line
from ..formats import open_model
from .vectors import Array

ARRAYS = (".npy", ".npz", ".parquet")
TENSORS = (".safetensors", ".pt", ".pth")
_LAYER = re.compile(r"weight|bias|kernel|proj|lora|\.|^w\d*$", re.IGNORECASE)


def holds_embeddings(path: Path) -> bool:
    """Return whether a file is one of embeddings: an array, or one tensor (N, d), N > d, without a layer's name."""
    ending = path.suffix.lower()
    if ending not in TENSORS or not path.is_file():
        return ending in ARRAYS
    tensors = open_model(path).tensors
    if len(tensors) != 1:
        return False
    ((name, tensor),) = tensors.items()
    rows, *dimensions = tensor.shape or (0,)
    return not _LAYER.search(name) and tensor.is_floating and len(dimensions) == 1 and rows > dimensions[0]


def open_embeddings(path: Path) -> Array:
    """Open the one array (N, d) of a file, mapped where the format allows it. ValueError in one line."""
    check_file(path)
    ending = path.suffix.lower()
    try:
        if ending == ".npy":
            return _array(np.load(path, mmap_mode="r", allow_pickle=False))
        if ending == ".npz":
            return _one_of(path, _read_npz(path))
        if ending == ".parquet":
            return _read_parquet(path)
    except (OSError, EOFError, ValueError, MemoryError, zipfile.BadZipFile, SyntaxError) as error:
        text = "it holds objects, which could run code" if "allow_pickle" in str(error) else one_line(error)
        raise ValueError(f"{path} cannot be read: {text or 'it needs too much memory'}") from None
    opened = open_model(path)
    return _one_of(path, {name: tensor.read for name, tensor in opened.tensors.items() if len(tensor.shape) == 2})


def _array(value: Any) -> npt.NDArray[Any]:
    if not isinstance(value, np.ndarray):  # a .npz under another name
        raise ValueError("it is not a single array")
    return value


def _read_npz(path: Path) -> dict[str, Any]:
    with np.load(path, allow_pickle=False) as file:
        return {name: value for name in file.files if (value := file[name]).ndim == 2}


def _one_of(path: Path, arrays: dict[str, Any]) -> Array:
    if len(arrays) != 1:
        names = ", ".join(list(arrays)[:5]) or "none"
        raise ValueError(f"{path} must hold one array (N, d), got {len(arrays)} with two dimensions: {names}")
    (value,) = arrays.values()
    opened: Array = value() if callable(value) else value
    return opened


def _read_parquet(path: Path) -> npt.NDArray[Any]:
    try:
        arrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError:
        raise ValueError("a parquet file needs pyarrow (pip install pyarrow)") from None
    try:
        file = parquet.ParquetFile(path)
        is_list = (arrow.types.is_list, arrow.types.is_large_list, arrow.types.is_fixed_size_list)
        columns = [
            field.name
            for field in file.schema_arrow
            if any(test(field.type) for test in is_list) and arrow.types.is_floating(field.type.value_type)
        ]
        if len(columns) != 1:
            listed = ", ".join(columns) or "none"
            raise ValueError(f"it must have one column of lists of floats, got {len(columns)}: {listed}")
        blocks = []
        for batch in file.iter_batches(columns=columns):
            column = batch.column(0)
            lengths = {*column.value_lengths().to_pylist()} if len(column) else set()
            if len(lengths) > 1 or None in lengths or column.null_count:
                raise ValueError(f"the lists of its column {columns[0]} have several lengths, or are missing")
            if lengths:
                blocks.append(column.flatten().to_numpy(zero_copy_only=False).reshape(len(column), -1))
        return np.concatenate(blocks) if blocks else np.empty((0, 0), np.float32)
    except arrow.ArrowException as error:
        raise ValueError(one_line(error)) from None


def read_labels(labels: Any, rows: int) -> npt.NDArray[np.int64]:
    """Return labels (rows,) as integers, of an array, a tensor, a .npy or the column `label` of a .csv."""
    name = "labels"
    if isinstance(labels, str | Path):
        name, labels = str(labels), _read_label_file(Path(labels))
    values = labels.detach().cpu().numpy() if isinstance(labels, Tensor) else np.asarray(labels)
    if values.shape != (rows,) or not np.issubdtype(values.dtype, np.integer):
        raise ValueError(f"{name} must be {rows} integers, got {values.dtype} {values.shape}")
    return values.astype(np.int64)


def _read_label_file(path: Path) -> npt.NDArray[Any]:
    check_file(path)
    try:
        if path.suffix.lower() == ".npy":
            return _array(np.load(path, allow_pickle=False))
        with open(path, newline="", encoding="utf-8") as file:
            table = csv.DictReader(file)
            if "label" not in (table.fieldnames or ()):
                raise ValueError("it has no column `label`")
            texts = np.array([row["label"] or "" for row in table])
    except (OSError, EOFError, ValueError, csv.Error) as error:
        raise ValueError(f"{path} cannot be read: {one_line(error)}") from None
    return np.unique(texts, return_inverse=True)[1].astype(np.int64)
