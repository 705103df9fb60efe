"""The CNNs of 6 to 96 convolutions: what is trained, how rates are chosen, and what the page says about them."""

import json
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from tools import accuracy_by_depth as tool
from tools import depth_page
from torch import nn

import hypersphere as hs
from hypersphere.train.networks import build_network
from hypersphere.train.splits import DataSpec

ROOT = Path(__file__).parents[2]
SPEC = DataSpec("images", (1, 8, 8), "uint8", [*"0123456789"])


@pytest.fixture(autouse=True)
def demo_leaves_no_networks() -> Iterator[None]:
    with patch.dict(hs.models.PRESETS):
        yield
    sys.modules.pop("demo", None)


def network(part: str, name: str, depth: int = 6) -> nn.Module:
    run = {"part": part, "name": name, "depth": depth, "lr": 0.01, "seed": 0}
    return build_network(tool.config(run).model, SPEC, num_classes=10)


def result(run: tool.Run, validation: float, accuracy: float) -> tool.Run:
    return run | {"validation": validation, "accuracy": accuracy, "cosine": 0.25}


@pytest.mark.parametrize("name", tool.STARTS)
def test_a_start_is_what_its_name_says(name: str) -> None:
    net = network("depth", name, depth=12)
    convolutions = [layer for layer in net.modules() if isinstance(layer, nn.Conv2d)]
    assert len(convolutions) == 12
    assert all(isinstance(layer, hs.SphereConv2d) == ("sphere" in name) for layer in convolutions)
    assert any(isinstance(layer, nn.ReLU) for layer in net.modules()) == ("no ReLU" not in name)
    assert any(isinstance(layer, nn.BatchNorm2d) for layer in net.modules()) == ("BatchNorm" in name)
    assert type(net.get_classifier()) is nn.Linear


def test_variants_differ_in_one_thing_from_the_default() -> None:
    nets = {name: network("rates", name) for name in tool.VARIANTS}
    scales = {name: getattr(net.layers[2], "scale", "plain") for name, net in nets.items()}
    assert scales["scale 1"] is None
    assert scales["default scale"] == 2
    assert isinstance(scales["learned scale"], nn.Parameter)
    assert scales["plain, Kaiming's start"] == "plain"
    assert [layer.negative_slope for layer in nets["leaky ReLU (0.1)"].layers if isinstance(layer, nn.LeakyReLU)] == [
        tool.LEAK
    ] * 6
    assert not any(isinstance(layer, nn.ReLU) for layer in nets["no ReLU"].modules())
    assert {tool.config(run).loss.name for run in tool.trials() if run["part"] == "rates"} == {"s_softmax"}


def test_rates_are_chosen_by_validation_with_as_many_trials_for_each_start() -> None:
    trials = [run for run in tool.trials() if run["part"] == "depth"]
    for depth, rates in tool.RATES.items():
        for name in tool.STARTS:
            tried = [run for run in trials if run["name"] == name and run["depth"] == depth]
            assert [run["lr"] for run in tried] == [*rates]
            assert len(rates) == 4
    of_one = [run for run in trials if run["name"] == "BatchNorm" and run["depth"] == 6]
    runs = [result(run, validation, -validation) for run, validation in zip(of_one, (1.0, 3.0, 2.0, 3.0), strict=True)]
    assert tool.best_rates(runs[:3]) == {}  # not before all were tried
    best = tool.RATES[6][1]  # of two equal ones the lower
    assert tool.best_rates(runs) == {("BatchNorm", 6): best}
    others = tool.finals(runs)
    assert [run["seed"] for run in others] == [*tool.SEEDS][1:]
    assert {(run["name"], run["depth"], run["lr"]) for run in others} == {("BatchNorm", 6, best)}


def test_the_page_waits_for_all_runs_and_says_what_they_say(tmp_path: Path) -> None:
    assert depth_page.generated(tmp_path) == {}
    runs = [result(run, run["lr"], 50.0) for run in tool.trials()]
    runs += [result(run, 0.0, 50.0 + run["seed"]) for run in tool.finals(runs)]
    (tmp_path / tool.FILE).parent.mkdir()
    (tmp_path / tool.FILE).write_text(json.dumps({"runs": runs[:-1]}))
    assert depth_page.generated(tmp_path) == {}
    (tmp_path / tool.FILE).write_text(json.dumps({"runs": runs}))
    files = depth_page.generated(tmp_path)
    values = [50, 51, 52, 53, 54]
    cell = f"{statistics.mean(values):.1f} ± {statistics.stdev(values):.1f}"
    rate = f"({max(tool.RATES[6]):g})"
    assert f"| torch's start | **{cell}** {rate} |" in files[depth_page.MARKER]
    assert "| scale 1 | 0.0 ± 0.0 |" in files[depth_page.MARKER]
    assert "| BatchNorm | 0.250 | 0.250 |" in files[depth_page.MARKER]
    assert all(f">{name}<" in files[str(depth_page.PICTURE)] for name in ("BatchNorm", "sphere layers, no ReLU"))


def test_stored_runs_are_those_of_the_tool_and_the_demo_uses_their_rates() -> None:
    runs = tool.load(ROOT)
    wanted = {tool.identity(run) for run in tool.trials() + tool.finals(runs)}
    assert {tool.identity(run) for run in runs} == wanted
    assert len(runs) == len(wanted)
    best = tool.best_rates(runs)
    demo = tool.demo()
    for start, recipe in demo.DEEP.items():
        for depth in demo.DEPTHS:
            config = tool.config({"part": "depth", "name": start, "depth": depth, "lr": best[start, depth], "seed": 0})
            assert hs.train.derive(recipe(depth), device="cpu") == config


def test_a_run_again_gives_the_stored_numbers() -> None:
    stored = next(run for run in tool.load(ROOT) if run["name"] == "sphere layers, no ReLU" and run["lr"] == 0.01)
    threads = torch.get_num_threads()
    again = tool.train({key: stored[key] for key in ("part", "name", "depth", "lr", "seed")})
    torch.set_num_threads(threads)
    assert again["accuracy"] == pytest.approx(stored["accuracy"], abs=2)  # another machine rounds otherwise
