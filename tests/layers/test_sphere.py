"""Sphere layers against cut-out patches and arccos, at regular and at singular points."""

import math

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn

import hypersphere as hs
from hypersphere import functional as HF
from tests import reference
from tests.sphere_nets import check_derivatives

NAMES = list(hs.similarity.SIMILARITIES)
CONVS = {1: hs.SphereConv1d, 2: hs.SphereConv2d, 3: hs.SphereConv3d}
PLAIN = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
F64 = torch.float64


@st.composite
def conv_options(draw):
    n = draw(st.sampled_from([1, 2, 2, 3]))
    groups = draw(st.sampled_from([1, 1, 2, 3]))
    kernel = tuple(draw(st.integers(1, 3)) for _ in range(n))
    mode = draw(st.sampled_from(["zeros", "zeros", "reflect", "replicate", "circular"]))
    stride = tuple(draw(st.integers(1, 2)) for _ in range(n))
    padding = draw(st.sampled_from(["valid", "same", "number", "tuple"]))
    if padding == "same":
        stride = (1,) * n
    elif padding == "number":
        padding = draw(st.integers(0, 2))
    elif padding == "tuple":
        padding = tuple(draw(st.integers(0, 2)) for _ in range(n))
    return {
        "in_channels": groups * 2,  # in one dimension every angle is 0 or π, where arccos has half the digits
        "out_channels": groups * draw(st.integers(1, 2)),
        "kernel_size": kernel,
        "stride": stride,
        "padding": padding,
        "dilation": tuple(draw(st.integers(1, 2)) for _ in range(n)),
        "groups": groups,
        "bias": draw(st.booleans()),
        "padding_mode": mode,
        "scale": draw(st.sampled_from([None, True, 2.5])),
        "similarity": draw(st.sampled_from(["cosine", "linear", "linear(-0.5, 0.8)", "sigmoid(0.7)", "learnable"])),
    }


def literal_g(text):
    name, numbers = hs.similarity.parse(text)
    return lambda theta: reference.SIMILARITIES[name](theta, *map(float, numbers))


EVEN_KERNEL = {
    "in_channels": 2,
    "out_channels": 2,
    "kernel_size": (2, 2),
    "stride": (1, 1),
    "padding": "same",
    "dilation": (1, 1),
    "groups": 1,
    "bias": True,
    "padding_mode": "zeros",
    "scale": None,
    "similarity": "cosine",
}


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(options=conv_options(), seed=st.integers(0, 1000))
@example(options=EVEN_KERNEL, seed=0)
def test_convolutions_equal_cut_out_patches(options, seed):
    torch.manual_seed(seed)
    n = len(options["kernel_size"])
    layer = CONVS[n](**options, dtype=F64)
    if options["scale"] is True:
        nn.init.uniform_(layer.scale, 0.5, 2.0)
    x = torch.randn(2, options["in_channels"], *[5 + i for i in range(n)], dtype=F64)
    x[0] *= torch.rand(x[0].shape) > 0.5  # zeros, and whole zero patches with padding
    expected = reference.sphere_conv(
        x,
        layer.weight,
        layer.bias,
        options["stride"],
        options["padding"],
        options["dilation"],
        options["groups"],
        options["padding_mode"],
        literal_g(options["similarity"]),
        1.0 if layer.scale is None else layer.scale,
    )
    plain = PLAIN[n](**{k: v for k, v in options.items() if k not in ("scale", "similarity")}, dtype=F64)
    y = layer(x)
    assert y.shape == plain(x).shape
    assert torch.allclose(y, expected, rtol=0, atol=1e-10)
    assert torch.allclose(layer(x[0]), y[0], rtol=0, atol=1e-12)  # unbatched


@settings(max_examples=30, deadline=None)
@given(
    shape=st.lists(st.integers(1, 4), max_size=3),
    sizes=st.tuples(st.integers(2, 6), st.integers(1, 5)),
    name=st.sampled_from(NAMES),
    bias=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_linear_equals_the_formula(shape, sizes, name, bias, seed):
    torch.manual_seed(seed)
    layer = hs.SphereLinear(*sizes, bias=bias, similarity=name, dtype=F64)
    x = torch.randn(*shape, sizes[0], dtype=F64)
    expected = reference.sphere_linear(x, layer.weight, layer.bias, reference.SIMILARITIES[name])
    assert torch.allclose(layer(x), expected, rtol=0, atol=1e-10)


@settings(max_examples=40, deadline=None)
@given(
    options=conv_options(),
    of_input=st.floats(1e-8, 1e8),
    of_weight=st.floats(1e-8, 1e8),
    seed=st.integers(0, 1000),
)
def test_range_and_scale_invariance_in_float32(options, of_input, of_weight, seed):
    torch.manual_seed(seed)
    options |= {"similarity": "sigmoid" if options["similarity"].startswith("linear(") else options["similarity"]}
    n = len(options["kernel_size"])
    layer = CONVS[n](**options | {"scale": None, "bias": False})
    x = torch.randn(2, options["in_channels"], *[5] * n)
    y = layer(x)
    assert y.abs().max() <= 1
    with torch.no_grad():
        layer.weight.mul_(of_weight)
    near = 1e-3 if options["similarity"] != "cosine" else 1e-5  # arccos near θ = 0 turns 1e-7 into 3e-4
    assert torch.allclose(layer(x * of_input), y, rtol=0, atol=near)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n", "groups", "name"),
    [(1, 2, "sigmoid"), (2, 2, "learnable"), (3, 1, "cosine")],
)
def test_first_and_second_derivatives_of_convolutions(n, groups, name):
    layer = CONVS[n](2, 2, 2, stride=2, padding=1, groups=groups, similarity=name, scale=True, dtype=F64)
    check_derivatives(layer, torch.randn(2, 2, *[3] * n, dtype=F64))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_first_and_second_derivatives_of_linear(name):
    layer = hs.SphereLinear(3, 4, similarity=name, scale=True, dtype=F64)
    check_derivatives(layer, torch.randn(2, 5, 3, dtype=F64))


def singular_cases(dtype, device):
    """Inputs and filters at θ = 0, θ = π, and zero vectors, as (name, input, weight)."""
    w = torch.tensor([[1.0, -2.0, 0.5, 3.0], [-0.25, 0.5, 1.0, 0.75]], dtype=dtype, device=device)
    zero = torch.zeros_like(w)
    return {"parallel": (w, w), "opposite": (-w, w), "zero input": (zero, w), "zero weight": (w, zero)}


@pytest.mark.parametrize("case", ["parallel", "opposite", "zero input", "zero weight"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", ["linear", "conv"])
def test_values_and_stated_gradients_at_singular_points(kind, name, dtype, case, device):
    x, w = (t.clone().requires_grad_() for t in singular_cases(dtype, device)[case])
    g = hs.LearnableSigmoid(device=device) if name == "learnable" else name
    if kind == "linear":
        y = HF.sphere_linear(x, w, similarity=g).diagonal()
    else:
        y = HF.sphere_conv2d(x.view(2, 1, 2, 2), w.view(2, 1, 2, 2), similarity=g).flatten(1).diagonal()
    expected = {"parallel": 1.0, "opposite": -1.0}.get(case, 0.0)  # zero vectors answer g(π/2) = 0
    loose = {torch.float16: 0.05, torch.bfloat16: 0.2, torch.float32: 1e-3, torch.float64: 1e-7}[dtype]
    assert torch.allclose(y, torch.full_like(y, expected), atol=loose)
    gradients = torch.autograd.grad(y.sum(), (x, w))
    limit = {torch.float16: 2.0, torch.bfloat16: 30.0, torch.float32: 2e-3, torch.float64: 1e-6}[dtype]
    assert all(gradient.isfinite().all() for gradient in gradients)
    assert all(gradient.abs().max() <= limit for gradient in gradients)  # the subgradient is 0
    if "zero" in case:
        assert all(not gradient.any() for gradient in gradients)


def test_zero_patches_inside_an_image_take_part_with_gradient_zero():
    layer = hs.SphereConv2d(1, 2, 3, similarity="sigmoid", scale=3.0)
    x = torch.zeros(1, 1, 8, 8)
    x[..., :3, :3] = torch.randn(3, 3)
    x.requires_grad_()
    y = layer(x)
    assert torch.equal(y[0, :, 5, 5], layer.bias)
    y.sum().backward()
    assert not x.grad[..., 6:, 6:].any()
    assert x.grad.isfinite().all()
    assert layer.weight.grad.isfinite().all()


@pytest.mark.parametrize("name", NAMES)
def test_what_leaves_a_layer_may_be_changed_in_place(name):
    x = torch.randn(2, 3, 6, 6)
    for bias in (True, False):
        conv = hs.SphereConv2d(3, 3, 3, padding=1, bias=bias, similarity=name)
        linear = hs.SphereLinear(6, 6, bias=bias, similarity=name)
        for layer in (conv, linear):
            y = layer(x)
            expected = torch.autograd.grad((layer(x) + x).relu().sum(), layer.weight)[0]
            y += x
            assert torch.allclose(torch.autograd.grad(nn.functional.relu_(y).sum(), layer.weight)[0], expected)


def test_float16_has_the_gradients_of_float32():
    """Patches of very different strengths: 1/‖x‖² leaves float16's range where the gradient does not."""
    x = torch.zeros(1, 4, 12, 12)
    x[..., :4] = torch.rand(1, 4, 12, 4)
    x[..., 6:] = torch.randn(1, 4, 12, 6).relu() * 1e-6
    layer = hs.SphereConv2d(4, 8, 3, padding=1)
    grad = torch.randn(1, 8, 12, 12)
    results = []
    for kind in (torch.float32, torch.float16):
        a = x.clone().requires_grad_()
        with torch.autocast("cpu", dtype=torch.float16, enabled=kind is torch.float16):
            y = layer(a)
        results.append(torch.autograd.grad((y.float() * grad).sum(), (a, layer.weight)))
    for exact, half in zip(*results, strict=True):
        assert half.isfinite().all()
        assert (half - exact).abs().max() < 0.05 * exact.abs().max()


def test_float16_keeps_weak_patches_beside_a_strong_pixel():
    layer, x = hs.SphereConv2d(4, 8, 3, bias=False), 0.01 * torch.randn(1, 4, 12, 12)
    x[..., 0, 0] = 1000
    exact = layer(x)
    with torch.autocast("cpu", dtype=torch.float16):
        y = layer(x)
    assert (y.float() - exact).abs().max() < 5e-3


def test_nan_is_not_hidden():
    x = torch.randn(1, 3, 5, 5)
    x[0, 1, 2, 2] = math.nan
    y = hs.SphereConv2d(3, 4, 3, padding=1)(x)
    assert y[..., 1:4, 1:4].isnan().all()
    assert y[..., 0, 0].isfinite().all()


def test_state_dicts_go_both_ways():
    for plain, layer in (
        (nn.Conv2d(4, 6, 3, groups=2), hs.SphereConv2d(4, 6, 3, groups=2, similarity="learnable", scale=True)),
        (nn.Linear(4, 6), hs.SphereLinear(4, 6, similarity="learnable(0.7)", scale=True)),
    ):
        with torch.no_grad():
            layer.scale.fill_(3.0)
        state = plain.state_dict()
        before = dict(state)
        layer.load_state_dict(state, strict=True)
        layer.load_state_dict(state, strict=True, assign=True)
        assert set(state) == set(before)
        assert torch.equal(layer.weight, plain.weight)
        assert (layer.scale == 3.0).all()  # what the plain layer does not have keeps its value
        assert set(layer.state_dict()) == {"weight", "bias", "scale", "similarity.log_k"}
    plain.load_state_dict(hs.SphereLinear(4, 6, scale=2.0).state_dict(), strict=True)  # a fixed scale is not in it


def test_functional_and_layer_agree():
    layer = hs.SphereConv2d(3, 5, 3, stride=2, padding=1, similarity="sigmoid(0.4)")
    x = torch.randn(2, 3, 9, 9)
    y = HF.sphere_conv2d(x, layer.weight, layer.bias, 2, 1, similarity="sigmoid(0.4)")
    assert torch.equal(layer(x), y)
    x = torch.randn(2, 3, 9)
    y = HF.sphere_conv1d(x, layer.weight[..., 0], scale=2.0)
    assert torch.allclose(y, 2 * HF.sphere_conv1d(x, layer.weight[..., 0]))
    with pytest.raises(ValueError, match="'learnable' has parameters"):
        HF.sphere_conv2d(torch.randn(2, 3, 9, 9), layer.weight, similarity="learnable")


def test_empty_batch_and_single_pixel():
    assert hs.SphereConv2d(3, 4, 1)(torch.zeros(0, 3, 5, 5)).shape == (0, 4, 5, 5)
    assert hs.SphereLinear(3, 4)(torch.zeros(0, 3)).shape == (0, 4)
    assert hs.SphereConv2d(1, 1, 1, bias=False)(torch.full((1, 1, 1, 1), -3.0)).abs() == 1


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", NAMES)
def test_autocast(name, kind, device):
    net = nn.Sequential(
        hs.SphereConv2d(3, 8, 3, similarity=name, scale=True, device=device),
        nn.ReLU(),
        nn.Flatten(),
        hs.SphereLinear(8 * 36, 4, similarity=name, device=device),
    )
    x = torch.randn(2, 3, 8, 8, device=device)
    with torch.autocast(device.type, dtype=kind):
        y = net(x)
    assert y.dtype is kind
    y.float().square().sum().backward()
    assert torch.allclose(y.float(), net(x), atol=0.1)
    assert all(p.grad.isfinite().all() and p.grad.dtype is torch.float32 for p in net.parameters())


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: hs.SphereConv2d(3, 4, 3)(torch.randn(2, 5, 8, 8)), ValueError, "3 channels.*got \\(2, 5, 8, 8\\)"),
        (lambda: hs.SphereConv2d(3, 4, 3)(torch.randn(3, 8)), ValueError, "got \\(3, 8\\)"),
        (lambda: hs.SphereConv2d(3, 4, 3)(torch.ones(2, 3, 8, 8, dtype=torch.int64)), TypeError, "input.*int64"),
        (lambda: hs.SphereConv2d(3, 4, 3)(torch.randn(2, 3, 8, 8).double()), TypeError, "one dtype.*float64.*float32"),
        (lambda: hs.SphereConv2d(3, 4, 3)([[1.0]]), TypeError, "input must be a Tensor, got list"),
        (lambda: hs.SphereLinear(3, 4)(torch.randn(2, 5)), ValueError, "got \\(2, 5\\) and \\(4, 3\\)"),
        (lambda: hs.SphereLinear(3, 4)(torch.tensor(1.0)), ValueError, "input must be"),
        (lambda: hs.SphereLinear(3, 4, dtype=torch.int32), TypeError, "dtype must be a floating point dtype"),
        (lambda: hs.SphereLinear(3, 4, scale="big"), TypeError, "scale must be None.*'big'"),
        (lambda: hs.SphereLinear(3, 4, scale=0), ValueError, "scale must not be 0"),
        (lambda: hs.SphereLinear(3, 4, scale=math.nan), ValueError, "scale must be finite"),
        (lambda: hs.SphereConv2d(3, 4, 3, padding="same", stride=2), ValueError, "same"),
        (
            lambda: hs.SphereConv2d(3, 4, 3, padding=1, padding_mode="reflect")(torch.randn(2, 5, 8, 8)),
            ValueError,
            "3 channels.*got \\(2, 5, 8, 8\\)",
        ),
        (lambda: hs.SphereLinear(3, 4, similarity=lambda c: c.sum(1))(torch.randn(2, 3)), ValueError, "keep the shape"),
        (
            lambda: HF.sphere_conv2d(torch.randn(2, 3, 5, 5), torch.randn(1, 3, 3, 3), torch.randn(4)),
            ValueError,
            "bias must be a tensor of shape \\(1,\\)",
        ),
        (lambda: HF.sphere_linear(torch.randn(2, 3), torch.randn(4, 3), 1.0), ValueError, "bias must be a tensor"),
        (
            lambda: HF.sphere_linear(torch.randn(2, 3), torch.randn(4, 3), scale=torch.ones(1)),
            ValueError,
            "scale must be a tensor of shape \\(4,\\)",
        ),
        (
            lambda: HF.sphere_conv2d(torch.randn(1, 3, 5, 5), torch.randn(4, 3, 3, 3), padding="some"),
            ValueError,
            r"unknown padding 'some', did you mean 'same'\? \(one of valid, same\)",
        ),
    ],
)
def test_bad_input(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_a_linear_layer_has_cosines_of_at_most_one():
    layer = hs.SphereLinear(7, 2000, bias=False)
    cosines = layer(layer.weight.detach())
    assert cosines.abs().max() <= 1
    assert torch.allclose(cosines.diagonal(), torch.ones(2000))
