"""results/plan.toml: the committed plan, what it refuses, its runs and its analysis."""

import json
import math
import tomllib
from itertools import pairwise
from pathlib import Path
from statistics import fmean, stdev

import pytest
from tools import make_tables
from tools import results_page as page

from hypersphere.cli import main
from hypersphere.papers import tables
from hypersphere.papers.reproduce import planned, results, runner, worker
from hypersphere.papers.reproduce.statistics import holm, paired
from hypersphere.papers.table import PaperTable, TableRow
from hypersphere.train.config import derive
from hypersphere.train.recipes import digits
from hypersphere.train.storage import folder as run_folders
from tests.runs import workers_in_this_process

RESULTS = Path(__file__).parents[2] / "results"


def made():
    plain = derive(digits.plain(), {"data.validation": 0.2, "steps": 4, "eval_every": 2})
    rows = (
        TableRow("plain", 90.0, small=plain),
        TableRow("slow", 91.5, small=derive(plain, {"optimizer.lr": 1e-3})),
        TableRow("fast", small=derive(plain, {"optimizer.lr": 0.1})),
    )
    return PaperTable("a table for tests", "accuracy", rows, "four steps.", minutes=6)


ENTRY = """
[[comparison]]
name = "{name}"
claim = "Slower is better."
table = "plan.made"
baseline = "plain"
row = "{row}"
metric = "accuracy"
seeds = 3
minutes = 1
configs = ["{hashes[0]}", "{hashes[1]}"]
"""


def entry(row, **changes):
    table = made()
    hashes = [results.fingerprint(table, table.row(name), "small") for name in ("plain", row)]
    return ENTRY.format(**{"name": f"to-{row}", "row": row, "hashes": hashes} | changes)


@pytest.fixture
def folder(monkeypatch, tmp_path):
    """A results folder with a plan of two comparisons that share their baseline."""
    monkeypatch.setitem(tables.TABLES, "plan.made", made)
    write(tmp_path, entry("slow"), entry("fast"))
    return tmp_path


def write(folder, *entries):
    plan = planned.ResultsPlan(7, [planned.PlannedComparison(**tomllib.loads(one)["comparison"][0]) for one in entries])
    top = f"first_seed = 7\nseal = {planned.seal(plan)!r}\n"
    (folder / planned.PLAN).write_text(top + "".join(entries))


def store(folder, row, values, first=7, **facts):
    config = results.fingerprint(made(), made().row(row), "small")
    for seed, value in enumerate(values, first):
        metrics = {} if value is None else {"accuracy": value}
        results.add(folder, "plan.made", results.RunResult(row, seed, "small", config, metrics, facts))


# ---------------------------------------------------------------------------------------------- the committed plan


def test_the_committed_plan_is_valid_and_within_its_limits():
    plan = planned.read(RESULTS)  # refuses rows whose configs have changed
    assert len(plan.comparisons) <= 24
    assert all(comparison.seeds >= 10 for comparison in plan.comparisons)
    assert sum(comparison.minutes for comparison in plan.comparisons) <= 30 * 60
    assert all(comparison.claim.startswith(("SphereNet, ", "MHE, ", "OPT, ")) for comparison in plan.comparisons)
    planned.judge(plan, RESULTS)  # refuses runs of other configs


def test_planned_rows_differ_from_explored_ones_and_share_data_and_length():
    explored = {
        results.fingerprint(table, row, "small")
        for name in tables.TABLES
        if not name.startswith("plan.")
        for table in [tables.load(name)]
        for row in table.rows
        if row.small is not None
    }
    for comparison in planned.read(RESULTS).comparisons:
        assert {row.seeds for row in comparison.rows} == {comparison.seeds}
        assert explored.isdisjoint(comparison.configs)
        one, other = (row.small for row in comparison.rows)
        assert one.data == other.data
        assert (one.steps, one.epochs, one.eval_every) == (other.steps, other.epochs, other.eval_every)
        assert (one.model.name, one.model.widths, one.model.batch_norm) == (
            (other.model.name, other.model.widths, other.model.batch_norm)
        )
        assert one.data.validation is not None or one.data.name == "cora"  # whose nodes are split already


# ---------------------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hashes": ("0" * 16, "0" * 16)}, "plain has changed since it was planned"),
        ({"row": "slw"}, "unknown row 'slw'"),
        ({"name": "to-fast"}, "to-fast is there twice"),
    ],
)
def test_a_plan_that_does_not_fit_is_refused(folder, changes, message):
    write(folder, entry("slow", **changes) if "row" not in changes else ENTRY.format(name="a", hashes="00", **changes))
    if "name" in changes:
        write(folder, entry("slow", **changes), entry("fast"))
    with pytest.raises(ValueError, match=message):
        planned.read(folder)


@pytest.mark.parametrize("change", [("seeds = 3", "seeds = 2"), ("seed = 7", "seed = 8"), ("Slower", "Faster")])
def test_a_plan_that_was_changed_is_refused(folder, change):
    file = folder / planned.PLAN
    file.write_text(file.read_text().replace("minutes = 1", "minutes = 2"))  # no promise
    planned.read(folder)
    file.write_text(file.read_text().replace(*change, 1))
    with pytest.raises(ValueError, match="has changed since it was sealed"):
        planned.read(folder)


def test_a_malformed_plan_is_refused(folder):
    for text, message in {
        "comparison = 3": "malformed",
        "first_seed = 0": "'comparison'",
        "first_seed = 0\n" + entry("slow").replace('"accuracy"', '"error"'): "compared by accuracy, got 'error'",
        "first_seed = 0\n" + entry("slow").replace("seeds = 3", "seeds = 1"): "seeds must be at least 2, got 1",
        "first_seed = 0\n" + entry("slow") + "verdict = 1": "verdict",
    }.items():
        (folder / planned.PLAN).write_text(text)
        with pytest.raises(ValueError, match=message):
            planned.read(folder)
    (folder / planned.PLAN).unlink()
    with pytest.raises(ValueError, match="there is no plan"):
        planned.read(folder)


def test_runs_of_another_config_are_refused(folder):
    results.add(folder, "plan.made", results.RunResult("slow", 8, "small", "another", {"accuracy": 1.0}, {}))
    with pytest.raises(ValueError, match="slow seed 8 was run with another config than planned"):
        planned.judge(planned.read(folder), folder)


def test_a_finished_comparison_must_be_complete(folder):
    write(folder, entry("slow") + "finished = true\n")
    plan = planned.read(folder)
    store(folder, "plain", [90.0, 91.0, 92.0])
    store(folder, "slow", [91.0, 92.0])
    with pytest.raises(ValueError, match="to-slow is called finished, but seeds are missing"):
        planned.judge(plan, folder)
    store(folder, "slow", [94.0], first=9)
    assert planned.judge(plan, folder)[0].done == 3


# ---------------------------------------------------------------------------------------------- analysis


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([1.0, 2.0, 3.0], [2.0, 3.5, 4.0]),
        ([70.1, 69.5, 70.9, 70.0], [70.3, 69.1, 71.5, 70.6]),
        ([0.0, 9.0], [5.0, 1.0]),
    ],
)
def test_paired_is_students_test_of_the_differences(one, other):
    mean, interval, p = paired(one, other)
    differences = [b - a for a, b in zip(one, other, strict=True)]
    t = fmean(differences) / (stdev(differences) / math.sqrt(len(differences)))
    if len(one) == 3:  # t with 2 degrees of freedom has a closed form
        assert p == pytest.approx(1 - abs(t) / math.sqrt(2 + t * t), rel=1e-6)
    stats = pytest.importorskip("scipy.stats")
    found = stats.ttest_rel(other, one)
    assert p == pytest.approx(found.pvalue, abs=2e-6)
    low, high = found.confidence_interval(0.95)
    assert (mean - interval, mean + interval) == pytest.approx((low, high), rel=1e-6)


def test_paired_without_spread_decides_nothing():
    assert paired([1.0], [2.0]) == (1.0, None, None)
    assert paired([1.0, 2.0], [2.0, 3.0]) == (1.0, None, None)
    with pytest.raises(ValueError, match="shorter"):
        paired([1.0, 2.0], [2.0])


def test_only_complete_comparisons_are_judged(folder):
    plan = planned.read(folder)
    store(folder, "plain", [90.0, 91.0, 92.0])
    store(folder, "slow", [95.0, 96.01, 96.99][::-1])  # stored in any order
    store(folder, "fast", [1.0, 2.0])
    store(folder, "fast", [3.0], first=0)  # not a planned seed
    slow, fast = planned.judge(plan, folder)
    assert (fast.effect, fast.verdict, fast.done, fast.left) == (None, "running", 2, 6.0)
    effect = paired([90.0, 91.0, 92.0], [96.99, 96.01, 95.0])
    assert slow.effect == effect
    assert slow.corrected == holm([effect.p, 1.0])[0] == 2 * effect.p
    assert (slow.paper, slow.means) == (1.5, pytest.approx((91.0, 96.0)))
    assert slow.verdict == "undecided"  # paired by seed the differences are 6.99, 5.01 and 3
    text = str(planned.status(plan, folder))
    assert "running: 2 of 3 seeds" in text
    assert "8 of 9 runs are finished; the others take about 0.1 core-hours" in text


def test_verdicts(folder):
    plan = planned.read(folder)
    store(folder, "plain", [90.0, 91.0, 92.0])
    store(folder, "slow", [95.0, 96.01, 96.99])
    store(folder, "fast", [80.0, None, 82.0], failed="step 3: the loss is nan")
    slow, fast = planned.judge(plan, folder)
    assert (slow.verdict, fast.verdict, fast.effect) == ("better", "diverged", None)
    store(folder, "fast", [80.0, 81.01, 82.0])
    assert [judged.verdict for judged in planned.judge(plan, folder)] == ["better", "worse"]


# ---------------------------------------------------------------------------------------------- runs


def test_what_is_left_pair_by_pair_and_shared_rows_once(folder):
    plan = planned.read(folder)
    left = [(task.row, task.seed) for task in planned.missing(plan, folder)]
    pairs = [(row, seed) for seed in (7, 8, 9) for row in ("plain", "slow")]
    assert left == [*pairs, ("fast", 7), ("fast", 8), ("fast", 9)]
    store(folder, "plain", [90.0, 91.0], cpu_seconds=120)
    tasks = planned.missing(plan, folder, ["to-slow"])
    assert [(task.row, task.seed, task.minutes) for task in tasks] == [
        ("slow", 7, 2), ("slow", 8, 2), ("plain", 9, 2), ("slow", 9, 2),
    ]  # fmt: skip
    with pytest.raises(ValueError, match="unknown comparison 'to-slo', did you mean 'to-slow'"):
        planned.missing(plan, folder, ["to-slo"])


def test_a_row_that_another_process_trains_comes_later(folder, monkeypatch):
    first, second = planned.missing(planned.read(folder), folder, ["to-slow"])[:2]
    begun = []

    def run_all(module, tasks, request, ended, *, waits_for, **options):
        begun.extend(task for task in tasks if not waits_for(task, tasks))
        return []

    monkeypatch.setattr(runner, "run_all", run_all)
    with run_folders.lock(runner._folder(first, folder / "runs")):
        runner.run([first, second], folder, folder / "runs")
    assert begun == [second]
    runner.run([first], folder, folder / "runs")
    assert begun == [second, first]


def test_a_result_keeps_its_cost(folder):
    """A process that finds a run finished knows no cost."""
    store(folder, "plain", [90.0], cpu_seconds=5)
    store(folder, "plain", [90.0], seconds=9)
    assert results.read(folder, "plan.made")[0].facts == {"cpu_seconds": 5}


@pytest.mark.slow
def test_the_command_runs_resumes_and_says_what_is_left(folder, monkeypatch, capsys):
    workers_in_this_process(monkeypatch, lambda request: worker.run(request).to_tree())
    store(folder, "plain", [90.0, 91.0])
    places = ["--results", str(folder), "--runs", str(folder / "runs")]
    assert main(["reproduce", "--plan", "--show", *places]) == 0
    assert "7 of 9 runs" not in capsys.readouterr().out
    assert main(["reproduce", "--plan", "--rows", "to-slow", *places]) == 0
    out, told = capsys.readouterr()
    assert "6 of 6 runs are finished." in out
    assert "to-fast" not in out
    assert told.count("begins") == 4
    assert main(["reproduce", "--plan", "--json", "--show", *places]) == 0
    tree = json.loads(capsys.readouterr().out)
    assert (tree["runs"], tree["missing"]) == (9, 3)
    assert tree["rows"][0]["comparison"]["name"] == "to-slow"
    for wrong in (["plan.made"], ["--seeds", "2"], ["--full"]):
        assert main(["reproduce", "--plan", *wrong, *places]) == 2
        assert "--plan does not go with" in capsys.readouterr().err


# ---------------------------------------------------------------------------------------------- the page


def test_the_page_shows_the_plan_before_exploration(folder):
    store(folder, "plain", [90.0, 91.0, 92.0])
    store(folder, "slow", [95.0, 96.01, 96.99])
    text = page.markdown(folder, [])
    parts = ["## The plan", "2 comparisons: 1 better, 0 worse, 0 undecided, 1 running", "| to-slow |", "## Exploration"]
    places = [text.index(part) for part in parts]
    assert all(one < other for one, other in pairwise(places))
    assert "| running: 0 of 3 seeds |" in text
    (folder / page.FINDINGS).write_text('"to-slow" = "It came out."')
    assert "Slower is better. It came out." in page.markdown(folder, [])
    (folder / page.FINDINGS).write_text('"to-fast" = "It came out."')
    with pytest.raises(ValueError, match="to-fast is not complete"):
        page.markdown(folder, [])


def test_make_tables_refuses_a_plan_that_does_not_fit(folder, monkeypatch, capsys):
    monkeypatch.setattr(make_tables, "generated", lambda: {Path("results.md"): page.markdown(folder, [])})
    write(folder, entry("slow", hashes=("0" * 16, "0" * 16)))
    assert make_tables.main() == 1
    assert "make_tables: " in (told := capsys.readouterr().err)
    assert "plain has changed since it was planned" in told
