"""MuonAdamW: torch's Muon and AdamW in one optimizer, layouts, MuonH, and bad input."""

import copy

import pytest
import torch
from torch import nn

import hypersphere as hs
from hypersphere._internal import checks
from hypersphere.optim import MuonAdamW


def net():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))


def groups(model, **options):
    found = hs.param_groups(model, muon=True, **options)
    return [group | {"lr": 0.02 if group["name"] == "matrices" else 0.003} for group in found]


def steps(model, optimizers, count):
    torch.manual_seed(0)
    for _ in range(count):
        x = torch.randn(16, 6)
        model.zero_grad()
        loss = (model(x) - x[:, :3].sin()).square().mean()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
    return loss.item()


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_it_is_muon_and_adamw_of_torch(decay):
    model, twin = net(), net()
    hidden = [twin[0].weight, twin[2].weight]
    others = [(twin[4].weight,), (twin[0].bias, twin[2].bias, twin[4].bias)]
    reference = [torch.optim.Muon(hidden, lr=0.02, weight_decay=decay)]
    reference += [
        torch.optim.AdamW(params, lr=0.003, betas=(0.9, 0.95), weight_decay=own)
        for params, own in zip(others, (decay, 0.0), strict=True)
    ]
    steps(model, [MuonAdamW(groups(model, weight_decay=decay), lr=0.1)], 10)
    steps(twin, reference, 10)
    for p, q in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(p, q)


@pytest.mark.parametrize(
    ("shape", "layout", "blocks"),
    [
        ((6, 4), {"parts": 3}, lambda w: w.chunk(3)),
        ((4, 3, 2, 2), {"groups": 2}, lambda w: w.flatten(1).chunk(2)),
        ((5, 6, 2), {"transposed": True}, lambda w: [w.transpose(0, 1).flatten(1)]),
    ],
    ids=["parts", "groups", "transposed"],
)
def test_blocks_of_a_layout_are_matrices_apart(shape, layout, blocks):
    w = nn.Parameter(torch.randn(*shape))
    alone = [nn.Parameter(block.detach().clone()) for block in blocks(w)]
    optimizer = MuonAdamW([{"params": [w], "muon": True, "layout": layout}], lr=0.1)
    reference = torch.optim.Muon(alone, lr=0.1, weight_decay=0.0)
    for _ in range(3):
        w.grad = torch.randn_like(w)
        for p, gradient in zip(alone, blocks(w.grad), strict=True):
            p.grad = gradient.clone()
        optimizer.step()
        reference.step()
    for p, block in zip(alone, blocks(w), strict=True):
        torch.testing.assert_close(block, p)


def test_muonh_keeps_the_norms_of_matrices_alone():
    model = net()
    before = [p.norm().item() for p in model.parameters()]
    optimizer = hs.Hyperball(MuonAdamW(groups(model), lr=0.02))
    assert [group["hyperball"] for group in optimizer.param_groups] == [False, False, True]
    steps(model, [optimizer], 20)
    after = [p.norm().item() for p in model.parameters()]
    kept = [a == pytest.approx(b, rel=1e-6) for a, b in zip(after, before, strict=True)]
    assert kept == [True, False, True, False, False, False]


def test_resume_is_bit_equal():
    model = net()
    optimizer = hs.Hyperball(MuonAdamW(groups(model), lr=0.02))
    steps(model, [optimizer], 3)
    again = copy.deepcopy(model)
    other = hs.Hyperball(MuonAdamW(groups(again), lr=0.02))
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert steps(model, [optimizer], 3) == steps(again, [other], 3)


def test_a_state_of_adamw_lacks_options_of_muon():
    model = net()
    plain, optimizer = torch.optim.AdamW(groups(model), lr=0.02), MuonAdamW(groups(model), lr=0.02, momentum=0.8)
    steps(model, [plain], 1)
    optimizer.load_state_dict(plain.state_dict())
    steps(model, [optimizer], 1)
    assert [(g["muon"], g["momentum"]) for g in optimizer.param_groups] == [(False, 0.8), (False, 0.8), (True, 0.8)]


@pytest.mark.parametrize(
    ("group", "error", "words"),
    [
        ({"params": [torch.zeros(4)]}, ValueError, "must hold matrices of at least two dimensions, got parameter 0 of"),
        ({"params": [torch.zeros(2, 2) + 0j]}, TypeError, "real floating point matrices, got torch.complex64"),
        ({"params": [torch.zeros(4, 2)], "layout": {"parts": 3}}, ValueError, "does not fit"),
        ({"params": [torch.zeros(4, 2)], "momentum": 1.0}, ValueError, "momentum must be >= 0 and < 1, got 1.0"),
        ({"params": [torch.zeros(4, 2)], "adjust_lr_fn": "rms"}, ValueError, "adjust_lr_fn must be one of original"),
    ],
)
def test_bad_input_is_one_line(group, error, words):
    with pytest.raises(error, match=words) as caught:
        MuonAdamW([group | {"muon": True}], lr=0.1)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "make",
    [
        lambda w: MuonAdamW([{"params": [w], "muon": True}], lr=0.1),
        lambda w: MuonAdamW([w], lr=0.1),
        lambda w: hs.OGD([w], lr=0.1, rest="adam"),
        lambda w: hs.Pion([w], lr=0.1),
    ],
    ids=["Muon", "AdamW", "Adam", "Pion"],
)
def test_sparse_gradients_are_refused(make):
    w = nn.Parameter(torch.randn(3, 4))
    w.grad = torch.ones(3, 4).to_sparse()
    with pytest.raises(ValueError, match=r"dense gradients, got a sparse one for parameter 0 of group 0, \(3, 4\)"):
        make(w).step()


@pytest.mark.parametrize(
    ("kind", "mark", "rest"), [(MuonAdamW, "muon", "Adam"), (hs.Pion, "rotated", "Adam"), (hs.OGD, "orthogonal", "SGD")]
)
def test_a_model_without_marked_groups_is_warned_of(kind, mark, rest, monkeypatch):
    monkeypatch.setattr(checks, "_warned", set())
    with pytest.warns(
        UserWarning, match=f"{kind.__name__} steps all parameters by {rest}, .* no group has {mark}=True"
    ):
        kind(net().parameters(), lr=0.1)
    assert kind([{"params": [nn.Parameter(torch.eye(2))], mark: True}], lr=torch.tensor(0.1))


@pytest.mark.parametrize(
    ("kind", "option", "words"),
    [
        (hs.Pion, "muon", r"'matrices' has muon=True, .* hypersphere\.optim\.MuonAdamW: .* of Pion with .*pion=True\)"),
        (MuonAdamW, "pion", r"'matrices' has rotated=True, .* hypersphere\.Pion: .* MuonAdamW with .*muon=True\)"),
        (hs.OGD, "muon", r"'matrices' has muon=True, .* of OGD with .*ogd=True\)"),
    ],
)
def test_groups_of_another_optimizer_are_refused(kind, option, words):
    with pytest.raises(ValueError, match=words):
        kind(hs.param_groups(net(), **{option: True}), lr=0.1)


def test_one_kind_of_matrices():
    with pytest.raises(ValueError, match="pion and muon both make the groups of matrices: give one"):
        hs.param_groups(net(), pion=True, muon=True)
