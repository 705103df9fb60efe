"""Convolutions in pieces: the same function as its parts, with fewer tensors of the output's size."""

import pytest
import torch
from torch import nn
from torch.autograd import gradgradcheck
from torch.profiler import ProfilerActivity, profile

import hypersphere as hs
from hypersphere.layers import fused_conv

SIMILARITIES = ["cosine", "linear(-0.5, 0.8)", "sigmoid(0.3)"]
OPTIONS = {
    "same": {"padding": 1},
    "strided": {"padding": 1, "stride": 2, "dilation": (1, 2)},
    "padded more than the kernel": {"padding": 4},
    "dilated": {"padding": 2, "dilation": 2},
    "groups": {"padding": 1, "groups": 2},
    "depthwise": {"padding": 1, "groups": 4},
}


@pytest.fixture
def small_pieces(monkeypatch):
    monkeypatch.setattr(fused_conv, "CHUNK", 300)  # two samples of those below


@pytest.fixture
def in_parts(monkeypatch):
    """Switch to the composition of cosine_conv and the similarity."""
    return lambda: monkeypatch.setattr(fused_conv, "is_supported", lambda *tensors: False)


def make(name, options, **more):
    layer = hs.SphereConv2d(4, 4, 3, similarity=name, dtype=torch.float64, **options, **more)
    if layer.bias is not None:
        nn.init.normal_(layer.bias)
    if isinstance(layer.scale, nn.Parameter):
        nn.init.uniform_(layer.scale, 0.5, 2.0)
    return layer


def results(layer, x, grad):
    y = layer(x)
    wanted = [tensor for tensor in (x, *layer.parameters()) if tensor.requires_grad]
    return [y, *torch.autograd.grad(y, wanted, grad)]


def assert_same(actual, expected):
    for one, other in zip(actual, expected, strict=True):
        assert torch.allclose(one, other, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("bias", "scale"), [(False, None), (True, 2.5), (True, True)])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("name", SIMILARITIES)
def test_same_as_its_parts(name, options, bias, scale, small_pieces, in_parts):
    torch.manual_seed(0)
    layer = make(name, options, bias=bias, scale=scale)
    x = torch.randn(7, 4, 6, 6, dtype=torch.float64, requires_grad=True)
    grad = torch.randn_like(layer(x))
    fused = results(layer, x, grad)
    in_parts()
    assert_same(fused, results(layer, x, grad))


@pytest.mark.parametrize("fixed", ["input", "weight", "bias", "scale"])
def test_only_the_gradients_that_are_needed(fixed, small_pieces, in_parts):
    torch.manual_seed(0)
    layer = make("sigmoid", {"padding": 1}, scale=True)
    x = torch.randn(7, 4, 6, 6, dtype=torch.float64, requires_grad=True)
    (x if fixed == "input" else getattr(layer, fixed)).requires_grad_(False)
    grad = torch.randn_like(layer(x))
    fused = results(layer, x, grad)
    in_parts()
    assert_same(fused, results(layer, x, grad))


@pytest.mark.parametrize("name", ["cosine", "linear", "sigmoid"])
def test_channels_last_and_gradients_of_another_layout(name, small_pieces):
    torch.manual_seed(0)
    layer = make(name, {"padding": 1})
    x = torch.randn(7, 4, 6, 6, dtype=torch.float64, requires_grad=True)
    last = x.detach().to(memory_format=torch.channels_last).requires_grad_()
    grad = torch.randn_like(layer(x))
    expected = results(layer, x, grad)
    assert layer(last).is_contiguous(memory_format=torch.channels_last)
    assert_same(results(layer, last, grad), expected)
    assert_same(results(layer, last, grad.to(memory_format=torch.channels_last)), expected)
    summed = torch.autograd.grad(layer(x).sum(), x)[0]  # an expanded gradient
    assert torch.allclose(summed, torch.autograd.grad(layer(x), x, torch.ones_like(grad))[0])


@pytest.mark.parametrize("name", ["cosine", "linear", "sigmoid"])
def test_backward_twice(name, small_pieces):
    """The first pass writes over the cosines; the second must not read that."""
    layer = make(name, {"padding": 1}, scale=2.0)
    x = torch.randn(5, 4, 6, 6, dtype=torch.float64, requires_grad=True)
    y = layer(x)
    leaves, grad = (x, *layer.parameters()), torch.randn_like(y)
    first = torch.autograd.grad(y, leaves, grad, retain_graph=True)
    second = torch.autograd.grad(y, leaves, grad, retain_graph=True)
    recorded = torch.autograd.grad(y, leaves, grad, create_graph=True)
    for a, b, c in zip(first, second, recorded, strict=True):
        assert torch.equal(a, b)
        assert torch.allclose(a, c, rtol=1e-9, atol=1e-12)


def test_second_derivatives_where_one_input_depends_on_another():
    torch.manual_seed(0)
    source = torch.randn(1, 2, 2, 2, dtype=torch.float64, requires_grad=True)

    def f(source):
        return hs.functional.sphere_conv2d(source.repeat(2, 1, 2, 1).square(), source, similarity="sigmoid(0.7)")

    assert gradgradcheck(f, (source,))


def test_batched_gradients(small_pieces):
    layer = make("linear", {"padding": 1})
    x = torch.randn(5, 4, 6, 6, dtype=torch.float64, requires_grad=True)
    y = layer(x)
    grads = torch.randn(3, *y.shape, dtype=torch.float64)
    together = torch.autograd.grad(y, x, grads, is_grads_batched=True, retain_graph=True)[0]
    one_by_one = [torch.autograd.grad(y, x, grad, retain_graph=True)[0] for grad in grads]
    assert torch.allclose(together, torch.stack(one_by_one))


def whole_tensors(step, size):
    """How many blocks of `size` bytes or more a step asks torch's allocator for."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        step()
    events = recorded.profiler.kineto_results.events()
    return sum(event.name() == "[memory]" and event.nbytes() >= size for event in events)


@pytest.mark.parametrize(("name", "more"), [("cosine", 1), ("linear", 1), ("sigmoid", 2)])
def test_few_tensors_of_the_size_of_the_output(name, more):
    """Beside what a plain convolution has: the cosines, and the derivative that the sigmoid keeps."""
    x = torch.randn(8, 64, 32, 32, requires_grad=True)
    grad = torch.ones_like(x)
    plain = nn.Conv2d(64, 64, 3, padding=1)
    layer = hs.SphereConv2d(64, 64, 3, padding=1, similarity=name)
    steps = [whole_tensors(lambda conv=conv: results(conv, x, grad), grad.nbytes) for conv in (plain, layer)]
    assert steps[1] - steps[0] == more
    with torch.no_grad():
        forward = [whole_tensors(lambda conv=conv: conv(x), grad.nbytes) for conv in (plain, layer)]
    assert forward[1] == forward[0]
