"""Read and write the JSON files of a run: dataclasses, whose fields are checked against their types.

Every file has a format, a checksum and the id that config.json got when the run started: files of two runs are not
mixed up.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

from ..._internal import checksummed_json, safe_files
from ..._internal.checksummed_json import RUN_ID, Tree
from ..config.values import LARGEST, shown
from .layout import CONFIG

#: types of fields with their range; a plain float may be infinite or NaN
Count = Annotated[int, 0, LARGEST]
Finite = Annotated[float, -sys.float_info.max, sys.float_info.max]
Positive = Annotated[float, 0, sys.float_info.max]
Share = Annotated[float, 0, 1]
Values = dict[str, Finite | None]  # measured numbers by name; None where one was not finite

T = TypeVar("T")

_WORDS = {int: "an integer", float: "a number", str: "text", bool: "true or false", NoneType: "null"}


def to_record(kind: type[T], tree: Any, rest: str | None = None) -> T:
    """Build a dataclass from JSON; ValueError that names a field that is missing, unknown or of another type.

    Args:
        rest: the field that takes unknown names; None: they are errors.
    """
    if not isinstance(tree, dict):
        raise ValueError(f"it must be an object, got {shown(tree)}")
    types = get_type_hints(kind, include_extras=True)
    names = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    unknown = {name: value for name, value in tree.items() if name not in names or name == rest}
    if rest is not None:
        tree = {name: value for name, value in tree.items() if name not in unknown} | {rest: unknown}
    elif unknown:
        raise ValueError(f"it has an unknown field {shown(next(iter(unknown)))}")
    for field in fields(kind):  # type: ignore[arg-type]
        if field.name not in tree and field.default is MISSING and field.default_factory is MISSING:
            raise ValueError(f"{field.name} is missing")
    return kind(**{name: _convert(name, tree[name], types[name]) for name in names if name in tree})


def _convert(name: str, value: Any, kind: Any) -> Any:
    """Return a value as its type: lists as tuples, objects as dataclasses."""
    args = get_args(kind)
    if is_dataclass(kind):
        return to_record(kind, value)  # type: ignore[arg-type]
    if get_origin(kind) is list and is_dataclass(args[0]) and isinstance(value, list):
        return [_convert(name, item, args[0]) for item in value]
    if not _fits(value, kind):
        raise ValueError(f"{name} must be {_describe(kind)}, got {shown(value)}")
    return tuple(value) if get_origin(kind) is tuple else value


def _fits(value: Any, kind: Any) -> bool:
    origin, args = get_origin(kind), get_args(kind)
    if kind is Any:
        return True
    if origin is Annotated:
        return _fits(value, args[0]) and bool(args[1] <= value <= args[2])
    if origin in (Union, UnionType):
        return any(_fits(value, option) for option in args)
    if origin is dict:
        return isinstance(value, dict) and all(_fits(item, args[1]) for item in value.values())
    if origin in (list, tuple):
        return isinstance(value, list | tuple) and all(_fits(item, args[0]) for item in value)
    if kind is float and type(value) is int:
        return abs(value) <= LARGEST
    return type(value) is kind


def _describe(kind: Any) -> str:
    origin, args = get_origin(kind), get_args(kind)
    if origin is Annotated:
        low, high = (args[1] if args[1] >= -LARGEST else None), (args[2] if args[2] < LARGEST else None)
        limits = f" from {low} to {high}" if high is not None else f" >= {low}" if low is not None else ""
        return _describe(args[0]) + limits
    if origin in (Union, UnionType):
        return " or ".join(map(_describe, args))
    if origin is dict:
        return f"an object, each value {_describe(args[1])}"
    if origin in (list, tuple):
        return f"a list, each item {_describe(args[0])}"
    return _WORDS.get(kind, "an object")


def is_number(value: Any) -> bool:
    """Return whether it is a finite number; an integer must fit in 64 bits."""
    return _fits(value, Finite)


def finite(value: Any) -> Any:
    """Replace non-finite numbers by None, since JSON has none."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


# ------------------------------------------------------------------------------------------------------- files


def own_folder(path: Path, *, make: bool = False) -> Path:
    """Return a folder in a run folder; ValueError if it is a link, through which files of others would be touched."""
    if os.path.lexists(path) and not safe_files.is_folder(path):
        raise ValueError(
            f"{path} must be a folder itself, not a link or a file; only the whole run folder may be a link"
        )
    if make:
        path.mkdir(parents=True, exist_ok=True)
    return path


def read_tree(run: Path, file: Path, format: int) -> Tree:
    """Read a JSON file of a run folder: check its format, checksum and id, and remove the first two."""
    tree = checksummed_json.read(file, format)
    check_id(run, file, tree.get(RUN_ID))
    del tree["format"]
    return tree


def read_record(kind: type[T], file: Path, format: int) -> T:
    """Read ``RUN/<folder>/<file>`` as a dataclass without the run's id; ValueError in one line that names the file."""
    tree = read_tree(file.parent.parent, file, format)
    tree.pop(RUN_ID, None)
    try:
        return to_record(kind, tree)
    except ValueError as error:
        raise ValueError(f"{file} is malformed: {error}") from None


def write_tree(file: Path, format: int, tree: Mapping[str, Any]) -> None:
    """Write ``RUN/<folder>/<file>``, atomically, with format, checksum and the run's id."""
    known = {"format": format, RUN_ID: read_id(file.parent.parent)}
    safe_files.write_text(file, checksummed_json.with_checksum({**known, **tree}))


def read_id(run: Path) -> Any:
    """Return the id in the config.json of a run folder; None if it has none. ValueError if it cannot be read."""
    tree = json.loads(safe_files.read_plain(run / CONFIG, 1 << 16))
    return tree.get(RUN_ID) if isinstance(tree, dict) else None


def check_id(run: Path, file: Path, found: Any) -> None:
    """Raise ValueError if a file has not the id of the run folder that it is in."""
    try:
        expected = read_id(run)
    except (OSError, ValueError, RecursionError):  # reported where the config itself is read
        return
    if found != expected:
        ids = [f"id {run_id!r:.40}" if run_id is not None else "no id" for run_id in (found, expected)]
        raise ValueError(f"{file} belongs to another run: it has {ids[0]}, {CONFIG} has {ids[1]}")
