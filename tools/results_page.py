"""docs/results.md and its pictures, made from the files in results/. `make tables` writes them."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hypersphere.papers import tables
from hypersphere.papers.reproduce import compare, results
from hypersphere.papers.reproduce.statistics import SIGNIFICANT, holm
from hypersphere.papers.table import FIGURES
from hypersphere.report import dot_plot

NAMES = {"spherenet": "SphereNet", "mhe": "MHE", "opt": "OPT"}
PICTURES = "pictures/results"
MEMORY, FINDINGS = "memory.txt", "findings.toml"
HEADER = """# What was measured

This page is generated from the files in `results/` by `make tables`; its tables, pictures and differences are never
typed by hand. The paragraphs below the tables are written by hand (`results/findings.toml`), and what they call "tried"
is not kept in `results/`. Each table has its command; in a clone, whose `results/` has these rows already, add
`--results DIR` to measure them on your machine. The small forms run on two cores. They are much smaller than the
papers' networks and trainings, so compare the sign of differences between rows, not the rows with the paper. Rows that
exist only at full size (`--full`) are not shown.

`±` is the standard deviation over seeds. "better" and "worse" are against the first row of the column, by Welch's
t-test over the seeds at p < 0.05; a single seed cannot decide. The error bars of the pictures are the 95 % confidence
intervals of these differences: one that excludes 0 is decided. Runs with the same seed share their validation images;
the test takes them as independent. Settings were chosen on held-out training images, never on test images. Where seeds
were added after a look at the result, the text below the table says so: such p-values are too small.

A run belongs to every table that has a row with its settings, and its time to the table that it was made for.
Core-minutes are CPU time; for runs that were resumed, and for the earliest ones, they are elapsed time, which is more.

"""


ROW_NAMES = """## How rows are called

A name before the slash is a column of the paper's table. The first row of a column is its baseline.

- SphereNet. original: the plain network; cosine, linear, sigmoid-0.3: sphere layers with that operator (k = 0.3).
  Columns: softmax; w-cosine, W-Softmax with the cosine operator; ga-softmax.
- MHE. mhe, half-space, angular, half-space-angular: the energy in that form, added to the loss; s0, s1, s2: its power
  s; mhe-code: the released code's weights; orthonormal: the term ‖WᵀW − I‖² instead.
- OPT. gs, hr, ls, cp, ogd, or: R by Gram-Schmidt, Householder reflections, Löwdin's symmetric orthogonalization, the
  Cayley transform, orthogonality-preserving gradient descent, a penalty on the loss; hs-mhe: half-space energy as a
  regularizer of a plain network; s-opt: R on sampled dimensions. Columns: mlp-n and mlp-x, initial weights from N(0, 1)
  and by Xavier's rule; norm, neurons of length one.

"""


def tables_with_results(folder: Path) -> list[dict[str, Any]]:
    found = [compare.compare(name, folder) for name in tables.TABLES if results.path_of(folder, name).exists()]
    return [each for each in found if any(row["seeds"] for row in each["rows"])]


def findings(folder: Path) -> dict[str, str]:
    """Table → what came out, in words without figures; they are written by hand, beside the results."""
    file = folder / FINDINGS
    return tomllib.loads(file.read_text(encoding="utf-8")) if file.exists() else {}


def markdown(folder: Path) -> str:
    """The page."""
    found = tables_with_results(folder)
    parts = [HEADER, _overview(found), _decided(found), ROW_NAMES]
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
    keys = ("same", "opposite", "undecided", "untested")
    lines = [
        "Pairs of rows that the paper orders are in the same order here or in the opposite one, undecided by the test, "
        "or untested, because one of the rows has a single seed:\n",
        f"| table | what | runs | core-minutes | same order | {' | '.join(keys[1:])} |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for each in found:
        rows = [row for row in each["rows"] if row["seeds"]]
        minutes = sum(row["seconds"] for row in rows) / 60
        counts = [str(each["order"][key]) if each["summary"] else "-" for key in keys]
        runs = sum(row["seeds"] for row in rows)
        link = f"[{_title(each['table'])}](#{_anchor(each['table'])})"
        lines.append(f"| {link} | {each['title']} | {runs} | {minutes:.0f} | {' | '.join(counts)} |")
    return "\n".join(lines) + "\n\n"


def _tests(
    found: list[dict[str, Any]],
) -> tuple[str, list[tuple[dict[str, Any], dict[str, Any], dict[str, Any], float]]]:
    """How the tests of trained rows came out, in words; table, row, first row and corrected p-value of each test."""
    trained = [each for each in found if tables.load(each["table"]).rows[0].compute is None]
    pairs = {}
    for each in trained:
        for row, base in _with_first(each):  # two rows that other tables have too are tested once
            pairs.setdefault((tuple(base["values"]), tuple(row["values"])), (each, row, base))
    tests = [pair for pair in pairs.values() if pair[1]["p"] is not None]
    words = [row["verdict"] for _, row, _ in tests]
    text = (
        f"{len(tests)} rows have two seeds or more and are compared with the first of their column: "
        f"{words.count('better')} are better, {words.count('worse')} worse, {words.count('undecided')} undecided by "
        f"Welch's t-test at p < {SIGNIFICANT}. {len(pairs) - len(tests)} more have a single seed on one side. So many "
        f"tests decide about {SIGNIFICANT * len(tests):.0f} by chance alone; the last column says what remains when "
        "the p-values are corrected for their number (Holm). The decided ones:"
    )
    corrected = holm([row["p"] for _, row, _ in tests])
    return text, [(*pair, p) for pair, p in zip(tests, corrected, strict=True)]


def _pair(row: dict[str, Any], base: dict[str, Any]) -> str:
    return f"{base['row']} → {row['row'].rpartition('/')[2]}"


def _kept(corrected: float) -> str:
    return "remains" if corrected < SIGNIFICANT else "undecided"


def _decided(found: list[dict[str, Any]]) -> str:
    """The trained rows that differ from the first of their column by the test over seeds."""
    words, tests = _tests(found)
    lines = []
    for each, row, base, p in tests:
        if row["verdict"] != "undecided":
            known = row["paper"] is not None and base["paper"] is not None
            paper = f"{row['paper'] - base['paper']:+.2f}" if known else "-"
            what = f"[{_title(each['table'])}](#{_anchor(each['table'])}), {each['what']}"
            cells = [what, _pair(row, base), f"{row['difference']:+.2f}", paper, compare.decision(row), _kept(p)]
            lines.append(f"| {' | '.join(cells)} |\n")
    header = "| table | rows | difference | in the paper | | after correction |\n|---|---|---|---|---|---|\n"
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
    text = f"## {title}\n\n{tables.describe(each['table'])} Compared by {each['what']}.\n\n"
    text += f"```bash\nhypersphere reproduce {each['table']}\n```\n\n"
    if each["reduced"]:
        text += f"Small form: {each['reduced']}\n\n"
    rows = [row for row in each["rows"] if row["seeds"]]
    header, lines = compare.cells(each, rows)
    text += f"| {' | '.join(header)} |\n|{'---|' * len(header)}\n"
    text += "".join(f"| {' | '.join(line)} |\n" for line in lines)
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
        return dot_plot(shares, title=_title(each["table"]), xlabel=f"{each['figure']}, % of the first row").svg
    rows = []
    for row, base in _with_first(each):
        paper = None if row["paper"] is None or base["paper"] is None else row["paper"] - base["paper"]
        rows.append((row["row"], paper, row["mean"] - base["mean"], row["interval"]))
    if not rows:
        return None
    word = "more is better" if better else "less is better"
    label = f"difference from the first row, {each['unit'] or each['figure']} ({word})"
    return dot_plot(rows, title=_title(each["table"]), xlabel=label.replace(", %", ", percentage points")).svg


def generated(root: Path) -> dict[Path, str]:
    """Each file → its text."""
    folder = root / "results"
    files = {root / "docs" / "results.md": markdown(folder)}
    for each in tables_with_results(folder):
        if (svg := picture(each)) is not None:
            files[root / "docs" / PICTURES / f"{each['table']}.svg"] = svg
    return files
