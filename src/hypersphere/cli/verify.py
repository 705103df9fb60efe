"""`hypersphere verify DIR`: whether a checkpoint, a folder of checkpoints or a whole run is as it was written."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ._output import printable

DAMAGED = 1  # the exit code


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folder", metavar="DIR", type=Path, help="a run, its folder checkpoints, or one checkpoint in it"
    )
    parser.add_argument("--json", action="store_true", help="print JSON and nothing else")
    parser.set_defaults(error=parser.error)


def run(options: argparse.Namespace) -> int:
    folder = options.folder
    if not folder.is_dir():
        options.error(f"DIR must be a folder, got {str(folder)!r}")
    try:
        found = {str(path): problems for path, problems in _parts(folder)}
    except OSError as error:
        options.error(str(error))
    if not found:
        options.error(f"DIR must be a run, a folder of checkpoints or a checkpoint, got {str(folder)!r}")
    damaged = any(found.values())
    if options.json:
        parts = [{"path": path, "ok": not problems, "problems": problems} for path, problems in found.items()]
        print(json.dumps({"path": str(folder), "ok": not damaged, "parts": parts}, indent=2))
    else:
        for path, problems in found.items():
            lines = [f"damaged  {path}: {problem.removeprefix(path).lstrip('/: ')}" for problem in problems]
            print(printable("\n".join(lines) or f"ok       {path}"))
    return DAMAGED if damaged else 0


def _parts(folder: Path) -> Iterator[tuple[Path, list[str]]]:
    """What there is to look at, and what is wrong with each."""
    from ..train import checkpoint
    from ..train._reading import STATE, TENSORS, steps

    if any((folder / name).exists() for name in (STATE, TENSORS)):
        yield folder, checkpoint.verify(folder)
        return
    saved = folder / "checkpoints" if (folder / "checkpoints").is_dir() else folder
    for path in dict(sorted(steps(saved).items())).values():
        problems = checkpoint.verify(path)
        if path.exists():  # a run that is at work removes old ones
            yield path, problems
    checks: dict[str, Callable[[Path], Any]] = {
        "config.json": _check_config,
        "metrics.jsonl": _check_metrics,
        "result.json": _read_json,
        "final/model.json": _read_json,
        "final/model.safetensors": _check_tensors,
        "final/head.safetensors": _check_tensors,
        "final/discriminator.safetensors": _check_tensors,
    }
    needed = _needed(folder)
    for name, check in checks.items():
        path = folder / name
        if os.path.lexists(path) or name in needed:
            try:
                if not path.is_file():
                    raise ValueError("is missing" if not os.path.lexists(path) else "is no file")
                check(path)
            except (ValueError, OSError) as error:
                yield path, [" ".join(str(error).split())]
            else:
                yield path, []


def _read_json(path: Path) -> dict[str, Any]:
    try:
        tree = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"cannot be read: {error}") from None
    if not isinstance(tree, dict):
        raise ValueError(f"must be an object, got {type(tree).__name__}")
    return tree


def _check_config(path: Path) -> None:
    from ..train import _names
    from ..train.config import flags, from_tree

    tree = _read_json(path)
    # Names of the user's own are known only once their file has run, and that is not done here.
    for flag in flags():
        group, _, name = flag.key.partition(".")
        settings, kind = tree.get(group), flag.field.metadata.get("names", "similarity")
        if kind != "similarity" and isinstance(settings, dict) and isinstance(settings.get(name), str):
            settings[name] = settings[name] if settings[name] in _names.known(kind) else flag.field.default
    from_tree(tree)


def _check_metrics(path: Path) -> None:
    for number, line in enumerate(path.read_bytes().splitlines(keepends=True), 1):
        try:
            whole = isinstance(json.loads(line), dict)
        except (ValueError, RecursionError):
            whole = not line.endswith(b"\n")  # the last one, which is being written
        if not whole:
            raise ValueError(f"line {number} is no JSON object")


def _check_tensors(path: Path) -> None:
    from ..train.run import read_tensors

    read_tensors(path)


def _needed(folder: Path) -> list[str]:
    """What must be there beside what is."""
    names = {each.name for each in folder.iterdir()}
    if not names & {"checkpoints", "result.json", "final", "config.json"}:
        return []
    needed = ["config.json"]
    if "result.json" in names:
        needed += ["metrics.jsonl", "final/model.json", "final/model.safetensors"]
        try:
            if _read_json(folder / "config.json").get("loss", {}).get("name", "softmax") != "softmax":
                needed.append("final/head.safetensors")
        except (ValueError, OSError, AttributeError):
            pass  # said of config.json itself
    return needed
