"""Closed forms and bounds against tests/reference_geometry.py, the papers' figures and random neurons."""

import itertools
import math

import pytest
import torch

from hypersphere import geometry, hyperspherical_energy
from tests import reference_geometry as reference

SPACES = [{}, {"half_space": True}, {"angular": True}, {"half_space": True, "angular": True}]
space = pytest.mark.parametrize("space", SPACES, ids=["full", "half", "angular", "half-angular"])


def mean(values):
    return sum(values) / len(values)


def chord(theta):
    return 2 * torch.sin(theta / 2)


class TestEnergyIntegral:
    @pytest.mark.parametrize(
        ("s", "dim"), [(0, 2), (0.25, 2), (0, 3), (0.5, 3), (1, 3), (1, 4), (2, 4), (2, 5), (3, 6), (2, 27), (9, 30)]
    )
    def test_is_the_mean_over_the_sphere(self, s, dim):
        expected = reference.mean_over_sphere(lambda theta: reference.potential(chord(theta), s), dim)
        assert geometry.energy_integral(s, dim) == pytest.approx(expected, rel=2e-4 if dim - s < 2 else 1e-5, abs=1e-5)

    def test_known_values(self):
        assert geometry.energy_integral(1, 3) == pytest.approx(1, abs=1e-14)
        assert geometry.energy_integral(0, 3) == pytest.approx(0.5 - math.log(2), abs=1e-14)
        assert geometry.energy_integral(0, 3) == pytest.approx(-0.19315, abs=5e-6)
        assert geometry.energy_integral(0, 2) == pytest.approx(0, abs=1e-14)
        assert geometry.energy_integral(0.5, 2) == pytest.approx(1.18034, abs=5e-6)
        for dim in (4, 5, 9, 27, 576, 100_000):
            assert geometry.energy_integral(2, dim) == pytest.approx((dim - 2) / (2 * (dim - 3)), rel=1e-9)

    @pytest.mark.parametrize(("s", "dim"), [(1, 2), (2, 3), (7, 3), (575, 576)])
    def test_infinite_above(self, s, dim):
        assert geometry.energy_integral(s, dim) == math.inf
        assert geometry.expected_energy(s, dim) == math.inf
        assert geometry.expected_energy(s, dim, angular=True) == math.inf
        assert geometry.expected_energy(s, dim, n=3, half_space=True) == math.inf
        assert geometry.energy_integral(dim - 1 - 1e-3, dim) < math.inf

    def test_s_to_zero_is_the_logarithm(self):
        for dim in (2, 3, 20):
            slope = (geometry.energy_integral(1e-6, dim) - 1) / 1e-6
            assert slope == pytest.approx(geometry.energy_integral(0, dim), abs=1e-5)


class TestGrowth:
    def test_the_three_laws(self):
        assert geometry.growth_law(1, 3) == geometry.Growth(2.0, False, geometry.energy_integral(1, 3))
        assert geometry.growth_law(0, 5) == geometry.Growth(2.0, False, geometry.energy_integral(0, 5))
        assert geometry.growth_law(2, 3) == geometry.Growth(2.0, True, geometry.cap_constant(3))
        assert geometry.growth_law(4, 3) == geometry.Growth(3.0, False, None)
        assert geometry.growth_law(1, 2).constant == pytest.approx(1 / math.pi, rel=1e-14)
        assert geometry.growth_law(3, 2).constant == pytest.approx(
            2 * 1.2020569031595942 / (2 * math.pi) ** 3, rel=1e-14
        )
        assert geometry.growth_law(3, 2).power == 4
        assert geometry.growth_law(2, 3).p(10) == pytest.approx(100 * math.log(10))
        assert geometry.growth_law(4, 3).p(10) == pytest.approx(1000)
        assert geometry.growth_law(1, 3).energy(10) == pytest.approx(100)
        with pytest.raises(ValueError, match="unknown"):
            geometry.growth_law(4, 3).energy(10)

    @pytest.mark.parametrize("s", [0, 0.5, 1, 2, 3])
    @pytest.mark.parametrize("n", [1, 2, 3, 8])
    def test_circle_energy_is_the_polygons(self, n, s):
        pairs = reference.pair_energies(geometry.fibonacci_points(n, dim=2), s)
        assert geometry.circle_energy(n, s) == pytest.approx(sum(pairs), abs=1e-9)

    @pytest.mark.parametrize(
        ("s", "constant", "tolerance"), [(0.5, 1.18034, 5e-3), (1, 1 / math.pi, 0.02), (3, 0.0096920, 1e-5)]
    )
    def test_the_circle_grows_so(self, s, constant, tolerance):
        """s = 1 approaches its constant as slowly as 1/log N: its second term is known, (γ − log(π/2))/π·N²."""
        law, n = geometry.growth_law(s, 2), 100_000
        energy = geometry.circle_energy(n, s) - (
            (0.5772156649 - math.log(math.pi / 2)) / math.pi * n**2 if s == 1 else 0
        )
        assert energy / law.p(n) == pytest.approx(constant, rel=tolerance)
        assert law.constant == pytest.approx(constant, rel=1e-5)

    def test_least_energies_on_the_sphere_approach_the_law(self):
        """Thomson minima, ordered sums: below N² and nearing it."""
        shares = [2 * e / geometry.growth_law(1, 3).energy(n) for n, e in [(12, 49.165253058), (24, 223.347074052)]]
        assert shares[0] < shares[1] < 1


class TestExpectedEnergy:
    @space
    @pytest.mark.parametrize(
        ("s", "dim"), [(0, 2), (0.25, 2), (0, 3), (1, 3), (1, 5), (2, 5), (3, 6), (2, 40), (12, 40)]
    )
    def test_is_the_mean_over_the_sphere(self, s, dim, space):
        n = 6
        distance = (lambda theta: theta) if "angular" in space else chord
        pair = reference.mean_over_sphere(lambda theta: reference.potential(distance(theta), s), dim)
        if "half_space" in space:  # of the 2n − 1 others of a neuron one is its antipode
            antipode = float(reference.potential(distance(torch.tensor(math.pi, dtype=torch.float64)), s))
            pair = ((2 * n - 2) * pair + antipode) / (2 * n - 1)
        value = geometry.expected_energy(s, dim, n=n, **space)
        assert value == pytest.approx(pair, rel=2e-4 if dim - s < 2 else 1e-5, abs=1e-5)

    @space
    def test_random_neurons_have_it(self, space):
        for s, dim in [(0, 3), (1, 6), (2, 27)]:
            energies = [
                float(hyperspherical_energy(geometry.random_points(64, dim, seed), s, **space)) for seed in range(20)
            ]
            error = torch.tensor(energies).std() / math.sqrt(20)
            assert abs(mean(energies) - geometry.expected_energy(s, dim, n=64, **space)) < 4 * error

    def test_angles_in_closed_form(self):
        assert geometry.expected_energy(0.5, 2, angular=True) == pytest.approx(2 / math.sqrt(math.pi), rel=1e-13)
        assert geometry.expected_energy(0.999, 2, angular=True) == pytest.approx(math.pi**-0.999 / 0.001, rel=1e-10)
        assert geometry.expected_energy(0, 2, angular=True) == pytest.approx(1 - math.log(math.pi), rel=1e-13)
        sine_integral = 1.8519370519824662  # ∫_0^π sin θ/θ dθ
        assert geometry.expected_energy(1, 3, angular=True) == pytest.approx(sine_integral / 2, rel=1e-13)

    def test_high_dimensions_are_right_angles(self):
        assert geometry.expected_energy(2, 10_000, angular=True) == pytest.approx((math.pi / 2) ** -2, rel=1e-3)
        assert geometry.expected_energy(0, 10_000, angular=True) == pytest.approx(-math.log(math.pi / 2), rel=1e-3)

    def test_one_neuron_in_half_space_has_its_antipode(self):
        assert geometry.expected_energy(2, 9, n=1, half_space=True) == pytest.approx(0.25)
        assert geometry.expected_energy(0, 9, n=1, half_space=True, angular=True) == pytest.approx(-math.log(math.pi))

    def test_half_space_asks_for_n(self):
        with pytest.raises(ValueError, match="n, the number of neurons, must be an int in half space"):
            geometry.expected_energy(2, 9, half_space=True)


class TestLowerBound:
    @space
    @pytest.mark.parametrize("s", [0, 0.5, 1, 2, 5])
    def test_random_neurons_are_above(self, s, space):
        for (n, dim), seed in itertools.product([(2, 2), (3, 2), (5, 2), (4, 3), (9, 3), (5, 9), (40, 5)], range(3)):
            bound = geometry.energy_lower_bound(n, dim, s, **space)
            assert float(hyperspherical_energy(geometry.random_points(n, dim, seed), s, **space)) > bound

    @space
    @pytest.mark.parametrize("s", [0, 1, 2])
    def test_descent_does_not_get_below(self, s, space):
        for n, dim in [(2, 2), (3, 2), (4, 3), (6, 3), (5, 4), (7, 4)]:
            rows = geometry.random_points(n, dim).requires_grad_()
            optimizer = torch.optim.LBFGS([rows], max_iter=200, line_search_fn="strong_wolfe", tolerance_change=1e-14)

            def closure(rows=rows, optimizer=optimizer):
                optimizer.zero_grad()
                energy = hyperspherical_energy(rows, s, **space)
                energy.backward()
                return energy

            optimizer.step(closure)
            energy, bound = closure().item(), geometry.energy_lower_bound(n, dim, s, **space)
            assert energy > bound - 1e-12
            # It is reached by simplices, by up to three at equal angles, by orthonormal neurons and by six diagonals.
            reached = {
                (False, False): n <= dim + 1,
                (False, True): n <= 3,
                (True, False): n <= dim or (n, dim) == (6, 3),
                (True, True): n <= dim or (n, dim) == (6, 3),
            }["half_space" in space, "angular" in space]
            if reached:
                assert energy == pytest.approx(bound, abs=1e-7)

    @pytest.mark.parametrize("s", [0, 1, 2, 7.5])
    def test_reached(self, s):
        def energy(rows, **space):
            return float(hyperspherical_energy(rows.double(), s, **space))

        for dim, n in [(2, 3), (3, 4), (9, 10)]:
            simplex = geometry.spherical_design(2, dim)
            assert geometry.energy_lower_bound(n, dim, s) == pytest.approx(energy(simplex), rel=1e-12)
            assert geometry.energy_lower_bound(n, 100, s) == pytest.approx(energy(simplex), rel=1e-12)
        icosahedron = geometry.spherical_design(5)
        lines = icosahedron[:6]
        assert torch.equal(-lines, icosahedron[6:])  # six equiangular lines: Welch's bound is reached
        for angular in (False, True):
            axes = geometry.energy_lower_bound(4, 9, s, half_space=True, angular=angular)
            assert axes == pytest.approx(energy(torch.eye(9)[:4], half_space=True, angular=angular), rel=1e-12)
            value = energy(lines, half_space=True, angular=angular)
            assert geometry.energy_lower_bound(6, 3, s, half_space=True, angular=angular) == pytest.approx(
                value, rel=1e-12
            )
        for n in (2, 3):
            value = energy(geometry.fibonacci_points(n, dim=2), angular=True)
            assert geometry.energy_lower_bound(n, 2, s, angular=True) == pytest.approx(value, rel=1e-12)

    def test_literal_figures(self):
        """The least energy of CNN-6 is that of 64 neurons in 27, 5 × 576 and 1024 dimensions (OPT, Tables 2 and 4)."""
        assert geometry.energy_lower_bound(10, 99, 2) == pytest.approx((20 / 9) ** -1, rel=1e-14)
        assert geometry.energy_lower_bound(10, 2, 0) == pytest.approx(-0.5 * math.log(20 / 9), rel=1e-14)
        assert geometry.energy_lower_bound(5, 4, 3, angular=True) == pytest.approx(
            (math.pi * 6 * 2 / 20) ** -3, rel=1e-14
        )
        assert geometry.energy_lower_bound(5, 4, 0, angular=True) == pytest.approx(
            -math.log(math.pi * 6 * 2 / 20), rel=1e-14
        )
        cnn6 = [geometry.energy_lower_bound(64, dim, half_space=True) for dim in (27, *[576] * 5, 1024)]
        assert sum(cnn6) == pytest.approx(3.4973, abs=5e-5)

    def test_one_neuron(self):
        for s in (0, 2):
            assert geometry.energy_lower_bound(1, 5, s) == 0
            assert geometry.energy_lower_bound(1, 5, s, angular=True) == 0
        assert geometry.energy_lower_bound(1, 5, 2, half_space=True) == 0.25
        assert geometry.energy_lower_bound(1, 5, 0, half_space=True) == pytest.approx(-math.log(2))
        assert geometry.energy_lower_bound(1, 1, 3, half_space=True, angular=True) == pytest.approx(math.pi**-3)
        assert geometry.energy_lower_bound(1, 5, 0, half_space=True, angular=True) == pytest.approx(-math.log(math.pi))

    def test_one_dimension_and_large_powers(self):
        assert geometry.energy_lower_bound(3, 1, 2, half_space=True) == math.inf  # on a line all are collinear
        assert geometry.energy_lower_bound(3, 1, 0, half_space=True, angular=True) == math.inf
        assert geometry.energy_lower_bound(2, 1, 2) == 0.25
        assert geometry.energy_lower_bound(9, 2, 1e5, half_space=True) == math.inf
        assert geometry.energy_lower_bound(9, 3, 1e5) == 0


class TestExcess:
    @space
    @pytest.mark.parametrize("s", [0, 1, 2])
    def test_is_what_the_bound_leaves(self, s, space):
        weight = torch.randn(7, 2, 3)
        pairs = reference.pair_energies(weight.flatten(1), s, **space)
        bound = geometry.energy_lower_bound(7, 6, s, **space)
        expected = mean(pairs) - bound if s == 0 else (mean(pairs) - bound) / bound
        assert geometry.excess_energy(weight, s, **space) == pytest.approx(expected, rel=1e-6)

    def test_zero_for_the_best(self):
        assert geometry.excess_energy(geometry.spherical_design(2, 5)) == 0
        assert geometry.excess_energy(torch.eye(5), half_space=True) == 0
        assert geometry.excess_energy(torch.eye(5), s=0, half_space=True) == 0
        assert geometry.excess_energy(torch.randn(1, 5)) == 0
        assert geometry.excess_energy(torch.randn(1, 5), half_space=True) == 0
        assert geometry.excess_energy(torch.ones(3, 1), half_space=True) == 0  # the best is as bad

    def test_shares(self):
        assert geometry.excess_energy(torch.eye(2)) == pytest.approx(1)  # 1/2 where 1/4 is possible
        assert geometry.excess_energy(torch.eye(2), s=0) == pytest.approx(0.5 * math.log(2))
        assert geometry.excess_over(3.0, 2.0, 1) == 0.5
        assert geometry.excess_over(3.0, 2.0, 0) == 1.0
        assert geometry.excess_over(-1.0, -2.0, 0) == 1.0
        assert geometry.excess_over(1.9, 2.0, 1) == pytest.approx(-0.05)  # nothing real is hidden
        assert geometry.excess_over(2.0 - 1e-15, 2.0, 1) == 0.0
        assert geometry.excess_over(2.0, math.inf, 1) == geometry.excess_over(2.0, math.inf, 0) == 0.0
        assert geometry.excess_over(2.0, 0.0, 1) == math.inf
        assert geometry.excess_over(2.0, 0.0, 0) == 2.0

    def test_float32_weights_are_measured_in_float64(self):
        weight = geometry.spherical_design(2, 40).float()
        assert abs(geometry.excess_energy(weight)) < 1e-12


class TestLogEnergy:
    @pytest.mark.parametrize("s", [0.5, 1, 2, 6])
    def test_both_sides_of_jensens_inequality(self, s):
        weight = torch.randn(8, 4)
        lower, upper = geometry.log_energy_bounds(weight, s)
        energies = reference.pair_energies(weight, s)
        assert lower == pytest.approx(mean([math.log(e) for e in energies]), rel=1e-6)
        assert upper == pytest.approx(math.log(mean(energies)), rel=1e-6)
        assert lower < upper
        # E_log = s·E_0 (3.2)
        e0 = float(hyperspherical_energy(weight.double(), 0.0, reduction="sum"))
        assert lower * 8 * 7 == pytest.approx(s * e0, rel=1e-9)

    def test_equal_distances_make_them_equal(self):
        lower, upper = geometry.log_energy_bounds(geometry.spherical_design(2, 6), 3)
        assert lower == pytest.approx(upper, abs=1e-12)

    def test_bad_arguments(self):
        with pytest.raises(ValueError, match="at least 2 rows"):
            geometry.log_energy_bounds(torch.randn(1, 4))
        with pytest.raises(ValueError, match="s must be finite and > 0"):
            geometry.log_energy_bounds(torch.randn(3, 4), 0)


class TestHoleFormulas:
    def test_the_papers_figures(self):
        kappas = [geometry.cap_constant(d + 1) for d in (1, 2, 3, 4)]
        assert kappas == pytest.approx([1 / math.pi, 1 / 4, 2 / (3 * math.pi), 3 / 16], rel=1e-13)
        facets = [geometry.facet_constant(d + 1) for d in (1, 2, 3, 4)]
        assert facets == pytest.approx([1, 2, 6.7677, 31.778], rel=2e-5)
        assert geometry.expected_hole_moment(2000, 3, 1) == pytest.approx(237.8, abs=0.05)
        assert geometry.expected_hole_moment(2000, 3, 2) == pytest.approx(16.0, abs=0.05)

    @pytest.mark.parametrize("d", [1, 2, 3, 4, 7])
    def test_equal_the_literal_formulas(self, d):
        assert geometry.cap_constant(d + 1) == pytest.approx(reference.kappa(d), rel=1e-12)
        if d > 1:
            assert geometry.cap_constant(d + 1) == pytest.approx(
                1 / (2 * math.pi * d * reference.kappa(d - 1)), rel=1e-12
            )
        assert geometry.facet_constant(d + 1) == pytest.approx(reference.facets(d), rel=1e-11)
        assert geometry.expected_holes(50, d + 1) == pytest.approx(50 * reference.facets(d), rel=1e-11)
        for p in (0, 1, 2.5):
            moment = geometry.expected_hole_moment(10**7, d + 1, p)
            assert moment == pytest.approx(reference.hole_moment(10**7, d, p), rel=1e-6)

    def test_the_circle_is_exact(self):
        """n gaps whose mean is known: a random gap is 2π·Beta(1, n−1), and ρ ~ α, half of it."""
        n = 50
        assert geometry.expected_hole_moment(n, 2, 1) == pytest.approx(n * math.pi / n, rel=1e-12)
        assert geometry.expected_hole_moment(n, 2, 2) == pytest.approx(n * math.pi**2 * 2 / (n * (n + 1)), rel=1e-12)

    def test_no_overflow(self):
        assert geometry.facet_constant(600) == math.inf
        assert geometry.expected_holes(10, 600) == math.inf

    @pytest.mark.parametrize("dim", [2, 3, 4, 9, 200])
    def test_caps(self, dim):
        def tail(angle):
            return reference.mean_over_sphere(lambda theta: (theta < angle).double(), dim)

        for angle in (0.3, 1.2, math.pi / 2, 1.7, 3.0):
            assert geometry.cap_area(angle, dim) == pytest.approx(tail(angle), abs=1e-4)
        assert geometry.cap_area(0, dim) == 0
        assert geometry.cap_area(math.pi, dim) == 1
        assert geometry.cap_area(1.2, dim) + geometry.cap_area(math.pi - 1.2, dim) == pytest.approx(1, abs=1e-14)
        if dim < 10:  # what κ says
            assert geometry.cap_area(1e-3, dim) == pytest.approx(
                geometry.cap_constant(dim) * 1e-3 ** (dim - 1), rel=1e-5
            )

    def test_caps_of_the_sphere(self):
        for angle in (0.01, 1.0, 2.5):
            assert geometry.cap_area(angle, 3) == pytest.approx((1 - math.cos(angle)) / 2, rel=1e-12)
            assert geometry.cap_area(angle, 2) == pytest.approx(angle / math.pi, rel=1e-12)

    def test_covering_lower_bound(self):
        assert geometry.covering_lower_bound(1, 5) == math.pi
        for dim in (2, 3, 7):
            assert geometry.covering_lower_bound(2, dim) == pytest.approx(math.pi / 2, abs=1e-12)
            assert geometry.cap_area(geometry.covering_lower_bound(9, dim), dim) == pytest.approx(1 / 9, rel=1e-10)
        assert geometry.covering_lower_bound(8, 2) == pytest.approx(math.pi / 8, abs=1e-12)  # the octagon
        assert geometry.covering_lower_bound(12, 3) < geometry.covering_radius(geometry.spherical_design(5))


class TestDiversity:
    def test_kernel(self):
        rows = torch.randn(5, 3, dtype=torch.float64)
        expected = torch.tensor([[reference.kernel(u, v) for v in rows] for u in rows], dtype=torch.float64)
        torch.testing.assert_close(geometry.arc_cosine_kernel(rows), expected, rtol=0, atol=1e-8)
        assert (geometry.arc_cosine_kernel(rows).diagonal() == 0.5).all()

    def test_the_kernel_is_a_probability(self):
        u, v = torch.tensor([1.0, 0.0, 0.0]), torch.tensor([1.0, 1.0, 0.0])
        x = torch.randn(40_000, 3)
        both = ((x @ u > 0) & (x @ v > 0)).double().mean()
        assert float(both) == pytest.approx(float(geometry.arc_cosine_kernel(torch.stack([u, v]))[0, 1]), abs=0.01)

    @pytest.mark.parametrize("dim", [2, 3, 4, 11])
    def test_discrepancy(self, dim, monkeypatch):
        rows = torch.randn(9, dim, dtype=torch.float64)
        expected = reference.kernel_discrepancy(rows)
        assert geometry.kernel_discrepancy(rows) == pytest.approx(expected, abs=1e-8)
        monkeypatch.setattr(geometry.points, "_BLOCK", 20)
        assert geometry.kernel_discrepancy(rows) == pytest.approx(expected, abs=1e-8)
        assert geometry.kernel_discrepancy(rows) > 0

    def test_even_neurons_have_little(self):
        even = geometry.kernel_discrepancy(geometry.spherical_design(7))
        random = geometry.kernel_discrepancy(geometry.random_points(36, 3))
        assert 0 < even < 0.3 * random
        assert geometry.kernel_discrepancy(geometry.fibonacci_points(2000)) == pytest.approx(0, abs=1e-5)
        assert geometry.kernel_discrepancy(torch.tensor([[1.0], [-1.0]])) == pytest.approx(0, abs=1e-12)

    @pytest.mark.parametrize(("m", "delta"), [(1, 0.5), (100, 0.1), (1000, 1.0)])
    def test_bound(self, m, delta):
        rows = torch.randn(6, 5, dtype=torch.float64)
        assert geometry.diversity_bound(rows, m, delta) == pytest.approx(
            reference.diversity_bound(rows, m, delta), rel=1e-6
        )

    @pytest.mark.parametrize(("n", "d", "m"), [(6, 4, 5), (20, 3, 10), (40, 8, 30), (1, 3, 2)])
    @pytest.mark.parametrize("signs", [False, True])
    def test_smallest_singular_value(self, n, d, m, signs):
        weight, x = torch.randn(n, d, dtype=torch.float64), torch.randn(m, d, dtype=torch.float64)
        v = torch.randn(n).sign().double() * 1.5 if signs else None
        matrix = reference.gradient_matrix(weight, x, torch.ones(n).double() if v is None else v)
        expected = float(torch.linalg.svdvals(matrix)[m - 1]) if m <= d * n else 0.0
        assert geometry.smallest_singular_value(weight, x, v) == pytest.approx(expected, abs=1e-6)

    @pytest.mark.parametrize("seed", range(5))
    def test_training_error_is_bounded(self, seed):
        """Eq. 45: ‖r‖ ≤ ‖Dr‖/s_m(D), with ‖Dr‖ the gradient's norm by autograd."""
        torch.manual_seed(seed)
        n, d, m = 30, 6, 12
        weight, v = torch.randn(n, d).double().requires_grad_(), torch.randn(n).sign().double()
        x, y = geometry.random_points(m, d, seed), torch.randn(m).double()
        error, bound = geometry.training_error_bound(weight, x, y, v)
        reference.loss(weight, x, y, v).backward()
        r = (torch.relu(x @ weight.T) @ v - y) / m
        assert error == pytest.approx(r.norm().item(), rel=1e-12)
        matrix = reference.gradient_matrix(weight.detach(), x, v)
        torch.testing.assert_close((matrix @ r.detach()).view(n, d), weight.grad)
        assert bound == pytest.approx(float(weight.grad.norm() / torch.linalg.svdvals(matrix)[-1]), rel=1e-6)
        assert error <= bound < math.inf

    def test_more_samples_than_weights_have_no_bound(self):
        for m in (5, 20, 40):
            error, bound = geometry.training_error_bound(torch.randn(2, 2), torch.randn(m, 2), torch.randn(m))
            assert error < bound == math.inf
            x = torch.randn(m, 50)
            x[-1] = x[0]  # and the same sample twice has none either
            assert geometry.smallest_singular_value(torch.randn(64, 50), x) == 0

    @pytest.mark.parametrize(
        ("call", "text"),
        [
            (
                lambda: geometry.smallest_singular_value(torch.eye(3), torch.ones(2, 4)),
                r"x must be \(m, 3\).*got \(2, 4\)",
            ),
            (lambda: geometry.smallest_singular_value(torch.ones(3), torch.ones(2, 3)), r"weight must be \(N, ...\)"),
            (lambda: geometry.smallest_singular_value(torch.eye(3), torch.eye(3), torch.ones(2)), r"v must be \(3,\)"),
            (lambda: geometry.training_error_bound(torch.eye(3), torch.eye(3), torch.ones(2)), r"y must be \(3,\)"),
            (lambda: geometry.diversity_bound(torch.eye(3), 0, 0.1), "m must be >= 1"),
            (lambda: geometry.diversity_bound(torch.eye(3), 9, 0.0), "delta must be finite and > 0 and <= 1"),
            (lambda: geometry.kernel_discrepancy(torch.zeros(2, 3)), "zero rows, got one at 0"),
        ],
        ids=range(7),
    )
    def test_bad_arguments(self, call, text):
        with pytest.raises(ValueError, match=text):
            call()


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: geometry.energy_integral(-1, 3), ValueError, r"s must be finite and >= 0, got -1\.0"),
        (lambda: geometry.energy_integral(math.nan, 3), ValueError, "s must be finite"),
        (lambda: geometry.energy_integral(1, 1), ValueError, "dim must be >= 2, got 1"),
        (lambda: geometry.energy_integral(1, 3.0), TypeError, "dim must be an int"),
        (lambda: geometry.growth_law(1, 1), ValueError, "dim must be >= 2"),
        (lambda: geometry.circle_energy(0, 1), ValueError, "n must be >= 1"),
        (lambda: geometry.expected_energy(1, 1), ValueError, "dim must be >= 2"),
        (lambda: geometry.energy_lower_bound(0, 3), ValueError, "n must be >= 1"),
        (lambda: geometry.energy_lower_bound(3, 0), ValueError, "dim must be >= 1"),
        (lambda: geometry.energy_lower_bound(3, 3, "2"), TypeError, "s must be a number"),
        (lambda: geometry.excess_energy(torch.zeros(2, 2)), ValueError, "zero rows, got one at 0"),
        (lambda: geometry.facet_constant(1), ValueError, "dim must be >= 2"),
        (lambda: geometry.expected_hole_moment(5, 3, -1), ValueError, "p must be finite and >= 0"),
        (lambda: geometry.cap_area(4.0, 3), ValueError, "angle must be finite and >= 0 and <= 3.14"),
        (lambda: geometry.covering_lower_bound(0, 3), ValueError, "n must be >= 1"),
    ],
    ids=range(15),
)
def test_bad_arguments(call, error, text):
    with pytest.raises(error, match=text):
        call()
