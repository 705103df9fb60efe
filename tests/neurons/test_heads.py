"""The heads of attention, by what its module says of their size or their number."""

import pytest
import torch
from torch import nn

import hypersphere as hs
from hypersphere.neurons import head_layouts
from hypersphere.optim import MuonAdamW
from tests.neurons.test_layouts import Conv1D


class Attention(nn.Module):
    """Linear layers of these outputs by name, and what the module says of its heads."""

    def __init__(self, layers, **said):
        super().__init__()
        for name, outputs in layers.items():
            self.add_module(name, nn.Linear(12, outputs))
        vars(self).update(said)


def parts(model):
    return {name: layout.parts for name, layout in head_layouts(model, hs.select(model, output=None)).items()}


@pytest.mark.parametrize(
    ("layers", "said", "expected"),
    [
        ({"query": 12, "key": 12, "value": 12, "out": 12}, {"heads": 3}, {"query": 3, "key": 3, "value": 3}),
        ({"q_proj": 24, "k_proj": 8, "v_proj": 8}, {"head_dim": 4}, {"q_proj": 6, "k_proj": 2, "v_proj": 2}),
        ({"qkv": 36, "proj": 12}, {"num_heads": 4, "head_dim": 3}, {"qkv": 12}),
        ({"query_key_value": 20}, {"head_size": 4, "num_attention_heads": 3}, {"query_key_value": 5}),
        ({"q": 20, "wo": 12}, {"n_heads": 5, "key_value_proj_dim": 4}, {"q": 5}),
        ({"q": 10}, {"n_heads": 3}, {}),  # 10 rows are not heads of 4
        ({"query": 12, "key": 12}, {}, {}),
        ({"query": 12}, {"heads": nn.ModuleList(), "n_head": 6}, {"query": 6}),
        ({"fc1": 12, "proj": 12}, {"num_heads": 4}, {}),
    ],
)
def test_what_attention_says(layers, said, expected):
    assert parts(nn.Sequential(Attention(layers, **said))) == {f"0.{name}": n for name, n in expected.items()}


def test_attention_of_torch():
    assert parts(nn.TransformerEncoderLayer(12, 3, 8)) == {"self_attn": 9}
    apart = parts(nn.Sequential(nn.MultiheadAttention(12, 3, kdim=5, vdim=7)))
    assert apart == {"0.q_proj_weight": 3, "0.k_proj_weight": 3, "0.v_proj_weight": 3}


def test_weights_stored_as_columns():
    """As GPT-2's: 12 inputs, 3·8 outputs."""
    model = nn.Sequential(Attention({}, num_heads=2, head_dim=4))
    model[0].c_attn = Conv1D(24, 12)
    assert parts(model) == {"0.c_attn": 6}


@pytest.mark.parametrize("name", ["decoder", "ngpt"])
def test_own_networks(name):
    model = hs.models.create(name, 65, width=16, depth=2, heads=2)
    assert parts(model) == {f"blocks.{i}.attention.{x}": 2 for i in range(2) for x in ("query", "key", "value")}


@pytest.mark.parametrize(("kind", "mark", "optimizer"), [("pion", "rotated", hs.Pion), ("muon", "muon", MuonAdamW)])
def test_heads_are_stepped_as_matrices_of_their_own(kind, mark, optimizer):
    torch.manual_seed(0)
    attention = nn.Sequential(nn.MultiheadAttention(6, 3, bias=False))
    weight = attention[0].in_proj_weight
    heads = [nn.Parameter(block) for block in weight.detach().clone().chunk(9)]
    weight.grad = torch.randn(18, 6)
    for head, gradient in zip(heads, weight.grad.chunk(9), strict=True):
        head.grad = gradient.clone()
    optimizer(hs.param_groups(attention, split_heads=True, **{kind: True}), lr=0.1).step()
    optimizer([{"params": heads, mark: True}], lr=0.1).step()
    torch.testing.assert_close(weight.detach(), torch.cat([head.detach() for head in heads]))


def test_without_pion_and_muon():
    with pytest.raises(ValueError, match="split_heads has no effect without pion=True or muon=True"):
        hs.param_groups(nn.Linear(3, 3), split_heads=True)
    with pytest.raises(TypeError, match="split_heads must be True or False, got 4"):
        hs.param_groups(nn.Linear(3, 3), pion=True, split_heads=4)
