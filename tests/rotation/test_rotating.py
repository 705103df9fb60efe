"""rotate: w_i = R v_i in every kind of layer, the keys it leaves, what learns and what does not."""

import copy
import dataclasses

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, grad, vmap

import hypersphere as hs
from hypersphere.orthogonal import ORTHOGONALIZERS, Orthogonalizer
from tests.rotations import (
    METHODS,
    ORTHOGONAL,
    PACKED,
    STARTS,
    close,
    inputs,
    mlp,
    originals,
    refused,
    registry,
    rotated_rows,
    rotation,
    shake,
    signs,
    train,
)

pytestmark = pytest.mark.filterwarnings(
    "ignore:the Cayley transform of N"
)  # Cayley from N(0, 1) has a guard rail of its own


# ---------------------------------------------------------------------------------------------------- w = R v

LAYERS = {
    "linear": (lambda: nn.Linear(6, 5), (2, 6)),
    "one_neuron": (lambda: nn.Linear(16, 1), (2, 16)),
    "conv1d": (lambda: nn.Conv1d(2, 5, 3, padding=1), (2, 2, 7)),
    "conv2d": (lambda: nn.Conv2d(2, 5, 3, stride=2, bias=False), (2, 2, 7, 7)),
    "conv3d": (lambda: nn.Conv3d(2, 3, 2, dilation=2), (2, 2, 5, 5, 5)),
    "groups": (lambda: nn.Conv2d(4, 6, (2, 3), groups=2), (2, 4, 5, 5)),
    "depthwise": (lambda: nn.Conv2d(3, 3, 3, groups=3), (2, 3, 5, 5)),
    "sphere_linear": (lambda: hs.SphereLinear(6, 5, similarity="linear", scale=True), (2, 6)),
    "sphere_conv": (lambda: hs.SphereConv2d(2, 4, 3, padding=1, similarity="sigmoid"), (2, 2, 5, 5)),
    "sphere_learnable": (lambda: hs.SphereConv2d(2, 4, 3, similarity="learnable"), (2, 2, 5, 5)),
}


STARTING = [(method, "identity") for method in [*STARTS, "none"]] + [
    (method, "normal") for method in [*METHODS, "none"]
]


@pytest.mark.parametrize(("method", "init"), STARTING)
def test_weight_is_r_times_the_neurons(method, init):
    layer = hs.rotate(nn.Linear(6, 5).double(), method, init=init)
    shake(layer)
    close(layer.weight, rotated_rows(layer, method))
    x = inputs(3, 6)
    close(layer(x), F.linear(x, rotated_rows(layer, method), layer.bias))
    if method in ORTHOGONAL:
        r = rotation(layer, method)
        close(r.T @ r, torch.eye(6).double())


@pytest.mark.parametrize("kind", LAYERS)
def test_every_kind_of_layer(kind):
    make, shape = LAYERS[kind]
    plain = make().double()
    layer = shake(hs.rotate(copy.deepcopy(plain), "cayley"))
    x = inputs(*shape)
    assert isinstance(layer, type(plain))
    expected = rotated_rows(layer, "cayley")
    close(layer.weight, expected)
    assert (expected - plain.weight).abs().max() > 1e-2
    plain.load_state_dict({**plain.state_dict(), "weight": expected})
    close(layer(x), plain(x))


TRANSPOSED = {
    "3d": (lambda: nn.ConvTranspose3d(2, 3, 2), (2, 2, 3, 3, 3)),
    "groups": (lambda: nn.ConvTranspose2d(4, 6, 2, groups=2), (2, 4, 5, 5)),
}


def transposed_rows(weight, groups):
    """A transposed convolution's neurons, its output channels, one after the other: (groups, N, d)."""
    parts = weight.chunk(groups)
    return torch.stack([torch.stack([part[:, i].flatten() for i in range(part.shape[1])]) for part in parts])


def transposed_weight(rows, like, groups):
    """The way back."""
    weight = torch.empty_like(like)
    for part, neurons in zip(weight.chunk(groups), rows, strict=True):
        for i, v in enumerate(neurons):
            part[:, i] = v.view_as(part[:, i])
    return weight


@pytest.mark.parametrize("kind", TRANSPOSED)
def test_neurons_of_a_transposed_convolution_are_its_output_channels(kind):
    make, shape = TRANSPOSED[kind]
    plain = make().double()
    layer = shake(hs.rotate(copy.deepcopy(plain)))
    r = rotation(layer, "cayley")
    rows = transposed_rows(plain.weight.detach(), plain.groups)
    assert len(r) == rows.shape[-1]
    expected = transposed_weight(rows @ r.T, plain.weight, plain.groups).detach()
    close(layer.weight, expected)
    plain.load_state_dict({**plain.state_dict(), "weight": expected})
    close(layer(inputs(*shape)), plain(inputs(*shape)))
    close(hs.select(layer)[""].matrix(), rows @ r.T)


# ------------------------------------------------------------------------------------------ attention and heads


def test_attention_with_separate_projections():
    attention = nn.MultiheadAttention(6, 2, kdim=5, vdim=4, batch_first=True).double()
    plain = copy.deepcopy(attention)
    q, k, v = inputs(2, 5, 6), inputs(2, 7, 5), inputs(2, 7, 4)
    hs.rotate(attention, layers=nn.MultiheadAttention)
    close(attention(q, k, v)[0], plain(q, k, v)[0])
    shake(attention)
    state = plain.state_dict()
    for letter, d in zip("qkv", (6, 5, 4), strict=True):
        tensor = f"{letter}_proj_weight"
        assert attention.state_dict()[f"parametrizations.{tensor}.0.default.cayley"].shape == (1, d * (d - 1) // 2)
        state[tensor] = rotated_rows(attention, "cayley", tensor)
    assert not torch.equal(state["k_proj_weight"], plain.k_proj_weight)
    plain.load_state_dict(state)
    close(attention(q, k, v)[0], plain(q, k, v)[0])


@pytest.mark.parametrize("training", [True, False])
def test_transformer_encoder_layer(training):
    """Its fast path, in eval and without gradients, reads the weights and calls no layer."""
    torch.manual_seed(3)
    plain = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True).train(training)
    encoder = hs.rotate(copy.deepcopy(plain), layers="*")
    assert encoder.training == training
    assert len([key for key in encoder.state_dict() if key.endswith("original")]) == 4
    x = inputs(2, 5, 8, dtype=torch.float32)
    with torch.set_grad_enabled(training):
        close(encoder(x), plain(x), 1e-5)
        shake(encoder)
        moved = encoder(x)
        assert (moved - plain(x)).abs().max() > 1e-2
    state = {
        "self_attn.in_proj_weight": rotated_rows(encoder.self_attn, "cayley", "in_proj_weight"),
        **{
            f"{name}.weight": rotated_rows(encoder.get_submodule(name), "cayley")
            for name in ("self_attn.out_proj", "linear1", "linear2")
        },
    }
    plain.load_state_dict({**plain.state_dict(), **state})
    with torch.no_grad():
        close(moved, plain(x), 1e-5)


def test_loss_head():
    head = hs.SphereFacePlusLoss(7, 6, bias=True).double()
    plain = copy.deepcopy(head)
    hs.rotate(head)
    x, y = inputs(4, 6), torch.tensor([0, 3, 6, 3])
    close(head(x, y), plain(x, y))
    shake(head)
    weight = rotated_rows(head, "cayley")
    plain.load_state_dict({**plain.state_dict(), "weight": weight})
    head.eval(), plain.eval()
    close(head(x, y), plain(x, y))
    close(head.logits(x), plain.logits(x))
    head(x, y).backward()
    assert head.parametrizations.weight[0].default.cayley.grad.abs().max() > 0


# ------------------------------------------------------------------------------------------------ which layers


def test_one_module_at_two_places_has_one_rotation():
    layer = nn.Linear(6, 6).double()
    net = nn.Sequential(layer, nn.Tanh(), layer, nn.Linear(6, 2).double())
    x = inputs(3, 6)
    before = net(x)
    hs.rotate(net)
    close(net(x), before)
    assert net[0] is net[2] is layer
    assert len(originals(net)) == 1
    train(net, x)
    expected = net(x)
    close(hs.merge(net)(x), expected)
    assert net[0] is net[2]


# ------------------------------------------------------------------------------------------------------- start


def test_normal_start_follows_the_global_seed():
    states = []
    for seed in (5, 5, 6):
        net = mlp()
        torch.manual_seed(seed)
        states.append(hs.rotate(net, "lowdin", init="normal").state_dict())
    key = "0.parametrizations.weight.0.default.lowdin"
    assert torch.equal(states[0][key], states[1][key])
    assert not torch.equal(states[0][key], states[2][key])


def test_identity_start_draws_nothing():
    torch.manual_seed(4)
    expected = torch.rand(())
    net = mlp()
    torch.manual_seed(4)
    hs.rotate(net)
    assert torch.rand(()) == expected


# -------------------------------------------------------------------------------------------------------- keys


def expected_shape(method, blocks, m):
    if method in PACKED:
        return (blocks, m * (m - 1) // 2)
    return (blocks, 2, m, m) if method == "network" else (blocks, m, m)


SPLIT = [({"blocks": 2}, 2, 4), ({"blocks": 2, "share_blocks": True}, 1, 4), ({"block_size": 2}, 4, 2)]


@pytest.mark.parametrize(
    ("method", "options", "blocks", "m"),
    [
        *((method, {}, 1, 8) for method in [*METHODS, "none"]),
        *((method, *case) for method in ("cayley", "gram_schmidt", "network") for case in SPLIT),
    ],
)
def test_keys_and_shapes(method, options, blocks, m):
    net = hs.rotate(mlp(), method, init="normal", layers="2", **options)
    expected = {key: tuple(value.shape) for key, value in mlp().state_dict().items() if key != "2.weight"}
    expected["2.parametrizations.weight.original"] = (4, 8)
    if method != "none":
        expected[f"2.parametrizations.weight.0.default.{method}"] = expected_shape(method, blocks, m)
    assert {key: tuple(value.shape) for key, value in net.state_dict().items()} == expected
    assert not dict(net.named_buffers())


def test_keys_with_sample():
    net = hs.rotate(mlp(), layers=["0", "2"], sample=4, seed=3)
    prefix = "2.parametrizations.weight.0.default."
    state = {key.removeprefix(prefix): value for key, value in net.state_dict().items() if key.startswith(prefix)}
    assert set(state) == {"cayley", "dims", "draw", "inner", "seed"}
    assert state["cayley"].shape == (1, 6)
    assert all(state[key].dtype == torch.int64 for key in ("dims", "draw", "inner", "seed"))
    assert len(state["dims"].unique()) == 4
    whole = [key for key in net.state_dict() if key.startswith("0.parametrizations")]
    assert set(whole) == {"0.parametrizations.weight.original", "0.parametrizations.weight.0.default.cayley"}
    assert {name for name, _ in net.named_buffers()} == {prefix + key for key in ("dims", "draw", "inner", "seed")}


# ------------------------------------------------------------------------------------- what learns and what not


def test_fixed_neurons_are_safe():
    net = hs.rotate(mlp())
    assert [p.requires_grad for p in originals(net).values()] == [False, False]
    assert all(isinstance(p, nn.Parameter) for p in originals(net).values())
    net.requires_grad_(True)
    before = {name: p.detach().clone() for name, p in originals(net).items()}
    train(net, inputs(3, 6), optimizer=torch.optim.AdamW(net.parameters(), lr=0.1, weight_decay=0.1))
    for name, p in originals(net).items():
        assert p.grad is None
        assert torch.equal(p, before[name])
    assert net[0].parametrizations.weight[0].default.cayley.grad.abs().max() > 0


def test_everything_else_keeps_its_requires_grad():
    net = mlp()
    net[0].bias.requires_grad_(False)
    net[4].weight.requires_grad_(False)
    hs.rotate(net)
    assert {name: p.requires_grad for name, p in net.named_parameters()} == {
        "0.bias": False,
        "0.parametrizations.weight.original": False,
        "0.parametrizations.weight.0.default.cayley": True,
        "2.bias": True,
        "2.parametrizations.weight.original": False,
        "2.parametrizations.weight.0.default.cayley": True,
        "4.weight": False,
        "4.bias": True,
    }


# ----------------------------------------------------------------------------------------------- energy, starts


def energies(model, **options):
    return hs.EnergyRegularizer(model, **options).per_layer()


@pytest.mark.parametrize("method", ["cayley", "none"])
def test_energy_of_rotated_layers_is_constant_and_out_of_the_sum(method):
    net = mlp()
    before = energies(net)
    made_before = hs.EnergyRegularizer(net, hidden_weight=10.0)
    output = before["4"]
    hs.rotate(net, method, layers="0", init="normal")
    regularizer = hs.EnergyRegularizer(net, hidden_weight=10.0)
    assert energies(net) == pytest.approx(before, rel=1e-10)
    assert list(energies(net)) == list(before)
    assert regularizer().item() == pytest.approx(10 * before["2"] + output)
    assert made_before().item() == pytest.approx(10 * before["2"] + output)
    regularizer().backward()
    assert all(p.grad is None for p in net[0].parameters())
    assert net[2].weight.grad.abs().max() > 0


def test_energy_of_a_model_whose_hidden_layers_are_all_rotated():
    net = hs.rotate(mlp())
    assert hs.EnergyRegularizer(net)().item() == pytest.approx(energies(net)["4"])
    everything = hs.EnergyRegularizer(hs.rotate(net, layers="4"))
    assert everything().item() == 0
    assert set(everything.per_layer()) == {"0", "2", "4"}


@pytest.mark.parametrize("options", [{"method": "unconstrained"}, {"method": "upper"}, {"neurons": "learned"}])
def test_energy_that_training_can_change_is_in_the_sum(options):
    net = mlp()
    before = energies(net)
    hs.rotate(net, layers=["0", "2"], **options)
    value = hs.EnergyRegularizer(net, hidden_weight=10.0)()
    assert value.item() == pytest.approx(10 * (before["0"] + before["2"]) + before["4"])
    value.backward()
    assert any(p.grad is not None and p.grad.abs().max() > 0 for p in net[0].parameters())


@pytest.mark.parametrize("refine", [hs.spread, hs.normalize_neurons])
def test_refined_starts(refine):
    """3.7: the start is refined, then rotated; training keeps what was refined."""
    net = mlp()
    refine(net)
    if refine is hs.spread:
        assert energies(net)["0"] < energies(mlp())["0"]
    before, rows = energies(net), net[0].weight.detach().clone()
    x = inputs(3, 6)
    train(hs.rotate(net), x, steps=20)
    assert (net[0].weight - rows).abs().max() > 1e-3
    after = energies(net)
    assert all(after[name] == pytest.approx(before[name], rel=1e-9) for name in ("0", "2"))
    close(net[0].weight.norm(dim=1), rows.norm(dim=1))
    if refine is hs.normalize_neurons:
        close(net[0].weight.norm(dim=1), torch.ones(8).double())


@pytest.mark.parametrize("refine", [hs.spread, hs.normalize_neurons])
def test_refining_a_rotated_model_is_refused(refine):
    net = shake(hs.rotate(mlp(), layers="2"))
    with refused(ValueError, "'2'.*[Rr]otat", net):
        refine(net)


# ---------------------------------------------------------------------------------------------------- precision


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("method", ["cayley", "exponential", "network"])
def test_half_precision_model(dtype, method):
    net = mlp(dtype)
    x = inputs(3, 6, dtype=dtype)
    before = net(x)
    hs.rotate(net, method)
    assert net[0].weight.dtype == dtype
    close(net(x), before, 2e-2)
    shake(net, 0.1)
    net(x).square().mean().backward()
    key = f"parametrizations.weight.0.default.{method}"
    for i in (0, 2):
        assert net[i].get_parameter(key).grad.isfinite().all()
        exact = hs.rotate(nn.Linear(net[i].in_features, net[i].out_features).double(), method)
        exact.load_state_dict({k: v.double() for k, v in net[i].state_dict().items()})
        close(net[i].weight.double(), exact.weight, 1e-2)  # R in float32, rounded once
        assert hs.merge(copy.deepcopy(net))[i].weight.dtype == dtype


# ----------------------------------------------------------------------------------------------- a method of one's own


@pytest.fixture
def _own_methods():
    with registry():
        yield


@pytest.mark.usefixtures("_own_methods")
def test_a_method_of_ones_own():
    net = mlp()
    x = inputs(3, 6)
    before = net(x)
    method = signs()
    hs.rotate(net, method, layers="0", blocks=2)
    close(net(x), before)
    p = net.state_dict()["0.parametrizations.weight.0.default.signs"]
    assert p.shape == (2, 3)
    assert p.dtype == torch.float64
    p[1, 0] = -1
    expected = mlp()[0].weight.detach()
    expected[:, 3] *= -1
    close(net[0].weight, expected)
    hs.rotate(net, "signs", layers="2")  # by the name it has now
    hs.rotate(net, method, layers="4")  # the same object again
    close(hs.rotation.merge_state_dict(net.state_dict())["0.weight"], expected)
    close(hs.merge(net)[0].weight, expected)


@pytest.mark.usefixtures("_own_methods")
def test_a_method_of_ones_own_is_not_rounded_by_autocast():
    method = Orthogonalizer(
        "free", lambda m: (m, m), lambda m, init: torch.eye(m), matrix=lambda p: p, apply=lambda p, v: v @ p.mT
    )
    layer = shake(hs.rotate(nn.Linear(6, 5), method))
    expected = layer.weight
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(layer.weight, expected)


@pytest.mark.usefixtures("_own_methods")
@pytest.mark.parametrize("name", ["cayley", "none", "method", "dims", "forward", "a.b"])
def test_a_name_that_is_taken_is_refused(name):
    net = mlp()
    with refused(ValueError, name, net):
        hs.rotate(net, signs(name))
    assert ORTHOGONALIZERS["cayley"].shape(3) == (3,)
    assert name in hs.orthogonal.BUILT_IN or name not in ORTHOGONALIZERS


@pytest.mark.usefixtures("_own_methods")
def test_a_method_of_ones_own_can_be_mended():
    def fails(m, init):
        raise ZeroDivisionError

    net = mlp()
    with pytest.raises(ZeroDivisionError):
        hs.rotate(net, dataclasses.replace(signs(), start=fails))
    assert "signs" not in ORTHOGONALIZERS
    hs.rotate(mlp(), signs())
    again = signs()
    hs.rotate(net, again)
    assert ORTHOGONALIZERS["signs"] is again


@pytest.mark.parametrize("method", ["cayley", "gram_schmidt"])
def test_gradients_of_single_samples(method):
    net = shake(hs.rotate(mlp().double(), method))
    parameters = {name: p.detach() for name, p in net.named_parameters()}
    x = torch.randn(3, next(iter(mlp().modules()))[0].in_features, dtype=torch.float64)

    def loss(parameters, x):
        return functional_call(net, parameters, (x[None],)).square().sum()

    together = vmap(grad(loss), (None, 0))(parameters, x)
    for i in range(len(x)):
        alone = grad(loss)(parameters, x[i])
        for name, value in alone.items():
            close(together[name][i], value)


def test_start_is_exact_whatever_the_default_dtype():
    torch.set_default_dtype(torch.bfloat16)
    try:
        net = hs.rotate(nn.Sequential(nn.Linear(24, 8), nn.Linear(8, 2)).double(), "ogd", init="normal")
    finally:
        torch.set_default_dtype(torch.float32)
    r = net[0].parametrizations.weight[0].default.ogd[0]
    assert (r.mT @ r - torch.eye(24)).abs().max() < 1e-13


def test_learned_neurons_of_a_frozen_model_learn():
    net = mlp().requires_grad_(False)
    hs.rotate(net, neurons="learned")
    assert net[0].parametrizations.weight.original.requires_grad
    assert not hs.merge(net)[0].weight.requires_grad
