"""diagnose: every number against its formula written out here, one neuron and one pair at a time."""

import dataclasses
import itertools
import json
import math
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

import hypersphere as hs
from hypersphere.inspection import diagnose, measuring, pairs
from hypersphere.inspection.pairs import LISTED
from tests import reference
from tests.rotations import mlp

DEGREE = math.pi / 180


def angle(u, v):
    """By the difference, which is right for close neurons too."""
    u, v = (x.double() / x.double().norm() for x in (u, v))
    return 2 * math.asin(min(1.0, float((u - v).norm()) / 2))


def angles(rows):
    return {(i, j): angle(rows[i], rows[j]) for i, j in itertools.combinations(range(len(rows)), 2)}


def lower_bound(n, s, angular):
    """Compute the lower bound of the mean energy: from the simplex, or from the largest possible mean angle."""
    z = 2 * math.pi * (n * n // 4) / (n * (n - 1)) if angular else math.sqrt(2 * n / (n - 1))
    return -math.log(z) if s == 0 else z**-s


def effective_rank(rows):
    unit = rows.double() / rows.double().norm(dim=1, keepdim=True)
    p = torch.linalg.svdvals(unit)
    p = p[p > 1e-12] / p.sum()
    return float((-(p * p.log()).sum()).exp())


def mean(values):
    values = list(values)
    return sum(values) / len(values)


def turned(degrees):
    """Neurons in the plane at these angles."""
    turn = torch.tensor(degrees, dtype=torch.float64) * DEGREE
    return torch.stack([turn.cos(), turn.sin()], 1)


def only(weight, **options):
    (row,) = diagnose({"fc.weight": weight}, **options)
    return row


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 5, 2)
        self.grouped = nn.Conv1d(6, 8, 3, groups=2)
        self.up = nn.ConvTranspose2d(4, 6, 2, groups=2)
        self.norm = nn.BatchNorm2d(5)
        self.fc = nn.Linear(3, 7)


def groups_of(net):
    """The neurons by layer and group: output channels, cut out one by one."""
    conv, grouped, up, fc = (getattr(net, name).weight.detach() for name in ("conv", "grouped", "up", "fc"))
    return {
        "conv": [[conv[o].flatten() for o in range(5)]],
        "grouped": [[grouped[o].flatten() for o in range(4 * g, 4 * g + 4)] for g in range(2)],
        "up": [[up[2 * g : 2 * g + 2, o].flatten() for o in range(3)] for g in range(2)],
        "fc": [[fc[o] for o in range(7)]],
    }


# the numbers


@pytest.mark.parametrize("angular", [False, True], ids=["euclidean", "angular"])
@pytest.mark.parametrize("s", [2.0, 0.0, 6.0])
def test_every_number_is_its_formula(s, angular, device):
    net = Net().to(device)
    found = diagnose(net, s=s, angular=angular)
    literal = groups_of(net.cpu())
    assert [row.name for row in found] == list(literal)
    for row, groups in zip(found, literal.values(), strict=True):
        groups = [torch.stack(rows).double() for rows in groups]
        n, d = groups[0].shape
        assert (row.groups, row.neurons, row.dimension) == (len(groups), n, d)
        energy, half = (
            mean(float(reference.energy(rows, s, half_space=half, angular=angular)) for rows in groups)
            for half in (False, True)
        )
        assert row.energy == pytest.approx(energy, rel=1e-9)
        assert row.half_energy == pytest.approx(half, rel=1e-9)
        bound = lower_bound(n, s, angular)
        assert row.excess == pytest.approx((energy - bound) / (bound if s else 1), rel=1e-9)
        pairs = {(i + g * n, j + g * n): a for g, rows in enumerate(groups) for (i, j), a in angles(rows).items()}
        assert row.separation == pytest.approx(min(pairs.values()), rel=1e-9)
        assert row.closest == min(pairs, key=pairs.__getitem__)
        assert row.mean_angle == pytest.approx(mean(pairs.values()), rel=1e-9)
        assert row.effective_rank == pytest.approx(mean(effective_rank(rows) for rows in groups), rel=1e-9)
        assert (row.duplicates, row.duplicate_pairs, row.redundant, row.dead) == ((), 0, (), ())
        assert row.is_output is (row.name == "fc")


def test_the_best_there_is_has_no_excess():
    simplex = torch.eye(4, dtype=torch.float64) - 1 / 4
    row = only(simplex)
    assert row.excess == 0.0
    assert row.separation == pytest.approx(math.acos(-1 / 3))
    assert row.effective_rank == pytest.approx(3.0)
    assert only(torch.eye(3)).excess == pytest.approx(0.5)  # 1/2 where 1/3 is possible
    assert only(torch.eye(3), s=0).excess == pytest.approx(math.log(3 / 2) / 2)


def test_what_random_neurons_have():
    assert only(torch.randn(9, 20)).random_excess == pytest.approx((18 / 34) / (8 / 18) - 1)  # ½(d−2)/(d−3), s = 2
    assert only(torch.randn(9, 3), s=1).random_excess == pytest.approx(1 / (18 / 8) ** -0.5 - 1)  # Archimedes
    many = torch.randn(1500, 30, dtype=torch.float64)
    for angular in (False, True):
        row = only(many, angular=angular)
        assert row.excess == pytest.approx(row.random_excess, rel=0.01)
    row = only(many, s=0)
    assert row.excess == pytest.approx(row.random_excess, abs=1e-4)
    for d in (1, 2, 3):  # infinite
        assert only(torch.randn(9, d)).random_excess is None
    assert only(torch.randn(9, 4)).random_excess is not None


def test_effective_rank_counts_directions():
    assert only(torch.eye(5)[[0, 1, 0, 1]]).effective_rank == pytest.approx(2)
    assert only(torch.ones(300, 40)).effective_rank == pytest.approx(1, abs=1e-9)
    assert only(torch.ones(30, 400)).effective_rank == pytest.approx(1, abs=1e-9)


def test_many_blocks_are_as_one(monkeypatch):
    weight = turned([0.0, 40.0, 41.0, 200.0, 42.5, 300.0, 0.5])
    whole = only(weight)
    blocks = lambda n: [slice(k, min(k + 2, n)) for k in range(0, n, 2)]  # noqa: E731
    monkeypatch.setattr(pairs, "row_blocks", blocks)
    cut = only(weight)
    sums = {name: getattr(whole, name) for name in ("energy", "half_energy", "excess", "mean_angle")}
    for name, value in sums.items():
        assert getattr(cut, name) == pytest.approx(value, rel=1e-12), name
    assert dataclasses.replace(cut, **sums) == whole
    assert whole.duplicates == ((0, 6), (1, 2), (2, 4), (1, 4))


# duplicates and dead neurons


def test_near_duplicates_the_nearest_first():
    row = only(turned([0.0, 90.0, 93.0, 180.0, 91.0, 5.0]))
    assert row.duplicates == ((1, 4), (2, 4), (1, 2), (0, 5))
    assert row.duplicate_pairs == 4
    assert row.redundant == (2, 4, 5)
    assert row.closest == (1, 4)
    assert row.separation == pytest.approx(1 * DEGREE)


def test_the_angle_of_duplicates():
    weight = turned([0.0, 4.0, 180.0])
    assert only(weight, duplicate_angle=4.01 * DEGREE).duplicates == ((0, 1),)
    assert only(weight, duplicate_angle=3.99 * DEGREE).duplicates == ()
    assert only(weight, duplicate_angle=176.01 * DEGREE).duplicates == ((0, 1), (1, 2))
    fine = turned([0.0, 2e-4, 100.0])  # 3.5e-6 radians
    assert only(fine, duplicate_angle=3.6e-6).duplicates == ((0, 1),)
    assert only(fine, duplicate_angle=3.4e-6).duplicates == ()
    assert only(turned([10.0, 10.0]), duplicate_angle=1e-6).duplicates == ((0, 1),)


def test_exact_duplicates():
    row = only(torch.tensor([[1.0, 2.0], [3.0, -1.0], [2.0, 4.0]]))
    assert row.closest == (0, 2)
    assert row.separation == 0.0
    assert row.energy == pytest.approx((2 * 1e12) / 6, rel=1e-6)  # a distance counts as 1e-6 at least
    assert math.isfinite(row.excess)


def test_a_collapsed_layer_is_not_listed_whole():
    n = 100
    row = only(torch.ones(n, 3) + 1e-3 * torch.randn(n, 3))
    assert row.duplicate_pairs == n * (n - 1) // 2 > LISTED
    assert row.redundant == tuple(range(1, n))
    assert len(row.duplicates) == len(set(row.duplicates)) == LISTED
    assert row.duplicates[0] == row.closest


def test_the_list_has_the_nearest(monkeypatch):
    monkeypatch.setattr(pairs, "LISTED", 5)
    monkeypatch.setattr(pairs, "row_blocks", lambda n: [slice(k, k + 1) for k in range(n)])
    weight = turned([1.0, 0.0, 5.0, 2.2, 3.6, 180.0, 5.2])
    nearest = sorted((a, pair) for pair, a in angles(weight).items())
    assert only(weight).duplicates == tuple(pair for _, pair in nearest[:5])
    assert only(weight).duplicate_pairs == sum(a < 0.1 for a, _ in nearest) == 15


def test_dead_neurons_count_in_nothing_else():
    weight = torch.randn(7, 4, dtype=torch.float64)
    weight[3] = weight[6] + 1e-4
    weight[[0, 4]] = 0
    row, without = only(weight), only(weight[[1, 2, 3, 5, 6]])
    assert row.dead == (0, 4)
    assert row.neurons == 7
    assert row.closest == (3, 6)
    assert row.duplicates == ((3, 6),)
    assert row.redundant == (6,)
    for name in ("energy", "half_energy", "excess", "random_excess", "separation", "mean_angle", "effective_rank"):
        assert getattr(row, name) == pytest.approx(getattr(without, name), rel=1e-12), name


@pytest.mark.parametrize(
    ("dtype", "length", "dead"),
    [
        (torch.float32, 1e-17, (1,)),
        (torch.float32, 1e-14, ()),
        (torch.float32, 1e25, ()),  # norms are right beyond what float32 can square
        (torch.float64, 1e-17, ()),
        (torch.float16, 3e-5, (1,)),
    ],
)
def test_dead_is_what_counts_as_zero_elsewhere(dtype, length, dead):
    weight = torch.tensor([[1.0, 0.0], [0.0, length], [0.0, -1.0]], dtype=torch.float64).to(dtype)
    row = only(weight)
    assert row.dead == dead
    assert row.dead == tuple((hs.layers.cosine.unit(weight) == 0).all(1).nonzero().flatten().tolist())
    assert row.separation == pytest.approx(math.pi / 2)
    living = [i for i in range(3) if i not in dead]
    assert row.energy == pytest.approx(only(weight[living].double()).energy)


def test_indices_are_output_channels_of_the_whole_layer():
    conv = nn.Conv1d(6, 9, 2, groups=3, dtype=torch.float64)
    with torch.no_grad():
        conv.weight.copy_(torch.linalg.qr(torch.randn(4, 4, dtype=torch.float64)).Q[:3].repeat(3, 1).view(9, 2, 2))
        conv.weight[4] = conv.weight[3] + 0.01 * conv.weight[5]
        conv.weight[7] = 0
    (row,) = diagnose(conv)
    assert row.closest == (3, 4)
    assert row.duplicates == ((3, 4),)  # equal neurons of different groups see different inputs
    assert row.redundant == (4,)
    assert row.dead == (7,)
    assert row.separation == pytest.approx(math.atan(0.01))


def test_duplicates_of_all_groups_together(monkeypatch):
    conv = nn.Conv1d(4, 6, 1, groups=2, dtype=torch.float64)
    with torch.no_grad():
        conv.weight.copy_(turned([0.0, 2.5, 90.0, 0.0, 2.0, 5.0]).unsqueeze(2))
    (row,) = diagnose(conv)
    assert row.duplicates == ((3, 4), (0, 1), (4, 5), (3, 5))
    assert row.redundant == (1, 4, 5)
    assert row.separation == pytest.approx(2 * DEGREE)
    monkeypatch.setattr(measuring, "LISTED", 3)
    (row,) = diagnose(conv)
    assert row.duplicates == ((3, 4), (0, 1), (4, 5))
    assert row.duplicate_pairs == 4


def test_dead_neurons_in_some_groups():
    conv = nn.Conv1d(4, 6, 3, groups=2, dtype=torch.float64)
    with torch.no_grad():
        conv.weight[4:] = 0  # one neuron of the second group lives
    (row,) = diagnose(conv)
    (alone,) = diagnose({"a.weight": conv.weight[:3]})
    assert row.dead == (4, 5)
    assert row.energy == pytest.approx(alone.energy / 2)  # the second group's is 0,
    assert row.half_energy == pytest.approx((alone.half_energy + 1 / 4) / 2)  # or its antipode's
    assert row.excess == pytest.approx(alone.excess)
    assert row.random_excess == pytest.approx(alone.random_excess)
    assert row.mean_angle == pytest.approx(alone.mean_angle)
    assert row.effective_rank == pytest.approx((alone.effective_rank + 1) / 2)


def test_no_pairs():
    (row,) = diagnose(nn.Conv2d(5, 5, 3, groups=5))
    assert (row.groups, row.neurons, row.dimension) == (5, 1, 9)
    assert row.energy == 0.0
    assert row.half_energy == 0.25
    assert row.effective_rank == pytest.approx(1)
    for name in ("excess", "random_excess", "separation", "closest", "mean_angle"):
        assert getattr(row, name) is None, name
    assert (row.duplicates, row.duplicate_pairs, row.redundant, row.dead) == ((), 0, (), ())


def test_nothing_lives():
    row = only(torch.zeros(3, 4))
    assert row.dead == (0, 1, 2)
    assert (row.energy, row.half_energy, row.effective_rank) == (0.0, 0.0, 0.0)
    assert row.excess is row.separation is row.closest is row.mean_angle is None


# which layers: of a model


def test_nothing_to_diagnose():
    with pytest.raises(ValueError, match=r"diagnose: no layer .* none"):
        diagnose(nn.Sequential(nn.ReLU(), nn.Embedding(3, 3)))
    with pytest.raises(ValueError, match=r"diagnose.*conv \[Conv2d\].*fc \[Linear, the output\]"):
        diagnose(Net(), layers=nn.RNN)
    with pytest.raises(ValueError, match=r"diagnose.*'nowhere'.*fc \[Linear, the output\]"):
        diagnose(Net(), layers=["fc", "nowhere"])


# which tensors: of a state_dict


def test_a_root_that_is_a_layer():
    assert diagnose(nn.Linear(3, 4))[0].name == ""
    assert diagnose(nn.Linear(3, 4).state_dict())[0].name == ""
    assert "(root)" in str(diagnose(nn.Linear(3, 4)))


def test_what_is_passed_over_can_be_asked_for():
    state = nn.ModuleDict({"embed": nn.Embedding(5, 4), "rnn": nn.GRU(4, 3), "fc": nn.Linear(3, 7)}).state_dict()
    names = lambda **options: [row.name for row in diagnose(state, **options)]  # noqa: E731
    assert names() == ["fc"]
    assert names(layers="embed") == ["embed"]
    assert names(layers=["rnn.*", "fc"]) == ["rnn.weight_ih_l0", "rnn.weight_hh_l0", "fc"]
    assert names(layers="*", exclude=["rnn*", "fc"]) == ["embed"]
    assert diagnose(state, layers="rnn.weight_ih_l0")[0].neurons == 9


def test_what_is_no_weight_is_left_out():
    state = {
        "fc.weight": torch.randn(3, 2),
        "fc.bias": torch.randn(3),
        "norm.weight": torch.ones(3),
        "norm.running_mean": torch.zeros(3),
        "mask": torch.randn(3, 3),
        "ids.weight": torch.ones(3, 3, dtype=torch.int64),
        "packed.weight": "not a tensor",
        "conv.weight_g": torch.ones(3, 1, 1),
        "scaled.parametrizations.weight.original": torch.randn(3, 3),
        "scaled.parametrizations.weight.0.factor": torch.ones(()),
        "odd.parametrizations.weight.original": "not a tensor",
    }
    assert [row.name for row in diagnose(state)] == ["fc"]


def test_neither_model_nor_state_dict():
    for value in (None, torch.randn(3, 2), nn.Linear):
        with pytest.raises(TypeError, match="model_or_state_dict"):
            diagnose(value)
    with pytest.raises(TypeError, match=r"net\.safetensors.*hypersphere\.inspect"):
        diagnose(Path("net.safetensors"))


@pytest.mark.parametrize("argument", ["layers", "exclude"])
@pytest.mark.parametrize("spec", [nn.Linear, ["fc", lambda name, module: True]], ids=["type", "list"])
def test_types_and_predicates_need_a_model(argument, spec):
    with pytest.raises(TypeError, match=f"{argument} .* need a model"):
        diagnose({"fc.weight": torch.randn(3, 2)}, **{argument: spec})


def test_nothing_in_a_state_dict():
    state = {"fc.weight": torch.randn(3, 2), "embed.weight": torch.randn(3, 2)}
    with pytest.raises(ValueError, match=r"'nowhere'.*fc, embed"):
        diagnose(state, layers=["fc", "nowhere"])
    with pytest.raises(ValueError, match=r"diagnose: no weight.*fc, embed"):
        diagnose(state, exclude="*")
    with pytest.raises(ValueError, match=r"diagnose: no weight.*none"):
        diagnose({})
    with pytest.raises(ValueError, match=r"maybe under 'model'$"):
        diagnose({"model": state, "step": 3})


# bad values


def test_not_finite():
    net = Net()
    with torch.no_grad():
        net.up.weight[1, 0, 0, 0] = math.inf
    for given in (net, net.state_dict()):
        with pytest.raises(ValueError, match=r"'up' must be finite, got 1 "):
            diagnose(given)
    assert len(diagnose(net, exclude="up")) == 3


def test_no_values():
    with torch.device("meta"):
        net = Net()
    for given in (net, net.state_dict()):
        with pytest.raises(ValueError, match=r"'conv'.*meta"):
            diagnose(given)
    with pytest.raises(ValueError, match=r"'0'.*lazy"):
        diagnose(nn.Sequential(nn.LazyLinear(3)))
    with pytest.raises(ValueError, match=r"'fc'.*empty.*\(0, 4\)"):
        diagnose({"fc.weight": torch.empty(0, 4)})


def test_integers_are_no_weights():
    layer = nn.Linear(3, 2)
    layer.weight = nn.Parameter(torch.ones(2, 3, dtype=torch.int8), requires_grad=False)
    with pytest.raises(TypeError, match=r"'0'.*int8"):
        diagnose(nn.Sequential(layer))


def test_bad_options():
    for options, error in (({"s": -1}, ValueError), ({"s": "2"}, TypeError), ({"duplicate_angle": 4.0}, ValueError)):
        with pytest.raises(error, match=next(iter(options))):
            diagnose(Net(), **options)


# it only looks


def test_the_model_is_not_changed():
    net = nn.Sequential(
        parametrizations.spectral_norm(nn.Linear(4, 5)), nn.Dropout(), nn.Linear(5, 3).requires_grad_(False)
    )
    net[1].eval()
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    modes, random = [m.training for m in net.modules()], torch.get_rng_state()
    first = diagnose(net)
    assert diagnose(net) == first
    assert torch.equal(torch.get_rng_state(), random)
    assert [m.training for m in net.modules()] == modes
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())
    assert all(p.grad is None for p in net.parameters())
    with torch.no_grad():
        net[0].parametrizations.weight.original.fill_(math.nan)
    with pytest.raises(ValueError, match="finite"):
        diagnose(net)
    assert [m.training for m in net.modules()] == modes  # after an error too
    assert [p.requires_grad for p in net.parameters()] == [True, True, False, False]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.float8_e4m3fn])
def test_other_dtypes(dtype):
    weight = torch.randn(9, 6).to(dtype)
    assert only(weight) == only(weight.float())


# the result


@pytest.mark.parametrize("s", [0.0, 2.0, 400.0])
def test_data_for_json(s):
    state = {
        "fine.weight": torch.randn(5, 4),
        "one.weight": torch.randn(1, 4),
        "zero.weight": torch.zeros(3, 2),
        "same.weight": torch.ones(4, 3),
    }
    found = diagnose(state, s=s)
    dicts = found.to_dicts()
    assert json.loads(json.dumps(found.to_dict(), allow_nan=False))["layers"] == dicts
    assert [d["name"] for d in dicts] == ["fine", "one", "zero", "same"]
    assert dicts[0]["energy"] == found[0].energy
    assert dicts[3]["closest"] == list(found[3].closest) == [0, 1]
    assert dicts[3]["duplicates"] == [[i, j] for i, j in itertools.combinations(range(4), 2)]
    assert dicts[2]["dead"] == [0, 1, 2]
    assert dicts[1]["excess"] is dicts[1]["separation"] is dicts[1]["closest"] is None
    assert isinstance(str(found), str)


# the table


def lines(found):
    return str(found).splitlines()


def cells(found, layer):
    (line,) = (line for line in lines(found)[1 : 1 + len(found)] if line.split()[0] == layer)
    return line.split()


def test_the_table():
    state = {
        "square.weight": turned([0.0, 90.0, 180.0, 270.0]),
        "square.bias": torch.zeros(4),
        "pair.weight": torch.tensor([[1.0, 0, 0, 0, 0], [1.0, 0.01, 0, 0, 0], [0, 0, 1.0, 0, 0], [0, 0, 0, 0, 0]]),
        "one.weight": torch.tensor([[1.0, 2.0]]),
        **{"pair.bias": torch.zeros(4), "one.bias": torch.zeros(1)},
    }
    found = diagnose(state)
    assert str(found) == repr(found)
    # energy 5/12 where 3/8 is possible; in half space the pair at 180° coincides with antipodes
    assert cells(found, "square")[:4] == ["square", "4", "2", "0.4167"]
    assert cells(found, "square")[5:] == ["11.1%", "–", "90.0°", "0,", "1", "120.0°", "2.0", "0", "2", "0"]
    assert found[1].energy == pytest.approx((10001 + 2 * 0.5) / 3, rel=1e-4)
    assert cells(found, "pair")[1:4] == ["4", "5", "3334"]
    assert cells(found, "pair")[5:8] == [">", "1000", "×"]
    assert cells(found, "pair")[-8:-5] == ["0.57°", "0,", "1"]
    assert cells(found, "pair")[-3:] == ["1", "0", "1"]
    assert cells(found, "one") == ["one", "1", "2", "0", "0.25", *"–––––", "1.0", "0", "0", "0"]
    notes = found.notes()
    assert notes[0] == "3 layers: 2 wasteful, 1 good; 1 dead, 1 near-duplicates, 2 opposite pairs"
    assert any(line.startswith("duplicates (pair): train with `hs.EnergyRegularizer(model)`") for line in notes)
    assert any("distance^-2" in line for line in notes)
    assert any("5.7°" in line for line in notes)
    assert "<td" in found._repr_html_()


def test_marks_of_groups_and_of_the_output():
    found = diagnose(Net())
    assert cells(found, "grouped")[1] == "2·4"
    assert "2·4: 2 groups of 4" in str(found)
    assert cells(found, "fc")[1] == "*"
    assert "*: the output" in found.notes()


def test_the_table_says_which_energy():
    for options, law in (
        ({"s": 0}, "log 1/distance"),
        ({"s": 1, "angular": True}, "angle^-1"),
        ({"s": 2.5}, "distance^-2.5"),
    ):
        assert f"mean {law} over" in str(diagnose(Net(), **options))
    logarithmic = diagnose(Net(), s=0)
    assert "%" not in str(logarithmic.tables()[0])
    assert f"{logarithmic[0].excess:.4g}" in cells(logarithmic, "conv")
    assert "17.2°" in str(diagnose(Net(), duplicate_angle=0.3))


def test_long_names_are_shortened_but_told_apart():
    prefix = "a_rather_long_name.of_a_model.that_has.many_parts.inside.of_it"
    names = [f"{prefix}.{i}.{part}.projection" for i in range(3) for part in ("encoder", "decoder")]
    found = diagnose({f"{name}.weight": torch.randn(3, 5) for name in names})
    shown = [line.split()[0] for line in lines(found)[1:7]]
    assert len(set(shown)) == 6
    for name, short in zip(names, shown, strict=True):
        begin, end = short.split("…")
        assert name.startswith(begin)
        assert name.endswith(end)
        assert 3 <= len(begin) < len(end)
    inside = [f"model.{i}.{'x' * 100}" for i in range(2)]  # they differ in what is dropped
    found = diagnose({f"{name}.weight": torch.randn(3, 5) for name in inside})
    assert [" (2)" in line for line in lines(found)[1:3]] == [False, True]


def test_control_characters_in_names_are_escaped():
    weight = torch.randn(3, 4)
    text = str(diagnose({"row\nend\x1b.weight": weight, "fc.weight": weight[[0, 0, 1]]}))
    assert "row\\nend\\x1b ?" in text
    assert "\x1b" not in text
    net = nn.ModuleDict({"line\nend": nn.Linear(4, 3)})
    assert "line\\nend" in str(hs.select(net))
    for given in (net, net.state_dict()):
        with pytest.raises(ValueError, match=r"line\\nend[^\n]*$"):
            diagnose(given, layers="missing")


def test_no_rows():
    assert "no layers" in str(diagnose(Net())[:0])


def test_diagnose_sees_fixed_neurons_and_asks_for_the_task_of_many():
    net = hs.rotate(mlp(), "none")
    assert [row.name for row in hs.diagnose(net.state_dict())] == [row.name for row in hs.diagnose(net)]
    net = hs.rotate(mlp())
    hs.rotation.add_task(net, "birds")
    with pytest.raises(ValueError, match=r"merge_state_dict.*birds"):
        hs.diagnose(net.state_dict())
