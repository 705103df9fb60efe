"""The measured part of docs/optimizers.md and its pictures, made from results/optimizers.json by `make tables`."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

from tools.norm_free import (
    HEADS,
    HEADS_LR,
    KEPT,
    METHODS,
    MLP_RATES,
    RATES,
    RECIPE_SEEDS,
    RECIPES,
    SEEDS,
    SOME_RATES,
    STEPS,
    WIDTHS,
    chosen,
    key,
    tasks,
)

from hypersphere.papers.reproduce.statistics import SIGNIFICANT, mean_and_deviation, welch
from hypersphere.report import line_chart
from hypersphere.report.linechart import Mark

ROOT = Path(__file__).parents[1]
FILE = Path("results", "optimizers.json")
PAGE, MARKER = "optimizers.md", "norm_free"
PICTURES = Path("pictures", "optimizers")

Row = dict[str, Any]
Runs = list[Row]


def read(root: Path) -> Runs:
    """Return all runs; none before the first."""
    file = root / FILE
    return json.loads(file.read_text(encoding="utf-8"))["runs"] if file.exists() else []


def pick(runs: Runs, **wanted: Any) -> Runs:
    return [row for row in runs if all(row.get(name) == value for name, value in wanted.items())]


def losses(runs: Runs) -> list[float]:
    """Return the losses of the runs that did not diverge."""
    return [row["loss"] for row in runs if row["loss"] is not None]


def trained(runs: Runs, **wanted: Any) -> dict[float, list[float]]:
    """Return the losses at each rate at which every run trained."""
    tried = {lr: pick(runs, lr=lr, **wanted) for lr in RATES}
    return {lr: losses(rows) for lr, rows in tried.items() if rows and len(losses(rows)) == len(rows)}


def generated(root: Path) -> dict[str, str]:
    """Return the pictures by name and the text of the page under :data:`MARKER`."""
    runs = read(root)
    if not runs:
        return {}
    parts: list[Callable[[Runs], str]] = [rates, gated, normed, depths, kept, heads, widths, recipes]
    files = {MARKER: progress(runs) + "".join(part(runs) for part in parts)}
    files[f"{PICTURES / 'rates'}.svg"] = rates_chart(runs)
    if pick(runs, part="kept"):
        files[f"{PICTURES / 'kept'}.svg"] = kept_chart(runs)
    return files


def progress(runs: Runs) -> str:
    """Say how many runs are still to come."""
    before, after = tasks(SEEDS)
    planned = {key(task) for task in [*before, *chosen(runs), *after]}
    done = planned & {key(row) for row in runs}
    return f"So far {len(done)} of {len(planned)} runs are there.\n\n" if len(done) < len(planned) else ""


# Loss over the learning rate


def rates_chart(runs: Runs) -> str:
    """Draw the mean loss over the learning rate; a cross above the plot where a run diverged."""
    series, marks = {}, []
    for method in METHODS:
        points = trained(runs, part="rates", method=method)
        if points:
            means = [mean_and_deviation(points[lr]) for lr in points]
            series[method] = ([*points], [m for m, _ in means], [deviation or 0.0 for _, deviation in means])
        diverged = sorted({row["lr"] for row in pick(runs, part="rates", method=method) if row["loss"] is None})
        marks += [Mark(method, "diverged", lr, math.inf) for lr in diverged]
    return line_chart(
        series,
        title="A Transformer without norm layers",
        xlabel="learning rate of the matrices",
        ylabel="validation loss a character",
        xlim=(0.6 * RATES[0], 1.5 * RATES[-1]),
        log="x",
        marks=marks,
    ).svg


def rates(runs: Runs) -> str:
    own = pick(runs, part="rates")
    text = (
        "### A Transformer without norm layers\n\n"
        "`decoder` with `norm=False` and `gated=False`: 8 layers of width 64, 4 heads, rotary positions, MLPs with "
        "GELU, every branch times 1/4, matrices drawn from N(0, 1/inputs). It learns the characters of "
        f"tinyshakespeare in {STEPS[8]} steps of 8 × 64 characters, 20 of warm-up, linear decay, gradients clipped "
        "at 1. Embedding and output are stepped by AdamW at 0.003 in all runs; only the steps of the matrices differ, "
        "and all have the same seven rates. The loss is that of a character of text that was not trained on, the mean "
        f"over {counted(own)} ± the standard deviation. A run has diverged if its loss is not finite or above ln 65, "
        "that of guessing: a cross above the plot.\n\n"
        f"![Loss over the learning rate]({PICTURES / 'rates'}.svg)\n\n"
    )
    return text + table(own) + "\n" + verdict(own) + "\n"


def table(own: Runs) -> str:
    """Return the losses by method and rate."""
    used = [lr for lr in RATES if pick(own, lr=lr)]
    text = "| |" + "".join(f" {lr:g} |" for lr in used) + "\n|---|" + "---|" * len(used) + "\n"
    for method in METHODS:
        cells = [cell(pick(own, method=method, lr=lr)) for lr in used]
        text += f"| {method} | {' | '.join(cells)} |\n"
    return text


def gated(runs: Runs) -> str:
    own = pick(runs, part="swiglu")
    if not own:
        return ""
    largest = max(lr for method in METHODS for lr in trained(own, method=method))
    return (
        f"With SwiGLU in place of the MLP (`gated=True`, {counted(own)}) a branch grows as its input squared, and "
        "keeping norms is not enough: the largest rate at which a method trained with every seed is "
        f"{largest:g}.\n\n{table(own)}\n"
    )


def normed(runs: Runs) -> str:
    own = pick(runs, part="normed")
    if not own:
        return ""
    return f"With RMSNorm, and the MLP again, {counted(own)}:\n\n{table(own)}\n"


def counted(runs: Runs) -> str:
    """Return how many seeds there are, in words."""
    numbers = {len(pick(runs, method=row["method"], lr=row["lr"])) for row in runs}
    if numbers == {1}:
        return "one seed"
    return f"{min(numbers)} seeds" if len(numbers) == 1 else f"{min(numbers)} to {max(numbers)} seeds"


def cell(rows: Runs) -> str:
    """Return mean ± deviation of a cell of a table, or how many diverged."""
    good = losses(rows)
    if not rows:
        return ""
    if len(good) < len(rows):
        return f"{len(rows) - len(good)} of {len(rows)} diverged" if len(rows) > 1 else "diverged"
    return cell_of(good)


def verdict(own: Runs) -> str:
    """Say who trains over which range, and whose loss is the lowest, as the runs do."""
    lines, best = [], {}
    for method in METHODS:
        points = trained(own, method=method)
        tried = [lr for lr in RATES if pick(own, method=method, lr=lr)]
        if not points:
            continue
        lr = min(points, key=lambda rate: fmean(points[rate]))
        best[method] = points[lr]
        if len(points) == len(tried):
            share = f"at every rate tried: {len(tried)}, a range of {max(tried) / min(tried):.0f}"
        else:
            share = f"at {len(points)} of {len(tried)} rates"
        bad = [rate for rate in tried if rate not in points]
        where = f", diverges from {min(bad):g} on" if bad and min(bad) > max(points) else ""
        lines.append(f"- {method} trains {share}{where}; best {cell_of(points[lr])} at {lr:g}.\n")
    order = sorted(best, key=lambda method: fmean(best[method]))
    if len(order) > 1:
        p = welch(best[order[0]], best[order[1]])
        close = "one seed cannot decide" if p is None else "a difference" if p < SIGNIFICANT else "a tie"
        number = "" if p is None else f" (p = {p:.2g}, Welch's t-test over the seeds)"
        lines.append(f"- Lowest loss: {order[0]}, before {order[1]}: {close}{number}.\n")
    return "".join(lines)


def cell_of(values: list[float]) -> str:
    value, deviation = mean_and_deviation(values)
    return f"{value:.3f}" + ("" if deviation is None else f" ± {deviation:.3f}")


# Depth


def depths(runs: Runs) -> str:
    own = pick(runs, part="depth")
    if not own:
        return ""
    own += [row for row in pick(runs, part="rates", seed=0) if row["lr"] in SOME_RATES]
    text = "### Which depth and which rate\n\nWithout norm layers, one seed."
    if pick(own, depth=64):
        text += f" With 64 layers there are only {STEPS[64]} steps, so compare within a depth."
    text += "\n\n"
    used = [lr for lr in RATES if pick(own, lr=lr)]
    text += "| layers | |" + "".join(f" {lr:g} |" for lr in used) + "\n|---|---|" + "---|" * len(used) + "\n"
    for depth in sorted({row["depth"] for row in own}):
        for method in METHODS:
            cells = [cell(pick(own, method=method, lr=lr, depth=depth)) for lr in used]
            text += f"| {depth} | {method} | {' | '.join(cells)} |\n"
    return text + "\n"


# Singular values, norms and energy


def kept_chart(runs: Runs) -> str:
    """Draw the largest change of a singular value over the steps: the exact Pion and the truncated series."""
    series = {}
    for method, name in (("Pion", "exact"), ("Pion, series", "series")):
        for lr in KEPT[method]:
            for row in pick(runs, part="kept", method=method, lr=lr):
                if row.get("trace"):
                    steps = [point["step"] for point in row["trace"]]
                    series[f"{name}, lr {lr:g}"] = (steps, [max(point["singular"], 1e-9) for point in row["trace"]])
    return line_chart(
        series,
        title="Pion: exact steps against the truncated series",
        xlabel="step",
        ylabel="largest relative change of a singular value",
        log="y",
    ).svg


def kept(runs: Runs) -> str:
    own = pick(runs, part="kept")
    if not own:
        return ""
    depth = own[0]["depth"]
    text = (
        f"### What stays\n\nThe largest change over all matrices of `decoder` with RMSNorm and MLP, {depth} layers, "
        "otherwise as above, seed 0: singular values relative to the largest, Frobenius norms, energy of the "
        'neurons (s = 1). "Pion, series" has I + A + A²/2 in place of the exact rotation.\n\n'
        "| | rate | singular values | norm | energy | loss |\n|---|---|---|---|---|---|\n"
    )
    for method, tried in KEPT.items():
        for lr in tried:
            for row in pick(own, method=method, lr=lr):
                last = row["trace"][-1] if row.get("trace") else {}
                numbers = [f"{last[name]:.1e}" if last else "" for name in ("singular", "norm", "energy")]
                text += f"| {method} | {lr:g} | {' | '.join(numbers)} | {cell([row])} |\n"
    return text + f"\n![Singular values over training]({PICTURES / 'kept'}.svg)\n\n"


# Heads


def heads(runs: Runs) -> str:
    own = pick(runs, part="heads")
    if not own:
        return ""
    width, count = 768, 12
    few, more = (2 * parts * (triangle(width // split) + triangle(width)) for parts, split in ((3, 1), (36, 12)))
    text = (
        f"### Heads apart\n\n`decoder` with RMSNorm and MLP, 4 layers with 4 heads of 16, {own[0]['steps']} steps at "
        f"{HEADS_LR:g}, otherwise as above. With `param_groups(model, ..., split_heads=True)` every head of queries, "
        "keys and values is a matrix of its own; the difference is paired by seed.\n\n"
        "| | loss | heads apart | difference |\n|---|---|---|---|\n"
    )
    together, apart = ({row["seed"]: row["loss"] for row in pick(own, method=m)} for m in HEADS)
    changes = [apart[seed] - loss for seed, loss in together.items()]
    cells = (cell(pick(own, method=m)) for m in HEADS)
    text += f"| Pion | {' | '.join(cells)} | {cell_of(changes)} |\n"
    return text + (
        f"\nPion then has a rotation of all inputs for every head: with {count} heads in width {width} its moments of "
        f"queries, keys and values are {more / 1e6:.0f} million numbers instead of {few / 1e6:.1f}, and a step solves "
        f"{count} times as many systems of that size. So it is off unless you ask for it. By Muon it was better after "
        "300 of such steps and worse after 600.\n\n"
    )


def triangle(size: int) -> int:
    return size * (size - 1) // 2


# One rate for all widths


def widths(runs: Runs) -> str:
    own = pick(runs, part="width")
    if not own:
        return ""
    steps = own[0]["steps"]
    text = (
        f"### The best rate over widths\n\nAn MLP 784-w-w-10 on MNIST, {steps} steps of 128 images, one seed, four "
        "rates each; the loss on 2,000 test images at the best rate, and at the rate that is best for width 64.\n\n"
        "| |"
        + "".join(f" width {w}: best rate | loss | at the rate of 64 |" for w in WIDTHS)
        + "\n|---|"
        + "---|" * (3 * len(WIDTHS))
        + "\n"
    )
    for method in MLP_RATES:
        cells, narrow = [], None
        for width in WIDTHS:
            points = {
                row["lr"]: row["loss"] for row in pick(own, method=method, width=width) if row["loss"] is not None
            }
            lr = min(points, key=lambda rate: points[rate]) if points else None
            narrow = lr if narrow is None else narrow
            at = points.get(narrow) if narrow else None
            cells += [f"{lr:g}" if lr else "", f"{points[lr]:.3f}" if lr else "", "" if at is None else f"{at:.3f}"]
        text += f"| {method} | {' | '.join(cells)} |\n"
    keeps = [m for m in ("Muon", "MuonH") if keeps_rate(own, m)]
    if "Muon" in keeps:
        text += "\nPlain Muon keeps its rate over these widths: this is Muon's merit, not Hyperball's.\n"
    return text + "\n"


def keeps_rate(own: Runs, method: str) -> bool:
    """Whether the best rate of a method is the same for all widths."""
    best = set()
    for width in WIDTHS:
        rows = [row for row in pick(own, method=method, width=width) if row["loss"] is not None]
        best.add(min(rows, key=lambda row: row["loss"])["lr"] if rows else None)
    return len(best) == 1 and None not in best


# Recipes


def recipes(runs: Runs) -> str:
    own = pick(runs, part="recipes")
    if not own:
        return ""
    text = (
        f"### The recipes\n\n`decoder` with RMSNorm, or nGPT, 4 layers of width 64, {own[0]['steps']} steps of 4 × 128 "
        "characters. Each had five rates, tried with seed 0; the best on validation was run with "
        f"{RECIPE_SEEDS} seeds. The rate is that of the matrices; of all parameters for `text_adamw`, and for "
        "`text_adamh` and `text_ngpt`, whose embedding and output keep their norms too; of the "
        "rotations for `text_poet`.\n\n"
        "| recipe | best rate | validation loss | test loss | trained numbers | trials |\n|---|---|---|---|---|---|\n"
    )
    for name in RECIPES:
        tried = pick(own, method=name, seed=0)
        good = [row for row in tried if row["loss"] is not None]
        if not good:
            continue
        lr = min(good, key=lambda row: row["loss"])["lr"]
        rows = [row for row in pick(own, method=name, lr=lr) if row["loss"] is not None]
        test = cell_of([row["test"] for row in rows])
        text += f"| `{name}` | {lr:g} | {cell(rows)} | {test} | {rows[0]['trained']:,} | {len(tried)} |\n"
    return text + "\n"
