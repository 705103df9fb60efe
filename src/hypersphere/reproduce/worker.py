"""Run one row with one seed: ``python -m hypersphere.reproduce.worker``, which :mod:`..train.processes` starts."""

from __future__ import annotations

import platform
import sys
import time
from pathlib import Path
from typing import Any

from .. import __version__
from ..recipes import papers
from ..train.config import derive
from ..train.processes import serve
from .results import FULL, Entry, fingerprint, machine


def folder_of(runs: str, table: str, form: str, row: str, seed: int) -> Path:
    """Return the run folder of a row."""
    return Path(runs, table, form, row, f"seed{seed}")


def run(request: dict[str, Any]) -> Entry:
    """Run or resume what the request names, and return its figures."""
    import torch

    table = papers.load(request["table"])
    row, seed, form = table.row(request["row"]), request["seed"], request["form"]
    begin, cpu = time.perf_counter(), time.process_time()
    facts: dict[str, Any] = {
        "hypersphere": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": machine(),
        "threads": request["threads"],
    }
    if row.compute is not None:
        figures = {name: float(value) for name, value in row.compute(seed).items()}
        facts["seconds"] = round(time.perf_counter() - begin, 2)
    else:
        from ..train import fit
        from .figures import figures_of

        config = row.full if form == FULL else row.small
        assert config is not None
        path = folder_of(request["runs"], request["table"], form, row.name, seed)
        path.parent.mkdir(parents=True, exist_ok=True)
        changes = {"seed": seed, "out": str(path), "resume": True, "device": request["device"]}
        if request["root"] is not None and config.data.name != "digits":
            changes["data.root"] = request["root"]
        if row.start is not None:
            changes["init_from"] = str(folder_of(request["runs"], request["table"], form, row.start, seed))
        resumed = path.exists()
        result = fit(derive(config, changes), progress=False)
        figures = figures_of(table, result)
        summary = result.summary
        facts |= {"seconds": summary["seconds"], "steps": summary["step"], "data": summary["data"]}
        if not resumed:  # the time of a run that was suspended, or ran beside others, says little
            facts["cpu_seconds"] = round(time.process_time() - cpu, 3)
    return Entry(row.name, seed, form, fingerprint(row, form, table.options), figures, facts)


if __name__ == "__main__":
    sys.exit(serve(lambda request: vars(run(request))))
