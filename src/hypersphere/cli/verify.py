"""Check a run's files and checkpoints for damage."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from ._output import printable, user_errors

DAMAGED = 1  # the exit code


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folder", metavar="DIR", type=Path, help="run folder, its checkpoints folder, or one checkpoint"
    )
    parser.add_argument("--json", action="store_true", help="print JSON only")


def run(options: argparse.Namespace) -> int:
    from ..train.storage.verifying import verify_files

    folder = options.folder
    with user_errors(options):
        checked = list(verify_files(folder))
        if not checked:
            raise ValueError(f"{folder} is not a run folder or a checkpoint")
    damaged = any(file.problem for file in checked)
    if options.json:
        files = [
            {"path": str(file.path), "ok": not file.problem, "checked": not file.note, "problem": file.problem}
            for file in checked
        ]
        print(json.dumps({"path": str(folder), "ok": not damaged, "parts": files}, indent=2))
    else:
        for file in checked:
            good = f"ok       {file.path}{f' ({file.note})' if file.note else ''}"
            bad = f"damaged  {file.path}: {_cause(str(file.path), file.problem)}"
            print(printable(bad if file.problem else good))
    return DAMAGED if damaged else 0


def _cause(path: str, problem: str) -> str:
    """Strip the path and the word `damaged` from a problem: they are printed before it."""
    return problem.removeprefix(path).lstrip("/: ").removeprefix("is damaged: ").removeprefix("damaged: ")
