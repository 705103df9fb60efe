"""Weights whose neurons are not plain rows: what a layer computes says which numbers make one output."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import hypersphere as hs
from hypersphere.neurons import Layout, from_neuron_rows, neuron_rows
from tests.rotations import shake

F64 = torch.float64


class Conv1D(nn.Module):
    """As in transformers: weight (inputs, outputs)."""

    def __init__(self, outputs, inputs):
        super().__init__()
        self.nf, self.nx = outputs, inputs
        self.weight = nn.Parameter(torch.randn(inputs, outputs))
        self.bias = nn.Parameter(torch.randn(outputs))

    def forward(self, x):
        return x @ self.weight + self.bias


Conv1D.__module__ = "transformers.pytorch_utils"


class MixtralExperts(nn.Module):
    """Rows: (experts, outputs, inputs)."""

    def __init__(self, experts=3, hidden=4, inner=2):
        super().__init__()
        self.gate_up_proj = nn.Parameter(torch.randn(experts, 2 * inner, hidden))
        self.down_proj = nn.Parameter(torch.randn(experts, hidden, inner))

    def forward(self, x):
        outs = []
        for up, down in zip(self.gate_up_proj, self.down_proj, strict=True):
            gate, value = F.linear(x, up).chunk(2, -1)
            outs.append(F.linear(F.silu(gate) * value, down))
        return torch.stack(outs)


class GptOssExperts(nn.Module):
    """The other way round: (experts, inputs, outputs)."""

    def __init__(self, experts=3, hidden=4, inner=2):
        super().__init__()
        self.gate_up_proj = nn.Parameter(torch.randn(experts, hidden, 2 * inner))
        self.down_proj = nn.Parameter(torch.randn(experts, inner, hidden))

    def forward(self, x):
        gate, value = (x @ self.gate_up_proj).chunk(2, -1)
        return (F.silu(gate) * value) @ self.down_proj


class MoeParallelExperts(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 5, 4))

    def forward(self, x):
        return x @ self.weight.mT


class Block(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.c_attn, self.c_proj = Conv1D(3 * width, width), Conv1D(width, width)

    def forward(self, x):
        q, k, v = self.c_attn(x).chunk(3, -1)
        return self.c_proj(torch.softmax(q @ k.mT, -1) @ v)


class Gpt(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.attn = Block(width)
        self.mlp = nn.ModuleDict({"c_fc": Conv1D(2 * width, width), "c_proj": Conv1D(width, 2 * width)})
        self.lm_head = nn.Linear(width, 7, bias=False)

    def forward(self, x):
        x = x + self.attn(x)
        return self.lm_head(x + self.mlp["c_proj"](torch.relu(self.mlp["c_fc"](x))))


NETS = {
    "conv1d": (Gpt, (5, 4)),
    "experts": (lambda: nn.Sequential(MixtralExperts(), nn.Linear(4, 2)), (5, 4)),
    "columns": (lambda: nn.Sequential(GptOssExperts(), nn.Linear(4, 2)), (5, 4)),
    "parallel": (lambda: nn.Sequential(MoeParallelExperts(), nn.Linear(5, 2)), (6, 4)),
    "fused": (lambda: nn.ModuleDict({"qkv": nn.Linear(4, 12), "fc": nn.Linear(4, 2)}), None),
    "attention": (lambda: nn.ModuleDict({"attn": nn.MultiheadAttention(4, 2), "fc": nn.Linear(4, 2)}), None),
    "transposed": (
        lambda: nn.Sequential(nn.ConvTranspose1d(4, 6, 3, groups=2), nn.Conv1d(6, 4, 3, groups=2)),
        (1, 4, 5),
    ),
}


@pytest.mark.parametrize(
    ("layout", "shape", "rows"),
    [
        (Layout(), (6, 5), (1, 6, 5)),
        (Layout(groups=2), (6, 5, 3), (2, 3, 15)),
        (Layout(parts=3), (6, 2), (3, 2, 2)),
        (Layout(transposed=True), (5, 6), (1, 6, 5)),
        (Layout(parts=3, transposed=True), (5, 6), (3, 2, 5)),
        (Layout(groups=2, transposed=True), (4, 3, 5), (2, 3, 10)),
        (Layout(groups=3, stacked=True), (3, 4, 5), (3, 4, 5)),
        (Layout(groups=3, stacked=True, transposed=True), (3, 5, 4), (3, 4, 5)),
        (Layout(stacked=True), (3, 4, 5), (1, 12, 5)),  # as a rotation sees it
    ],
    ids=str,
)
def test_rows_and_back(layout, shape, rows):
    weight = torch.randn(shape)
    matrix = neuron_rows(weight, layout)
    assert matrix.shape == rows
    assert layout.dimension(weight.shape) == rows[2]
    assert torch.equal(from_neuron_rows(matrix, weight.shape, layout), weight)


def test_rows_are_the_numbers_that_make_one_output():
    """Column j of a Conv1D, and query, key and value apart; rows and columns of experts."""
    selected = hs.select(Gpt())
    assert list(selected) == ["attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj", "lm_head"]
    assert [tuple(n.matrix().shape) for n in selected.values()] == [
        (3, 4, 4),
        (1, 4, 4),
        (1, 8, 4),
        (1, 4, 8),
        (1, 7, 4),
    ]
    attention = selected["attn.c_attn"]
    assert torch.equal(attention.matrix()[1, 2], attention.module.weight[:, 4 + 2])
    assert [name for name, n in selected.items() if n.is_output] == ["lm_head"]

    rows, columns = hs.select(MixtralExperts()), hs.select(GptOssExperts())
    assert {name: tuple(n.matrix().shape) for name, n in rows.items()} == {
        "gate_up_proj": (3, 4, 4),
        "down_proj": (3, 4, 2),
    }
    assert torch.equal(rows["gate_up_proj"].matrix(), rows["gate_up_proj"].tensor)
    assert torch.equal(columns["down_proj"].matrix(), columns["down_proj"].tensor.mT)


def test_what_only_looks_so():
    """A Linear of another name or size, an attention that goes head by head, a Conv1D of someone else."""
    parent = nn.ModuleDict({"qkv": nn.Linear(4, 12)})
    assert hs.select(parent)["qkv"].matrix().shape == (3, 4, 4)
    parent.head_first = True
    assert hs.select(parent)["qkv"].matrix().shape == (1, 12, 4)
    others = {"query_key_value": nn.Linear(4, 12), "in_proj": nn.Linear(4, 8), "fc": nn.Linear(4, 12)}
    assert {n.layout for n in hs.select(nn.ModuleDict(others)).values()} == {Layout()}
    mine = type("Conv1D", (nn.Module,), {"__module__": "mine"})()
    mine.weight = nn.Parameter(torch.randn(4, 5))
    odd = type("SomeExperts", (nn.Module,), {})()
    odd.gate_up_proj, odd.down_proj = nn.Parameter(torch.randn(3, 4, 5)), nn.Parameter(torch.randn(3, 5, 4))
    assert not hs.select(nn.ModuleList([mine, odd]))


@pytest.mark.parametrize("net", NETS)
def test_energy_is_that_of_each_group(net):
    model = NETS[net][0]()
    energies = hs.EnergyRegularizer(model, layers=hs.select(model, output=None)).per_layer()
    for name, neurons in hs.select(model).items():
        groups = [float(hs.hyperspherical_energy(rows)) for rows in neurons.matrix().detach()]
        assert energies[name] == pytest.approx(sum(groups) / len(groups), rel=1e-5)


@pytest.mark.parametrize("net", NETS)
def test_normalize_and_spread_keep_to_neurons(net):
    model = NETS[net][0]()
    hs.normalize_neurons(model, layers="*")
    before = hs.EnergyRegularizer(model, layers=hs.select(model, output=None)).per_layer()
    for neurons in hs.select(model).values():
        torch.testing.assert_close(neurons.matrix().norm(dim=2), torch.ones(neurons.matrix().shape[:2]))
    hs.spread(model, layers="*", steps=20)
    after = hs.EnergyRegularizer(model, layers=hs.select(model, output=None)).per_layer()
    assert all(after[name] <= before[name] + 1e-6 for name in before)
    assert any(after[name] < before[name] - 1e-3 for name in before)


OPTIONS = [{"blocks": 2, "share_blocks": True}, {"sample": 2}, {"method": "none"}]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("net", NETS)
def test_rotations_act_on_inputs_and_merge_with_and_without_the_model(net, options):
    model = NETS[net][0]().double()
    plain = {name: n.matrix().detach().clone() for name, n in hs.select(model).items()}
    rotated = shake(hs.rotate(copy.deepcopy(model), layers="*", **options))
    for name, neurons in hs.select(rotated).items():
        now = neurons.matrix().detach()
        torch.testing.assert_close(now @ now.mT, plain[name] @ plain[name].mT)  # all angles within a group
        flat, was = now.flatten(0, 1), plain[name].flatten(0, 1)
        torch.testing.assert_close(flat @ flat.T, was @ was.T)  # and between them: one R a layer
    assert ("method" in options) == all(torch.equal(n.matrix(), plain[k]) for k, n in hs.select(rotated).items())
    state = {key: value.clone() for key, value in rotated.state_dict().items()}
    shape = NETS[net][1]
    x = torch.randn(shape, dtype=F64) if shape else None
    out = rotated(x) if shape else None
    merged = hs.merge(rotated)
    without = hs.rotation.merge_state_dict(state)
    assert without.keys() == merged.state_dict().keys()
    for key, value in merged.state_dict().items():
        torch.testing.assert_close(without[key], value, rtol=0, atol=1e-12)
    if shape:
        torch.testing.assert_close(merged(x), out)


@pytest.mark.parametrize("net", NETS)
def test_saved_rotations_load_into_the_plain_model(net, tmp_path):
    model = NETS[net][0]()
    fresh = copy.deepcopy(model)
    shake(hs.rotate(model, layers="*"))
    hs.rotation.save_rotations(model, tmp_path / "r.safetensors")
    hs.rotation.load_rotations(fresh, tmp_path / "r.safetensors")
    hs.rotation.load_rotations(fresh, tmp_path / "r.safetensors")
    for key, value in model.state_dict().items():
        assert torch.equal(fresh.state_dict()[key], value), key


def test_keys_that_tell_the_layout():
    """A transposed weight stores its groups, as transposed convolutions always did. Stacked experts store a key that
    older versions refuse."""
    extra = {}
    for net, (make, _) in NETS.items():
        names = [key.split(".") for key in hs.rotate(make(), layers="*").state_dict()]
        extra[net] = {key[-1] for key in names} & {"groups", "stacked"}
    assert extra == {
        "conv1d": {"groups"},
        "experts": {"stacked"},
        "columns": {"groups", "stacked"},
        "parallel": {"stacked"},
        "fused": set(),
        "attention": set(),
        "transposed": {"groups"},
    }


def test_a_linear_of_gpt2_names_stays_rows():
    state = {"h.c_fc.weight": torch.randn(8, 4), "h.c_fc.bias": torch.randn(8), "h.c_proj.weight": torch.randn(4, 4)}
    assert [(row.neurons, row.dimension) for row in hs.diagnose(state)] == [(8, 4), (4, 4)]
    assert hs.diagnose({"h.c_fc.weight": torch.randn(8, 4)})[0].neurons == 8  # unknown: rows
