"""`hypersphere reproduce`: rows run in processes, results beside the paper's values, a page made of them."""

import json
import math
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
from tools import results_page as page

from hypersphere import __version__
from hypersphere._internal import checksummed_json
from hypersphere.cli import main
from hypersphere.papers import tables
from hypersphere.papers.reproduce import compare, metrics, planned, results, runner, worker
from hypersphere.papers.reproduce.statistics import agreement, confidence, holm, mean_and_deviation, welch
from hypersphere.papers.table import PaperTable, Scoring, TableRow
from hypersphere.train import fit, processes
from hypersphere.train.config import derive
from hypersphere.train.recipes import digits
from tests.runs import workers_in_this_process

pytestmark = pytest.mark.slow


def short(**changes):
    return derive(digits.plain(), {"data.validation": 0.2, "steps": 4, "eval_every": 2, **changes})


def seeds_only(seed):
    return {"energy": 1.0 + seed}


def made():
    rows = (
        TableRow("plain", 90.0, short(), short(), seeds=2),
        TableRow("second", 91.0, short(), short(), start="plain"),
        TableRow("full-only", 92.0, short()),
    )
    return PaperTable("a table for tests", "accuracy", rows, "four steps.", minutes=0.2)


def computed():
    return PaperTable(
        "computed", "energy", (TableRow("one", 1.5, compute=seeds_only, seeds=3), TableRow("two", compute=seeds_only))
    )


@pytest.fixture
def own_tables(monkeypatch):
    monkeypatch.setitem(tables.TABLES, "opt.made", made)
    monkeypatch.setitem(tables.TABLES, "opt.computed", computed)


@pytest.fixture
def in_process(monkeypatch):
    """Run the worker's function here: the tables of this file are unknown to another process."""
    workers_in_this_process(monkeypatch, lambda request: worker.run(request).to_tree())


def store(folder, name, row, values, **facts):
    """Store the metrics of each seed as the results of a row."""
    config = results.fingerprint(tables.load(name), row, "small")
    for seed, measured in enumerate(values):
        results.add(folder, name, results.RunResult(row.name, seed, "small", config, measured, facts))


# Statistics


@pytest.mark.parametrize(
    ("one", "other"),
    [([1.0, 2.0, 3.0], [4.0, 5.0, 6.0]), ([1.0, 1.1], [1.05, 1.2, 0.7, 0.9]), ([3.0, 9.0], [-40.0, 50.0])],
)
def test_welch_is_scipys(one, other):
    stats = pytest.importorskip("scipy.stats")
    found = stats.ttest_ind(one, other, equal_var=False)
    assert welch(one, other) == pytest.approx(found.pvalue, abs=2e-6)
    low, high = found.confidence_interval(0.95)
    assert confidence(one, other) == pytest.approx((high - low) / 2, rel=1e-6)


def test_holm_is_the_literal_procedure():
    """Reject in the order of the p-values while p < level/(number left)."""
    p_values = [0.04, 0.001, 0.012, 0.9, 0.013, 0.001]
    corrected = holm(p_values)
    for level in (0.005, 0.01, 0.05, 0.06, 0.2):
        rejected = set()
        for done, p in enumerate(sorted(p_values)):
            if p >= level / (len(p_values) - done):
                break
            rejected.add(p)
        assert {p for p, q in zip(p_values, corrected, strict=True) if q < level} == rejected
    assert holm([]) == []


def test_welch_at_the_edges():
    assert welch([1.0], [2.0, 3.0]) is None
    assert confidence([1.0], [2.0, 3.0]) is None
    assert welch([1.0, 1.0], [2.0, 2.0]) is None  # two equal values do not say that there is no spread
    assert welch([1.0, 1.0], [2.0, 2.1]) < 0.1
    assert mean_and_deviation([2.0]) == (2.0, None)


def test_order_of_rows():
    low, high, wide = [1.0, 1.1, 0.9], [2.0, 2.1, 1.9], [0.0, 1.0, 5.0]
    none = {"same": 0, "opposite": 0, "undecided": 0, "untested": 0}
    assert agreement([1, 2], [high, low]) == none | {"opposite": 1}
    assert agreement([1, 2], [low, wide]) == none | {"undecided": 1}
    assert agreement([1, 1], [low, high]) == none
    assert agreement([1, None, 2], [low, low, high]) == none | {"same": 1}
    assert agreement([1, 2], [low, []]) == none
    assert agreement([1, 2], [low, [2.0]]) == none | {"untested": 1}


# Running


def test_missing_rows_run_once(own_tables, in_process, tmp_path):
    folder, runs = tmp_path / "results", tmp_path / "runs"
    tasks = runner.missing("opt.made", folder)
    assert [(task.row, task.seed) for task in tasks] == [("plain", 0), ("second", 0), ("plain", 1)]
    assert runner.run(tasks, folder, runs) == []
    assert runner.missing("opt.made", folder) == []
    assert [task.seed for task in runner.missing("opt.made", folder, rows=["plain"], seeds=3)] == [2]
    found = compare.compare("opt.made", folder)
    plain, second, full_only = found.rows
    assert (plain.seeds, second.seeds, full_only.mean) == (2, 1, None)
    assert str(found).startswith("row        paper")
    first, second = (next((runs / "opt.made/small" / row).glob("*/seed0")) for row in ("plain", "second"))
    assert json.loads((second / "config.json").read_text())["init_from"] == str(first)
    request = {**vars(tasks[0]), "runs": str(tmp_path / "other"), "threads": 1, "device": "cpu", "root": None}
    again = worker.run(request)
    assert again.metrics == results.read(folder, "opt.made")[0].metrics  # a second run gives the same numbers
    assert again.seconds == again.facts["cpu_seconds"] > 0
    resumed = worker.run(request)  # of the CPU's time before, nobody knows
    assert "cpu_seconds" not in resumed.facts
    assert resumed.seconds == resumed.facts["seconds"]


def test_a_changed_row_runs_again(own_tables, in_process, monkeypatch, tmp_path):
    runner.run(runner.missing("opt.made", tmp_path, rows=["plain"], seeds=1), tmp_path, tmp_path / "runs")
    changed = replace(made(), rows=(replace(made().rows[0], small=short(steps=5)), *made().rows[1:]))
    monkeypatch.setitem(tables.TABLES, "opt.made", lambda: changed)
    assert [task.row for task in runner.missing("opt.made", tmp_path, rows=["plain"], seeds=1)] == ["plain"]
    assert compare.compare("opt.made", tmp_path).rows[0].seeds == 0
    runner.run(runner.missing("opt.made", tmp_path, rows=["plain"], seeds=1), tmp_path, tmp_path / "runs")
    assert compare.compare("opt.made", tmp_path).rows[0].seeds == 1  # in a folder of its own
    assert len([*(tmp_path / "runs/opt.made/small/plain").iterdir()]) == 2


def test_what_decides_a_result_is_in_its_fingerprint():
    def of(table, number=0):
        return results.fingerprint(table, table.rows[number], "small")

    table = made()
    plain, second, _ = table.rows
    other_start = replace(table, rows=(replace(plain, small=short(steps=5)), second))
    others = [replace(table, target=50), replace(table, scoring=Scoring("plain", 3)), other_start]
    assert len({of(table), *map(of, others)}) == 4
    assert of(table, 1) != of(other_start, 1)  # a second stage is another if its first is
    alone = replace(second, start=None)
    scored = replace(table, metric="score", scoring=Scoring("plain", 3), rows=(plain, alone))
    other_classifier = replace(scored, rows=(other_start.rows[0], alone))
    assert of(scored, 1) != of(other_classifier, 1)
    places = [worker.RunLocation(each, "opt.made", "small", "runs") for each in (scored, other_classifier, other_start)]
    assert places[0].folder(alone, 0) == places[1].folder(alone, 0)  # it is not trained again
    assert places[1].folder(second, 0) == places[2].folder(second, 0) != places[0].folder(second, 0)
    computes = [partial(seeds_only, seed=1), partial(seeds_only, seed=2), seeds_only]
    found = [of(replace(table, rows=(TableRow("one", compute=each),))) for each in computes]
    assert len(set(found)) == 3


def test_a_second_stage_trains_the_first_if_it_is_not_there(own_tables, in_process, tmp_path):
    runner.run(runner.missing("opt.made", tmp_path, rows=["plain"], seeds=1), tmp_path, tmp_path / "elsewhere")
    assert runner.run(runner.missing("opt.made", tmp_path, rows=["second"]), tmp_path, tmp_path / "runs") == []
    assert compare.compare("opt.made", tmp_path).rows[1].seeds == 1


def test_an_accuracy_on_classes_trained_on_is_no_few_shot(tmp_path):
    result = fit(short(out=str(tmp_path / "run")), progress=False)
    for metric in ("few_shot", "verification"):
        with pytest.raises(ValueError, match=f"{metric} needs test classes that are not trained on; those of digits"):
            metrics.metrics_of(replace(made(), metric=metric), result, None)


def test_a_run_of_another_table_counts_too(own_tables, in_process, monkeypatch, tmp_path):
    other = PaperTable(
        "other", "error", (TableRow("same", 9.0, short(), short(), 3), TableRow("new", 8.0, None, short(steps=3)))
    )
    monkeypatch.setitem(tables.TABLES, "opt.other", lambda: other)
    runner.run(runner.missing("opt.made", tmp_path), tmp_path, tmp_path / "runs")  # "plain" with two seeds
    tasks = runner.missing("opt.other", tmp_path)
    assert [(task.row, task.seed) for task in tasks] == [("new", 0), ("same", 2)]
    assert runner.run(tasks, tmp_path, tmp_path / "runs") == []
    there, here = (compare.compare(name, tmp_path).rows for name in ("opt.made", "opt.other"))
    assert [row.seeds for row in there[:2]] == [3, 1]  # in both directions
    assert [row.seeds for row in here] == [3, 1]
    assert here[0].values == pytest.approx([100 - value for value in there[0].values])
    counted = [[entry.seconds for entry in results.read(tmp_path, name)] for name in ("opt.made", "opt.other")]
    assert sum(row.seconds for row in there) == pytest.approx(sum(counted[0]))  # a run's time counts once
    assert sum(row.seconds for row in here) == pytest.approx(sum(counted[1]))


def test_a_training_that_diverges_is_recorded(own_tables, in_process, monkeypatch, tmp_path, capsys):
    rows = (TableRow("plain", 90.0, None, short(), 2), TableRow("wild", 80.0, None, short(**{"optimizer.lr": 1e25}), 2))
    monkeypatch.setitem(tables.TABLES, "opt.wild", lambda: PaperTable("diverges", "accuracy", rows))
    argv = ["reproduce", "opt.wild", "--results", str(tmp_path), "--runs", str(tmp_path / "runs")]
    assert main(argv) == 0
    out, err = capsys.readouterr()
    assert "wild   80.00  diverged (2 of 2)      2                      –" in out
    assert "opt.wild wild seed 0: step " in err
    assert runner.missing("opt.wild", tmp_path) == []  # it would diverge again
    assert main([*argv, "--json"]) == 0
    plain, wild = json.loads(capsys.readouterr().out)["rows"]
    assert (plain["failed"], wild["failed"], wild["mean"], wild["against"]) == (0, 2, None, None)
    assert "| wild | 80.00 | diverged (2 of 2) | 2 | – |" in page._section(compare.compare("opt.wild", tmp_path))


def test_computed_rows(own_tables, in_process, tmp_path, capsys):
    assert main(["reproduce", "opt.computed", "--results", str(tmp_path), "--runs", str(tmp_path / "runs")]) == 0
    out = capsys.readouterr().out
    assert "one    1.5     2 ± 1      3                      –" in out
    assert main(["reproduce", "opt.computed", "--results", str(tmp_path), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [(row["mean"], row["deviation"]) for row in rows] == [(2.0, 1.0), (1.0, None)]


def test_results_of_another_version_are_kept_and_not_mixed(own_tables, in_process, tmp_path, monkeypatch):
    monkeypatch.setattr(results, "__version__", "0.0.1")
    runner.run(runner.missing("opt.computed", tmp_path), tmp_path, tmp_path)
    old = results.path_of(tmp_path, "opt.computed").read_bytes()
    monkeypatch.setattr(results, "__version__", __version__)
    assert results.read(tmp_path, "opt.computed") == []
    with pytest.warns(UserWarning, match=r"was written by version 0.0.1 of hypersphere: kept as"):
        runner.run(runner.missing("opt.computed", tmp_path, seeds=1), tmp_path, tmp_path)
    assert (tmp_path / "opt.computed.version-0.0.1.json").read_bytes() == old
    other = checksummed_json.with_checksum({"format": 2, "hypersphere": "0.0.1", "runs": []})
    results.path_of(tmp_path, "opt.computed").write_text(other)
    with pytest.warns(UserWarning, match=r"kept as opt.computed.version-0.0.1-2.json"):
        runner.run(runner.missing("opt.computed", tmp_path, seeds=1), tmp_path, tmp_path)
    assert (tmp_path / "opt.computed.version-0.0.1.json").read_bytes() == old
    assert (tmp_path / "opt.computed.version-0.0.1-2.json").read_text() == other
    assert len(results.read(tmp_path, "opt.computed")) == 2


def test_commands_that_add_to_the_same_file_lose_nothing(tmp_path):
    with ThreadPoolExecutor(8) as pool:
        added = [
            pool.submit(results.add, tmp_path, "opt.1", results.RunResult("row", seed, "small", "", {"error": 1.0}))
            for seed in range(24)
        ]
    assert [each.result() for each in added] == [None] * 24
    assert sorted(each.seed for each in results.read(tmp_path, "opt.1")) == [*range(24)]


def test_a_damaged_results_file(own_tables, tmp_path, capsys):
    file = results.path_of(tmp_path, "opt.computed")
    file.write_text(checksummed_json.with_checksum({"format": 2, "hypersphere": __version__, "runs": [{"a": 1}]}))
    assert main(["reproduce", "opt.computed", "--results", str(tmp_path)]) == 2
    assert "is malformed: TypeError" in capsys.readouterr().err
    for wrong in ({"figures": {}}, {"figures": {"energy": "a"}}, {"facts": None}, {"seed": "0"}):
        whole = {"row": "one", "seed": 0, "form": "small", "config": "", "figures": {"energy": 1.0}, "facts": {}}
        entry = whole | wrong
        file.write_text(checksummed_json.with_checksum({"format": 2, "hypersphere": __version__, "runs": [entry]}))
        assert main(["reproduce", "opt.computed", "--results", str(tmp_path)]) == 2
        assert f"{file} is malformed: TypeError: not a " in capsys.readouterr().err
    file.write_text(file.read_text().replace("1", "2"))
    assert main(["reproduce", "opt.computed", "--results", str(tmp_path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert main(["reproduce", "--results", str(tmp_path)]) == 0  # the list has the other tables
    out, err = capsys.readouterr()
    assert "opt.10_parameters" in out
    assert err == f"hypersphere: {file} is damaged: the checksum does not match\n"


def test_a_run_in_its_own_process_stops_at_the_budget_and_goes_on(tmp_path):
    """The budget ends while torch is being imported or later; either way nothing is lost and the next run finishes."""
    folder, runs = tmp_path / "results", tmp_path / "runs"
    tasks = runner.missing("opt.10_parameters", folder, rows=["cnn6/opt"])
    assert runner.run(tasks, folder, runs, budget=0.1 / 60) == tasks
    assert results.read(folder, "opt.10_parameters") == []
    lines = []
    assert runner.run(tasks, folder, runs, jobs=2, tell=lines.append) == []
    assert [entry.metrics for entry in results.read(folder, "opt.10_parameters")] == [{"parameters": 1_358_527.0}]
    assert lines[0].startswith("opt.10_parameters cnn6/opt seed 0: begins")


def test_the_minutes_at_reduced_size_are_not_those_of_the_full_size(tmp_path):
    assert {task.minutes for task in runner.missing("mhe.8", tmp_path)} == {2.5}
    assert {task.minutes for task in runner.missing("mhe.8", tmp_path, full=True)} == {0.0}


@pytest.mark.parametrize("size", [[], ["--full"]])
def test_missing_data_are_one_line_before_anything_begins(size, tmp_path, capsys):
    argv = ["reproduce", "opt.1", *size, "--data.root", str(tmp_path)]
    assert main([*argv, "--results", str(tmp_path / "r"), "--runs", str(tmp_path / "runs")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"hypersphere reproduce: cifar100 not found in {tmp_path}: ")
    assert list(tmp_path.iterdir()) == []


def test_data_that_some_rows_have_are_enough_to_begin(own_tables, tmp_path):
    tasks = [
        runner.RowRun(table, row, 0, "small", 1.0)
        for table, row in (("opt.1", "cnn6/baseline"), ("opt.computed", "one"))
    ]
    runner.check_data(tasks, str(tmp_path))
    with pytest.raises(ValueError, match="cifar100 not found"):
        runner.check_data(tasks[:1], str(tmp_path))


@pytest.mark.parametrize(
    ("ends", "said"),
    [
        ("kill -KILL $$", "killed by SIGKILL; the system does this when memory runs out"),
        ("kill -SEGV $$", "killed by SIGSEGV"),
        ("exit 2", "the last line"),
    ],
)
def test_a_worker_that_dies_says_of_what(ends, said, tmp_path):
    with (tmp_path / "errors").open("w+") as errors:
        command = ["sh", "-c", f"echo a warning >&2; echo the last line >&2; {ends}"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
        process.wait()
        with pytest.raises(processes.RunFailed, match=f"^row: {said}$"):
            processes._answer(processes.Running(SimpleNamespace(name="row"), process, errors))


def test_rows_after_one_that_fails_run_unless_none_has_succeeded(own_tables, tmp_path, monkeypatch):
    def run(request):
        if request["row"] in failing:
            return {"failed": request["row"]}
        return results.RunResult(
            request["row"], request["seed"], "small", "c", {"accuracy": 90.0}, {"seconds": 1.0}
        ).to_tree()

    def answer(each):
        if "failed" in (found := answered(each)):
            raise processes.RunFailed(f"{each.task.name}: {found['failed']}")
        return found

    workers_in_this_process(monkeypatch, run)
    answered = processes._answer
    monkeypatch.setattr(processes, "_answer", answer)
    tasks = runner.missing("opt.computed", tmp_path)
    assert [(each.row, each.seed) for each in tasks] == [("one", 0), ("two", 0), ("one", 1), ("one", 2)]
    for failing, done in ((("two",), [("one", 0), ("one", 1), ("one", 2)]), (("one",), [])):
        folder = tmp_path / failing[0]
        with pytest.raises(processes.RunFailed, match=f"opt.computed {failing[0]} seed 0: {failing[0]}$"):
            runner.run(tasks, folder, tmp_path)
        assert [(each.row, each.seed) for each in results.read(folder, "opt.computed")] == done


def test_steps_to_an_accuracy(tmp_path):
    result = fit(short(out=str(tmp_path / "run")), progress=False)
    lines = [line for line in result.metrics if line.split == "validation"]
    best = max(line.accuracy for line in lines)
    table = PaperTable("", "steps", (TableRow("a"),), target=100 * best)
    expected = next(line.step for line in lines if line.accuracy >= best)
    assert metrics.metrics_of(table, result, None)["steps"] == expected
    assert metrics.metrics_of(replace(table, target=101.0), result, None)["steps"] == 5  # never reached
    with pytest.raises(ValueError, match="has no metric score"):
        metrics.metrics_of(replace(table, metric="score"), replace(result, path=None), None)


# Command line


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        (["opt.1x"], "unknown table 'opt.1x', did you mean 'opt.1'? (one of spherenet.1, "),
        (["opt.1", "--rows", "cnn6/gs"], "unknown row 'cnn6/gs', did you mean 'cnn6/gs-fixed'? (one of "),
        (["opt.1", "--rows", "cnn9/baseline"], "row cnn9/baseline of opt.1 does not exist at reduced size; use --full"),
        (["opt.1", "--budget", "0"], "argument --budget: must be a number of minutes above 0, got '0'"),
        (["opt.1", "--budget", "0.001"], "--budget 0.001 is too small: one run of opt.1 takes about "),
        (["--rows", "a"], "--rows needs a table: hypersphere reproduce TABLE --rows A,B"),
        (["opt.1", "--rows", ","], "--rows must name rows, such as A,B; got ','"),
        (["opt.1", "--runs", __file__ + "/x"], f"--runs must be a folder, but {__file__} is a file"),
        (["opt.1", "--seeds", "0"], "argument --seeds: must be an integer from 1 to 1,000, got '0'"),
    ],
)
def test_bad_input(argv, line, capsys, tmp_path):
    assert main(["reproduce", *argv, "--results", str(tmp_path)]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"hypersphere reproduce: {line}")
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_list_of_tables(own_tables, in_process, tmp_path, capsys):
    assert main(["reproduce", "--results", str(tmp_path), "--json"]) == 0
    before = {each["table"]: each for each in json.loads(capsys.readouterr().out)}
    assert list(before) == list(tables.TABLES)
    assert (before["opt.computed"]["done"], before["opt.computed"]["runs"]) == (0, 4)
    assert math.isclose(before["opt.made"]["minutes"], 3 * 0.2)
    assert before["opt.made"]["cost"] == before["opt.made"]["minutes"]
    main(["reproduce", "opt.computed", "--results", str(tmp_path)])
    capsys.readouterr()
    assert main(["reproduce", "--results", str(tmp_path)]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if "opt.computed" in line)
    assert line.split()[2:] == ["4", "of", "4", "4.0", "0.0", "computed"]  # the table states a minute a run


def test_rows_that_exist_at_full_size_only(own_tables, tmp_path, capsys):
    argv = ["reproduce", "--results", str(tmp_path)]
    main(argv)
    line = next(line for line in capsys.readouterr().out.splitlines() if "opt.made" in line)
    assert line.split()[1:4] == ["2", "of", "3"]
    assert main([*argv, "opt.made", "--show"]) == 0
    assert [line.split()[2] for line in capsys.readouterr().out.splitlines()[3:6]] == ["–", "–", "only"]
    assert main([*argv, "opt.2", "--show"]) == 0  # no row exists at reduced size: the paper's values
    assert "33.02  only --full" in capsys.readouterr().out


def test_only_the_chosen_rows_and_their_first_are_shown(own_tables, tmp_path, capsys):
    argv = ["reproduce", "opt.made", "--show", "--results", str(tmp_path), "--rows"]
    assert main([*argv, "second"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()[3:]] == ["plain", "second"]
    assert main([*argv, "secnd"]) == 2
    assert "did you mean 'second'" in capsys.readouterr().err


def test_a_run_that_has_begun_goes_on_in_any_budget(own_tables, in_process, tmp_path, capsys):
    argv = ["reproduce", "opt.made", "--rows", "plain", "--seeds", "1", "--budget", "0.1"]
    argv += ["--results", str(tmp_path / "results"), "--runs", str(tmp_path / "runs")]
    assert main(argv) == 2
    assert "takes about 0.2 minutes" in capsys.readouterr().err
    table = tables.load("opt.made")
    results.run_folder(tmp_path / "runs", "opt.made", table, table.row("plain"), "small", 0).mkdir(parents=True)
    assert main(argv) == 0
    assert [each.row for each in results.read(tmp_path / "results", "opt.made")] == ["plain"]


def test_the_clock_of_a_resumed_run_is_no_estimate(own_tables):
    table = tables.load("opt.made")

    def minutes(size, **facts):
        entries = [results.RunResult("plain", 0, size, "", {}, facts)]
        return runner.estimate(table, table.row("plain"), {"plain": entries, "second": [], "full-only": []})

    assert minutes("small", seconds=6000.0) == 0.2
    assert minutes("small", seconds=6000.0, cpu_seconds=30.0) == 0.5
    assert minutes("full", seconds=6000.0) == 100.0


def test_further_metrics_say_how_many_runs_have_them(tmp_path, monkeypatch):
    monkeypatch.setitem(
        tables.TABLES, "opt.target", lambda: PaperTable("t", "energy", (TableRow("a", compute=seeds_only),), target=60)
    )
    values = [{"energy": 1.0, "steps": steps} for steps in (40.0, 101.0)]
    store(tmp_path, "opt.target", tables.load("opt.target").rows[0], values, steps=100)
    (row,) = compare.compare("opt.target", tmp_path).rows
    assert row.also["steps"].text_beside_reported() == "40 (1 of 2 reached it)"


def test_a_row_is_a_recipe():
    assert tables.load_row("opt.1/cnn6/gs-fixed").rotation.method == "gram_schmidt"
    with pytest.warns(UserWarning, match=r"starts from the weights of mhe.8/m4/sphereface: give its run with"):
        tables.load_row("mhe.8/m4/sphereface+")
    with pytest.raises(ValueError, match=r"opt.1: unknown row 'cnn6/gs-fixd', did you mean 'cnn6/gs-fixed'"):
        tables.load_row("opt.1/cnn6/gs-fixd")
    with pytest.raises(ValueError, match="trains nothing: use `hypersphere reproduce"):
        tables.load_row("opt.10_parameters/cnn6/opt")


def test_rows_are_checked():
    with pytest.raises(ValueError, match="lower case without spaces, got 'A b'"):
        TableRow("A b")
    with pytest.raises(ValueError, match="different names, got a twice"):
        PaperTable("", "error", (TableRow("a"), TableRow("a")))
    with pytest.raises(ValueError, match="metric must be one of"):
        PaperTable("", "errors", (TableRow("a"),))


def test_memory_at_full_size_is_on_the_page(tmp_path):
    parts = "(weights 0.01, gradients 0.01, state 0.01, kept 0.20)"
    lines = [f"opt.1/{row}: {size} GB at batch 128 {parts}\n" for row, size in (("cnn6/a", 0.23), ("cnn6/b", 1.2))]
    (tmp_path / "memory.txt").write_text("".join(lines))
    assert "| OPT, Table 1 | 2 | 0.23 | 1.20 | `cnn6/b` | 128 |\n" in page.markdown(tmp_path, [])


def test_interrupted(tmp_path):
    """Ctrl-C stops the rows, says how to go on and exits with 130."""
    argv = [sys.executable, "-m", "hypersphere", "reproduce", "opt.10_parameters", "--results", str(tmp_path)]
    process = subprocess.Popen(argv, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    assert "begins" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    begin = time.monotonic()
    assert process.wait(60) == 130
    assert time.monotonic() - begin < 60
    assert process.stderr.read().splitlines()[-1] == "hypersphere reproduce: stopped; repeat the command to go on"


def test_steps_that_were_never_reached_are_no_measurement(tmp_path, monkeypatch, capsys):
    rows = tuple(TableRow(name, compute=seeds_only, seeds=2, also={"class0_error": 30.0}) for name in ("slow", "fast"))
    monkeypatch.setitem(tables.TABLES, "opt.steps", lambda: PaperTable("steps", "steps", rows, target=60))
    slow, fast = rows
    store(tmp_path, "opt.steps", slow, [{"steps": steps, "accuracy": 50.0} for steps in (101.0, 80.0)], steps=100)
    store(tmp_path, "opt.steps", fast, [{"steps": 40.0, "accuracy": 70.0, "class0_error": 9}] * 2, steps=100)
    slow, fast = compare.compare("opt.steps", tmp_path).rows
    assert (slow.text(), fast.text(), fast.against) == ("not reached (1 of 2)", "40 ± 0", None)
    assert main(["reproduce", "opt.steps", "--results", str(tmp_path)]) == 0
    head, columns, *lines = capsys.readouterr().out.splitlines()
    assert head == "opt.steps: steps; steps to 60 % validation accuracy"
    assert columns.split()[-7:] == ["error", "of", "class", "0", "(%)", "accuracy", "(%)"]
    assert lines[0].split()[-6:] == ["–", "(paper", "30.00)", "50.00", "±", "0"]
    assert lines[1].split()[-8:] == ["9.00", "±", "0", "(paper", "30.00)", "70.00", "±", "0"]
    text = page._section(compare.compare("opt.steps", tmp_path))
    assert "| error of class 0 (%) | accuracy (%) |\n" in text
    assert "| fast | – | 40 ± 0 | 2 | – | 9.00 ± 0 (paper 30.00) | 70.00 ± 0 |\n" in text
    assert page.picture(compare.compare("opt.steps", tmp_path)) is None


def test_clipped_gradients_are_said_where_a_config_clips(tmp_path):
    def said(name):
        found = compare.compare(name, tmp_path)
        return [compare.CLIPPED in text for text in (found.reduced, found.differs)]

    names = ("mhe.1", "mhe.3", "mhe.8", "mhe.14", "opt.1", "opt.5", "opt.6", "opt.7", "opt.13", "spherenet.1")
    # MLPs, which alone exist at reduced size, do not clip
    both, neither, full = [True, True], [False, False], [False, True]
    expected = (both, neither, neither, neither, both, neither, full, full, neither, neither)
    assert [said(name) for name in names] == [*expected]
    assert compare.compare("opt.7", tmp_path).differs.startswith("The hidden linear layer has 12,544 inputs")


def test_limited_gradients_are_said_where_a_row_limits_them(tmp_path):
    """Those of a loss head's energy."""
    limited = {name: compare.LIMITED in compare.compare(name, tmp_path).differs for name in ("mhe.1", "mhe.8")}
    assert limited == {"mhe.1": False, "mhe.8": True}


# The page


def test_page_and_pictures_are_made_of_the_results(own_tables, in_process, tmp_path):
    runner.run(runner.missing("opt.computed", tmp_path / "results"), tmp_path / "results", tmp_path)
    files = page.generated(tmp_path)
    text = files[tmp_path / "docs" / "results.md"]
    assert "| one | 1.5 | 2 ± 1 | 3 | – |" in text
    assert "hypersphere reproduce opt.computed" in text
    svg = files[tmp_path / "docs" / "pictures/results/opt.computed.svg"]
    assert ">two</text>" in svg


def test_the_page_lists_what_the_seeds_decide(tmp_path, monkeypatch):
    values = {"base": (90.0, 90.2), "up": (95.0, 95.1), "down": (80.0, 80.1), "same": (89.0, 91.0), "once": (99.0,)}
    rows = tuple(TableRow(f"a/{name}", 90.0 + i, short(), short(steps=4 + i)) for i, name in enumerate(values))
    monkeypatch.setitem(tables.TABLES, "opt.decided", lambda: PaperTable("decided", "accuracy", rows, "four steps."))
    for row, accuracies in zip(rows, values.values(), strict=True):
        store(tmp_path, "opt.decided", row, [{"accuracy": value} for value in accuracies])
    text = page._decided([compare.compare("opt.decided", tmp_path)])
    assert "3 rows have two seeds or more" in text
    assert "column: 1 are better, 1 worse, 1 undecided by" in text
    assert "1 more have a single seed on one side. So many tests decide about 0 by chance alone" in text
    lines = [line for line in text.splitlines() if line.startswith("| [")]
    assert [line.split(" | ")[1:4] for line in lines] == [
        ["a/base → up", "+4.95", "+1.00"],
        ["a/base → down", "-10.05", "+2.00"],
    ]
    assert ["better" in lines[0], "worse" in lines[1]] == [True, True]
    assert all(line.endswith("| remains |") for line in lines)
    table = compare.compare("opt.decided", tmp_path)
    assert page._tests([table] * 2) == page._tests([table])  # rows that two tables have are tested once


def test_every_table_that_was_trained_says_what_came_out():
    folder = page.Path(page.__file__).parents[1] / "results"
    said = page.findings(folder)
    trained = {each.table for each in page.tables_with_results(folder) if tables.load(each.table).rows[0].full}
    assert trained <= {*said} <= {*tables.TABLES, *(one.name for one in planned.read(folder).comparisons)}
    assert all(text.endswith(".") and "%" not in text for text in said.values())  # numbers come from the results
