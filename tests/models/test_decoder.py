"""The Transformer of today and nGPT against their formulas."""

import math
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call

import hypersphere as hs
from hypersphere import models
from hypersphere.models.decoder import rotary_angles, turn_pairs

SMALL = {"width": 12, "depth": 2, "heads": 2, "context": 9}


def unit(x):
    return x / x.norm(dim=-1, keepdim=True)


def rotated(x):
    """RoPE, number by number, of x (T, d)."""
    y, half = torch.empty_like(x), x.shape[1] // 2
    for t in range(len(x)):
        for i in range(half):
            angle = t * 10000 ** (-2 * i / x.shape[1])
            a, b = x[t, i], x[t, i + half]
            y[t, i] = a * math.cos(angle) - b * math.sin(angle)
            y[t, i + half] = a * math.sin(angle) + b * math.cos(angle)
    return y


def attention(block, x, qk_scale=None):
    """Causal attention of x (T, D), head by head."""
    q, k, v = (x @ getattr(block.attention, name).weight.T for name in ("query", "key", "value"))
    heads, d = block.attention.heads, x.shape[1] // block.attention.heads
    mixed = []
    for h in range(heads):
        part = slice(h * d, (h + 1) * d)
        a, b = rotated(q[:, part]), rotated(k[:, part])
        if qk_scale is not None:
            a, b = unit(a) * qk_scale[part], unit(b) * qk_scale[part]
        scores = a @ b.T * (d**-0.5 if qk_scale is None else d**0.5)
        seen = torch.ones_like(scores).tril().bool()
        mixed.append(scores.masked_fill(~seen, -math.inf).softmax(-1) @ v[:, part])
    return torch.cat(mixed, 1) @ block.attention.out.weight.T


def randomized(model):
    """Make all vectors of a network differ from their start."""
    for p in model.parameters():
        if p.dim() == 1:
            p.data.mul_(torch.rand_like(p) + 0.5)
    return model.double()


def test_rotary_products_depend_on_differences_of_places():
    angles = rotary_angles(20, 6, torch.device("cpu"))
    rotary = partial(turn_pairs, cos=angles.cos(), sin=angles.sin())
    x, y = (torch.randn(6, dtype=torch.float64).expand(1, 1, 20, 6) for _ in range(2))
    products = (rotary(x) @ rotary(y).mT)[0, 0]
    for offset in range(-19, 20):
        diagonal = products.diagonal(offset)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal), rtol=1e-6, atol=1e-6)
    assert products[0].std() > 0.1
    torch.testing.assert_close(rotary(x)[0, 0], rotated(x[0, 0]), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("norm", "gated"), [(True, True), (False, True), (False, False)])
def test_decoder_is_its_formula(norm, gated):
    model = randomized(models.create("decoder", 11, norm=norm, gated=gated, branch_scale=0.3, **SMALL))
    tokens = torch.randint(0, 11, (1, 9))
    x = model.tokens.weight[tokens[0]]

    def normed(x, layer):
        return x / (x.square().mean(-1, keepdim=True) + torch.finfo(x.dtype).eps).sqrt() * layer.weight if norm else x

    for block in model.blocks:
        x = x + 0.3 * attention(block, normed(x, block.norm1))
        y, mlp = normed(x, block.norm2), block.mlp
        up = y @ mlp.up.weight.T
        x = x + 0.3 * (F.silu(y @ mlp.gate.weight.T) * up if gated else F.gelu(up)) @ mlp.down.weight.T
    logits = normed(x, model.norm) @ model.get_classifier().weight.T
    torch.testing.assert_close(model(tokens)[0], logits, rtol=1e-6, atol=1e-6)


def test_ngpt_is_its_formula():
    model = randomized(models.create("ngpt", 11, **SMALL))
    tokens, width = torch.randint(0, 11, (1, 9)), SMALL["width"]
    x = model.tokens.weight[tokens[0]]
    root = width**0.5  # the ratio of what a scale starts at to what is stored: 1 over 1/√D, and 0.05 over 1/√D
    for block in model.blocks:
        branch = unit(attention(block, x, block.attention.qk_scale.weight * root))
        x = unit(x + (0.05 * root * block.attention_step.weight).abs() * (branch - x))
        u = root * block.mlp.up_scale.weight * (x @ block.mlp.up.weight.T)
        v = root * block.mlp.gate_scale.weight * (x @ block.mlp.gate.weight.T)
        branch = unit((u * F.silu(v)) @ block.mlp.down.weight.T)
        x = unit(x + (0.05 * root * block.mlp_step.weight).abs() * (branch - x))
    logits = root * model.get_classifier().scale.weight * (x @ model.get_classifier().weight.T)
    torch.testing.assert_close(model(tokens)[0], logits, rtol=1e-6, atol=1e-6)


def test_ngpt_starts_as_its_authors_say():
    model = models.create("ngpt", 11, **SMALL)
    for block in model.blocks:
        torch.testing.assert_close(block.attention_step(), torch.full((12,), 0.05))
        torch.testing.assert_close(block.mlp_step.weight, torch.full((12,), 12**-0.5))
        torch.testing.assert_close(block.attention.qk_scale(), torch.ones(12))
        torch.testing.assert_close(block.mlp.up_scale.weight, torch.ones(48))
    torch.testing.assert_close(model.get_classifier().scale(), torch.ones(11))
    check_lengths(model)
    model.reset_classifier(7)
    check_lengths(model)


def check_lengths(model):
    """Columns of the two output projections have length one, and rows of all other matrices."""
    for name, p in model.named_parameters():
        if p.dim() == 2:
            lengths = p.norm(dim=0 if name.endswith(("out.weight", "down.weight")) else 1)
            torch.testing.assert_close(lengths, torch.ones_like(lengths), rtol=1e-6, atol=0, msg=name)


@pytest.mark.parametrize("way", ["hook", "hyperball"])
def test_ngpt_keeps_its_lengths_in_training(way):
    model = models.create("ngpt", 11, **SMALL)
    if way == "hook":
        optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
        optimizer.register_step_post_hook(model.normalize_weights)
    else:
        optimizer = hs.Hyperball(torch.optim.Adam(model.param_groups(), lr=0.02), radius=1.0, per="neuron")
    stepped = [p for group in optimizer.param_groups for p in group["params"]]
    assert set(stepped) == set(model.parameters())
    assert len(stepped) == len(set(stepped))
    tokens = torch.randint(0, 11, (4, 9))
    losses = []
    for _ in range(15):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        check_lengths(model)
    assert losses[-1] < losses[0] - 0.2


def test_ngpt_keeps_zero_rows():
    model = models.create("ngpt", 11, **SMALL)
    nn.init.zeros_(model.tokens.weight[3])  # a pruned neuron
    model.normalize_weights()
    assert not model.tokens.weight[3].any()
    assert model.tokens.weight.isfinite().all()


@pytest.mark.parametrize("name", ["decoder", "ngpt"])
def test_a_state_dict_is_all_that_a_model_needs(name):
    model, tokens = models.create(name, 11, **SMALL), torch.randint(0, 11, (2, 9))
    with torch.device("meta"):
        other = models.create(name, 11, **SMALL)
    other.to_empty(device="cpu").load_state_dict(model.state_dict())
    assert torch.equal(other(tokens), model(tokens))


def test_parameters():
    width, hidden, depth, tokens = 12, 32, 2, 11
    matrices = depth * (4 * width**2 + 3 * width * hidden) + 2 * tokens * width
    count = {
        name: sum(p.numel() for p in models.create(name, tokens, **options, **SMALL).parameters())
        for name, options in (("decoder", {}), ("ngpt", {"hidden": hidden}))
    }
    assert count["decoder"] == matrices + (2 * depth + 1) * width
    assert count["ngpt"] == matrices + depth * (3 * width + 2 * hidden) + tokens
    free = models.create("decoder", tokens, norm=False, **SMALL)
    assert sum(p.numel() for p in free.parameters()) == matrices
    assert not any(isinstance(m, nn.RMSNorm | nn.LayerNorm) for m in free.modules())
    plain = models.create("decoder", tokens, norm=False, gated=False, **SMALL)
    assert sum(p.numel() for p in plain.parameters()) == depth * 12 * width**2 + 2 * tokens * width
    assert len([n for n in hs.select(free).values() if not n.is_output]) == 7 * depth


def test_start_of_the_decoder():
    model = models.create("decoder", 65, width=128, depth=1, hidden=512)
    stds = {name: float(p.detach().std()) for name, p in model.named_parameters() if p.dim() == 2}
    expected = {"tokens.weight": 1.0, "classifier.weight": 1 / 128, "blocks.0.mlp.down.weight": 512**-0.5}
    for name, std in stds.items():
        assert std == pytest.approx(expected.get(name, 128**-0.5), rel=0.05), name
    assert models.create("decoder", depth=8).blocks[3].branch_scale == 0.25


@pytest.mark.parametrize("name", ["decoder", "ngpt"])
def test_tokens_and_options_are_checked(name):
    model = models.create(name, 11, **SMALL)
    for wrong in (torch.zeros(9, dtype=torch.long), torch.zeros(1, 10, dtype=torch.long)):
        with pytest.raises(ValueError, match=r"tokens must be \(B, T\) with T <= 9"):
            model(wrong)
    with pytest.raises(ValueError, match=r"width must be a multiple of 2·heads, got width=12 and heads=4"):
        models.create(name, width=12, heads=4)
    with pytest.raises(ValueError, match=r"unknown .* option 'n_layers', did you mean 'depth'?"):
        models.create(name, n_layers=2)
    with pytest.raises(ValueError, match="depth must be >= 1"):
        models.create(name, depth=0)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["decoder", "ngpt"])
def test_compiles_in_one_graph(name):
    model, tokens = models.create(name, 11, **SMALL), torch.randint(0, 11, (2, 9))
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(tokens), model(tokens))
    weights = {name: p * 1.1 for name, p in model.named_parameters()}
    assert not torch.equal(functional_call(model, weights, (tokens,)), model(tokens))
