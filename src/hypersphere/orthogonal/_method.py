"""A method of OPT: its parameters P, their start, the matrix R and its product with neurons."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce, wraps
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from .._internal import checks
from .._internal.overflow import clamp_abs, finite_gradient, max_root, power_of_two_divisor, rescale, saturating_cast
from .._internal.precision import accumulation_dtype, autocast_enabled, without_autocast

Product = Callable[[Tensor, Tensor], Tensor]
INITS = ("identity", "normal")
_EXACT = ({torch.float32}, {torch.float64})


@dataclass(frozen=True)
class Orthogonalizer:
    """A map from learnable parameters P to a matrix R.

    Args:
        name: the method's name in :func:`hypersphere.rotate`, and the last part of its key in a state_dict.
        shape: m → the shape of P for a block of m dimensions.
        start: (m, init) → P, with init "identity" (R = I) or "normal" (N(0, 1)); raises ValueError if unsupported.
        matrix: P (..., *shape) → R (..., m, m).
        apply: (P, V) → V Rᵀ for rows V (..., n, m), without computing R if that is cheaper.
        orthogonal: whether R is always orthogonal.
        free: m → the degrees of freedom of a block; None: m(m−1)/2 if orthogonal, else the size of P.

    Example:
        >>> flip = Orthogonalizer(
        ...     "signs",
        ...     shape=lambda m: (m,),
        ...     start=lambda m, init: torch.ones(m),
        ...     matrix=lambda p: torch.diag_embed(p.sign()),
        ...     apply=lambda p, v: v * p.sign().unsqueeze(-2),
        ... )
        >>> flip.apply(torch.tensor([1.0, -2.0]), torch.tensor([[3.0, 4.0]]))
        tensor([[ 3., -4.]])
    """

    name: str
    shape: Callable[[int], tuple[int, ...]]
    start: Callable[[int, str], Tensor]
    matrix: Callable[[Tensor], Tensor]
    apply: Product
    orthogonal: bool = True
    free: Callable[[int], int] | None = None

    def count(self, m: int) -> int:
        """Return the degrees of freedom of a block of m dimensions."""
        if self.free is not None:
            return self.free(m)
        return m * (m - 1) // 2 if self.orthogonal else torch.Size(self.shape(m)).numel()


def square_shape(m: int) -> tuple[int, ...]:
    return (m, m)


def triangle_shape(m: int) -> tuple[int, ...]:
    return (m * (m - 1) // 2,)


def identity(m: int) -> Tensor:
    """Return the identity; all starts are float64, for parameters of any dtype."""
    return torch.eye(m, dtype=torch.float64)


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


def zeros(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.float64)


def identity_or_normal(m: int, init: str) -> Tensor:
    return identity(m) if init == "identity" else normal(m, m)


def zero_or_normal(m: int, init: str) -> Tensor:
    return zeros(*triangle_shape(m)) if init == "identity" else normal(*triangle_shape(m))


def normal_start(name: str, why: str) -> Callable[[int, str], Tensor]:
    """Make the start of a method that cannot be the identity."""

    def start(m: int, init: str) -> Tensor:
        if init == "identity":
            raise ValueError(f"init must be 'normal' for method {name!r}, {why}; got 'identity'")
        return normal(m, m)

    return start


def at_full_precision(function: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
    """Call function(*tensors) in at least float32, without autocast; the result has the last tensor's dtype."""
    for tensor in tensors:
        checks.floating("P and V", tensor)
    dtypes = {tensor.dtype for tensor in tensors}
    if dtypes in _EXACT and not autocast_enabled(tensors[-1]):
        return function(*tensors)
    dtype = accumulation_dtype(reduce(torch.promote_types, dtypes))
    with without_autocast(tensors[-1]):
        return saturating_cast(
            function(*(finite_gradient(t, torch.bfloat16).to(dtype) for t in tensors)), tensors[-1].dtype
        )


def scaled_product(product: Product, p: Tensor, v: Tensor) -> Tensor:
    """Call product(p, v), homogeneous in v, by :func:`at_full_precision`; huge rows v are scaled first."""
    checks.floating("P and V", v)
    up = power_of_two_divisor(v, max_root(v.dtype, 2 if v.dtype is torch.float16 else 4))
    if up == 1:
        return at_full_precision(product, p, v)
    return rescale(at_full_precision(product, rescale(p, 1.0, up), rescale(v, 1 / up, 1.0)), up, 1.0)


def clamp_parameters(p: Tensor) -> Tensor:
    """Clamp p to the fourth root of the largest number, so that products with itself and with rows are finite."""
    return clamp_abs(p, max_root(p.dtype, 4))


class RowsFunction(Function):
    """Multiply rows V with Rᵀ, without computing R.

    ``forward(numbers, rows, *options)`` returns the product, then intermediates for the backward pass.
    ``backward(ctx, grad)`` finds inputs and intermediates in ``ctx.saved_tensors`` and the rest in ``ctx.options``. For
    double backward (grad mode is on) it must start from the inputs, because intermediates have no history.
    """

    generate_vmap_rule = True

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        numbers, rows, *ctx.options = inputs
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(numbers, rows, *output[1:])


def in_full_precision(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a backward pass to run without autocast."""

    @wraps(backward)
    def exact(ctx: Any, grad: Tensor | None, *others: Any) -> Any:
        if grad is None:
            return (None,) * len(ctx.needs_input_grad)
        with without_autocast(grad):
            return backward(ctx, grad)

    return exact


def from_matrix(
    name: str,
    matrix: Callable[[Tensor], Tensor],
    *,
    start: Callable[[int, str], Tensor] = identity_or_normal,
    orthogonal: bool = False,
    free: Callable[[int], int] | None = None,
) -> Orthogonalizer:
    """Make a method that computes R from P (..., m, m)."""
    return Orthogonalizer(
        name,
        square_shape,
        start,
        matrix=lambda p: at_full_precision(lambda p: matrix(clamp_parameters(p)), p),
        apply=lambda p, v: scaled_product(lambda p, v: v @ matrix(clamp_parameters(p)).mT, p, v),
        orthogonal=orthogonal,
        free=free,
    )


def from_product(name: str, product: Product, *, size: Callable[[Tensor], int] | None = None) -> Orthogonalizer:
    """Make a method that computes V Rᵀ directly. `size`: m from a packed triangle P; None: P is (..., m, m)."""

    def matrix(p: Tensor) -> Tensor:
        m = p.shape[-1] if size is None else size(p)
        leading = p.shape[:-2] if size is None else p.shape[:-1]
        rows = torch.eye(m, dtype=accumulation_dtype(p.dtype), device=p.device).expand(*leading, m, m)
        return at_full_precision(lambda p: product(p, rows).mT, p)

    return Orthogonalizer(
        name,
        square_shape if size is None else triangle_shape,
        identity_or_normal if size is None else zero_or_normal,
        matrix,
        apply=lambda p, v: scaled_product(product, p, v),
    )
