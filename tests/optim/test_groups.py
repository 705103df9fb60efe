"""param_groups by name, and the guard rails: what is warned of, once, and what is not."""

import copy
import warnings

import pytest
import torch
from torch import nn

import hypersphere as hs
from hypersphere._internal import checks


def grouped(model, *args, **options):
    """{group's name: the names of its parameters}; every parameter is in one group, once."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    groups = hs.param_groups(model, *args, **options)
    ids = [id(parameter) for group in groups for parameter in group["params"]]
    assert len(ids) == len(set(ids))
    assert len({group["name"] for group in groups}) == len(groups)
    return {group["name"]: {names[id(parameter)] for parameter in group["params"]} for group in groups}


def everything():
    return nn.ModuleDict(
        {
            "sphere": hs.SphereConv2d(3, 4, 3, similarity="learnable", scale=True),
            "conv": nn.Conv2d(4, 4, 3),
            "bn": nn.BatchNorm2d(4),
            "ln": nn.LayerNorm((4, 3, 3)),
            "gn": nn.GroupNorm(2, 4),
            "inorm": nn.InstanceNorm2d(4, affine=True),
            "rms": nn.RMSNorm((2, 2)),
            "angular": hs.SphereLinear(4, 4, scale=2.0),
            "rnn": hs.SphereGRU(4, 4, 2, bidirectional=True, similarity="learnable", scale=True),
            "plain_rnn": nn.GRU(4, 4),
            "embedding": nn.Embedding(5, 4),
            "prelu": nn.PReLU(4),
            "fc": nn.Linear(4, 4),
            "head": hs.WSoftmaxLoss(3, 4, similarity="learnable", bias=True),
        }
    )


DECAYED = {"conv.weight", "plain_rnn.weight_ih_l0", "plain_rnn.weight_hh_l0", "embedding.weight", "fc.weight"}


# groups


def test_every_parameter_is_where_it_belongs():
    model = everything()
    groups = grouped(model, weight_decay=0.1)
    assert groups.keys() == {"weights", "no_decay"}
    assert groups["weights"] == DECAYED
    assert groups["no_decay"] == {name for name, _ in model.named_parameters()} - DECAYED


def test_decay_goes_to_the_weights_only():
    groups = {group["name"]: group for group in hs.param_groups(everything(), 5e-4)}
    assert groups["weights"]["weight_decay"] == 5e-4
    assert groups["no_decay"]["weight_decay"] == 0
    for options in ({}, {"muon": True}):  # the optimizer's own
        groups = {group["name"]: group for group in hs.param_groups(everything(), **options)}
        assert [name for name, group in groups.items() if "weight_decay" in group] == ["no_decay"]
    assert {group["weight_decay"] for group in hs.param_groups(everything(), 0.0)} == {0}  # given
    adamw = torch.optim.AdamW(hs.param_groups(everything()), weight_decay=0.1)
    assert [(g["name"], g["weight_decay"]) for g in adamw.param_groups] == [("weights", 0.1), ("no_decay", 0)]


@pytest.mark.parametrize("optimizer", [hs.OGD, hs.Pion, hs.optim.MuonAdamW])
def test_a_model_instead_of_its_parameters(optimizer):
    with pytest.raises(TypeError, match=r"params must be .*hypersphere.param_groups\(model\), got the Linear itself"):
        optimizer(nn.Linear(3, 3), lr=0.01)


def test_the_plain_projection_of_an_lstm_is_a_weight():
    """weight_hr stays plain, so its length matters: it decays."""
    groups = grouped(hs.SphereLSTM(4, 4, 2, proj_size=2), 0.1)
    assert groups["weights"] == {"weight_hr_l0", "weight_hr_l1"}


def test_biases_of_several_dimensions():
    """nn.MultiheadAttention's bias_k and bias_v are (1, 1, E)."""
    groups = grouped(nn.MultiheadAttention(4, 2, add_bias_kv=True), 0.1)
    assert groups["weights"] == {"in_proj_weight", "out_proj.weight"}


def test_a_parametrized_plain_layer_decays():
    layer = nn.utils.parametrizations.weight_norm(nn.Linear(3, 3))
    assert "parametrizations.weight.original1" in grouped(layer, 0.1)["weights"]


def test_shared_parameters_and_modules_once():
    g = hs.LearnableSigmoid()
    model = nn.Sequential(hs.SphereLinear(3, 3, similarity=g), hs.SphereLinear(3, 3, similarity=g), nn.Linear(3, 3))
    model.append(model[2])
    tied = nn.Linear(3, 3)
    tied.weight = model[2].weight
    model.append(tied)
    groups = grouped(model, 0.1)
    assert groups["weights"] == {"2.weight"}
    assert sum(len(names) for names in groups.values()) == len(list(model.parameters()))


def test_frozen_parameters_are_left_out():
    model = everything()
    model["fc"].requires_grad_(False)
    model["sphere"].weight.requires_grad_(False)
    model["rnn"].similarity.requires_grad_(False)
    groups = grouped(model)
    left = set().union(*groups.values())
    assert left == {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert not {"fc.weight", "fc.bias", "sphere.weight", "rnn.similarity.log_k"} & left


# groups of rotated models


def key(layer, method):
    return f"{layer}.parametrizations.weight.0.default.{method}"


def neurons(layer):
    return f"{layer}.parametrizations.weight.original"


def mixed(method="cayley", **options):
    """A plain layer, a sphere layer and a loss head that are rotated, and a layer that is not."""
    model = nn.ModuleDict(
        {
            "conv": nn.Conv2d(3, 4, 3),
            "sphere": hs.SphereLinear(4, 4, similarity="learnable"),
            "fc": nn.Linear(4, 4),
            "head": hs.ArcFaceLoss(3, 4),
        }
    )
    return hs.rotate(model, method, layers=["conv", "sphere", "head"], **options)


ROTATED = ("conv", "sphere", "head")
NOT_DECAYED = {"conv.bias", "sphere.bias", "sphere.similarity.log_k", "fc.bias"}


@pytest.mark.parametrize("method", ["cayley", "regularized"])
@pytest.mark.parametrize("ogd", [False, True])
def test_rotations_are_a_group_of_their_own(method, ogd):
    groups = grouped(mixed(method), 0.1, ogd=ogd)
    assert list(groups) == ["weights", "no_decay", "rotations"]
    assert groups["weights"] == {"fc.weight"}
    assert groups["no_decay"] == NOT_DECAYED
    assert groups["rotations"] == {key(layer, method) for layer in ROTATED}
    decays = {group["name"]: group["weight_decay"] for group in hs.param_groups(mixed(method), 0.1, ogd=ogd)}
    assert decays == {"weights": 0.1, "no_decay": 0.0, "rotations": 0.1}


def test_matrices_of_ogd():
    groups = grouped(mixed("ogd"), 0.1, ogd=True)
    assert list(groups) == ["weights", "no_decay", "orthogonal"]
    assert groups["orthogonal"] == {key(layer, "ogd") for layer in ROTATED}
    *others, orthogonal = hs.param_groups(mixed("ogd"), 0.1, ogd=True)
    assert orthogonal["orthogonal"] is True
    assert orthogonal["weight_decay"] == 0.0
    assert not any(group.get("orthogonal") for group in others)


def test_both_kinds_of_rotations():
    model = hs.rotate(mixed("ogd"), "householder", layers="fc")
    groups = grouped(model, ogd=True)
    assert list(groups) == ["no_decay", "rotations", "orthogonal"]
    assert groups["rotations"] == {key("fc", "householder")}


def test_matrices_of_ogd_are_for_ogd():
    with pytest.raises(ValueError, match=r"param_groups\(model, ogd=True\) with hypersphere\.OGD"):
        hs.param_groups(mixed("ogd"))
    frozen = mixed("ogd").requires_grad_(False)
    frozen["fc"].requires_grad_(True)  # nobody steps the matrices
    assert grouped(frozen) == {"weights": {"fc.weight"}, "no_decay": {"fc.bias"}}


@pytest.mark.parametrize("method", ["cayley", "ogd"])
def test_nothing_trains_fixed_neurons(method):
    model = mixed(method)
    expected = grouped(model, ogd=True)
    model.requires_grad_(True)
    assert grouped(model, ogd=True) == expected
    assert not {neurons(layer) for layer in ROTATED} & set().union(*expected.values())


@pytest.mark.parametrize("method", ["cayley", "ogd", "none"])
def test_learned_neurons(method):
    """Those of a plain layer decay; in a sphere layer or a loss head their length does not matter."""
    groups = grouped(mixed(method, neurons="learned"), ogd=True)
    assert groups["weights"] == {"fc.weight", neurons("conv")}
    assert groups["no_decay"] == NOT_DECAYED | {neurons("sphere"), neurons("head")}
    assert len(groups) == (2 if method == "none" else 3)


def test_rotations_decay_without_a_warning():
    model = hs.rotate(nn.Sequential(hs.SphereLinear(4, 4), nn.Linear(4, 2)))
    assert stepped(torch.optim.SGD(hs.param_groups(model, 0.1), lr=0.1)) == []


# bad arguments


@pytest.mark.parametrize(
    ("args", "error", "match"),
    [
        ((nn.Linear(2, 2), -0.1), ValueError, "weight_decay"),
        ((nn.Linear(2, 2), "0.1"), TypeError, "weight_decay"),
        ((None,), TypeError, "model"),
    ],
)
def test_bad_arguments_are_named(args, error, match):
    with pytest.raises(error, match=match):
        hs.param_groups(*args)
    with pytest.raises(TypeError, match="ogd must be True or False"):
        hs.param_groups(nn.Linear(2, 2), ogd=1)


# optimizers


def small():
    return nn.Sequential(hs.SphereLinear(4, 4, scale=True), nn.ReLU(), nn.Linear(4, 3))


# the guard rail: decay on weights whose length does not matter


def stepped(optimizer):
    """The guard rail's warnings of one step with zero gradients."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.zeros_like(parameter)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        optimizer.step()
    return [str(w.message) for w in caught if "param_groups" in str(w.message)]


TRAPPED = {
    "linear": lambda: hs.SphereLinear(3, 3),
    "conv": lambda: nn.Sequential(nn.Conv2d(3, 3, 1), hs.SphereConv2d(3, 3, 3)),
    "lstm": lambda: hs.SphereLSTM(3, 3, proj_size=2),
    "head": lambda: nn.Sequential(nn.Linear(3, 3), hs.ArcFaceLoss(3, 3)),
    "spherized": lambda: hs.spherize(nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))),
    "copied": lambda: copy.deepcopy(hs.SphereLinear(3, 3)),
    "assigned": lambda: assigned(),
}


def assigned():
    layer = hs.SphereLinear(3, 3)
    layer.load_state_dict(nn.Linear(3, 3).state_dict(), assign=True)
    return layer


@pytest.mark.parametrize("make", TRAPPED.values(), ids=TRAPPED)
def test_decay_on_scale_free_weights_is_warned_of(make):
    model = make()
    (message,) = stepped(torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=1e-4))
    assert "SGD" in message


def test_once_for_an_optimizer_and_a_process():
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=1e-4)
    assert [len(stepped(optimizer)) for _ in range(4)] == [1, 0, 0, 0]
    assert stepped(torch.optim.SGD(small().parameters(), lr=0.1, weight_decay=1e-4)) == []


def test_one_decaying_group_is_enough():
    model = small()
    groups = [{"params": model[2].parameters()}, {"params": model[0].parameters(), "weight_decay": 0.1}]
    assert len(stepped(torch.optim.SGD(groups, lr=0.1))) == 1


def test_an_optimizer_that_stepped_before_spherize_is_looked_at_again():
    """spherize keeps optimizers alive: from then on they decay weights whose length does not matter."""
    hs.SphereLinear(2, 2)  # some sphere layer exists in the process already
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=1e-4)
    assert stepped(optimizer) == []
    hs.spherize(model)
    assert len(stepped(optimizer)) == 1


def tied_to_an_embedding():
    model = nn.Sequential(nn.Embedding(4, 4), nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight = model[0].weight
    return hs.spherize(model)


HARMLESS = {
    "param_groups": lambda: hs.param_groups(everything(), 0.1),
    "param_groups of a projected lstm": lambda: hs.param_groups(hs.SphereLSTM(3, 3, proj_size=2), 0.1),
    "param_groups of tied weights": lambda: hs.param_groups(tied_to_an_embedding(), 0.1),
    "plain model": lambda: nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Conv2d(3, 3, 1)).parameters(),
    "only the projection": lambda: [hs.SphereLSTM(3, 3, proj_size=2).weight_hr_l0],
    "only biases and scales": lambda: [p for p in everything().parameters() if p.dim() < 2],
    "a copy made before spherize": lambda: copied_before().parameters(),
}


def copied_before():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
    twin = copy.deepcopy(model)
    hs.spherize(model)
    return twin


@pytest.mark.parametrize("make", HARMLESS.values(), ids=HARMLESS)
def test_what_is_harmless_is_not_warned_of(make):
    hs.SphereLinear(2, 2)  # the look-out is on
    parameters = make()
    assert stepped(torch.optim.AdamW(parameters, lr=0.1, weight_decay=0.1)) == []


def test_no_decay_no_warning():
    assert stepped(torch.optim.SGD(everything().parameters(), lr=0.1)) == []
    assert stepped(torch.optim.Adam(everything().parameters(), weight_decay=0.0)) == []
    assert stepped(torch.optim.Adagrad(everything().parameters())) == []


# the guard rail: a margin of 4 from the start


def test_a_softmax_without_annealing_warns_once():
    with pytest.warns(UserWarning, match="annealing") as caught:
        hs.ASoftmaxLoss(10, 4, margin=4, annealing=False)
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        hs.ASoftmaxLoss(10, 4, margin=4, annealing=False)
        checks._warned.clear()
        hs.ASoftmaxLoss(10, 4, margin=4)
        hs.ASoftmaxLoss(10, 4, margin=2, annealing=False)
