"""The same small CNN with ordinary and with sphere layers, on scikit-learn's handwritten digits: which learns faster?

Four settings (narrow or wide, with or without BatchNorm), three seeds each. In a setting both networks start from the
same weights, see the same batches, and are trained with the same optimizer and learning rate. What comes out is shown
as it is: SphereNet (Liu et al., 2017, section 5) itself expects gains from wide networks and slightly lower accuracy
from narrow ones. Run it with `make demo`.
"""

import copy
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, stdev

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
    "narrow, BatchNorm": (8, True),
    "wide": (32, False),
    "wide, BatchNorm": (32, True),
}
SEEDS = (0, 1, 2)
STEPS, EVERY = 200, 10  # steps of a run; the test accuracy is taken after every tenth
BATCH, LEARNING_RATE = 128, 1e-3
GOAL = 95.0  # % test accuracy


@dataclass
class Result:
    """The runs of one network in one setting, one entry a seed."""

    curves: list[list[float]] = field(default_factory=list)  # % test accuracy after EVERY, 2·EVERY, ... steps
    seconds: list[float] = field(default_factory=list)

    @property
    def final(self) -> list[float]:
        return [curve[-1] for curve in self.curves]

    @property
    def steps_to_goal(self) -> list[int]:
        """Of the runs that get there."""
        reached = [[i for i, accuracy in enumerate(curve, 1) if accuracy >= GOAL] for curve in self.curves]
        return [EVERY * first[0] for first in reached if first]


def digits() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """1280 images to learn from, 517 to test on: inputs and labels of both."""
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


def make_pair(width: int, batch_norm: bool, seed: int) -> dict[str, nn.Module]:
    """The two networks that are compared; they start from the same weights, and both end in a plain Linear."""
    torch.manual_seed(seed)
    ordinary = make_network(width, batch_norm)
    return {"ordinary": ordinary, "sphere": hs.spherize(copy.deepcopy(ordinary))}


def train(network: nn.Module, data: tuple[Tensor, ...], seed: int, steps: int = STEPS) -> Iterator[float]:
    """Train, and yield the test accuracy in % after every EVERY steps."""
    images, labels, test_images, test_labels = data
    order = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(network.parameters(), lr=LEARNING_RATE)
    step = 0
    while step < steps:
        for batch in torch.randperm(len(images), generator=order).split(BATCH):
            network.train()
            loss = F.cross_entropy(network(images[batch]), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % EVERY == 0:
                network.eval()
                with torch.no_grad():
                    correct = network(test_images).argmax(1) == test_labels
                yield 100 * correct.float().mean().item()
            if step == steps:
                return


def spread(values: list[float]) -> float:
    return stdev(values) if len(values) > 1 else 0.0


def table(results: dict[str, dict[str, Result]]) -> Table:
    """One row for every setting and network; ± is the standard deviation over seeds."""
    shown = Table("setting", "layers", title=f"digits, {len(SEEDS)} seeds, {STEPS} steps of Adam at {LEARNING_RATE:g}")
    for heading in ("test accuracy %", f"steps to {GOAL:g} %", "seconds a run"):
        shown.add_column(heading, justify="right")
    for setting, pair in results.items():
        for layers, result in pair.items():
            reached, runs = result.steps_to_goal, len(result.curves)
            steps = f"{mean(reached):.0f} ± {spread(reached):.0f}" if reached else "never"
            steps += f" ({len(reached)} of {runs} runs)" if 0 < len(reached) < runs else ""
            accuracy = f"{mean(result.final):.1f} ± {spread(result.final):.1f}"
            shown.add_row(setting, layers, accuracy, steps, f"{mean(result.seconds):.1f}")
        shown.add_section()
    return shown


def reading(results: dict[str, dict[str, Result]]) -> list[str]:
    """What the table says about sphere layers; a difference counts when it is larger than both spreads together."""

    def compared(measure: str, more: str, less: str) -> str:
        groups: dict[str, list[str]] = {more: [], less: [], "no clear difference": []}
        for setting, pair in results.items():
            a, b = getattr(pair["ordinary"], measure), getattr(pair["sphere"], measure)
            if not a or not b:  # nobody reached the goal: never is later than any step
                groups[less if b else more if a else "no clear difference"].append(setting)
            elif abs(mean(a) - mean(b)) > spread(a) + spread(b):
                groups[more if mean(b) > mean(a) else less].append(setting)
            else:
                groups["no clear difference"].append(setting)
        return "; ".join(f"{word} in {len(names)} ({', '.join(names)})" for word, names in groups.items() if names)

    pairs = results.values()
    cost = [mean(pair["sphere"].seconds) / mean(pair["ordinary"].seconds) for pair in pairs]
    return [
        f"Sphere layers, steps to {GOAL:g} %: {compared('steps_to_goal', 'more', 'fewer')}.",
        f"Sphere layers, test accuracy: {compared('final', 'higher', 'lower')}.",
        f"Sphere layers, time of a run: {min(cost):.1f} to {max(cost):.1f} times that of ordinary layers.",
    ]
