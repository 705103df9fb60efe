"""Report how redundant the neurons of a model or a state_dict are."""

from __future__ import annotations

import math
from collections.abc import Mapping

from torch import Tensor, nn

from .._internal import checks
from .._internal.progress import track
from ..energy.hyperspherical import make_law
from ..neurons import Specs
from .measuring import measure
from .results import DUPLICATE_ANGLE, Diagnosis
from .sources import layers_of_model, layers_of_state_dict

SMALLEST_ANGLE = 1e-6  # cosines of smaller angles round to 1


def diagnose(
    model_or_state_dict: nn.Module | Mapping[str, Tensor],
    *,
    layers: Specs | None = None,
    exclude: Specs = (),
    s: float = 2.0,
    angular: bool = False,
    duplicate_angle: float = DUPLICATE_ANGLE,
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
        >>> import torch
        >>> weight = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, 0.0], [-1.0, 0.01]])
        >>> (row,) = diagnose({"fc.weight": weight})
        >>> row.name, row.neurons, row.closest, row.duplicates, row.dead
        ('fc', 5, (2, 4), ((2, 4),), (3,))
    """
    law = make_law(s, False, angular)
    duplicate_angle = checks.number("duplicate_angle", duplicate_angle, low=SMALLEST_ANGLE, high=math.pi)
    if isinstance(model_or_state_dict, nn.Module):
        sources = layers_of_model(model_or_state_dict, layers, exclude)
    else:
        sources = layers_of_state_dict(model_or_state_dict, layers, exclude)
    rows = [measure(source, law, duplicate_angle, exact=True) for source in track(sources, "diagnosing layers")]
    return Diagnosis(tuple(rows), law.s, law.angular, duplicate_angle)
