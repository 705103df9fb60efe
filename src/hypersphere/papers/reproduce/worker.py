"""Run one row with one seed: ``python -m hypersphere.papers.reproduce.worker``, started by :mod:`..train.processes`."""

from __future__ import annotations

import platform
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ... import __version__
from ...train import TrainingError, fit
from ...train.config import derive
from ...train.processes import serve, wait_for_lock
from ...train.results import Result
from .. import gan as gan  # registers it
from .. import tables
from ..table import PaperTable, TableRow
from .metrics import metrics_of
from .results import FULL, RunResult, fingerprint, machine, run_folder
from .runner import data_from


@dataclass(frozen=True)
class RunLocation:
    """The folder, device and size ("full" or "small") of a table's runs."""

    table: PaperTable
    name: str
    size: str
    runs: str
    device: str = "auto"
    root: str | None = None

    def folder(self, row: TableRow, seed: int) -> Path:
        return run_folder(Path(self.runs), self.name, self.table, row, self.size, seed)

    def train(self, row: TableRow, seed: int) -> Result:
        """Train or resume a row, after the row that it starts from, and return the result."""
        config = row.full if self.size == FULL else row.small
        assert config is not None
        path = self.folder(row, seed)
        path.parent.mkdir(parents=True, exist_ok=True)
        changes = {"seed": seed, "out": str(path), "resume": True, "device": self.device}
        if row.start is not None:
            changes["init_from"] = str(self.train(self.table.row(row.start), seed).path)
        return wait_for_lock(
            lambda: fit(derive(data_from(config, self.root), changes), progress=False)
        )  # another run may need it too


def run(request: Mapping[str, Any]) -> RunResult:
    """Run or resume the row of a request; a training that diverged has no metrics, and the reason."""
    table = tables.load(request["table"])
    row, seed, size = table.row(request["row"]), request["seed"], request["size"]
    facts: dict[str, Any] = {
        "hypersphere": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": machine(),
        "threads": request["threads"],
    }
    metrics: dict[str, float] = {}
    begin = time.perf_counter()
    if row.compute is not None:
        metrics = {name: float(value) for name, value in row.compute(seed).items()}
        facts["seconds"] = round(time.perf_counter() - begin, 2)
    else:
        location = RunLocation(table, request["table"], size, request["runs"], request["device"], request["root"])
        try:
            metrics = _trained(location, row, seed, facts)
        except TrainingError as error:  # it would diverge again at the same step
            facts |= {"failed": " ".join(str(error).split()), "seconds": round(time.perf_counter() - begin, 2)}
    return RunResult(row.name, seed, size, fingerprint(table, row, size), metrics, facts)


def _trained(location: RunLocation, row: TableRow, seed: int, facts: dict[str, Any]) -> dict[str, float]:
    """Train a row, add the cost and the data to the facts, and return its metrics."""
    if row.start is not None:
        location.train(location.table.row(row.start), seed)  # has its own result, and its own cost
    resumed = location.folder(row, seed).exists()
    begin = time.process_time()
    result = location.train(row, seed)
    if not resumed:  # the time before is not known
        facts["cpu_seconds"] = round(time.process_time() - begin, 3)
    summary = result.summary
    facts |= {"seconds": summary.seconds, "steps": summary.step, "data": summary.data}
    return metrics_of(location.table, result, lambda name: location.train(location.table.row(name), 0))


if __name__ == "__main__":
    sys.exit(serve(lambda request: run(request).to_tree()))
