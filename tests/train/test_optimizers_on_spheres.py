"""Pion, Muon, MuonH and AdamH by their names in a config."""

import pytest
from torch import nn

import hypersphere as hs
from hypersphere.cli import main
from hypersphere.train.automatic import rest_rate
from hypersphere.train.config import Config, apply
from hypersphere.train.optimizers import build_optimizer
from hypersphere.train.schedule import set_rate


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


def test_muonh_keeps_the_norms_of_hidden_layers():
    config = apply(Config(), {"optimizer.name": "muonh", "optimizer.weight_decay": "0", "optimizer.momentum": "0.9"})
    optimizer = build_optimizer(net(), config)
    groups = [(g["name"], g["hyperball"], g["momentum"], g["lr"]) for g in optimizer.param_groups]
    assert groups == [("weights", False, 0.9, 0.018), ("no_decay", False, 0.9, 0.018), ("matrices", True, 0.9, 0.018)]


def test_muon_decays_what_decays():
    optimizer = build_optimizer(net(), apply(Config(), {"optimizer.name": "muon", "optimizer.weight_decay": "0.1"}))
    assert [(g["muon"], g["weight_decay"]) for g in optimizer.param_groups] == [(False, 0.1), (False, 0.0), (True, 0.1)]


@pytest.mark.parametrize(("rest_lr", "expected"), [("null", 0.003), ("0.005", 0.005)])
def test_the_rest_has_its_own_rate(rest_lr, expected):
    optimizer = apply(
        Config(), {"optimizer.name": "muon", "optimizer.rest_lr": rest_lr, "optimizer.lr": "0.5"}
    ).optimizer
    assert rest_rate(optimizer) == expected
    groups = build_optimizer(net(), apply(Config(), {"optimizer.name": "muon"}))
    set_rate(groups, 0.5, 0.1, expected)
    assert [g["lr"] for g in groups.param_groups] == [expected, expected, 0.5]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["pion", "adamh", "muon", "muonh"])
def test_a_run_ends(name, tmp_path):
    def train(out):
        options = ["--data.name", "digits", "--model.name", "mlp", "--optimizer.name", name, "--quiet"]
        decay = ["--optimizer.weight_decay", "0"] if name.endswith("h") else []
        assert main(["train", *options, *decay, "--steps", "6", "--out", str(tmp_path / out)]) == 0

    train("whole")
    assert (tmp_path / "whole" / "result.json").exists()


def test_side_is_for_pion_alone():
    with pytest.raises(ValueError, match=r"optimizer.side needs optimizer.name to be one of pion"):
        apply(Config(), {"optimizer.side": "input"})


def test_rest_lr_needs_matrices():
    with pytest.raises(
        ValueError, match=r"optimizer.rest_lr needs optimizer.name to be one of pion, muon, muonh, got adam"
    ):
        apply(Config(), {"optimizer.name": "adam", "optimizer.rest_lr": "0.1"})


def test_no_decay_under_adamh():
    assert apply(Config(), {"optimizer.name": "adamh"}).optimizer.weight_decay == 0.0
    with pytest.raises(ValueError, match=r"optimizer.weight_decay must be 0: adamh has no weight decay"):
        apply(Config(), {"optimizer.name": "adamh", "optimizer.weight_decay": "1e-4"})
