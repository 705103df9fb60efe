"""Tables of docs/losses.md and docs/scale.md: what benchmarks/classes.py measured."""

import json
from pathlib import Path
from typing import Any

from benchmarks import classes

FILE = "benchmarks/results/classes.json"
NAMES = {
    classes.STREAMED: "streamed",
    classes.WHOLE: "all logits at once",
    classes.PEER: "pytorch-metric-learning's",
    classes.LINEAR: "`F.linear` and `F.cross_entropy`, no margin",
    classes.LINEAR_CROSS_ENTROPY: "`F.linear_cross_entropy`, no margin",
    "all classes, SGD": "all classes, `torch.optim.SGD`",
    "sample=0.1, sparse=True, RowSGD": "`sample=0.1`, `sparse=True`, `RowSGD`",
}

Results = dict[str, dict[str, dict[str, float]]]


def generated(root: Path) -> dict[str, str]:
    """Return the text between each pair of markers."""
    path = root / FILE
    if not path.exists():
        return {}
    results: Results = {}
    for entry in json.loads(path.read_text(encoding="utf-8"))["measurements"]:
        row = results.setdefault(entry["case"], {}).setdefault(entry["contestant"], {})
        row[entry["name"]] = entry["value"]
    return {"classes": heads(results), "ranks": ranks(results)}


def heads(results: Results) -> str:
    """Return the table of one process, and a sentence about the largest head."""
    lines = ["| | time | | memory |", "|---|---|---|---|"]
    for case, rows in results.items():
        if not NAMES.keys() >= rows.keys():
            continue
        lines.append(f"| **{size_of(case)}** | | | |")
        reference = next(iter(rows.values()))["s"]
        for name, row in rows.items():
            memory = f"{row[classes.MB]:,.0f} MB" if classes.MB in row else ""
            lines.append(f"| {NAMES[name]} | {row['s']:.3g} s | {row['s'] / reference:.2f} | {memory} |")
    steps = next(rows for case, rows in results.items() if "sampled" in case)
    (fewer, _), (more, largest) = steps.items()
    return "\n".join(lines).replace("|  |", "| |") + (
        f"\n\nA step with momentum on 1 % of {more} × 64: {largest['s']:.2f} s, {largest['time / fewer classes']:.2f} "
        f"of one on as many of {fewer}, in a process of {largest['peak MB of the process'] / 1e3:.1f} GB. A step with "
        f"a search for near classes, one in 300, takes {largest['s, first step with a search']:.0f} s.\n"
    )


def ranks(results: Results) -> str:
    """Return the table of one process and two."""
    cases = {case: rows for case, rows in results.items() if "shard_head" in case}
    lines: dict[str, list[Any]] = {"": [], "one process": [], "two processes, the slower": [], "two in sum": []}
    for case, rows in cases.items():
        alone, slower, both = rows.values()
        lines[""].append(size_of(case).removesuffix(", shard_head"))
        lines["one process"].append(f"{alone['s']:.2f} s, {alone[classes.MB]:.0f} MB")
        lines["two processes, the slower"].append(f"{slower['s']:.2f} s, {slower['time / 1 process']:.2f}")
        lines["two in sum"].append(f"{both[classes.MB]:.0f} MB, {both['memory / 1 process']:.2f}")
    header, *rest = (f"| {' | '.join([name, *cells])} |\n".replace("|  |", "| |") for name, cells in lines.items())
    return header + "|---" * (1 + len(cases)) + "|\n" + "".join(rest)


def size_of(case: str) -> str:
    """Return classes × size of a case, and what it says beside: "512-d, 9 classes, batch 4, x" → "9 × 512, x"."""
    size, count, _, *more = case.split(", ")
    return ", ".join([f"{count.removesuffix(' classes')} × {size.removesuffix('-d')}", *more])
