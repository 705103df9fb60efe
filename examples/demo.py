"""One small network, four ways to train it, on the digits that come with the package: plain, SphereNet, MHE and OPT.

    python examples/demo.py [--seeds 5] [--epochs N] [--out demo.svg]

Each is a recipe (`hypersphere list recipes`), and each run is what `hypersphere train RECIPE --seed N` does. All start
from the same weights, see the same batches and differ in what the recipe says. What comes out is shown as it is.
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
    """One run: its summary with the test accuracy and the energy of the hidden layers after every epoch."""
    import torch

    from hypersphere.train import fit

    torch.set_num_threads(1)  # a core for every run
    config = derive(recipes.load(recipe), seed=seed, **({} if epochs is None else {"epochs": epochs}))
    result = fit(config, progress=False)
    tests = [line for line in result.metrics if line["split"] == "test"]
    looks = [line for line in result.metrics if "energies" in line]  # the start too
    return {
        **result.summary,
        "accuracies": [(line["step"], 100 * line["accuracy"]) for line in tests],
        "hidden energies": [(line["step"], _hidden(line["energies"])) for line in looks],
    }


def _hidden(energies: dict[str, float]) -> float:
    """The mean over the hidden layers; the classifier, which is the last, is learned by all four alike."""
    return statistics.mean(list(energies.values())[:-1])


def train_all(console: Console, seeds: int, epochs: int | None) -> Runs:
    """Every run, as many at a time as there are cores; a bar on a terminal, and a line for each run."""
    jobs = list(product(NAMES, range(seeds)))
    runs: Runs = {name: [] for name in NAMES}
    bar, deaf = Progress(console=console, disable=not console.is_terminal), (signal.SIGINT, signal.SIG_IGN)
    with bar, get_context("spawn").Pool(min(os.cpu_count() or 1, 8), signal.signal, deaf) as pool:
        pending = [(*job, pool.apply_async(train, (*job, epochs))) for job in jobs]
        for name, seed, result in bar.track(pending, description=f"{len(jobs)} runs"):
            run = result.get()
            runs[name].append(run)
            accuracy, energy = 100 * run["accuracy"], run["hidden energies"][-1][1]
            line = f"{NAMES[name]:9} seed {seed}  {accuracy:5.1f} %  energy {energy:.4f}  {run['seconds']:5.1f} s"
            console.print(line)
    return runs


def over_seeds(values: list[float], digits: int) -> str:
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
            over_seeds([100 * run["accuracy"] for run in of_seeds], 1),
            over_seeds([run["hidden energies"][-1][1] for run in of_seeds], 4),
            f"{of_seeds[0]['parameters']['trained']:,}",
            over_seeds([run["seconds"] for run in of_seeds], 1),
        )
    return table


def picture(runs: Runs) -> str:
    """Two panels by step, mean and a band of one standard deviation: test accuracy, energy of the hidden layers."""
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
    parser.add_argument("--seeds", type=int, default=5, help="runs of each recipe (5)")
    parser.add_argument("--epochs", type=int, help="length of a run (the recipe's)")
    parser.add_argument("--out", type=Path, default=Path("demo.svg"), help="the picture (demo.svg)")
    options = parser.parse_args()
    if options.seeds < 1 or (options.epochs is not None and options.epochs < 1):
        parser.error("--seeds and --epochs must be at least 1")
    console, started = Console(highlight=False), time.perf_counter()
    runs = train_all(console, options.seeds, options.epochs)

    from hypersphere.report import write_text

    path = options.out.resolve()
    write_text(path, picture(runs))
    console.print(make_table(runs))
    console.print(f"{time.perf_counter() - started:.0f} seconds in all. The curves are in", path, soft_wrap=True)
    console.print("One of them by itself: .venv/bin/hypersphere train spherenet", soft_wrap=True)


if __name__ == "__main__":
    main()
