"""The benchmarks run and leave their record; how long anything took is not asserted."""

import json
from importlib.util import find_spec

import pytest
import torch
from benchmarks import measure
from benchmarks.__main__ import BENCHMARKS, main

pytestmark = pytest.mark.slow

NEEDS_PEFT = pytest.mark.skipif(find_spec("peft") is None, reason="needs peft and transformers (make bench)")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=NEEDS_PEFT if name == "adapters" else ()) for name in BENCHMARKS]
)
def test_quick_run_leaves_a_record(name, tmp_path, capsys):
    threads = torch.get_num_threads()
    main([name, "--quick", "--json", str(tmp_path)])
    assert torch.get_num_threads() == threads

    record = json.loads((tmp_path / f"{name}.json").read_text())
    assert {"cpu", "cores", "platform"} <= record["machine"].keys()
    assert {"python", "torch", "torch-hypersphere", "pytorch-metric-learning"} <= record["versions"].keys()
    assert record["date"].startswith("20")
    assert record["plan"] == {"rounds": 1, "warmup": 0, "compile": False}
    measurements = record["measurements"]
    assert {"case", "contestant", "name", "value", "goal", "met"} == measurements[0].keys()
    assert any(row["goal"] is not None for row in measurements)
    assert all((row["goal"] is None) == (row["met"] is None) for row in measurements)
    shown = capsys.readouterr().out
    for row in measurements:
        assert row["case"] in shown
        assert row["contestant"] in shown
        # memory and minima are the same at every run
        if row["name"].startswith(("kept", "peak", "largest difference")) and row["goal"] is not None:
            assert row["met"], row


def test_quick_run_keeps_nothing_unasked(monkeypatch, tmp_path):
    monkeypatch.setitem(BENCHMARKS, "layers", lambda plan: iter([measure.Measurement("case", "it", "ms", 1.0, 2.0)]))
    monkeypatch.setattr("benchmarks.__main__.RESULTS", tmp_path)
    main(["layers", "--quick"])
    assert not any(tmp_path.iterdir())
    main(["layers"])
    assert json.loads((tmp_path / "layers.json").read_text())["measurements"][0]["met"] is True


def test_unknown_name_lists_the_known(capsys):
    with pytest.raises(SystemExit):
        main(["layer"])
    names = "energy, embeddings, inspection, report, rotation, rotation_layers, adapters, optimizers, train"
    assert f"layers, losses, classes, memory, {names}; got layer" in capsys.readouterr().err


def test_long_cases_run_fewer_rounds():
    plan = measure.Plan(rounds=40, warmup=3)
    assert plan.fewer(8) == measure.Plan(rounds=5, warmup=1)
    assert plan.fewer(100) == measure.Plan(rounds=1, warmup=1)
    assert not plan.quick
    assert not plan.fewer(100).quick
    assert measure.Plan(rounds=1, warmup=0).fewer(8).quick


def test_kept_bytes_counts_a_storage_once():
    x = torch.zeros(10, 10, requires_grad=True)
    twice = measure.Contestant("", lambda: (x[:5] * x[5:]).exp(), (x,))
    assert measure.kept_bytes(twice) == 400 + 200  # x for the product, exp for itself


def test_peak_bytes_counts_what_lives_at_once():
    x = torch.zeros(1000)

    def forward():
        y = x.neg()
        y = y.neg()  # two live until the name is bound anew
        return y.neg().neg().neg()

    assert measure.peak_bytes(measure.Contestant("", forward)) == 3 * 4000  # y, and two of the last line


def test_different_functions_do_not_race():
    x = torch.ones(3)
    with pytest.raises(AssertionError, match="one, two"):
        measure.check_same(measure.Contestant("one", lambda: x), measure.Contestant("two", lambda: 2 * x))
