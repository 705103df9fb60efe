"""Pion and AdamH by their names in a config."""

import pytest
from torch import nn

import hypersphere as hs
from hypersphere.cli import main
from hypersphere.train.config import Config, apply
from hypersphere.train.optimizers import build_optimizer


def net():
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4))


def test_pion_rotates_the_hidden_layers():
    config = apply(Config(), {"optimizer.name": "pion", "optimizer.side": "input"})
    optimizer = build_optimizer(net(), config)
    assert isinstance(optimizer, hs.Pion)
    rotated = [group for group in optimizer.param_groups if group["rotated"]]
    assert [(g["side"], g["lr"], tuple(g["params"][0].shape)) for g in rotated] == [("input", 0.01, (5, 6))]


def test_adamh_keeps_the_norms():
    config = apply(Config(), {"optimizer.name": "adamh", "optimizer.weight_decay": "0", "optimizer.betas": "0.8,0.9"})
    optimizer = build_optimizer(net(), config)
    assert isinstance(optimizer, hs.Hyperball)
    assert [g["hyperball"] for g in optimizer.param_groups] == [True, False]
    assert (optimizer.defaults["betas"], optimizer.param_groups[0]["lr"]) == ((0.8, 0.9), 0.018)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["pion", "adamh"])
def test_a_run_ends(name, tmp_path):
    def train(out):
        options = ["--data.name", "digits", "--model.name", "mlp", "--optimizer.name", name, "--quiet"]
        decay = ["--optimizer.weight_decay", "0"] if name == "adamh" else []
        assert main(["train", *options, *decay, "--steps", "6", "--out", str(tmp_path / out)]) == 0

    train("whole")
    assert (tmp_path / "whole" / "result.json").exists()


def test_side_is_for_pion_alone():
    with pytest.raises(ValueError, match=r"optimizer.side needs optimizer.name to be one of pion"):
        apply(Config(), {"optimizer.side": "input"})


def test_no_decay_under_adamh():
    with pytest.raises(ValueError, match=r"optimizer.weight_decay must be 0: adamh has no weight decay"):
        apply(Config(), {"optimizer.name": "adamh"})
