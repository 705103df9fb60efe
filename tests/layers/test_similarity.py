"""g(θ) from the cosine: equal to the papers' formulas, with exact and bounded derivatives."""

import math

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import hypersphere as hs
from hypersphere._internal.overflow import ClampWithInwardGradient
from hypersphere.layers.similarity import SIMILARITIES, LearnableSigmoid, angle, parse, resolve
from tests import reference

STRINGS = [*SIMILARITIES, "linear(-0.5, 0.8)", "sigmoid(0.1)", "sigmoid(0.7)", "sigmoid(25)"]


def literal(text):
    name, numbers = parse(text)
    return lambda theta: reference.SIMILARITIES[name](theta, *map(float, numbers))


def test_every_entry_of_the_table_has_a_literal_formula():
    assert set(SIMILARITIES) == set(reference.SIMILARITIES)


@pytest.mark.parametrize("text", STRINGS)
def test_equals_the_formula_at_known_angles(text, device):
    theta = torch.linspace(0, math.pi, 101, dtype=torch.float64)[:, None]
    g = resolve(text, 1, device=device, dtype=torch.float64)
    assert torch.allclose(g(theta.cos().to(device)).cpu(), literal(text)(theta), rtol=0, atol=1e-10)


@pytest.mark.parametrize("text", STRINGS)
def test_float32_is_close_to_the_formula(text):
    c = torch.linspace(-1, 1, 1001)[:, None]
    expected = literal(text)(c.double().arccos())
    assert (resolve(text, 1)(c) - expected).abs().max() < 4e-7


@pytest.mark.parametrize("text", STRINGS)
def test_derivatives(text):
    g = resolve(text, 4, dtype=torch.float64)
    c = (torch.rand(3, 4, 2, dtype=torch.float64) * 1.9 - 0.95).requires_grad_()
    inputs = (c, g.log_k) if text == "learnable" else (c,)
    assert gradcheck(lambda c, *k: g(c), inputs)
    assert gradgradcheck(lambda c, *k: g(c), inputs)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("text", STRINGS)
def test_finite_and_bounded_at_and_beyond_the_ends(text, dtype, device):
    c = torch.tensor([[-2.0, -1.0, -0.999, 0.0, 0.999, 1.0, 2.0]], dtype=dtype, device=device).T.requires_grad_()
    y = resolve(text, 1, device=device)(c)
    (gradient,) = torch.autograd.grad(y.float().sum(), c)
    assert y.dtype is dtype
    assert y.isfinite().all()
    bound = 6 / torch.finfo(torch.promote_types(dtype, torch.float32)).eps ** 0.5
    assert gradient.isfinite().all()
    assert gradient.abs().max() <= bound
    if "linear(" not in text:
        assert y.abs().max() <= 1


def test_the_slope_at_the_ends_is_the_stated_bound():
    c = torch.tensor([-1.0, 1.0], requires_grad=True)
    (gradient,) = torch.autograd.grad(angle(c).sum(), c)
    assert torch.allclose(gradient, torch.full((2,), -((2.0**-23) ** -0.5)))


@pytest.mark.parametrize("k", [1e-40, 0.01, 50.0, 1e40])
def test_sigmoid_is_finite_for_every_k(k):
    c = torch.linspace(-1, 1, 21).requires_grad_()
    learned = torch.tensor(min(max(k, 1e-4), 100.0), requires_grad=True)
    for y, inputs in ((hs.similarity.sigmoid(c, k), (c,)), (hs.similarity.sigmoid(c, learned), (c, learned))):
        assert y.isfinite().all()
        assert y.abs().max() <= 1
        assert all(g.isfinite().all() for g in torch.autograd.grad(y.sum(), inputs))


def test_large_k_is_linear_and_small_k_a_step():
    c = torch.linspace(-0.99, 0.99, 40, dtype=torch.float64)
    assert torch.allclose(hs.similarity.sigmoid(c.float(), 1e5), hs.similarity.linear(c.float()), atol=2e-7)
    assert torch.allclose(hs.similarity.sigmoid(c, 1e5), hs.similarity.linear(c), atol=1e-9)
    assert torch.allclose(hs.similarity.sigmoid(c, 1e-4), c.sign(), atol=1e-9)


def test_each_filter_gets_its_own_k():
    g = hs.LearnableSigmoid(2, dtype=torch.float64)
    with torch.no_grad():
        g.log_k.copy_(torch.tensor([0.1, 0.9]).log())
    c = torch.rand(5, 2, 3, dtype=torch.float64)
    for i, k in enumerate((0.1, 0.9)):
        assert torch.allclose(g(c)[:, i], reference.sigmoid(c[:, i].arccos(), k), atol=1e-6)


def test_any_callable_sees_filters_on_dimension_one():
    seen = []

    def g(c):
        seen.append(tuple(c.shape))
        return c**3

    hs.SphereLinear(4, 6, similarity=g)(torch.randn(2, 3, 5, 4))
    hs.SphereLinear(4, 6, similarity=g)(torch.randn(4))
    hs.SphereConv1d(4, 6, 3, similarity=g)(torch.randn(4, 9))
    hs.SphereConv3d(4, 6, 3, similarity=g)(torch.randn(2, 4, 5, 5, 5))
    assert seen == [(30, 6), (1, 6), (1, 6, 7), (2, 6, 3, 3, 3)]


@pytest.mark.parametrize(
    ("similarity", "error", "message"),
    [
        ("sigmoyd", ValueError, "'sigmoyd', did you mean 'sigmoid'.*one of cosine, linear, sigmoid, learnable, with"),
        ("", ValueError, "one of cosine"),
        ("sigmoid(0)", ValueError, "k must be finite and > 0, got 0"),
        ("sigmoid(inf)", ValueError, "k must be finite"),
        ("sigmoid(1, 2)", ValueError, "sigmoid"),
        ("linear(x)", ValueError, "floats"),
        ("learnable(0)", ValueError, "k must be finite and >= 0.0001 and <= 100"),
        (3, TypeError, "name, a module or a callable"),
        (hs.LearnableSigmoid, TypeError, "name, a module or a callable"),
        (hs.LearnableSigmoid(7), ValueError, "7 filters, but the layer has 5"),
    ],
)
def test_bad_similarities(similarity, error, message):
    with pytest.raises(error, match=message):
        hs.SphereLinear(3, 5, similarity=similarity)


def test_bad_numbers():
    c = torch.zeros(2, 3)
    with pytest.raises(ValueError, match="k must be finite and > 0, got 0"):
        hs.similarity.sigmoid(c, 0)
    with pytest.raises(TypeError, match="a must be a number, got 'x'"):
        hs.similarity.linear(c, "x")
    with pytest.raises(ValueError, match="num_filters must be >= 1"):
        hs.LearnableSigmoid(0)
    with pytest.raises(ValueError, match="3 filters on dimension 1, got shape \\(2, 4\\)"):
        hs.LearnableSigmoid(3)(torch.zeros(2, 4))
    with pytest.raises(TypeError, match="must be a floating point dtype"):
        hs.LearnableSigmoid(3, dtype=torch.int64)


def test_printed_as_the_string_that_makes_it():
    assert "similarity=sigmoid(0.7)" in repr(hs.SphereLinear(2, 3, similarity=" sigmoid( 0.7 )"))


# ---- a learned k beyond its range


@pytest.mark.parametrize("start", [10.0, -20.0])
@pytest.mark.parametrize("optimizer", [torch.optim.Adam, torch.optim.SGD])
def test_log_k_comes_back_from_beyond_its_range(start, optimizer):
    g = LearnableSigmoid()
    with torch.no_grad():
        g.log_k.fill_(start)
    assert 0.9e-4 < g.k < 101
    steps = optimizer(g.parameters(), lr=0.5)
    for _ in range(300):
        steps.zero_grad()
        (g.k.log() - math.log(0.5)).square().backward()
        steps.step()
    assert g.k.item() == pytest.approx(0.5, rel=0.05)


@pytest.mark.slow
@pytest.mark.parametrize(("start", "inward"), [(10.0, 1.0), (-20.0, -1.0)])
def test_log_k_goes_no_further_out(start, inward):
    """Descent along an inward gradient returns; an outward one is dropped, also where both are batched or compiled."""
    grads = []
    for k_of in (lambda g: g.k, torch.compile(lambda g: g.k, fullgraph=True, backend="aot_eager")):
        g = LearnableSigmoid(num_filters=2)
        with torch.no_grad():
            g.log_k.copy_(torch.tensor([start, 0.0]))
        for sign in (inward, -inward):
            grads.append(torch.autograd.grad((k_of(g).log() * sign).sum(), g.log_k)[0].tolist())
    torch.testing.assert_close(grads, 2 * [[inward, inward], [0.0, -inward]])
    per_sample = torch.func.vmap(torch.func.grad(lambda x, sign: (_clamped(x) * sign).sum()), (None, 0))
    both = per_sample(torch.tensor([start]), torch.tensor([inward, -inward]))
    assert both.flatten().tolist() == [inward, 0.0]


def _clamped(x):
    return ClampWithInwardGradient.apply(x, math.log(1e-4), math.log(1e2))
