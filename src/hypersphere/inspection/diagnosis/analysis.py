"""Compute how redundant the neurons of each layer are.

Shapes: G groups, N neurons in each, d their dimension.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from ..._internal import checks
from ..._internal.progress import track
from ...energy.hyperspherical import group_energy, make_law
from ...energy.repulsion import Law
from ...geometry.bounds import energy_lower_bound, excess_over, expected_energy
from ...layers.cosine import inverse_row_norm
from ...neurons import Neurons, Specs, check_names, no_layer_error, select
from .pairs import LISTED, Directions, Pairs
from .result import Diagnosis, Row
from .stored import LoadedNeurons, select_stored

SMALLEST_ANGLE = 1e-6  # cosines of smaller angles round to 1


def diagnose(
    model_or_state_dict: nn.Module | Mapping[str, Tensor],
    *,
    layers: Specs | None = None,
    exclude: Specs = (),
    s: float = 2.0,
    angular: bool = False,
    duplicate_angle: float = 0.1,
) -> Diagnosis:
    """Report how evenly the neurons of each layer are spread, which are redundant and which are dead.

    Only reads the weights; computes in float64. Time grows as N²·d, memory as N·d.

    In a state_dict, floating point tensors of two or more dimensions named ``weight``, ``in_proj_weight`` or
    ``{q,k,v}_proj_weight`` are read. Names, shapes and biases tell fused query, key and value, stacked experts, and
    whether outputs or inputs come first. Where they do not, as for the groups of a convolution, the row's `assumed`
    says what was assumed, and the table marks it. Recurrent weights, and matrices whose layer is named an embedding,
    are skipped unless `layers` matches them. Parametrizations other than rotations need the model.

    Args:
        model_or_state_dict: a model, or tensors by name, from ``state_dict()`` or ``safetensors.torch.load_file``.
        layers, exclude: which layers, as in :func:`select`; the output layer is included and marked. For a state_dict
            only names and patterns, and no output is marked.
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
    found: dict[str, Neurons] | dict[str, LoadedNeurons]
    if isinstance(model_or_state_dict, nn.Module):
        selected = select(model_or_state_dict, layers, exclude)
        if layers is not None:  # a name that matches nothing is an error
            check_names("diagnose", model_or_state_dict, selected, layers, exclude)
        if not selected:
            raise no_layer_error(selected, "diagnose")
        found = selected
    else:
        found = select_stored("diagnose", model_or_state_dict, layers, exclude)
    work: list[tuple[str, Neurons | LoadedNeurons]] = list(found.items())
    with torch.no_grad():
        rows = [
            _diagnose_layer(name, neurons, law, duplicate_angle) for name, neurons in track(work, "diagnosing layers")
        ]
    return Diagnosis(tuple(rows), law.s, law.angular, duplicate_angle)


def _read_neurons(name: str, neurons: Neurons | LoadedNeurons) -> Tensor:
    """Return the neurons (G, N, d); raise if they cannot be read."""
    if isinstance(neurons, LoadedNeurons):
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


def _diagnose_layer(name: str, neurons: Neurons | LoadedNeurons, law: Law, duplicate_angle: float) -> Row:
    row = make_row(name, compare_groups(_read_neurons(name, neurons), law, duplicate_angle), neurons.is_output)
    return replace(row, assumed=neurons.stored.assumed) if isinstance(neurons, LoadedNeurons) else row


@dataclass(frozen=True)
class Group:
    """Neurons that see the same inputs, compared with each other; indices are neurons of the layer."""

    directions: Directions
    """Of those that are not zero."""
    dead: list[int]
    law: Law
    pairs: Pairs | None
    """None for fewer than two."""
    effective_rank: float

    @property
    def count(self) -> int:
        """The number of neurons that are not zero."""
        return len(self.directions.rows)

    def energies(self) -> tuple[float, float]:
        """Compute the mean energy of pairs, and with the antipode of every neuron."""
        k, law, pairs = self.count, self.law, self.pairs
        if not k:
            return 0.0, 0.0
        if law.in_logs:
            points = self.directions.points.unsqueeze(0)
            return float(group_energy(points, law)), float(group_energy(points, replace(law, half_space=True)))
        own = 2 * k * float(law.energy(torch.tensor(4.0, dtype=torch.float64)))  # each neuron and its antipode
        full, both = (0.0, 0.0) if pairs is None else (pairs.energy, 4 * (pairs.energy + pairs.antipodal_energy))
        return 2 * full / max(1, k * (k - 1)), (both + own) / (2 * k * (2 * k - 1))


def compare_groups(
    rows: Tensor, law: Law, duplicate_angle: float, lengths: Tensor | None = None, dtype: torch.dtype = torch.float64
) -> list[Group]:
    """Compare the neurons of each group, (G, N, d).

    Args:
        lengths: (G, N) in float64, 0 for neurons that count as zero; None: computed.
        dtype: of products. float32 raises TooCoarse where it does not suffice.
    """
    groups, n = [], rows.shape[1]
    if lengths is None:
        inverse = inverse_row_norm(rows.flatten(0, 1)).double()
        if rows.dtype is not torch.float64:  # as many digits, for all that are long enough
            exact = torch.linalg.vector_norm(rows.flatten(0, 1), dim=1, dtype=torch.float64).reciprocal()
            inverse = exact.where(inverse > 0, 0.0)
        lengths = inverse.reciprocal().where(inverse > 0, 0.0).view(rows.shape[:2])
    for g, (each, length) in enumerate(zip(rows, lengths, strict=True)):
        alive, dead = (length > 0).nonzero().flatten(), (length == 0).nonzero().flatten()
        if len(dead):
            each, length = each[alive], length[alive]
        directions, pairs = Directions(each, length, dtype), None
        if len(alive) > 1:
            pairs = directions.pairs(law, duplicate_angle).renumbered((alive + g * n).tolist())
        rank = directions.effective_rank() if len(alive) else 0.0
        groups.append(Group(directions, (dead + g * n).tolist(), law, pairs, rank))
    return groups


def make_row(name: str, groups: list[Group], is_output: bool = False) -> Row:
    """Make the row of a layer from its groups."""
    law, d = groups[0].law, groups[0].directions.rows.shape[1]
    energy, half_energy = (sum(each) / len(groups) for each in zip(*(g.energies() for g in groups), strict=True))
    pairs = [group.pairs for group in groups if group.pairs is not None]
    bounds = (energy_lower_bound(group.count, d, law.s, angular=law.angular) for group in groups if group.count > 1)
    bound = sum(bounds) / len(groups)
    random = expected_energy(law.s, d, angular=law.angular) * len(pairs) / len(groups) if d > 1 else math.inf
    nearest = min((p.nearest for p in pairs), default=None)
    near = sorted(pair for p in pairs for pair in p.near)[:LISTED]
    opposed = sorted(pair for p in pairs for pair in p.opposed)[:LISTED]
    ranks = [group.effective_rank for group in groups if group.count]
    return Row(
        name=name,
        neurons=groups[0].count + len(groups[0].dead),
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
        dead=tuple(i for group in groups for i in group.dead),
        mean_angle=sum(p.mean_angle for p in pairs) / len(pairs) if pairs else None,
        effective_rank=sum(ranks) / len(ranks) if ranks else 0.0,
        groups=len(groups),
        is_output=is_output,
        opposites=tuple((i, j) for _, i, j in opposed),
        opposite_pairs=sum(p.opposite_count for p in pairs),
    )
