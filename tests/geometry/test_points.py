"""Separation, covering, holes and point sets against tests/reference_geometry.py and known polytopes."""

import builtins
import importlib
import itertools
import math
import re
import sys

import pytest
import torch

from hypersphere import geometry
from hypersphere._internal.modules import install_command
from hypersphere.geometry import covering, points
from hypersphere.papers.designs import spherical_design
from tests import reference_geometry as reference

GOLDEN = (1 + math.sqrt(5)) / 2


def cross(dim):
    return torch.cat([torch.eye(dim), -torch.eye(dim)]).double()


def cube(dim=3):
    return torch.tensor(list(itertools.product((-1.0, 1.0), repeat=dim)), dtype=torch.float64)


def gathered(n, dim, seed):
    """Random points drawn towards one side: with few of them the origin is outside their hull."""
    rows = geometry.random_points(n, dim, seed)
    rows[:, 0] += 0.8
    return rows


def circle(*degrees):
    turn = torch.tensor(degrees, dtype=torch.float64).deg2rad()
    return torch.stack([turn.cos(), turn.sin()], 1)


class TestSeparation:
    @pytest.mark.parametrize(("n", "dim"), [(2, 1), (5, 2), (30, 4), (3, 40)])
    def test_equals_the_double_loop(self, n, dim, device):
        rows = geometry.random_points(n, dim, seed=n) * torch.linspace(0.1, 9, n).unsqueeze(1)
        value = geometry.separation(rows.to(device))
        assert value.shape == ()
        assert value.dtype is torch.float64
        assert value.device == rows.to(device).device
        assert float(value) == pytest.approx(reference.separation(rows), abs=3e-8)  # arccos loses digits near 0 and π

    @pytest.mark.parametrize("block", [1, 40, 1000])
    def test_blocks_see_every_pair(self, monkeypatch, block):
        monkeypatch.setattr(points, "_BLOCK", block)
        for i, j in [(0, 1), (0, 19), (9, 10), (10, 19), (18, 19)]:
            rows = torch.eye(20, dtype=torch.float64)
            rows[j] += 0.5 * rows[i]
            assert geometry.closest_pair(rows) == (i, j, pytest.approx(math.atan(2)))

    @pytest.mark.parametrize("angle", [1e-3, 1e-9, 1e-150])
    def test_close_pairs_have_all_digits(self, angle):
        rows = torch.tensor([[0.0, 1.0], [1.0, 0.0], [1.0, angle], [-1.0, -1.0]], dtype=torch.float64)
        i, j, found = geometry.closest_pair(rows)
        assert (i, j) == (1, 2)
        assert found == pytest.approx(math.atan(angle), rel=1e-12)

    def test_the_closest_of_many_close_pairs_is_found(self):
        """In 2 − 2c of float64 all of these are zero."""
        base = geometry.random_points(1, 16)
        away = torch.linalg.qr(torch.cat([base, geometry.random_points(15, 16, 1)]).mT)[0].mT
        rows = torch.cat([base + k * 1e-9 * away[1 + k % 15] for k in range(1, 40)])
        expected = min((rows[i] - rows[j]).norm() for i, j in itertools.combinations(range(39), 2))
        assert float(geometry.separation(rows)) == pytest.approx(float(expected), rel=1e-6)

    def test_float32_duplicates_and_neighbours(self):
        rows = torch.randn(50, 8)
        rows[31], rows[40] = rows[7], 3 * rows[12]
        rows[40, 0] *= 1 + 1e-6
        assert geometry.closest_pair(rows) == (7, 31, 0.0)
        assert geometry.closest_pair(rows[torch.arange(50) != 31])[:2] == (12, 39)

    def test_angles_near_pi_have_all_digits(self):
        rows = torch.tensor([[1.0, 0.0], [-1.0, 1e-9]], dtype=torch.float64)
        assert math.pi - float(geometry.separation(rows)) == pytest.approx(1e-9, abs=1e-15)

    def test_known_values(self):
        assert float(geometry.separation(cube())) == pytest.approx(math.acos(1 / 3))
        assert float(geometry.separation(cross(5))) == pytest.approx(math.pi / 2)
        assert geometry.closest_pair(torch.eye(4)) == (0, 1, pytest.approx(math.pi / 2))  # the first of equals
        assert float(geometry.separation(torch.tensor([[2.0], [-3.0]]))) == pytest.approx(math.pi)

    def test_kernels_are_flattened_and_gradients_left_out(self):
        weight = torch.randn(6, 3, 2, 2, requires_grad=True)
        value = geometry.separation(weight)
        assert not value.requires_grad
        assert value == geometry.separation(weight.flatten(1))

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
    def test_half_precision_is_exact_for_the_rounded_weights(self, dtype):
        weight = (300 * torch.randn(9, 5)).to(dtype)
        torch.testing.assert_close(geometry.separation(weight), geometry.separation(weight.double()))

    @pytest.mark.parametrize("scale", [1e-300, 1e300])
    def test_lengths_do_not_matter(self, scale):
        rows = geometry.random_points(5, 3)
        torch.testing.assert_close(geometry.separation(scale * rows), geometry.separation(rows))
        uneven = rows * torch.tensor([[scale], [1.0], [1.0], [1.0], [1.0]], dtype=torch.float64)
        torch.testing.assert_close(geometry.separation(uneven), geometry.separation(rows))


@pytest.mark.parametrize(
    ("weight", "error", "text"),
    [
        (torch.randn(1, 4), ValueError, "weight must have at least 2 rows.*got 1"),
        (torch.randn(4), ValueError, r"weight must be \(N, ...\) and not empty, got \(4,\)"),
        (torch.randn(4, 0), ValueError, "not empty"),
        (torch.ones(4, 2, dtype=torch.int64), TypeError, "floating point"),
        ([[1.0, 0.0]], TypeError, "weight must be a Tensor, got list"),
        (torch.tensor([[1.0, 0.0], [0.0, 0.0]]), ValueError, "zero rows, got one at 1"),
        (torch.tensor([[1.0, 0.0], [2.0, 0.0], [0.0, math.nan]]), ValueError, "in row 2"),
    ],
    ids=["one neuron", "vector", "empty", "int", "list", "zero", "nan"],
)
def test_bad_weights(weight, error, text):
    for function in (geometry.separation, geometry.closest_pair):
        with pytest.raises(error, match=text):
            function(weight)
    if "2 rows" not in text:
        for function in (geometry.covering_radius, geometry.covering_bounds, geometry.hole_radii):
            with pytest.raises(error, match=text):
                function(weight)


@pytest.mark.slow
class TestCoveringRadius:
    @pytest.mark.parametrize("dim", [2, 3, 5])
    @pytest.mark.parametrize("n", [2, 4, 8])
    @pytest.mark.parametrize("draw", [geometry.random_points, gathered], ids=["random", "gathered"])
    def test_equals_the_literal_search(self, n, dim, draw):
        rows = draw(n, dim, seed=1)
        value = geometry.covering_radius(rows, method="exact")
        assert value.shape == ()
        assert float(value) == pytest.approx(reference.covering_radius(rows), abs=1e-8)
        lower, upper = geometry.covering_bounds(rows)
        assert lower == upper == float(value)

    @pytest.mark.parametrize(
        ("rows", "expected"),
        [
            (torch.tensor([[3.0]]), math.pi),
            (torch.tensor([[3.0], [-2.0]]), 0.0),
            (circle(20, 20), math.pi),
            (circle(*range(0, 360, 36)), math.pi / 10),
            (circle(350, 10, 20), math.radians(165)),
            (torch.tensor([[0.0, 0.0, 2.0]]), math.pi),
            (torch.tensor([[0.0, 0.0, 2.0], [0.0, 0.0, -1.0]]), math.pi / 2),
            (torch.eye(3), math.acos(-1 / math.sqrt(3))),
            (torch.eye(100), math.acos(-1 / 10)),
            (cross(7), math.acos(1 / math.sqrt(7))),
            (cross(3)[[0, 1, 3, 4]], math.pi / 2),  # a great circle
            (cross(3)[:5], math.pi / 2),  # and a pole: the origin is on the surface
            (cube(), math.acos(1 / math.sqrt(3))),
            (torch.tensor([[1, 0.1, 0], [1, -0.1, 0], [1, 0, 0.01]], dtype=torch.float64), math.pi - math.atan(0.1)),
        ],
        ids=str.split(
            "one-side both-sides twice-on-circle decagon half-circle one two-poles axes many-axes cross great-circle "
            "hemisphere cube between-two"
        ),
    )
    def test_known_values(self, rows, expected):
        assert float(geometry.covering_radius(rows, method="exact")) == pytest.approx(expected, abs=1e-9)

    def test_small_holes_have_all_digits(self):
        """A ring of five around the pole at a thousandth of a radian; the hull's other holes are left out."""
        ring = 1e-3
        rows = torch.tensor([[0.0, 0.0, 1.0], *[[math.sin(ring), 0.0, math.cos(ring)]] * 2], dtype=torch.float64)
        rows[2, :2] = torch.tensor([0.0, math.sin(ring)])
        middle = geometry.hole_radii(torch.cat([rows, -cross(3)])).min()  # of the right triangle: its hypotenuse's
        assert float(middle) == pytest.approx(ring / math.sqrt(2), rel=1e-6)

    def test_the_estimate_is_a_lower_bound_and_close(self):
        for n, dim in [(3, 3), (40, 3), (300, 5), (60, 6)]:
            rows = geometry.random_points(n, dim)
            exact = float(geometry.covering_radius(rows, method="exact"))
            estimate = float(geometry.covering_radius(rows, method="estimate"))
            assert exact - 1e-3 < estimate <= exact + 1e-12

    def test_auto_says_that_it_estimates(self):
        rows = geometry.random_points(200, 16)
        with pytest.warns(UserWarning, match="lower bound"):
            value = geometry.covering_radius(rows, starts=8)
        assert value == geometry.covering_radius(rows, method="estimate", starts=8)  # no warning: it is meant
        with pytest.raises(ValueError, match='method must be "estimate" for 200 neurons in 16 dimensions'):
            geometry.covering_radius(rows, method="exact")
        with pytest.raises(ValueError, match="for a convex hull, got 200 neurons in 16 dimensions"):
            geometry.hole_radii(rows)

    def test_outside_the_hull_it_is_exact_in_any_dimension(self):
        for rows in (geometry.random_points(64, 576), geometry.random_points(100, 80)):
            value, estimate = (float(geometry.covering_radius(rows, method=m)) for m in ("exact", "estimate"))
            assert math.pi / 2 < value
            assert value - 1e-3 < estimate <= value + 1e-12
            assert geometry.covering_bounds(rows) == (value, value)

    def test_bounds_hold(self, monkeypatch):
        """Where the exact value is known, with the hull out of reach."""
        for rows in (geometry.random_points(12, 3), geometry.random_points(200, 6), cross(5), cube(4)):
            exact = float(geometry.covering_radius(rows, method="exact"))
            with monkeypatch.context() as patch:
                patch.setattr(covering, "_MOST_FACETS", 0)
                lower, upper = geometry.covering_bounds(rows)
            assert exact - 1e-3 < lower <= exact + 1e-12
            assert exact <= upper < math.pi / 2

    def test_an_origin_on_the_surface_gives_a_right_angle(self):
        lower, upper = geometry.covering_bounds(cross(40)[:60])
        assert math.pi / 2 - 1e-3 < lower < upper == math.pi / 2

    def test_the_simplex_reaches_its_upper_bound(self, monkeypatch):
        monkeypatch.setattr(covering, "_MOST_FACETS", 0)
        for dim in (3, 30):
            lower, upper = geometry.covering_bounds(spherical_design(2, dim))
            assert upper == pytest.approx(math.acos(1 / dim), abs=1e-9)
            assert lower == pytest.approx(upper, abs=1e-3)

    def test_the_lower_bound_by_area_counts(self, monkeypatch):
        monkeypatch.setattr(covering, "_MOST_FACETS", 0)
        monkeypatch.setattr(covering, "_search_widest_hole", lambda *_: 0.0)
        lower, _ = geometry.covering_bounds(geometry.random_points(200, 6))
        assert lower == geometry.covering_lower_bound(200, 6)

    def test_the_search_is_deterministic(self):
        rows = geometry.random_points(100, 12)
        first, second = (geometry.covering_bounds(rows, starts=4, seed=1) for _ in range(2))
        assert first == second
        assert first != geometry.covering_bounds(rows, starts=4, seed=2)

    def test_bad_options(self):
        with pytest.raises(ValueError, match="method must be one of auto, exact, estimate; got 'hull'"):
            geometry.covering_radius(torch.eye(3), method="hull")
        with pytest.raises(ValueError, match="starts must be >= 1"):
            geometry.covering_radius(torch.eye(3), method="estimate", starts=0)

    def test_without_scipy_the_extra_is_named(self, monkeypatch):
        def refuse(name, *args):
            if name.startswith("scipy"):
                raise ImportError(name)
            return importlib.__import__(name, *args)

        for name in [name for name in sys.modules if name.partition(".")[0] == "scipy"]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setattr("hypersphere._internal.modules.import_module", refuse)
        monkeypatch.setattr(builtins, "__import__", refuse)
        for function in (geometry.covering_radius, geometry.hole_radii):
            with pytest.raises(ImportError, match=re.escape(install_command("geometry"))):
                function(cube())
        assert geometry.covering_radius(circle(0, 90, 180)) == pytest.approx(math.pi / 2)
        assert geometry.covering_radius(cube(), method="estimate") == pytest.approx(
            math.acos(1 / math.sqrt(3)), abs=1e-3
        )


class TestHoles:
    @pytest.mark.parametrize(("n", "dim"), [(4, 3), (12, 3), (9, 5)])
    @pytest.mark.parametrize("draw", [geometry.random_points, gathered], ids=["random", "gathered"])
    def test_equal_the_literal_facets(self, n, dim, draw):
        rows = draw(n, dim, 3)
        expected = torch.tensor(reference.hole_radii(rows), dtype=torch.float64)
        torch.testing.assert_close(geometry.hole_radii(rows), expected, rtol=0, atol=1e-10)

    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
    @pytest.mark.parametrize(
        ("name", "holes", "cosine"),
        [("tetrahedron", 4, 1 / 3), ("octahedron", 8, 3**-0.5), ("cube", 6, 3**-0.5), ("dodecahedron", 12, None)],
    )
    def test_facets_with_many_corners_count_once(self, name, holes, cosine, dtype):
        around = torch.tensor([[0.0, a / GOLDEN, b * GOLDEN] for a in (-1, 1) for b in (-1, 1)], dtype=torch.float64)
        rows = {
            "tetrahedron": cube()[[0, 3, 5, 6]],
            "octahedron": cross(3),
            "cube": cube(),
            "dodecahedron": torch.cat([cube(), *[around.roll(k, 1) for k in range(3)]]),
        }[name]
        turned = rows @ torch.linalg.qr(torch.randn(3, 3, dtype=torch.float64))[0]
        radii = geometry.hole_radii((turned / turned.norm(dim=1, keepdim=True)).to(dtype))
        cosine = cosine or math.sqrt((5 + 2 * math.sqrt(5)) / 15)
        expected = torch.full((holes,), math.sqrt(2 - 2 * cosine), dtype=torch.float64)
        torch.testing.assert_close(radii, expected, rtol=0, atol=1e-12 if dtype is torch.float64 else 1e-6)

    def test_the_cube_in_more_dimensions(self):
        assert len(geometry.hole_radii(cube(4))) == 8
        assert len(geometry.hole_radii(cube(5))) == 10
        assert len(geometry.hole_radii(spherical_design(11, 4))) == 600

    def test_half_precision_does_not_merge_what_is_apart(self):
        rows = torch.randn(60, 3).bfloat16()
        assert len(geometry.hole_radii(rows)) == len(geometry.hole_radii(rows.double())) == 2 * 60 - 4

    def test_gaps_of_the_circle(self):
        radii = geometry.hole_radii(circle(0, 90, 100, 100, 350))
        expected = [2 * math.sin(math.radians(gap) / 4) for gap in (250, 90, 10, 10)]
        torch.testing.assert_close(radii, torch.tensor(expected, dtype=torch.float64))

    @pytest.mark.parametrize(
        "rows", [torch.eye(3), torch.eye(2)[:, :1] + 1, cross(3)[[0, 1, 3, 4]], circle(5).repeat(4, 2)]
    )
    def test_neurons_in_one_plane_have_none(self, rows):
        with pytest.raises(ValueError, match="weight must have rows that are not all in one plane, got"):
            geometry.hole_radii(rows)


class TestPointSets:
    def test_random_points(self):
        first, again, other = (geometry.random_points(500, 4, seed) for seed in (3, 3, 4))
        assert first.shape == (500, 4)
        assert first.dtype is torch.float64
        assert torch.equal(first, again)
        assert not torch.equal(first, other)
        torch.testing.assert_close(first.norm(dim=1), torch.ones(500, dtype=torch.float64))
        assert first.mean(0).norm() < 0.1
        torch.testing.assert_close(first.T @ first / 500, torch.eye(4).double() / 4, atol=0.04, rtol=0)

    def test_random_points_leave_the_global_generator_alone(self):
        state = torch.get_rng_state()
        geometry.random_points(3, 3)
        assert torch.equal(torch.get_rng_state(), state)

    @pytest.mark.parametrize("n", [1, 2, 12, 500])
    def test_fibonacci_points(self, n):
        rows = geometry.fibonacci_points(n)
        torch.testing.assert_close(rows.norm(dim=1), torch.ones(n, dtype=torch.float64))
        assert abs(float(rows[:, 2].sum())) < 1e-12  # heights in equal steps
        if n == 500:
            best = math.sqrt(8 * math.pi / math.sqrt(3) / n)  # of a hexagonal grid
            assert 0.8 * best < float(geometry.separation(rows)) < best
            assert float(geometry.covering_radius(rows)) < 0.5 * float(
                geometry.covering_radius(geometry.random_points(n, 3))
            )

    def test_fibonacci_points_of_the_circle(self):
        rows = geometry.fibonacci_points(7, dim=2)
        assert float(geometry.separation(rows)) == pytest.approx(2 * math.pi / 7)
        assert float(geometry.covering_radius(rows)) == pytest.approx(math.pi / 7)

    @pytest.mark.parametrize(
        ("call", "text"),
        [
            (lambda: geometry.random_points(0, 3), "n must be >= 1, got 0"),
            (lambda: geometry.random_points(3, 0), "dim must be >= 1, got 0"),
            (lambda: geometry.random_points(3, 3, seed=-1), "seed must be >= 0, got -1"),
            (lambda: geometry.fibonacci_points(4, dim=4), "dim must be one of 2, 3; got 4"),
            (lambda: geometry.fibonacci_points(0), "n must be >= 1, got 0"),
        ],
        ids=range(5),
    )
    def test_bad_arguments(self, call, text):
        with pytest.raises(ValueError, match=text):
            call()
