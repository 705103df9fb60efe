"""merge and merge_state_dict: the plain network again, with the learned weights, in every respect."""

import copy
import io
import itertools

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize

import hypersphere as hs
from tests.rotations import METHODS, close, inputs, mlp, refused, registry, shake, signs, train

pytestmark = pytest.mark.filterwarnings("ignore:the Cayley transform of N")


class Many(nn.Module):
    """Every kind of layer that can be rotated, and an output."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.groups = nn.Conv2d(8, 8, 3, groups=2, bias=False)
        self.up = nn.ConvTranspose2d(8, 4, 2, stride=2)
        self.sphere = hs.SphereConv2d(4, 6, 3, similarity="learnable", scale=True)
        self.tokens = nn.MultiheadAttention(6, 2, batch_first=True)
        self.cross = nn.MultiheadAttention(6, 2, kdim=6, vdim=6, batch_first=True)
        self.mixed = nn.MultiheadAttention(6, 2, kdim=4, vdim=5, batch_first=True, add_bias_kv=True)
        self.line = nn.Conv1d(6, 6, 3)
        self.fc = hs.SphereLinear(6, 5)
        self.out = nn.Linear(5, 3)

    def forward(self, x):
        x = self.norm(self.conv(x)).relu()
        x = self.sphere(self.up(self.groups(x))).flatten(2).mT
        x = x + self.tokens(x, x, x, need_weights=False)[0]
        x = x + self.cross(x, x, x, need_weights=False)[0]
        x = x + self.mixed(x, x[..., :4], x[..., :5], need_weights=False)[0]
        return self.out(self.fc(self.line(x.mT).mean(-1)))


def many(dtype=torch.float32):
    torch.manual_seed(1)
    return Many().to(dtype)


def images(dtype=torch.float32):
    return inputs(2, 3, 6, 6, dtype=dtype)


def shape_of(model):
    """All that tells two plain models apart but the numbers."""
    return (
        list(model.state_dict()),
        [(name, tuple(p.shape), p.dtype, p.requires_grad, type(p)) for name, p in model.named_parameters()],
        [name for name, _ in model.named_buffers()],
        [(name, type(m), m.training) for name, m in model.named_modules()],
        [sorted(vars(m)) for m in model.modules()],
    )


@pytest.mark.parametrize("training", [True, False])
def test_the_plain_network_again(training):
    net = many().train(training)
    net.conv.weight.requires_grad_(False)
    net.tokens.in_proj_weight.requires_grad_(False)
    net.fc.bias.requires_grad_(False)
    plain = shape_of(net)
    layers = dict(net.named_modules())
    hs.rotate(net)
    assert shape_of(net) != plain
    train(net.train(), images(), steps=2)
    shake(net).eval()
    expected = net(images())
    net.train(training)
    assert hs.merge(net) is net
    assert shape_of(net) == plain
    assert all(module is layers[name] for name, module in net.named_modules())
    assert type(net.conv) is nn.Conv2d
    close(net.eval()(images()), expected, 1e-5)
    assert str(net) == str(many())


def same(a, b, atol=1e-6):
    assert list(a) == list(b)
    for key in a:
        torch.testing.assert_close(a[key], b[key], rtol=0, atol=atol, msg=key)


@pytest.mark.parametrize(
    ("method", "options"),
    [
        *((method, {}) for method in [*METHODS, "none"]),
        *((method, {"blocks": 2}) for method in ("cayley", "gram_schmidt", "network")),
        *((method, {"blocks": 2, "share_blocks": True}) for method in ("cayley", "gram_schmidt", "network")),
    ],
)
def test_every_method(method, options):
    net = nn.Sequential(nn.Conv2d(4, 6, 2), nn.Flatten(), nn.Linear(24, 6), nn.Linear(6, 3)).double()
    x = inputs(2, 4, 3, 3)
    shake(hs.rotate(net, method, init="identity" if method == "none" else "normal", **options), 0.1)
    state, expected = copy.deepcopy(net.state_dict()), net(x)
    hs.merge(net)
    close(net(x), expected)
    assert type(net[0]) is nn.Conv2d
    assert list(net.state_dict()) == ["0.weight", "0.bias", "2.weight", "2.bias", "3.weight", "3.bias"]
    same(hs.rotation.merge_state_dict(state), net.state_dict(), 1e-12)


@pytest.mark.parametrize(("frozen", "neurons"), [((0,), "fixed"), ((0, 2, 4), "learned")])
def test_requires_grad_comes_back(frozen, neurons):
    net = mlp()
    for i in frozen:
        net[i].weight.requires_grad_(False)
    before = [p.requires_grad for p in net.parameters()]
    hs.merge(hs.rotate(net, neurons=neurons))
    assert [p.requires_grad for p in net.parameters()] == before
    hs.rotate(net).requires_grad_(True)
    hs.merge(net)
    assert [p.requires_grad for p in (net[0].weight, net[2].weight)] == [before[0], before[2]]


# ------------------------------------------------------------------------------------------------------- copies


@pytest.mark.parametrize("merged", ["copy", "original"])
def test_merging_one_leaves_the_other(merged):
    net = shake(hs.rotate(many()))
    other = copy.deepcopy(net)
    plain, rotated = (other, net) if merged == "copy" else (net, other)
    keys = list(rotated.state_dict())
    rotated.eval()
    expected = rotated(images())
    close(hs.merge(plain).eval()(images()), expected, 1e-5)
    assert list(rotated.state_dict()) == keys
    assert torch.equal(rotated(images()), expected)
    weights = {key: value.clone() for key, value in plain.state_dict().items()}
    before = rotated.conv.weight.detach().clone()
    train(rotated, images())  # and trains on
    assert (rotated.conv.weight - before).abs().max() > 1e-5
    same(plain.state_dict(), weights, 0)
    close(hs.merge(rotated)(images()), rotated(images()), 1e-5)
    assert type(rotated.conv) is type(plain.conv) is nn.Conv2d


# --------------------------------------------------------------------------------------- other parametrizations


class Double(nn.Module):
    def forward(self, x):
        return 2 * x


def test_a_parametrization_of_another_tensor_stays():
    net = mlp()
    parametrize.register_parametrization(net[0], "bias", Double())
    hs.rotate(net)
    parametrize.register_parametrization(net[2], "bias", Double())
    shake(net)
    x = inputs(3, 6)
    expected = net(x)
    other = hs.merge(copy.deepcopy(net))
    for model in (other, net, hs.merge(net)):
        close(model(x), expected)
        for i in (0, 2):
            assert parametrize.is_parametrized(model[i], "bias")
            assert parametrize.is_parametrized(model[i], "weight") == (
                model is net and "0.weight" not in net.state_dict()
            )
    assert "0.parametrizations.bias.original" in net.state_dict()
    train(other, x)
    assert (other(x) - expected).abs().max() > 1e-5
    hs.rotate(net)
    close(net(x), expected)


def test_rotating_a_deepcopy_leaves_the_original_alone():
    net, x = mlp(), inputs(3, 6)
    parametrize.register_parametrization(net[0], "bias", Double())
    expected = net(x)
    other = hs.rotate(copy.deepcopy(net))
    assert torch.equal(net(x), expected)
    close(other(x), expected)
    hs.rotate(net)
    close(hs.merge(other)(x), expected)
    close(net(x), expected)


def test_a_further_parametrization_of_the_weight_is_refused():
    net = shake(hs.rotate(mlp()))
    parametrize.register_parametrization(net[2], "weight", Double())
    x = inputs(3, 6)
    expected = net(x)
    with refused(ValueError, "'2'.*parametriz", net):
        hs.merge(net)
    assert torch.equal(net(x), expected)


# --------------------------------------------------------------------------------------- what a plain model can do


def test_progressive_training():
    net = mlp()
    x = inputs(3, 6)
    energy = hs.EnergyRegularizer(net).per_layer()
    for method, layers in itertools.product(("cayley", "lowdin"), (["0"], ["0", "2"])):
        before = net(x)
        hs.rotate(net, method, layers=layers)
        close(net(x), before)
        train(net, x)
        expected = net(x)
        assert (expected - before).abs().max() > 1e-4
        close(hs.merge(net)(x), expected)
    after = hs.EnergyRegularizer(net).per_layer()
    assert after["0"] == pytest.approx(energy["0"])
    train(net, x)  # plain
    assert hs.EnergyRegularizer(net).per_layer()["0"] != pytest.approx(energy["0"])


@pytest.mark.parametrize("merged", [False, True])
def test_a_model_that_is_not_rotated(merged):
    net = hs.merge(hs.rotate(mlp())) if merged else mlp()
    with refused(ValueError, "rotate", net):
        hs.merge(net)


# ---------------------------------------------------------------------------------------------- merge_state_dict


def test_the_given_state_is_left_alone():
    net = shake(hs.rotate(many()))
    state = net.state_dict()
    values = {key: value.clone() for key, value in state.items()}
    merged = hs.rotation.merge_state_dict(state)
    same(state, values, 0)
    with torch.no_grad():
        merged["conv.weight"].zero_()
    assert net.conv.weight.abs().max() > 0
    assert not any(value.requires_grad for value in merged.values())


TRANSPOSED = {
    "square": lambda: nn.ConvTranspose2d(4, 4, 3),
    "square_groups": lambda: nn.ConvTranspose1d(4, 4, 3, groups=2),
    "3d": lambda: nn.ConvTranspose3d(4, 2, 2, bias=False),
    "conv": lambda: nn.Conv2d(4, 4, 3),
}


@pytest.mark.parametrize("options", [{}, {"blocks": 2, "share_blocks": True}, {"sample": 5}], ids=str)
@pytest.mark.parametrize("kind", TRANSPOSED)
def test_transposed_convolutions_without_a_model(kind, options):
    """A state_dict that looks like a convolution's of other sizes, or of the same."""
    layer = TRANSPOSED[kind]().double()
    shake(hs.rotate(layer, **options))
    state = layer.state_dict()
    keys = list(state)
    merged = hs.rotation.merge_state_dict(state)
    same(merged, hs.merge(layer).state_dict(), 1e-12)
    assert not [key for key in keys if key in merged and "parametrizations" in key]


def test_the_state_alone_decides():
    """As it comes back from a file: plain tensors, a dict, another order."""
    net = shake(hs.rotate(many(), sample=0.5))
    file = io.BytesIO()
    torch.save(net.state_dict(), file)
    file.seek(0)
    state = torch.load(file, weights_only=True)
    shuffled = {key: state[key] for key in sorted(state, key=lambda key: key[::-1])}
    merged = hs.merge(net).state_dict()
    same(hs.rotation.merge_state_dict(state), merged)
    result = hs.rotation.merge_state_dict(shuffled)
    same({key: result[key] for key in merged}, merged)
    assert len(result) == len(merged)


def test_a_wrapper_and_a_root():
    layer = shake(hs.rotate(nn.Linear(6, 5).double()))
    assert list(hs.rotation.merge_state_dict(layer.state_dict())) == ["weight", "bias"]
    close(hs.rotation.merge_state_dict(layer.state_dict())["weight"], layer.weight)
    wrapped = nn.ModuleDict({"module": layer}).state_dict()
    assert list(hs.rotation.merge_state_dict(wrapped)) == ["module.weight", "module.bias"]


def test_dtype_stays():
    state = shake(hs.rotate(mlp(torch.bfloat16))).state_dict()
    assert {value.dtype for value in hs.rotation.merge_state_dict(state).values()} == {torch.bfloat16}


OTHERS = {
    "bias": lambda net: parametrize.register_parametrization(net[0], "bias", Double()),
    "weight_norm": lambda net: parametrizations.weight_norm(net[4]),
}


@pytest.mark.parametrize("register", OTHERS.values(), ids=OTHERS)
def test_other_parametrizations_in_a_state(register):
    net = mlp()
    register(net)
    hs.rotate(net, layers=["0", "2"])
    state = shake(net).state_dict()
    merged = hs.rotation.merge_state_dict(state)
    expected = hs.merge(net).state_dict()
    assert set(merged) == set(expected)
    same({key: merged[key] for key in expected}, expected, 1e-12)


def test_states_without_rotations_are_refused():
    for state in ({}, mlp().state_dict()):
        with pytest.raises(ValueError, match="rotate"):
            hs.rotation.merge_state_dict(state)
    with pytest.raises(TypeError, match="state_dict"):
        hs.rotation.merge_state_dict(nn.Linear(2, 2))


def test_a_method_that_is_not_registered():
    with registry():
        state = hs.rotate(mlp(), signs()).state_dict()
        same(hs.rotation.merge_state_dict(state), mlp().state_dict(), 0)
    with pytest.raises(ValueError, match="signs"):
        hs.rotation.merge_state_dict(state)


KEY = "0.parametrizations.weight."
DAMAGES = {
    "unknown rotation": lambda state: state.update({KEY + "0.default.kayley": state.pop(KEY + "0.default.cayley")}),
    "does not fit": lambda state: state.update({KEY + "0.default.cayley": torch.zeros(1, 10).double()}),
    "is missing": lambda state: state.pop(KEY + "original"),
}


@pytest.mark.parametrize("message", DAMAGES)
def test_damaged_states(message):
    state = dict(hs.rotate(mlp()).state_dict())
    DAMAGES[message](state)
    with pytest.raises(ValueError, match=f"'0.*{message}|{message}.*'0"):
        hs.rotation.merge_state_dict(state)


def test_order_of_parameters_after_two_calls():
    attention = nn.MultiheadAttention(8, 2, kdim=6, vdim=4)
    names = [name for name, _ in attention.named_parameters()]
    hs.rotate(attention, layers="k_proj_weight")
    hs.rotate(attention, layers="q_proj_weight")
    hs.merge(attention)
    assert [name for name, _ in attention.named_parameters()] == names


def test_another_parametrization_with_a_module_of_its_own_is_named():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(1, 1)

        def forward(self, weight):
            return weight * self.inner.weight

    net = mlp()
    parametrize.register_parametrization(net[-1], "weight", Scaled())
    hs.rotate(net, layers="0")
    with pytest.raises(ValueError, match="unknown rotation"):
        hs.rotation.merge_state_dict(net.state_dict())
    plain = copy.deepcopy(net)
    assert isinstance(hs.merge(plain)[-1].parametrizations.weight[0], Scaled)
