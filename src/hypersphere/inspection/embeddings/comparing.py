"""What changed between two embeddings of the same rows: geometry, a rotation, neighbours."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from .answers import Answer, EmbeddingInspection
from .broken import find_broken
from .reading import open_embeddings
from .recall import draw_sample
from .vectors import Array, Vectors

_LISTED = 20
_SAME, _ALIKE = 0.99, 0.9


@torch.no_grad()
def compare_embeddings(
    before: str | os.PathLike[str] | Array, after: str | os.PathLike[str] | Array
) -> EmbeddingInspection:
    """Compare two embeddings of the same rows: linear CKA, the residual of the best rotation, and neighbours kept.

    With the centred directions X and Y, rows that are broken in either left out:

        CKA = ‖XᵀY‖²/(‖XᵀX‖·‖YᵀY‖),    residual = min over R, scale s of ‖Y − sXR‖²/‖Y‖² = 1 − (Σσ(XᵀY))²/(‖X‖²‖Y‖²)

    Args:
        before, after: (N, d) and (N, d'), as for :func:`hypersphere.inspect`.

    Example:
        >>> x = torch.randn(100, 4, generator=torch.Generator().manual_seed(0))
        >>> compare_embeddings(x, x.flip(1))["rotated"].verdict
        'only rotated'
    """
    x, y = _open("before", before), _open("after", after)
    if len(x.data) != len(y.data):
        raise ValueError(f"both must have the same rows, got {len(x.data)} and {len(y.data)}")
    bad = np.zeros(len(x.data), bool)
    for vectors in (x, y):
        bad[list(find_broken(vectors)[0].indices)] = True
    for vectors in (x, y):
        vectors.leave_out(bad)
    if len(x) < 3:
        raise ValueError(f"both must have at least 3 rows that are not broken in either, got {len(x)}")
    sample = draw_sample(x)
    kept = sample.kept(draw_sample(y).rows)
    cka, residual = _alignment(x, y)
    share = float(kept.mean())
    worst = kept.argsort(stable=True)[:_LISTED]
    worst = worst[kept[worst] < 1]
    return EmbeddingInspection(
        (
            Answer(
                "alike?",
                "the same geometry" if cka > _SAME else "much alike" if cka > _ALIKE else "no",
                cka > _SAME,
                f"linear CKA {cka:.4f}",
                details={"linear_cka": cka},
            ),
            Answer(
                "rotated?",
                "only rotated" if residual < 1 - _SAME else "more than rotated",
                residual < 1 - _SAME,
                f"residual {100 * residual:.2g} % of the squared length",
                details={"procrustes_residual": residual},
            ),
            Answer(
                "neighbours?",
                "kept" if share > _SAME else f"{100 * (1 - share):.0f} % of the ten nearest changed",
                share > _SAME,
                f"kept {share:.3f}",
                indices=tuple(int(i) for i in x.number(sample.places[sample.queries[worst]])),
                details={"neighbors_kept": share, "rows_compared": len(sample.rows)},
            ),
        ),
        path=" → ".join(str(s) if isinstance(s, str | os.PathLike) else "array" for s in (before, after)),
        shape=(len(x.data), x.dimension),
        dtype=f"{x.dimension} → {y.dimension} dimensions",
    )


def _open(name: str, source: str | os.PathLike[str] | Array) -> Vectors:
    if isinstance(source, str | os.PathLike):
        return Vectors(open_embeddings(Path(source)), str(source))
    return Vectors(source, name)


def _alignment(x: Vectors, y: Vectors) -> tuple[float, float]:
    """Return linear CKA and the residual of the best rotation, from sums of products over blocks."""
    sums = [torch.zeros(vectors.dimension, dtype=torch.float64) for vectors in (x, y)]
    count = len(x)
    for (_, a), (_, b) in zip(x.blocks(), y.blocks(), strict=True):
        sums = [sums[0] + a.sum(0, dtype=torch.float64), sums[1] + b.sum(0, dtype=torch.float64)]
    means = [(total / count).float() for total in sums]
    products: list[Tensor | float] = [0.0, 0.0, 0.0]
    for (_, a), (_, b) in zip(x.blocks(), y.blocks(), strict=True):
        a, b = a - means[0], b - means[1]
        products = [
            total + (c.T @ d).double() for total, (c, d) in zip(products, [(a, b), (a, a), (b, b)], strict=True)
        ]
    both, first, second = (torch.as_tensor(product) for product in products)
    scale = first.norm() * second.norm()
    if not scale:
        return 0.0, 1.0
    nuclear = torch.linalg.svdvals(both).sum()
    residual = 1 - nuclear.square() / (first.trace() * second.trace())
    return float(both.square().sum() / scale), max(0.0, float(residual))
