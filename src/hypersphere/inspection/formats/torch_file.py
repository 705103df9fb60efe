"""Read .pt, .pth and .bin: torch.load takes tensors and plain values only, and runs nothing of the file."""

from __future__ import annotations

import pickle
import re
import warnings
import zipfile
from collections.abc import Mapping
from errno import EINVAL
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .stored_tensors import Opened, StoredTensor, Tensors, dtype_name, rename

ENDINGS = (".pt", ".pth", ".bin", ".ckpt", ".pkl")
_OPTIMIZER = re.compile(r"optim.*|exp_avg(_sq)?|max_exp_avg_sq|momentum_buffer|square_avg")
_WRAPPERS = ("state_dict.", "model_state_dict.", "model.")
_DEEPEST = 12  # nested dicts and lists


def read_torch(path: Path) -> Opened:
    """Read a file of torch.save, mapped into memory; states of optimizers are left out."""
    is_zip = zipfile.is_zipfile(path)
    try:
        if is_zip:
            _check_stored(path)
        with warnings.catch_warnings(action="ignore"):  # of what it then refuses
            content = torch.load(path, map_location="cpu", weights_only=True, mmap=is_zip)
    except Exception as error:  # damaged files raise anything
        raise ValueError(f"{path} cannot be read: {_cause(error)}") from None
    tensors: Tensors = {}
    skipped: dict[str, str] = {}
    _collect(content, [], tensors, skipped, set())
    if not tensors and not skipped:
        raise ValueError(f"{path} cannot be read: it holds no tensors")
    for wrapper in _WRAPPERS:  # a dict around the state_dict
        if tensors and all(name.startswith(wrapper) for name in tensors):
            tensors = rename(tensors, lambda name, prefix=wrapper: name.removeprefix(prefix))  # type: ignore[misc]
            break
    return Opened("PyTorch", path.stat().st_size, tensors, skipped=skipped)


def _check_stored(path: Path) -> None:
    """Refuse compressed records: torch.save writes none, and a small file could become a large one."""
    with zipfile.ZipFile(path) as archive:
        if any(record.compress_type != zipfile.ZIP_STORED for record in archive.infolist()):
            raise ValueError("its records are compressed, which torch.save does not do")


def _collect(value: Any, path: list[str], tensors: Tensors, skipped: dict[str, str], seen: set[int]) -> None:
    """Collect the tensors in nested dicts and lists."""
    if isinstance(value, Tensor):
        name, dense = ".".join(path) or "tensor", value.layout == torch.strided and value.device.type == "cpu"
        dtype = dtype_name(value.dtype)
        if not dense:
            skipped[name] = f"{dtype}, not dense"
        elif value.numel() * value.itemsize > value.untyped_storage().nbytes():
            skipped[name] = "larger than its storage"
        else:
            tensors[name] = StoredTensor(dtype, tuple(value.shape), value.detach)
    elif isinstance(value, Mapping | list | tuple) and len(path) < _DEEPEST and id(value) not in seen:
        seen.add(id(value))
        for key, inner in value.items() if isinstance(value, Mapping) else enumerate(value):
            if not _OPTIMIZER.fullmatch(str(key)):
                _collect(inner, [*path, str(key)], tensors, skipped, seen)


def _cause(error: Exception) -> str:
    """Return why a file was refused, in a few words."""
    text = " ".join(str(error).split())
    for pattern in (r"GLOBAL ([\w.]+)", r"[Uu]nsupported (?:global|class|type):? ([\w.]+)"):
        if named := re.search(pattern, text):
            return f"it holds {named[1]} beside tensors; nothing of it was run"
    if "TorchScript" in text:
        return "it is a TorchScript archive: save the model's state_dict"
    if isinstance(error, MemoryError) or "llocate" in text:
        return "it needs too much memory"
    noise = r"Weights only load failed.*?WeightsUnpickler error:|This is an internal miniz.*|Check the documentation.*"
    text = re.sub(noise, "", text).strip()
    if isinstance(error, EOFError | LookupError | pickle.UnpicklingError) or getattr(error, "errno", None) == EINVAL:
        text = f"it is not a file of torch.save, or damaged ({type(error).__name__}{': ' if text else ''}{text})"
    return (text or type(error).__name__)[:200]
