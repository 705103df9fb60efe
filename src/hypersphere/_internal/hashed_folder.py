"""Checksums of a folder's tensors and JSON files in the metadata of its safetensors, which other tools ignore.

They detect damage, not tampering. Files of other tools have none and are not compared.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

from .checksummed_json import checksum
from .safe_files import read_plain, temporary_name
from .tensor_files import TensorFile, check_sums
from .tensors import checksum_of

KEY = "hypersphere.checksums"
LARGEST = 1 << 26  # bytes of a JSON file of a folder
_EDITED = ("base_model_name_or_path", "_name_or_path")  # keys that tools change when a folder moves


def checksums(tensors: Mapping[str, Tensor], files: Mapping[str, bytes]) -> dict[str, str]:
    """Return the entry for the metadata of safetensors."""
    sums = {"tensors": {key: checksum_of(value) for key, value in tensors.items()}}
    return {KEY: json.dumps(sums | {"files": {name: _of_json(data) for name, data in files.items()}})}


def check(file: TensorFile, tensors: Mapping[str, Tensor]) -> None:
    """Compare tensors and JSON files of the folder with their checksums, if it has some; ValueError if one differs."""
    path, text = Path(file.path), file.metadata.get(KEY)
    if text is None:
        return
    try:
        known = json.loads(text)
        expected, files = dict(known["tensors"]), {str(name): str(value) for name, value in known["files"].items()}
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
        raise ValueError(f"{path} is damaged: its checksums cannot be read") from None
    check_sums(path, tensors, expected)
    for name, value in files.items():
        beside = path.with_name(Path(name).name)
        if beside.exists() and _of_json(read_config(beside)) != value:
            raise ValueError(
                f"{beside} is damaged or was edited: it is not the file that was saved with {path.name}; restore it, "
                "or load, change and save the model again"
            )


def add_checksums(folder: Path) -> None:
    """Add checksums to the safetensors that another tool wrote."""
    for path in sorted(folder.glob("*.safetensors")):
        file = TensorFile(path)
        tensors = file.read_all()
        new = temporary_name(path)  # the tensors are mapped to the old file
        save_file(tensors, new, metadata=file.metadata | checksums(tensors, json_files(folder)))
        del tensors  # Windows replaces no file that is mapped
        os.replace(new, path)


def check_folder(folder: Path) -> None:
    """Compare the safetensors of a folder that :func:`add_checksums` changed."""
    for path in sorted(folder.glob("*.safetensors")):
        file = TensorFile(path)
        check(file, file.read_all())


def read_config(path: Path) -> bytes:
    """Read a JSON file of a folder, which may be a link, as in the cache of Hugging Face."""
    return read_plain(path.resolve(), LARGEST)


def json_files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*.json"))}


def _of_json(data: bytes) -> str:
    """Return the checksum of an object's content, without the keys that other tools change."""
    try:
        tree = json.loads(data)
    except (ValueError, RecursionError):
        return checksum(data)
    if isinstance(tree, dict):
        tree = {key: value for key, value in tree.items() if key not in _EDITED}
    return checksum(json.dumps(tree, sort_keys=True).encode())
