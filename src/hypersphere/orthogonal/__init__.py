"""Orthogonal matrices from free parameters, and their products with neurons (OPT, 3.3–3.6, App. A).

========================  ==========================================================  =========  ================
method                    R                                                           det R      shape of P
========================  ==========================================================  =========  ================
gram_schmidt              Q of P = QT, diagonal of T positive (Algorithm 2)           sign det P  (m, m)
modified_gram_schmidt     the same map, computed in another order (Eq. 8)             sign det P  (m, m)
iterative_gram_schmidt    the same map, computed twice (Algorithm 3)                  sign det P  (m, m)
householder               Gram-Schmidt's, sign of the last column such that det = +1  +1         (m, m)
givens                    the same map, computed by plane rotations                   +1         (m, m)
lowdin                    P(PᵀP)^(−½), the orthogonal matrix nearest to P (Eq. 15)    sign det P  (m, m)
canonical                 the left singular vectors of P (Eq. 16)                     ±1         (m, m)
cayley                    (I + A)(I − A)⁻¹                                            +1         triangle of A
exponential               exp(A)                                                      +1         triangle of A
ogd                       P itself, kept orthogonal by :class:`hypersphere.OGD`       its own    (m, m)
========================  ==========================================================  =========  ================

A = T − Tᵀ with T strictly upper triangular. Methods that are not orthogonal: ``regularized`` and ``unconstrained`` (P
itself), and the constraints of generalized OPT (App. J) in ``_constraints``.

Shapes: m dimensions, n neurons (rows), any leading dimensions, one matrix per block.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from .._internal import checks
from .._internal.functions import apply
from .._internal.linalg import svd
from .._internal.overflow import NanGradientToZero, scale_to_one
from ._cayley import CayleyMatrix, cayley_rows
from ._constraints import CONSTRAINTS
from ._exponential import ExponentialRows
from ._method import INITS as INITS
from ._method import Orthogonalizer as Orthogonalizer
from ._method import Product, RowsFunction, at_full_precision, from_matrix, from_product, identity, normal, normal_start
from ._packed import matrix_size as matrix_size
from ._packed import pack as pack
from ._packed import pack_difference as pack_difference
from ._packed import skew as skew
from ._polar import PolarRows
from ._qr import QRRows


def gram_schmidt(matrix: Tensor) -> Tensor:
    """Orthonormalize the columns of `matrix` (..., m, m) one after the other (OPT, Algorithm 2).

    Computed as the Q of a QR factorization with positive diagonal, which is orthogonal up to rounding; the loop in
    float32 is not (2e-2 at m = 576). Linearly dependent columns get an arbitrary direction orthogonal to all.

    Example:
        >>> gram_schmidt(torch.tensor([[3.0, 1.0], [4.0, 0.0]]))
        tensor([[ 0.6000,  0.8000],
                [ 0.8000, -0.6000]])
    """
    return ORTHOGONALIZERS["gram_schmidt"].matrix(_check_square(matrix))


def householder(matrix: Tensor) -> Tensor:
    """Orthogonalize by reflections (OPT, Algorithm 4), the sign of the last column such that the determinant is +1.

    The paper's matrix has its last column times (−1)^(m−1) and cannot start at the identity.

    Example:
        >>> householder(torch.tensor([[3.0, 1.0], [4.0, 0.0]]))
        tensor([[ 0.6000, -0.8000],
                [ 0.8000,  0.6000]])
    """
    return ORTHOGONALIZERS["householder"].matrix(_check_square(matrix))


def givens(matrix: Tensor) -> Tensor:
    """Orthogonalize by plane rotations (OPT, 3.3): the same matrix as :func:`householder`."""
    return householder(matrix)


def lowdin(matrix: Tensor) -> Tensor:
    """Compute U(UᵀU)^(−½), the orthogonal matrix nearest to U (OPT, Eq. 15); the gradient only divides by σᵢ + σⱼ.

    Example:
        >>> lowdin(torch.tensor([[2.0, 0.0], [0.0, -5.0]]))
        tensor([[ 1.,  0.],
                [ 0., -1.]])
    """
    return ORTHOGONALIZERS["lowdin"].matrix(_check_square(matrix))


def canonical(matrix: Tensor) -> Tensor:
    """Compute the left singular vectors of `matrix`, UZ·d^(−½) with UᵀU = Z d Zᵀ (OPT, Eq. 16).

    Sorted by decreasing singular value; the largest element of each column is positive. For repeated singular values
    (of the identity, for example) the function is not continuous and the gradient is 0.

    Example:
        >>> canonical(torch.tensor([[0.0, -2.0], [1.0, 0.0]])).abs()
        tensor([[1., 0.],
                [0., 1.]])
    """
    return ORTHOGONALIZERS["canonical"].matrix(_check_square(matrix))


def cayley(matrix: Tensor) -> Tensor:
    """Compute (I + A)(I − A)⁻¹ with A = T − Tᵀ, T the strict upper triangle of `matrix` (OPT, 3.4).

    Example:
        >>> cayley(torch.tensor([[0.0, -1.0], [7.0, 7.0]]))
        tensor([[ 0., -1.],
                [ 1.,  0.]])
    """
    return ORTHOGONALIZERS["cayley"].matrix(pack(_check_square(matrix)))


def exponential(matrix: Tensor) -> Tensor:
    """Compute exp(A) with A = T − Tᵀ, T the strict upper triangle of `matrix` (OPT, 3.4), in float64.

    Example:
        >>> exponential(torch.tensor([[0.0, -torch.pi / 2], [0.0, 0.0]])).round(decimals=4) + 0.0
        tensor([[ 0., -1.],
                [ 1.,  0.]])
    """
    return ORTHOGONALIZERS["exponential"].matrix(pack(_check_square(matrix)))


def _check_square(matrix: Tensor) -> Tensor:
    checks.floating("matrix", matrix)
    if matrix.dim() < 2 or matrix.shape[-1] != matrix.shape[-2] or not matrix.numel():
        raise ValueError(f"matrix must be square matrices (..., m, m), got {tuple(matrix.shape)}")
    return matrix


def _product_of(function: type[RowsFunction], *options: bool, scale_free: tuple[int, ...] = ()) -> Product:
    """Make the product of a Function; R does not depend on the scale of P along the dimensions `scale_free`."""

    def product(p: Tensor, v: Tensor) -> Tensor:
        rows: Tensor = apply(function, scale_to_one(p, scale_free) if scale_free else p, v, *options)[0]
        return rows

    return product


def _canonical(p: Tensor) -> Tensor:
    u = svd(scale_to_one(apply(NanGradientToZero, p), (-2, -1)))[0]
    largest = u.detach().abs().argmax(-2, keepdim=True)
    return u * torch.where(u.detach().gather(-2, largest) < 0, -1.0, 1.0).to(u.dtype)


def _return_unchanged(p: Tensor) -> Tensor:
    return p


def _orthogonal_start(m: int, init: str) -> Tensor:
    return identity(m) if init == "identity" else gram_schmidt(normal(m, m))


_METHODS = [
    from_product("gram_schmidt", _product_of(QRRows, False, scale_free=(-2,))),
    from_product("modified_gram_schmidt", _product_of(QRRows, False, scale_free=(-2,))),
    from_product("iterative_gram_schmidt", _product_of(QRRows, False, scale_free=(-2,))),
    from_product("householder", _product_of(QRRows, True, scale_free=(-2,))),
    from_product("givens", _product_of(QRRows, True, scale_free=(-2,))),
    from_product("lowdin", _product_of(PolarRows, scale_free=(-2, -1))),
    from_matrix(
        "canonical",
        _canonical,
        start=normal_start("canonical", "which is not continuous at the identity"),
        orthogonal=True,
    ),
    replace(
        from_product("cayley", cayley_rows, size=matrix_size),
        matrix=lambda p: at_full_precision(lambda p: apply(CayleyMatrix, p), p),
    ),
    from_product("exponential", _product_of(ExponentialRows), size=matrix_size),
    replace(from_matrix("ogd", _return_unchanged, start=_orthogonal_start), orthogonal=True),
    from_matrix("regularized", _return_unchanged),
    from_matrix("unconstrained", _return_unchanged),
]
ORTHOGONALIZERS: dict[str, Orthogonalizer] = {method.name: method for method in _METHODS} | CONSTRAINTS
BUILT_IN = frozenset(ORTHOGONALIZERS)
