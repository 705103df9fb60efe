"""Train two kinds of networks on the digits that come with the package, plain and with each idea.

    python examples/demo.py [--seeds 5] [--out demo.svg] [--json FILE]

- deep: CNNs of 6 to 48 convolutions without shortcuts, one seed. The angle is a nonlinearity of its own: sphere layers
  without ReLU train where ReLUs no longer do, and need no BatchNorm.
- few: an MLP on 100 digits. With the energy of its neurons in the loss, or with rotated neurons, it generalizes better.

Each run is what `hypersphere train examples/demo.py:NAME --seed N` does; NAME is one of the functions deep_kaiming,
deep_batch_norm, deep_batch_norm_only, deep_sphere, few, few_energy and few_rotated. Beside the picture it writes a page
about all runs, demo.html.
"""

import argparse
import json
import os
import signal
import statistics
import tempfile
import time
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
    """Convolutions with 16 filters of 3×3, torch's own initial weights."""

    def __init__(
        self, num_classes: int = 10, in_channels: int = 1, depth: int = 12, batch_norm: bool = False, relu: bool = True
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for i in range(depth):
            layers.append(nn.Conv2d(16 if i else in_channels, 16, 3, padding=1))
            layers += [nn.BatchNorm2d(16)] if batch_norm else []
            layers += [nn.ReLU()] if relu else []
            if i in (depth // 3, 2 * depth // 3):
                layers.append(nn.MaxPool2d(2))
        self.layers = nn.Sequential(*layers, nn.Flatten())
        self.set_classifier(4 * 16, num_classes)

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


# ----------------------------------------------------------------------------------------------------------- recipes

DEPTHS = (6, 12, 24, 48)


def deep(depth: int, rate: float, **model) -> Config:
    """Train a CNN of so many convolutions; `model` says how they start."""
    data, optimizer = Data(batch_size=32, validation=256), Optimizer("adam", lr=rate, weight_decay=0)
    config = Config(steps=100, eval_every=100, log_every=10, model=Model("deep_cnn", depth=depth, **model), data=data)
    return derive(config, optimizer=optimizer, schedule=Schedule("cosine", warmup=10))


# The learning rates were the best of four on held-out digits, for each start and depth: tools/accuracy_by_depth.py.
def deep_kaiming(depth: int = 48) -> Config:
    """Train a deep CNN with ReLU from Kaiming's initial weights."""
    rates = {6: 0.01, 12: 0.002, 24: 5e-4, 48: 1e-4}
    return deep(depth, rates[depth], init="kaiming")


def deep_batch_norm(depth: int = 48) -> Config:
    """Train a deep CNN with BatchNorm and ReLU."""
    rates = {6: 0.01, 12: 0.01, 24: 0.002, 48: 0.01}
    return deep(depth, rates[depth], batch_norm=True)


def deep_batch_norm_only(depth: int = 48) -> Config:
    """Train a deep CNN with BatchNorm and without ReLU."""
    rates = {6: 0.04, 12: 0.01, 24: 5e-4, 48: 5e-4}
    return deep(depth, rates[depth], batch_norm=True, relu=False)


def deep_sphere(depth: int = 48) -> Config:
    """Train a deep CNN of sphere layers, without BatchNorm and without ReLU."""
    rates = {6: 0.04, 12: 0.01, 24: 0.002, 48: 5e-4}
    return deep(depth, rates[depth], init="kaiming", similarity="cosine", relu=False)


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


DEEP = {
    "Kaiming's start": deep_kaiming,
    "BatchNorm": deep_batch_norm,
    "BatchNorm, no ReLU": deep_batch_norm_only,
    "sphere layers, no ReLU": deep_sphere,
}
FEW = {"plain": few, "energy": few_energy, "rotations": few_rotated}
Runs = dict[tuple[str, int], dict]  # (start, depth) or (method, seed) -> the summary of a run and its curve


def name_of(job: tuple[str, int]) -> str:
    """Return the name of a run; runs of one method differ in the seed."""
    first, number = job
    return f"{first}, {number} convolutions" if first in DEEP else f"MLP, {first}, seed {number}"


# ------------------------------------------------------------------------------------------------- train and compare


def train(config: Config) -> dict:
    """Train once; return the summary with the validation accuracy at every evaluation."""
    import torch

    from hypersphere.train import fit

    torch.set_num_threads(1)  # one core per run
    result = fit(config, progress=False)
    curve = [(line.step, 100 * line.accuracy) for line in result.metrics if line.split == "validation"]
    return {**result.to_dict(), "curve": curve}


def train_all(console: Console, seeds: int, steps: int | None = None, folder: str | None = None) -> tuple[Runs, Runs]:
    """Run all jobs in parallel on all cores; show a progress bar and one line per run."""
    deepest_first = DEPTHS[::-1]
    deep = {(start, depth): recipe(depth) for depth in deepest_first for start, recipe in DEEP.items()}
    few = {(method, seed): derive(recipe(), seed=seed) for method, recipe in FEW.items() for seed in range(seeds)}
    bar, ignore_sigint = Progress(console=console, disable=not console.is_terminal), (signal.SIGINT, signal.SIG_IGN)
    with bar, get_context("spawn").Pool(min(os.cpu_count() or 1, 8), signal.signal, ignore_sigint) as pool:
        pending, runs = {}, {}
        for job, config in (deep | few).items():
            config = config if steps is None else derive(config, steps=steps)
            if folder is not None:
                config = derive(config, out=f"{folder}/{name_of(job)}", checkpoint_every=config.steps)
            pending[job] = pool.apply_async(train, (config,))
        for job, result in bar.track(pending.items(), description=f"{len(pending)} runs"):
            runs[job] = run = result.get()
            accuracy = f"{100 * run['accuracy']:5.1f} %  {run['seconds']:4.1f} s"
            console.print(name_of(job).ljust(50), accuracy, soft_wrap=True)
    return {job: runs[job] for job in deep}, {job: runs[job] for job in few}


def mean_and_std(values: list[float], sign: str = "") -> str:
    spread = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):{sign}.1f}{spread}"


def make_deep_table(deep: Runs) -> Table:
    table = Table("convolutions", *map(str, DEPTHS), title="CNNs: test accuracy %, one seed")
    for start in DEEP:
        table.add_row(start, *(f"{100 * deep[start, depth]['accuracy']:.1f}" for depth in DEPTHS))
    return table


def by_method(few: Runs) -> dict[str, list[dict]]:
    """Return the runs of each method, seeds in order."""
    return {method: [run for (name, _), run in few.items() if name == method] for method, _ in few}


def make_table(few: Runs) -> Table:
    runs = by_method(few)
    count = len(runs["plain"])
    spread = " ± standard deviation" if count > 1 else ""
    table = Table("method", title=f"MLP on 100 digits: test accuracy, mean{spread} of {count} runs")
    for column in ("accuracy %", "gain", "trained", "seconds"):
        table.add_column(column, justify="right")
    for method, of_seeds in runs.items():
        pairs = zip(of_seeds, runs["plain"], strict=True)  # of the same weights and batches
        gains = [100 * (run["accuracy"] - plain["accuracy"]) for run, plain in pairs]
        table.add_row(
            method,
            mean_and_std([100 * run["accuracy"] for run in of_seeds]),
            "" if method == "plain" else mean_and_std(gains, "+"),
            f"{of_seeds[0]['parameters']['trained']:,}",
            mean_and_std([run["seconds"] for run in of_seeds]),
        )
    return table


def to_json(few: Runs) -> str:
    """Return accuracies, seeds in order, and trained parameters, as the README's table is made of."""
    methods = {
        method: {
            "accuracies": [round(100 * run["accuracy"], 4) for run in of_seeds],
            "trained": of_seeds[0]["parameters"]["trained"],
        }
        for method, of_seeds in by_method(few).items()
    }
    return json.dumps({"MLP on 100 digits": methods}, indent=2) + "\n"


def draw(deep: Runs, few: Runs) -> str:
    """Draw accuracy over depth beside accuracy over steps, mean ± standard deviation."""
    from hypersphere.report import line_chart

    depths = {start: (DEPTHS, [100 * deep[start, depth]["accuracy"] for depth in DEPTHS]) for start in DEEP}
    curves = {}
    for method, of_seeds in by_method(few).items():
        columns = list(zip(*([value for _, value in run["curve"]] for run in of_seeds), strict=True))
        spread = [statistics.stdev(column) if len(column) > 1 else 0.0 for column in columns]
        steps = [step for step, _ in of_seeds[0]["curve"]]
        curves[method] = (steps, [statistics.mean(column) for column in columns], spread)
    size = {"width": 460, "plot_height": 220}
    left = line_chart(
        depths, title="CNNs", xlabel="convolutions", ylabel="test accuracy %", ylim=(0, 100), log="x", **size
    )
    right = line_chart(curves, title="MLP on 100 digits", xlabel="step", ylabel="validation accuracy %", **size)
    panels = [chart.svg.replace("<svg ", f'<svg x="{460 * i}" y="0" ', 1) for i, chart in enumerate((left, right))]
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 920 410">\n{"".join(panels)}</svg>\n'


def write_page(few: Runs, folder: str | Path, path: Path) -> None:
    """Write the report of all runs, the MLPs first: they then have the colours of the picture in every chart."""
    from hypersphere.report.run_files import group_runs, read_runs
    from hypersphere.report.run_page import build_page

    jobs = [*few] + [(start, depth) for start in DEEP for depth in DEPTHS]
    page = build_page(group_runs(read_runs([f"{folder}/{name_of(job)}" for job in jobs])))
    page.title = "Deep CNNs, and an MLP on 100 digits"
    what = "CNNs without shortcuts, by depth and start; an MLP, plain, with the energy in the loss, and with rotations."
    page.lead = f"Handwritten digits. {what} {page.lead}"
    page.write(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5, help="number of runs of each MLP (default: 5)")
    parser.add_argument("--out", type=Path, default=Path("demo.svg"), help="SVG file that is drawn (default: demo.svg)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the MLPs' results to a JSON file as well")
    options = parser.parse_args()
    if options.seeds < 1:
        parser.error("--seeds must be at least 1")
    console, started = Console(highlight=False), time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        deep, few = train_all(console, options.seeds, folder=folder)

        from hypersphere.report import write_text

        path = options.out.resolve()
        write_text(path, draw(deep, few))
        page = path.with_suffix(".html")
        write_page(few, folder, page)
    if options.json is not None:
        write_text(options.json, to_json(few))
    console.print(make_deep_table(deep))
    console.print(make_table(few))
    console.print(f"{time.perf_counter() - started:.0f} seconds in total. Picture:", path, soft_wrap=True)
    console.print("Page about the runs:", page, soft_wrap=True)
    console.print("Run one of them: .venv/bin/hypersphere train examples/demo.py:few_rotated", soft_wrap=True)


if __name__ == "__main__":
    main()
