"""The history of a run: metrics.jsonl, one JSON object a line, and the same for TensorBoard."""

from __future__ import annotations

import json
import math
import time
from io import FileIO
from pathlib import Path
from typing import Any

from .. import _checks, _files
from ._events import PATTERN, Events, append, scalars

FILE = "metrics.jsonl"


class Metrics:
    """Collects the lines of a run, and writes them to `folder` as they come.

    Args:
        folder: made if it is not there; None: nothing is written.
        keep: None for a new run: what an earlier one left is removed. A number when a run is resumed: the first `keep`
            lines of its metrics.jsonl stay, the rest is cut off, and TensorBoard's file is written anew from them, so
            that the history becomes the one of a run that was never stopped.

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

    def __init__(self, folder: Path | None, *, keep: int | None = None) -> None:
        self.lines: list[dict[str, Any]] = []
        self._file: FileIO | None = None
        self._events: Events | None = None
        if folder is None:
            return
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / FILE
        if keep is not None:
            self.lines = _kept(path, _checks.integer("keep", keep, low=0))
        text = "".join(map(_text, self.lines))
        try:
            _files.write_text(path, text)
        except OSError as error:
            raise OSError(f"{path} could not be written: {error.strerror}") from error
        for old in folder.glob(PATTERN):
            old.unlink()
        self._file = FileIO(path, "a")  # without a buffer: a line is on file once it is written
        self._events = Events(folder)
        begin = time.time() - max((line.get("seconds") or 0 for line in self.lines), default=0)
        for line in self.lines:
            self._events.add(line["step"], begin + (line.get("seconds") or 0), scalars(line))

    def write(self, line: dict[str, Any]) -> None:
        """Adds a line; numbers that are not finite become None. It is in `lines` as it would be read back."""
        text = _text(_finite(line))
        line = json.loads(text)
        self.lines.append(line)
        if self._file is not None and self._events is not None:
            append(self._file, text.encode())
            self._events.add(line["step"], time.time(), scalars(line))

    def close(self) -> None:
        if self._file is not None and self._events is not None:
            self._file.close()
            self._events.close()


def _text(line: dict[str, Any]) -> str:
    return json.dumps(line, allow_nan=False) + "\n"


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _kept(path: Path, keep: int) -> list[dict[str, Any]]:
    """The first `keep` lines of `path`, or those before the first that is not whole."""
    lines: list[dict[str, Any]] = []
    # What follows the last end of line was never finished.
    for text in (path.read_bytes().split(b"\n")[:-1] if path.exists() else [])[:keep]:
        try:
            line = json.loads(text.decode())
        except (ValueError, RecursionError):
            break
        if not isinstance(line, dict) or type(line.get("step")) is not int:
            break
        lines.append(_finite(line))
    if len(lines) < keep:
        _checks.warn(f"{path} is damaged: {len(lines)} of {keep} lines are whole, the history goes on from them")
    return lines
