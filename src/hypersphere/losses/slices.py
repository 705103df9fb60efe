"""How evenly embeddings are spread, seen along random directions: the cost is linear in the batch.

The characteristic function φ̂(t) = mean_n exp(i·t·⟨x_n, a⟩) of a slice, along a unit direction a, is compared with the
one φ that the wanted distribution has along every direction:

    N·Σ_k w_k·|φ̂(t_k) − φ(t_k)|²,  mean over the slices,

at 17 knots t_k in [0, 3] with w_k = Δt·exp(−t_k²/2), twice that but at the ends (the trapezoidal rule on [−3, 3]).

================  ===================================  ============================================================
loss              rows                                 φ(t)
================  ===================================  ============================================================
sigreg            as they are                          exp(−t²/2): a standard normal distribution (LeJEPA, 2025)
sphere_uniformity scaled to length √d                  ₀F₁(; d/2; −d·t²/4): uniform on the sphere of radius √d
================  ===================================  ============================================================

The second tends to the first for many dimensions. Shapes: B batch, d embedding size, S slices, K knots.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from .._internal import checks, draws
from .._internal.functions import apply, is_transformed
from .._internal.overflow import shrink_huge
from .._internal.precision import without_autocast
from ..layers.cosine import unit
from .evenness import as_rows

KNOTS, LAST = 17, 3.0
_TILE = 2**18  # numbers of a block of slices: 1 MB in float32


def sigreg(embeddings: Tensor, slices: int | Tensor = 1024, *, seed: int = 0, step: int = 0) -> Tensor:
    """Compute how far the embeddings are from a standard normal distribution (SIGReg).

    Args:
        embeddings: (B, d), as they are.
        slices: the number of random directions, drawn from (seed, step) alone; or the directions (d, S), of length one.
        seed, step: of the draw. Draw anew at each step.

    Example:
        >>> sigreg(torch.zeros(4, 2)) > 100 * sigreg(torch.randn(1000, 2)) / 1000
        tensor(True)
    """
    rows = shrink_huge(as_rows("embeddings", embeddings), (1,))  # so that products along the slices are finite
    with without_autocast(rows):
        return _compare(rows, _directions(rows, slices, seed, step), _normal())


def sphere_uniformity(embeddings: Tensor, slices: int | Tensor = 1024, *, seed: int = 0, step: int = 0) -> Tensor:
    """Compute how far the directions of embeddings are from the uniform distribution on the sphere.

    Its expectation for B uniform points is Σ_k w_k·(1 − φ(t_k)²), about 0.83 in many dimensions.

    Args:
        embeddings: (B, d), rows of any length.
        slices, seed, step: as in :func:`sigreg`.

    Example:
        >>> clustered, even = torch.randn(500, 3) + 1, torch.randn(500, 3)
        >>> sphere_uniformity(clustered) > 10 * sphere_uniformity(even)
        tensor(True)
    """
    rows = as_rows("embeddings", embeddings)
    with without_autocast(rows):
        scaled = unit(rows) * math.sqrt(rows.shape[1])
        return _compare(scaled, _directions(rows, slices, seed, step), _uniform(rows.shape[1]))


def _directions(rows: Tensor, slices: int | Tensor, seed: int, step: int) -> Tensor:
    """Return unit directions (d, S), the same in every process."""
    d = rows.shape[1]
    if isinstance(slices, Tensor):
        if slices.dim() != 2 or len(slices) != d or not slices.shape[1]:
            raise ValueError(f"slices must be a number or directions ({d}, S), got {tuple(slices.shape)}")
        return slices.to(rows)
    count = checks.integer("slices", slices, low=1)
    generator = draws.generator(checks.integer("seed", seed), "slices", checks.integer("step", step, low=0))
    return unit(torch.randn(count, d, generator=generator).to(rows)).mT


def _knots() -> tuple[Tensor, Tensor]:
    """Return the knots t and weights w (K,) in float64."""
    t = torch.linspace(0, LAST, KNOTS, dtype=torch.float64, device="cpu")
    w = 2 * (t[1] - t[0]) * (-t.square() / 2).exp()
    w[[0, -1]] /= 2
    return t, w


def _normal() -> Tensor:
    return (-_knots()[0].square() / 2).exp()


def _uniform(d: int) -> Tensor:
    """Return ₀F₁(; d/2; −d·t²/4) at the knots, by its series, whose terms are below e^(t²/2) < 91."""
    z, total = -d * _knots()[0].square() / 4, torch.zeros(KNOTS, dtype=torch.float64, device="cpu")
    term = torch.ones_like(total)
    for k in range(60):
        total = total + term
        term = term * z / ((d / 2 + k) * (k + 1))
    return total


def _compare(rows: Tensor, directions: Tensor, expected: Tensor) -> Tensor:
    if is_transformed() or torch.compiler.is_compiling():
        return _plain_statistic(rows, directions, expected)
    value: Tensor = apply(_Statistic, rows, directions, expected)[0]
    return value


def _plain_statistic(rows: Tensor, directions: Tensor, expected: Tensor) -> Tensor:
    """Compute the statistic by operations with all derivatives, knot after knot."""
    along, (t, w) = rows @ directions, _knots()
    value = rows.new_zeros(())
    for knot, weight, phi in zip(t.tolist(), w.tolist(), expected.tolist(), strict=True):
        real, imaginary = (along * knot).cos().mean(0) - phi, (along * knot).sin().mean(0)
        value = value + weight * (real.square() + imaginary.square()).mean()
    return len(rows) * value


class _Statistic(Function):
    """The statistic, a block of slices at a time; the means of cos and sin at the knots (K, S) are saved."""

    @staticmethod
    def forward(rows: Tensor, directions: Tensor, expected: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        slices = directions.shape[1]
        means = rows.new_empty(2, KNOTS - 1, slices)
        for block in _blocks(rows, slices):
            angles = (rows @ directions[:, block]).mul_(LAST / (KNOTS - 1))
            for k, (cos, sin) in enumerate(_multiples(angles)):
                torch.mean(cos, 0, out=means[0, k, block])
                torch.mean(sin, 0, out=means[1, k, block])
        real = means[0] - expected[1:].to(rows).unsqueeze(1)  # at t = 0 both are 1
        w = _knots()[1][1:].to(rows)
        value = len(rows) * (w @ (real.square() + means[1].square()).mean(1))
        return value, real, means[1]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.save_for_backward(*inputs, *output[1:])
        ctx.mark_non_differentiable(*output[1:])

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor, None, None]:
        rows, directions, expected, real, imaginary = ctx.saved_tensors
        if torch.is_grad_enabled():
            (exact,) = torch.autograd.grad(_plain_statistic(rows, directions, expected), rows, create_graph=True)
            return exact * grad, None, None
        t, w = (x[1:].to(rows) for x in _knots())
        factor = (2 * grad * w * t / directions.shape[1]).unsqueeze(1)  # N·(1/N)
        real, imaginary = real * factor, imaginary * factor
        result = torch.zeros_like(rows)
        for block in _blocks(rows, directions.shape[1]):
            angles = (rows @ directions[:, block]).mul_(LAST / (KNOTS - 1))
            slope = torch.zeros_like(angles)
            for k, (cos, sin) in enumerate(_multiples(angles)):
                slope.addcmul_(cos, imaginary[k, block]).addcmul_(sin, real[k, block], value=-1)
            result.addmm_(slope, directions[:, block].mT)
        return result, None, None


def _blocks(rows: Tensor, slices: int) -> list[slice]:
    size = max(_TILE // len(rows), 8)
    return [slice(start, min(start + size, slices)) for start in range(0, slices, size)]


def _multiples(angles: Tensor) -> Any:
    """Yield cos(k·θ) and sin(k·θ) for k = 1 to K − 1, by cos((k+1)θ) = 2·cos θ·cos kθ − cos((k−1)θ); overwrites θ."""
    cos, sin = angles.cos(), angles.sin()
    twice = torch.mul(cos, 2, out=angles)
    before = [torch.ones_like(cos), torch.zeros_like(sin)]
    now = [cos, sin]
    for k in range(1, KNOTS):
        yield now[0], now[1]
        if k < KNOTS - 1:
            before, now = now, [torch.addcmul(old.neg_(), twice, new) for old, new in zip(before, now, strict=True)]
