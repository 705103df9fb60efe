"""What a training tells its user: few steps, slow mixed precision, divergence, compiling."""

import json
import math
import re
from pathlib import Path

import pytest
import torch

import hypersphere as hs
from hypersphere.cli import main
from hypersphere.data._dataset import ArrayDataset
from hypersphere.train import Config, derive, fit, precision
from tests.runs import tiny


def test_few_steps_are_pointed_out_once(tmp_path, capsys):
    config = derive(tiny(), epochs=1, out=str(tmp_path / "run"))
    fit(config)
    assert "only 6 steps: " in capsys.readouterr().err
    fit(derive(config, epochs=2, resume=True))
    shown = capsys.readouterr().err
    assert "resumed at step 6 of 12" in shown
    assert "only" not in shown
    fit(derive(tiny(), steps=2))  # as asked
    assert "only" not in capsys.readouterr().err


@pytest.mark.parametrize(("factor", "warns"), [(9.34, True), (1.2, False)])
def test_mixed_precision_that_is_slow_here_is_pointed_out(factor, warns, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    measured = []
    monkeypatch.setattr(precision, "slowdown", lambda dtype: measured.append(dtype) or factor)
    flags = ["train", "--quiet", "--steps=2", "--model.widths=4,4,4", "--model.fc=8", "--device=cpu"]
    assert main([*flags, "--amp"]) == 0
    line = (
        "hypersphere: amp: bfloat16 takes 9.3 times as long as float32 on this CPU (a convolution, measured now); "
        "amp=false is faster here\n"
    )
    assert capsys.readouterr().err == (line if warns else "")
    assert main(flags) == 0
    assert capsys.readouterr().err == ""
    assert measured == [torch.bfloat16]  # not without amp


def test_the_measurement_leaves_the_training_as_it_is():
    state = torch.random.get_rng_state()
    assert 0 < precision.slowdown(torch.bfloat16) < math.inf
    assert torch.equal(torch.random.get_rng_state(), state)


TOO_FAST = {"model.name": "mlp", "optimizer.lr": 5, "schedule.name": "constant", "steps": 40, "seed": 1, "log_every": 5}


def flags(changes):
    return [f"--{key}={value}" for key, value in changes.items()]


@pytest.mark.slow
def test_a_training_that_diverged_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["train", "--quiet", "--out=run", *flags(TOO_FAST)]) == 0
    said = capsys.readouterr().err
    assert re.fullmatch(
        r"hypersphere: the training diverged: its loss rose from [2-9]\.\d+ to \d\S+, and it ends at chance "
        r"accuracy, \d+\.\d\d%; try optimizer\.lr below 5 or clip=1\n",
        said,
    )
    assert json.loads(Path("run/result.json").read_text())["diverged"] is True
    # also one that went on: the loss of the first step is not forgotten
    assert main(["train", "--quiet", "--out=parts", *flags(TOO_FAST | {"steps": 15})]) == 0
    assert capsys.readouterr().err == ""  # too early to tell
    assert main(["train", "--quiet", "--out=parts", "--resume", *flags(TOO_FAST)]) == 0
    assert capsys.readouterr().err == said


@pytest.mark.slow
def test_what_is_learned_by_heart_has_not_diverged(monkeypatch):
    random = torch.Generator().manual_seed(0)

    def noise(root, split):
        labels = torch.randint(4, (64,), generator=random)
        return ArrayDataset(torch.randn(64, 8, generator=random), labels, list("abcd"))

    monkeypatch.setitem(hs.data.DATASETS, "noise", hs.data.RegisteredDataset(noise))
    changes = {"data.name": "noise", "model.name": "mlp", "optimizer.lr": 0.1, "steps": 60}
    summary = fit(derive(Config(), changes), progress=False).summary
    assert summary.accuracy < 0.5
    assert summary.loss > 2 * math.log(4)
    assert summary.diverged is False


def test_compiling_is_said(monkeypatch, capsys):
    monkeypatch.setattr(torch, "compile", lambda module: module)
    for compiles in (True, False):
        fit(derive(tiny(), steps=1, compile=compiles))
        assert ("compiling the network: the first steps take longer" in capsys.readouterr().err) is compiles
