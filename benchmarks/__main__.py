"""Run benchmarks, print the results with their goals, and save them as JSON."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Column, Table

from . import (
    adapters,
    classes,
    data,
    embeddings,
    energy,
    inspection,
    layers,
    losses,
    memory,
    optimizers,
    report,
    rotation,
    train,
)
from .measure import Measurement, Plan, quiet_process

BENCHMARKS: dict[str, Callable[[Plan], Iterator[Measurement]]] = {
    "data": data.measurements,
    "layers": layers.measurements,
    "losses": losses.measurements,
    "classes": classes.measurements,
    "memory": memory.measurements,
    "energy": energy.measurements,
    "embeddings": embeddings.measurements,
    "inspection": inspection.measurements,
    "report": report.measurements,
    "rotation": rotation.measurements,
    "rotation_layers": rotation.layer_measurements,
    "adapters": adapters.measurements,
    "optimizers": optimizers.measurements,
    "train": train.measurements,
}
RESULTS = Path(__file__).parent / "results"
PACKAGES = ("torch", "torch-hypersphere", "pytorch-metric-learning", "geotorch")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=f"one of {', '.join(BENCHMARKS)}; default: all")
    parser.add_argument(
        "--json", type=Path, metavar="FOLDER", help="folder for <name>.json (default: benchmarks/results)"
    )
    parser.add_argument("--quick", action="store_true", help="smoke test: one round, no torch.compile, nothing saved")
    options = parser.parse_args(arguments)
    unknown = set(options.names) - set(BENCHMARKS)
    if unknown:
        parser.error(f"name must be one of {', '.join(BENCHMARKS)}; got {', '.join(sorted(unknown))}")
    folder = options.json or (None if options.quick else RESULTS)
    plan = Plan(rounds=1, warmup=0, compile=False) if options.quick else Plan()
    for name in options.names or BENCHMARKS:
        torch.manual_seed(0)
        with quiet_process():
            measurements = list(BENCHMARKS[name](plan))
        show(measurements)
        if folder is not None:
            save(measurements, plan, folder / f"{name}.json")


def show(measurements: Iterable[Measurement], console: Console | None = None) -> None:
    """Print a table for each case: a row per contestant, a column per measurement."""
    console = console or Console(width=None if sys.stdout.isatty() else 120)
    for case in dict.fromkeys(measurement.case for measurement in measurements):
        here = {
            (measurement.contestant, measurement.name): measurement
            for measurement in measurements
            if measurement.case == case
        }
        columns = list(dict.fromkeys(name for _, name in here))
        table = Table(Column(no_wrap=True), *columns, title=case, min_width=len(case))
        for contestant in dict.fromkeys(contestant for contestant, _ in here):
            table.add_row(contestant, *(_format_cell(here.get((contestant, name))) for name in columns))
        console.print(table)
    missed = [measurement for measurement in measurements if meets_goal(measurement) is False]
    goals = sum(measurement.goal is not None for measurement in measurements)
    console.print(f"{goals - len(missed)} of {goals} goals met")


def save(measurements: Iterable[Measurement], plan: Plan, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    record = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": describe_machine(),
        "versions": {"python": platform.python_version()} | {package: version(package) for package in PACKAGES},
        "plan": asdict(plan),
        "measurements": [asdict(measurement) | {"met": meets_goal(measurement)} for measurement in measurements],
    }
    path.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")


def describe_machine() -> dict[str, Any]:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return {
        "cpu": models[0] if models else platform.processor(),
        "cores": os.cpu_count(),
        "threads": 1,
        "platform": platform.platform(),
    }


def meets_goal(measurement: Measurement) -> bool | None:
    return None if measurement.goal is None else measurement.value <= measurement.goal


def _format_cell(measurement: Measurement | None) -> str:
    if measurement is None:
        return ""
    text = f"{measurement.value:.4g}"
    return (
        text
        if measurement.goal is None
        else f"[{'green' if meets_goal(measurement) else 'red'}]{text}[/] ≤ {measurement.goal:.4g}"
    )


if __name__ == "__main__":
    main()
