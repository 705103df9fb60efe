"""Points of least energy: against closed forms, published minima and brute force."""

import itertools
import math

import pytest
import torch

from hypersphere.geometry import known_minimum, minimize_energy, separation
from hypersphere.geometry.contacts import equalize_contacts, largest_cosine
from hypersphere.geometry.descent import descend, mean_log_energy
from hypersphere.geometry.minima import _UNIVERSAL

pytestmark = pytest.mark.slow

# Published, to nine decimals: what the table in the code is checked against.
# fmt: off
THOMSON = {
    2: 0.5, 3: 1.732050808, 4: 3.674234614, 5: 6.474691495, 6: 9.985281374, 7: 14.452977414, 8: 19.675287861,
    9: 25.759986531, 10: 32.71694946, 11: 40.596450508, 12: 49.165253058, 13: 58.853230612, 14: 69.306363297,
    15: 80.670244114, 16: 92.911655303, 17: 106.050404829, 18: 120.084467447, 19: 135.089467557, 20: 150.881568334,
    21: 167.641622399, 22: 185.287536149, 23: 203.930190663, 24: 223.347074052, 25: 243.812760299,
    26: 265.133326317, 27: 287.302615033, 28: 310.491542358, 29: 334.63443992, 30: 359.603945904, 31: 385.530838063,
    32: 412.261274651,
}
TAMMES = {  # degrees
    2: 180, 3: 120, 4: 109.4712206, 5: 90, 6: 90, 7: 77.8695422, 8: 74.8584922, 9: 70.5287794, 10: 66.1468220,
    11: 63.4349488, 12: 63.4349488, 13: 57.1367031, 14: 55.6705700, 24: 43.6907671,
}
# fmt: on


def energy(points, s):
    """The literal sum over unordered pairs."""
    distances = [math.dist(a, b) for a, b in itertools.combinations(points.tolist(), 2)]
    return math.fsum(-math.log(r) if s == 0 else r**-s for r in distances)


def lines(points):
    """The points and their antipodes."""
    return torch.cat([points, -points])


def random_points(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.nn.functional.normalize(torch.randn(*shape, generator=generator, dtype=torch.float64), dim=-1)


@pytest.mark.parametrize("n", [2, 3, 5, 8, 11, 12, 14, 16, 24, 32])
def test_thomson(n):
    points = minimize_energy(n, starts=16)
    assert points.shape == (n, 3)
    assert points.dtype == torch.float64
    assert (points.norm(dim=1) - 1).abs().max() < 1e-14
    assert abs(energy(points, 1) - THOMSON[n]) < 1e-8


def test_published_minima():
    for n, published in THOMSON.items():
        assert abs(known_minimum(n) - published) < 1e-9
    for n, angle in TAMMES.items():
        assert abs(math.degrees(known_minimum(n, s=math.inf)) - angle) < 6e-8


@pytest.mark.parametrize(("n", "s"), [(5, 0.0), (8, 0.0), (11, 2.0), (12, 2.0)])
def test_whyte_and_inverse_square(n, s):
    points = minimize_energy(n, s=s, starts=8)
    assert abs(energy(points, s) - known_minimum(n, s=s)) < 1e-10


@pytest.mark.parametrize("n", [5, 7, 8, 9, 10, 14, 24])
def test_tammes(n):
    points = minimize_energy(n, s=math.inf, starts=16)
    assert abs(separation(points) - known_minimum(n, s=math.inf)) < 1e-12


def test_contacts_are_solved_from_a_rough_start():
    rough, _ = descend(random_points(1, 9, 3).mT.contiguous(), 2000.0, False, 500, 1e-5)
    points = equalize_contacts(rough[0].T, 2000.0, False)
    assert largest_cosine(rough[0].T, False) - 1 / 3 > 1e-5
    assert abs(largest_cosine(points, False) - 1 / 3) < 1e-14


@pytest.mark.parametrize(
    ("n", "dim", "s"), [(4, 3, 1.0), (7, 6, 0.0), (3, 5, 2.0), (5, 4, math.inf), (1, 3, 1.0), (2, 4, 3.0)]
)
def test_simplex(n, dim, s):
    points = minimize_energy(n, dim, s)
    gram = torch.full((n, n), -1 / max(n - 1, 1), dtype=torch.float64).fill_diagonal_(1)
    assert (points @ points.T - gram).abs().max() < 1e-14


@pytest.mark.parametrize(("dim", "s"), [(3, 0.0), (3, 50.0), (5, 2.0)])
def test_cross_polytope(dim, s):
    points = minimize_energy(2 * dim, dim, s, starts=8)
    cosines = (points @ points.T).flatten().sort().values
    expected = torch.tensor([-1.0] * (2 * dim) + [0.0] * (4 * dim * (dim - 1)) + [1.0] * (2 * dim), dtype=torch.float64)
    assert (cosines - expected).abs().max() < 1e-8
    assert abs(energy(points, s) / known_minimum(2 * dim, dim, s) - 1) < 1e-13


@pytest.mark.parametrize("n", [1, 7, 10])
@pytest.mark.parametrize("half_space", [False, True])
def test_regular_polygons(n, half_space):
    points = minimize_energy(n, dim=2, half_space=half_space)
    everything = lines(points) if half_space else points
    angles = torch.atan2(everything[:, 1], everything[:, 0]).sort().values
    gaps = torch.cat([angles[1:], angles[:1] + 2 * math.pi]) - angles
    assert (gaps - 2 * math.pi / len(everything)).abs().max() < 1e-14


@pytest.mark.parametrize(("n", "dim"), [(16, 5), (27, 6)])
def test_universal_optima_are_found(n, dim):
    for s in (1.0, 3.0):
        assert abs(energy(minimize_energy(n, dim, s, starts=4), s) / known_minimum(n, dim, s) - 1) < 1e-13


@pytest.mark.parametrize(("n", "dim"), _UNIVERSAL)
def test_universal_optima_are_designs(n, dim):
    """All of the table are spherical 2-designs at least: the sum of cosines and of their squares are given."""
    seen = {1.0: 1, **_UNIVERSAL[n, dim]}
    assert sum(seen.values()) == n
    assert abs(sum(c * count for c, count in seen.items())) < 1e-13
    assert abs(sum(c * c * count for c, count in seen.items()) - n / dim) < 1e-13


def test_half_space():
    """Lines instead of directions: orthonormal, the axes of the icosahedron, the best packings of five and seven."""
    points = minimize_energy(3, dim=4, half_space=True)
    assert torch.equal(points @ points.T, torch.eye(3, dtype=torch.float64))
    points = minimize_energy(6, s=2.0, half_space=True, starts=8)
    assert abs(energy(lines(points), 2) - 39) < 1e-10
    for n, cosine in ((5, 1 / math.sqrt(5)), (7, 1 / math.sqrt(3))):
        points = minimize_energy(n, s=math.inf, half_space=True, starts=8)
        assert abs(separation(lines(points)) - math.acos(cosine)) < 1e-12


@pytest.mark.parametrize("s", [0.0, 0.5, 300.0])
@pytest.mark.parametrize("half_space", [False, True])
@pytest.mark.parametrize("block", [2**17, 30])
def test_value_and_gradient(s, half_space, block, monkeypatch):
    """Against the literal double loop and autograd, whole and in blocks of points."""
    monkeypatch.setattr("hypersphere.geometry.descent._BLOCK", block)
    x = random_points(2, 7, 4).requires_grad_()
    unit = x / x.norm(dim=-1, keepdim=True)
    pairs = [(i, j) for i in range(7) for j in range(7) if i != j]
    r = torch.stack([(unit[:, i] - unit[:, j]).norm(dim=-1) for i, j in pairs])
    if half_space:
        r = torch.cat([r, torch.stack([(unit[:, i] + unit[:, j]).norm(dim=-1) for i, j in pairs])])
    expected = -r.log().mean(0) if s == 0 else r.pow(-s).mean(0).log() / s
    (gradient,) = torch.autograd.grad(expected.sum(), x)
    f, g = mean_log_energy(x.detach().mT.contiguous(), s, half_space)
    assert torch.allclose(f, expected, rtol=1e-12)
    assert torch.allclose(g.mT, gradient, rtol=1e-9, atol=1e-12)


def test_nothing_overflows():
    for s in (400.0, 1e6):
        points = minimize_energy(10, s=s, starts=4, steps=200)
        assert points.isfinite().all()
        assert abs(math.degrees(separation(points)) - TAMMES[10]) < 100 / s


def test_the_same_points_again():
    for s in (1.0, math.inf):
        first, second = (minimize_energy(10, s=s, starts=2, steps=50, seed=3) for _ in range(2))
        assert torch.equal(first, second)
        assert not torch.equal(first, minimize_energy(10, s=s, starts=2, steps=50, seed=4))


def test_rounding_does_not_choose_among_equal_minima(monkeypatch):
    """Every start finds the icosahedron, in an orientation of its own: another CPU must return the same one."""
    expected = minimize_energy(12)
    generator = torch.Generator().manual_seed(0)

    def on_another_cpu(*arguments):
        points, values = descend(*arguments)
        return points, values + 1e-15 * torch.randn(len(values), generator=generator, dtype=values.dtype)

    monkeypatch.setattr("hypersphere.geometry.minimize.descend", on_another_cpu)
    for _ in range(3):
        assert torch.equal(minimize_energy(12), expected)


def test_neither_global_seed_nor_threads_nor_progress_matter():
    expected = minimize_energy(10, starts=4)
    torch.manual_seed(7)
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert torch.equal(minimize_energy(10, starts=4, progress=True), expected)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(torch.get_rng_state(), state)
    with torch.device("meta"):
        assert torch.equal(minimize_energy(10, starts=4), expected)


def test_more_starts_are_never_worse():
    single = [energy(minimize_energy(16, starts=1, seed=seed), 1) for seed in range(6)]
    more = [energy(minimize_energy(16, starts=6, seed=seed), 1) for seed in range(6)]
    assert all(a <= b + 1e-9 for a, b in zip(more, single, strict=True))
    assert max(more) - THOMSON[16] < 1e-8
    assert max(single) - THOMSON[16] > 1e-3  # n = 16 has another minimum


def test_path_to_a_large_s(monkeypatch):
    calls = []

    def record(x, s, *rest):
        calls.append((s, len(x)))
        return descend(x, s, *rest)

    monkeypatch.setattr("hypersphere.geometry.minimize.descend", record)
    minimize_energy(7, s=1000.0, starts=5)
    assert calls == [(1.0, 2), (160.0, 5), (1000.0, 5), (1000.0, 5)]
    calls.clear()
    minimize_energy(7, s=math.inf, starts=12)
    assert calls == [(1.0, 6), *((160.0 * 8**k, 12 if k < 3 else 8) for k in range(6))]
    calls.clear()
    minimize_energy(7, s=160.0, starts=3)
    assert calls[0] == (160.0, 3)
    assert len(calls) == 2


def test_starts_in_chunks(monkeypatch):
    expected = minimize_energy(16, starts=8, seed=4)
    monkeypatch.setattr("hypersphere.geometry.minimize._PAIRS", 3 * 16**2)
    assert abs(energy(minimize_energy(16, starts=8, seed=4), 1) - energy(expected, 1)) < 1e-10
    monkeypatch.setattr("hypersphere.geometry.minimize._PAIRS", 1)  # a start at a time
    assert abs(separation(minimize_energy(8, s=math.inf, starts=3)) - known_minimum(8, s=math.inf)) < 1e-12


def test_steps_and_tolerance_end_a_search():
    def remaining(**options):
        points = minimize_energy(20, starts=1, **options)
        return 20 * float(mean_log_energy(points.T[None], 1.0)[1].norm(dim=1).max())

    assert remaining(tolerance=1e-11) < 1e-11
    assert 1e-11 < remaining(tolerance=1e-6) < 1e-6
    assert remaining(steps=2) > 1e-3


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"n": 0}, ValueError, "n must be >= 1, got 0"),
        ({"n": 10**9}, ValueError, "n must be <= 100000, got 1000000000"),
        ({"dim": 1}, ValueError, "dim must be >= 2, got 1"),
        ({"n": 10**5, "dim": 10**3}, ValueError, "n·dim must be <= 10000000"),
        ({"s": -1.0}, ValueError, "s must be .* >= 0"),
        ({"s": 1e7}, ValueError, "s must be .* <= 1e.06, got 10000000.0 .inf is allowed"),
        ({"s": "inf"}, TypeError, "s must be a number, got 'inf'"),
        ({"starts": 0}, ValueError, "starts must be >= 1, got 0"),
        ({"tolerance": -1.0}, ValueError, "tolerance must be .* >= 0"),
        ({"seed": -1}, ValueError, "seed must be >= 0, got -1"),
        ({"seed": 2**64}, ValueError, "seed must be <= 9223372036854775807"),
    ],
    ids=str,
)
def test_bad_input(options, error, match):
    with pytest.raises(error, match=match):
        minimize_energy(**{"n": 5, **options})


def test_known_minimum():
    assert known_minimum(12, s=2.0) == pytest.approx(39, abs=1e-12)
    assert known_minimum(6, s=1.0) == pytest.approx(12 / math.sqrt(2) + 3 / 2, abs=1e-12)
    assert known_minimum(5, s=2.0) == pytest.approx(17 / 4, abs=1e-12)
    assert known_minimum(7, s=2.0) == pytest.approx(41 / 4, abs=1e-12)
    assert known_minimum(9, dim=2, s=0.0) == pytest.approx(-9 / 2 * math.log(9), abs=1e-12)
    assert known_minimum(8, dim=2, s=2.0) == pytest.approx(8 * (8**2 - 1) / 24, abs=1e-12)
    assert known_minimum(120, dim=4, s=2.0) == pytest.approx(5395, abs=1e-9)
    assert known_minimum(240, dim=8, s=2.0) == pytest.approx(16550, abs=1e-9)
    assert known_minimum(1) == known_minimum(1, s=0.0) == 0
    assert known_minimum(10, dim=6, s=math.inf) == math.pi / 2
    assert known_minimum(100, dim=2, s=math.inf) == pytest.approx(2 * math.pi / 100, abs=1e-15)
    assert known_minimum(120, dim=4, s=math.inf) == pytest.approx(math.pi / 5, abs=1e-14)
    assert known_minimum(10, dim=2, s=1e6) == pytest.approx(1.7976931348623157e308)  # capped


@pytest.mark.parametrize(
    "args", [(33,), (7, 3, 3.0), (7, 4), (24, 4), (15, 3, math.inf), (1, 3, math.inf), (9, 4, math.inf)]
)
def test_unknown_minimum(args):
    assert known_minimum(*args) is None
