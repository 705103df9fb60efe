"""Train two ordinary networks on the digits that come with the package, plain and with each idea.

    python examples/demo.py [--seeds 5] [--out demo.svg] [--json FILE]

- deep: a plain CNN of 12 layers without BatchNorm, 200 steps. With sphere layers it learns.
- few: an MLP on 100 digits. With the energy of its neurons in the loss, or with rotated neurons, it generalizes better.

All runs of a task start from the same weights and see the same batches. Each run is what
`hypersphere train examples/demo.py:NAME --seed N` does; NAME is one of the functions deep, deep_kaiming,
deep_sphere, few, few_energy and few_rotated. Beside the curves it writes a page about all runs, demo.html.
"""

import argparse
import json
import os
import signal
import statistics
import tempfile
import time
from itertools import product
from multiprocessing import get_context
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from torch import nn

import hypersphere as hs
from hypersphere.train import Config, Data, Energy, Model, Optimizer, Rotation, Schedule, derive

# ------------------------------------------------------------------------------------- two networks in plain PyTorch


class DeepCNN(hs.models.Network):
    """Twelve convolutions with 16 filters of 3×3, torch's own initial weights."""

    def __init__(
        self, num_classes: int = 10, in_channels: int = 1, depth: int = 12, width: int = 16, batch_norm: bool = False
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for i in range(depth):
            layers.append(nn.Conv2d(width if i else in_channels, width, 3, padding=1))
            layers += [nn.BatchNorm2d(width), nn.ReLU()] if batch_norm else [nn.ReLU()]
            if i in (depth // 3, 2 * depth // 3):
                layers.append(nn.MaxPool2d(2))
        self.layers = nn.Sequential(*layers, nn.Flatten())
        self.set_classifier(4 * width, num_classes)

    def forward_features(self, x):
        return self.layers(x)


class TwoLayers(hs.models.Network):
    """An MLP with two hidden layers of 128 neurons."""

    def __init__(self, num_classes: int = 10) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU())
        self.set_classifier(128, num_classes)

    def forward_features(self, x):
        return self.layers(x)


hs.models.register("deep_cnn", DeepCNN)
hs.models.register("two_layers", TwoLayers)


# ------------------------------------------------------------------------------------------------------ five recipes


def deep() -> Config:
    """Train a deep CNN without BatchNorm."""
    data, optimizer = Data(batch_size=128, validation=None), Optimizer("adam", lr=1e-3, weight_decay=0)
    config = Config(steps=200, eval_every=20, model=Model("deep_cnn"), data=data, optimizer=optimizer)
    return derive(config, schedule=Schedule("constant"))


def deep_kaiming() -> Config:
    """The same with Kaiming's initial weights."""
    return derive(deep(), {"model.init": "kaiming"})


def deep_sphere() -> Config:
    """The same with sphere layers."""
    return derive(deep(), {"model.similarity": "cosine"})


def few() -> Config:
    """Train an MLP on 100 digits; the other 1180 of the training set are held out."""
    data, optimizer = Data(validation=1180), Optimizer("sgd", lr=0.05, momentum=0.9, weight_decay=0)
    config = Config(steps=600, eval_every=60, model=Model("two_layers"), data=data, optimizer=optimizer)
    return derive(config, schedule=Schedule("cosine"))


def few_energy() -> Config:
    """The same with the energy of the neurons in the loss."""
    return derive(few(), energy=Energy())


def few_rotated() -> Config:
    """The same with fixed neurons and learned rotations."""
    return derive(few(), rotation=Rotation("cayley"))


TASKS = {
    "deep CNN, no BatchNorm": {"plain": deep, "Kaiming init": deep_kaiming, "sphere layers": deep_sphere},
    "MLP on 100 digits": {"plain": few, "energy": few_energy, "rotations": few_rotated},
}
Runs = dict[str, dict[str, list[dict]]]  # task -> method -> for each seed the summary of its run and its curve


# ------------------------------------------------------------------------------------------------- train and compare


def train(task: str, method: str, seed: int, steps: int | None, folder: str | None = None) -> dict:
    """Train once; return the summary with the accuracy at every evaluation."""
    import torch

    from hypersphere.train import fit

    torch.set_num_threads(1)  # one core per run
    config = derive(TASKS[task][method](), seed=seed, **({} if steps is None else {"steps": steps}))
    if folder is not None:
        config = derive(config, out=f"{folder}/{task}, {method}, seed {seed}", checkpoint_every=config.steps)
    result = fit(config, progress=False)
    curve = [(line.step, 100 * line.accuracy) for line in result.metrics if line.split == _watched(config)]
    return {**result.to_dict(), "curve": curve}


def _watched(config: Config) -> str:
    """Return the split that is evaluated during training."""
    return "test" if config.data.validation is None else "validation"


def train_all(console: Console, seeds: int, steps: int | None = None, folder: str | None = None) -> Runs:
    """Run all jobs in parallel on all cores; show a progress bar and one line per run."""
    jobs = [(task, method, seed) for task, methods in TASKS.items() for method, seed in product(methods, range(seeds))]
    runs: Runs = {task: {method: [] for method in methods} for task, methods in TASKS.items()}
    bar, ignore_sigint = Progress(console=console, disable=not console.is_terminal), (signal.SIGINT, signal.SIG_IGN)
    with bar, get_context("spawn").Pool(min(os.cpu_count() or 1, 8), signal.signal, ignore_sigint) as pool:
        pending = [(*job, pool.apply_async(train, (*job, steps, folder))) for job in jobs]
        for task, method, seed, result in bar.track(pending, description=f"{len(jobs)} runs"):
            run = result.get()
            runs[task][method].append(run)
            accuracy = f"{100 * run['accuracy']:5.1f} %  {run['seconds']:4.1f} s"
            console.print(f"{task}, {method}, seed {seed}".ljust(50), accuracy, soft_wrap=True)
    return runs


def mean_and_std(values: list[float], sign: str = "") -> str:
    spread = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):{sign}.1f}{spread}"


def make_table(runs: Runs) -> Table:
    count = len(next(iter(runs.values()))["plain"])
    table = Table(
        "task", "method", title=f"test accuracy, mean{' ± standard deviation' if count > 1 else ''} of {count} runs"
    )
    for column in ("accuracy %", "gain", "trained", "seconds"):
        table.add_column(column, justify="right")
    for task, methods in runs.items():
        for method, of_seeds in methods.items():
            pairs = zip(of_seeds, methods["plain"], strict=True)  # of the same weights and batches
            gains = [100 * (run["accuracy"] - plain["accuracy"]) for run, plain in pairs]
            table.add_row(
                task if method == "plain" else "",
                method,
                mean_and_std([100 * run["accuracy"] for run in of_seeds]),
                "" if method == "plain" else mean_and_std(gains, "+"),
                f"{of_seeds[0]['parameters']['trained']:,}",
                mean_and_std([run["seconds"] for run in of_seeds]),
                end_section=method == list(methods)[-1],
            )
    return table


def to_json(runs: Runs) -> str:
    """Return accuracies, seeds in order, and trained parameters, as the README's table is made of."""
    tree = {
        task: {
            method: {
                "accuracies": [round(100 * run["accuracy"], 4) for run in of_seeds],
                "trained": of_seeds[0]["parameters"]["trained"],
            }
            for method, of_seeds in methods.items()
        }
        for task, methods in runs.items()
    }
    return json.dumps(tree, indent=2) + "\n"


def draw_curves(runs: Runs) -> str:
    """Draw a panel a task: accuracy over steps, mean ± standard deviation."""
    from hypersphere.report import line_chart

    panels = []
    for i, (task, methods) in enumerate(runs.items()):
        series = {}
        for method, of_seeds in methods.items():
            columns = list(zip(*([value for _, value in run["curve"]] for run in of_seeds), strict=True))
            spread = [statistics.stdev(column) if len(column) > 1 else 0.0 for column in columns]
            steps = [step for step, _ in of_seeds[0]["curve"]]
            series[method] = (steps, [statistics.mean(column) for column in columns], spread)
        split = _watched(TASKS[task]["plain"]())
        chart = line_chart(series, title=task, xlabel="step", ylabel=f"{split} accuracy %", width=460, height=340)
        panels.append(chart.svg.replace("<svg ", f'<svg x="{460 * i}" y="0" ', 1))
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 920 340">\n{"".join(panels)}</svg>\n'


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5, help="number of runs of each (default: 5)")
    parser.add_argument("--out", type=Path, default=Path("demo.svg"), help="SVG file of the curves (default: demo.svg)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results to a JSON file as well")
    options = parser.parse_args()
    if options.seeds < 1:
        parser.error("--seeds must be at least 1")
    console, started = Console(highlight=False), time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        runs = train_all(console, options.seeds, folder=folder)

        from hypersphere.report import report_runs, write_text

        path = options.out.resolve()
        write_text(path, draw_curves(runs))
        page = path.with_suffix(".html")
        report_runs(sorted(Path(folder).iterdir()), html=page)
    if options.json is not None:
        write_text(options.json, to_json(runs))
    console.print(make_table(runs))
    console.print(f"{time.perf_counter() - started:.0f} seconds in total. Curves:", path, soft_wrap=True)
    console.print("Page about the runs:", page, soft_wrap=True)
    console.print("Run one of them: .venv/bin/hypersphere train examples/demo.py:few_rotated", soft_wrap=True)


if __name__ == "__main__":
    main()
