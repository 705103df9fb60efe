"""Neurons that are near each other, or the same: exact distances, bounded gradients, a push apart, never NaN."""

import math

import pytest
import torch

import hypersphere as hs
from tests.energy.test_hyperspherical import F64, NEAR, every_distance, grad_of, half_or_full

pytestmark = pytest.mark.slow

every_power = pytest.mark.parametrize("s", [0.0, 2.0, 5.0])
every_dtype = pytest.mark.parametrize("dtype", [torch.float32, F64], ids=["float32", "float64"])


def unit(rows):
    return rows / rows.norm(dim=-1, keepdim=True)


def pair(distance, d=16, dtype=torch.float32, sign=1, seed=0):
    """Two neurons of length one, rounded to dtype, at a distance from each other (sign -1: from the antipode)."""
    a, t = torch.linalg.qr(torch.randn(d, 2, dtype=F64, generator=torch.Generator().manual_seed(seed))).Q.T
    theta = 2 * math.asin(distance / 2)
    return torch.stack([a, sign * (math.cos(theta) * a + math.sin(theta) * t)]).to(dtype)


def pairwise(rows):
    return torch.pdist(unit(rows.detach().double()))


def pair_energy(rows, s, half_space, angular):
    """The energy of two neurons, summed, from their difference and sum: arccos has no digits for close ones."""
    (a, b), pi = unit(rows.double()), math.pi
    apart, opposite = (a - b).norm().item(), (a + b).norm().item()
    if angular:
        apart, opposite = 2 * math.atan2(apart, opposite), 2 * math.atan2(opposite, apart)
    f = [-math.log(z) if s == 0 else z**-s for z in (apart, opposite, pi if angular else 2.0)]
    return 4 * sum(f) if half_space else 2 * f[0]


@every_distance
@every_power
@pytest.mark.parametrize("sign", [1, -1], ids=["same", "antipodal"])
@pytest.mark.parametrize(
    ("distance", "tolerance"),
    [(0.1, 1e-3), (0.029, 1e-3), (1e-4, 1e-3), (1e-6, 0.5)],
)
def test_the_energy_of_a_close_pair_is_exact(distance, tolerance, sign, s, angular):
    for seed in range(3):
        rows = pair(distance, sign=sign, seed=seed) * torch.tensor([[1.0], [4.0]])
        expected = pair_energy(rows, s, sign < 0, angular)
        value = hs.hyperspherical_energy(rows, s, half_space=sign < 0, angular=angular, reduction="sum")
        assert value.item() == pytest.approx(expected, rel=tolerance * max(s, 2) / 2)


@every_distance
@every_power
@pytest.mark.parametrize("sign", [1, -1], ids=["same", "antipodal"])
def test_the_gradient_of_a_close_pair_is_that_at_the_bound(sign, s, angular):
    f = (s or 1.0) * NEAR ** (-s - 1) * 2 * (2 if sign < 0 else 1)  # 2·f_s' (in half space the antipodes' pair too)
    for distance in (0.02, 1e-2, 1e-3, 1e-4, 1e-5):
        rows = pair(distance, sign=sign)
        grad = grad_of(
            lambda w: hs.hyperspherical_energy(w, s, half_space=sign < 0, angular=angular, reduction="sum"), rows
        )
        assert grad.norm(dim=1).tolist() == pytest.approx([f, f], rel=5e-2)
        apart = unit(rows[0] - sign * rows[1])
        assert -grad[0] @ apart > 0.9 * f
        assert sign * grad[1] @ apart > 0.9 * f
    beyond = grad_of(
        lambda w: hs.hyperspherical_energy(w, s, half_space=sign < 0, angular=angular, reduction="sum"),
        pair(2 * NEAR, sign=sign),
    )
    assert beyond.norm(dim=1).tolist() == pytest.approx([f / 2 ** (s + 1)] * 2, rel=5e-2)  # here it is the true one


@every_distance
@every_power
@pytest.mark.parametrize("sign", [1, -1], ids=["same", "antipodal"])
def test_coincident_neurons_are_pushed_apart(sign, s, angular):
    torch.manual_seed(3)
    for d, length in ((2, 1.0), (3, 1.0), (16, 2.5), (576, 0.1)):
        row = torch.randn(d)
        rows = torch.stack([row, sign * length * row])

        def energy(w):
            return hs.hyperspherical_energy(w, s, half_space=sign < 0, angular=angular, reduction="sum")

        value, grad = energy(rows), grad_of(energy, rows)
        assert value.isfinite()
        assert torch.equal(value, energy(rows))
        assert torch.equal(grad, grad_of(energy, rows))
        other = rows + 1e-3 * torch.randn(2, d)
        assert value > energy(other)  # no pair at a distance has more
        f = (s or 1.0) * NEAR ** (-s - 1) * 2 * (2 if sign < 0 else 1)
        per_unit = grad * rows.norm(dim=1, keepdim=True)
        assert (per_unit.norm(dim=1) < 1.05 * f).all()
        assert (per_unit.norm(dim=1) > 1e-3 * f).all()
        assert torch.cosine_similarity(per_unit[0], sign * per_unit[1], 0) < -0.99
        assert torch.cosine_similarity(grad[0], rows[0], 0).abs() < 0.05  # along the sphere
        moved = unit(rows) - 1e-3 * unit(per_unit)
        assert (unit(moved[0]) - sign * unit(moved[1])).norm() > 1.5e-3


@half_or_full
@every_distance
@pytest.mark.parametrize(("n", "d"), [(3, 3), (64, 16), (40, 2)])
def test_many_coincident_neurons_part(n, d, angular, half_space):
    weight = torch.randn(1, d).repeat(n, 1).requires_grad_()
    if half_space:
        with torch.no_grad():
            weight[::2] *= -1

    def energy():
        return hs.hyperspherical_energy(weight, half_space=half_space, angular=angular)

    start, norms = energy(), weight.detach().norm(dim=1)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for _ in range(50):
        optimizer.zero_grad()
        energy().backward()
        assert weight.grad.isfinite().all()
        optimizer.step()
    assert energy() < start / 10
    assert weight.detach().norm(dim=1).isfinite().all()
    if d > 2:
        distances = pairwise(torch.cat([weight, -weight]) if half_space else weight)
        assert distances.min() > 1e-3
        assert (weight.detach().norm(dim=1) < 20 * norms).all()


def test_far_apart_in_the_matrix(device):
    """A close pair is found whichever rows it lies in."""
    weight = torch.randn(3000, 32, device=device)
    first, second = pair(1e-4, d=32, seed=7).to(device)
    for i, j in ((3, 2900), (0, 1), (1023, 1024), (2998, 2999), (1500, 40)):
        rows = weight.clone()
        rows[i], rows[j] = first, second
        expected = 2 / pairwise(rows[[i, j]]).item() ** 2
        value = hs.hyperspherical_energy(rows, reduction="sum")
        others = hs.hyperspherical_energy(weight, reduction="sum").item()
        assert value.item() == pytest.approx(expected + others, rel=2e-3)
        energies = hs.hyperspherical_energy(rows, reduction="none")
        assert energies[[i, j]].tolist() == pytest.approx([expected / 2] * 2, rel=2e-3)
        grad = grad_of(lambda w: hs.hyperspherical_energy(w, reduction="sum"), rows)
        assert torch.cosine_similarity(grad[i], second - first, 0) > 0.9
        assert torch.cosine_similarity(grad[j], first - second, 0) > 0.9
        rows[j] = rows[i]
        grad = grad_of(lambda w: hs.hyperspherical_energy(w, reduction="sum"), rows)
        assert torch.cosine_similarity(grad[i], grad[j], 0) < -0.9


@half_or_full
def test_one_dimension_and_beta_where_neurons_meet(half_space):
    line = torch.tensor([[1.0], [2.0], [-1.0], [-3.0]], requires_grad=True)
    twins = torch.randn(1, 5).repeat(3, 1).requires_grad_()
    cases = [(line, {}), (line, {"angular": True}), (line, {"beta": torch.ones(4)})]
    cases += [(twins, {"beta": torch.ones(3)}), (twins, {"beta": torch.tensor([1.0, 2.0, 2.0])})]
    for weight, options in cases:
        for s in (0.0, 2.0, 400.0):
            value = hs.hyperspherical_energy(weight, s, half_space=half_space, **options)
            assert value.isfinite()
            assert torch.autograd.grad(value, weight)[0].isfinite().all()
    apart = torch.tensor([1.0, 2.0], dtype=F64)  # the same direction, different lengths: no longer coincident
    same = torch.ones(2, 3, dtype=F64)
    value = hs.hyperspherical_energy(same, 1.0, beta=apart)
    assert value.item() == pytest.approx(1.0)


@every_dtype
def test_second_derivatives_where_neurons_meet_are_finite(dtype):
    rows = torch.randn(4, 6, dtype=dtype).repeat(2, 1).requires_grad_()
    for s in (0.0, 2.0, 400.0):
        for value in (hs.hyperspherical_energy(rows, s), hs.class_energy(rows, torch.tensor([1, 2]), s)):
            (grad,) = torch.autograd.grad(value, rows, create_graph=True)
            (second,) = torch.autograd.grad(grad.sum(), rows)
            assert second.isfinite().all()


@pytest.mark.parametrize("distance", [0.2, 0.05])
def test_second_derivatives_of_close_pairs(distance):
    """Their distance comes from the difference, their derivatives from the product: both must fit together."""
    rows = torch.randn(5, 6, dtype=F64)
    across = torch.randn(6, dtype=F64)
    across -= rows[0] * (across @ rows[0]) / rows[0].square().sum()
    rows[1] = rows[0] + distance * rows[0].norm() * across / across.norm()
    rows.requires_grad_()
    laws = ({"s": 2.0, "reduction": "none"}, {"s": 0.0, "half_space": True}, {"s": 1.0, "angular": True}, {"s": 8.0})
    for law in laws:

        def energy(w, law=law):
            return hs.hyperspherical_energy(w, **law) * distance ** (law["s"] + 2)

        assert torch.autograd.gradgradcheck(energy, rows, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize(("n", "d", "cluster"), [(512, 512, 1e-4), (1024, 16, 1e-3)])
def test_large_clusters_in_float32(n, d, cluster):
    """More close pairs than are held at once: each still has its own distance."""
    rows = torch.randn(n, d)
    rows[:100] = rows[0] + cluster * torch.randn(100, d)
    exact = hs.hyperspherical_energy(rows.double())
    torch.testing.assert_close(hs.hyperspherical_energy(rows).double(), exact, rtol=2e-2, atol=0)
    labels = torch.arange(0, n, 7)
    exact = hs.class_energy(rows.double(), labels)
    torch.testing.assert_close(hs.class_energy(rows, labels).double(), exact, rtol=2e-2, atol=0)


def test_float16_gradients_are_finite():
    for s in (2.0, 4.0, 400.0):
        for reduction in ("sum", "mean"):
            rows = torch.randn(6, 5)
            rows[1], rows[3] = rows[0], rows[2] + 1e-3
            rows = rows.half().requires_grad_()
            hs.hyperspherical_energy(rows, s, reduction=reduction).backward()
            assert rows.grad.isfinite().all()
            assert rows.grad.any()


def test_a_graph_that_is_kept_gives_the_same_gradient_again():
    rows = torch.randn(9, 5, requires_grad=True)
    value = hs.class_energy(rows, torch.tensor([1, 4]))
    first = torch.autograd.grad(value, rows, retain_graph=True)[0].clone()
    value.backward(retain_graph=True)
    torch.nn.utils.clip_grad_norm_([rows], 0.01)
    torch.testing.assert_close(torch.autograd.grad(value, rows)[0], first)
