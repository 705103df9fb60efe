"""Write the metrics of a run: metrics.jsonl, one JSON object per line, and the same for TensorBoard."""

from __future__ import annotations

import json
import os
import time
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from typing import Any

from ..._internal import checks, checksummed_json, safe_files
from ..._internal.checksummed_json import Tree
from . import layout
from .events import Events, append
from .records import Count, Finite, Positive, Values, check_id, finite, to_record

Mark = Mapping[str, int | str]  # bytes and checksum of the file, in a checkpoint


@dataclass(frozen=True)
class MetricsLine:
    """One line of metrics.

    Attributes:
        step, epoch: how far the training was; `epoch` is a number with decimals.
        split: what was measured: train, or the split of an evaluation.
        values: loss, accuracy, lr and whatever the task measures, by name; None where one was not finite.
        energies: by layer; pair_energies are those of OPT's figures.
        seconds: since the start.
        diverged: the training ended here, since its loss or a gradient was not finite.
        run_id: of the run, in its first line.
    """

    step: Count
    split: str
    epoch: Finite | None = None
    values: Values = field(default_factory=dict)
    energies: Values = field(default_factory=dict)
    pair_energies: Values = field(default_factory=dict)
    diverged: bool = False
    run_id: str | None = None
    seconds: Positive | None = None

    @property
    def loss(self) -> float | None:
        return self.values.get("loss")

    @property
    def accuracy(self) -> float | None:
        return self.values.get("accuracy")

    def to_dict(self) -> Tree:
        """Return the line of the file: the values among the other fields, and no fields that are empty."""
        names = ("step", "epoch", "split"), ("energies", "pair_energies", "diverged", "run_id", "seconds")
        first, last = ({name: getattr(self, name) for name in part} for part in names)
        empty = {name for name, value in (first | last).items() if value is None or value is False or value == {}}
        tree: Tree = finite({**first, **self.values, **last})
        return {name: value for name, value in tree.items() if name not in empty}

    @staticmethod
    def from_dict(tree: Any) -> MetricsLine:
        """Read what :meth:`to_dict` returned; ValueError for anything else."""
        return to_record(MetricsLine, tree, rest="values")

    def scalars(self) -> dict[str, float]:
        """Return the numbers by TensorBoard tag."""
        tags = {f"{self.split}/{name}": value for name, value in self.values.items()}
        tags |= {f"energy/{layer}": value for layer, value in self.energies.items()}
        tags |= {f"pair_energy/{layer}": value for layer, value in self.pair_energies.items()}
        return {tag: float(value) for tag, value in tags.items() if value is not None}


class Metrics:
    """Collect the lines of a run, and write them to `folder` as they come.

    Args:
        folder: made if it is not there; None: nothing is written.
        keep: None for a new run: files of an earlier one are removed. A number when a run is resumed: the first `keep`
            lines of its metrics.jsonl stay, the rest is cut off, and TensorBoard's file is rewritten from them, so
            that the history is that of an uninterrupted run.
        mark: what :meth:`mark` gave after those lines; it warns if they have changed since.
    """

    def __init__(self, folder: Path | None, *, keep: int | None = None, mark: Mark | None = None) -> None:
        self.lines: list[MetricsLine] = []
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
        begin = time.time() - max((line.seconds or 0 for line in self.lines), default=0)
        for line in self.lines:
            self._events.add(line.step, begin + (line.seconds or 0), line.scalars())

    def write(self, line: MetricsLine) -> None:
        """Add a line; non-finite numbers become None. `lines` has it as it would be read back."""
        text = _text(line)
        line = MetricsLine.from_dict(json.loads(text))
        self.lines.append(line)
        if self._file is not None and self._events is not None:
            append(self._file, text.encode())
            self._count(text.encode())
            self._events.add(line.step, time.time(), line.scalars())

    def mark(self) -> Mark:
        """Return the size and checksum of the file so far, to detect damage later."""
        return {"bytes": self._bytes, "checksum": f"{self._sum:08x}"}

    def _count(self, data: bytes) -> None:
        self._bytes, self._sum = self._bytes + len(data), zlib.crc32(data, self._sum)

    def close(self) -> None:
        if self._file is not None and self._events is not None:
            self._file.close()
            self._events.close()


def _text(line: MetricsLine) -> str:
    return json.dumps(line.to_dict(), allow_nan=False) + "\n"


def has_mark(data: bytes, mark: Any) -> bool:
    """Return whether `data` begins with what was on file when :meth:`Metrics.mark` returned `mark`."""
    known = isinstance(mark, dict) and type(mark.get("bytes")) is int and 0 <= mark["bytes"] <= len(data)
    return known and mark.get("checksum") == f"{zlib.crc32(data[: mark['bytes']]):08x}"


def _kept(path: Path, keep: int, mark: Mark | None) -> list[MetricsLine]:
    """Return the first `keep` lines of `path`, or those before the first damaged one."""
    data = safe_files.read_plain(path) if os.path.lexists(path) else b""
    lines = parse_lines(data.split(b"\n")[:-1][:keep])
    if lines:
        check_id(path.parent, path, lines[0].run_id)
    if len(lines) < keep:
        checks.warn(f"{path} is damaged: {len(lines)} of {keep} lines are intact, the history continues from them")
    elif mark is not None and not has_mark(data, mark):
        checks.warn(f"{path} is damaged: the checksum does not match, the history continues from its lines")
    return lines


def parse_lines(texts: Iterable[bytes]) -> list[MetricsLine]:
    """Return the lines before the first damaged one."""
    lines: list[MetricsLine] = []
    for text in texts:
        try:
            lines.append(MetricsLine.from_dict(checksummed_json.parse(text)))
        except ValueError:
            break
    return lines
