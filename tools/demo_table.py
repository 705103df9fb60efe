"""The README's table of the demo, made of results/demo.json, which `python examples/demo.py --json` writes."""

import json
import statistics
from pathlib import Path
from typing import Any

FILE, MARKER = "demo.json", "demo"


def markdown(tasks: dict[str, dict[str, dict[str, Any]]]) -> str:
    """The table: the best accuracy of a task is bold, gains are those over plain training with the same seed."""
    lines = ["| task | method | accuracy % | gain | parameters trained |", "|---|---|---|---|---|"]
    for task, methods in tasks.items():
        plain = methods["plain"]["accuracies"]
        best = max(methods, key=lambda method: statistics.mean(methods[method]["accuracies"]))
        for method, result in methods.items():
            gains = [one - other for one, other in zip(result["accuracies"], plain, strict=True)]
            accuracy = f"**{spread(result['accuracies'])}**" if method == best else spread(result["accuracies"])
            cells = [task, method, accuracy, spread(gains, "+"), f"{result['trained']:,}"]
            if method == "plain":
                cells[3] = ""
            else:
                cells[0] = ""
            lines.append(f"| {' | '.join(cells)} |".replace("|  |", "| |"))
    return "\n".join(lines) + "\n"


def spread(values: list[float], sign: str = "") -> str:
    return f"{statistics.mean(values):{sign}.1f} ± {statistics.stdev(values):.1f}"


def read(root: Path) -> dict[str, dict[str, dict[str, Any]]]:
    return json.loads((root / "results" / FILE).read_text(encoding="utf-8"))
