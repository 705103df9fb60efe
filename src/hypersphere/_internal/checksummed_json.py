"""JSON files with a checksum of their text, and safe parsing of JSON from untrusted files.

The checksum is the first key and covers every byte of the file, with its own digits as zeros. It detects damage, not
tampering: whoever can change a file can change its checksum.
"""

from __future__ import annotations

import json
import os
import re
import zlib
from collections.abc import Mapping
from typing import Any, NoReturn

from . import safe_files

Tree = dict[str, Any]  # a JSON object

KEY = "checksum"
RUN_ID = "run_id"  # of the run that a file belongs to
LARGEST = 1 << 28  # bytes of a JSON file
DEEPEST = 400  # flatten stores 100 levels, in up to three of JSON each
_ZEROS = "0" * 8
_SIGNED = re.compile(rb'\{\s*"checksum": "([0-9a-f]{8})"')


def checksum(data: bytes) -> str:
    """Compute the CRC-32, as for tensors."""
    return f"{zlib.crc32(data):08x}"


def with_checksum(tree: Mapping[str, Any]) -> str:
    """Format `tree` as JSON with its checksum."""
    text = json.dumps({KEY: _ZEROS, **tree}, indent=2, allow_nan=False) + "\n"
    return text.replace(_ZEROS, checksum(text.encode()), 1)


def is_whole(data: bytes) -> bool:
    """Return whether the checksum of `data` is right."""
    signed = _SIGNED.match(data)
    if signed is None:
        return False
    begin, end = signed.span(1)
    return signed[1] == checksum(data[:begin] + _ZEROS.encode() + data[end:]).encode()


def parse(data: bytes) -> Any:
    """Parse JSON; raise ValueError for NaN and deep nesting."""
    try:
        tree = json.loads(data, parse_constant=_reject_constant)
    except RecursionError:
        raise ValueError(f"it is nested deeper than {DEEPEST} levels") from None
    level = [tree]
    for _ in range(DEEPEST):
        level = [
            child
            for value in level
            if isinstance(value, dict | list)
            for child in (value.values() if isinstance(value, dict) else value)
        ]
        if not level:
            return tree
    raise ValueError(f"it is nested deeper than {DEEPEST} levels")


def read(path: str | os.PathLike[str], format: int) -> Tree:
    """Read an object of this ``format``, without its checksum.

    Raises a one-line ValueError that names the file if it is missing, damaged or of another format.
    """
    data = safe_files.read_plain(path, LARGEST)
    try:
        tree = parse(data)
        if not isinstance(tree, dict):
            raise ValueError(f"it must be an object, got {type(tree).__name__}")
    except ValueError as error:
        raise ValueError(f"{path} cannot be read: {' '.join(str(error).split())}") from None
    if type(tree.get("format")) is not int or tree["format"] != format:
        got = f"{tree.get('format')!r:.40}"
        raise ValueError(f"{path} has format {got}; this version of hypersphere reads {format}")
    if not is_whole(data):
        raise ValueError(f"{path} is damaged: the checksum does not match")
    return {key: value for key, value in tree.items() if key != KEY}


def _reject_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not allowed in JSON")
