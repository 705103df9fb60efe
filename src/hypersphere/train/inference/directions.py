"""Filter-normalized random directions in the space of a network's trained weights (OPT, App. E and F)."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from ..._internal.draws import generator
from ...orthogonal import Orthogonalizer

#: direction → how its numbers are drawn, and how far the grid reaches
DIRECTIONS: dict[str, tuple[Callable[[Tensor, torch.Generator], Tensor], float]] = {
    "normal": (lambda x, g: x.normal_(generator=g), 1.5),
    "uniform": (lambda x, g: x.uniform_(generator=g), 1.0),  # in [0, 1]: one-sided
}


def draw_direction(
    name: str, weight: Tensor, method: Orthogonalizer | None, direction: str, seed: int, i: int
) -> Tensor:
    """Draw direction number `i` for a weight, every filter scaled to the norm of the weight's filter.

    Args:
        name: of the weight; the draw depends on it, on `seed` and on `i` only.
        method: of a rotation whose parameters P `weight` holds: the columns of P take the place of filters.
            None: rows of dimension 0 are filters.
    """
    noise = torch.empty(weight.shape, dtype=weight.dtype)
    DIRECTIONS[direction][0](noise, generator(seed, name, i))
    goal, drawn = filter_norms(weight.cpu().double(), method), filter_norms(noise.double(), method)
    return (noise * (goal / drawn.where(drawn > 0, 1.0)).to(noise.dtype)).to(weight.device)


def filter_norms(weight: Tensor, method: Orthogonalizer | None = None) -> Tensor:
    """Return the norm of the filter of every element, in a shape that multiplies `weight`."""
    if method is None:
        return weight.flatten(1).norm(dim=1).view(-1, *[1] * (weight.dim() - 1))
    if weight.dim() > 2:  # (blocks, ..., m, m)
        return weight.norm(dim=-2, keepdim=True)
    if tuple(method.shape(5)) != (10,):
        return weight.norm(dim=-1, keepdim=True)  # one vector a block
    m = (1 + math.isqrt(1 + 8 * weight.shape[1])) // 2  # P is a packed strict upper triangle
    columns = torch.triu_indices(m, m, 1)[1]
    squares = weight.new_zeros(len(weight), m).index_add(1, columns, weight.square())
    return squares.sqrt()[:, columns]
