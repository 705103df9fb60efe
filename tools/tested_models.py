"""docs/tested_models.md, made from results/tested_models.json, which `make integrations WRITE=1` writes."""

from __future__ import annotations

import json
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

FILE = Path("results") / "tested_models.json"
PACKAGES = (
    *("torch", "timm", "transformers", "accelerate", "lightning", "peft"),
    *("pytorch-metric-learning", "skorch", "scikit-learn"),
)
FAILED = "FAILED"
HEADER = """# Tested networks

This page is generated from `results/tested_models.json` (`make tables`), which a run of the tests in
`tests/integrations` writes (`make integrations WRITE=1`); no entry is typed by hand. `make integrations` runs the
matrix again and fails when an outcome or a version is another one.

"""


def versions() -> dict[str, str]:
    """Return the versions of this environment, without the build (+cpu)."""
    return {name: version(name).partition("+")[0] for name in PACKAGES}


def write(root: Path, verbs: dict[str, str], networks: list[dict[str, Any]]) -> None:
    """Write the outcomes of a run."""
    tested = {"python": platform.python_version(), "versions": versions(), "verbs": verbs, "networks": networks}
    (root / FILE).write_text(json.dumps(tested, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def read(root: Path) -> dict[str, Any]:
    """Return what was written."""
    tested: dict[str, Any] = json.loads((root / FILE).read_text(encoding="utf-8"))
    return tested


def markdown(tested: dict[str, Any]) -> str:
    """Return the page."""
    names = [f"{name} {number}" for name, number in tested["versions"].items()]
    cells = [cell for network in tested["networks"] for cell in network["cells"].values()]
    failed = cells.count(FAILED)
    lines = [
        f"Run with Python {tested['python']}, {', '.join(names)}.",
        f"{len(tested['networks'])} networks × {len(tested['verbs'])} verbs = {len(cells)} cells: {failed} failed, "
        f"{cells.count('refused')} refused by name with the network left as it was. The networks have random weights "
        "and few, narrow layers; nothing is fetched.\n",
        *(f"- `{verb}`: {text}" for verb, text in tested["verbs"].items()),
        "\n0.0 is the largest difference between results that must be the same: not one bit differs.",
    ]
    for library in dict.fromkeys(network["library"] for network in tested["networks"]):
        title = f"{library} {tested['versions'][library]}" if library != "torch" else "Written in the tests"
        lines += [f"\n## {title}\n", _row("network", "output layers", *tested["verbs"], "what is special")]
        lines.append(_row(*["---"] * (len(tested["verbs"]) + 3)))
        for network in tested["networks"]:
            if network["library"] == library:
                heads = ", ".join(f"`{head}`" for head in network["heads"]) or "none"
                lines.append(_row(network["name"], heads, *network["cells"].values(), network["trap"]))
    return HEADER + "\n".join(lines) + "\n"


def _row(*entries: str) -> str:
    return f"| {' | '.join(entries)} |"


def generated(root: Path) -> dict[Path, str]:
    """Return the page's path and text."""
    return {root / "docs" / "tested_models.md": markdown(read(root))}
