"""Compute how redundant the neurons of each layer are.

Shapes: G groups, N neurons in each, d their dimension.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from .._internal import checks
from .._internal.progress import track
from ..cosine import inverse_row_norm, unit
from ..energy.hyperspherical import group_energy, make_law
from ..energy.repulsion import Law
from ..geometry.points import angle_between, closest_pair, row_blocks
from ..geometry.theory import energy_lower_bound, excess_over, expected_energy
from ..selection import Neurons, Specs, check_names, no_layer_error, select
from .result import Diagnosis, Row
from .stored import StoredNeurons, select_stored

LISTED = 1000
"""The largest number of near-duplicate pairs that a row lists: a collapsed layer has N(N − 1)/2 of them."""

SMALLEST_ANGLE = 1e-6  # cosines of smaller angles round to 1


def diagnose(
    model_or_state_dict: nn.Module | Mapping[str, Tensor],
    *,
    layers: Specs | None = None,
    exclude: Specs = (),
    output: str | None = "auto",
    example_inputs: Any = None,
    s: float = 2.0,
    angular: bool = False,
    duplicate_angle: float = 0.1,
) -> Diagnosis:
    """Report how evenly the neurons of each layer are spread, which are redundant and which are dead.

    Only reads the weights; computes in float64. Time grows as N²·d, memory as N·d.

    In a state_dict, floating point tensors of two or more dimensions named ``weight``, ``in_proj_weight`` or
    ``{q,k,v}_proj_weight`` are read, with their rows (dimension 0) as neurons: groups of convolutions are unknown, and
    the rows of a transposed convolution are its input channels. Names and shapes tell fused query, key and value,
    stacked experts, and the Conv1D of GPT-2, whose neurons are columns. Recurrent weights, and matrices whose layer is
    named an embedding, are skipped unless `layers` matches them. Parametrizations other than rotations need the model.

    Args:
        model_or_state_dict: a model, or tensors by name, from ``state_dict()`` or ``safetensors.torch.load_file``.
        layers, exclude, output, example_inputs: which layers, as in :func:`select`; the output layer is included and
            marked. For a state_dict only names and patterns, and no example inputs; "auto" marks no output.
        s, angular: which energy, as in :func:`hyperspherical_energy`.
        duplicate_angle: neurons nearer than this are near-duplicates, in radians (0.1 is 5.7°).

    Example:
        >>> weight = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, 0.0], [-1.0, 0.01]])
        >>> (row,) = diagnose({"fc.weight": weight})
        >>> row.name, row.neurons, row.closest, row.duplicates, row.dead
        ('fc', 5, (2, 4), ((2, 4),), (3,))
    """
    law = make_law(s, False, angular)
    duplicate_angle = checks.number("duplicate_angle", duplicate_angle, low=SMALLEST_ANGLE, high=math.pi)
    found: dict[str, Neurons] | dict[str, StoredNeurons]
    if isinstance(model_or_state_dict, nn.Module):
        selected = select(model_or_state_dict, layers, exclude, output, example_inputs=example_inputs)
        if layers is not None:  # a name that matches nothing is an error
            check_names("diagnose", model_or_state_dict, selected, layers, exclude)
        if not selected:
            raise no_layer_error(selected, "diagnose")
        found = selected
    elif example_inputs is not None:
        raise TypeError("example_inputs needs a model, got a state_dict")
    else:
        found = select_stored("diagnose", model_or_state_dict, layers, exclude, output)
    work: list[tuple[str, Neurons | StoredNeurons]] = list(found.items())
    with torch.no_grad():
        rows = [
            _diagnose_layer(name, neurons, law, duplicate_angle) for name, neurons in track(work, "diagnosing layers")
        ]
    return Diagnosis(tuple(rows), law.s, law.angular, duplicate_angle)


def _read_neurons(name: str, neurons: Neurons | StoredNeurons) -> Tensor:
    """Return the neurons (G, N, d); raise if they cannot be read."""
    if isinstance(neurons, StoredNeurons):
        rows = neurons.matrix()
    else:
        parameter = neurons.module._parameters.get(neurons.tensor_name)
        if parameter is not None and is_lazy(parameter):
            raise ValueError(f"layer {name!r} is lazy and has no weight yet: run the model once first")
        with _without_side_effects(neurons.module):
            rows = neurons.matrix()
    checks.has_values(name, rows)
    checks.floating(f"the weight of {name!r}", rows)
    if not rows.numel():
        raise ValueError(f"the weight of {name!r} must not be empty, got the shape {tuple(neurons.tensor.shape)}")
    if rows.dtype.itemsize == 1:  # float8 has hardly any arithmetic
        rows = rows.float()
    if rows.device.type not in ("cpu", "cuda"):  # others may not have float64
        rows = rows.cpu()
    checks.finite_weight(name, rows)
    return rows


@contextmanager
def _without_side_effects(module: nn.Module) -> Iterator[None]:
    """Switch the parametrizations to eval mode: in training mode, reading a weight with spectral norm changes it."""
    parametrizations = getattr(module, "parametrizations", None)
    inside = parametrizations.modules() if isinstance(parametrizations, nn.Module) else ()
    training = [m for m in inside if m.training]
    for m in training:
        m.training = False
    try:
        yield
    finally:
        for m in training:
            m.training = True


def _diagnose_layer(name: str, neurons: Neurons | StoredNeurons, law: Law, duplicate_angle: float) -> Row:
    directions = Directions.of(_read_neurons(name, neurons))
    return diagnose_directions(name, directions, law, duplicate_angle, neurons.is_output)


@dataclass(frozen=True)
class Directions:
    """The directions of neurons (G, N, d), zero for dead ones."""

    rows: Tensor
    """The neurons as they are."""
    points: Tensor
    """Their directions in float64: (G, N, d), or rotated into (G, N, N) if d is much larger, with the same angles."""
    alive: Tensor
    """(G, N): which neurons are not zero."""

    @classmethod
    def of(cls, rows: Tensor) -> Directions:
        """Compute the directions of neurons (G, N, d)."""
        groups, n, d = rows.shape
        inverse = inverse_row_norm(rows.flatten(0, 1)).view(groups, n, 1)
        alive = (inverse > 0).squeeze(2)
        points = unit(_rotate_to_few(rows, inverse.double()) if d >= 2 * n else rows.double())
        return cls(rows, points if bool(alive.all()) else points * alive.unsqueeze(2), alive)

    def exact(self, group: int, index: Tensor) -> Tensor:
        """Return the directions of some neurons of a group in all dimensions: equal ones differ in no bit."""
        if self.points.shape[2] == self.rows.shape[2]:
            return self.points[group][index]
        return unit(self.rows[group][index].double())


def _rotate_to_few(rows: Tensor, scale: Tensor) -> Tensor:
    """Rotate rows (G, N, d) times scale (G, N, 1), of length one or zero, into N dimensions; in blocks."""
    groups, n, _ = rows.shape
    blocks = rows.split(max(2 * n, 256), 2)
    gram = rows.new_zeros(groups, n, n, dtype=torch.float64)
    for block in blocks:
        gram.baddbmm_(part := block.double() * scale, part.mT)
    factor, failed = torch.linalg.cholesky_ex(gram)
    if not failed.any() and float(gram.tril(-1).abs().amax()) < 0.999:
        return factor
    r = rows.new_zeros(groups, 0, n, dtype=torch.float64)
    for block in blocks:  # Wᵀ = QR, so W·Q = Rᵀ: slower, but exact for near-duplicates
        r = torch.linalg.qr(torch.cat([r, (block.double() * scale).mT], 1), mode="r").R
    return r.mT


def diagnose_directions(
    name: str, directions: Directions, law: Law, duplicate_angle: float, is_output: bool = False
) -> Row:
    """Compute the row of a layer from the directions of its neurons."""
    (groups, n, d), alive, points = directions.rows.shape, directions.alive, directions.points
    laws = law, replace(law, half_space=True)
    energy, half_energy = (float((group_energy(points, each) / groups).sum()) for each in laws)
    pairs = [_compare_pairs(directions, g, duplicate_angle) for g in range(groups) if alive[g].sum() > 1]
    num_alive = alive.sum(1).tolist()
    bound = sum(energy_lower_bound(k, d, law.s, angular=law.angular) for k in num_alive if k > 1) / groups
    random = expected_energy(law.s, d, angular=law.angular) * len(pairs) / groups if d > 1 else math.inf
    nearest = min((p.nearest for p in pairs), default=None)
    near = sorted(pair for p in pairs for pair in p.near)[:LISTED]
    opposed = sorted(pair for p in pairs for pair in p.opposed)[:LISTED]
    return Row(
        name=name,
        neurons=n,
        dimension=d,
        energy=energy,
        half_energy=half_energy,
        excess=excess_over(energy, bound, law.s) if pairs else None,
        random_excess=excess_over(random, bound, law.s) if pairs and random < math.inf else None,
        separation=nearest[0] if nearest else None,
        closest=nearest[1:] if nearest else None,
        duplicates=tuple((i, j) for _, i, j in near),
        duplicate_pairs=sum(p.count for p in pairs),
        redundant=tuple(i for p in pairs for i in p.redundant),
        dead=tuple((~alive.flatten()).nonzero().flatten().tolist()),
        mean_angle=sum(p.mean_angle for p in pairs) / len(pairs) if pairs else None,
        effective_rank=_effective_rank(points),
        groups=groups,
        is_output=is_output,
        opposites=tuple((i, j) for _, i, j in opposed),
        opposite_pairs=sum(p.opposite_count for p in pairs),
    )


@dataclass(frozen=True)
class _PairStats:
    """The pairs of one group; i and j are indices in the layer, a listed pair is (angle, i, j).

    The angle of an opposite pair is that to the antipode.
    """

    nearest: tuple[float, int, int]
    near: list[tuple[float, int, int]]
    count: int
    redundant: list[int]
    opposed: list[tuple[float, int, int]]
    opposite_count: int
    mean_angle: float


def _compare_pairs(directions: Directions, group: int, duplicate_angle: float) -> _PairStats:
    """Compare all pairs of a group's neurons that are not zero."""
    alive = directions.alive[group]
    places, points = alive.nonzero().flatten(), directions.points[group][alive]
    index = (places + group * len(alive)).tolist()
    n, threshold = len(points), math.cos(duplicate_angle)

    def exact(index: Tensor) -> Tensor:
        return directions.exact(group, places[index])

    near, opposed = _Closest(exact, 1), _Closest(exact, -1)
    total, redundant = 0.0, torch.zeros(n, dtype=torch.bool, device=points.device)
    for block in row_blocks(n):
        start = block.start
        cosine = (points[block] @ points[start:].mT).clamp_(-1, 1)  # column k is row start + k
        later = torch.ones(cosine.shape, dtype=torch.bool, device=points.device).triu_(1)
        cosine = cosine.where(later, 1.0)
        total += float(cosine.acos().sum())
        opposed.add(cosine, cosine < -threshold, start)
        close = later.logical_and_(cosine > threshold)
        if near.add(cosine, close, start):
            redundant[start:] |= close.any(0)
    i, j, separation = closest_pair(points)
    if points.shape[1] < directions.rows.shape[2]:  # rotated: equal neurons differ by rounding
        measured = float(angle_between(*exact(torch.tensor([i, j], device=points.device))))
        (i, j), separation = next(iter(near.pairs.items()), ((i, j), measured))
    return _PairStats(
        nearest=(separation, index[i], index[j]),
        near=[(angle, index[i], index[j]) for (i, j), angle in near.pairs.items()],
        count=near.count,
        redundant=[index[i] for i in redundant.nonzero().flatten().tolist()],
        opposed=[(angle, index[i], index[j]) for (i, j), angle in opposed.pairs.items()],
        opposite_count=opposed.count,
        mean_angle=total / (n * (n - 1) / 2),
    )


class _Closest:
    """Count pairs and keep the closest; with sign −1 those closest to being opposite."""

    def __init__(self, exact: Callable[[Tensor], Tensor], sign: int) -> None:
        self.exact, self.sign = exact, sign
        self.count = 0
        self.pairs: dict[tuple[int, int], float] = {}

    def add(self, cosine: Tensor, chosen: Tensor, start: int) -> int:
        """Add the `chosen` pairs of a block of cosines that begins at row and column `start`; return their number."""
        found = int(chosen.sum())
        if found:
            self.count += found
            nearest = (self.sign * cosine[chosen]).topk(min(found, LISTED)).indices
            i, j = (chosen.nonzero()[nearest] + start).unbind(1)
            angles = [
                angle_between(self.exact(a), self.sign * self.exact(b))
                for a, b in zip(i.split(64), j.split(64), strict=True)
            ]
            self.pairs |= zip(zip(i.tolist(), j.tolist(), strict=True), torch.cat(angles).tolist(), strict=True)
            self.pairs = dict(sorted(self.pairs.items(), key=lambda item: (item[1], item[0]))[:LISTED])
        return found


def _effective_rank(points: Tensor) -> float:
    """Compute the mean over nonzero groups (G, N, d). The smaller Gram matrix has the squared singular values."""
    gram = points @ points.mT if points.shape[1] <= points.shape[2] else points.mT @ points
    squares = torch.linalg.eigvalsh(gram)
    rounding = max(points.shape[1:]) * torch.finfo(squares.dtype).eps * squares[:, -1:]
    share = squares.where(squares > rounding, 0.0).sqrt()
    share = share / share.sum(1, keepdim=True).clamp(min=torch.finfo(share.dtype).tiny)
    rank = torch.special.entr(share).sum(1).exp()[share.sum(1) > 0.5]
    return float(rank.mean()) if len(rank) else 0.0
