"""Read and validate result.json, the summary of a finished run."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ..._internal import checksummed_json
from ..config.values import LARGEST, shown
from .identity import check_id
from .layout import FORMATS, RESULT

SUMS = "checksums"  # of config.json, metrics.jsonl and final/model.json
_DEEPEST = 3


def read_summary(path: Path) -> tuple[dict[str, Any], dict[str, str] | None]:
    """Read result.json in the run folder `path`, and the checksums of other files; None for format 1.

    ValueError in one line that names the file if it is missing, damaged, or not what a training writes.
    """
    file = path / RESULT
    tree, has_sums = checksummed_json.read(file, FORMATS)
    check_id(path, file, tree.get(checksummed_json.RUN_ID))
    sums = tree.pop(SUMS, None)
    try:
        _check(tree)
        if has_sums and not (isinstance(sums, Mapping) and all(isinstance(each, str) for each in sums.values())):
            raise ValueError(f"{SUMS} must be text by the names of files, got {shown(sums)}")
    except ValueError as error:
        raise ValueError(f"{file} is malformed: {error}") from None
    return tree, sums if has_sums else None


def is_number(value: Any, low: float = -math.inf, high: float = math.inf) -> bool:
    """Return whether it is a finite number in [low, high]; an integer must fit in 64 bits."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return (abs(value) <= LARGEST if isinstance(value, int) else math.isfinite(value)) and low <= value <= high


def is_count(value: Any) -> bool:
    return type(value) is int and is_number(value, 0)


def _dict_of(kind: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """Return a test for dicts whose values all pass `kind`."""
    return lambda value: isinstance(value, dict) and all(map(kind, value.values()))


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


#: required keys; figures are None where they were not finite
_NEEDED: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "accuracy": ("null or a number in [0, 1]", lambda v: v is None or is_number(v, 0, 1)),
    "energy": ("null or a number", lambda v: v is None or is_number(v)),
    "energies": ("numbers by layer", _dict_of(lambda v: v is None or is_number(v))),
    "step": ("an integer >= 0", is_count),
    "best_step": ("null or an integer >= 0", lambda v: v is None or is_count(v)),
    "validation": ("null or numbers by name", lambda v: v is None or _dict_of(lambda x: x is None or is_number(x))(v)),
    "parameters": ("integers >= 0 by name", _dict_of(is_count)),
    "seconds": ("a number >= 0", lambda v: is_number(v, 0)),
    "samples_per_second": ("a number >= 0", lambda v: is_number(v, 0)),
    "seed": ("an integer", lambda v: type(v) is int and is_number(v)),
    "model": ("text", _is_text),
    "length": ("steps and epochs", lambda v: isinstance(v, list) and all(x is None or is_count(x) for x in v)),
    "data": ("an object", lambda v: isinstance(v, dict)),
    "versions": ("text by package", _dict_of(_is_text)),
}


def _check(tree: dict[str, Any]) -> None:
    for key, (allowed, test) in _NEEDED.items():
        if key not in tree or not test(tree[key]):
            raise ValueError(f"{key} must be {allowed}, got {shown(tree[key]) if key in tree else 'nothing'}")
    if not is_number(tree.get("loss", 0.0)) and tree["loss"] is not None:
        raise ValueError(f"loss must be null or a number, got {shown(tree['loss'])}")
    if not _is_text(tree.get("split", "")):
        raise ValueError(f"split must be text, got {shown(tree['split'])}")
    for key, value in tree.items():
        for each in strange_values(value, _DEEPEST):
            raise ValueError(f"{key} must not hold {shown(each)}")


def strange_values(value: Any, levels: int) -> Iterator[Any]:
    """Yield what is not text, a number or an object of them of so many levels, as a training writes."""
    if isinstance(value, dict | list) and levels:
        for each in value.values() if isinstance(value, dict) else value:
            yield from strange_values(each, levels - 1)
    elif not (value is None or isinstance(value, bool | str) or is_number(value)):
        yield value
