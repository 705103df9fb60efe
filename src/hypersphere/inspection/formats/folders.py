"""Find the files of a model: shards, run folders of `hypersphere train`, checkpoints."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from ..._internal.checksummed_json import parse
from ..._internal.safe_files import read_plain
from ..._internal.tensor_files import TensorFile, check_file
from ...neurons import Layout, select
from ...train.storage import layout
from ...train.storage.reading import steps
from .onnx_file import read_onnx
from .stored_tensors import Opened, StoredTensor, Tensors, join, merge_rotations, rename
from .torch_file import ENDINGS, read_torch

_LARGEST_INDEX = 1 << 26  # bytes


def open_model(path: Path) -> Opened:
    """Open a file of any format, a folder of shards or a run folder. ValueError in one line if it holds no tensors."""
    try:
        opened = _open_folder(path) if path.is_dir() else _open_file(path)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or error}") from None
    tensors = merge_rotations(opened.tensors, str(path))
    return Opened(opened.format, opened.size, tensors, opened.layouts, opened.skipped)


def _open_folder(folder: Path) -> Opened:
    names = {file.name for file in folder.iterdir()}
    if names & {layout.FINAL, layout.CHECKPOINTS, layout.METRICS}:
        return _open_run(folder)
    if layout.TENSORS in names and layout.STATE in names:
        return _open_checkpoint(folder)
    if indices := sorted(name for name in names if name.endswith(".safetensors.index.json")):
        return _open_shards([folder / name for name in _read_index(folder / indices[0])])
    for endings in ((".safetensors",), ENDINGS, (".onnx",)):
        if shards := sorted(name for name in names if name.endswith(endings)):
            return _open_shards([folder / name for name in shards])
    raise ValueError(f"{folder} has no model file: .safetensors, {', '.join(ENDINGS)} or .onnx")


def _open_run(run: Path) -> Opened:
    """Open the final weights of a run, or its newest checkpoint."""
    finals = {part: run / layout.FINAL / layout.weights(part) for part in layout.PARTS}
    if finals["model"].is_file():
        opened = {part: _open_file(file) for part, file in finals.items() if file.is_file()}
        prefixes = {part: "" if part == "model" else f"{part}." for part in opened}
        tensors = join({prefixes[part] + name: x for name, x in file.tensors.items()} for part, file in opened.items())
        size = sum(file.size for file in opened.values())
        return Opened("run folder", size, tensors, _layouts(run, run / layout.FINAL, tensors))
    saved = run / layout.CHECKPOINTS
    if saved.is_dir() and (numbered := steps(saved)):
        return _open_checkpoint(numbered[max(numbered)])
    raise ValueError(f"{run} is a run folder without weights: neither {layout.FINAL}/ nor a checkpoint")


def _open_checkpoint(folder: Path) -> Opened:
    opened = _open_file(folder / layout.TENSORS)
    tensors = merge_rotations(rename(opened.tensors, _name_in_final), str(folder))
    return Opened("checkpoint of a run", opened.size, tensors, _layouts(folder.parent.parent, folder, tensors))


def _name_in_final(name: str) -> str | None:
    """Return the name of a checkpoint's tensor in final/, where the main module's have no prefix; optimizers: None."""
    first, _, rest = name.partition(".")
    if first.startswith("optim"):
        return None
    return name if first in layout.PARTS else rest.removeprefix("network.")


def _layouts(run: Path, source: Path, tensors: Tensors) -> dict[str, Layout]:
    """Return how the tensors of a run hold neurons, which its config tells; none if the network cannot be built."""
    from ...train.inference.run import outlines  # imports the networks

    layouts = {}
    for part, module in outlines(run, source).items():
        names = {child: name for name, child in module.named_modules()}
        for neurons in select(module, output=None).values():
            key = ".".join(filter(None, (part, names[neurons.module], neurons.tensor_name)))
            name = _name_in_final(key)
            if name in tensors and tensors[name].shape == tuple(neurons.stored.shape):
                layouts[name] = neurons.layout
    return layouts


def _read_index(file: Path) -> list[str]:
    """Read which files of the folder hold the tensors."""
    try:
        index = parse(read_plain(file.resolve(), _LARGEST_INDEX))
    except ValueError as error:
        raise ValueError(f"{file} cannot be read: {error}") from None
    shards = index.get("weight_map") if isinstance(index, dict) else None
    names = [*shards.values()] if isinstance(shards, dict) else []
    if not names or not all(isinstance(name, str) for name in names):
        raise ValueError(f"{file} is not an index of shards: it has no weight_map")
    for name in names:
        if not name or Path(name).name != name or "\0" in name:
            raise ValueError(f"{file}: {name[:80]!r} is not the name of a file in its folder")
    return sorted(set(names))


def _open_shards(paths: list[Path]) -> Opened:
    shards = [_open_file(path) for path in paths]
    if len(shards) == 1:
        return shards[0]
    return Opened(
        f"{len(shards)} files, {shards[0].format}",
        sum(shard.size for shard in shards),
        join(shard.tensors for shard in shards),
        {name: layout for shard in shards for name, layout in shard.layouts.items()},
        {name: why for shard in shards for name, why in shard.skipped.items()},
    )


def _open_file(path: Path) -> Opened:
    """Open a file by its first bytes and its ending."""
    check_file(path)
    with open(path, "rb") as file:
        head = file.read(10)
    ending = path.suffix.lower()
    if ending == ".onnx":
        return read_onnx(path)
    if head[:2] == b"PK" or (head and ending in ENDINGS and head[8:9] != b"{"):
        return read_torch(path)
    if head[8:9] == b"{" or (head and ending == ".safetensors"):
        return _read_safetensors(path)
    why = "neither safetensors nor ONNX nor of torch.save" if head else "it is empty"
    raise ValueError(f"{path} is not a model file: {why}")


def _read_safetensors(path: Path) -> Opened:
    """Read the header of a safetensors file; its tensors are read when they are needed."""
    file = TensorFile(path)
    tensors = {name: StoredTensor(x.dtype, x.shape, partial(file.read, name)) for name, x in file.infos.items()}
    return Opened("safetensors", path.stat().st_size, tensors)
