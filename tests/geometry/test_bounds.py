"""Closed forms and bounds against tests/reference_geometry.py, the papers' values and random neurons."""

import math

import pytest
import torch

from hypersphere import geometry, hyperspherical_energy
from hypersphere.geometry import bounds
from hypersphere.papers.designs import spherical_design
from tests import reference_geometry as reference

SPACES = [{}, {"half_space": True}, {"angular": True}, {"half_space": True, "angular": True}]
space = pytest.mark.parametrize("space", SPACES, ids=["full", "half", "angular", "half-angular"])


def mean(values):
    return sum(values) / len(values)


def chord(theta):
    return 2 * torch.sin(theta / 2)


class TestEnergyIntegral:
    @pytest.mark.parametrize(("s", "dim"), [(0, 2), (0.25, 2), (1, 3), (2, 5), (9, 30)])
    def test_is_the_mean_over_the_sphere(self, s, dim):
        expected = reference.mean_over_sphere(lambda theta: reference.potential(chord(theta), s), dim)
        assert geometry.energy_integral(s, dim) == pytest.approx(expected, rel=2e-4 if dim - s < 2 else 1e-5, abs=1e-5)

    def test_known_values(self):
        assert geometry.energy_integral(1, 3) == pytest.approx(1, abs=1e-14)
        assert geometry.energy_integral(0, 3) == pytest.approx(0.5 - math.log(2), abs=1e-14)
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


class TestExpectedEnergy:
    @space
    @pytest.mark.parametrize(("s", "dim"), [(0, 2), (0.25, 2), (1, 3), (12, 40)])
    def test_is_the_mean_over_the_sphere(self, s, dim, space):
        n = 6
        distance = (lambda theta: theta) if "angular" in space else chord
        pair = reference.mean_over_sphere(lambda theta: reference.potential(distance(theta), s), dim)
        if "half_space" in space:  # of the 2n − 1 others of a neuron one is its antipode
            antipode = float(reference.potential(distance(torch.tensor(math.pi, dtype=torch.float64)), s))
            pair = ((2 * n - 2) * pair + antipode) / (2 * n - 1)
        value = geometry.expected_energy(s, dim, n=n, **space)
        assert value == pytest.approx(pair, rel=2e-4 if dim - s < 2 else 1e-5, abs=1e-5)

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
    @pytest.mark.parametrize("s", [0, 2])
    def test_descent_does_not_get_below(self, s, space):
        for n, dim in [(2, 2), (3, 2), (4, 3), (6, 3), (7, 4)]:
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
    @pytest.mark.parametrize("s", [0, 2])
    def test_is_what_the_bound_leaves(self, s, space):
        weight = torch.randn(7, 2, 3)
        pairs = reference.pair_energies(weight.flatten(1), s, **space)
        bound = geometry.energy_lower_bound(7, 6, s, **space)
        expected = mean(pairs) - bound if s == 0 else (mean(pairs) - bound) / bound
        assert geometry.excess_energy(weight, s, **space) == pytest.approx(expected, rel=1e-6)

    def test_zero_for_the_best(self):
        assert geometry.excess_energy(spherical_design(2, 5)) == 0
        assert geometry.excess_energy(torch.eye(5), half_space=True) == 0
        assert geometry.excess_energy(torch.eye(5), s=0, half_space=True) == 0
        assert geometry.excess_energy(torch.randn(1, 5)) == 0
        assert geometry.excess_energy(torch.randn(1, 5), half_space=True) == 0
        assert geometry.excess_energy(torch.ones(3, 1), half_space=True) == 0  # the best is as bad

    def test_shares(self):
        assert geometry.excess_energy(torch.eye(2)) == pytest.approx(1)  # 1/2 where 1/4 is possible
        assert geometry.excess_energy(torch.eye(2), s=0) == pytest.approx(0.5 * math.log(2))
        assert bounds.excess_over(3.0, 2.0, 1) == 0.5
        assert bounds.excess_over(3.0, 2.0, 0) == 1.0
        assert bounds.excess_over(-1.0, -2.0, 0) == 1.0
        assert bounds.excess_over(1.9, 2.0, 1) == pytest.approx(-0.05)  # nothing real is hidden
        assert bounds.excess_over(2.0 - 1e-15, 2.0, 1) == 0.0
        assert bounds.excess_over(2.0, math.inf, 1) == bounds.excess_over(2.0, math.inf, 0) == 0.0
        assert bounds.excess_over(2.0, 0.0, 1) == math.inf
        assert bounds.excess_over(2.0, 0.0, 0) == 2.0

    def test_float32_weights_are_measured_in_float64(self):
        weight = spherical_design(2, 40).float()
        assert abs(geometry.excess_energy(weight)) < 1e-12


class TestHolesAndCaps:
    @pytest.mark.parametrize("d", [1, 2, 3, 4, 7])
    def test_equal_the_literal_formulas(self, d):
        assert bounds.cap_constant(d + 1) == pytest.approx(reference.kappa(d), rel=1e-12)
        assert geometry.expected_holes(50, d + 1) == pytest.approx(50 * reference.facets(d), rel=1e-11)

    def test_the_papers_values(self):
        kappas = [bounds.cap_constant(d + 1) for d in (1, 2, 3, 4)]
        assert kappas == pytest.approx([1 / math.pi, 1 / 4, 2 / (3 * math.pi), 3 / 16], rel=1e-13)
        facets = [geometry.expected_holes(1, d + 1) for d in (1, 2, 3, 4)]
        assert facets == pytest.approx([1, 2, 6.7677, 31.778], rel=2e-5)
        assert geometry.expected_holes(10, 600) == math.inf  # no overflow

    @pytest.mark.parametrize("dim", [2, 3, 9, 200])
    def test_caps(self, dim):
        def tail(angle):
            return reference.mean_over_sphere(lambda theta: (theta < angle).double(), dim)

        for angle in (0.3, 1.2, math.pi / 2, 1.7, 3.0):
            assert bounds.cap_area(angle, dim) == pytest.approx(tail(angle), abs=1e-4)
        assert bounds.cap_area(0, dim) == 0
        assert bounds.cap_area(math.pi, dim) == 1
        assert bounds.cap_area(1.2, dim) + bounds.cap_area(math.pi - 1.2, dim) == pytest.approx(1, abs=1e-14)
        if dim < 10:  # what κ says
            assert bounds.cap_area(1e-3, dim) == pytest.approx(bounds.cap_constant(dim) * 1e-3 ** (dim - 1), rel=1e-5)

    def test_covering_lower_bound(self):
        assert geometry.covering_lower_bound(1, 5) == math.pi
        for dim in (2, 3, 7):
            assert geometry.covering_lower_bound(2, dim) == pytest.approx(math.pi / 2, abs=1e-12)
            assert bounds.cap_area(geometry.covering_lower_bound(9, dim), dim) == pytest.approx(1 / 9, rel=1e-10)
        assert geometry.covering_lower_bound(8, 2) == pytest.approx(math.pi / 8, abs=1e-12)  # the octagon
        assert geometry.covering_lower_bound(12, 3) < geometry.covering_radius(spherical_design(5))


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: geometry.energy_integral(-1, 3), ValueError, r"s must be finite and >= 0, got -1\.0"),
        (lambda: geometry.energy_integral(1, 1), ValueError, "dim must be >= 2, got 1"),
        (lambda: geometry.energy_integral(1, 3.0), TypeError, "dim must be an int"),
        (lambda: geometry.energy_lower_bound(0, 3), ValueError, "n must be >= 1"),
        (lambda: geometry.energy_lower_bound(3, 0), ValueError, "dim must be >= 1"),
        (lambda: geometry.energy_lower_bound(3, 3, "2"), TypeError, "s must be a number"),
        (lambda: geometry.excess_energy(torch.zeros(2, 2)), ValueError, "zero rows, got one at 0"),
        (lambda: bounds.cap_area(4.0, 3), ValueError, "angle must be finite and >= 0 and <= 3.14"),
        (lambda: geometry.covering_lower_bound(0, 3), ValueError, "n must be >= 1"),
    ],
    ids=range(9),
)
def test_bad_arguments(call, error, text):
    with pytest.raises(error, match=text):
        call()
