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

SETTINGS = {  # name -> (filters of the first layers, BatchNorm)
    "narrow": (8, False),
    "narrow + BatchNorm": (8, True),
    "wide": (32, False),
    "wide + BatchNorm": (32, True),
}
LAYERS, SEEDS = ("ordinary", "sphere"), (0, 1, 2)
STEPS, EVERY = 200, 10  # steps of a run; the test accuracy is taken after every tenth
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
    learn, test = train_test_split(range(len(labels)), train_size=10 * BATCH, stratify=labels, random_state=0)
    return images[learn], labels[learn], images[test], labels[test]


def make_network(width: int, batch_norm: bool) -> nn.Module:
    def block(channels: int, filters: int) -> list[nn.Module]:
        norm = [nn.BatchNorm2d(filters)] if batch_norm else []
        return [nn.Conv2d(channels, filters, 3, padding=1), *norm, nn.ReLU()]

    first = [*block(1, width), *block(width, width), nn.MaxPool2d(2)]
    second = [*block(width, 2 * width), *block(2 * width, 2 * width), nn.MaxPool2d(2)]
    return nn.Sequential(*first, *second, nn.Flatten(), nn.Linear(8 * width, 10))


def batches(count: int, seed: int) -> Iterator[Tensor]:
    order = torch.Generator().manual_seed(seed)
    while True:
        yield from torch.randperm(count, generator=order).split(BATCH)


def train(setting: str, layers: str, seed: int, steps: int = STEPS) -> Run:
    torch.set_num_threads(1)  # runs share the cores, a core each
    torch.manual_seed(seed)
    network = make_network(*SETTINGS[setting])
    if layers == "sphere":
        hs.spherize(network)  # all but the last layer, which gives the logits
    optimizer = torch.optim.Adam(network.parameters(), lr=LEARNING_RATE)
    images, labels, test_images, test_labels = digits()
    curve, started = [], time.perf_counter()
    for step, batch in zip(range(1, steps + 1), batches(len(images), seed), strict=False):
        network.train()
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
    jobs = list(product(SETTINGS, LAYERS, seeds))
    workers = min(os.cpu_count() or 1, len(jobs))
    with (
        Progress(console=console, disable=not console.is_terminal) as progress,
        ProcessPoolExecutor(workers, get_context("spawn")) as pool,
    ):
        bar = progress.add_task(f"{len(jobs)} runs, {workers} at a time", total=len(jobs))
        futures = {job: pool.submit(train, *job, steps) for job in reversed(jobs)}  # the long ones first
        names = {future: "{}, {}, seed {}".format(*job) for job, future in futures.items()}
        for future in as_completed(names):
            run = future.result()
            console.print(f"{names[future]:36} {run.accuracy:5.1f} % in {run.seconds:4.1f} s", highlight=False)
            progress.advance(bar)
    return {pair: [futures[*pair, seed].result() for seed in seeds] for pair in product(SETTINGS, LAYERS)}


def values(runs: list[Run], measure: str) -> tuple[list[float], float, float]:
    """What the runs have of a measure, its mean and its standard deviation."""
    found = [value for run in runs if (value := getattr(run, measure)) is not None]
    return found, mean(found) if found else 0.0, stdev(found) if len(found) > 1 else 0.0


def make_table(results: Results) -> Table:
    table = Table(title=f"{STEPS} steps of Adam at {LEARNING_RATE:g}; mean ± standard deviation of {len(SEEDS)} seeds")
    for heading in ("setting", "layers", *MEASURES.values()):
        table.add_column(heading, justify="right" if heading in MEASURES.values() else "left")
    for (setting, layers), runs in results.items():
        row = []
        for measure in MEASURES:
            found, average, spread = values(runs, measure)
            some = f" ({len(found)} of {len(runs)})" if len(found) < len(runs) else ""
            row.append(f"{average:.1f} ± {spread:.1f}{some}" if found else "never")
        table.add_row(setting, layers, *row, end_section=layers == LAYERS[-1])
    return table


def reading(results: Results) -> Iterator[str]:
    """What the table says; a difference counts when it is larger than both standard deviations together."""
    for measure, heading in MEASURES.items():
        groups: dict[str, list[str]] = {}
        for setting in SETTINGS:
            (found, ordinary, spread), (others, sphere, more) = (values(results[setting, x], measure) for x in LAYERS)
            if len(found) + len(others) < sum(len(results[setting, x]) for x in LAYERS):
                word = "not always reached"
            elif abs(sphere - ordinary) <= spread + more:
                word = "no clear difference"
            else:
                word = "higher with sphere layers" if sphere > ordinary else "lower with sphere layers"
            groups.setdefault(word, []).append(setting)
        yield f"{heading}: " + "; ".join(f"{word}: {', '.join(names)}" for word, names in groups.items())


def picture(results: Results, width: int = 460, height: int = 320) -> str:
    """A panel for each setting: mean test accuracy, the band is one standard deviation."""
    panels = []
    for i, setting in enumerate(SETTINGS):
        curves = {layers: list(zip(*(run.curve for run in results[setting, layers]), strict=True)) for layers in LAYERS}
        series = {}
        for layers, points in curves.items():
            spreads = [stdev(point) if len(point) > 1 else 0.0 for point in points]
            series[layers] = ([EVERY * (k + 1) for k in range(len(points))], [mean(p) for p in points], spreads)
        chart = line_chart(
            series, title=setting, xlabel="step", ylabel="test accuracy %", ylim=(0, 100), width=width, height=height
        )
        panels.append(chart.replace("<svg ", f'<svg x="{i % 2 * width}" y="{i // 2 * height}" ', 1))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{2 * width}" height="{2 * height}">\n{"".join(panels)}</svg>\n'
    )


def main() -> None:
    console = Console()
    started = time.perf_counter()
    results = train_all(console)
    console.print(make_table(results), *reading(results), sep="\n", highlight=False)
    path = Path("demo.svg").resolve()
    path.write_text(picture(results), encoding="utf-8")
    console.print(f"{time.perf_counter() - started:.0f} seconds in all; the curves are in {path}", highlight=False)


if __name__ == "__main__":
    main()
