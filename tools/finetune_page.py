"""The measured part of docs/finetuning.md and its pictures, made from results/finetune_minilm.json by `make tables`."""

import json
from pathlib import Path
from typing import Any

from hypersphere.papers.reproduce.statistics import SIGNIFICANT, mean_and_deviation, welch
from hypersphere.report import dot_plot, line_chart

FILE = Path("results", "finetune_minilm.json")
PICTURES = Path("pictures", "finetuning")
NAMES = {"rotation": "rotation", "lora": "LoRA", "full": "full fine-tuning", "probe": "output layer only"}
PAGE, MARKER = "finetuning.md", "finetune_minilm"

Runs = list[dict[str, Any]]


def best_rate(result: dict[str, Any], method: str) -> float | None:
    """The rate that was best on validation with the first seed; of equals, the lowest. None before all were tried."""
    tuned = [run for run in result["runs"] if run["method"] == method and run["seed"] == result["seeds"][0]]
    if len(tuned) < len(result["candidates"][method]):
        return None
    return float(min(tuned, key=lambda run: (-run["validation"], run["lr"]))["lr"])


def final_runs(result: dict[str, Any]) -> dict[str, Runs]:
    """The runs of each method at its best rate, one a seed."""
    rates = {method: best_rate(result, method) for method in NAMES}
    finals = {}
    for method, rate in rates.items():
        if rate is not None:
            trained = [run for run in result["runs"] if (run["method"], run["lr"]) == (method, rate)]
            finals[method] = [*{run["seed"]: run for run in trained}.values()]  # a seed that was run twice counts once
    return finals


def markdown(result: dict[str, Any]) -> str:
    """Task, table, comparison and pictures."""
    finals = final_runs(result)
    text = _task(result) + _table(result, finals) + _comparison(finals) + _tuning(result)
    missing = [NAMES[name] for name in NAMES if len(finals.get(name, [])) < len(result["seeds"])]
    if missing:
        text += f"Not all runs are finished; fewer than {len(result['seeds'])} seeds: {', '.join(missing)}.\n\n"
    titles = {"accuracy": "Test accuracy of each method", "trade": "Accuracy against forgetting"}
    for name, title in titles.items():
        if name != "accuracy" or finals:
            text += f"![{title}]({PICTURES / name}.svg)\n\n"
    return text


def _task(result: dict[str, Any]) -> str:
    settings, speeches = result["settings"], result["speeches"]
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    minutes = sum(run["seconds"] for run in result["runs"]) / 60
    rates, seed = len(result["candidates"]["lora"]), result["seeds"][0]
    return (
        f"The task: which of {len(result['speakers'])} speakers of tinyshakespeare says a speech, from its first "
        f"{settings['tokens']} tokens. {speeches['train']} speeches to learn from, {speeches['validation']} to choose "
        f"the learning rate, {speeches['test']} for the test, split by a hash of the text. All methods have the same "
        f"output layer, Adam with a linear decay, {settings['steps']} steps of {settings['batch']} speeches, and "
        f"{rates} learning rates tried with seed {seed}. Rotations: blocks of {settings['block_size']}, "
        f"`scaled={settings['scaled']}`. LoRA: rank {settings['lora_rank']}, alpha {settings['lora_alpha']}, of PEFT, "
        f"in the same layers. {versions}; {result['threads']} thread, {minutes:.0f} core-minutes of steps.\n\n"
    )


def _table(result: dict[str, Any], finals: dict[str, Runs]) -> str:
    if not finals:
        return ""
    text = "| method | learning rate | parameters | test accuracy | forgetting | ms a step | MB kept | seeds |\n"
    text += "|---|---|---|---|---|---|---|---|\n"
    for method, runs in finals.items():
        rate = f"{runs[0]['lr']:g}" if runs[0]["lr"] else "-"
        cells = [
            f"{runs[0]['parameters']:,}",
            _mean([100 * run["test"] for run in runs], ".1f") + " %",
            _mean([run["forgetting"] for run in runs], ".3f"),
            f"{1000 * min(run['seconds_per_step'] for run in runs):.0f}",
            f"{runs[0]['kept_mb']:.0f}",
            str(len(runs)),
        ]
        text += f"| {NAMES[method]} | {rate} | {' | '.join(cells)} |\n"
    return text + (
        "\nForgetting is the mean absolute change of the cosine similarities of all pairs of a fixed set of sentences"
        " (`SENTENCES` in the script). "
        "Parameters are the trained ones without the output layer. A step's time is CPU time, the least median of the "
        "runs, on a machine that did other work too. MB kept is what the forward pass keeps for the "
        "backward pass, without the model's own tensors. ± is the standard deviation over seeds, which differ in the "
        "order of the speeches, dropout and LoRA's start.\n\n"
    )


def _mean(values: list[float], form: str) -> str:
    mean, deviation = mean_and_deviation(values)
    return f"{mean:{form}}" + ("" if deviation is None else f" ± {deviation:{form}}")


def _comparison(finals: dict[str, Runs]) -> str:
    lines = []
    for other in ("lora", "full", "probe"):
        if "rotation" not in finals or other not in finals:
            continue
        for key, word, scale, unit in (("test", "accuracy", 100, " points"), ("forgetting", "forgetting", 1, "")):
            ours, theirs = ([scale * run[key] for run in finals[name]] for name in ("rotation", other))
            p = welch(ours, theirs)
            difference = mean_and_deviation(ours)[0] - mean_and_deviation(theirs)[0]
            shown = f"{difference:+.1f}{unit}" if unit else f"{difference:+.3f}"
            if p is None:
                verdict = "one seed cannot decide"
            else:
                verdict = f"{'a difference' if p < SIGNIFICANT else 'a tie'} (p = {p:.2g})"
            lines.append(f"- {word}, rotation against {NAMES[other]}: {shown}, {verdict}\n")
    if not lines:
        return ""
    return (
        f"By Welch's t-test over the seeds, at p < {SIGNIFICANT}; a tie means that these seeds do not decide, not "
        "that the methods are equal:\n\n"
        + "".join(lines)
        + "\nA larger learning rate learns and forgets more, and each method is "
        "shown at the rate that was best for accuracy. The lines of the second picture compare the trade.\n\n"
    )


def _tuning(result: dict[str, Any]) -> str:
    text = "Validation accuracy and forgetting of all learning rates that were tried:\n\n"
    text += "| method | " + " | ".join(["learning rate: accuracy, forgetting"] * len(result["candidates"]["lora"]))
    text += " |\n|---" + "|---" * len(result["candidates"]["lora"]) + "|\n"
    for method, rates in result["candidates"].items():
        if method == "probe":
            continue
        cells = []
        for rate in rates:
            run = _tuned(result, method, rate)
            cells.append(f"{rate:g}: {100 * run['validation']:.1f} %, {run['forgetting']:.3f}" if run else "-")
        text += f"| {NAMES[method]} | {' | '.join(cells)} |\n"
    edges = [
        NAMES[method]
        for method, rates in result["candidates"].items()
        if len(rates) > 1 and best_rate(result, method) in (rates[0], rates[-1])
    ]
    if edges:
        text += f"\nThe best rate is the first or the last that was tried for: {', '.join(edges)}.\n"
    return text + "\n"


def _tuned(result: dict[str, Any], method: str, rate: float) -> dict[str, Any] | None:
    wanted = (method, rate, result["seeds"][0])
    return next((run for run in result["runs"] if (run["method"], run["lr"], run["seed"]) == wanted), None)


def pictures(result: dict[str, Any]) -> dict[str, str]:
    """Name → SVG."""
    rows = []
    for method, runs in final_runs(result).items():
        mean, deviation = mean_and_deviation([100 * run["test"] for run in runs])
        validation = mean_and_deviation([100 * run["validation"] for run in runs])[0]
        rows.append((NAMES[method], validation, mean, deviation))
    lines = {}
    probe = _tuned(result, "probe", result["candidates"]["probe"][0])
    least = probe["validation"] if probe else 0.0
    for method, rates in result["candidates"].items():
        tried = [run for rate in rates if (run := _tuned(result, method, rate)) is not None]
        better = [run for run in tried if method == "probe" or run["validation"] > least]  # others broke the network
        if better:
            lines[NAMES[method]] = (
                [run["forgetting"] for run in better],
                [100 * run["validation"] for run in better],
            )
    labels = {"xlabel": "forgetting: mean change of similarities", "ylabel": "validation accuracy, %"}
    charts = {"trade": line_chart(lines, title="Learning rates that did better than the output layer alone", **labels)}
    if rows:
        charts["accuracy"] = dot_plot(rows, names=("validation", "test"), title="Who speaks?", xlabel="accuracy, %")
    return {name: chart.svg for name, chart in charts.items()}


def generated(root: Path) -> dict[str, str]:
    """The text for the page's markers, under :data:`MARKER`, and the pictures by their path below docs/."""
    if not (root / FILE).exists():
        return {}
    result = json.loads((root / FILE).read_text(encoding="utf-8"))
    drawn = {f"{PICTURES / name}.svg": svg for name, svg in pictures(result).items()}
    return {MARKER: markdown(result), **drawn}
