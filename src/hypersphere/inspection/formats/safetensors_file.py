"""Read .safetensors, tensor by tensor."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from ..._internal.tensor_files import TensorFile
from .stored_tensors import Opened, StoredTensor


def read_safetensors(path: Path) -> Opened:
    """Read the header of a safetensors file; its tensors are read when they are needed."""
    file = TensorFile(path)
    tensors = {name: StoredTensor(x.dtype, x.shape, partial(file.read, name)) for name, x in file.infos.items()}
    return Opened("safetensors", path.stat().st_size, tensors)
