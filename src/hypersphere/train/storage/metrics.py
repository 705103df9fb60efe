"""Write the metrics of a run: metrics.jsonl, one JSON object per line, and the same for TensorBoard."""

from __future__ import annotations

import json
import math
import os
import time
import zlib
from collections.abc import Iterable
from io import FileIO
from pathlib import Path
from typing import Any

from ..._internal import checks, checksummed_json, safe_files
from ..._internal.checksummed_json import RUN_ID
from . import layout
from .events import Events, append, scalars
from .identity import check_id
from .summary import is_count, is_number, strange_values


class Metrics:
    """Collect the lines of a run, and write them to `folder` as they come.

    Args:
        folder: made if it is not there; None: nothing is written.
        keep: None for a new run: files of an earlier one are removed. A number when a run is resumed: the first `keep`
            lines of its metrics.jsonl stay, the rest is cut off, and TensorBoard's file is rewritten from them, so
            that the history is that of an uninterrupted run.
        mark: what :meth:`mark` gave after those lines; it warns if they have changed since.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> metrics = Metrics(folder)
        >>> metrics.write({"step": 1, "split": "train", "loss": 0.5})
        >>> metrics.write({"step": 2, "split": "train", "loss": float("nan")})
        >>> metrics.close()
        >>> print((folder / "metrics.jsonl").read_text(), end="")
        {"step": 1, "split": "train", "loss": 0.5}
        {"step": 2, "split": "train", "loss": null}
        >>> resumed = Metrics(folder, keep=1)
        >>> resumed.lines
        [{'step': 1, 'split': 'train', 'loss': 0.5}]
        >>> resumed.close()
    """

    def __init__(self, folder: Path | None, *, keep: int | None = None, mark: dict[str, Any] | None = None) -> None:
        self.lines: list[dict[str, Any]] = []
        self._bytes = self._sum = 0
        self._file: FileIO | None = None
        self._events: Events | None = None
        if folder is None:
            return
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / layout.METRICS
        if keep is not None:
            self.lines = _kept(path, checks.integer("keep", keep, low=0), mark)
        text = "".join(map(_text, self.lines))
        self._count(text.encode())
        try:
            safe_files.write_text(path, text)
        except OSError as error:
            raise OSError(f"{path} could not be written: {error.strerror}") from error
        for old in folder.glob(f"{layout.EVENTS}*"):
            old.unlink()
        self._file = FileIO(path, "a")  # unbuffered: a written line is on file
        self._events = Events(folder)
        begin = time.time() - max((line.get("seconds") or 0 for line in self.lines), default=0)
        for line in self.lines:
            self._events.add(line["step"], begin + (line.get("seconds") or 0), scalars(line))

    def write(self, line: dict[str, Any]) -> None:
        """Add a line; non-finite numbers become None. `lines` has it as it would be read back."""
        text = _text(finite(line))
        line = json.loads(text)
        self.lines.append(line)
        if self._file is not None and self._events is not None:
            append(self._file, text.encode())
            self._count(text.encode())
            self._events.add(line["step"], time.time(), scalars(line))

    def mark(self) -> dict[str, Any]:
        """Return the size and checksum of the file so far, to detect damage later."""
        return {"bytes": self._bytes, "checksum": f"{self._sum:08x}"}

    def _count(self, data: bytes) -> None:
        self._bytes, self._sum = self._bytes + len(data), zlib.crc32(data, self._sum)

    def close(self) -> None:
        if self._file is not None and self._events is not None:
            self._file.close()
            self._events.close()


def _text(line: dict[str, Any]) -> str:
    return json.dumps(line, allow_nan=False) + "\n"


def finite(value: Any) -> Any:
    """Replace non-finite numbers by None, since JSON has none."""
    if isinstance(value, dict):
        return {key: finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def has_mark(data: bytes, mark: Any) -> bool:
    """Return whether `data` begins with what was on file when :meth:`Metrics.mark` returned `mark`."""
    known = isinstance(mark, dict) and type(mark.get("bytes")) is int and 0 <= mark["bytes"] <= len(data)
    return known and mark.get("checksum") == f"{zlib.crc32(data[: mark['bytes']]):08x}"


def _kept(path: Path, keep: int, mark: dict[str, Any] | None) -> list[dict[str, Any]]:
    """Return the first `keep` lines of `path`, or those before the first damaged one."""
    data = safe_files.read_plain(path) if os.path.lexists(path) else b""
    lines = parse_lines(data.split(b"\n")[:-1][:keep])
    if lines:
        check_id(path.parent, path, lines[0].get(RUN_ID))
    if len(lines) < keep:
        checks.warn(f"{path} is damaged: {len(lines)} of {keep} lines are intact, the history continues from them")
    elif mark is not None and not has_mark(data, mark):
        checks.warn(f"{path} is damaged: the checksum does not match, the history continues from its lines")
    return lines


def parse_lines(texts: Iterable[bytes]) -> list[dict[str, Any]]:
    """Return the lines before the first damaged one."""
    lines: list[dict[str, Any]] = []
    for text in texts:
        try:
            line = checksummed_json.parse(text)
        except ValueError:
            break
        if not is_line(line):
            break
        lines.append(line)
    return lines


def is_line(line: Any) -> bool:
    """Return whether it is a valid line of metrics.jsonl, whose numbers TensorBoard can hold too."""
    if not isinstance(line, dict) or not is_count(line.get("step")):
        return False
    figures = [line.get(name) for name in ("epoch", "loss", "accuracy", "lr", "samples_per_second")]
    seconds = line.get("seconds")
    return (
        isinstance(line.get("split", ""), str)
        and all(each is None or is_number(each) for each in figures)
        and (seconds is None or is_number(seconds, 0))
        and not any(True for _ in strange_values(line, 4))
    )
