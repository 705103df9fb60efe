"""Figures of OPT's tables that need no training: numbers of parameters, and energies of initial neurons."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def parameters(network: str, rotation: Mapping[str, Any] | None, classes: int, seed: int) -> dict[str, float]:
    """Count the learned matrices of a network as the paper does, without biases and BatchNorm (Tables 10 and 11).

    Args:
        rotation: options of :func:`hypersphere.rotate`; None: not rotated.
    """
    import torch

    from .. import count_parameters, models, rotate

    with torch.device("meta"):
        model = models.create(network, classes)
    if rotation is not None:
        rotate(model, **rotation)
    counts = count_parameters(model)
    return {"parameters": counts["rotations"] + counts["weights"]}


def classifier_parameters(network: str, options: Mapping[str, Any], rotated: bool, seed: int) -> dict[str, float]:
    """Count the learned numbers of the output layer's matrix (Tables 12 and 13)."""
    import torch

    from .. import count_parameters, models, rotate, select

    with torch.device("meta"):
        model = models.create(network, **options)
    (name, output), *_ = [(name, each) for name, each in select(model).items() if each.is_output]
    if rotated:
        rotate(model, layers=name)
    counts = count_parameters(output.module)
    return {"parameters": counts["rotations"] + counts["weights"]}


def block_parameters(blocks: int, shared: bool, seed: int) -> dict[str, float]:
    """Count the numbers of R for one 3×3 layer of 64 channels: m² for each block (Tables 19 and 20)."""
    import torch
    from torch import nn

    from .. import count_parameters, rotate

    with torch.device("meta"):
        model = nn.Sequential(nn.Conv2d(64, 64, 3, bias=False), nn.Flatten(), nn.Linear(64, 100))
    rotate(model, blocks=blocks, share_blocks=shared)
    return {"parameters": count_parameters(model)["matrices"]}


def initial_energy(mean: float, spread: Mapping[str, Any] | None, seed: int) -> dict[str, float]:
    """Compute the energy of CNN-6's initial neurons as Tables 2 and 4 do: half space, s = 2, summed over the layers.

    Args:
        mean: of the normal distribution that the neurons are drawn from.
        spread: options of :func:`hypersphere.spread`; None: not spread.
    """
    import torch

    from .. import EnergyRegularizer, models, select
    from .. import spread as spread_neurons

    torch.manual_seed(seed)
    model = models.create("cnn6.opt")
    hidden = {name: each for name, each in select(model).items() if not each.is_output}
    with torch.no_grad():
        for each in hidden.values():
            each.tensor.add_(mean)
    if spread is not None:
        spread_neurons(model, seed=seed, **spread)
    found = EnergyRegularizer(model, half_space=True).per_layer()
    return {"energy": sum(found[name] for name in hidden)}
