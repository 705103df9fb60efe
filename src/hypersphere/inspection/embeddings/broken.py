"""Broken? NaN, zero rows, lengths and constant dimensions."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch

from .answers import Answer, count
from .vectors import Vectors, blocks

_UNEQUAL = 0.01  # standard deviation of the lengths, by their mean: below, they count as equal


def find_broken(vectors: Vectors) -> tuple[Answer, npt.NDArray[np.float64]]:
    """Read all rows, leave out the broken ones, and return the answer with the lengths of the others."""
    n, d = vectors.data.shape
    norms = np.empty(n)
    low, high = torch.full((d,), math.inf, dtype=torch.float64), torch.full((d,), -math.inf, dtype=torch.float64)
    for part in blocks(n):
        x = vectors.stored(part)
        x = x if x.dtype == torch.float64 else x.float()
        lengths = torch.linalg.vector_norm(x, dim=1, dtype=torch.float64)
        if not bool(((lengths > 1e-100) & (lengths < 1e100)).all()):  # or the squares leave the range
            scale = x.abs().amax(1).double()
            scaled = x.double() / scale.where(scale > 0, 1.0).unsqueeze(1)
            lengths = (torch.linalg.vector_norm(scaled, dim=1) * scale).where(x.isfinite().all(1), math.nan)
        norms[part] = lengths
        x = x[lengths.isfinite()]
        if len(x):
            low, high = torch.minimum(low, x.amin(0).double()), torch.maximum(high, x.amax(0).double())
    bad, zero = ~np.isfinite(norms), norms == 0
    vectors.leave_out(bad | zero)
    lengths = norms[~(bad | zero)]
    constant = torch.nonzero(low == high).flatten().tolist()
    mean = spread = math.nan
    if len(lengths):
        scaled = lengths / lengths.max()  # squares stay in the range
        mean, spread = float(scaled.mean() * lengths.max()), float(scaled.std() / scaled.mean())
    found = []
    if bad.any():
        found.append(f"NaN or infinity in {count(bad.sum(), 'row')}: embed again")
    if zero.any():
        found.append(f"{count(zero.sum(), 'zero row')}: empty inputs?")
    if constant:
        found.append(f"{count(len(constant), 'constant dimension')}: drop")
    if not found and spread > _UNEQUAL:
        found.append(f"no; lengths differ ({lengths.min():.3g} to {lengths.max():.3g}): compare by cosine")
    details = {
        "nan_rows": np.flatnonzero(bad).tolist(),
        "zero_rows": np.flatnonzero(zero).tolist(),
        "constant_dimensions": constant,
        "norms": {"mean": mean, "spread": spread, "shortest": float(lengths.min()), "longest": float(lengths.max())}
        if len(lengths)
        else {},
    }
    return Answer(
        "broken?",
        "; ".join(found) or "no",
        not (bad.any() or zero.any() or constant),
        f"length {mean:.4g} ± {100 * spread:.2g} %" if len(lengths) else "no row is left",
        indices=tuple(np.flatnonzero(bad | zero).tolist()),
        details=details,
    ), lengths
