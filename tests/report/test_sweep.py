"""Runs over a number: which number and which lines are found, what is drawn of them, and what of very many groups."""

from __future__ import annotations

import itertools
import json
import re
from xml.etree import ElementTree

import pytest

from hypersphere.report import run_page
from hypersphere.report.run_files import RunGroup, group_runs, read_runs
from hypersphere.report.run_page import build_page
from hypersphere.report.sweep import MOST_GROUPS, choose, find_sweep, is_geometric, sweep_chart
from tests.report_runs import curve, write_run


@pytest.fixture
def groups_of(tmp_path):
    """Return a function that writes runs of these settings, given as {name: settings}, and groups them."""

    def write(runs, lines=lambda settings: curve([2.0, 1.0]) + curve([1.0], "test", accuracy=0.5)):
        for name, settings in runs.items():
            tree = {}
            for key, value in settings.items():
                part, _, leaf = key.rpartition(".")
                (tree.setdefault(part, {}) if part else tree)[leaf] = value
            tree = {"model": {"name": "cnn3"}, **tree}
            write_run(tmp_path / name, lines(settings), tree.pop("seed", 0), **tree)
        return group_runs(read_runs([tmp_path / name for name in runs]))

    return write


def found(sweep):
    return sweep and (sweep.key, {name: [g.config[sweep.key] for g in line] for name, line in sweep.lines.items()})


def deep_runs(seeds=(0,)):
    """Runs as the demo's: rates chosen for each depth, and two networks of another kind."""
    rates = {("plain", 6): 0.01, ("plain", 12): 0.002, ("plain", 24): 5e-4, ("norm", 6): 0.01, ("norm", 12): 0.01}
    rates |= {("norm", 24): 0.002, ("sphere", 6): 0.04, ("sphere", 12): 0.01, ("sphere", 24): 0.01}
    runs = {
        f"{start}, {depth} layers, seed {seed}": {
            **{"model.name": "deep", "model.depth": depth, "model.norm": start, "optimizer.lr": lr, "seed": seed}
        }
        for (start, depth), lr in rates.items()
        for seed in seeds
    }
    return runs | {f"MLP, {name}": {"model.name": "mlp", "optimizer.lr": lr} for name, lr in (("a", 0.1), ("b", 0.2))}


def test_lines_over_depth_with_rates_of_their_own(groups_of):
    """Lines are named by what their runs' names begin with; what has no depth is no line."""
    groups = groups_of(deep_runs((0, 1)))
    sweep = find_sweep(groups)
    depths = [6, 12, 24]
    assert found(sweep) == ("model.depth", {"plain": depths, "norm": depths, "sphere": depths})
    assert sweep.also == ["optimizer.lr"]
    assert [group.name for group in sweep.rest(groups)] == ["MLP, a", "MLP, b"]


@pytest.mark.parametrize("names", ["{}", "s{2}-lr{1}"])
def test_a_grid_of_two_numbers_has_one_along_the_axis(groups_of, names):
    """The one with more values: fewer lines. Rates are in order although files are not; 1e-05 is one word."""
    grid = itertools.product((1e-7, 1e-5, 1e-6, 1e-8), (2.0, 1.0, 0.5))
    runs = {names.format(i, lr, s): {"optimizer.lr": lr, "energy.s": s} for i, (lr, s) in enumerate(grid)}
    expected = ("s2.0", "s1.0", "s0.5") if names.startswith("s") else ("energy.s=2.0", "energy.s=1.0", "energy.s=0.5")
    rates = [1e-8, 1e-7, 1e-6, 1e-5]
    assert found(find_sweep(groups_of(runs))) == ("optimizer.lr", dict.fromkeys(expected, rates))


@pytest.mark.parametrize(
    "settings",
    [
        [{"optimizer.lr": lr} for lr in (0.1, 0.2)],  # two numbers
        [{"optimizer.name": name} for name in ("sgd", "adam", "muon")],  # no number
        [{"optimizer.lr": lr, "optimizer.name": name} for lr, name in ((0.1, "sgd"), (0.2, "adam"), (0.3, "muon"))],
        [{"optimizer.lr": lr, "data.batch_size": size} for lr, size in ((0.1, 64), (0.2, 31), (0.3, 17))],  # at random
        [{"amp": amp, "seed": seed} for amp in (True, False) for seed in range(3)],  # switches and seeds
    ],
)
def test_no_lines(groups_of, settings):
    assert find_sweep(groups_of({f"{i}": each for i, each in enumerate(settings)})) is None


def test_a_single_line_is_named_after_its_network(groups_of):
    runs = {f"{i}": {"data.batch_size": size} for i, size in enumerate((64, 16, 32))}
    assert found(find_sweep(groups_of(runs))) == ("data.batch_size", {"cnn3": [16, 32, 64]})


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        ([6, 12, 24, 48], True),
        ([1e-4, 5e-4, 0.002, 0.01], True),
        ([0.1, 0.3, 0.5, 0.7, 0.9], False),
        ([0, 1, 10], False),
        ([-2, 1, 8], False),
        ([1, 100], False),
    ],
)
def test_a_geometric_axis(numbers, expected):
    assert is_geometric(numbers) is expected


def test_the_chart_has_means_and_crosses(groups_of):
    """Percent over the number, one standard deviation around; a cross, and no point, where a run diverged."""

    def lines(settings):
        depth, seed = settings["model.depth"], settings["seed"]
        if settings["model.norm"] == "b" and depth == 24:
            return [{"step": 7, "split": "train", "loss": None, "diverged": True}]
        return curve([1.0], "test", accuracy=depth / 100 + 0.02 * seed)

    runs = {
        f"{norm} {depth} seed{seed}": {"model.depth": depth, "model.norm": norm, "seed": seed}
        for norm in "ab"
        for depth in (6, 12, 24)
        for seed in (0, 1)
    }
    groups = groups_of(runs, lines)
    sweep = find_sweep(groups)
    a, b = sweep_chart(sweep, "accuracy").lines
    assert (a.name, a.x, b.name, b.x) == ("a", [6, 12, 24], "b", [6, 12])
    assert a.y == pytest.approx([7, 13, 25])
    assert a.spread == pytest.approx([2**0.5] * 3)
    titles = re.findall("<title>(.*?)</title>", sweep_chart(sweep, "accuracy").svg)
    assert titles == ["accuracy, test", "b diverged, 24", "a", "b"]
    text = build_page(groups).html()
    assert re.findall("<h2>(.*?)</h2>", text)[0] == "Accuracy over depth"
    row = re.search("<tr><td>a</td>.*?</tr>", text).group()
    assert re.findall(r"([\d.]+)% ± ([\d.]+)%", row) == [("7.00", "1.41"), ("13.00", "1.41"), ("25.00", "1.41")]


def test_nothing_is_drawn_where_all_diverged(groups_of):
    lost = [{"step": 7, "split": "train", "loss": None, "diverged": True}]
    groups = groups_of({f"{i}": {"optimizer.lr": 10.0**i} for i in range(3)}, lambda settings: lost)
    assert sweep_chart(find_sweep(groups), "accuracy") is None
    assert "over lr" not in build_page(groups).html()


def accuracies(settings):
    """Higher for deeper networks, but for the norm."""
    depth = settings.get("model.depth", 0)
    accuracy = 0.9 - depth / 100 if settings.get("model.norm") == "norm" else 0.5 + depth / 100
    return curve([2.0, 1.0]) + curve([1.0], "test", accuracy=accuracy)


def test_of_many_groups_the_best_of_each_line_is_drawn(groups_of):
    groups = groups_of(deep_runs(), accuracies)
    chosen, words = choose(groups, find_sweep(groups))
    assert [group.name for group in chosen] == [
        "plain, 24 layers, seed 0",
        "norm, 6 layers, seed 0",
        "sphere, 24 layers, seed 0",
        "MLP, a",
        "MLP, b",
    ]
    assert words == "Of 11 groups, the best of each line over depth and all that are on no line are drawn."
    chosen, words = choose(groups, None)
    assert words == "Of 11 groups, the 8 best are drawn."
    worst = ["MLP, a", "MLP, b", "plain, 6 layers, seed 0", "sphere, 6 layers, seed 0"]  # the last two are equal
    assert [group.name for group in groups if group not in chosen] == [worst[3], *worst[:2]]
    assert choose(groups[:MOST_GROUPS], None) == (groups[:MOST_GROUPS], "")


def charts_of(text):
    svgs = [ElementTree.fromstring(svg) for svg in re.findall(r'<div class="plot">(.*?)</div>', text, re.DOTALL)]
    return {svg.find("{*}title").text: svg for svg in svgs}


def lines_of(svg):
    return [(line.find("{*}title").text, line.get("stroke")) for line in svg.findall(".//{*}polyline")]


def test_of_many_groups_curves_are_panels(groups_of):
    """A panel for each line with a colour for each number; groups on no line have charts of their own."""
    runs = deep_runs()
    del runs["plain, 6 layers, seed 0"]
    charts = charts_of(build_page(groups_of(runs, accuracies)).html())
    assert [*charts] == ["accuracy, test", "loss, test", "loss, train", "loss, train, by depth"]
    assert [name for name, _ in lines_of(charts["loss, train"])] == ["MLP, a", "MLP, b"]
    panels = charts["loss, train, by depth"]
    names = [text.text for text in panels.findall("{*}text")]
    assert names == ["loss, train, by depth", "plain", "norm", "sphere"]
    keys = {key.find("{*}text").text: key.find("{*}circle").get("fill") for key in panels.findall("{*}g")}
    assert [*keys] == ["depth 6", "depth 12", "depth 24"]
    assert lines_of(panels) == [*keys.items()][1:] + [*keys.items()] * 2
    numbers = [int(key.get("data-key")) for key in panels.findall("{*}g")]
    assert [lines_of(panels)[number][0] for number in numbers] == [*keys]  # as page.js finds the lines


def test_of_many_groups_some_are_shown_in_detail(groups_of, monkeypatch):
    """Mistakes and energies are those of the chosen; energies of many layers are over the layers."""
    monkeypatch.setattr(run_page, "read_predictions", lambda groups: ({}, [", ".join(group.name for group in groups)]))

    def lines(settings):
        count = 9 if settings.get("model.norm") == "sphere" else 8
        return [
            {"step": step, "split": "train", "energies": {f"layer {i}": i + step for i in range(count)}}
            for step in (0, 5, 10)
        ] + accuracies(settings)

    groups = groups_of(deep_runs(), lines)
    chosen = [group.name for group in choose(groups, find_sweep(groups))[0]]
    text = build_page(groups).html()
    assert f"<p>{', '.join(chosen)}</p>" in text
    charts = charts_of(text)
    assert [name for name in charts if name in {group.name for group in groups}] == chosen
    assert [name for name, _ in lines_of(charts[chosen[1]])] == [f"layer {i}" for i in range(8)]
    data = re.findall(r'"lines":(\[\{"name":"step 0".*?\])[,}]?"csv"', text)
    first, last = json.loads(data[0].rstrip(","))
    assert (first["name"], last["name"]) == ("step 0", "step 10")
    assert (first["x"], first["y"], last["y"]) == ([*range(1, 10)], [*range(9)], [*range(10, 19)])


def test_a_run_is_named_after_its_group_once():
    one, two = RunGroup("a", [None]), RunGroup("a", [None, None])
    assert (one.name_of("a-seed0"), two.name_of("a-seed0"), two.name_of("3")) == ("a", "a-seed0", "a (3)")


def test_settings_of_many_groups_are_rows(groups_of):
    text = build_page(groups_of(deep_runs())).html()
    tables = re.findall(r'class="caption">([^<]*settings in which[^<]*)</p><div class="table">(.*?)</div>', text)
    assert [caption for caption, _ in tables] == [
        "deep on digits: settings in which groups differ.",
        "mlp on digits: settings in which groups differ.",
    ]
    headers = [re.findall('<button type="button">(.*?)<', table) for _, table in tables]
    assert headers == [["group", "model.depth", "model.norm", "optimizer.lr"], ["setting", "MLP, a", "MLP, b"]]
