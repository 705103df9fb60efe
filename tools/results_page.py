"""docs/results.md and its pictures, made from the files in results/. `make tables` writes them."""

import math
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hypersphere.recipes import papers
from hypersphere.recipes.table import FIGURES
from hypersphere.report import dot_plot
from hypersphere.reproduce import compare, results

NAMES = {"spherenet": "SphereNet", "mhe": "MHE", "opt": "OPT"}
PICTURES = "pictures/results"
MEMORY, FINDINGS = "memory.txt", "findings.toml"
HEADER = """# What was measured

This page is generated from the files in `results/` (`make tables`). No result on it is typed by hand. Each table has
its command; in a clone, whose `results/` has these rows already, add `--results DIR` to measure them on your machine.
The small forms run on two cores. They are much smaller than the papers' networks and trainings, so compare the sign of
differences between rows, not the rows with the paper. Rows that exist only at full size (`--full`) are not shown.

`±` is the standard deviation over seeds; the error bars of the pictures are that of the difference from the first row.
"better" and "worse" are against the first row of the column, by Welch's t-test over the seeds at p < 0.05; a single
seed cannot decide. Settings were chosen on held-out training images, never on test images. Where seeds were added after
a look at the result, the text below the table says so: such p-values are too small. Core-minutes are CPU time; for runs
that were resumed, and for the earliest ones, they are elapsed time.

"""


#: tables and rows of the README, each compared with the first of its column: one of every column with several seeds
HEADLINES = (
    ("spherenet.1", "softmax/cosine"),
    ("spherenet.1", "w-cosine/cosine"),
    ("spherenet.3", "cosine"),
    ("mhe.1", "cifar100/half-space-s2"),
    ("mhe.2", "16-32-64/half-space"),
    ("mhe.7", "single/half-space"),
    ("mhe.8", "m4/sphereface+"),
    ("opt.1", "cnn6/gs-fixed"),
    ("opt.5", "cp"),
    ("opt.6", "mlp-n/cp"),
    ("opt.6", "mlp-x/cp"),
    ("opt.9", "cora/cp"),
    ("opt.9", "pubmed/cp"),
)


def headlines(folder: Path) -> str:
    """The README's table: one row of each of some tables, beside the paper's."""
    lines = ["| table | row | measured | seeds | paper | |", "|---|---|---|---|---|---|"]
    for name, row in HEADLINES:
        found = compare.compare(name, folder)
        rows = {each["row"]: each for each in found["rows"]}
        table = papers.load(name)
        first, other = rows[table.baseline(table.row(row)).name], rows[row]
        paper, measured = (
            " → ".join(form(each) for each in (first, other)) for form in (compare.printed, compare.measured)
        )
        verdict = other["verdict"].partition(", ")[2] or "one seed cannot decide"
        what = f"[{_title(name)}](docs/results.md#{_anchor(name)}): {found['title']}, {found['what']}"
        names = f"{first['row']} → {row.rpartition('/')[2]}"
        lines.append(f"| {' | '.join([what, names, measured, str(other['seeds']), paper, verdict])} |")
    return "\n".join(lines) + "\n"


def tables_with_results(folder: Path) -> list[dict[str, Any]]:
    found = [compare.compare(name, folder) for name in papers.TABLES if results.path_of(folder, name).exists()]
    return [each for each in found if any(row["seeds"] for row in each["rows"])]


def findings(folder: Path) -> dict[str, str]:
    """Table → what came out, in words without figures; they are written by hand, beside the results."""
    file = folder / FINDINGS
    return tomllib.loads(file.read_text(encoding="utf-8")) if file.exists() else {}


def markdown(folder: Path) -> str:
    """The page."""
    found = tables_with_results(folder)
    parts = [HEADER, _overview(found), _decided(found)]
    said = findings(folder)
    for each in found:
        parts.append(_section(each, said.get(each["table"], "")))
    if (measured := folder / MEMORY).exists():
        parts.append(_memory(measured.read_text(encoding="utf-8")))
    return "".join(parts)


def _title(name: str) -> str:
    paper, _, number = name.partition(".")
    if number.startswith("sec"):
        section = number.removeprefix("sec").replace("_", ".")
        return f"{NAMES[paper]}, {'Section' if section[0].isdigit() else 'Appendix'} {section.upper()}"
    kind = "Figure" if number.startswith("fig") else "Table"
    return f"{NAMES[paper]}, {kind} {number.removeprefix('fig').replace('_', ', ')}"


def _anchor(name: str) -> str:
    """The anchor of a table's heading."""
    return "".join(c for c in _title(name).lower().replace(" ", "-") if c.isalnum() or c in "-_")


def _memory(text: str) -> str:
    """The least and the largest row of every table, from the lines of `tools.full_size --memory`."""
    sizes: dict[str, list[tuple[float, str, str]]] = {}
    for table, row, size, batch in re.findall(r"^([^/\n]+)/(.*): ([\d.]+) GB at batch (\d+) ", text, re.MULTILINE):
        sizes.setdefault(table, []).append((float(size), row, batch))
    lines = [
        "## Memory at full size\n",
        "Weights, gradients, the optimizer's state and what the forward pass keeps, in GB, of one step at the paper"
        f"'s batch size, counted by `python -m tools.full_size --memory > results/{MEMORY}`:\n",
        "| table | rows | least | most | of row | batch |",
        "|---|---|---|---|---|---|",
    ]
    for table, found in sizes.items():
        most, row, batch = max(found)
        lines.append(f"| {_title(table)} | {len(found)} | {min(found)[0]:.2f} | {most:.2f} | `{row}` | {batch} |")
    return "\n".join(lines) + "\n"


def _overview(found: list[dict[str, Any]]) -> str:
    lines = [
        "| table | what | runs | core-minutes | same order | opposite | undecided |",
        "|---|---|---|---|---|---|---|",
    ]
    for each in found:
        rows = [row for row in each["rows"] if row["seeds"]]
        minutes = sum(row["seconds"] for row in rows) / 60
        counts = [str(each["order"][key]) if each["summary"] else "-" for key in ("same", "opposite", "undecided")]
        runs = sum(row["seeds"] for row in rows)
        link = f"[{_title(each['table'])}](#{_anchor(each['table'])})"
        lines.append(f"| {link} | {each['title']} | {runs} | {minutes:.0f} | {' | '.join(counts)} |")
    return "\n".join(lines) + "\n\n"


def _decided(found: list[dict[str, Any]]) -> str:
    """The trained rows that differ from the first of their column by the test over seeds."""
    trained = [each for each in found if papers.load(each["table"]).rows[0].compute is None]
    others = [(each, row, base) for each in trained for row, base in _with_first(each)]
    lines, counts = [], dict.fromkeys(("better", "worse", "undecided"), 0)
    for each, row, base in others:
        word = next((word for word in counts if f", {word} " in row["verdict"]), None)
        if word is None:
            continue
        counts[word] += 1
        if word != "undecided":
            difference, _, verdict = row["verdict"].partition(", ")
            known = row["paper"] is not None and base["paper"] is not None
            paper = f"{row['paper'] - base['paper']:+.2f}" if known else "-"
            link = f"[{_title(each['table'])}](#{_anchor(each['table'])})"
            names = f"{base['row']} → {row['row'].rpartition('/')[2]}"
            lines.append(f"| {link}, {each['what']} | {names} | {difference} | {paper} | {verdict} |\n")
    words = (
        f"Rows with two seeds or more that are compared with the first of their column: {sum(counts.values())}. "
        f"{counts['better']} are better, {counts['worse']} worse, {counts['undecided']} undecided. "
        f"{len(others) - sum(counts.values())} more have a single seed on one side. At p < 0.05, one in twenty "
        "of the rows that make no difference is decided by chance. The decided ones:"
    )
    header = "| table | rows | difference | in the paper | |\n|---|---|---|---|---|\n"
    return f"## What the seeds decide\n\n{words}\n\n{header}{''.join(lines)}\n"


def _with_first(each: dict[str, Any]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Yield every row that was run with the first of its column, if both reached what is counted."""
    first: dict[str, dict[str, Any]] = {}
    for row in each["rows"]:
        base = first.setdefault(row["row"].rpartition("/")[0], row)
        if row is not base and all(one["seeds"] and one["reached"] == one["seeds"] for one in (row, base)):
            yield row, base


def _section(each: dict[str, Any], finding: str = "") -> str:
    title = _title(each["table"])
    text = f"## {title}\n\n{each['title'][0].upper()}{each['title'][1:]}; {each['what']}.\n\n"
    text += f"```bash\nhypersphere reproduce {each['table']}\n```\n\n"
    if each["reduced"]:
        text += f"Small form: {each['reduced']}\n\n"
    rows = [row for row in each["rows"] if row["seeds"]]
    names = [name for name in rows[0]["also"] if any(row["also"][name]["seeds"] for row in rows)]
    further = [compare.described(papers.load(each["table"]), name) for name in names]
    header = ["row", "paper", "measured", "seeds", "against the first row", *further]
    text += f"| {' | '.join(header)} |\n|{'---|' * len(header)}\n"
    for row in rows:
        cells = [row["row"], compare.printed(row), compare.measured(row), str(row["seeds"]), row["verdict"] or "-"]
        cells += [compare.measured_also(row["also"][name]) for name in names]
        text += f"| {' | '.join(cells)} |\n"
    text += "\n"
    if each["summary"]:
        text += f"{each['summary']}\n\n"
    notes = {row["row"]: row["note"] for row in each["rows"] if row["note"] and row["seeds"]}
    text += "".join(f"- {name}: {note}\n" for name, note in notes.items()) + ("\n" if notes else "")
    if finding:
        text += f"{finding}\n\n"
    if picture(each):
        text += f"![{title}: the rows beside the first of their column]({PICTURES}/{each['table']}.svg)\n\n"
    return text


def picture(each: dict[str, Any]) -> str | None:
    """What the rows have beside the first of their column, measured and in the paper; None if there are no others.

    Differences, or of counts, which are neither better nor worse, shares.
    """
    better = FIGURES[each["figure"]][1]
    if better is None:
        shares = [
            (row["row"], 100 * row["paper"] / base["paper"], 100 * row["mean"] / base["mean"], None)
            for row, base in _with_first(each)
        ]
        return dot_plot(shares, title=_title(each["table"]), xlabel=f"{each['figure']}, % of the first row")
    rows = []
    for row, base in _with_first(each):
        paper = None if row["paper"] is None or base["paper"] is None else row["paper"] - base["paper"]
        known = [each["deviation"] for each in (row, base) if each["deviation"] is not None]
        rows.append((row["row"], paper, row["mean"] - base["mean"], math.hypot(*known) if len(known) == 2 else None))
    if not rows:
        return None
    word = "more is better" if better else "less is better"
    label = f"difference from the first row, {each['unit'] or each['figure']} ({word})"
    return dot_plot(rows, title=_title(each["table"]), xlabel=label.replace(", %", ", percentage points"))


def generated(root: Path) -> dict[Path, str]:
    """Each file → its text."""
    folder = root / "results"
    files = {root / "docs" / "results.md": markdown(folder)}
    for each in tables_with_results(folder):
        if (svg := picture(each)) is not None:
            files[root / "docs" / PICTURES / f"{each['table']}.svg"] = svg
    return files
