"""hypersphere report: what it reads, groups, draws and refuses; test_page_browser.py opens its page."""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
import re
import shutil
import signal
import statistics
from pathlib import Path

import numpy as np
import pytest
import torch

from hypersphere import data
from hypersphere._internal.checksummed_json import with_checksum
from hypersphere.cli import main
from hypersphere.report import networks, report_runs
from hypersphere.report.curves import curve_chart, mean_curve, thin
from hypersphere.report.linechart import Mark
from hypersphere.report.run_curves import _curves, _marks
from hypersphere.report.run_files import (
    RunFiles,
    RunGroup,
    changed_settings,
    differences,
    group_runs,
    read_runs,
    unranked,
)
from hypersphere.report.run_page import _accuracy, build_page
from hypersphere.train import Config, Energy, Optimizer, Rotation, TrainingError, fit, load_run
from hypersphere.train.config import to_tree
from hypersphere.train.storage.metrics import MetricsLine
from hypersphere.train.storage.summary import Summary
from tests.report_runs import curve, train_small, write_run


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    return [train_small(folder / f"small-seed{seed}", seed) for seed in (0, 1)]


# Reading and groups


def test_runs_with_equal_settings_but_the_seed_are_one_group(tmp_path):
    for name, seed, rate in (("a-seed0", 0, 0.1), ("a-seed1", 1, 0.1), ("b-seed0", 0, 0.2), ("b-seed1", 1, 0.2)):
        write_run(tmp_path / name, curve([2.0 + seed, 1.0 + seed]), seed, optimizer={"lr": rate, "momentum": None})
    groups = group_runs(read_runs(sorted(tmp_path.iterdir())))
    assert [(group.name, [run.name for run in group.runs]) for group in groups] == [
        ("a", ["a-seed0", "a-seed1"]),
        ("b", ["b-seed0", "b-seed1"]),
    ]
    assert differences(groups) == {"optimizer.lr": [0.1, 0.2]}


@pytest.mark.parametrize(("name", "groups"), [("image_folder", 2), ("cifar10", 1)])
def test_runs_on_other_images_are_another_group(tmp_path, name, groups):
    """Official files are the same in any folder, a user's own folders are not."""
    for seed, root in enumerate(("cats", "birds")):
        write_run(tmp_path / str(seed), curve([1.0]), seed, data={"name": name, "root": root})
    found = group_runs(read_runs(sorted(tmp_path.iterdir())))
    assert len(found) == groups
    assert differences(found) == ({"data.root": ["cats", "birds"]} if groups == 2 else {})


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["0", "1", "2", "3"], ["lr=0.1", "lr=0.2"]),
        (["x1/seed0", "x1/seed1", "x2/seed0", "x2/seed1"], ["x1", "x2"]),
        (["x0", "x1", "x2", "x3"], ["x0", "x2"]),  # "x" twice tells nothing
    ],
)
def test_names_of_groups(tmp_path, names, expected):
    for i, name in enumerate(names):
        write_run(tmp_path / name, curve([1.0]), i % 2, optimizer={"lr": 0.1 * (1 + i // 2)})
    groups = group_runs(read_runs([tmp_path / name for name in names]))
    assert [group.name for group in groups] == expected


def test_groups_are_named_by_settings_that_are_not_the_default(tmp_path):
    energies = (None, to_tree(Config(energy=Energy()))["energy"])
    for i in range(4):
        write_run(tmp_path / str(i), curve([1.0]), i % 2, energy=energies[i // 2])
    groups = group_runs(read_runs([tmp_path / str(i) for i in range(4)]))
    assert len(differences(groups)) > 5
    assert [group.name for group in groups] == ["measure=None", "measure=energy"]


def test_a_result_that_was_selected_says_so():
    lines = [MetricsLine(step, "validation", values={"accuracy": 0.6 + step % 3 / 10}) for step in (1, 2, 3)]
    rest = {"energies": {}, "samples_per_second": 1.0, "seed": 0, "model": "mlp", "length": (3, None), "versions": {}}
    summary = Summary(3, "validation", seconds=1.0, parameters={}, data={}, accuracy=0.8, best_step=2, **rest)
    run = RunFiles(Path("a"), "a", {}, lines, summary)
    assert _accuracy(RunGroup("a", [run])) == "80.00% (best of 3 evaluations, step 2; last 60.00%)"
    assert _accuracy(RunGroup("a", [run, run])) == "80.00% ± 0.00% (best evaluation of each run)"
    tested = RunFiles(Path("a"), "a", {}, lines, dataclasses.replace(summary, split="test"))
    assert _accuracy(RunGroup("a", [tested])) == "80.00%"


@pytest.mark.slow
def test_summary_is_mean_and_deviation(tmp_path, trained):
    found = report_runs(trained)
    results = [json.loads((path / "result.json").read_text()) for path in trained]
    (group,) = found["groups"]
    for key in ("accuracy", "loss", "energy"):
        values = [result[key] for result in results]
        assert group[key] == pytest.approx(statistics.fmean(values))
        assert group[f"{key}_std"] == pytest.approx(statistics.stdev(values))
    assert [run["accuracy"] for run in found["runs"]] == [result["accuracy"] for result in results]
    unfinished = write_run(tmp_path / "other", curve([3.0, 2.0]) + curve([5.0], "test", accuracy=0.25))
    other = report_runs([*trained, unfinished])["runs"][-1]
    assert (other["finished"], other["accuracy"], other["loss"], other["split"]) == (False, 0.25, 5.0, "test")


def test_damaged_lines_are_left_out_with_a_warning(tmp_path):
    path = write_run(tmp_path / "run", curve([3.0, 2.0]))
    with open(path / "metrics.jsonl", "a") as file:
        file.write('{"step": 20, "loss"\n{"step": 30, "split": "train", "loss": 1.0}\n{"step": 40, "sp')
    with pytest.warns(UserWarning, match="2 of 4 lines are read"):
        (run,) = read_runs([path])
    assert [line.loss for line in run.lines] == [3.0, 2.0]


# Curves


def test_mean_curve_is_the_literal_mean():
    parts = [{0: 1.0, 10: 2.0, 20: 4.0}, {0: 3.0, 20: 8.0}, {0: 5.0, 20: 6.0, 30: 7.0}]
    found = mean_curve(parts)
    expected = {}
    for points in parts:
        for step, value in points.items():
            expected.setdefault(step, []).append(value)
    assert (100 * found.mean).tolist() == pytest.approx(mean_curve(parts, 100).mean.tolist())
    assert found.steps.tolist() == sorted(expected)
    for step, mean, std in zip(*found, strict=True):
        values = expected[step]
        assert mean == pytest.approx(statistics.fmean(values))
        assert std == pytest.approx(statistics.stdev(values) if len(values) > 1 else 0)


@pytest.mark.parametrize("length", [1, 1600, 1601])
def test_thinning_keeps_every_peak(length):
    values = np.random.default_rng(0).normal(size=length)
    values[length // 3] = 99.0
    kept = thin(values)
    assert len(kept) <= 1600
    for part in np.array_split(np.arange(length), min(length, 400)):
        inside = values[np.intersect1d(part, kept)]
        assert (inside.min(), inside.max()) == (values[part].min(), values[part].max())
        assert {part[0], part[-1]} <= set(kept.tolist())


def test_band_covers_the_deviation():
    rng = np.random.default_rng(0)
    mean = mean_curve([dict(enumerate(rng.normal(size=5000))) for _ in range(3)])
    (line,) = curve_chart({"a": mean}, title="").lines
    y, spread = np.array(line.y), np.array(line.spread)
    assert ((y + spread).max(), (y - spread).min()) == ((mean.mean + mean.std).max(), (mean.mean - mean.std).min())
    assert (y.min(), y.max()) == (mean.mean.min(), mean.mean.max())
    assert len(line.x) < 2500


def test_wide_curves_are_logarithmic():
    wide = curve_chart({"a": mean_curve([{0: 200.0, 1: 0.1}, {0: 1.0, 1: 3.1}])}, title="")
    narrow = curve_chart({"a": mean_curve([{0: 1.0, 1: 20.0}])}, title="")
    assert (">10</text>" in wide.svg, ">100</text>" in wide.svg) == (True, True)
    assert ">5</text>" in narrow.svg
    rate = curve_chart({"a": mean_curve([{0: 0.1, 1: 1e-9}])}, title="", ylabel="lr")
    assert ">0.04</text>" in rate.svg


def test_diverged_run_is_marked(tmp_path):
    """At its last value, or by a line across the chart if it has none."""
    good = write_run(tmp_path / "good", curve([3.0, 2.0, 1.0]))
    lines_of_lost = [*curve([4.0, 9.0]), {"step": 14, "split": "train", "loss": None}]
    lost = write_run(tmp_path / "lost", lines_of_lost, steps=8)
    dead = write_run(tmp_path / "dead", [{"step": 7, "split": "train", "loss": 5.0, "diverged": True}], seed=1, steps=9)
    groups = group_runs(read_runs([good, lost, dead]))
    assert [run.early_end() for group in groups for run in group.runs] == [
        ("not finished", 20),
        ("diverged", 14),
        ("diverged", 7),
    ]
    found = _marks(groups, "loss", "train")
    assert found == [
        Mark("good", "not finished", 20, 1.0),
        Mark("lost", "diverged", 14, 9.0),
        Mark("dead", "diverged", 7, 5.0),
    ]
    text = build_page(groups).html()
    assert ">lost diverged</text>" in text
    lead = re.search("<header>.*?</header>", text).group()
    assert "Diverged: lost at step 14, dead at step 7." in lead


def test_divergence_is_in_the_metrics(tmp_path):
    config = Config(steps=30, optimizer=Optimizer(lr=1e30), out=str(tmp_path / "run"))
    with pytest.raises(TrainingError, match="loss is") as caught:
        fit(config, progress=False)
    step = int(re.match("step ([0-9]+)", str(caught.value)).group(1))
    (run,) = read_runs([tmp_path / "run"])
    assert run.early_end() == ("diverged", step)


# Page


@pytest.mark.slow
def test_pictures_come_before_tables(trained, tmp_path):
    """Curves, then neurons; the first screen has the result in words and a curve."""
    other = write_run(tmp_path / "other", curve([2.0, 1.0], "test", accuracy=0.1))
    text = build_page(group_runs(read_runs([*trained, other]))).html()
    titles = re.findall("<h2>(.*?)</h2>", text)
    assert titles[:2] == ["Training and test curves", "Neurons on the sphere"]
    assert titles[-3:] == ["Results", "Settings", "Notes"]
    assert "Highest test accuracy: " in re.search("<header>.*?</header>", text).group()
    first, *charts = [text.index("<table"), *(match.start() for match in re.finditer('<figure class="chart', text))]
    assert max(charts) < first


def test_accuracies_of_different_data_are_not_ranked(tmp_path, capsys):
    data = {"odd": {"name": "odd"}, "coarse": {"name": "cifar100", "labels": "coarse", "root": "/one"}}
    runs = [
        write_run(tmp_path / name, curve([1.0], "test", accuracy=0.9 - 0.1 * i), data=of)
        for i, (name, of) in enumerate(data.items())
    ]
    groups = group_runs(read_runs(runs))
    note = "Accuracies of different data are not ranked: odd, cifar100 coarse."
    lead = re.search("<header>.*?</header>", build_page(groups).html()).group()
    assert note in lead
    assert "Highest" not in lead
    assert main(["report", *map(str, runs), "--html", str(tmp_path / "r.html")]) == 0
    assert capsys.readouterr().out.splitlines()[-2] == note
    other = {"name": "cifar100", "labels": "coarse", "root": "/two"}  # the same data elsewhere
    moved = write_run(tmp_path / "moved", curve([1.0], "test", accuracy=0.5), data=other, clip="auto")
    assert unranked(group_runs(read_runs([runs[1], moved]))) == ""


def test_settings_show_what_differs_and_is_not_the_default(tmp_path):
    """Of a rotation that one group has, its method, not its twenty defaults."""
    rotation = to_tree(Config(rotation=Rotation(blocks=2)))["rotation"]
    shared = {"steps": 60, "clip": None, "log_every": 50}
    runs = [
        write_run(tmp_path / "plain", curve([1.0]), **shared, amp=True),
        write_run(tmp_path / "opt", curve([1.0]), **shared, amp=True, rotation=rotation),
        write_run(tmp_path / "clip", curve([1.0]), **{**shared, "clip": "auto"}, amp=True),
    ]
    differ, other = changed_settings(group_runs(read_runs(runs)))
    assert differ == {
        "clip": [None, None, "auto"],
        "rotation.blocks": [None, 2, None],
        "rotation.method": [None, "cayley", None],
    }
    assert {key: values[0] for key, values in other.items()} == {
        "amp": True,
        "data.name": "digits",
        "model.name": "cnn3",
        "steps": 60,
    }


# Networks


@pytest.mark.parametrize("shape", [(5, 2), (40, 6), (4, 9), (1, 5)])
def test_projection_is_the_best_of_three_axes(shape):
    """Exact up to three dimensions; beyond, no more can be kept than the three largest singular values."""
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(0)) * torch.arange(1, shape[1] + 1)
    points, kept = networks.project(matrix)
    unit = torch.nn.functional.normalize(matrix, dim=1)
    assert points.shape == (shape[0], 3)
    if shape[1] <= 3:
        assert np.allclose(points[:, : shape[1]], unit)
        assert kept == 1
        return
    singular = torch.linalg.svdvals(unit.double())
    assert kept == pytest.approx(float(singular[:3].square().sum() / shape[0]), rel=1e-5)
    full = unit @ unit.T
    assert float((full - torch.from_numpy(points @ points.T)).norm()) == pytest.approx(
        float(singular[3:].square().norm()), abs=1e-4
    )


def test_evenness_is_comparable():
    """Each line is the mean angle to the nearest neuron, layer by layer; pairs of equal neurons have 0."""
    even, twice = torch.eye(4), torch.eye(4)[[0, 0, 1, 1]]
    half = torch.tensor([[1.0, 0.0], [1.0, 1.0], [-3.0, 0.0]])  # 45, 45 and 135 degrees
    chart = networks.evenness_chart({"a": {"x": even, "y": half}, "b": {"x": twice, "y": half}})
    a, b, random = chart.lines
    assert a.y == pytest.approx([90, 75], abs=1e-3)
    assert b.y == pytest.approx([0, 75], abs=1e-3)
    assert (random.name, a.x, len(random.y)) == ("random directions", [1, 2], 2)
    assert "layer: x, y" in chart.svg


def test_a_single_point_of_a_finished_run_is_no_curve():
    tested = [MetricsLine(step, "test", values={"loss": 1.0}) for step in (1, 2)]
    rest = {"energies": {}, "samples_per_second": 1.0, "seed": 0, "model": "mlp", "length": (3, None), "versions": {}}
    summary = Summary(3, "test", seconds=1.0, parameters={}, data={}, **rest)
    groups = [
        RunGroup(name, [RunFiles(Path(name), name, {}, lines, result)])
        for name, lines, result in (("a", tested, summary), ("b", tested[1:], summary), ("c", tested[1:], None))
    ]
    assert list(_curves(groups, "loss", "test")) == ["a", "c"]


@pytest.mark.slow
def test_charts_show_the_network(trained):
    run = load_run(trained[0])
    layers = networks.neurons(run)
    assert [matrix.shape[1] <= 3 for matrix in layers.values()] == [False, False, True]
    (head,) = networks.neurons_chart({"head": layers["head"]}, "run").scene.series
    weight = torch.nn.functional.normalize(run.classifier.head.weight.detach(), dim=1)
    assert (head.name, head.is_shown) == ("head", True)
    assert torch.allclose(torch.tensor(head.points), weight, atol=1e-6)

    found = networks.features(run, None, networks.feature_size(run))
    images = data.load("digits", None, "test")
    with torch.no_grad():
        embedded = run.classifier.embed(run.preprocess(images.inputs))
    assert torch.allclose(found.points * embedded.norm(dim=1).quantile(0.95), embedded, atol=1e-5)
    chart = networks.feature_chart({"<run>": found}, run.labels)
    dots, arrows = ([s for s in chart.scene.series if s.is_line is is_line] for is_line in (False, True))
    assert [series.name for series in dots] == run.labels
    assert torch.allclose(torch.tensor([arrow.points[1] for arrow in arrows]), 0.8 * weight, atol=1e-5)
    assert "&lt;run&gt;" in chart.svg
    flat = networks.Features(found.points[:, :2], found.labels, found.neurons[:, :2])
    assert networks.feature_chart({"run": flat}, run.labels).scene is None

    ks = {name: module.k for name, module in run.model.named_modules() if hasattr(module, "log_k")}
    histogram = networks.k_chart(networks.learned_k(run), "k")
    assert [line.name for line in histogram.lines] == [name.removesuffix(".similarity") for name in ks]
    assert [sum(line.y) / 2 for line in histogram.lines] == [k.numel() for k in ks.values()]


# Command


def fails(capsys, *argv) -> str:
    code = main([*map(str, ("report", *argv))])
    out, err = capsys.readouterr()
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    return err.strip().removeprefix("hypersphere report: ")


def test_bad_input_is_one_line(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    good = write_run(tmp_path / "good", curve([1.0]))
    empty = write_run(tmp_path / "empty", [])
    (write_run(tmp_path / "missing", []) / "metrics.jsonl").unlink()
    broken = write_run(tmp_path / "broken", curve([1.0]))
    (broken / "config.json").write_text("{")
    (tmp_path / "file").write_text("x")
    (tmp_path / "folder").mkdir()
    assert fails(capsys, "nothing") == "nothing does not exist"
    assert fails(capsys, good, "file") == "file is a file, not a run folder"
    assert fails(capsys, "folder") == "folder is not a run folder: it has no config.json"
    assert fails(capsys, empty) == f"{empty} has no metrics: metrics.jsonl is missing or empty"
    assert fails(capsys, "missing") == "missing has no metrics: metrics.jsonl is missing or empty"
    assert fails(capsys, broken).startswith(f"{broken}/config.json cannot be read:")
    Path("a").symlink_to("b")
    Path("b").symlink_to("a")
    assert fails(capsys, "a").startswith("a ")
    for wrong in ("folder", "no/x.html"):
        error = fails(capsys, good, "--html", wrong)
        assert error == f"argument --html: must be a file in a folder that exists, got {wrong!r}"
    assert sorted(os.listdir()) == ["a", "b", "broken", "empty", "file", "folder", "good", "missing"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_no_permission_to_write(tmp_path, capsys):
    good = write_run(tmp_path / "good", curve([1.0]))
    (tmp_path / "closed").mkdir(mode=0o500)
    assert "no permission to write" in fails(capsys, good, "--html", tmp_path / "closed" / "x.html")


def test_write_error_leaves_nothing(tmp_path, capsys, monkeypatch):
    """A disk that is full: the old page stays, and no temporary file."""
    good = write_run(tmp_path / "good", curve([1.0]))
    out = tmp_path / "page.html"
    out.write_text("old")
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    assert "No space left on device" in fails(capsys, good, "--html", out)
    assert out.read_text() == "old"
    assert sorted(os.listdir(tmp_path)) == ["good", "page.html"]


@pytest.mark.slow
def test_strange_result_is_one_line(trained, tmp_path, capsys):
    """Valid JSON of another type than a training writes, with its checksum."""
    path = tmp_path / "run"
    shutil.copytree(trained[0], path)
    tree = json.loads((path / "result.json").read_text())
    del tree["checksum"]
    (path / "result.json").write_text(with_checksum({**tree, "split": []}))
    assert fails(capsys, path, "--html", tmp_path / "x.html").endswith("split must be text, got a list")


def test_terminated_report_leaves_no_temporary_file(tmp_path, monkeypatch):
    """SIGTERM while the page is written: it is written, then the command ends."""
    good = write_run(tmp_path / "good", curve([2.0, 1.0]))
    fsync, before = os.fsync, signal.signal(signal.SIGTERM, lambda *_: None)
    monkeypatch.setattr(os, "fsync", lambda file: (os.kill(os.getpid(), signal.SIGTERM), fsync(file)))
    try:
        assert main(["report", str(good), "--html", str(tmp_path / "x.html")]) == 128 + signal.SIGTERM
    finally:
        signal.signal(signal.SIGTERM, before)
    assert sorted(os.listdir(tmp_path)) == ["good", "x.html"]


def test_temporary_files_of_killed_reports_are_removed(tmp_path):
    """Not those of a report that is writing now, nor of other pages."""
    good = write_run(tmp_path / "good", curve([2.0, 1.0]))
    dead, live, other = (
        tmp_path / f".{name}.tmp" for name in ("x.html.00000001", "x.html.00000002", "y.html.1234abcd")
    )
    for file in (dead, live, other):
        file.write_text("half")
    with open(live) as writing:
        fcntl.flock(writing, fcntl.LOCK_EX)
        report_runs([good], html=tmp_path / "x.html")
    assert sorted(os.listdir(tmp_path)) == sorted([live.name, other.name, "good", "x.html"])


@pytest.mark.slow
def test_prints_a_table_or_json(trained, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["report", *map(str, trained)]) == 0
    out, err = capsys.readouterr()
    head, row, place = out.splitlines()
    assert head.split() == ["group", "runs", "accuracy", "loss", "energy", "seconds"]
    assert row.split()[:2] == ["small", "2"]
    assert (place, err) == (f"page: {tmp_path / 'report.html'}", "")
    assert main(["report", *map(str, trained), "--json", "--html", "x.html"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found == {**report_runs(trained), "page": str(tmp_path / "x.html")}
    text = (tmp_path / "x.html").read_text()
    for title in ("Results", "Settings", "Energy of the layers", "Learned similarities", "Features", "Neurons on the"):
        assert f">{title}" in text


def test_network_that_cannot_be_loaded_is_named(tmp_path):
    """A run that has no weights yet has curves, and a note says why there is no more."""
    run = write_run(tmp_path / "run", curve([2.0, 1.0]))
    report_runs([run], html=tmp_path / "x.html")
    text = (tmp_path / "x.html").read_text()
    assert "loss, train" in text
    assert "its network is not drawn" in text


@pytest.mark.slow
def test_landscapes_are_drawn(trained, tmp_path):
    """Those that `hypersphere landscape` left in a run; a damaged one is named."""
    run = tmp_path / "run"
    shutil.copytree(trained[0], run)
    assert main(["landscape", str(run), "--size", "3", "--samples", "20", "--json"]) == 0
    groups = group_runs(read_runs([run]))
    text = build_page(groups).html()
    assert ">Landscapes<" in text
    assert (text.count('"surface":{"x"'), text.count('"grids":[')) == (2, 1)
    (file,) = (run / "landscape").glob("*.json")
    file.write_text("{}")
    text = build_page(groups).html()
    assert ">Landscapes<" not in text
    assert f"{file.name} has format None" in text
