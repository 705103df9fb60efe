"""The measured part of docs/layers.md about depth and its picture, made from results/depth.json by `make tables`."""

from __future__ import annotations

import math
import statistics
from pathlib import Path
from typing import Any

from tools import accuracy_by_depth as tool

from hypersphere.papers.reproduce.statistics import mean_and_deviation
from hypersphere.report import line_chart

PAGE, MARKER = "layers.md", "depth"
PICTURE = Path("pictures", "accuracy_by_depth.svg")
Run = dict[str, Any]


def generated(root: Path) -> dict[str, str]:
    """Return the picture by name and the text of the page under :data:`MARKER`; nothing before all runs are there."""
    runs = tool.load(root)
    done = {tool.identity(run) for run in runs}
    if not runs or any(tool.identity(run) not in done for run in tool.trials() + tool.finals(runs)):
        return {}
    return {MARKER: text(runs), str(PICTURE): chart(runs)}


def text(runs: list[Run]) -> str:
    return (
        "CNNs of 16 filters of 3 × 3 without shortcuts, with two pools, on the 1797 digits that come with the package: "
        "100 steps of 32 images, Adam with warm-up and a cosine schedule. Sphere layers have the default scale and, as "
        "in the package's own networks, Kaiming's start with biases of zero. Each start had "
        f"{len(tool.RATES[tool.DEPTHS[0]])} learning rates at each depth, tried with seed 0; the best on held-out "
        f"digits, in parentheses, was run with {len(tool.SEEDS)} seeds (`python -m tools.accuracy_by_depth`). Test "
        f"accuracy, mean ± standard deviation; the best of a depth is bold:\n\n{depth_table(runs)}\n"
        f"![Test accuracy over the number of convolutions]({PICTURE})\n\n"
        "The mean cosine between the features of two different digits before training, the inputs of the last "
        f"layer:\n\n{cosines_table(runs)}\n"
        f"Six convolutions with S-Softmax and SGD (momentum 0.9), {len(tool.SGD_SEEDS)} seeds; validation accuracy "
        f"over the learning rate:\n\n{rates_table(runs)}"
    )


def final(runs: list[Run]) -> dict[tuple[str, int], list[float]]:
    """Return (start, depth) -> the test accuracy of every seed at the chosen rate."""
    return {
        (name, depth): [run["accuracy"] for run in runs if tool.identity(run)[:4] == ("depth", name, depth, lr)]
        for (name, depth), lr in tool.best_rates(runs).items()
    }


def chart(runs: list[Run]) -> str:
    """Draw mean ± standard deviation over the depth."""
    accuracies = final(runs)
    series = {}
    for name in tool.STARTS:
        columns = [accuracies[name, depth] for depth in tool.DEPTHS]
        means = [statistics.mean(column) for column in columns]
        series[name] = ([*tool.DEPTHS], means, [statistics.stdev(column) for column in columns])
    return line_chart(
        series,
        title="How deep a CNN can be",
        xlabel="convolutions",
        ylabel="test accuracy %",
        ylim=(0, 100),
        log="x",
    ).svg


def depth_table(runs: list[Run]) -> str:
    """Return test accuracies, and the chosen rate in small print, by start and depth."""
    accuracies, rates = final(runs), tool.best_rates(runs)
    lines = ["| convolutions | " + " | ".join(map(str, tool.DEPTHS)) + " |", "|---|" + "---|" * len(tool.DEPTHS)]
    means = {key: statistics.mean(values) for key, values in accuracies.items()}
    for name in tool.STARTS:
        cells = []
        for depth in tool.DEPTHS:
            value = spread(accuracies[name, depth])
            best = max(means[other, depth] for other in tool.STARTS)
            cells.append((f"**{value}**" if means[name, depth] == best else value) + f" ({rates[name, depth]:g})")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def cosines_table(runs: list[Run]) -> str:
    lines = ["| convolutions | " + " | ".join(map(str, tool.DEPTHS)) + " |", "|---|" + "---|" * len(tool.DEPTHS)]
    cosines = {(run["name"], run["depth"]): run["cosine"] for run in runs if run["part"] == "start"}
    for name in tool.STARTS:
        lines.append(f"| {name} | " + " | ".join(f"{cosines[name, depth]:.3f}" for depth in tool.DEPTHS) + " |")
    return "\n".join(lines) + "\n"


def rates_table(runs: list[Run]) -> str:
    """Return the validation accuracies of six sphere convolutions with S-Softmax over the learning rate."""
    lines = ["| learning rate of SGD | " + " | ".join(f"{lr:g}" for lr in tool.SGD_RATES) + " |"]
    lines.append("|---|" + "---|" * len(tool.SGD_RATES))
    for name in tool.VARIANTS:
        cells = []
        for lr in tool.SGD_RATES:
            found = [run["validation"] for run in runs if tool.identity(run)[:4] == ("rates", name, tool.DEPTHS[0], lr)]
            cells.append(spread(found))
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def spread(values: list[float]) -> str:
    mean, deviation = mean_and_deviation(values)
    return f"{mean:.1f}" if deviation is None or math.isnan(deviation) else f"{mean:.1f} ± {deviation:.1f}"
