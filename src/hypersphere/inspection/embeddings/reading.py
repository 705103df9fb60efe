"""Open files of embeddings and of their labels; nothing is unpickled but by torch.load(weights_only=True)."""

from __future__ import annotations

import csv
import re
import shutil
import tempfile
import zipfile
from collections.abc import Iterable
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
OBJECTS = "it holds objects, which could run code"
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
    """Map the one array (N, d) of a file into memory. ValueError in one line."""
    check_file(path)
    ending = path.suffix.lower()
    try:
        if ending == ".npy":
            return _array(np.load(path, mmap_mode="r", allow_pickle=False))
        if ending == ".npz":
            return _read_npz(path)
        if ending == ".parquet":
            return _read_parquet(path)
    except (OSError, EOFError, ValueError, MemoryError, zipfile.BadZipFile, SyntaxError) as error:
        raise ValueError(f"{path} cannot be read: {_cause(error)}") from None
    tensors = {name: tensor for name, tensor in open_model(path).tensors.items() if len(tensor.shape) == 2}
    try:
        return tensors[_only(tensors)].read()
    except ValueError as error:
        raise ValueError(f"{path} cannot be read: {error}") from None


def _cause(error: Exception) -> str:
    """Return why a file was refused, where numpy's words are for programmers."""
    text = "it needs too much memory" if isinstance(error, MemoryError) else one_line(error)
    causes = {
        "pickled": "it is not a .npy file",  # numpy takes all that it does not know for a pickle
        "Object arrays": OBJECTS,
        "Python objects": OBJECTS,
        "mmap length": "it ends too early",
        "malformed node": "its header is damaged",
    }
    return next((cause for start, cause in causes.items() if start in text), text)


def _array(value: Any) -> npt.NDArray[Any]:
    if not isinstance(value, np.ndarray):  # a .npz under another name
        raise ValueError("it is not a single array")
    return value


def _only(names: Iterable[str]) -> str:
    """Return the name of the only array with two dimensions."""
    listed = list(names)
    if len(listed) != 1:
        raise ValueError(f"it must hold one array (N, d), got {len(listed)}: {', '.join(listed[:5]) or 'none'}")
    return listed[0]


def _read_npz(path: Path) -> npt.NDArray[Any]:
    with zipfile.ZipFile(path) as archive:
        headers = {}
        for name in filter(lambda name: name.endswith(".npy"), archive.namelist()):
            with archive.open(name) as member:
                headers[name.removesuffix(".npy")] = (name, *_read_header(member), member.tell())
        name, shape, is_fortran, dtype, begin = headers[_only(x for x, about in headers.items() if len(about[1]) == 2)]
        if dtype.hasobject:
            raise ValueError(OBJECTS)
        with archive.open(name) as member, tempfile.TemporaryFile() as file:
            shutil.copyfileobj(member, file)
            return np.memmap(file, dtype, "r", begin, shape, "F" if is_fortran else "C")


def _read_header(file: Any) -> Any:
    """Return (shape, whether it is in Fortran order, dtype) of an array."""
    version = np.lib.format.read_magic(file)
    return (np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0)(file)


def _read_parquet(path: Path) -> npt.NDArray[Any]:
    try:
        arrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError:
        raise ValueError("a parquet file needs pyarrow (pip install pyarrow)") from None
    try:
        opened = parquet.ParquetFile(path)
        is_list = (arrow.types.is_list, arrow.types.is_large_list, arrow.types.is_fixed_size_list)
        columns = [
            field.name
            for field in opened.schema_arrow
            if any(test(field.type) for test in is_list) and arrow.types.is_floating(field.type.value_type)
        ]
        if len(columns) != 1:
            listed = ", ".join(columns) or "none"
            raise ValueError(f"it must have one column of lists of floats, got {len(columns)}: {listed}")
        dtype = np.dtype(opened.schema_arrow.field(columns[0]).type.value_type.to_pandas_dtype())
        lengths: set[Any] = set()
        with tempfile.TemporaryFile() as file:  # mapped, so that it may be larger than memory
            for batch in opened.iter_batches(columns=columns):
                column = batch.column(0)
                lengths |= {*column.value_lengths().to_pylist()} | ({None} if column.null_count else set())
                if len(lengths) > 1 or None in lengths:
                    raise ValueError(f"the lists of its column {columns[0]} have several lengths, or are missing")
                file.write(column.flatten().to_numpy(zero_copy_only=False).astype(dtype).data)
            shape = (int(opened.metadata.num_rows), int(lengths.pop() if lengths else 0))
            file.flush()
            return np.memmap(file, dtype, "r", 0, shape) if all(shape) else np.empty(shape, dtype)
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
        with open(path, newline="", encoding="utf-8-sig") as file:
            table = csv.DictReader(file, skipinitialspace=True)
            if "label" not in (table.fieldnames or ()):
                raise ValueError("it has no column `label`")
            texts = [row["label"] for row in table]
            if not all(texts):
                raise ValueError(f"row {[not text for text in texts].index(True) + 1} has no label")
    except (OSError, EOFError, ValueError, csv.Error) as error:
        raise ValueError(f"{path} cannot be read: {_cause(error)}") from None
    return np.unique(texts, return_inverse=True)[1].astype(np.int64)
