"""The study of optimizers: its runs, and the page that is made from their results."""

import json
import re

import pytest
import torch
from tools import norm_free, norm_free_page, norm_free_runs

import hypersphere as hs
from hypersphere.train import recipes

CHANCE = norm_free_runs.CHANCE


def row(method, lr, loss, seed=0, part="rates", depth=8, **more):
    return {"part": part, "method": method, "depth": depth, "lr": lr, "seed": seed, "loss": loss, **more}


@pytest.fixture
def text(monkeypatch):
    """Periodic characters in place of tinyshakespeare."""
    monkeypatch.setattr(norm_free_runs, "characters", lambda split: torch.arange(2000) * 7 % 65)


@pytest.mark.parametrize("method", ["Muon", "MuonH", "Pion", "Pion, series"])
def test_a_run_keeps_what_its_method_keeps(text, method):
    result = norm_free_runs.train(method, 1, 0.1, 0, 30, "kept")
    assert result["loss"] < CHANCE
    last = result["trace"][-1]
    assert last["step"] == 30
    assert (last["norm"] < 1e-5) == (method in ("MuonH", "Pion"))
    assert (last["singular"] < 1e-5) == (method == "Pion")
    assert result["loss"] == norm_free_runs.train(method, 1, 0.1, 0, 30, "kept")["loss"]


def test_divergence_is_noticed(text):
    assert norm_free_runs.train("AdamW", 1, 0.001, 0, 25).keys() == {"loss", "seconds"}
    assert norm_free_runs.train("AdamW", 2, 100.0, 0, 40)["loss"] is None


def test_the_series_is_pion_but_for_its_rotation():
    weights = [torch.nn.Parameter(torch.ones(6, 4).index_put_((torch.arange(4), torch.arange(4)), torch.tensor(3.0)))]
    weights.append(torch.nn.Parameter(weights[0].detach().clone()))
    gradient = torch.randn(6, 4)
    optimizers = [
        hs.Pion([{"params": [weights[0]], "rotated": True}], lr=1e-3),
        norm_free_runs.Series([weights[1]], lr=1e-3),
    ]
    before = weights[0].detach().clone()
    for _ in range(3):
        for weight, optimizer in zip(weights, optimizers, strict=True):
            weight.grad = gradient.clone()
            optimizer.step()
    assert (weights[0] - before).norm() > 1e-3 * before.norm()
    torch.testing.assert_close(weights[0], weights[1], rtol=0, atol=1e-5)


def test_best_rates_are_run_with_other_seeds():
    tried = [row("text_muon", lr, 2 + abs(lr - 0.03), part="recipes") for lr in norm_free.RECIPES["text_muon"]]
    tried[0]["loss"] = None
    assert {(task["lr"], task["seed"]) for task in norm_free.chosen(tried)} == {(0.03, 1), (0.03, 2)}
    assert norm_free.chosen(tried[:-1]) == []
    keys = [norm_free.key(task) for part in norm_free.tasks(5) for task in part]
    assert len(keys) == len(set(keys))


def test_what_the_readme_says_of_the_rates():
    runs = norm_free_page.pick(norm_free_page.read(norm_free_page.ROOT), part="rates")
    rates = {m: list(norm_free_page.trained(runs, method=m)) for m in norm_free.METHODS}
    everywhere = [m for m in norm_free.METHODS if rates[m] == list(norm_free.RATES)]
    said = (
        f"at every learning rate from {norm_free.RATES[0]:g} to {norm_free.RATES[-1]:g} by `hs.Hyperball` around Muon"
    )
    assert everywhere == ["MuonH"]
    readme = (norm_free_page.ROOT / "README.md").read_text(encoding="utf-8")
    assert said in readme
    assert f"{norm_free.STEPS[8]} steps, {norm_free_page.counted(runs)})" in readme


def test_the_recipes_have_the_rates_that_were_best():
    runs = norm_free_page.read(norm_free_page.ROOT)
    for name in norm_free.RECIPES:
        tried = norm_free_page.pick(runs, part="recipes", method=name, seed=0)
        best = min((row for row in tried if row["loss"] is not None), key=lambda row: row["loss"])
        config = recipes.load(name)
        assert config.steps == best["steps"]
        rate = config.optimizer.rotation_lr if name == "text_poet" else config.optimizer.lr
        assert rate == best["lr"], name


def test_the_page_says_what_the_runs_say(tmp_path):
    runs = [row("Muon", 0.01, 2.0 + 0.01 * seed, seed) for seed in range(3)]
    runs += [row("Muon", 0.03, 2.0 if seed else None, seed) for seed in range(3)]
    runs += [row("MuonH", lr, 2.1 + lr, seed) for lr in (0.01, 0.03, 0.1) for seed in range(3)]
    said = norm_free_page.verdict(runs)
    assert "MuonH trains at every rate tried: 3, a range of 10; best 2.110 ± 0.000 at 0.01" in said
    assert "Muon trains at 1 of 2 rates, diverges from 0.03 on; best 2.010 ± 0.010 at 0.01" in said
    assert "Lowest loss: Muon, before MuonH: a difference" in said
    (tmp_path / "results").mkdir()
    assert norm_free_page.generated(tmp_path) == {}
    (tmp_path / "results" / "optimizers.json").write_text(json.dumps({"runs": runs}))
    files = norm_free_page.generated(tmp_path)
    assert "| Muon | 2.010 ± 0.010 | 1 of 3 diverged |  |" in files["norm_free"]
    picture = files["pictures/optimizers/rates.svg"]
    assert re.findall("<title>(.*diverged.*)</title>", picture) == ["Muon diverged, 0.03"]


def test_a_tie_is_called_a_tie():
    runs = [row("Muon", 0.01, 2.0 + 0.01 * seed, seed) for seed in range(3)]
    runs += [row("MuonH", 0.01, 2.001 + 0.01 * seed, seed) for seed in range(3)]
    assert "Lowest loss: Muon, before MuonH: a tie" in norm_free_page.verdict(runs)
