"""Losses of evenness against their literal formulas, at hard points, and over processes."""

import math

import pytest
import scipy.special
import torch
from torch.nn.functional import normalize

import hypersphere as hs
from hypersphere.losses.slices import _directions, _knots, _uniform
from tests import reference
from tests.largest import Largest
from tests.losses.gloo import run

F64 = torch.float64
F = hs.functional
SELF = {  # losses of the batch alone
    "koleo": F.koleo,
    "koleo of 3": lambda x: F.koleo(x, topk=3),
    "uniformity": F.uniformity,
    "gor": lambda x: F.gor(x, second_moment_threshold=0.0),
    "sigreg": lambda x: F.sigreg(x, 20),
    "sphere_uniformity": lambda x: F.sphere_uniformity(x, 20),
    "energy": hs.EmbeddingRegularizer("energy"),
}


def batch(b=23, d=5, dtype=F64):
    return (2 * torch.randn(b, d, dtype=dtype)).requires_grad_()


def check(loss, literal, *inputs):
    torch.testing.assert_close(loss, literal, rtol=1e-12, atol=1e-13)
    gradients = (torch.autograd.grad(value, inputs) for value in (loss, literal))
    for got, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("topk", [1, 4])
def test_koleo_is_its_formula(topk):
    x = batch(600)  # two blocks of rows
    check(F.koleo(x, topk), reference.koleo(x, topk), x)


@pytest.mark.parametrize("t", [0.5, 2.0, 20.0])
def test_uniformity_is_its_formula(t):
    x = batch(600)
    check(F.uniformity(x, t), reference.uniformity(x, t), x)


@pytest.mark.parametrize("alpha", [1, 1.5, 2, 3])
def test_alignment_is_its_formula(alpha):
    x, y = batch(), batch()
    check(F.alignment(x, y, alpha), (normalize(x) - normalize(y)).norm(dim=1).pow(alpha).mean(), x, y)


@pytest.mark.parametrize("b", [4, 23])  # the smaller Gram matrix is of rows, or of dimensions
@pytest.mark.parametrize("pairs", [False, True])
def test_gor_is_its_formula(b, pairs):
    x, y = batch(b, 6), batch(b, 6)
    more = (y,) if pairs else ()
    options = {"mean_weight": 0.5, "second_moment_weight": 2.0, "second_moment_threshold": 0.01}
    check(F.gor(x, *more, **options), reference.gor(x, *(more or (x,)), 0.5, 2.0, 0.01), x, *more)


def test_gor_of_uniform_points_is_small_and_has_the_limit_of_the_dimension():
    assert F.gor(torch.randn(2000, 16)) < 1e-3
    torch.testing.assert_close(F.gor(torch.ones(3, 4)), torch.tensor(1 + 1 - 1 / 4))


def test_hug_is_its_formula():
    x, weight, labels = batch(6), batch(4), torch.tensor([0, 0, 1, 3, 3, 3])
    distances = (normalize(x) - normalize(weight)[labels]).norm(dim=1)
    means = [distances[labels == c].mean() for c in (0, 1, 3)]
    literal = 0.5 * hs.hyperspherical_energy(weight) + 2 * sum(means) / 3
    check(F.hug(x, labels, weight, alpha=0.5, beta=2.0), literal, x, weight)


def test_sigreg_and_its_form_on_the_sphere_are_their_formulas():
    x, directions = batch(40, 6), normalize(torch.randn(300, 6, dtype=F64)).mT
    check(F.sigreg(x, directions), reference.sigreg(x, directions), x)
    on_sphere = reference.sphere_uniformity(x, directions)
    check(F.sphere_uniformity(x, directions), on_sphere, x)


def test_float32_is_near_float64():
    x = batch(500, 64, torch.float32)
    for name, loss in SELF.items():
        values = [loss(v) for v in (x, x.double())]
        torch.testing.assert_close(values[0].double(), values[1], rtol=2e-6, atol=1e-6, msg=name)


@pytest.mark.parametrize("d", [1, 2, 3, 7, 384])
def test_characteristic_function_of_the_sphere(d):
    """cos for two points; J_0, sin(x)/x in two and three dimensions; the normal distribution's in many."""
    t = _knots()[0]
    u = t * math.sqrt(d)
    known = {1: t.cos(), 2: torch.from_numpy(scipy.special.j0(u.numpy())), 3: torch.sinc(u / math.pi)}
    if d in known:
        torch.testing.assert_close(_uniform(d), known[d], rtol=0, atol=1e-12)
    elif d == 384:
        torch.testing.assert_close(_uniform(d), (-t.square() / 2).exp(), rtol=0, atol=2e-3)
    else:
        points = normalize(torch.randn(200_000, d, dtype=F64))[:, 0]
        torch.testing.assert_close(_uniform(d), torch.stack([(points * x).cos().mean() for x in u]), rtol=0, atol=6e-3)


def test_expectation_of_uniform_points():
    expected = (_knots()[1] * (1 - _uniform(8).square())).sum()
    values = torch.stack([F.sphere_uniformity(torch.randn(64, 8, dtype=F64), 64, step=i) for i in range(200)])
    assert abs(values.mean() - expected) < 4 * values.std() / 200**0.5


@pytest.mark.slow
@pytest.mark.parametrize("name", SELF)
def test_first_and_second_derivatives(name):
    x = batch(7, 3)
    assert torch.autograd.gradcheck(SELF[name], x)
    assert torch.autograd.gradgradcheck(SELF[name], x)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, F64])
@pytest.mark.parametrize("name", SELF)
@pytest.mark.filterwarnings("ignore:.*embeddings are zero")
def test_hard_points_are_finite(name, dtype):
    """Twins, antipodes, zero, tiny and huge rows."""
    huge = torch.finfo(dtype).max / 4
    x = torch.randn(12, 4).to(dtype)
    x[1], x[2], x[3], x[4], x[5], x[6] = x[0], -x[0], 0, x[7] * 1e-6, x[7], x[8] / x[8].abs().max() * 1e3
    x[9] = x[9] / x[9].abs().max() * huge
    x.requires_grad_()
    value = SELF[name](x)
    value.backward()
    assert value.isfinite()
    assert x.grad.isfinite().all()


def test_koleo_parts_twins():
    """The literal formula gives coincident embeddings no gradient."""
    x = torch.randn(2, 8).repeat(3, 1).requires_grad_()
    for _ in range(30):
        (gradient,) = torch.autograd.grad(F.koleo(x), x)
        x = (x - 1e-4 * gradient).detach().requires_grad_()
    distances = torch.pdist(normalize(x.detach()))
    assert distances.min() > 1e-3


def test_uniformity_at_known_points():
    circle = torch.tensor([[1.0, 0], [0, 1], [-1, 0], [0, -1]], dtype=F64)
    expected = math.log((2 * math.exp(-4) + math.exp(-8)) / 3)
    torch.testing.assert_close(F.uniformity(circle), torch.tensor(expected, dtype=F64))
    torch.testing.assert_close(F.uniformity(circle[:1].expand(5, 2)), torch.zeros((), dtype=F64))


@pytest.mark.parametrize("name", ["koleo", "uniformity", "sphere_uniformity"])
def test_no_tensor_of_all_pairs(name):
    x = torch.randn(1500, 4, requires_grad=True)
    with Largest() as memory:
        SELF[name](x).backward()
    assert memory.most <= 512 * 1500 < 1500**2


def test_directions_depend_on_seed_and_step_alone():
    x = torch.zeros(1, 6)
    first = _directions(x, 10, 1, 2)
    torch.randn(5)
    assert torch.equal(_directions(x, 10, 1, 2), first)
    assert not torch.equal(_directions(x, 10, 1, 3), first)
    assert not torch.equal(_directions(x, 10, 2, 2), first)
    torch.testing.assert_close(first.norm(dim=0), torch.ones(10))


def test_bad_input():
    x = torch.randn(4, 3)
    for call, message in (
        (lambda: F.koleo(x[0]), r"embeddings must be \(B, d\) with at least 2 rows, got \(3,\)"),
        (lambda: F.uniformity(x[:1]), r"embeddings must be \(B, d\) with at least 2 rows, got \(1, 3\)"),
        (lambda: F.koleo(x, topk=4), r"topk must be below the number of embeddings \(4\), got 4"),
        (lambda: F.uniformity(x, t=21), "t must be finite and > 0 and <= 20, got 21"),
        (lambda: F.alignment(x, x[:2]), r"others must have the shape of embeddings \(4, 3\), got \(2, 3\)"),
        (lambda: F.hug(x, torch.tensor([0, 1, 2, 5]), x), r"labels must be in \[0, 3\], got 0 to 5"),
        (lambda: F.hug(x, torch.zeros(4, dtype=torch.int64), x[:, :2]), r"weight must be \(C, 3\), got \(4, 2\)"),
        (lambda: F.sigreg(x, torch.ones(2, 5)), r"slices must be a number or directions \(3, S\), got \(2, 5\)"),
        (lambda: hs.EmbeddingRegularizer("koleos"), "koleo"),
        (
            lambda: hs.EmbeddingRegularizer("koleo", half_space=True),
            "koleo option must be one of topk; got",
        ),
        (lambda: hs.EmbeddingRegularizer("koleo", -1.0), "weight must be finite and >= 0, got -1"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
    with pytest.raises(TypeError, match="embeddings must have a floating point dtype"):
        F.uniformity(torch.ones(3, 3, dtype=torch.int64))


@pytest.mark.parametrize("name", ["energy", "uniformity", "gor", "koleo"])
def test_zero_embeddings_warn_once(name, recwarn):
    even, x = hs.EmbeddingRegularizer(name), torch.cat([torch.zeros(2, 3), torch.eye(3)])
    even(x[2:])
    assert not recwarn
    with pytest.warns(UserWarning, match=rf"2 of 5 embeddings are zero: .* so '{name}' neither"):
        even(x)
    even(torch.zeros(4, 3))  # has said it
    assert not recwarn


def test_regularizer_names_the_inputs_of_its_measure():
    x, labels = torch.randn(4, 3), torch.arange(4)
    for name, more, message in (
        ("uniformity", (labels,), "measure 'uniformity' takes embeddings, got 2 arguments"),
        ("alignment", (), "measure 'alignment' takes embeddings, others, got 1 argument"),
        ("gor", (x, x), "measure 'gor' takes embeddings, others, got 3 arguments"),
        ("hug", (labels,), "measure 'hug' takes embeddings, labels, weight, got 2 arguments"),
    ):
        with pytest.raises(TypeError, match=message):
            hs.EmbeddingRegularizer(name)(x, *more)
    with pytest.raises(TypeError, match=r"got the module Linear \(EnergyRegularizer takes a model"):
        hs.EmbeddingRegularizer(torch.nn.Linear(3, 3))
    assert hs.EmbeddingRegularizer("gor")(x, x).isfinite()


def test_regularizer_calls_the_losses_and_draws_anew():
    x, labels, weight = batch(6), torch.tensor([0, 0, 1, 2, 2, 2]), batch(3)
    calls = {
        "koleo": ((), {"topk": 2}, F.koleo(x, 2)),
        "uniformity": ((), {"t": 3.0}, F.uniformity(x, 3.0)),
        "alignment": ((x + 1,), {}, F.alignment(x, x + 1)),
        "gor": ((), {}, F.gor(x)),
        "hug": ((labels, weight), {"beta": 2.0}, F.hug(x, labels, weight, beta=2.0)),
        "energy": ((), {"half_space": True}, hs.hyperspherical_energy(x, half_space=True)),
    }
    for name, (more, options, expected) in calls.items():
        assert torch.equal(hs.EmbeddingRegularizer(name, 0.5, **options)(x, *more), 0.5 * expected)
    drawn = hs.EmbeddingRegularizer("sphere_uniformity", slices=8, seed=3)
    values = [drawn(x) for _ in range(3)]
    assert [v.item() for v in values] == [F.sphere_uniformity(x, 8, seed=3, step=i).item() for i in range(3)]
    resumed = hs.EmbeddingRegularizer("sphere_uniformity", slices=8)
    resumed.load_state_dict(drawn.state_dict())
    assert resumed(x) == drawn(x)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["koleo", "uniformity", "sphere_uniformity"])
def test_compiled(name):
    x = batch(9)
    got = torch.compile(SELF[name], backend="eager")(x)
    torch.testing.assert_close(got, SELF[name](x))


GATHERED = ("koleo", "uniformity", "gor", "sigreg", "sphere_uniformity", "energy")


def regularizer_gradients(x):
    """The gradient by x of every measure: of its third call, so that it has drawn."""
    gradients = {}
    for name in GATHERED:
        regularizer = hs.EmbeddingRegularizer(
            name, **({"slices": 16} if name in ("sigreg", "sphere_uniformity") else {})
        )
        for _ in range(3):
            leaf = x.clone().requires_grad_()
            regularizer(leaf).backward()
        gradients[name] = leaf.grad
    return gradients


def gradients_of_part(rank, size, parts):
    return regularizer_gradients(parts[rank])


@pytest.mark.slow
def test_processes_have_the_gradients_of_one(tmp_path):
    """With data parallel training, which averages: each process's gradient is a multiple of that of one process."""
    x = batch(11).detach()
    ranks = run(2, tmp_path / "ranks", gradients_of_part, x.split((4, 7)))
    for name, expected in regularizer_gradients(x).items():
        together = torch.cat([gradients[name] for gradients in ranks]) / 2
        torch.testing.assert_close(together, expected, rtol=1e-9, atol=1e-12, msg=name)
