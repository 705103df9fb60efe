"""Rotations of vectors that make them quantizable."""

import subprocess
import sys

import pytest
import torch

import hypersphere as hs
from hypersphere.rotation import quantize

D = 12


@pytest.fixture
def vectors():
    scales = torch.linspace(0.3, 3, D)
    mix = torch.linalg.qr(torch.randn(D, D)).Q
    return (torch.randn(400, D) * scales) @ mix + 0.5


def error(turn, x):
    """The quantization error of the rotated vectors, with the scale of ±1 as it is."""
    return (turn.decode(turn.codes(x)) - turn(x)).square().sum().item()


@pytest.mark.parametrize("bits", quantize.BITS)
@pytest.mark.parametrize("method", quantize.METHODS)
def test_the_matrix_is_orthogonal_and_the_mean_is_gone(method, bits, vectors):
    turn = hs.quantize.fit_rotation(vectors, bits, method=method, iterations=5)
    torch.testing.assert_close(turn.matrix @ turn.matrix.mT, torch.eye(D), rtol=0, atol=1e-5)
    torch.testing.assert_close(turn(vectors), (vectors - vectors.mean(0)) @ turn.matrix.mT)
    torch.testing.assert_close(turn(vectors).mean(0), torch.zeros(D), rtol=0, atol=1e-5)


@pytest.mark.parametrize("bits", quantize.BITS)
def test_codes_are_those_of_a_loop(bits, vectors):
    turn = hs.quantize.fit_rotation(vectors, bits, iterations=3)
    rotated = turn(vectors[:5])
    for row, code, decoded in zip(rotated, turn.codes(vectors[:5]), turn.decode(turn.codes(vectors[:5])), strict=True):
        number = sum(int(byte) << (8 * i) for i, byte in enumerate(code))
        for i, (value, back) in enumerate(zip(row, decoded, strict=True)):
            level = number >> (bits * i) & (2**bits - 1)
            if bits == 1:
                assert level == (value > 0)
                assert back == (1 if value > 0 else -1)
            else:
                expected = round(float((value - turn.low[i]) / turn.step[i]))
                assert level == min(max(expected, 0), 2**bits - 1)
                torch.testing.assert_close(back, turn.low[i] + level * turn.step[i])


def test_rounds_of_itq_never_increase_the_error(vectors):
    errors = [error(hs.quantize.fit_rotation(vectors, iterations=n), vectors) for n in (1, 2, 4, 8, 16)]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 0.97 * error(hs.quantize.fit_rotation(vectors, method="random"), vectors)


def test_a_rotation_of_corners_of_the_cube_is_undone():
    """Vectors that are ±1 after a rotation: one bit loses nothing."""
    corners = torch.randint(2, (2000, 6)) * 2.0 - 1
    turned = corners @ torch.linalg.qr(torch.randn(6, 6)).Q
    best = min(error(hs.quantize.fit_rotation(turned, center=False, seed=s), turned) for s in range(8))
    assert best < 1e-3


def test_learned_keeps_inner_products_better_than_a_random_rotation(vectors):
    def mismatch(method):
        turn = hs.quantize.fit_rotation(vectors, method=method, iterations=20)
        centred = vectors - turn.mean
        wanted, got = centred @ centred.mT, (turn.decode(turn.codes(vectors)) @ turn.decode(turn.codes(vectors)).mT)
        return 1 - (wanted * got).sum() / (wanted.norm() * got.norm())

    assert mismatch("learned") < 0.9 * mismatch("random")


def test_truncation_keeps_inner_products_best(vectors):
    """What is lost of the Gram matrix are its smallest eigenvalues; no map of so many rows loses less."""
    values = torch.linalg.eigvalsh((vectors.mT @ vectors).double())
    gram = vectors @ vectors.mT
    whole = hs.quantize.truncate(vectors, D)
    for dimensions in (1, 5, D):
        matrix = hs.quantize.truncate(vectors, dimensions)
        assert torch.equal(matrix, whole[:dimensions])
        torch.testing.assert_close(matrix @ matrix.mT, torch.eye(dimensions), rtol=0, atol=1e-5)
        lost = (gram - (vectors @ matrix.mT) @ (vectors @ matrix.mT).mT).norm().square().item()
        assert lost == pytest.approx(values[: D - dimensions].square().sum().item(), rel=1e-3, abs=1)


@pytest.mark.parametrize("method", quantize.METHODS)
def test_scales_and_arrays_do_not_matter(method, vectors):
    def fit(x):
        return hs.quantize.fit_rotation(x, 4, method=method, iterations=3)

    expected = fit(vectors)
    array = vectors.flip(0).numpy().astype(">f4")[::-1]
    array.flags.writeable = False
    for x in (array, vectors * 2.0**90, vectors * 2.0**-90):
        torch.testing.assert_close(fit(x).matrix, expected.matrix)
        assert torch.equal(fit(x).codes(x), expected.codes(vectors))
        torch.testing.assert_close(hs.quantize.truncate(x, 2).abs(), hs.quantize.truncate(vectors, 2).abs())
    assert fit(torch.ones(5, 3)).matrix.isfinite().all()


def test_file(tmp_path, vectors):
    turn = hs.quantize.fit_rotation(vectors, 4, iterations=2)
    turn.save(tmp_path / "turn.safetensors")
    again = quantize.VectorRotation.load(tmp_path / "turn.safetensors")
    assert torch.equal(again.codes(vectors), turn.codes(vectors))
    assert repr(again) == "VectorRotation(12 dimensions, 4 bits)"
    hs.rotation.save_rotations(hs.rotate(torch.nn.Linear(3, 2), layers=""), tmp_path / "other.safetensors")
    with pytest.raises(ValueError, match=r"other\.safetensors is not a rotation of vectors"):
        quantize.VectorRotation.load(tmp_path / "other.safetensors")


def test_bad_input(vectors):
    fit = hs.quantize.fit_rotation
    for call, message in (
        (lambda: fit(vectors[0]), r"x must be \(N, d\) and not empty, got \(12,\)"),
        (lambda: fit(vectors, 2), "bits must be one of 1, 4, 8"),
        (lambda: hs.quantize.truncate(vectors, D + 1), "dimensions must be <= 12, got 13"),
        (lambda: fit(vectors, method="pq"), "method must be one of itq, learned, random, none"),
        (lambda: fit(vectors / 0), "x must be finite, got NaN or infinity in 400 rows"),
        (lambda: fit(vectors)(vectors[:, :3]), r"x must be \(N, 12\) and not empty, got \(400, 3\)"),
        (lambda: fit(vectors).decode(torch.zeros(3, 5, dtype=torch.uint8)), r"codes must be uint8 \(N, 2\)"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
    with pytest.raises(TypeError, match=r"x must have a floating point dtype, got torch\.int64"):
        fit(torch.ones(3, 3, dtype=torch.int64))


@pytest.mark.slow
def test_it_is_there_when_nothing_else_was_imported():
    subprocess.run([sys.executable, "-c", "import hypersphere as hs; hs.quantize.fit_rotation"], check=True)
