"""Hyperspherical energy against the literal double loop of tests/reference.py, and where neurons meet."""

import itertools
import math

import pytest
import torch
from benchmarks.measure import Contestant, peak_bytes
from torch.autograd import gradcheck, gradgradcheck

import hypersphere as hs
from tests import reference

pytestmark = pytest.mark.slow

F64 = torch.float64
NEAR = 0.03  # a pair nearer than this has the gradient of a pair at this distance
POWERS = [0.0, 1.0, 2.0, 7.3, 50.0]
KINDS = {"euclidean": {}, "angular": {"angular": True}, "beta": {"beta": True}}
half_or_full = pytest.mark.parametrize("half_space", [False, True], ids=["full", "half"])
every_kind = pytest.mark.parametrize("kind", KINDS)
every_distance = pytest.mark.parametrize("angular", [False, True], ids=["euclidean", "angular"])


def neurons(n, d, seed=0):
    """n neurons of different lengths in float64, none near another or another's antipode (beyond d = 1)."""
    generator = torch.Generator().manual_seed(1000 * n + 10 * d + seed)
    signs = torch.randint(2, (n, 1), generator=generator) * 2.0 - 1
    lengths = torch.rand(n, 1, generator=generator, dtype=F64) * 3 + 0.3
    if d == 1:
        return lengths * torch.tensor([[1.0], [-1.0]], dtype=F64).repeat(n, 1)[:n]
    if d == 2:
        theta = (torch.arange(n) + 0.4 * torch.rand(n, generator=generator, dtype=F64)) * math.pi / n
        return lengths * signs * torch.stack([theta.cos(), theta.sin()], 1)
    while True:
        rows = torch.randn(n, d, generator=generator, dtype=F64)
        unit = rows / rows.norm(dim=1, keepdim=True)
        if n == 1 or (unit @ unit.T - torch.eye(n)).abs().max() < 0.98:
            return lengths * rows


def options_of(kind, n):
    options = dict(KINDS[kind])
    if "beta" in options:
        options["beta"] = torch.linspace(0.7, 1.9, n, dtype=F64)
    return options


def close(actual, expected, rtol=1e-9):
    torch.testing.assert_close(actual, expected, rtol=rtol, atol=rtol * max(1e-30, expected.abs().max().item()))


def grad_of(f, weight):
    weight = weight.detach().clone().requires_grad_()
    return torch.autograd.grad(f(weight), weight)[0]


SIZES = [(1, 2), (2, 1), (3, 2), (17, 5)]


@half_or_full
@every_kind
@pytest.mark.parametrize(("n", "d"), SIZES)
def test_equals_the_double_loop(n, d, kind, half_space):
    if d == 1 and n == 2 and half_space:
        pytest.skip("they coincide: see test_close_neurons.py")
    weight, options = neurons(n, d), options_of(kind, n)
    distances = reference.neuron_distances(weight, half_space=half_space, **options)
    m = 2 * n if half_space else n
    for s in POWERS:
        energies = reference.neuron_energies(distances, s, half_space)
        total = energies.sum()
        for reduction, expected in (("none", energies), ("sum", total), ("mean", total / max(m * (m - 1), 1))):
            value = hs.hyperspherical_energy(weight, s, half_space=half_space, reduction=reduction, **options)
            assert value.shape == expected.shape
            close(value, expected)


@half_or_full
@every_kind
@pytest.mark.parametrize(("n", "d"), [(2, 2), (12, 5)])
def test_gradient_equals_that_of_the_double_loop(n, d, kind, half_space):
    weight, options = neurons(n, d).requires_grad_(), options_of(kind, n)
    distances = reference.neuron_distances(weight, half_space=half_space, **options)
    upstream = torch.linspace(-1, 2, n, dtype=F64)
    for s in POWERS:
        expected = reference.neuron_energies(distances, s, half_space)
        for reduction, scalar in (("sum", expected.sum()), ("none", upstream @ expected)):
            (wanted,) = torch.autograd.grad(scalar, weight, retain_graph=True)
            value = hs.hyperspherical_energy(weight, s, half_space=half_space, reduction=reduction, **options)
            value = upstream @ value if reduction == "none" else value
            close(torch.autograd.grad(value, weight)[0], wanted, 1e-8)


@half_or_full
@every_kind
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_derivatives(reduction, kind, half_space):
    for n, d, s in ((4, 3, 0.0), (3, 5, 1.0), (4, 3, 2.0), (3, 2, 7.3)):
        weight = neurons(n, d).requires_grad_()
        options = options_of(kind, n)

        def f(weight, s=s, options=options):
            return hs.hyperspherical_energy(weight, s, half_space=half_space, reduction=reduction, **options)

        assert gradcheck(f, (weight,))
        assert gradgradcheck(f, (weight,), atol=1e-4)


@every_kind
def test_half_space_is_the_full_energy_of_2n_neurons(kind):
    weight, options = neurons(7, 4), options_of(kind, 7)
    twice = {k: torch.cat([v, v]) if k == "beta" else v for k, v in options.items()}
    for s, reduction in itertools.product([0.0, 1.0, 3.0], ["sum", "mean"]):
        value = hs.hyperspherical_energy(weight, s, half_space=True, reduction=reduction, **options)
        full = hs.hyperspherical_energy(torch.cat([weight, -weight]), s, reduction=reduction, **twice)
        close(value, full, 1e-7 if kind == "angular" else 1e-9)  # the angle to an antipode, from its cosine


def test_defaults_kernels_and_beta_of_one():
    weight = neurons(6, 12).reshape(6, 3, 2, 2)
    value = hs.hyperspherical_energy(weight)
    close(value, reference.energy(weight, 2.0))
    close(hs.hyperspherical_energy(weight, beta=torch.ones(6, dtype=F64)), value)
    grad = grad_of(hs.hyperspherical_energy, weight)
    assert grad.shape == weight.shape
    close(grad.flatten(1), grad_of(hs.hyperspherical_energy, weight.flatten(1)))


@half_or_full
def test_beta_of_very_different_sizes(half_space):
    """App. D weighs one neuron of ten by up to 10: that must not change how the others repel each other."""
    weight = neurons(6, 3)
    unit = weight / weight.norm(dim=1, keepdim=True)
    weight[1] = unit[0] + 0.1 * unit[2]
    weight.requires_grad_()
    for large in (2.0, 4.0, 10.0, 100.0):
        beta = torch.tensor([1.0, 1, 1, 1, 1, large], dtype=F64)
        value = hs.hyperspherical_energy(weight, half_space=half_space, beta=beta)
        expected = reference.energy(weight, 2.0, half_space=half_space, beta=beta)
        close(value, expected)
        close(torch.autograd.grad(value, weight)[0], torch.autograd.grad(expected, weight)[0], 1e-7)


def vectorized(weight, s, half_space, angular, beta):
    unit = weight / weight.norm(dim=1, keepdim=True)
    c, n = unit @ unit.T, len(unit)
    b = torch.ones(n, dtype=F64) if beta is None else beta
    total = 0
    for sign in (1, -1) if half_space else (1,):
        squares = b[:, None] ** 2 + b**2 - 2 * sign * c * b[:, None] * b
        z = torch.arccos((sign * c).clamp(-1, 1)) if angular else squares.clamp(min=1e-300).sqrt()
        z = torch.where(torch.eye(n, dtype=torch.bool), (math.pi if angular else 2 * b) if sign < 0 else math.inf, z)
        f = -z.log() if s == 0 else z**-s
        total = total + torch.where(z.isinf(), 0, f).sum(1) * (2 if half_space else 1)
    return total


@half_or_full
@every_kind
def test_many_neurons(kind, half_space):
    weight, options = torch.randn(1500, 8, dtype=F64), options_of(kind, 1500)
    for s in (0.0, 1.0):
        expected = vectorized(weight, s, half_space, "angular" in options, options.get("beta"))
        close(hs.hyperspherical_energy(weight, s, half_space=half_space, reduction="none", **options), expected, 1e-8)
        value = hs.hyperspherical_energy(weight, s, half_space=half_space, reduction="sum", **options)
        close(value, expected.sum(), 1e-8)
    small = torch.randn(1500, 40, dtype=F64)  # in 40 dimensions no pair is near
    grad = grad_of(lambda w: hs.hyperspherical_energy(w, half_space=half_space, reduction="sum", **options), small)
    wanted = grad_of(lambda w: vectorized(w, 2.0, half_space, False, options.get("beta")).sum(), small)
    if kind != "angular":
        close(grad, wanted, 1e-7)
    by_neuron = grad_of(
        lambda w: hs.hyperspherical_energy(w, half_space=half_space, reduction="none", **options).sum(), small
    )
    close(by_neuron, grad, 1e-7)


@every_distance
def test_one_neuron(angular):
    weight = torch.tensor([[3.0, 4.0]], dtype=F64)
    antipode = math.pi if angular else 2.0
    for s in POWERS:
        f = antipode**-s if s else -math.log(antipode)
        for reduction, pairs in (("mean", 1), ("sum", 2), ("none", 2)):
            full = hs.hyperspherical_energy(weight, s, angular=angular, reduction=reduction)
            half = hs.hyperspherical_energy(weight, s, angular=angular, half_space=True, reduction=reduction)
            assert full.shape == half.shape == ((1,) if reduction == "none" else ())
            assert full.item() == 0
            assert half.item() == pytest.approx(pairs * f, rel=1e-12)
            for half_space in (False, True):
                grad = grad_of(
                    lambda w, s=s, h=half_space, r=reduction: hs.hyperspherical_energy(
                        w, s, half_space=h, angular=angular, reduction=r
                    ).sum(),
                    weight,
                )
                assert grad.abs().max() < 1e-12


@half_or_full
@every_distance
def test_dtypes(angular, half_space, device):
    weight = neurons(9, 5).float().to(device)
    options = {"half_space": half_space, "angular": angular}
    expected = hs.hyperspherical_energy(weight.double(), **options)
    value = hs.hyperspherical_energy(weight, **options)
    assert value.dtype is torch.float32
    torch.testing.assert_close(value, expected.float(), rtol=1e-5, atol=0)
    for dtype in (torch.float16, torch.bfloat16):
        rounded = weight.to(dtype).requires_grad_()
        value = hs.hyperspherical_energy(rounded, **options)
        assert value.dtype is torch.float32
        torch.testing.assert_close(value, hs.hyperspherical_energy(rounded.float(), **options), rtol=1e-6, atol=0)
        value.backward()
        assert rounded.grad.dtype is dtype
        wanted = grad_of(lambda w: hs.hyperspherical_energy(w, **options), rounded.float())
        torch.testing.assert_close(rounded.grad.float(), wanted, rtol=0.02, atol=1e-3 * wanted.abs().max().item())
        with torch.autocast(device.type, dtype):
            cast = hs.hyperspherical_energy(weight, **options)
            per_class = hs.class_energy(weight, torch.tensor([0, 3], device=device), angular=angular)
        torch.testing.assert_close(cast, hs.hyperspherical_energy(weight, **options), rtol=1e-6, atol=0)
        exact = hs.class_energy(weight.double(), torch.tensor([0, 3], device=device), angular=angular)
        torch.testing.assert_close(per_class, exact.float(), rtol=1e-5, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@half_or_full
@every_distance
def test_a_large_power_is_capped(angular, half_space, dtype):
    weight = neurons(5, 3).to(dtype)
    weight[1] = weight[0] + 0.1 * weight[2] / weight[2].norm()
    for s, reduction in itertools.product([400.0, 1e4], ["sum", "mean", "none"]):
        weight.requires_grad_()
        value = hs.hyperspherical_energy(weight, s, half_space=half_space, angular=angular, reduction=reduction)
        (grad,) = torch.autograd.grad(value.sum().clamp(max=1e30) if reduction != "none" else value[0], weight)
        assert value.isfinite().all()
        assert grad.isfinite().all()
        assert value.max() > 1e37 or reduction == "mean"
    (grad,) = torch.autograd.grad(hs.hyperspherical_energy(weight, 400.0), weight)
    assert grad.isfinite().all()
    assert hs.hyperspherical_energy(torch.eye(3, dtype=dtype), 400.0) < 1e-20
    close_pair = torch.tensor([[1.0, 0.0], [1.0, 0.1]], dtype=dtype)
    assert hs.hyperspherical_energy(close_pair, 1e4).item() == torch.finfo(dtype).max


# class_energy


@every_distance
@pytest.mark.parametrize(("n", "d"), [(2, 1), (9, 5)])
def test_class_energy_equals_the_double_loop(n, d, angular, device):
    weight = neurons(n, d).requires_grad_()
    for size in (1, 2, 12):
        labels = torch.randint(n, (size,))
        for s in POWERS:
            value = hs.class_energy(weight.to(device), labels.to(device), s, angular=angular).cpu()
            expected = reference.class_energies(weight, labels, s, angular=angular).mean()
            assert value.shape == ()
            close(value, expected)
            if d > 1:
                (grad,) = torch.autograd.grad(value, weight)
                close(grad, torch.autograd.grad(expected, weight)[0], 1e-8)


@every_distance
def test_class_energy_derivatives(angular):
    weight, labels = neurons(5, 3).requires_grad_(), torch.tensor([4, 0, 4, 4])
    for s in (0.0, 1.0, 2.0, 7.3):
        assert gradcheck(lambda w, s=s: hs.class_energy(w, labels, s, angular=angular), (weight,))
        assert gradgradcheck(lambda w, s=s: hs.class_energy(w, labels, s, angular=angular), (weight,), atol=1e-4)


def test_class_energy_of_coincident_classes(device):
    weight = torch.randn(6, 8, device=device)
    weight[4] = 2 * weight[1]
    labels = torch.tensor([1, 1, 3], device=device)
    for s in (0.0, 2.0, 400.0):
        value = hs.class_energy(weight.requires_grad_(), labels, s)
        (grad,) = torch.autograd.grad(value, weight)
        assert value.isfinite()
        assert grad.isfinite().all()
        if s == 2:
            assert torch.cosine_similarity(grad[1], grad[4], 0) < -0.9
            assert grad[1].norm() > 10 * grad[0].norm()


# inside torch's machinery


def test_compiled():
    """tests/integrations/test_inductor.py compiles the energy to machine code."""
    torch.compiler.reset()
    labels = torch.tensor([1, 5, 5])

    def all_of(weight):
        energies = hs.hyperspherical_energy(weight, 1.0, angular=True, reduction="none")
        half = hs.hyperspherical_energy(weight, half_space=True)
        return half + energies.square().sum() + hs.class_energy(weight, labels)

    weight = neurons(9, 5).float().requires_grad_()
    compiled = torch.compile(all_of, fullgraph=True, backend="aot_eager")
    value, expected = compiled(weight), all_of(weight)
    torch.testing.assert_close(value, expected, rtol=1e-5, atol=0)
    close(torch.autograd.grad(value, weight)[0], torch.autograd.grad(expected, weight)[0], 1e-4)


@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("kind", ["full", "half", "angular"])
def test_no_matrix_of_all_pairs_is_formed(kind, reduction):
    n = 4096
    weight = torch.randn(n, 16, requires_grad=True)
    options = {"half_space": kind == "half", "angular": kind == "angular", "reduction": reduction}
    step = Contestant("energy", lambda: hs.hyperspherical_energy(weight, **options), [weight])
    assert peak_bytes(step) < n * n * 4
    labels = torch.randint(n, (8,))
    step = Contestant("class", lambda: hs.class_energy(weight, labels, angular=kind == "angular"), [weight])
    assert peak_bytes(step) < n * n  # 8·n·4 is n·n/128


# what is refused


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"s": -1.0}, ValueError, r"\bs must"),
        ({"s": math.inf}, ValueError, r"\bs must"),
        ({"s": "2"}, TypeError, r"\bs must"),
        ({"beta": torch.ones(4)}, ValueError, "beta"),
        ({"beta": torch.tensor([1.0, 1, 0, 1, 1])}, ValueError, "beta"),
        ({"beta": torch.tensor([1.0, 1, math.nan, 1, 1])}, ValueError, "beta"),
        ({"beta": torch.ones(5), "angular": True}, ValueError, "beta"),
        ({"reduction": "max"}, ValueError, "reduction"),
    ],
    ids=itertools.count(),
)
def test_bad_arguments_are_named(options, error, match):
    with pytest.raises(error, match=match):
        hs.hyperspherical_energy(torch.randn(5, 3), **options)


@pytest.mark.parametrize(
    ("weight", "error", "match"),
    [
        (torch.zeros(0, 3), ValueError, "weight"),
        (torch.ones(3), ValueError, "weight"),
        (torch.ones(3, 3, dtype=torch.int64), TypeError, "weight"),
        ([[1.0, 0.0]], TypeError, "weight"),
        (torch.tensor([[1.0, 0], [0, 1], [0, 0], [1, 1]]), ValueError, r"(?s)zero.*\b2\b|\b2\b.*zero"),
    ],
    ids=itertools.count(),
)
def test_bad_weights_are_named(weight, error, match):
    with pytest.raises(error, match=match):
        hs.hyperspherical_energy(weight)
    with pytest.raises(error, match=match):
        hs.class_energy(weight, torch.tensor([0]))


@pytest.mark.parametrize(
    ("labels", "error"),
    [
        (torch.tensor([0, 5]), ValueError),
        (torch.tensor([-1, 0]), ValueError),
        (torch.tensor([0.0, 1.0]), TypeError),
        ([0, 1], TypeError),
        (torch.tensor([[0], [1]]), ValueError),
    ],
    ids=itertools.count(),
)
def test_bad_labels_are_named(labels, error):
    with pytest.raises(error, match="labels"):
        hs.class_energy(torch.randn(5, 3), labels)
