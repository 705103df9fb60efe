"""The recipes on characters: each trains, and keeps what its optimizer is said to keep."""

import pytest
import torch

import hypersphere as hs
from hypersphere.train import derive, fit, recipes
from tests import runs as runs  # registers letters_of_test
from tests.models.test_decoder import check_lengths

NAMES = [name for name in recipes.names() if name.startswith("text_")]
ROTATED = {"rotation.every": 2}


def small(name):
    changes = {"model.width": 32, "model.depth": 1, "data.name": "letters_of_test", "data.validation": None}
    changes |= {"steps": 5, "schedule.warmup": 0, **(ROTATED if name == "text_poet" else {})}
    return derive(recipes.load(name), changes)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_keeps_what_it_says(name):
    seen = []

    def callback(classifier, step, metrics):
        weight = classifier.network.blocks[0].attention.query.weight.detach().clone()
        layer = classifier.network.blocks[0].attention.query
        draw = int(layer.parametrizations.weight[0].default.draw) if name == "text_poet" else None
        seen.append((weight, draw))

    result = fit(small(name), callbacks=[callback], progress=False)
    (first, _), (last, draws) = seen[0], seen[-1]
    moved = float((last - first).norm() / first.norm())
    kept = {
        "norm": torch.allclose(last.norm(), first.norm(), rtol=1e-5),
        "singular": torch.allclose(torch.linalg.svdvals(last), torch.linalg.svdvals(first), atol=1e-5),
    }
    assert moved > 1e-3
    says = {"text_adamh": {"norm"}, "text_muonh": {"norm"}, "text_ngpt": {"norm"}}
    says |= {key: {"norm", "singular"} for key in ("text_pion", "text_poet")}
    assert {what for what, is_kept in kept.items() if is_kept} == says.get(name, set())
    assert draws == (2 if name == "text_poet" else None)
    if name == "text_ngpt":
        check_lengths(result.model.network if hasattr(result.model, "network") else result.model)


def test_are_one_network_and_one_schedule():
    """Only the optimizer differs, but for what nGPT and POET are."""
    made = {name: recipes.load(name) for name in NAMES}
    first = made["text_adamw"]
    for name, config in made.items():
        assert (config.steps, config.data) == (first.steps, first.data)
        if name not in ("text_ngpt", "text_poet"):
            assert derive(config, optimizer=first.optimizer) == first
    assert made["text_poet"].rotation.side == "both"
    assert hs.models.preset(made["text_ngpt"].model.name).build.data_kind == "text"
