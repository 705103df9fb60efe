"""Write and read final/: the weights of a finished run, and model.json with their checksums."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import save
from torch import Tensor, nn

from ..._internal import checksummed_json
from ..._internal.safe_files import check_plain, read_plain, write_bytes, write_text
from ..._internal.tensor_files import TensorFile, add_aliases, check_sums
from ..._internal.tensors import checksum_of, unshared
from . import layout
from .records import Count, own_folder, read_record


def write(folder: Path, parts: Mapping[str, nn.Module], described: Mapping[str, Any]) -> str:
    """Write the weights of `parts` and model.json, whose text is returned; it has `described` too."""
    own_folder(folder, make=True)
    checksums: dict[str, dict[str, str]] = {}
    for name, module in parts.items():
        tensors, aliases = unshared(module.state_dict())
        sums = {key: checksum_of(value) for key, value in tensors.items()}
        # An alias has a checksum too: a damaged one could name another tensor of the same shape.
        checksums[name] = sums | {alias: sums[key] for alias, key in aliases.items()}
        write_bytes(folder / layout.weights(name), save(tensors, {"aliases": json.dumps(aliases)}))
    text = checksummed_json.with_checksum({"format": layout.FORMAT, "checksums": checksums, **described})
    write_text(folder / layout.MODEL, text)
    return text


@dataclass(frozen=True)
class ModelFile:
    """final/model.json: the step of the weights, the data specification, and checksums of the tensors of each file."""

    checksums: dict[str, dict[str, str]]
    step: Count = 0
    data: Any = None


def read_model(file: Path) -> ModelFile:
    """Read final/model.json."""
    return read_record(ModelFile, file, layout.FORMAT)


def shapes_of(file: Path) -> dict[str, tuple[int, ...]]:
    """Read the shapes of the tensors in a file of final/, from its header only."""
    stored = _open(file)
    return add_aliases({name: info.shape for name, info in stored.infos.items()}, stored.aliases)


def read_tensors(file: Path, described: ModelFile | None = None) -> dict[str, Tensor]:
    """Read the tensors of a file in final/ and verify their checksums in model.json; none may be missing or extra."""
    described = read_model(file.with_name(layout.MODEL)) if described is None else described
    known = described.checksums.get(file.stem)
    if known is None:
        raise ValueError(f"{file.with_name(layout.MODEL)} is malformed: it has no checksums of {file.name}")
    stored = _open(file)
    tensors = add_aliases(stored.read_all(), stored.aliases)
    check_sums(file, tensors, known)
    return tensors


def check_adapter(file: Path, checksum: str | None) -> None:
    """Compare the rotations in final/ with their checksum in result.json; None if it has none: older versions."""
    check_plain(file)
    data = read_plain(file)
    if checksum is None:
        read_plain_tensors(file)
    elif checksum != checksummed_json.checksum(data):
        raise ValueError(f"{file} is damaged: it does not match its checksum")


def read_plain_tensors(file: Path) -> dict[str, Tensor]:
    """Read a .safetensors file that another tool wrote, without checksums; ValueError if its numbers are not finite."""
    if file.suffix != ".safetensors":
        raise ValueError(f"{file} must be a run folder or a .safetensors file")
    stored = TensorFile(file)
    tensors = add_aliases(stored.read_all(), stored.aliases)
    for name, value in tensors.items():
        if value.is_floating_point() and not bool(value.isfinite().all()):
            raise ValueError(f"{file}: {name!r} must be finite")
    return tensors


def _open(file: Path) -> TensorFile:
    check_plain(file)
    return TensorFile(file)
