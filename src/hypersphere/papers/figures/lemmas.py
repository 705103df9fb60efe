"""Conditioning with and without the sphere (SphereNet, Lemmas 1 and 2): Hessians by automatic differentiation.

A layer UVᵀ with weights U (n, k) and inputs V (m, k) is to equal F, at an optimum with rows of length 1. Scaling it to
cU, V/c does not change the output. With N layers it is W_N···W_1·Vᵀ, scaled to cW_N, ..., cW_1, V/c^N (2.3).
Shapes: a Hessian is over the columns of U, then those of V, ((n + m)k)²; with N layers over W_N, ..., W_1, V.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...layers.cosine import unit
from ...report import line_chart
from .drawing import Drawing

Loss = Callable[..., Tensor]  # of the weights from the last layer to the first, then of the inputs
SCALES = (1.0, 1.5, 2.0, 3.0, 5.0, 8.0, 12.0, 20.0)  # c
SHAPES = ((6, 5, 3), (3, 5, 3))  # n, m, k: n > k, and n = k
DEPTHS, DEPTH_SCALES = (1, 2, 3, 4, 5), (1.0, 2.0, 3.0)  # N, and c for them
_ZERO = 1e-11  # eigenvalues below this share of the largest are zero; κ stays below 1e8 for these scales


def plain_loss(f: Tensor) -> Loss:
    """Return G(U, V) = ½‖F − UVᵀ‖² (Eq. 7), for N layers ½‖F − W_N···W_1·Vᵀ‖²."""

    def loss(*factors: Tensor) -> Tensor:
        *weights, inputs = factors
        output = inputs.mT
        for weight in reversed(weights):
            output = weight @ output
        return (f - output).square().sum() / 2

    return loss


def sphere_loss(f: Tensor) -> Loss:
    """Return G_S(U, V) = ½‖F − D_U·UVᵀ·D_V‖² with rows divided by their lengths (Eq. 8); for N layers in each."""

    def loss(*factors: Tensor) -> Tensor:
        *weights, inputs = factors
        output = inputs.mT
        for weight in reversed(weights):
            output = weight / weight.norm(dim=1, keepdim=True) @ (output / output.norm(dim=0, keepdim=True))
        return (f - output).square().sum() / 2

    return loss


def hessian(loss: Loss, *factors: Tensor) -> Tensor:
    """Compute the Hessian of a loss at (u, v), or at the factors of N layers, by automatic differentiation."""

    def of_columns(x: Tensor) -> Tensor:
        parts = x.split([factor.numel() for factor in factors])
        return loss(*(part.view(factor.mT.shape).mT for part, factor in zip(parts, factors, strict=True)))

    return torch.func.hessian(of_columns)(torch.cat([factor.mT.flatten() for factor in factors]))


def condition(matrix: Tensor) -> tuple[float, int]:
    """Return the restricted condition number, λ_max over the smallest nonzero λ, and how many λ are zero."""
    values = torch.linalg.eigvalsh(matrix)
    nonzero = values[values.abs() > _ZERO * values.max()]
    return float(values.max() / nonzero.min()), len(values) - len(nonzero)


def plain_hessian(u: Tensor, v: Tensor) -> Tensor:
    """Compute the closed form of ∇²G where UVᵀ = F (Eq. 12)."""
    eye_n, eye_m = (torch.eye(len(rows), dtype=rows.dtype) for rows in (u, v))
    return _blocks(torch.kron(v.mT @ v, eye_n), _box(u, v), torch.kron(u.mT @ u, eye_m))


def printed_hessian(u: Tensor, v: Tensor) -> Tensor:
    """Compute the closed form of ∇²G_S that the appendix prints (D.2), at rows of length 1 where UVᵀ = F.

    It is not the Hessian: the derivative of a row's length is missing in places, and it is not symmetric.
    """
    f = u @ v.mT  # 2UVᵀ − F
    (n, k), m = u.shape, len(v)
    columns = range(k)
    minus_u = torch.cat([torch.cat([torch.diag(u[:, p] * (f @ v[:, q])) for q in columns], 1) for p in columns])
    minus_v = torch.cat([torch.cat([torch.diag(v[:, p] * (f.mT @ u[:, q])) for q in columns], 1) for p in columns])
    cross = torch.cat([torch.cat([f * (u[:, p] * u[:, q])[:, None] for q in columns], 1) for p in columns])
    eye_n, eye_m = torch.eye(n, dtype=u.dtype), torch.eye(m, dtype=u.dtype)  # the appendix has I_n twice
    return _blocks(torch.kron(v.mT @ v, eye_n) - minus_u, _box(u, v) - cross, torch.kron(u.mT @ u, eye_m) - minus_v)


def _box(a: Tensor, b: Tensor) -> Tensor:
    """Compute A ⊠ B: the block in row p and column q is A_q·B_pᵀ of their columns."""
    k = a.shape[1]
    return torch.cat([torch.cat([torch.outer(a[:, q], b[:, p]) for q in range(k)], 1) for p in range(k)])


def _blocks(top: Tensor, cross: Tensor, bottom: Tensor) -> Tensor:
    return torch.cat([torch.cat([top, cross], 1), torch.cat([cross.mT, bottom], 1)])


def optimum(n: int, m: int, k: int) -> tuple[Tensor, Tensor]:
    """Draw U (n, k) and V (m, k) with rows of length 1; F is their product."""
    generator = torch.Generator().manual_seed(0)
    u, v = (unit(torch.randn(size, k, generator=generator, dtype=torch.float64)) for size in (n, m))
    return u, v


def measure(c: float) -> dict[str, Any]:
    """Compute the condition numbers at the scale c."""
    (u, v), (square, other) = (optimum(*shape) for shape in SHAPES)
    f, scaled = u @ v.mT, (c * u, v / c)
    kappa, zeros = condition(hessian(plain_loss(f), *scaled))
    return {
        "c": c,
        "κ of G": kappa,
        "closed form": condition(plain_hessian(*scaled))[0],
        "zero λ": zeros,
        "κ of G, n = k": condition(hessian(plain_loss(square @ other.mT), c * square, other / c))[0],
        "κ of G_S": condition(hessian(sphere_loss(f), *scaled))[0],
        "renormalized": condition(hessian(sphere_loss(f), unit(scaled[0]), unit(scaled[1])))[0],
    }


def lemmas(inputs: Sequence[Path] = ()) -> Drawing:
    """Draw condition numbers over c, and compare closed forms with automatic differentiation."""
    rows = [measure(c) for c in SCALES]
    (n, _, k), (same, _, _) = SHAPES
    names = {
        f"G, n = {n} > k = {k}": "κ of G",
        f"G, n = k = {same}": "κ of G, n = k",
        "G_S at (cU, V/c)": "κ of G_S",
        "G_S, rows renormalized": "renormalized",
    }
    series = {name: (SCALES, [row[key] for row in rows]) for name, key in names.items()}
    first = rows[0]["κ of G"]
    series |= {f"c{power} (reference)": (SCALES, [first * c**p for c in SCALES]) for power, p in (("⁴", 4), ("²", 2))}
    chart = line_chart(
        series,
        title="Condition number of the Hessian at (cU, V/c)",
        xlabel="c",
        ylabel="κ, largest over smallest nonzero eigenvalue",
        log="xy",
        height=460,
    )
    return Drawing(chart, rows, _remarks(rows))


def _remarks(rows: list[dict[str, Any]]) -> list[str]:
    n, m, k = SHAPES[0]
    u, v = optimum(n, m, k)
    true, printed = hessian(sphere_loss(u @ v.mT), u, v), printed_hessian(u, v)
    exact = (hessian(plain_loss(u @ v.mT), u, v) - plain_hessian(u, v)).abs().max()
    below, above = rows[-2], rows[-1]

    def slope(key: str) -> float:
        return math.log(above[key] / below[key]) / math.log(above["c"] / below["c"])

    return [
        f"Lemma 1: n, m, k = {n}, {m}, {k}. κ of G grows as c^{slope('κ of G'):.2f}, not only as the c² of its bound; "
        f"{rows[0]['zero λ']} = k² eigenvalues are zero, not k(k−1)/2. For n = k it grows as "
        f"c^{abs(slope('κ of G, n = k')):.2f}: the lemma needs n > k.",
        f"Lemma 2: κ of G_S grows as c^{slope('κ of G_S'):.2f} at (cU, V/c); it stays the same only if the rows are "
        "renormalized, which the appendix does after each step.",
        f"Closed forms against automatic differentiation at c = 1: Eq. 12 of G differs by {float(exact):.1g}; that of "
        f"G_S (D.2) by {float((true - printed).norm() / true.norm()):.0%} of the Hessian's norm, and the smallest "
        f"eigenvalue of its symmetric part is {float(torch.linalg.eigvalsh(printed + printed.mT)[0]) / 2:.2f}, "
        "where a minimum has none below zero.",
    ]


def deep_optimum(num_layers: int) -> tuple[Tensor, ...]:
    """Draw W_N (6, 3), rotations W_{N−1}, ..., W_1 (3, 3) and V (5, 3), all with rows of length 1."""
    u, v = optimum(*SHAPES[0])
    generator = torch.Generator().manual_seed(1)
    k = u.shape[1]
    drawn = torch.randn(num_layers - 1, k, k, generator=generator, dtype=u.dtype)
    return u, *torch.linalg.qr(drawn).Q, v


def measure_depth(num_layers: int, c: float) -> dict[str, Any]:
    """Compute the condition numbers of N layers at the scale c."""
    *weights, v = deep_optimum(num_layers)
    f = torch.linalg.multi_dot([*weights, v.mT])
    scaled = [*(c * weight for weight in weights), v / c**num_layers]
    kappa = condition(hessian(plain_loss(f), *weights, v))[0]
    return {
        "c": c,
        "N": num_layers,
        "κ of G": condition(hessian(plain_loss(f), *scaled))[0],
        "c^N·κ at c = 1": c**num_layers * kappa,
        "κ of G_S": condition(hessian(sphere_loss(f), *scaled))[0],
        "renormalized": condition(hessian(sphere_loss(f), *map(unit, scaled)))[0],
    }


def depth(inputs: Sequence[Path] = ()) -> Drawing:
    """Draw condition numbers over the number of layers."""
    by_scale = {c: [measure_depth(n, c) for n in DEPTHS] for c in DEPTH_SCALES}
    series = {f"G, c = {c:g}": (DEPTHS, [row["κ of G"] for row in rows]) for c, rows in by_scale.items()}
    largest, rows = DEPTH_SCALES[-1], by_scale[DEPTH_SCALES[-1]]
    series[f"{largest:g}^N·κ at c = 1 (the paper)"] = (DEPTHS, [row["c^N·κ at c = 1"] for row in rows])
    series["G_S, rows renormalized, any c"] = (DEPTHS, [row["renormalized"] for row in rows])
    chart = line_chart(
        series,
        title="Condition number of the Hessian of N layers at (cW_N, ..., cW_1, V/c^N)",
        xlabel="N",
        ylabel="κ, largest over smallest nonzero eigenvalue",
        log="y",
        height=460,
    )
    power = math.log(rows[-1]["κ of G"] / rows[-2]["κ of G"]) / math.log(largest)
    note = (
        "Section 2.3: with N layers κ can be c^N times as large. Here every further layer multiplies κ of G by "
        f"c^{power:.2f}, so it grows as c^(2N+2): the curvature along a weight falls as c⁻², that along V grows as "
        "c^(2N). κ of G_S stays the same for every c if the rows are renormalized."
    )
    return Drawing(chart, [row for rows in by_scale.values() for row in rows], [note])
