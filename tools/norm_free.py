"""Train what "What it shows" of docs/optimizers.md is made of: a Transformer without norms under five optimizers.

    HYPERSPHERE_DATA=... python -m tools.norm_free [--jobs 2] [--seeds 5]

Runs are processes of one thread; finished ones are kept in results/optimizers.json, so an interrupted call continues.
About 19 minutes on two cores.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import torch
from tools import norm_free_runs as runs

from hypersphere._internal.safe_files import write_text

FILE = Path(__file__).parents[1] / "results" / "optimizers.json"
METHODS = ("AdamW", "Muon", "AdamH", "MuonH", "Pion")
RATES = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
FIRST = (0.03, 0.1, 0.3, 0.01, 1.0, 0.003, 0.001)  # in the order in which they are tried
SOME_RATES, GATED_RATES = RATES[1:6], RATES[2:5]
SEEDS = 5
STEPS = {4: 200, 8: 200, 16: 200, 64: 40}  # by layers
KEPT = {  # with norm layers, so that large rates train
    **dict.fromkeys(("Pion", "Pion, series"), (0.03, 0.1, 0.3, 1.0)),
    **dict.fromkeys(("Pion, input", "MuonH", "AdamH"), (0.03,)),
    "Muon": (0.01,),
    "AdamW": (0.003,),
}
HEADS, HEADS_LR, HEADS_STEPS, HEADS_SEEDS = ("Pion", "Pion, heads"), 0.03, 600, 3
WIDTHS = (64, 256, 1024)
MLP_STEPS, MLP_RATES = 30, {method: RATES[1:5] if method.startswith("Muon") else RATES[:4] for method in METHODS[:4]}
RECIPES = {  # the learning rates that are tried: of all parameters, or of the matrices alone
    **dict.fromkeys(("text_adamw", "text_adamh", "text_ngpt", "text_poet"), RATES[:5]),
    **dict.fromkeys(("text_muon", "text_muonh", "text_pion"), RATES[1:6]),
}
RECIPE_STEPS, RECIPE_SEEDS = 200, 3
Task = dict[str, Any]


def tasks(seeds: int) -> tuple[list[Task], list[Task]]:
    """Return the runs before and after those of :func:`chosen`, the most telling first."""

    def rates(seed: int, part: str = "rates", tried: tuple[float, ...] = FIRST) -> list[Task]:
        return [network(part, method, 8, lr, seed) for lr in tried for method in METHODS]

    def network(part: str, method: str, depth: int, lr: float, seed: int) -> Task:
        return {"part": part, "method": method, "depth": depth, "lr": lr, "seed": seed, "steps": STEPS[depth]}

    kept = [network("kept", method, 4, lr, 0) for method, rates in KEPT.items() for lr in rates]
    depth = {
        layers: [network("depth", method, layers, lr, 0) for lr in SOME_RATES[1:] for method in METHODS]
        for layers in (16, 64)
    }
    width = [
        {"part": "width", "method": method, "width": width, "lr": lr, "seed": 0, "steps": MLP_STEPS}
        for width in WIDTHS
        for method, rates in MLP_RATES.items()
        for lr in rates
    ]
    normed = [network("normed", method, 8, lr, 0) for lr in RATES[2:5] for method in METHODS]
    heads = [
        network("heads", method, 4, HEADS_LR, seed) | {"steps": HEADS_STEPS}
        for seed in range(HEADS_SEEDS)
        for method in HEADS
    ]
    recipes = [recipe(name, lr, 0) for name, rates in RECIPES.items() for lr in rates]
    later = [task for seed in range(3, seeds) for task in rates(seed)]
    first = [*rates(0), *rates(1), *kept, *rates(0, "swiglu", GATED_RATES), *rates(1, "swiglu", GATED_RATES)]
    return [*first, *rates(2), *recipes], [*depth[16], *width, *depth[64], *later, *normed, *heads]


def recipe(name: str, lr: float, seed: int) -> Task:
    return {"part": "recipes", "method": name, "lr": lr, "seed": seed, "steps": RECIPE_STEPS}


def chosen(rows: list[Task]) -> list[Task]:
    """Return the runs of each recipe at its best rate on validation with the other seeds, once all were tried."""
    finals = []
    for name, rates in RECIPES.items():
        tried = [row for row in rows if row["part"] == "recipes" and row["method"] == name and row["seed"] == 0]
        trained = [row for row in tried if row["loss"] is not None]
        if len(tried) == len(rates) and trained:
            best = min(trained, key=lambda row: row["loss"])["lr"]
            finals += [recipe(name, best, seed) for seed in range(1, RECIPE_SEEDS)]
    return finals


def key(row: Task) -> tuple[Any, ...]:
    """Return what tells a run from others."""
    return tuple(row.get(name) for name in ("part", "method", "depth", "width", "lr", "seed", "steps"))


def run(task: Task) -> Task:
    """Train one task in a worker."""
    torch.set_num_threads(1)
    if task["part"] == "width":
        result = runs.train_mlp(task["method"], task["width"], task["lr"], task["seed"], task["steps"])
    elif task["part"] == "recipes":
        result = runs.train_recipe(task["method"], task["lr"], task["seed"], task["steps"])
    else:
        result = runs.train(**task)
    return task | result


def load() -> list[Task]:
    return json.loads(FILE.read_text())["runs"] if FILE.exists() else []


def save(rows: list[Task]) -> None:
    """Write the results, one line a run, in an order that does not depend on who finished first."""
    rows = sorted(rows, key=lambda row: [str(value) for value in key(row)])
    machine = {"python": platform.python_version(), "torch": torch.__version__, "cores": os.cpu_count()}
    lines = ",\n".join(json.dumps(row) for row in rows)
    write_text(FILE, f'{{"machine": {json.dumps(machine)}, "runs": [\n{lines}\n]}}\n')


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="worker processes")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="seeds of the first part")
    options = parser.parse_args()
    rows, (before, after) = load(), tasks(options.seeds)
    with ProcessPoolExecutor(options.jobs) as pool:
        for wanted in (lambda: before, lambda: chosen(rows), lambda: after):
            done = {key(row) for row in rows}
            todo = [task for task in wanted() if key(task) not in done]
            futures = [pool.submit(run, task) for task in todo]
            for number, future in enumerate(as_completed(futures), 1):
                if future.exception() is not None:
                    pool.shutdown(cancel_futures=True)
                row = future.result()
                rows.append(row)
                save(rows)
                said = {name: value for name, value in row.items() if name not in ("trace", "steps")}
                print(f"{number} of {len(todo)}: {said}", flush=True)


if __name__ == "__main__":
    main()
