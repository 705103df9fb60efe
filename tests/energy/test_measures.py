"""The companions of the energy against their literal formulas, and what each makes of good and bad sets of neurons."""

import math

import numpy as np
import pytest
import torch

import hypersphere as hs
from hypersphere._internal.draws import generator
from hypersphere.energy import orthonormal
from hypersphere.energy.measures import ENERGIES, PROJECTED, REGULARIZERS, WEIGHTS, compute_measure, default_weights
from hypersphere.energy.repulsion import Law
from tests import reference

F64 = torch.float64


def value(name, rows, law=None, seed=0):
    """Of one group (N, d)."""
    return compute_measure(name, rows[None], law or Law(), lambda: generator(seed, "layer", 0)).squeeze(0)


def unit(rows):
    return rows / rows.norm(dim=1, keepdim=True)


def sphere_grid(n=200):
    """Points of S² everywhere, 0.02 apart at most."""
    theta, phi = torch.meshgrid(
        torch.linspace(0, math.pi, n, dtype=F64), torch.linspace(0, 2 * math.pi, 2 * n, dtype=F64), indexing="ij"
    )
    xyz = (theta.sin() * phi.cos(), theta.sin() * phi.sin(), theta.cos())
    return torch.stack(xyz, -1).reshape(-1, 3)


@pytest.mark.parametrize("shape", [(5, 9), (9, 5)], ids=str)
def test_closed_forms(shape):
    rows = torch.randn(shape, dtype=F64)
    u, n = unit(rows), len(rows)
    pairs = [(i, j) for i in range(n) for j in range(n) if i != j]
    torch.testing.assert_close(value("orthonormal", rows), reference.orthonormal(rows))
    orthoreg = sum(torch.log(1 + torch.exp(10 * (u[i] @ u[j] - 1))) for i, j in pairs)
    torch.testing.assert_close(value("orthoreg", rows), orthoreg)
    least = min(torch.arccos(u[i] @ u[j]) for i, j in pairs)
    torch.testing.assert_close(value("separation", rows), -least)
    kernel = torch.tensor([[math.exp(-float((a - b).square().sum())) for b in u] for a in u], dtype=F64)
    determinant = -torch.logdet(kernel) / n
    torch.testing.assert_close(value("gram_determinant", rows), determinant, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(value("energy", rows), reference.energy(rows, 2.0))


@pytest.mark.parametrize("shape", [(3, 7), (7, 3), (5, 5), (1, 4), (2, 3, 4)], ids=str)
def test_orthonormal(shape):
    """From the smaller Gram matrix; kernels of any shape are flattened."""
    weight = torch.randn(shape, dtype=F64, requires_grad=True)
    torch.testing.assert_close(orthonormal(weight), reference.orthonormal(weight.flatten(1)), rtol=1e-12, atol=1e-10)
    assert torch.autograd.gradcheck(orthonormal, weight)
    assert torch.autograd.gradgradcheck(orthonormal, weight)


@pytest.mark.parametrize("shape", [(8, 64), (64, 8)])
def test_orthonormal_in_half_precision_is_exact_for_the_rounded_weights(shape, device):
    weight = (20 * torch.randn(shape)).to(device, torch.float16).requires_grad_()  # sums of 6e9: beyond float16
    expected = orthonormal(weight.detach().double())
    with torch.autocast(device.type, torch.bfloat16):
        torch.testing.assert_close(orthonormal(weight).double(), expected, rtol=1e-5, atol=1e-4)
    (orthonormal(weight) * 1e-6).backward()
    assert weight.grad.isfinite().all()


@pytest.mark.parametrize(
    ("weight", "error"), [(torch.zeros(3), ValueError), (torch.zeros(3, 3).long(), TypeError), ([[1.0]], TypeError)]
)
def test_bad_weights_are_named(weight, error):
    with pytest.raises(error, match="weight"):
        orthonormal(weight)


@pytest.mark.parametrize("shape", [(6, 8), (8, 6), (64, 64), (1, 5)], ids=str)
@pytest.mark.parametrize("size", [0.1, 1.0, 3.0])
def test_spectral_norm(shape, size):
    """Whichever end of the spectrum is farther from one, without a gap too, and the value one of the null space."""
    rows = size * torch.randn(shape, dtype=F64) / shape[1] ** 0.5
    literal = np.linalg.norm(rows.numpy() @ rows.numpy().T - np.eye(len(rows)), 2)
    torch.testing.assert_close(value("srip", rows).item(), literal, rtol=1e-12, atol=0)


def test_spectral_norm_where_its_ends_tie():
    """Eigenvalues 1.5 and 0.5 are as far from one; repeated ones have a finite gradient."""
    tied = torch.tensor([1.5, 0.5, 1.0], dtype=F64).sqrt().diag()
    torch.testing.assert_close(value("srip", tied), torch.tensor(0.5, dtype=F64))
    repeated = (2 * torch.eye(4, dtype=F64)).requires_grad_()
    (grad,) = torch.autograd.grad(value("srip", repeated), repeated)
    torch.testing.assert_close(torch.linalg.matrix_norm(grad, "nuc"), torch.tensor(4.0, dtype=F64))  # 2·‖W v‖


@pytest.mark.parametrize("shape", [(5, 9), (9, 5)], ids=str)
def test_spectral_norm_gradcheck(shape):
    rows = torch.randn(shape, dtype=F64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda r: value("srip", r), rows)


@pytest.mark.parametrize("half_space", [False, True])
def test_projections(half_space):
    """In 30 dimensions or fewer angles need no projection to be kept; beyond, random ones keep them on average."""
    law = Law(2.0, half_space)
    few = torch.randn(12, 7, dtype=F64)
    torch.testing.assert_close(value("comhe_angle", few, law), value("energy", few, law))
    many = torch.randn(80, 200, dtype=F64)
    full = value("energy", many, law)
    assert 0 < value("comhe_angle", many, law) - full < 0.1
    first, second = value("comhe_random", many, law), value("comhe_random", many, law, seed=1)
    assert first != second
    assert abs(first - hs.hyperspherical_energy(torch.randn(80, PROJECTED), half_space=half_space)) < 0.02


def test_the_learned_projection_keeps_cosines_better_than_principal_axes(monkeypatch):
    rows = torch.randn(60, 100, dtype=F64)
    law, u = Law(), unit(rows)
    seen = []
    monkeypatch.setattr("hypersphere.energy.measures.group_energy", lambda projected, law: seen.append(projected[0]))
    for steps in (0, 5):
        hs.energy.measures.comhe_angle(rows[None], law, None, steps)
    before, after = ((unit(p) @ unit(p).T - u @ u.T).square().mean() for p in seen)
    assert after < 0.98 * before


def test_points_that_are_searched_for():
    rows = torch.randn(6, 3, dtype=F64)
    u, grid = unit(rows), sphere_grid()
    distances = torch.cdist(grid, u)
    potential = distances.clamp(min=0.03).pow(-2).mean(1).min()
    torch.testing.assert_close(value("polarization", rows), -potential, rtol=1e-3, atol=0)
    radius = torch.arccos((grid @ u.T).clamp(-1, 1)).min(1).values.max()
    torch.testing.assert_close(value("covering", rows), radius, rtol=2e-2, atol=0)


@pytest.mark.parametrize("name", REGULARIZERS)
def test_a_step_down_the_gradient_lowers_it(name):
    rows = torch.randn(8, 5, dtype=F64, requires_grad=True)
    before = value(name, rows)
    (grad,) = torch.autograd.grad(before, rows)
    assert grad.norm() > 0
    assert value(name, rows - 1e-3 * grad / grad.norm()) < before


@pytest.mark.parametrize("name", REGULARIZERS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_hard_inputs_are_finite(name, dtype, device):
    """Coincident, opposite and zero neurons, in groups; a single neuron."""
    rows = torch.randn(3, 6, 4).to(device, dtype)
    rows[0, 1], rows[1, 2], rows[2, 3] = rows[0, 0], -rows[1, 0], 0
    for weight in (rows, rows[:, :1]):
        leaf = weight.clone().requires_grad_()
        result = compute_measure(name, leaf, Law(), lambda: generator(0, "layer", 0))
        assert result.shape == (3,)
        assert result.isfinite().all()
        (grad,) = torch.autograd.grad(result.sum(), leaf, allow_unused=True)
        assert grad is None or grad.isfinite().all()


@pytest.mark.parametrize("name", REGULARIZERS)
def test_groups_are_independent(name):
    rows = torch.randn(2, 6, 5, dtype=F64)
    together = compute_measure(name, rows, Law(), lambda: generator(0, "layer", 0))
    apart = torch.stack([value(name, group) for group in rows])
    torch.testing.assert_close(together, apart)


def test_only_energies_have_another_weight_in_half_space():
    different = {name for name in WEIGHTS if default_weights(name, True) != default_weights(name, False)}
    assert different == {name for name in WEIGHTS if name in ENERGIES}
