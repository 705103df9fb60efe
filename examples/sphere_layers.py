"""Compare a small CNN with ordinary and with sphere layers on scikit-learn's handwritten digits.

Four settings, three seeds each. Both networks of a setting start from the same weights, see the same batches, and have
the same optimizer, learning rate and softmax loss. The paper (SphereNet, Liu et al. 2017, 4.2 and 5) finds that the
gain grows with width, and that narrow networks may end slightly lower.

It needs more than the package: `pip install 'torch-hypersphere[cli]' scikit-learn`.
"""

import math
import os
import signal
import time
from itertools import product
from multiprocessing import get_context
from pathlib import Path

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

import hypersphere as hs
from hypersphere.report import line_chart, write_text

# (filters of the first layers, BatchNorm)
SETTINGS = {"narrow": (8, False), "narrow + BN": (8, True), "wide": (24, False), "wide + BN": (24, True)}
LAYERS, SEEDS = ("ordinary", "sphere"), (0, 1, 2)
STEPS, EVERY = 200, 10  # steps per run; test after every tenth
BATCH, LEARNING_RATE = 128, 1e-3
GOAL = 95.0  # % test accuracy
MEASURES = ACCURACY, SPEED, SECONDS = "test accuracy %", f"steps to {GOAL:g} %", "seconds"
Results = dict[tuple[str, str], list[dict]]  # (setting, layers) -> for each seed a run: its measures and its curve


def digits() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Load images (N, 1, 8, 8) and labels (N,): 1280 for training, the other 517 for testing."""
    data = load_digits()
    images = torch.tensor(data.images / 16, dtype=torch.float32).unsqueeze(1)
    labels = torch.tensor(data.target, dtype=torch.int64)
    train_rows, test_rows = train_test_split(range(len(labels)), train_size=1280, stratify=labels, random_state=0)
    return images[train_rows], labels[train_rows], images[test_rows], labels[test_rows]


def make_network(width: int, batch_norm: bool) -> nn.Module:
    def block(channels: int, filters: int) -> list[nn.Module]:
        norm = [nn.BatchNorm2d(filters)] if batch_norm else []
        return [nn.Conv2d(channels, filters, 3, padding=1), *norm, nn.ReLU()]

    first = [*block(1, width), *block(width, width), nn.MaxPool2d(2)]
    second = [*block(width, 2 * width), *block(2 * width, 2 * width), nn.MaxPool2d(2)]
    return nn.Sequential(*first, *second, nn.Flatten(), nn.Linear(8 * width, 10))


def train(setting: str, layers: str, seed: int, steps: int = STEPS) -> dict:
    torch.set_num_threads(1)  # one core per run
    torch.manual_seed(seed)
    network = make_network(*SETTINGS[setting]).to(memory_format=torch.channels_last)  # faster
    if layers == "sphere":
        hs.spherize(network, scale=None)  # as in the paper; all but the last layer
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
    steps_to_goal = next((EVERY * i for i, accuracy in enumerate(curve, 1) if accuracy >= GOAL), math.inf)
    return {"curve": curve, ACCURACY: curve[-1], SPEED: steps_to_goal, SECONDS: time.perf_counter() - started}


def train_all(console: Console, seeds: tuple[int, ...] = SEEDS, steps: int = STEPS) -> Results:
    """Run all jobs in parallel on all cores; show a progress bar and one line per run."""
    jobs, runs = list(product(SETTINGS, LAYERS, seeds)), {}
    bar, ignore_sigint = Progress(console=console, disable=not console.is_terminal), (signal.SIGINT, signal.SIG_IGN)
    with bar, get_context("spawn").Pool(min(os.cpu_count() or 1, 8), signal.signal, ignore_sigint) as pool:
        pending = {job: pool.apply_async(train, (*job, steps)) for job in reversed(jobs)}  # the long ones first
        for job, result in bar.track(pending.items(), description=f"{len(jobs)} runs"):
            runs[job] = run = result.get()
            name = "{}, {}, seed {}".format(*job)
            console.print(f"{name:30} {run[ACCURACY]:5.1f} % in {run[SECONDS]:4.1f} s")
    return {pair: [runs[*pair, seed] for seed in seeds] for pair in product(SETTINGS, LAYERS)}


def summary(runs: list[dict], measure: str) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation over seeds; infinite if a run never reached the goal."""
    values = torch.tensor([run[measure] for run in runs], dtype=torch.float64)
    return values.mean(0), values.std(0)


def make_table(results: Results) -> Table:
    table = Table("setting", "layers", title="mean ± standard deviation over seeds (BN: BatchNorm)")
    for measure in MEASURES:
        table.add_column(measure, justify="right")
    for (setting, layers), runs in results.items():
        cells = []
        for measure in MEASURES:
            reached = sum(math.isfinite(run[measure]) for run in runs)
            text = "{:.1f} ± {:.1f}".format(*summary(runs, measure))
            cells.append(text if reached == len(runs) else f"in {reached} of {len(runs)} runs" if reached else "never")
        table.add_row(setting, layers, *cells, end_section=layers == LAYERS[-1])
    return table


def draw_curves(results: Results) -> str:
    """Draw a panel for each setting: mean test accuracy ± standard deviation."""
    options, panels = {"xlabel": "step", "ylabel": ACCURACY, "ylim": (0, 100), "width": 460, "height": 320}, []
    for i, setting in enumerate(SETTINGS):
        curves = {layers: summary(results[setting, layers], "curve") for layers in LAYERS}
        series = {layers: (EVERY * torch.arange(1, len(y) + 1), y, spread) for layers, (y, spread) in curves.items()}
        chart = line_chart(series, title=setting, **options)
        panels.append(chart.svg.replace("<svg ", f'<svg x="{i % 2 * 460}" y="{i // 2 * 320}" ', 1))
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 920 640">\n{"".join(panels)}</svg>\n'


def main() -> None:
    console, started = Console(highlight=False), time.perf_counter()
    results = train_all(console)
    path = Path("sphere_layers.svg").resolve()
    write_text(path, draw_curves(results))
    console.print(make_table(results))
    console.print(f"{time.perf_counter() - started:.0f} seconds in total. Curves:", path, soft_wrap=True)


if __name__ == "__main__":
    main()
