"""spread and normalize_neurons: neurons moved in place."""

import copy

import pytest
import torch
from torch import nn

import hypersphere as hs
from hypersphere.energy import REGULARIZERS
from tests.energy.test_regularizer import HIDDEN, Net, by_hand, net, rows_by_hand


def norms(model, name):
    return torch.cat([rows.norm(dim=1) for rows in rows_by_hand(model)[name]])


@pytest.mark.parametrize("half_space", [False, True])
def test_spread_lowers_every_hidden_layer_and_keeps_lengths(half_space):
    model = Net()
    start = copy.deepcopy(model)
    random = torch.get_rng_state()
    hs.spread(model, half_space=half_space)
    assert torch.equal(torch.get_rng_state(), random)
    for name in HIDDEN:
        assert by_hand(model, name, half_space=half_space) < by_hand(start, name, half_space=half_space)
        torch.testing.assert_close(norms(model, name), norms(start, name), rtol=1e-5, atol=0)
    neurons = {f"{name}.weight" for name in HIDDEN}
    for (name, a), (_, b) in zip(model.named_parameters(), start.named_parameters(), strict=True):
        assert (name in neurons) != torch.equal(a, b), name
        assert a.requires_grad
        assert a.grad is None
    again = copy.deepcopy(start)
    hs.spread(again, half_space=half_space)
    assert all(torch.equal(a, b) for a, b in zip(again.parameters(), model.parameters(), strict=True))


def test_spread_finds_the_best_there_is():
    model = nn.Sequential(nn.Linear(5, 6), nn.Linear(6, 4), nn.Linear(4, 2))
    hs.spread(model)
    assert hs.hyperspherical_energy(model[0].weight).item() == pytest.approx(5 / 12, rel=1e-3)  # a simplex
    assert hs.hyperspherical_energy(model[1].weight).item() == pytest.approx(3 / 8, rel=1e-3)
    nn.init.normal_(model[1].weight)  # a simplex would be a saddle point
    hs.spread(model, half_space=True, layers="1")
    rows = model[1].weight / model[1].weight.norm(dim=1, keepdim=True)
    torch.testing.assert_close(rows @ rows.T, torch.eye(4), rtol=0, atol=0.03)  # orthonormal


@pytest.mark.parametrize(
    ("options", "moved"),
    [
        ({"layers": "fc"}, ["fc"]),
        ({"exclude": "conv"}, ["up", "plain", "sphere"]),
    ],
)
def test_which_layers(options, moved):
    for verb in (lambda m: hs.spread(m, steps=2, **options), lambda m: hs.normalize_neurons(m, **options)):
        model = net()
        start = copy.deepcopy(model)
        verb(model)
        changed = {n for (n, a), b in zip(model.named_parameters(), start.parameters(), strict=True) if (a != b).any()}
        assert changed == {f"{name}.weight" for name in moved}


@pytest.mark.parametrize("measure", [name for name in REGULARIZERS if "energy" in name or "mhe" in name])
def test_spread_by_other_measures_of_energy(measure):
    model = Net()
    start = copy.deepcopy(model)
    hs.spread(model, measure=measure, steps=40, layers=["conv", "plain"])
    for name in ("conv", "plain"):
        assert by_hand(model, name) < by_hand(start, name)  # a projected energy has the same idea of evenness
        torch.testing.assert_close(norms(model, name), norms(start, name), rtol=1e-5, atol=0)


@pytest.mark.parametrize("verb", [hs.spread, hs.normalize_neurons])
def test_coincident_zero_and_single_neurons(verb):
    name = f"edge_{verb.__name__}"
    model = nn.ModuleDict(
        {name: nn.Linear(4, 6), "one": nn.Linear(6, 1), "line": nn.Linear(1, 3), "fc": nn.Linear(3, 2)}
    )
    weight = model[name].weight
    with torch.no_grad():
        weight[1] = weight[0]
        weight[3] = 0
    with pytest.warns(UserWarning, match=name):
        verb(model)
    assert all(p.isfinite().all() for p in model.parameters())
    assert (weight[3] == 0).all()
    apart = torch.cosine_similarity(weight[0], weight[1], 0) < 0.99
    assert apart == (verb is hs.spread)


def test_normalize_neurons():
    model = net()
    start = copy.deepcopy(model)
    hs.normalize_neurons(model)
    for name in HIDDEN:
        torch.testing.assert_close(norms(model, name), torch.ones_like(norms(model, name)), rtol=1e-12, atol=0)
        for rows, before in zip(rows_by_hand(model)[name], rows_by_hand(start)[name], strict=True):
            assert (torch.cosine_similarity(rows, before) > 1 - 1e-12).all()
    assert torch.equal(model.fc.weight, start.fc.weight)
    assert all(p.requires_grad and p.grad is None for p in model.parameters())


@pytest.mark.parametrize("verb", ["spread", "normalize_neurons"])
def test_bad_arguments_are_named(verb):
    with pytest.raises(TypeError, match="model"):
        getattr(hs, verb)(None)
    with pytest.raises(ValueError, match=rf"{verb}.*conv \[Conv2d\]"):
        getattr(hs, verb)(net(), layers="nothing*")
    with pytest.raises(ValueError, match=verb):
        getattr(hs, verb)(nn.ReLU())
    if verb == "spread":
        with pytest.raises(ValueError, match="measure"):
            hs.spread(net(), measure="thomson")
        with pytest.raises((TypeError, ValueError), match="steps"):
            hs.spread(net(), steps=-1)
