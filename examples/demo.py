"""The same small CNN with ordinary and with sphere layers, on scikit-learn's handwritten digits.

Four settings (narrow or wide, without or with BatchNorm), three seeds each. Both networks of a setting start from the
same weights, see the same batches, and have the same optimizer, learning rate and softmax loss. What comes out is shown
as it is: the paper (SphereNet, Liu et al. 2017, sections 4.2 and 5) itself finds that the gain comes with width and
that narrow networks may end slightly lower.
"""

import os
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from statistics import mean, stdev
from typing import NamedTuple

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

import hypersphere as hs
from hypersphere.report import line_chart

# filters of the first layers, BatchNorm
SETTINGS = {"narrow": (8, False), "narrow + BN": (8, True), "wide": (24, False), "wide + BN": (24, True)}
LAYERS, SEEDS = ("ordinary", "sphere"), (0, 1, 2)
STEPS, EVERY = 250, 10  # steps of a run; the test accuracy is taken after every tenth
BATCH, LEARNING_RATE = 128, 1e-3
GOAL = 95.0  # % test accuracy
MEASURES = {"accuracy": "test accuracy %", "steps": f"steps to {GOAL:g} %", "seconds": "seconds"}


class Run(NamedTuple):
    curve: list[float]  # % of the test images that are right after EVERY, 2·EVERY, ... steps
    accuracy: float  # its last
    steps: int | None  # to GOAL; None: never
    seconds: float


Results = dict[tuple[str, str], list[Run]]  # (setting, layers) -> a run for each seed


def digits() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Images (N, 1, 8, 8) and labels (N,): 1280 to learn from, then the other 517, to test on."""
    data = load_digits()
    images = torch.tensor(data.images / 16, dtype=torch.float32).unsqueeze(1)
    labels = torch.tensor(data.target, dtype=torch.int64)
    learn, test = train_test_split(range(len(labels)), train_size=1280, stratify=labels, random_state=0)
    return images[learn], labels[learn], images[test], labels[test]


def make_network(width: int, batch_norm: bool) -> nn.Module:
    def block(channels: int, filters: int) -> list[nn.Module]:
        norm = [nn.BatchNorm2d(filters)] if batch_norm else []
        return [nn.Conv2d(channels, filters, 3, padding=1), *norm, nn.ReLU()]

    first = [*block(1, width), *block(width, width), nn.MaxPool2d(2)]
    second = [*block(width, 2 * width), *block(2 * width, 2 * width), nn.MaxPool2d(2)]
    return nn.Sequential(*first, *second, nn.Flatten(), nn.Linear(8 * width, 10))


def train(setting: str, layers: str, seed: int, steps: int = STEPS) -> Run:
    torch.set_num_threads(1)  # a core for every run
    torch.manual_seed(seed)
    network = make_network(*SETTINGS[setting])
    if layers == "sphere":
        hs.spherize(network)  # all but the last layer, which gives the logits
    optimizer = torch.optim.Adam(network.parameters(), lr=LEARNING_RATE)
    images, labels, test_images, test_labels = digits()
    curve, started = [], time.perf_counter()
    for step in range(1, steps + 1):
        network.train()
        batch = torch.randperm(len(images))[:BATCH]
        loss = F.cross_entropy(network(images[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % EVERY == 0:
            network.eval()
            with torch.no_grad():
                correct = network(test_images).argmax(1) == test_labels
            curve.append(100 * correct.double().mean().item())
    reached = [EVERY * i for i, accuracy in enumerate(curve, 1) if accuracy >= GOAL]
    return Run(curve, curve[-1], reached[0] if reached else None, time.perf_counter() - started)


def train_all(console: Console, seeds: tuple[int, ...] = SEEDS, steps: int = STEPS) -> Results:
    jobs, workers = list(product(SETTINGS, LAYERS, seeds)), os.cpu_count() or 1
    with (
        Progress(console=console, disable=not console.is_terminal) as progress,
        ProcessPoolExecutor(workers, get_context("spawn")) as pool,
    ):
        bar = progress.add_task(f"{len(jobs)} runs, {workers} at a time", total=len(jobs))
        futures = {pool.submit(train, *job, steps): job for job in reversed(jobs)}  # the long ones first
        for future in as_completed(futures):
            (setting, layers, seed), run = futures[future], future.result()
            name = f"{setting}, {layers}, seed {seed}"
            console.print(f"{name:30} {run.accuracy:5.1f} % in {run.seconds:4.1f} s", highlight=False)
            progress.advance(bar)
    runs = {job: future.result() for future, job in futures.items()}
    return {pair: [runs[*pair, seed] for seed in seeds] for pair in product(SETTINGS, LAYERS)}


def summary(values: list[float]) -> tuple[float, float]:
    """Mean and standard deviation."""
    return mean(values), stdev(values) if len(values) > 1 else 0.0


def measured(runs: list[Run], measure: str) -> list[float]:
    return [value for run in runs if (value := getattr(run, measure)) is not None]


def make_table(results: Results) -> Table:
    table = Table("setting", "layers", *MEASURES.values(), title=f"{STEPS} steps of Adam, mean ± deviation over seeds")
    for (setting, layers), runs in results.items():
        cells = []
        for values in (measured(runs, measure) for measure in MEASURES):
            some = f" ({len(values)} of {len(runs)})" if len(values) < len(runs) else ""
            cells.append("{:.1f} ± {:.1f}".format(*summary(values)) + some if values else "never")
        table.add_row(setting, layers, *cells, end_section=layers == LAYERS[-1])
    return table


def reading(results: Results) -> Iterator[str]:
    """What the table says; a difference counts when it is larger than both deviations together."""
    for measure, heading in MEASURES.items():
        settings: dict[str, list[str]] = {}
        for setting in SETTINGS:
            ordinary, sphere = (measured(results[setting, layers], measure) for layers in LAYERS)
            if len(ordinary) + len(sphere) < 2 * len(results[setting, "sphere"]):
                verdict = "not reached by all"
            else:
                (a, spread_a), (b, spread_b) = summary(ordinary), summary(sphere)
                clear = "higher" if b > a else "lower"
                verdict = clear if abs(b - a) > spread_a + spread_b else "no clear difference"
            settings.setdefault(verdict, []).append(setting)
        verdicts = (f"{verdict} in {', '.join(names)}" for verdict, names in settings.items())
        yield f"{heading} with sphere layers: {'; '.join(verdicts)}."


def picture(results: Results, width: int = 460, height: int = 320) -> str:
    """A panel for each setting: the mean of the test accuracies, in a band of one deviation to each side."""
    panels = []
    for i, setting in enumerate(SETTINGS):
        series = {}
        for layers in LAYERS:
            curves = [run.curve for run in results[setting, layers]]
            averages, spreads = zip(*(summary(values) for values in zip(*curves, strict=True)), strict=True)
            series[layers] = (range(EVERY, EVERY * len(averages) + 1, EVERY), averages, spreads)
        names = {"title": setting, "xlabel": "step", "ylabel": "test accuracy %"}
        chart = line_chart(series, **names, ylim=(0, 100), width=width, height=height)
        panels.append(chart.replace("<svg ", f'<svg x="{i % 2 * width}" y="{i // 2 * height}" ', 1))
    size = f'width="{2 * width}" height="{2 * height}" viewBox="0 0 {2 * width} {2 * height}"'
    return "".join([f'<svg xmlns="http://www.w3.org/2000/svg" {size}>\n', *panels, "</svg>\n"])


def main() -> None:
    console, started, path = Console(), time.perf_counter(), Path("demo.svg").resolve()
    results = train_all(console)
    path.write_text(picture(results), encoding="utf-8")
    console.print(make_table(results), *reading(results), sep="\n", highlight=False)
    console.print(f"{time.perf_counter() - started:.0f} seconds in all. The curves: {path}", highlight=False)


if __name__ == "__main__":
    main()
