"""Bind the files of a run to it: each holds the id that config.json got when the run started.

Older versions wrote no ids: in their folders no file has one, and a file with an id is not theirs.
"""

from __future__ import annotations

import json
import secrets
from pathlib import Path
from typing import Any

from ..._internal import safe_files
from ..._internal.checksummed_json import RUN_ID
from .layout import CONFIG


def new_id() -> str:
    """Return the id of a new run; not from the seed, so that two runs of one config differ too."""
    return secrets.token_hex(16)


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
        ids = [f"id {each!r:.40}" if each is not None else "no id" for each in (found, expected)]
        raise ValueError(f"{file} belongs to another run: it has {ids[0]}, {CONFIG} has {ids[1]}")
