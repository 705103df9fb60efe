"""docs/results.md and its pictures, made from the files in results/. `make tables` writes them."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from hypersphere._internal.tables import NOTHING
from hypersphere.papers import tables
from hypersphere.papers.reproduce import planned, results
from hypersphere.papers.reproduce.compare import ComparedRow, Difference, TableComparison, compare, describe_metric
from hypersphere.papers.reproduce.statistics import SIGNIFICANT, holm
from hypersphere.papers.table import METRICS
from hypersphere.report import dot_plot

NAMES = {"spherenet": "SphereNet", "mhe": "MHE", "opt": "OPT"}
PICTURES = "pictures/results"
MEMORY, FINDINGS = "memory.txt", "findings.toml"
HEADER = """# What was measured

This page is generated from the files in `results/` by `make tables`; its tables, pictures and differences are never
typed by hand. It has two parts: [the plan](#the-plan), comparisons that were written down before they were run, and
[exploration](#exploration), everything else. The paragraphs below the tables are written by hand
(`results/findings.toml`), and what they call "tried" is not kept in `results/`. The runs of reduced size fit two cores.
They are much smaller than the papers' networks and trainings, so compare the sign of differences between rows, not the
rows with the paper.

"""
PLAN = """## The plan

`results/plan.toml` was committed before its runs. It names the comparisons, their settings, seeds and primary figure,
and when to stop. An effect is the mean difference of the two rows, paired by seed, with its 95 % interval; p-values are
Student's, then corrected for all comparisons of the plan by Holm's method. "better" and "worse": corrected p < 0.05.
Comparisons are judged when all their seeds are there, and not before.

```bash
hypersphere reproduce --plan
```

"""
EXPLORATION = """## Exploration

What was run before the plan, and beside it. Settings, rows and numbers of seeds were chosen along the way, so what is
decided here suggests and does not confirm. Each table has its command; in a clone, whose `results/` has these rows
already, add `--results DIR` to measure them on your machine. Rows that exist only at full size (`--full`) are not
shown.

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


def tables_with_results(folder: Path) -> list[TableComparison]:
    names = [name for name in tables.TABLES if name.partition(".")[0] in NAMES]  # but those of the plan
    compared = [compare(name, folder) for name in names if results.path_of(folder, name).exists()]
    return [table for table in compared if table.measured_rows()]


def findings(folder: Path) -> dict[str, str]:
    """Table → what came out, in words without numbers; they are written by hand, beside the results."""
    file = folder / FINDINGS
    return tomllib.loads(file.read_text(encoding="utf-8")) if file.exists() else {}


def markdown(folder: Path, compared: list[TableComparison]) -> str:
    """The page."""
    said = findings(folder)
    plan = _plan(folder, said) if (folder / planned.PLAN).exists() else ""
    sections = [HEADER, plan, EXPLORATION, _overview(compared), _decided(compared), ROW_NAMES]
    sections += [_section(table, said.get(table.table, "")) for table in compared]
    if (measured := folder / MEMORY).exists():
        sections.append(_memory(measured.read_text(encoding="utf-8")))
    return "".join(sections)


def _plan(folder: Path, said: dict[str, str]) -> str:
    """The comparisons of the plan. ValueError if something is said of one that is not complete."""
    status = planned.status(planned.read(folder), folder)
    verdicts = [judged.verdict for judged in status.rows]
    if early := [
        one.comparison.name for one in status.rows if one.verdict == "running" and one.comparison.name in said
    ]:
        raise ValueError(f"{FINDINGS}: {early[0]} is not complete")
    counts = ", ".join(f"{verdicts.count(word)} {word}" for word in ("better", "worse", "undecided", "running"))
    cells = status.text_table()
    lines = [f"| {' | '.join(line)} |\n" for line in (cells.header, ["---"] * len(cells.header), *cells.rows)]
    claims = "".join(
        f"- **{one.comparison.name}** ({describe_metric(tables.load(one.comparison.table), one.comparison.metric)}): "
        f"{one.comparison.claim} {said.get(one.comparison.name, '')}".rstrip()
        + "\n"
        for one in status.rows
    )
    forms = dict.fromkeys(one.comparison.table for one in status.rows)
    sizes = "".join(f"- `{name}`: {tables.load(name).reduced}\n" for name in forms)
    return (
        f"{PLAN}{len(verdicts)} comparisons: {counts}. {' '.join(status.notes())}\n\n"
        f"{''.join(lines)}\nWhat the papers claim:\n\n{claims}\nThe networks and trainings:\n\n{sizes}\n"
    )


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
    for table, rows in sizes.items():
        most, row, batch = max(rows)
        lines.append(f"| {_title(table)} | {len(rows)} | {min(rows)[0]:.2f} | {most:.2f} | `{row}` | {batch} |")
    return "\n".join(lines) + "\n"


def _overview(compared: list[TableComparison]) -> str:
    keys = ("same", "opposite", "undecided", "untested")
    lines = [
        "Pairs of rows that the paper orders are in the same order here or in the opposite one, undecided by the test, "
        "or untested, because one of the rows has a single seed:\n",
        f"| table | what | runs | core-minutes | same order | {' | '.join(keys[1:])} |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for table in compared:
        rows = table.measured_rows()
        minutes = sum(row.seconds for row in rows) / 60
        counts = [str(table.order[key]) if table.summary else NOTHING for key in keys]
        runs = sum(row.seeds for row in rows)
        lines.append(f"| {_link(table)} | {table.title} | {runs} | {minutes:.0f} | {' | '.join(counts)} |")
    return "\n".join(lines) + "\n\n"


def _link(table: TableComparison) -> str:
    return f"[{_title(table.table)}](#{_anchor(table.table)})"


class Test(NamedTuple):
    """A test of a trained row against the first of its column; `p` is corrected for the number of tests."""

    table: TableComparison
    row: ComparedRow
    base: ComparedRow
    difference: Difference
    p: float


def _tests(compared: list[TableComparison]) -> tuple[str, list[Test]]:
    """How the tests of trained rows came out, in words, and each of them."""
    trained = [table for table in compared if tables.load(table.table).rows[0].compute is None]
    pairs = {}
    for table in trained:
        for row, base in _with_first(table):  # two rows that other tables have too are tested once
            pairs.setdefault((tuple(base.values), tuple(row.values)), (table, row, base, row.against))
    tested = [(*pair, against) for *pair, against in pairs.values() if against is not None and against.p is not None]
    words = [against.verdict for *_, against in tested]
    text = (
        f"{len(tested)} rows have two seeds or more and are compared with the first of their column: "
        f"{words.count('better')} are better, {words.count('worse')} worse, {words.count('undecided')} undecided by "
        f"Welch's t-test at p < {SIGNIFICANT}. {len(pairs) - len(tested)} more have a single seed on one side. So many "
        f"tests decide about {SIGNIFICANT * len(tested):.0f} by chance alone; the last column says what remains when "
        "the p-values are corrected for their number (Holm). The decided ones:"
    )
    corrected = holm([against.p for *_, against in tested if against.p is not None])
    return text, [Test(*test, p) for test, p in zip(tested, corrected, strict=True)]


def _reported_difference(row: ComparedRow, base: ComparedRow) -> float | None:
    return None if row.reported is None or base.reported is None else row.reported - base.reported


def _decided(compared: list[TableComparison]) -> str:
    """The trained rows that differ from the first of their column by the test over seeds."""
    words, tests = _tests(compared)
    lines = []
    for table, row, base, difference, p in tests:
        if difference.verdict != "undecided":
            reported = _reported_difference(row, base)
            cells = [
                f"{_link(table)}, {table.what}",
                f"{base.name} → {row.name.rpartition('/')[2]}",
                f"{difference.value:+.2f}",
                NOTHING if reported is None else f"{reported:+.2f}",
                difference.decision(),
                "remains" if p < SIGNIFICANT else "undecided",
            ]
            lines.append(f"| {' | '.join(cells)} |\n")
    header = "| table | rows | difference | in the paper | | after correction |\n|---|---|---|---|---|---|\n"
    return f"## What exploration decides\n\n{words}\n\n{header}{''.join(lines)}\n"


def _with_first(table: TableComparison) -> Iterator[tuple[ComparedRow, ComparedRow]]:
    """Yield every row that was run with the first of its column, if both reached what is counted."""
    first: dict[str, ComparedRow] = {}
    for row in table.rows:
        base = first.setdefault(row.name.rpartition("/")[0], row)
        if row is not base and all(one.seeds and one.reached == one.seeds for one in (row, base)):
            yield row, base


def _section(table: TableComparison, finding: str = "") -> str:
    title = _title(table.table)
    text = f"## {title}\n\n{tables.describe(table.table)} Compared by {table.what}.\n\n"
    text += f"```bash\nhypersphere reproduce {table.table}\n```\n\n"
    if table.reduced:
        text += f"Reduced size: {table.reduced}\n\n"
    cells = table.text_table(table.measured_rows())
    text += f"| {' | '.join(cells.header)} |\n|{'---|' * len(cells.header)}\n"
    text += "".join(f"| {' | '.join(line)} |\n" for line in cells.rows)
    text += "\n"
    if table.summary:
        text += f"{table.summary}\n\n"
    notes = [f"- {row.name}: {row.note}\n" for row in table.measured_rows() if row.note]
    text += "".join(notes) + ("\n" if notes else "")
    if finding:
        text += f"{finding}\n\n"
    if picture(table):
        text += f"![{title}: the rows beside the first of their column]({PICTURES}/{table.table}.svg)\n\n"
    return text


def picture(table: TableComparison) -> str | None:
    """Draw the rows beside the first of their column, measured and in the paper; None if there are no others.

    Differences, or of counts, which are neither better nor worse, shares.
    """
    more_is_better, rows = METRICS[table.metric].more_is_better, []
    for row, base in _with_first(table):
        assert row.mean is not None
        assert base.mean is not None
        if more_is_better is None:
            assert row.reported is not None
            assert base.reported is not None
            rows.append((row.name, 100 * row.reported / base.reported, 100 * row.mean / base.mean, None))
        else:
            interval = None if row.against is None else row.against.interval
            rows.append((row.name, _reported_difference(row, base), row.mean - base.mean, interval))
    if more_is_better is None:
        return dot_plot(rows, title=_title(table.table), xlabel=f"{table.metric}, % of the first row").svg
    if not rows:
        return None
    word = "more is better" if more_is_better else "less is better"
    label = f"difference from the first row, {table.unit or table.metric} ({word})"
    return dot_plot(rows, title=_title(table.table), xlabel=label.replace(", %", ", percentage points")).svg


def generated(root: Path) -> dict[Path, str]:
    """Each file → its text."""
    folder = root / "results"
    compared = tables_with_results(folder)
    files = {root / "docs" / "results.md": markdown(folder, compared)}
    for table in compared:
        if (svg := picture(table)) is not None:
            files[root / "docs" / PICTURES / f"{table.table}.svg"] = svg
    return files
