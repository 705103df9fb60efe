"""The papers' closed forms and bounds against tests/reference_geometry.py, random neurons and known designs."""

import math

import pytest
import torch

from hypersphere import geometry, hyperspherical_energy
from hypersphere.geometry.bounds import cap_constant
from hypersphere.papers import theory
from hypersphere.papers.designs import spherical_design
from tests import reference_geometry as reference


def mean(values):
    return sum(values) / len(values)


class TestGrowth:
    def test_the_three_laws(self):
        assert theory.growth_law(1, 3) == theory.Growth(2.0, False, geometry.energy_integral(1, 3))
        assert theory.growth_law(0, 5) == theory.Growth(2.0, False, geometry.energy_integral(0, 5))
        assert theory.growth_law(2, 3) == theory.Growth(2.0, True, cap_constant(3))
        assert theory.growth_law(4, 3) == theory.Growth(3.0, False, None)
        assert theory.growth_law(1, 2).constant == pytest.approx(1 / math.pi, rel=1e-14)
        assert theory.growth_law(3, 2).constant == pytest.approx(2 * 1.2020569031595942 / (2 * math.pi) ** 3, rel=1e-14)
        assert theory.growth_law(3, 2).power == 4
        assert theory.growth_law(2, 3).p(10) == pytest.approx(100 * math.log(10))
        assert theory.growth_law(4, 3).p(10) == pytest.approx(1000)
        assert theory.growth_law(1, 3).energy(10) == pytest.approx(100)
        with pytest.raises(ValueError, match="unknown"):
            theory.growth_law(4, 3).energy(10)


class TestLogEnergy:
    @pytest.mark.parametrize("s", [0.5, 2])
    def test_both_sides_of_jensens_inequality(self, s):
        weight = torch.randn(8, 4)
        lower, upper = theory.log_energy_bounds(weight, s)
        energies = reference.pair_energies(weight, s)
        assert lower == pytest.approx(mean([math.log(e) for e in energies]), rel=1e-6)
        assert upper == pytest.approx(math.log(mean(energies)), rel=1e-6)
        assert lower < upper
        # E_log = s·E_0 (3.2)
        e0 = float(hyperspherical_energy(weight.double(), 0.0, reduction="sum"))
        assert lower * 8 * 7 == pytest.approx(s * e0, rel=1e-9)

    def test_equal_distances_make_them_equal(self):
        lower, upper = theory.log_energy_bounds(spherical_design(2, 6), 3)
        assert lower == pytest.approx(upper, abs=1e-12)

    def test_bad_arguments(self):
        with pytest.raises(ValueError, match="at least 2 rows"):
            theory.log_energy_bounds(torch.randn(1, 4))
        with pytest.raises(ValueError, match="s must be finite and > 0"):
            theory.log_energy_bounds(torch.randn(3, 4), 0)


class TestHoles:
    @pytest.mark.parametrize("d", [1, 2, 4])
    def test_equal_the_literal_formulas(self, d):
        for p in (0, 1, 2.5):
            moment = theory.expected_hole_moment(10**7, d + 1, p)
            assert moment == pytest.approx(reference.hole_moment(10**7, d, p), rel=1e-6)

    def test_the_circle_is_exact(self):
        """n gaps whose mean is known: a random gap is 2π·Beta(1, n−1), and ρ ~ α, half of it."""
        n = 50
        assert theory.expected_hole_moment(n, 2, 1) == pytest.approx(n * math.pi / n, rel=1e-12)
        assert theory.expected_hole_moment(n, 2, 2) == pytest.approx(n * math.pi**2 * 2 / (n * (n + 1)), rel=1e-12)

    def test_moments_are_sums_of_powers(self):
        rows = geometry.random_points(12, 3)
        radii = geometry.hole_radii(rows)
        for p in (0, 1, 2.5):
            assert float(theory.hole_moment(rows, p)) == pytest.approx(float(radii.pow(p).sum()))
        assert float(theory.hole_moment(rows, 800)) ** (1 / 800) == pytest.approx(float(radii[0]), rel=1e-2)
        for moment in (lambda: theory.hole_moment(rows, -1), lambda: theory.expected_hole_moment(5, 3, -1)):
            with pytest.raises(ValueError, match=r"p must be finite and >= 0, got -1\.0"):
                moment()


class TestDesigns:
    @pytest.mark.parametrize(
        ("t", "dim", "n"),
        [
            *[(6, 2, 7), (1, 3, 2), (2, 3, 4), (3, 3, 6), (5, 3, 12), (2, 6, 7), (3, 6, 12)],
            *[(5, 4, 24), (11, 4, 120), (7, 3, None), (13, 3, None), (7, 4, None), (5, 6, None)],
        ],
    )
    def test_spherical_designs(self, t, dim, n):
        rows = spherical_design(t, dim)
        assert rows.shape == (n or len(rows), dim)
        assert len(rows) < 1.5 * math.comb(t + dim - 1, t)
        torch.testing.assert_close(rows.norm(dim=1), torch.ones(len(rows), dtype=torch.float64))
        assert reference.largest_moment_error(rows, t) < 1e-13
        assert geometry.separation(rows) > 0.1
        assert torch.equal(rows, spherical_design(t, dim))

    @pytest.mark.parametrize(
        ("call", "text"),
        [
            (lambda: spherical_design(0), "t must be >= 1, got 0"),
            (lambda: spherical_design(2, 1), "dim must be >= 2, got 1"),
            (lambda: spherical_design(30), "t=30 is too large for dim=3: it needs 496 moments"),
        ],
        ids=range(3),
    )
    def test_bad_arguments(self, call, text):
        with pytest.raises(ValueError, match=text):
            call()


class TestDiversity:
    def test_kernel(self):
        rows = torch.randn(5, 3, dtype=torch.float64)
        expected = torch.tensor([[reference.kernel(u, v) for v in rows] for u in rows], dtype=torch.float64)
        torch.testing.assert_close(theory.arc_cosine_kernel(rows), expected, rtol=0, atol=1e-8)
        assert (theory.arc_cosine_kernel(rows).diagonal() == 0.5).all()

    @pytest.mark.parametrize("dim", [2, 3, 11])
    def test_discrepancy(self, dim, monkeypatch):
        rows = torch.randn(9, dim, dtype=torch.float64)
        expected = reference.kernel_discrepancy(rows)
        assert theory.kernel_discrepancy(rows) == pytest.approx(expected, abs=1e-8)
        monkeypatch.setattr(geometry.points, "_BLOCK", 20)
        assert theory.kernel_discrepancy(rows) == pytest.approx(expected, abs=1e-8)
        assert theory.kernel_discrepancy(rows) > 0

    @pytest.mark.parametrize(("m", "delta"), [(1, 0.5), (100, 0.1), (1000, 1.0)])
    def test_bound(self, m, delta):
        rows = torch.randn(6, 5, dtype=torch.float64)
        assert theory.diversity_bound(rows, m, delta) == pytest.approx(
            reference.diversity_bound(rows, m, delta), rel=1e-6
        )

    @pytest.mark.parametrize(("n", "d", "m"), [(6, 4, 5), (40, 8, 30), (1, 3, 2)])
    @pytest.mark.parametrize("signs", [False, True])
    def test_smallest_singular_value(self, n, d, m, signs):
        weight, x = torch.randn(n, d, dtype=torch.float64), torch.randn(m, d, dtype=torch.float64)
        v = torch.randn(n).sign().double() * 1.5 if signs else None
        matrix = reference.gradient_matrix(weight, x, torch.ones(n).double() if v is None else v)
        expected = float(torch.linalg.svdvals(matrix)[m - 1]) if m <= d * n else 0.0
        assert theory.smallest_singular_value(weight, x, v) == pytest.approx(expected, abs=1e-6)

    @pytest.mark.parametrize("seed", range(2))
    def test_training_error_is_bounded(self, seed):
        """Eq. 45: ‖r‖ ≤ ‖Dr‖/s_m(D), with ‖Dr‖ the gradient's norm by autograd."""
        torch.manual_seed(seed)
        n, d, m = 30, 6, 12
        weight, v = torch.randn(n, d).double().requires_grad_(), torch.randn(n).sign().double()
        x, y = geometry.random_points(m, d, seed), torch.randn(m).double()
        error, bound = theory.training_error_bound(weight, x, y, v)
        reference.loss(weight, x, y, v).backward()
        r = (torch.relu(x @ weight.T) @ v - y) / m
        assert error == pytest.approx(r.norm().item(), rel=1e-12)
        matrix = reference.gradient_matrix(weight.detach(), x, v)
        torch.testing.assert_close((matrix @ r.detach()).view(n, d), weight.grad)
        assert bound == pytest.approx(float(weight.grad.norm() / torch.linalg.svdvals(matrix)[-1]), rel=1e-6)
        assert error <= bound < math.inf

    def test_more_samples_than_weights_have_no_bound(self):
        for m in (5, 20, 40):
            error, bound = theory.training_error_bound(torch.randn(2, 2), torch.randn(m, 2), torch.randn(m))
            assert error < bound == math.inf
            x = torch.randn(m, 50)
            x[-1] = x[0]  # and the same sample twice has none either
            assert theory.smallest_singular_value(torch.randn(64, 50), x) == 0

    @pytest.mark.parametrize(
        ("call", "text"),
        [
            (
                lambda: theory.smallest_singular_value(torch.eye(3), torch.ones(2, 4)),
                r"x must be \(m, 3\).*got \(2, 4\)",
            ),
            (lambda: theory.smallest_singular_value(torch.ones(3), torch.ones(2, 3)), r"weight must be \(N, ...\)"),
            (lambda: theory.smallest_singular_value(torch.eye(3), torch.eye(3), torch.ones(2)), r"v must be \(3,\)"),
            (lambda: theory.training_error_bound(torch.eye(3), torch.eye(3), torch.ones(2)), r"y must be \(3,\)"),
            (lambda: theory.diversity_bound(torch.eye(3), 0, 0.1), "m must be >= 1"),
            (lambda: theory.diversity_bound(torch.eye(3), 9, 0.0), "delta must be finite and > 0 and <= 1"),
            (lambda: theory.kernel_discrepancy(torch.zeros(2, 3)), "zero rows, got one at 0"),
        ],
        ids=range(7),
    )
    def test_bad_arguments(self, call, text):
        with pytest.raises(ValueError, match=text):
            call()
