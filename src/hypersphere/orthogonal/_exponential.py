"""Multiply rows with the exponential of a skew-symmetric matrix, by one symmetric eigenproblem in float64.

With S = −A², which is symmetric and has no negative eigenvalue,

    exp(A) = cos √S + A·(sin √S)/√S

so one factorization S = Z diag(λ) Zᵀ works for A of any norm, without scaling and squaring.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ._method import RowsFunction, in_full_precision
from ._packed import pack, skew


class ExponentialRows(RowsFunction):
    """Multiply rows V with exp(A)ᵀ: V cos √S − V (sin √S)/√S A.

    The gradient to S comes from the divided differences of both functions of λ (Daleckii and Krein), that to A from
    dS = −(dA A + A dA).
    """

    @staticmethod
    def forward(packed: Tensor, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        a = _clamped_skew(packed.double())
        values, z = torch.linalg.eigh(a.mT @ a)
        roots = values.clamp(min=0).sqrt()
        out = _rotate_rows(rows.double(), a, roots, z)
        return out.to(rows.dtype), roots, z

    @staticmethod
    @in_full_precision
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        packed, rows, roots, z = ctx.saved_tensors
        if torch.is_grad_enabled():
            return _differentiable_backward(packed, rows, grad)
        to_packed = to_rows = None
        if ctx.needs_input_grad[0]:
            to_packed = pack(_skew_gradient(_clamped_skew(packed), rows, grad, roots, z))
        if ctx.needs_input_grad[1]:
            to_rows = _rotate_rows(grad.double(), -_clamped_skew(packed.double()), roots, z).to(grad.dtype)
        return to_packed, to_rows


def _clamped_skew(packed: Tensor) -> Tensor:
    """Return A, its elements clamped to ±10⁵: sines of larger angles are inaccurate even in float64."""
    return skew(packed.clamp(-1e5, 1e5))


def _rotate_rows(rows: Tensor, a: Tensor, roots: Tensor, z: Tensor) -> Tensor:
    in_basis = rows @ z
    cosines, sines = roots.cos().unsqueeze(-2), _sinc(roots).unsqueeze(-2)
    return (in_basis * cosines) @ z.mT - (in_basis * sines) @ z.mT @ a


def _skew_gradient(a: Tensor, rows: Tensor, grad: Tensor, roots: Tensor, z: Tensor) -> Tensor:
    """Compute the gradient of A minus its transpose: that of the packed upper triangle."""
    of_cosine, of_sine = _divided_differences(roots, a.dtype)
    sines, z = _sinc(roots).to(a.dtype).unsqueeze(-2), z.to(a.dtype)
    v, g, e = (x @ z for x in (rows, grad, grad @ a))  # e: of G·(−A)ᵀ
    to_s = (v.mT @ g).mul_(of_cosine).add_((v.mT @ e).mul_(of_sine))
    to_s = z @ (to_s + to_s.mT) @ z.mT  # twice the symmetric part, as in S A − (S A)ᵀ less its transpose
    through = to_s @ a + grad.mT @ ((v * sines) @ z.mT)
    return through - through.mT


def _sinc(x: Tensor) -> Tensor:
    return torch.sinc(x / torch.pi)


def _divided_differences(roots: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Compute [f(a) − f(b)]/(a − b) of cos √ and of sin √/√ for all pairs of eigenvalues; f′ where they are equal.

    With s and h half the sum and half the difference of the roots x and y of a and b, the first is
    −½ sinc s sinc h and the second ½ (cos s sinc h − sinc s cos h)/(xy). Where xy is too small for that, the roots
    are apart (the plain quotient) or both small (the series). sin s and the others come from the sines and cosines of
    x/2 and y/2, so none is computed for a whole matrix.
    """
    sine, cosine, sinc = ((roots / 2).sin().to(dtype), (roots / 2).cos().to(dtype), _sinc(roots).to(dtype))
    x, y = roots.to(dtype).unsqueeze(-1), roots.to(dtype).unsqueeze(-2)
    a, b = x * x, y * y
    mixed, both_cosines, both_sines = _outer(sine, cosine), _outer(cosine, cosine), _outer(sine, sine)
    sinc_s, sinc_h = _safe_sinc((x + y) / 2, mixed + mixed.mT), _safe_sinc((x - y) / 2, mixed - mixed.mT)
    cos_s, cos_h = both_cosines - both_sines, both_cosines + both_sines

    larger, difference = torch.maximum(a, b), a - b
    apart, small = difference.abs() > larger / 2, larger < 0.04
    quotient = (sinc.unsqueeze(-1) - sinc.unsqueeze(-2)) / torch.where(apart, difference, 1.0)
    product = (cos_s * sinc_h - sinc_s * cos_h) / (2 * torch.where(apart | small, 1.0, x * y))
    return sinc_s * sinc_h / -2, torch.where(small, _series(a, b), torch.where(apart, quotient, product))


def _outer(x: Tensor, y: Tensor) -> Tensor:
    return x.unsqueeze(-1) * y.unsqueeze(-2)


def _safe_sinc(angle: Tensor, sine: Tensor) -> Tensor:
    """Compute sin x/x from sin x, by its series where x is small."""
    square = angle * angle
    series = 1 - square / 6 * (1 - square / 20 * (1 - square / 42))
    near = square < 0.01
    return torch.where(near, series, sine / torch.where(near, 1.0, angle))


def _series(a: Tensor, b: Tensor) -> Tensor:
    """Compute the divided difference of sin √/√ by its series: −1/3! + h₁/5! − h₂/7! + h₃/9!, hₖ = Σ aⁱbᵏ⁻ⁱ."""
    total, product = a + b, a * b
    square = total * total
    return total * (square - 2 * product + 3024) / 362880 - (square - product) / 5040 - 1 / 6


def _differentiable_backward(packed: Tensor, rows: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the gradients with torch's exponential, for double backward: exp of [[−A, GᵀV], [0, −A]]."""
    a = _clamped_skew(packed.double())
    outer = grad.mT.double() @ rows.double()
    top = torch.cat([-a, outer], -1)
    both = torch.linalg.matrix_exp(torch.cat([top, torch.cat([torch.zeros_like(a), -a], -1)], -2))
    m = a.shape[-1]
    to_a = both[..., :m, m:]
    to_rows = grad.double() @ both[..., :m, :m].mT
    return pack(to_a - to_a.mT).to(packed.dtype), to_rows.to(grad.dtype)
