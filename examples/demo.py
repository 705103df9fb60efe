"""Train one small network in four ways on the digits that come with the package: plain, SphereNet, MHE and OPT.

    python examples/demo.py [--seeds 5] [--epochs N] [--out demo.svg]

Each is a recipe (`hypersphere list recipes`), and each run is what `hypersphere train RECIPE --seed N` does. All start
from the same weights and see the same batches; only the recipes differ.
"""

import argparse
import os
import signal
import statistics
import time
from itertools import product
from multiprocessing import get_context
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from hypersphere import recipes
from hypersphere.train import derive

NAMES = {"plain": "plain", "spherenet": "SphereNet", "mhe": "MHE", "opt": "OPT"}
Runs = dict[str, list[dict]]  # recipe -> for each seed the summary of its run, and its curves


def train(recipe: str, seed: int, epochs: int | None) -> dict:
    """Train once; return the summary with test accuracy and energy of the hidden layers after every epoch."""
    import torch

    from hypersphere.train import fit

    torch.set_num_threads(1)  # one core per run
    config = derive(recipes.load(recipe), seed=seed, **({} if epochs is None else {"epochs": epochs}))
    result = fit(config, progress=False)
    tests = [line for line in result.metrics if line["split"] == "test"]
    energies_lines = [line for line in result.metrics if "energies" in line]  # with the start
    return {
        **result.summary,
        "accuracies": [(line["step"], 100 * line["accuracy"]) for line in tests],
        "hidden energies": [(line["step"], _mean_hidden(line["energies"])) for line in energies_lines],
    }


def _mean_hidden(energies: dict[str, float]) -> float:
    """Compute the mean over the hidden layers; the last layer is the classifier."""
    return statistics.mean(list(energies.values())[:-1])


def train_all(console: Console, seeds: int, epochs: int | None) -> Runs:
    """Run all jobs in parallel on all cores; show a progress bar and one line per run."""
    jobs = list(product(NAMES, range(seeds)))
    runs: Runs = {name: [] for name in NAMES}
    bar, ignore_sigint = Progress(console=console, disable=not console.is_terminal), (signal.SIGINT, signal.SIG_IGN)
    with bar, get_context("spawn").Pool(min(os.cpu_count() or 1, 8), signal.signal, ignore_sigint) as pool:
        pending = [(*job, pool.apply_async(train, (*job, epochs))) for job in jobs]
        for name, seed, result in bar.track(pending, description=f"{len(jobs)} runs"):
            run = result.get()
            runs[name].append(run)
            accuracy, energy = 100 * run["accuracy"], run["hidden energies"][-1][1]
            line = f"{NAMES[name]:9} seed {seed}  {accuracy:5.1f} %  energy {energy:.4f}  {run['seconds']:5.1f} s"
            console.print(line)
    return runs


def mean_and_std(values: list[float], digits: int) -> str:
    spread = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.{digits}f}{spread}"


def make_table(runs: Runs) -> Table:
    count = len(runs["plain"])
    table = Table("recipe", title=f"mean{' ± standard deviation' if count > 1 else ''} over {count} seeds")
    for column in ("test accuracy %", "energy of hidden layers", "parameters trained", "seconds"):
        table.add_column(column, justify="right")
    for name, of_seeds in runs.items():
        table.add_row(
            NAMES[name],
            mean_and_std([100 * run["accuracy"] for run in of_seeds], 1),
            mean_and_std([run["hidden energies"][-1][1] for run in of_seeds], 4),
            f"{of_seeds[0]['parameters']['trained']:,}",
            mean_and_std([run["seconds"] for run in of_seeds], 1),
        )
    return table


def draw_curves(runs: Runs) -> str:
    """Draw two panels over steps, mean ± standard deviation: test accuracy, energy of the hidden layers."""
    from hypersphere.report import line_chart

    panels = []
    for i, (key, label) in enumerate((("accuracies", "test accuracy %"), ("hidden energies", "energy, hidden layers"))):
        series = {}
        for name, of_seeds in runs.items():
            steps = [step for step, _ in of_seeds[0][key]]
            columns = list(zip(*([value for _, value in run[key]] for run in of_seeds), strict=True))
            spread = [statistics.stdev(column) if len(column) > 1 else 0.0 for column in columns]
            series[NAMES[name]] = (steps, [statistics.mean(column) for column in columns], spread)
        chart = line_chart(series, title=label, xlabel="step", ylabel=label, width=460, height=340)
        panels.append(chart.replace("<svg ", f'<svg x="{460 * i}" y="0" ', 1))
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 920 340">\n{"".join(panels)}</svg>\n'


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5, help="number of runs per recipe (default: 5)")
    parser.add_argument("--epochs", type=int, help="epochs per run (default: the recipe's)")
    parser.add_argument("--out", type=Path, default=Path("demo.svg"), help="SVG file of the curves (default: demo.svg)")
    options = parser.parse_args()
    if options.seeds < 1 or (options.epochs is not None and options.epochs < 1):
        parser.error("--seeds and --epochs must be at least 1")
    console, started = Console(highlight=False), time.perf_counter()
    runs = train_all(console, options.seeds, options.epochs)

    from hypersphere.report import write_text

    path = options.out.resolve()
    write_text(path, draw_curves(runs))
    console.print(make_table(runs))
    console.print(f"{time.perf_counter() - started:.0f} seconds in total. Curves:", path, soft_wrap=True)
    console.print("Run one of them: .venv/bin/hypersphere train spherenet", soft_wrap=True)


if __name__ == "__main__":
    main()
