"""Compare all pairs of a set of neurons, and compute their spectrum, from one product of the neurons with themselves.

The product is computed in float64, or in float32 in less than half the time. Distances of close pairs, which have no
digits left in 2 − 2c, come from the difference of the neurons. In float32 there must be none: :class:`TooCoarse` is
raised where its digits do not suffice, and the caller starts again in float64.

Shapes: N neurons, d their dimension; a block (b, m) has the pairs of b neurons with the m from the first of them on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from ..energy.repulsion import CLOSE, FLOOR, Law
from ..geometry.points import angle_between, row_blocks
from ..layers.cosine import unit

LISTED = 1000
"""The largest number of near-duplicate pairs that a row lists: a collapsed layer has N(N − 1)/2 of them."""

LONGEST = 1e70  # the fourth power of a length must be finite
LANCZOS = 150  # steps at most; matrices of less than twice that are solved at once
COARSE_DISTANCE = 0.02  # squared: below it float32 has too few digits
COARSE_SPECTRUM = 1e-3  # smallest / largest squared singular value, likewise
COARSE_ROUNDING = 1e-5  # of a squared distance in float32, with room


class TooCoarse(Exception):
    """float32 has too few digits for these neurons."""


@dataclass(frozen=True)
class PairStatistics:
    """All pairs of neurons i < j. A listed pair is (angle, i, j); the angle of an opposite pair is to the antipode."""

    energy: float
    """Σ φ over the pairs."""
    antipodal_energy: float
    """Σ φ of each neuron with the antipode of the other."""
    mean_angle: float
    overlap: float
    """Σ ⟨w_i, w_j⟩² of the neurons as they are."""
    nearest: tuple[float, int, int]
    near: list[tuple[float, int, int]]
    count: int
    redundant: list[int]
    opposed: list[tuple[float, int, int]]
    opposite_count: int

    def renumbered(self, index: list[int]) -> PairStatistics:
        """Give neuron i the number index[i]."""

        def changed(pairs: list[tuple[float, int, int]]) -> list[tuple[float, int, int]]:
            return [(angle, index[i], index[j]) for angle, i, j in pairs]

        return replace(
            self,
            nearest=changed([self.nearest])[0],
            near=changed(self.near),
            redundant=[index[i] for i in self.redundant],
            opposed=changed(self.opposed),
        )


class Directions:
    """The directions of neurons (N, d), none of them zero."""

    def __init__(self, rows: Tensor, lengths: Tensor, dtype: torch.dtype = torch.float64) -> None:
        """Take the neurons, their lengths (N,) in float64, and the dtype of products: float64 or float32."""
        self.rows, self.lengths, self.dtype = rows, lengths, dtype
        self.inverse = lengths.reciprocal().to(dtype).unsqueeze(1)
        self.coarse = dtype is torch.float32
        if self.coarse and not bool(((lengths > 1e-15) & (lengths < 1e15)).all()):
            raise TooCoarse

    def exact(self, index: Tensor) -> Tensor:
        """Return some directions in float64: equal ones differ in no bit."""
        return self.rows[index].double() / self.lengths[index].unsqueeze(-1)

    @cached_property
    def points(self) -> Tensor:
        """The directions (N, d)."""
        return self.rows.to(self.dtype) * self.inverse

    @cached_property
    def gram(self) -> Tensor:
        """The smaller Gram matrix: the cosines (N, N) for N ≤ d, or (d, d)."""
        n, d = self.rows.shape
        return self.all_cosines if n <= d else _times_transposed(self.points.mT)

    @cached_property
    def all_cosines(self) -> Tensor:
        """The cosines (N, N)."""
        if self.coarse:
            return _times_transposed(self.rows.float()).mul_(self.inverse).mul_(self.inverse.mT)
        gram = self.rows.new_zeros(len(self.rows), len(self.rows), dtype=self.dtype)
        for part in self.rows.split(max(512, (1 << 19) // len(gram)), 1):  # a copy in float64 may not fit into memory
            gram += _times_transposed(part.double() * self.inverse)
        return gram

    def cosines(self, block: slice) -> Tensor:
        """Compute a block of cosines (b, m); all at once where they take little more memory than the neurons."""
        n, d = self.rows.shape
        if n <= 2 * d:
            return self.all_cosines[block, block.start :]
        return self.points[block] @ self.points[block.start :].mT

    def effective_rank(self) -> float:
        """Compute exp of the entropy of the singular values; their squares are the eigenvalues of the Gram matrix."""
        squares = torch.linalg.eigvalsh(self.gram).double().cpu().numpy()
        if self.coarse and squares[0] < COARSE_SPECTRUM * squares[-1]:
            raise TooCoarse
        values = np.sqrt(squares[squares > max(self.rows.shape) * np.finfo(np.float64).eps * squares[-1]])
        share = values / values.sum()
        return float(np.exp(-(share * np.log(share)).sum()))

    def largest_singular(self) -> float:
        """Compute the largest singular value of the neurons as they are; 0 without any."""
        if not len(self.lengths):
            return 0.0
        longest = float(self.lengths.amax())
        scale = (self.lengths / longest).to(self.dtype)
        if len(self.gram) == len(scale):
            gram = (self.gram * scale).mul_(scale.unsqueeze(1))
        else:
            gram = _times_transposed((self.points * scale.unsqueeze(1)).mT)
        return longest * math.sqrt(max(0.0, largest_eigenvalue(gram)))

    def pairs(self, law: Law, angle: float) -> PairStatistics:
        """Compare all pairs of two neurons or more; near-duplicates are nearer than `angle`, in radians.

        Energies may overflow for s > 4.
        """
        n = len(self.rows)
        squares = self.lengths.clamp(max=LONGEST).square()
        weights = (squares / squares.amax()).to(self.dtype)
        near, opposed = _Closest(self, 1, angle), _Closest(self, -1, angle)
        if self.coarse and near.limit > COARSE_DISTANCE:
            raise TooCoarse
        redundant = torch.zeros(n, dtype=torch.bool, device=self.rows.device)
        nearest, closest = math.inf, torch.tensor([0, 1])
        # what a pair at right angles adds: in a block, those that were seen before are such
        neutral = [float(law.energy(torch.tensor(2.0, dtype=torch.float64)))] * 2 + [math.pi / 2, 0.0]
        sums = [0.0] * len(neutral)
        for block in row_blocks(n):
            start, b = block.start, block.stop - block.start
            cosine = self.cosines(block).clamp(-1, 1)  # column k is neuron start + k
            cosine[:, :b].triu_(1)
            distances = [self._squared_distances(cosine, start, sign) for sign in (1, -1)]
            rows = [
                law.energy(squared if self.coarse else squared.clamp(min=FLOOR * FLOOR)).sum(1) for squared in distances
            ]
            rows += [cosine.acos().sum(1), (cosine.square_() @ weights[start:]) * weights[block]]
            totals = torch.stack(rows).sum(1, dtype=torch.float64).tolist()
            sums = [a + x - b * (b + 1) / 2 * y for a, x, y in zip(sums, totals, neutral, strict=True)]
            if not self.coarse or float(distances[0].min()) > 1.9:
                seen = torch.ones(b, b, dtype=torch.bool, device=cosine.device).tril_()
                for squared in distances:
                    squared[:, :b].masked_fill_(seen, math.inf)
            if not self.coarse:
                opposed.add(distances[1], start)
                close = near.add(distances[0], start)
                if close is not None:
                    redundant[start:] |= close.any(0)
            nearest, closest = self._nearest(distances[0], start, nearest, closest)
        energy, antipodal_energy, angles, overlap = sums
        return PairStatistics(
            energy=energy,
            antipodal_energy=antipodal_energy,
            mean_angle=angles / (n * (n - 1) / 2),
            overlap=overlap * float(squares.amax()) ** 2,
            nearest=(float(angle_between(*self.exact(closest))), *closest.tolist()),
            near=near.pairs,
            count=near.count,
            redundant=redundant.nonzero().flatten().tolist(),
            opposed=opposed.pairs,
            opposite_count=opposed.count,
        )

    def _squared_distances(self, cosine: Tensor, start: int, sign: int) -> Tensor:
        """Compute ‖p_i ∓ p_j‖² of a block, from the difference where they are close."""
        squared = torch.rsub(cosine, 2, alpha=2 * sign)
        least = float(squared.min())
        if self.coarse:
            if least < COARSE_DISTANCE:
                raise TooCoarse
        elif least < CLOSE * CLOSE:
            i, j = (squared < CLOSE * CLOSE).nonzero(as_tuple=True)
            squared[i, j] = self._differences(i + start, j + start, sign)
        return squared

    def _differences(self, i: Tensor, j: Tensor, sign: int) -> Tensor:
        """Compute ‖p_i ∓ p_j‖² of some pairs from the difference."""
        size = max(1, (1 << 18) // self.rows.shape[1])
        pieces = zip(i.split(size), j.split(size), strict=True)
        return torch.cat([(self.exact(a) - sign * self.exact(b)).square().sum(1) for a, b in pieces])

    def _nearest(self, squared: Tensor, start: int, before: float, pair: Tensor) -> tuple[float, Tensor]:
        """Return the squared distance of the nearest pair, in a block or `before` it, and the first such pair."""
        rounding = COARSE_ROUNDING if self.coarse else 0.0
        least = float(squared.min())
        if least >= before + rounding:
            return before, pair
        nearest = (squared <= least + rounding).nonzero()[:LISTED] + start
        if len(nearest) == 1 and least < before - rounding:
            return least, nearest[0]
        measured = self._differences(nearest[:, 0], nearest[:, 1], 1) if rounding else squared.new_full((1,), least)
        best = int(measured.argmin())
        return (float(measured[best]), nearest[best]) if measured[best] < before else (before, pair)


class _Closest:
    """Count pairs nearer than an angle and keep the closest; with sign −1 nearer to being opposite."""

    def __init__(self, directions: Directions, sign: int, angle: float) -> None:
        self.directions, self.sign, self.limit = directions, sign, 4 * math.sin(angle / 2) ** 2
        self.count = 0
        self.pairs: list[tuple[float, int, int]] = []

    def add(self, squared: Tensor, start: int) -> Tensor | None:
        """Add the pairs of a block that begins at neuron `start`; return which they are, or None."""
        if not float(squared.min()) < self.limit:
            return None
        chosen = squared < self.limit
        nearest = squared[chosen]
        self.count += len(nearest)
        listed = nearest.topk(min(len(nearest), LISTED), largest=False).indices
        i, j = (chosen.nonzero()[listed] + start).unbind(1)
        exact = self.directions.exact
        angles = [angle_between(exact(a), self.sign * exact(b)) for a, b in zip(i.split(64), j.split(64), strict=True)]
        self.pairs += zip(torch.cat(angles).tolist(), i.tolist(), j.tolist(), strict=True)
        self.pairs = sorted(self.pairs)[:LISTED]
        return chosen


def _times_transposed(x: Tensor) -> Tensor:
    """Compute x·xᵀ. On the CPU numpy does, which computes half of it and copies the rest; torch computes all."""
    if x.device.type != "cpu":
        return x @ x.mT
    values = x.numpy()
    return torch.from_numpy(values @ values.T)


def largest_eigenvalue(matrix: Tensor) -> float:
    """Compute the largest eigenvalue of a positive semidefinite matrix, of a large one by Lanczos' method."""
    n, eps = len(matrix), torch.finfo(matrix.dtype).eps
    if n > 2 * LANCZOS:
        basis = matrix.new_zeros(LANCZOS, n)
        basis[0] = unit(torch.randn(n, generator=torch.Generator().manual_seed(0)).to(matrix))
        diagonal, beside = [], [0.0]
        for k in range(LANCZOS - 1):
            v = matrix @ basis[k]
            diagonal.append(float(v @ basis[k]))
            v.sub_(basis[k], alpha=diagonal[k]).sub_(basis[k - 1], alpha=beside[k])
            v.addmv_(basis[: k + 1].mT, basis[: k + 1] @ v, alpha=-1)  # without it rounding errors would grow
            beside.append(float(torch.linalg.vector_norm(v)))
            exhausted = beside[-1] <= n * eps * max(diagonal)
            if k % 16 == 15 or exhausted:
                tridiagonal = np.diag(diagonal) + np.diag(beside[1:-1], -1)  # its lower half
                values, vectors = np.linalg.eigh(tridiagonal)
                # The error of the value is about the square of this, which bounds that of the vector.
                error = beside[-1] * abs(float(vectors[-1, -1]))
                if exhausted or error <= math.sqrt(eps) * float(values[-1]):
                    return float(values[-1])
            torch.mul(v, 1 / beside[-1], out=basis[k + 1])
    return float(torch.linalg.eigvalsh(matrix)[-1])
