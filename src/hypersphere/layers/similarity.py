"""Similarities g(θ) as functions of the cosine, with exact derivatives (SphereNet, 2.1 and 2.5).

==========  ==========================================  =======================================
name        g(θ)                                        computed from c = cos θ as
==========  ==========================================  =======================================
cosine      cos θ                         (Eq. 3)       c
linear      aθ + b                        (Eq. 2)       −a·asin(c) + (b + aπ/2)
sigmoid     Eq. 4, curvature k > 0                      coth(π/4k)·tanh(asin(c)/2k)
learnable   sigmoid whose k is learned    (2.5)         the same, k = exp(log_k)
==========  ==========================================  =======================================

θ enters only through asin(c), whose derivative 1/√(1−c²) is infinite at c = ±1. It is bounded here, once, by
1/√eps of the dtype (2896 in float32). At θ = 0 and θ = π the cosine itself has derivative 0 with respect to input and
weight, so the gradient that reaches them there is 0, but for rounding (1e-3/‖x‖ in float32, 3e-8/‖x‖ in float64).

A similarity is a name of :data:`SIMILARITIES`, optionally with numbers ("sigmoid(0.7)", "linear(-0.5, 0.8)"),
a module, or any callable of the cosine. It is always called with the filters on dimension 1.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function

from .._internal import checks
from .._internal.functions import apply, chain, is_transformed, or_zeros, save
from .._internal.nearest import unknown
from .._internal.overflow import ClampWithInwardGradient, finite_gradient
from .._internal.precision import accumulation_dtype

__all__ = ["SIMILARITIES", "LearnableSigmoid", "angle", "cosine", "linear", "sigmoid"]
_K_RANGE = (1e-4, 1e2)  # of a learnable sigmoid


def cosine(c: Tensor) -> Tensor:
    """Compute g(θ) = cos θ (Eq. 3): the cosine, clamped to [-1, 1].

    Example:
        >>> cosine(torch.tensor([-1.0, 0.0, 1.0]))
        tensor([-1.,  0.,  1.])
    """
    return c.clamp(-1, 1)


def linear(c: Tensor, a: float = -2 / math.pi, b: float = 1.0) -> Tensor:
    """Compute g(θ) = aθ + b (Eq. 2); the default falls from 1 at θ = 0 to −1 at θ = π.

    Example:
        >>> linear(torch.tensor([-1.0, 0.0, 1.0]))
        tensor([-1.,  0.,  1.])
    """
    y: Tensor = apply(_LinearOfCosine, finite_gradient(c), checks.number("a", a), checks.number("b", b))
    return y


def sigmoid(c: Tensor, k: float | Tensor = 0.3) -> Tensor:
    """Compute g(θ) of Eq. 4: a step for k → 0, the linear similarity for k → ∞.

    Args:
        c: cosines (B, N, ...).
        k: a positive number, or a tensor that broadcasts to c's shape (not checked; it receives a gradient).

    Example:
        >>> sigmoid(torch.tensor([-1.0, 0.0, 0.5, 1.0]), k=0.5)
        tensor([-1.0000,  0.0000,  0.5239,  1.0000])
    """
    if not isinstance(k, Tensor):
        k = _clamp_k(checks.number("k", k, low=0.0, open_low=True))
    else:
        k = finite_gradient(k).to(accumulation_dtype(k.dtype))  # k² underflows in float16
    y: Tensor = apply(_SigmoidOfCosine, finite_gradient(c), k)
    return y


def angle(c: Tensor) -> Tensor:
    """Compute θ = arccos(c) in [0, π], with the derivative bounded as above."""
    theta: Tensor = apply(_LinearOfCosine, finite_gradient(c), 1.0, 0.0)
    return theta


def learned_k(log_k: Tensor) -> Tensor:
    """Compute k = exp(log_k) in its range, in at least float32."""
    clamped: Tensor = apply(
        ClampWithInwardGradient, log_k.to(accumulation_dtype(log_k.dtype)), *map(math.log, _K_RANGE)
    )
    return clamped.exp()


class LearnableSigmoid(nn.Module):
    """The sigmoid similarity with a learned k = exp(log_k), which is always positive (2.5).

    One k for every filter with `num_filters`, one for the layer without. Layers that are given the same module share
    its k.

    Args:
        num_filters: the number of filters, or None.
        k: the start of k, in [1e-4, 100] (the paper's 0.5). k is clamped to this range: outside of it g is a step or,
            to 2e-5, the linear similarity. If log_k leaves it, only gradients that lead back pass.

    Example:
        >>> g = LearnableSigmoid(num_filters=3)
        >>> g(torch.zeros(8, 3, 5, 5)).shape, g.k
        (torch.Size([8, 3, 5, 5]), tensor([0.5000, 0.5000, 0.5000], grad_fn=<ExpBackward0>))
    """

    def __init__(
        self,
        num_filters: int | None = None,
        k: float = 0.5,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.start = checks.number("k", k, low=_K_RANGE[0], high=_K_RANGE[1])
        shape = () if num_filters is None else (checks.integer("num_filters", num_filters, low=1),)
        self.num_filters = num_filters
        self.log_k = nn.Parameter(torch.empty(shape, device=device, dtype=checks.floating_dtype(dtype)))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.constant_(self.log_k, math.log(self.start))

    @property
    def k(self) -> Tensor:
        return learned_k(self.log_k)

    def forward(self, c: Tensor) -> Tensor:
        if self.num_filters is None:
            return sigmoid(c, self.k)
        if c.dim() < 2 or c.shape[1] != self.num_filters:
            raise ValueError(f"c must have {self.num_filters} filters on dimension 1, got shape {tuple(c.shape)}")
        return sigmoid(c, self.k.view(-1, *[1] * (c.dim() - 2)))

    def at_angle(self, theta: Tensor, filters: Tensor) -> Tensor:
        """Compute g at angles (B,), each with the k of the filter of its index (B,)."""
        return _sigmoid_at_angle(theta, self.k if self.num_filters is None else self.k[filters])

    def extra_repr(self) -> str:
        return "" if self.num_filters is None else f"num_filters={self.num_filters}"


@dataclass(frozen=True, repr=False)
class Similarity:
    """An entry of the table with its numbers: callable, comparable, printed as the string that makes it.

    The numbers are kept as text, because torch.compile takes a float that differs between two layers for a variable.
    """

    name: str
    numbers: tuple[str, ...] = ()

    def __call__(self, c: Tensor) -> Tensor:
        y: Tensor = SIMILARITIES[self.name](c, *map(float, self.numbers))
        return y

    def at_angle(self, theta: Tensor, filters: Tensor) -> Tensor:
        """Compute g at angles (B,); the filters do not matter."""
        if self.name not in _AT_ANGLE:
            return self(theta.cos())
        return _AT_ANGLE[self.name](theta, *map(float, self.numbers))

    def __repr__(self) -> str:
        return f"{self.name}({', '.join(self.numbers)})" if self.numbers else self.name


#: name → function of the cosine (then of its numbers), or a module class made for each layer
SIMILARITIES: dict[str, Callable[..., Any]] = {
    "cosine": cosine,
    "linear": linear,
    "sigmoid": sigmoid,
    "learnable": LearnableSigmoid,
}


def _linear_at_angle(theta: Tensor, a: float = -2 / math.pi, b: float = 1.0) -> Tensor:
    return a * theta + b


def _sigmoid_at_angle(theta: Tensor, k: float | Tensor = 0.3) -> Tensor:
    k = torch.as_tensor(k, dtype=theta.dtype, device=theta.device)
    return torch.tanh((math.pi / 2 - theta) / (2 * k)) / torch.tanh(math.pi / (4 * k))


# The same functions of the angle, for margins: through the cosine, half the digits would be lost. Entries of
# SIMILARITIES that are not here go through the cosine.
_AT_ANGLE: dict[str, Callable[..., Tensor]] = {
    "cosine": torch.cos,
    "linear": _linear_at_angle,
    "sigmoid": _sigmoid_at_angle,
}


def resolve(
    similarity: str | Callable[[Tensor], Tensor],
    num_filters: int,
    *,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> Callable[[Tensor], Tensor]:
    """Return the callable for `similarity` in a layer with `num_filters` filters; a new module for "learnable"."""
    if not isinstance(similarity, str):
        if not callable(similarity) or isinstance(similarity, type):
            raise TypeError(f"similarity must be a name, a module or a callable of the cosine, got {similarity!r}")
        if isinstance(similarity, LearnableSigmoid) and similarity.num_filters not in (None, num_filters):
            raise ValueError(
                f"similarity has {similarity.num_filters} filters, but the layer has {num_filters}; "
                "LearnableSigmoid(num_filters=None) fits any layer"
            )
        return similarity
    name, numbers = parse(similarity)
    try:
        values = [float(number) for number in numbers]
    except ValueError:
        raise ValueError(f"similarity {similarity!r}: the numbers in parentheses must be floats") from None
    try:
        if isinstance(SIMILARITIES[name], type):
            module: Callable[[Tensor], Tensor] = SIMILARITIES[name](num_filters, *values, device=device, dtype=dtype)
            return module
        SIMILARITIES[name](torch.zeros((), device="cpu"), *values)  # the function checks its own numbers
    except (TypeError, ValueError) as error:
        raise ValueError(f"similarity {similarity!r}: {error}") from None
    return Similarity(name, numbers)


def parse(similarity: str) -> tuple[str, tuple[str, ...]]:
    """Split "linear(-0.5, 0.8)" into ("linear", ("-0.5", "0.8"))."""
    match = re.fullmatch(r"\s*(\w+)\s*(?:\(([^()]*)\))?\s*", similarity)
    name = match[1] if match else similarity
    if not match or name not in SIMILARITIES:
        also = ", with numbers as in 'sigmoid(0.7)', or a callable"
        raise ValueError(unknown("similarity", similarity, SIMILARITIES, also))
    return name, tuple(part.strip() for part in match[2].split(",")) if (match[2] or "").strip() else ()


def _asin_slope(c: Tensor, *steps: tuple[Any, ...]) -> Tensor:
    """Compute d asin(c)/dc = 1/√(1−c²), bounded by 1/√eps, and the steps of a chain; the only place that does."""
    squares = torch.addcmul(c.new_ones(()), c, c, value=-1)
    return chain(squares, ("clamp_min", torch.finfo(c.dtype).eps), ("rsqrt",), *steps)


class _LinearOfCosine(Function):
    """a·arccos(c) + b."""

    generate_vmap_rule = True

    @staticmethod
    def forward(c: Tensor, a: float, b: float) -> Tensor:
        exact = c.to(accumulation_dtype(c.dtype))
        return _linear_of_asin_(exact.clamp(-1, 1).asin_(), a, b).to(c.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        c, ctx.a, _ = inputs
        save(ctx, c)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (c,) = ctx.saved_tensors
        exact = c.to(accumulation_dtype(c.dtype))
        return _asin_slope(exact, ("mul", grad), ("mul", -ctx.a)).to(c.dtype), None, None

    @staticmethod
    def tangents(ctx: Any, dc: Tensor, *_: Any) -> Tensor:
        (c,) = ctx.saved_tensors
        return (_asin_slope(c.to(accumulation_dtype(c.dtype))) * dc * -ctx.a).to(c.dtype)


class _SigmoidOfCosine(Function):
    """A·tanh(asin(c)/2k) with A = coth(π/4k); saves c and the result only.

    tanh(u) is computed as 2·σ(2u) − 1, three times as fast, with an error of about 2e-7·k in float32; for a large
    number k tanh is used.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(c: Tensor, k: float | Tensor) -> Tensor:
        exact = c.to(accumulation_dtype(c.dtype))
        return _sigmoid_of_asin_(exact.clamp(-1, 1).asin_(), k).to(c.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        c, k = inputs
        ctx.k = None if isinstance(k, Tensor) else k
        save(ctx, c, output, *([k] if isinstance(k, Tensor) else []))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor | None]:
        c, y, *learned = ctx.saved_tensors
        k = learned[0] if learned else ctx.k
        exact = c.to(accumulation_dtype(c.dtype))
        scale = _coth(k)
        # (1 − tanh²)·grad
        rise = chain(y / scale, ("square",), ("neg",), ("add", 1), ("mul", grad))
        grad_k = None
        if learned and ctx.needs_input_grad[1]:
            # dA/dk = (A² − 1)·π/4k² and d(asin(c)/2k)/dk = −asin(c)/2k²
            steep = (scale - 1 / scale) * (_half_pi() / 2)
            asin = linear(exact, -1.0, _half_pi())
            grad_k = chain(grad * y, ("mul", steep), ("sub", chain(asin, ("mul", rise), ("mul", scale * 0.5))))
            grad_k = (grad_k.sum_to_size(k.shape) / k.square()).to(k.dtype)
        return _asin_slope(exact, ("mul", rise), ("mul", scale * 0.5 / k)).to(c.dtype), grad_k

    @staticmethod
    def tangents(ctx: Any, dc: Tensor | None, dk: Tensor | None) -> Tensor:
        c, y, *learned = ctx.saved_tensors
        k = learned[0] if learned else ctx.k
        exact, scale = c.to(accumulation_dtype(c.dtype)), _coth(k)
        rise = 1 - (y / scale).square()
        dy = _asin_slope(exact) * rise * (scale * 0.5 / k) * or_zeros(dc, c)
        if dk is not None:
            steep = (scale - 1 / scale) * (_half_pi() / 2)
            dy = dy + (y * steep - linear(exact, -1.0, _half_pi()) * rise * (scale * 0.5)) / k.square() * dk
        return dy.to(y.dtype)


def _linear_of_asin_(asin: Tensor, a: float, b: float) -> Tensor:
    offset = b + a * _half_pi()
    asin.mul_(-a)
    return asin.add_(offset) if offset else asin


def _sigmoid_of_asin_(asin: Tensor, k: float | Tensor) -> Tensor:
    scale, transformed = _coth(k), is_transformed()
    if isinstance(k, Tensor) or k < 5:
        y = asin * (1 / k) if transformed else asin.mul_(1 / k)  # k may be batched where asin is not
        y = y.sigmoid_().mul_(2 * scale).sub_(scale)
    else:
        y = asin.mul_(0.5 / k).tanh_().mul_(scale)
    return y.clamp(-1, 1) if transformed else y.clamp_(-1, 1)


class ChunkedSimilarity:
    """A similarity for chunks of cosines in [-1, 1]; this base class is the cosine."""

    saves_slope = False  # whether :meth:`value` saves the derivative, because it is cheaper than computing it again

    def value(self, c: Tensor, out: Tensor, slope: Tensor | None) -> Tensor:
        """Return g(c), in c or `out`, and write dg/dc to `slope` if given; without `slope`, `out` may be c."""
        return c

    def slope(self, c: Tensor) -> Tensor | None:
        """Compute dg/dc as a new tensor; None means 1."""
        return None


class _ChunkedLinear(ChunkedSimilarity):
    def __init__(self, a: float = -2 / math.pi, b: float = 1.0) -> None:
        self.a, self.b = a, b

    def value(self, c: Tensor, out: Tensor, slope: Tensor | None) -> Tensor:
        return _linear_of_asin_(torch.asin(c, out=out), self.a, self.b)

    def slope(self, c: Tensor) -> Tensor:
        return _asin_slope(c).mul_(-self.a)


class _ChunkedSigmoid(ChunkedSimilarity):
    saves_slope = True

    def __init__(self, k: float = 0.3) -> None:
        self.k = _clamp_k(k)

    def value(self, c: Tensor, out: Tensor, slope: Tensor | None) -> Tensor:
        y = _sigmoid_of_asin_(torch.asin(c, out=out), self.k)
        if slope is not None:  # then `out` is not c
            scale = _coth(self.k)
            torch.mul(y, 1 / scale, out=slope).square_().neg_().add_(1).mul_(_asin_slope(c)).mul_(scale * 0.5 / self.k)
        return y


#: function of the table → its chunked version
_CHUNKED: dict[Any, type[ChunkedSimilarity]] = {
    cosine: ChunkedSimilarity,
    linear: _ChunkedLinear,
    sigmoid: _ChunkedSigmoid,
}


def chunked(g: Callable[[Tensor], Tensor]) -> ChunkedSimilarity | None:
    """Return the chunked version of a similarity; None if it has parameters or is the user's own."""
    if isinstance(g, Similarity):
        kind = _CHUNKED.get(SIMILARITIES[g.name])
        return None if kind is None else kind(*map(float, g.numbers))
    return ChunkedSimilarity() if g is cosine else None


def _half_pi() -> float:
    """Return π/2 as a literal: torch.compile with dynamic shapes takes math.pi for a variable."""
    return 1.5707963267948966


def _clamp_k(k: float) -> float:
    """Clamp k so that k and 1/k are finite in float32."""
    return min(max(k, 1e-30), 1e30)


def _coth(k: float | Tensor) -> Any:
    """Compute coth(π/4k)."""
    return 1 / torch.tanh(_half_pi() / 2 / k) if isinstance(k, Tensor) else 1 / math.tanh(_half_pi() / 2 / k)
