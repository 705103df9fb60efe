"""May I cut? May I quantize? The share of the ten nearest that stay, on a sample of 10,000 rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..._internal import draws
from ...openset import nearest
from ...rotation.quantize import fit_rotation, truncate
from .answers import Answer
from .hubs import NEIGHBORS, drop_own
from .vectors import Vectors

ENOUGH = 0.9  # recall
GAIN = 0.01  # of recall, above which centring or a rotation is worth its cost
_COMPARED, _QUERIES = 10_000, 1024
_FIT = 4096  # rows that components and rotations are fitted to, at most half
_FEW = 40  # rows, below which the same are fitted to and compared
_ROUNDS = {1: 20, 4: 5, 8: 5}
CODES = {"int8": 8, "int4": 4, "1 bit": 1}
METHODS = {
    "as is": ("none", False),
    "centred": ("none", True),
    "rotated at random": ("random", True),
    "fit_rotation": ("itq", True),
}
"""How rows are mapped before they are quantized → method and center of :func:`fit_rotation`."""
_ROTATIONS = ("rotated at random", "fit_rotation")


@dataclass(frozen=True)
class Sample:
    """Rows (M, d), their places (M,), queries among them, their true neighbours (Q, k), other rows to fit maps to."""

    fitted: Tensor
    rows: Tensor
    places: npt.NDArray[np.int64]
    queries: Tensor
    neighbors: Tensor

    def recall(self, mapped: Tensor, metric: str = "cosine") -> float:
        """Return the share of the true neighbours that are neighbours after a map of the rows, (M, d')."""
        return float(self.kept(mapped, metric).mean())

    def kept(self, mapped: Tensor, metric: str = "cosine") -> Tensor:
        """Return the share of each query, (Q,)."""
        got = _neighbors(mapped, self.queries, metric)
        return (got.unsqueeze(2) == self.neighbors.unsqueeze(1)).any(2).double().mean(1)


def draw_sample(vectors: Vectors) -> Sample:
    """Draw the rows, queries among them and the rows to fit to, always the same."""
    n = len(vectors)
    order = torch.randperm(n, generator=draws.generator(0, "recall", n)).numpy()
    count = min(_FIT, n // 2) if n >= _FEW else 0
    places = np.sort(order[count : count + _COMPARED])
    rows = vectors.unit(places)
    fitted = vectors.unit(np.sort(order[:count])) if count else rows
    queries = torch.linspace(0, len(rows) - 1, min(_QUERIES, len(rows))).long()
    return Sample(fitted, rows, places, queries, _neighbors(rows, queries, "cosine"))


def _neighbors(rows: Tensor, queries: Tensor, metric: str) -> Tensor:
    k = min(NEIGHBORS, len(rows) - 1)
    return drop_own(nearest(rows[queries], rows, k + 1, metric=metric).indices, queries)


def may_cut(sample: Sample, even: Sample) -> Answer:
    """Measure the recall of the first d/2, d/4 and d/8 dimensions, and of as many principal components."""
    d = sample.rows.shape[1]
    sizes = [size for size in (d // 2, d // 4, d // 8) if size]
    components = truncate(sample.fitted, sizes[0])
    recalls = {
        "first": {size: sample.recall(sample.rows[:, :size]) for size in sizes},
        "principal": {size: sample.recall(sample.rows @ components[:size].T) for size in sizes},
    }
    uniform = {size: even.recall(even.rows[:, :size]) for size in sizes}
    kept = [(size, how) for how in ("first", "principal") for size in sizes if recalls[how][size] >= ENOUGH]
    size = sizes[0]  # the figure shown is the one that decides
    if kept:
        size, how = min(kept)
        verdict = (
            f"yes, to {size} {'first dimensions' if how == 'first' else 'principal components (hs.quantize.truncate)'}"
        )
    else:
        verdict = f"no: {size} dimensions lose more than {100 * (1 - ENOUGH):.0f} % of the neighbours"
    return Answer(
        "may I cut?",
        verdict,
        True,
        f"recall@10 of {size}: " + ", ".join(f"{how} {of[size]:.3f}" for how, of in recalls.items()),
        f"{uniform[size]:.3f}",
        details={"recall": recalls, "uniform_recall": uniform, "rows_compared": len(sample.rows)},
    )


def may_quantize(sample: Sample, even: Sample) -> Answer:
    """Measure the recall of codes of 8, 4 and 1 bits: as is, centred, rotated at random, and by fit_rotation."""
    recalls = {name: {how: quantized_recall(sample, bits, how) for how in METHODS} for name, bits in CODES.items()}
    uniform = {name: quantized_recall(even, bits, "as is") for name, bits in CODES.items()}
    best = {name: _best(of) for name, of in recalls.items()}
    enough = [name for name in recalls if recalls[name][best[name]] >= ENOUGH]
    how = f"to {enough[-1]} {best[enough[-1]]}" if enough else "no"
    one = recalls["1 bit"][best["1 bit"]]
    return Answer(
        "may I quantize?",
        f"{'yes, ' if enough else ''}{how}"
        + ("" if one >= ENOUGH else "; 1 bit only with the rows kept to rank again"),
        True,
        "recall@10 " + ", ".join(f"{name} {of[best[name]]:.3f} {best[name]}" for name, of in recalls.items()),
        ", ".join(f"{value:.3f}" for value in uniform.values()),
        details={"recall": recalls, "best": best, "uniform_recall": uniform, "rows_compared": len(sample.rows)},
    )


def rotation_gain(recalls: dict[str, float]) -> float:
    """Return by how much the better rotation is above the better of no map and centring."""
    return max(recalls[how] for how in _ROTATIONS) - max(recalls["as is"], recalls["centred"])


def _best(recalls: dict[str, float]) -> str:
    """Return the best method; a rotation, or centring, only if it is worth its cost."""
    if rotation_gain(recalls) > GAIN:
        return max(_ROTATIONS, key=lambda how: recalls[how])
    return "centred" if recalls["centred"] > recalls["as is"] + GAIN else "as is"


def quantized_recall(sample: Sample, bits: int, how: str) -> float:
    """Return the recall of codes, by the inner products of what they stand for; with 1 bit by the Hamming distance."""
    method, is_centred = METHODS[how]
    turn = fit_rotation(sample.fitted, bits, method=method, center=is_centred, iterations=_ROUNDS[bits])
    decoded = turn.decode(turn.codes(sample.rows))
    if bits > 1:
        decoded += turn.mean @ turn.matrix.mT
    return sample.recall(decoded, "inner_product")
