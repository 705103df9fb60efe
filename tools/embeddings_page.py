"""The tables of docs/embeddings.md: results of the benchmark, of tools.compare_evenness and of embed_minilm."""

import json
from pathlib import Path
from typing import Any

from tools import compare_evenness
from tools.compare_heads import SEEDS

from hypersphere.papers.reproduce.statistics import SIGNIFICANT, mean_and_deviation, welch

MINILM, MINILM_MARKER = "embed_minilm.json", "embed_minilm"
ROTATIONS = {None: "as it is", "none": "centred", "random": "rotated at random", "itq": "rotated by ITQ"}
BENCHMARK = "embeddings.json"
#: row of the table of codes → its contestant
CODES = {
    "signs as they are": "as is",
    "centred": "centred",
    "random rotation": "random rotation",
    "`fit_rotation`": "fit_rotation",
    '`fit_rotation(method="learned")`': "fit_rotation, learned",
    "faiss, `ITQMatrix`": "faiss ITQMatrix",
    "faiss, `OPQMatrix`, then signs": "faiss OPQMatrix",
    "`fit_rotation`, queries not coded": "fit_rotation, queries not coded",
    "faiss, OPQ and PQ of as many bytes, queries not coded": "faiss OPQ + PQ, as many bytes",
}
FIGURES = ("recall", "pairs", "recall_1bit", "rank")


Measured = dict[str, dict[tuple[str, str], float]]
"""case → (contestant, figure) → value"""


def generated(root: Path) -> dict[str, str]:
    """Return the text between each pair of markers."""
    texts = {f"evenness_{kind}": evenness(root, kind) for kind in ("labels", "views")}
    text = (root / "benchmarks" / "results" / BENCHMARK).read_text(encoding="utf-8")
    measured: Measured = {}
    for one in json.loads(text)["measurements"]:
        measured.setdefault(one["case"], {})[one["contestant"], one["name"]] = one["value"]
    texts |= {"embedding_codes": codes(measured), "embedding_costs": costs(measured)}
    return texts | {MINILM_MARKER: minilm(read(root, MINILM))}


def read(root: Path, name: str) -> dict[str, Any]:
    path = root / "results" / name
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def codes(measured: Measured) -> str:
    """Return the table of recall@10 with one bit, and of the seconds to fit, from 0.01 on."""
    cases = {case.removeprefix("1 bit a dimension: "): measured[case] for case in measured if case.startswith("1 bit")}
    lines = [f"| | {' | fit | '.join(cases)} | fit |", f"|---{'|---' * 2 * len(cases)}|"]
    for name, contestant in CODES.items():
        cells = [name]
        for values in cases.values():
            recall, seconds = (values.get((contestant, figure)) for figure in ("recall@10", "fit s"))
            cells += [
                "not run" if recall is None else f"{recall:.3f}",
                f"{seconds:.2g} s" if seconds and seconds >= 0.01 else "",
            ]
        lines.append(f"| {' | '.join(cells)} |".replace("|  |", "| |"))
    return "\n".join(lines) + "\n"


def costs(measured: Measured) -> str:
    """Return the table of time and memory of an inspection and of two losses."""
    lines = ["| | time | memory | beside |", "|---|---|---|---|"]
    for case, values in measured.items():
        if case.startswith("inspect "):
            lines.append(f"| {case} | {values['inspect', 's']:.0f} s | {values['inspect', 'GB']:.2f} GB with torch | |")
        for loss, peer in (("uniformity", "torch.pdist"), ("sigreg", "lightly")):
            if (loss, "ms") in values:
                ours, theirs = (cost(values, name) for name in (loss, peer))
                lines.append(f"| {case} | {' | '.join(ours)} | {peer}: {', '.join(theirs)} |")
    return "\n".join(lines) + "\n"


def cost(values: dict[tuple[str, str], float], contestant: str) -> list[str]:
    """Return the time and the memory of a contestant."""
    if (contestant, "ms") not in values:
        return ["not run"]
    ratio = values.get((contestant, "time / X·Xᵀ"))
    time = f"{values[contestant, 'ms'] / 1e3:.2g} s" + (f", {ratio:.1f} times X·Xᵀ" if ratio else "")
    return [time, f"{values[contestant, 'peak MB']:,.0f} MB"]


def evenness(root: Path, kind: str) -> str:
    """Return the table of a base loss: ↑ and ↓ where Welch's test tells a figure from that of "none"."""
    results = [read(root, compare_evenness.FILE.format(dataset, kind)) for dataset in ("lfw", "orl")]
    names = "recall@1 | pairs | 1 bit: recall@1 | rank"
    lines = [f"| added | LFW: {names} | ORL: {names} | weights |", f"|---{'|---' * 9}|"]
    seconds, comparisons = [], 0
    for name in compare_evenness.rows_of(kind):
        cells, weights = [name], []
        for entries in results:
            entry = entries.get(name, {"test": []})
            if len(entry["test"]) < len(SEEDS):
                cells += ["not run", "", "", ""]
                continue
            if entry["setting"]:
                seconds.append(entry["seconds"] / (len(entry["validation"]) + len(entry["test"])))
            weights.append(f"{entry['setting'].get('weight', 0):g}")
            for figure in FIGURES:
                values = [run[figure] for run in entry["test"]]
                mark = ""
                if name != "none" and figure != "rank":
                    mark = compared(values, [run[figure] for run in entries["none"]["test"]])
                    comparisons += 1
                cells.append(shown(values) + mark)
        cells.append("" if name in ("not trained", "none") else ", ".join(weights))
        lines.append(f"| {' | '.join(cells)} |".replace("|  |", "| |"))
    text = "\n".join(lines) + "\n"
    if not seconds:
        return text
    return text + (
        f"\nPercent, mean ± standard deviation of {len(SEEDS)} seeds; {min(seconds):.1f} to "
        f"{max(seconds):.1f} s a run of one core. ↑ better and ↓ worse than none (Welch's test, p < {SIGNIFICANT}: of "
        f"{comparisons} comparisons about {comparisons * SIGNIFICANT:.0f} by chance); no arrow is a tie.\n"
    )


def compared(values: list[float], others: list[float]) -> str:
    """Return " ↑" or " ↓" if the means differ, "" for a tie."""
    p = welch(values, others)
    if p is None or p >= SIGNIFICANT:
        return ""
    return " ↑" if sum(values) / len(values) > sum(others) / len(others) else " ↓"


def shown(values: list[float]) -> str:
    mean, deviation = mean_and_deviation(values)
    return f"{mean:.1f}" if not deviation else f"{mean:.1f} ± {deviation:.1f}"


def minilm(result: dict[str, Any]) -> str:
    """Return the table of ways to 1 bit, each against the rotation by ITQ."""
    if not result:
        return "not run\n"
    ways: dict[tuple[str, str | None], list[dict[str, Any]]] = {}
    for run in result["runs"]:
        ways.setdefault((run["model"], run["rotation"]), []).append(run)
    seeds = max(map(len, ways.values()))
    rotated = [run["bits"] for run in ways["MiniLM", "itq"]]
    lines = ["| model | vectors | 1 bit: recall@10 | floats: recall@10 | seconds |", f"|---{'|---' * 4}|"]
    for (model, rotation), runs in ways.items():
        bits, floats = ([run[key] for run in runs] for key in ("bits", "floats"))
        # what draws nothing has one run, and would give the same in all
        mark = "" if rotation == "itq" and model == "MiniLM" else compared(bits * (seeds // len(bits)), rotated)
        cells = [model if model == "MiniLM" else f"tuned, {model}", ROTATIONS[rotation], shown(bits) + mark]
        cells += [shown(floats), f"{mean_and_deviation([run['seconds'] for run in runs])[0]:.0f}"]
        lines.append(f"| {' | '.join(cells)} |")
    half = result["lines"] // 2
    return "\n".join(lines) + (
        f"\n\nPercent of the ten nearest by MiniLM's floats, {half:,} lines to fit on and {half:,} others searched; "
        f"mean ± standard deviation of {seeds} seeds. ↑ better and ↓ worse than MiniLM rotated by ITQ at 1 bit "
        f"(Welch's test, p < {SIGNIFICANT}); no arrow is a tie. Seconds of one core to fit.\n"
    )
