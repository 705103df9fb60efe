"""Run one row with one seed: ``python -m hypersphere.papers.reproduce.worker``, started by :mod:`..train.processes`."""

from __future__ import annotations

import platform
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ... import __version__
from ...train import TrainingError, fit
from ...train.config import derive
from ...train.processes import serve, when_free
from ...train.results import Result
from .. import gan as gan  # registers it
from .. import tables
from ..table import Row, Table
from .metrics import figures_of
from .results import FULL, Entry, fingerprint, machine, run_folder


@dataclass(frozen=True)
class Place:
    """Where the rows of a table are trained, in a form."""

    table: Table
    name: str
    form: str
    runs: str
    device: str = "auto"
    root: str | None = None

    def folder(self, row: Row, seed: int) -> Path:
        return run_folder(Path(self.runs), self.name, self.table, row, self.form, seed)

    def train(self, row: Row, seed: int) -> Result:
        """Train a row or go on with it, after the row that it starts from, and return the result."""
        config = row.full if self.form == FULL else row.small
        assert config is not None
        path = self.folder(row, seed)
        path.parent.mkdir(parents=True, exist_ok=True)
        changes = {"seed": seed, "out": str(path), "resume": True, "device": self.device}
        if self.root is not None and config.data.name != "digits":
            changes["data.root"] = self.root
        if row.start is not None:
            changes["init_from"] = str(self.train(self.table.row(row.start), seed).path)
        return when_free(lambda: fit(derive(config, changes), progress=False))  # another run may need it too


def run(request: dict[str, Any]) -> Entry:
    """Run or resume what the request names, and return its figures; none, and why, if the training broke off."""
    table = tables.load(request["table"])
    row, seed, form = table.row(request["row"]), request["seed"], request["form"]
    facts: dict[str, Any] = {
        "hypersphere": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": machine(),
        "threads": request["threads"],
    }
    figures: dict[str, float] = {}
    begin = time.perf_counter()
    if row.compute is not None:
        figures = {name: float(value) for name, value in row.compute(seed).items()}
        facts["seconds"] = round(time.perf_counter() - begin, 2)
    else:
        place = Place(table, request["table"], form, request["runs"], request["device"], request["root"])
        try:
            figures = _trained(place, row, seed, facts)
        except TrainingError as error:  # it would break off again at the same step
            facts |= {"failed": " ".join(str(error).split()), "seconds": round(time.perf_counter() - begin, 2)}
    return Entry(row.name, seed, form, fingerprint(table, row, form), figures, facts)


def _trained(place: Place, row: Row, seed: int, facts: dict[str, Any]) -> dict[str, float]:
    """Train a row, add what is known of the run to the facts, and return its figures."""
    if row.start is not None:
        place.train(place.table.row(row.start), seed)  # has its own entry, and its own cost
    resumed = place.folder(row, seed).exists()
    begin = time.process_time()
    result = place.train(row, seed)
    if not resumed:  # the time of a run that was suspended, or ran beside others, says little
        facts["cpu_seconds"] = round(time.process_time() - begin, 3)
    summary = result.summary
    facts |= {"seconds": summary["seconds"], "steps": summary["step"], "data": summary["data"]}
    return figures_of(place.table, result, lambda name: place.train(place.table.row(name), 0))


if __name__ == "__main__":
    sys.exit(serve(lambda request: vars(run(request))))
