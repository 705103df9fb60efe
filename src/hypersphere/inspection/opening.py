"""Find the tensors that a path stands for: a file of any format, a folder of shards, a run folder."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from .._internal.checksummed_json import parse
from .._internal.text import one_line
from ..neurons import Layout
from ..rotation.merging import holds_rotations, merge_state_dict
from ..train.storage import layout
from ..train.storage.reading import steps
from .onnx_file import OnnxFile
from .pickled import read_pickled
from .stored import Entry, SafetensorsFile, Shards, Tensors, open_regular

PICKLED = (".pt", ".pth", ".bin", ".ckpt", ".pkl")
_ORIGINAL = ".parametrizations."
_LARGEST_JSON = 1 << 26


@dataclass(frozen=True)
class Opened:
    """A model's tensors, and what lies beside them."""

    format: str
    size: int
    """Bytes of all files."""
    tensors: Tensors
    layouts: dict[str, Layout] = field(default_factory=dict)
    """How tensors hold neurons, where the file tells: ONNX has a graph."""
    skipped: dict[str, str] = field(default_factory=dict)
    """Tensors that were not read, and why."""


def open_model(path: Path) -> Opened:
    """Open what `path` stands for. ValueError in one line if it holds no tensors."""
    try:
        opened = _open_folder(path) if path.is_dir() else _open_files([path])
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or error}") from None
    return Opened(opened.format, opened.size, _merged(opened.tensors, path), opened.layouts, opened.skipped)


def _open_folder(folder: Path) -> Opened:
    names = {each.name for each in folder.iterdir()}
    if names & {layout.FINAL, layout.CHECKPOINTS, layout.METRICS}:
        return _open_run(folder)
    if layout.TENSORS in names and layout.STATE in names:
        return _open_checkpoint(folder)
    indices = sorted(name for name in names if name.endswith(".safetensors.index.json"))
    if indices:
        return _open_files([folder / name for name in _read_index(folder / indices[0])])
    for endings in ((".safetensors",), PICKLED, (".onnx",)):
        if found := sorted(name for name in names if name.endswith(endings)):
            return _open_files([folder / name for name in found])
    raise ValueError(f"{folder} has no model file: .safetensors, {', '.join(PICKLED)} or .onnx")


def _open_run(run: Path) -> Opened:
    """Open the final weights of a run, or its newest checkpoint."""
    finals = {part: run / layout.FINAL / layout.weights(part) for part in layout.PARTS}
    if finals["model"].is_file():
        opened = {part: _open_files([file]) for part, file in finals.items() if file.is_file()}
        parts = [_Renamed(each.tensors, partial(_with_prefix, part)) for part, each in opened.items()]
        return Opened("run folder", sum(each.size for each in opened.values()), Shards(parts))
    saved = run / layout.CHECKPOINTS
    if saved.is_dir() and (found := steps(saved)):
        return _open_checkpoint(found[max(found)])
    raise ValueError(f"{run} is a run folder without weights: neither {layout.FINAL}/ nor a checkpoint")


def _with_prefix(part: str, name: str) -> str:
    return name if part == "model" else f"{part}.{name}"


def _open_checkpoint(folder: Path) -> Opened:
    opened = _open_files([folder / layout.TENSORS])

    def rename(name: str) -> str | None:
        """<task>.network.<name> → <name>; other modules of the task keep theirs; optimizers are left out."""
        first, _, rest = name.partition(".")
        return None if first.startswith("optim") else rest.removeprefix("network.")

    return Opened("checkpoint of a run", opened.size, _Renamed(opened.tensors, rename))


def _read_index(file: Path) -> list[str]:
    """Read which files of the folder hold the tensors."""
    index = _read_json(file)
    shards = index.get("weight_map")
    names = set(shards.values()) if isinstance(shards, dict) and all(map(_is_text, shards.values())) else set()
    if not names:
        raise ValueError(f"{file} is not an index of shards: it has no weight_map")
    for name in names:
        if not name or Path(name).name != name or "\0" in name:
            raise ValueError(f"{file}: {name[:80]!r} is not the name of a file in its folder")
    return sorted(names)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _read_json(file: Path) -> dict[str, Any]:
    with open(open_regular(file), "rb") as opened:
        if os.fstat(opened.fileno()).st_size > _LARGEST_JSON:
            raise ValueError(f"{file} is too large")
        try:
            tree = parse(opened.read())
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{file} cannot be read: {' '.join(str(error).split())[:200]}") from None
    return tree if isinstance(tree, dict) else {}


def _open_files(paths: Iterable[Path]) -> Opened:
    opened = [_open_file(path) for path in paths]
    return opened[0] if len(opened) == 1 else _join(opened)


def _join(shards: list[Opened]) -> Opened:
    skipped = {name: why for each in shards for name, why in each.skipped.items()}
    tensors = Shards(each.tensors for each in shards)
    form = f"{len(shards)} files, {shards[0].format}"
    layouts = {name: found for each in shards for name, found in each.layouts.items()}
    return Opened(form, sum(each.size for each in shards), tensors, layouts, skipped)


def _open_file(path: Path) -> Opened:
    descriptor = open_regular(path)
    size = os.fstat(descriptor).st_size
    head = os.pread(descriptor, 10, 0)
    skipped: dict[str, str] = {}
    layouts: dict[str, Layout] = {}
    tensors: Tensors
    if path.suffix.lower() == ".onnx":
        form, tensors = "ONNX", (onnx := OnnxFile(descriptor, path))
        layouts = onnx.layouts
    elif head[:2] == b"PK" or (path.suffix.lower() in PICKLED and head[8:9] != b"{"):
        form, tensors = "PyTorch", (file := read_pickled(descriptor, path))
        tensors, skipped = _without_wrapper(file), json.loads(file.metadata.get("skipped", "{}"))
    elif head[8:9] == b"{" or path.suffix.lower() == ".safetensors":
        form, tensors = "safetensors", SafetensorsFile(descriptor, path)
    else:
        os.close(descriptor)
        why = "neither safetensors nor ONNX nor of torch.save" if size else "it is empty"
        raise ValueError(f"{path} is not a model file: {why}")
    return Opened(form, size, tensors, layouts, skipped)


def _without_wrapper(file: SafetensorsFile) -> Tensors:
    """Drop the first part of all names if it is that of a dict around the state_dict."""
    for wrapper in ("state_dict.", "model_state_dict.", "model."):
        if file.entries and all(name.startswith(wrapper) for name in file.entries):
            return _Renamed(file, partial(_without_prefix, wrapper))
    return file


def _without_prefix(prefix: str, name: str) -> str:
    return name.removeprefix(prefix)


class _Renamed:
    """Tensors under other names; None leaves a tensor out."""

    def __init__(self, tensors: Tensors, rename: Callable[[str], str | None]) -> None:
        self._tensors = tensors
        self._names = {new: name for name in tensors.entries if (new := rename(name)) is not None}
        self.entries = {new: tensors.entries[name] for new, name in self._names.items()}

    def read(self, name: str) -> Tensor:
        return self._tensors.read(self._names[name])


def _merged(tensors: Tensors, path: Path) -> Tensors:
    """Merge rotations into the weights when they are read."""
    rotated: dict[str, list[str]] = {}
    for name in tensors.entries:
        layer, found, rest = name.rpartition(_ORIGINAL) if _ORIGINAL in name else ("", "", "")
        if found:
            rotated.setdefault(f"{layer}.{rest.partition('.')[0]}", []).append(name)
    known = {weight: names for weight, names in rotated.items() if holds_rotations(dict.fromkeys(names))}
    return _Merged(tensors, known, path) if known else tensors


class _Merged:
    """The weights of rotated layers in place of their neurons and rotations."""

    def __init__(self, tensors: Tensors, rotated: dict[str, list[str]], path: Path) -> None:
        self._tensors, self._rotated, self._path = tensors, rotated, path
        parts = {name for names in rotated.values() for name in names}
        self.entries: dict[str, Entry] = {}
        for name, entry in tensors.entries.items():
            if name not in parts:
                self.entries[name] = entry
            elif name.endswith(".original"):
                layer, _, rest = name.rpartition(_ORIGINAL)
                self.entries[f"{layer}.{rest.partition('.')[0]}"] = entry

    def read(self, name: str) -> Tensor:
        if name not in self._rotated:
            return self._tensors.read(name)
        try:
            return merge_state_dict({part: self._tensors.read(part) for part in self._rotated[name]})[name]
        except (ValueError, RuntimeError) as error:
            raise ValueError(f"{self._path}: {one_line(error)}") from None
