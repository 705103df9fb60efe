"""Write and read final/: the weights of a finished run, and model.json with their checksums."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from ..._internal import checksummed_json
from ..._internal.safe_files import check_plain, is_folder, write_bytes, write_text
from ..._internal.tensors import checksum_of, unshared
from ..config.values import shown
from . import layout
from .identity import check_id
from .reading import one_line


def write(folder: Path, parts: Mapping[str, nn.Module], described: Mapping[str, Any]) -> str:
    """Write the weights of `parts` and model.json, whose text is returned; it has `described` too."""
    if not is_folder(folder):
        folder.mkdir()
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


def read_model(file: Path) -> dict[str, Any]:
    """Read final/model.json: the data specification, and checksums of the tensors."""
    described, _ = checksummed_json.read(file, layout.FORMATS)
    check_id(file.parent.parent, file, described.get(checksummed_json.RUN_ID))
    sums = described.get("checksums")
    if not isinstance(sums, Mapping) or not all(isinstance(each, Mapping) for each in sums.values()):
        raise ValueError(f"{file} is malformed: it has no checksums of tensors")
    return described


def shapes_of(file: Path) -> dict[str, tuple[int, ...]]:
    """Read the shapes of the tensors in a file of final/, from its header only."""
    with _opened(file) as opened:
        shapes = {name: tuple(opened.get_slice(name).get_shape()) for name in opened.keys()}  # noqa: SIM118
        return shapes | {alias: shapes[name] for alias, name in _aliases(opened, shapes).items()}


def read_tensors(file: Path, described: Mapping[str, Any] | None = None) -> dict[str, Tensor]:
    """Read the tensors of a file in final/ and verify their checksums in model.json; none may be missing or extra."""
    described = read_model(file.with_name(layout.MODEL)) if described is None else described
    known = described["checksums"].get(file.stem)
    if known is None:
        raise ValueError(f"{file.with_name(layout.MODEL)} is malformed: it has no checksums of {file.name}")
    with _opened(file) as opened:
        tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118  # it is no dict
        aliases = _aliases(opened, tensors)
        tensors |= {alias: tensors[name] for alias, name in aliases.items()}
        for name, value in tensors.items():
            if described["format"] == 1 and name in aliases:  # aliases had no checksums
                continue
            if known.get(name) != checksum_of(value):
                raise ValueError(f"the checksum of {name!r} is wrong")
        for name in known:
            if name not in tensors:
                raise ValueError(f"it has no tensor {name!r}, but {layout.MODEL} has its checksum")
        return tensors


def read_plain_tensors(file: Path) -> dict[str, Tensor]:
    """Read a .safetensors file that another tool wrote, without checksums; ValueError if its numbers are not finite."""
    if file.suffix != ".safetensors":
        raise ValueError(f"{file} must be a run folder or a .safetensors file")
    with _opened(file.resolve()) as opened:  # the caches of model hubs hold links
        tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
        tensors |= {alias: tensors[name] for alias, name in _aliases(opened, tensors).items()}
    for name, value in tensors.items():
        if value.is_floating_point() and not bool(value.isfinite().all()):
            raise ValueError(f"{file}: {name!r} must be finite")
    return tensors


@contextmanager
def _opened(file: Path) -> Iterator[Any]:
    """Open a file of tensors; errors of reading and checking it become a ValueError in one line."""
    check_plain(file)
    try:
        with safe_open(os.fspath(file), framework="pt") as opened:
            yield opened
    except (SafetensorError, ValueError, RuntimeError, OSError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{file} cannot be read: {one_line(error)}") from None


def _aliases(opened: Any, tensors: Mapping[str, Any]) -> dict[str, str]:
    """Read the aliases of shared tensors; they must not replace a tensor of the file."""
    aliases = checksummed_json.parse((opened.metadata() or {}).get("aliases", "{}").encode())
    for alias, name in aliases.items():
        if alias in tensors or not isinstance(name, str) or name not in tensors:
            raise ValueError(f"its alias {shown(alias)} must be a new name for an existing tensor")
    return dict(aliases)
