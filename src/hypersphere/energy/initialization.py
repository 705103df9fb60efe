"""Better initial weights: spread neurons over the sphere, or scale them to length one (OPT, 3.7)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from .._internal import checks
from .._internal.adapters import refuse_adapters
from .._internal.draws import generator
from .._internal.overflow import max_root, power_of_two_divisor, rescale, saturating_cast
from .._internal.progress import track
from .._internal.sharding import is_sharded
from ..layers.cosine import unit
from ..neurons import Neurons, Specs, no_layer_error, select_to_change
from .hyperspherical import at_least_float32, make_law, warn_zero_neurons
from .measures import RANDOM, MeasureLike, apply_user_measure, check_measure, compute_measure


def spread(
    model: nn.Module,
    *,
    half_space: bool = False,
    measure: MeasureLike = "energy",
    steps: int = 200,
    s: float = 2.0,
    angular: bool = False,
    seed: int = 0,
    layers: Specs | None = None,
    exclude: Specs = (),
) -> nn.Module:
    """Spread initial neurons: minimize the energy (or another measure) of every layer, in place (OPT, 3.7).

    No data is needed, and every neuron keeps its length. The output layer is skipped unless `layers` matches it.

    Args:
        steps: largest number of L-BFGS steps.
        measure, s, half_space, angular: what to minimize, as in :class:`EnergyRegularizer`.
        seed: for measures that draw.
        layers, exclude: which layers, as in :func:`hypersphere.select`.

    Example:
        >>> net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
        >>> rows = spread(net)[0].weight.detach()
        >>> torch.nn.functional.cosine_similarity(rows[0], rows[1:]).round(decimals=2)  # a tetrahedron
        tensor([-0.3300, -0.3300, -0.3300])
    """
    measure, law = check_measure(measure), make_law(s, half_space, angular)
    steps, seed = checks.integer("steps", steps, low=0), checks.integer("seed", seed)
    selected = _select_checked("spread", model, layers, exclude)
    for name, neurons in selected.items():
        checks.has_values(name, neurons.stored)
    for name, neurons in track(selected.items(), "spreading neurons"):
        rows = at_least_float32(neurons.matrix().detach())

        def value(p: Tensor, draw: int, name: str = name) -> Tensor:
            if not isinstance(measure, str):
                return apply_user_measure(measure, p).sum()
            return compute_measure(measure, p, law, partial(generator, seed, name, draw)).sum()

        up = power_of_two_divisor(rows, max_root(rows.dtype, 4))
        lengths = torch.linalg.vector_norm(rows / up, dim=2, keepdim=True)
        steps_per_draw = 20 if measure in RANDOM else max(steps, 1)
        spread_out = unit(_minimize(value, unit(rows), steps, steps_per_draw)) * lengths
        neurons.write(saturating_cast(rescale(spread_out, up, 1.0), neurons.tensor.dtype))
    return model


def normalize_neurons(
    model: nn.Module,
    *,
    layers: Specs | None = None,
    exclude: Specs = (),
) -> nn.Module:
    """Scale every neuron of the hidden layers to length one, in place (OPT, 3.7); zero neurons stay zero.

    Args:
        layers, exclude: which layers, as in :func:`hypersphere.select`.

    Example:
        >>> net = normalize_neurons(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)))
        >>> torch.allclose(net[0].weight.norm(dim=1), torch.ones(4))
        True
    """
    selected = _select_checked("normalize_neurons", model, layers, exclude)
    for neurons in selected.values():
        neurons.write(unit(at_least_float32(neurons.matrix().detach())))
    return model


def _minimize(value: Callable[[Tensor, int], Tensor], start: Tensor, steps: int, steps_per_draw: int) -> Tensor:
    """Minimize by L-BFGS, restarted at every draw."""
    p = start
    for draw, done in enumerate(range(0, steps, steps_per_draw)):
        leaf = unit(p).clone(memory_format=torch.contiguous_format).requires_grad_()  # L-BFGS needs views
        optimizer = torch.optim.LBFGS(
            [leaf],
            max_iter=min(steps_per_draw, steps - done),
            tolerance_grad=1e-7,
            tolerance_change=1e-9,
            history_size=10,
            line_search_fn="strong_wolfe",
        )

        def closure(leaf: Tensor = leaf, draw: int = draw) -> Tensor:
            with torch.enable_grad():
                loss = value(leaf, draw)
                (leaf.grad,) = torch.autograd.grad(loss, leaf)
            return loss

        optimizer.step(closure)
        p = leaf.detach()
    return p


def _select_checked(verb: str, model: nn.Module, layers: Specs | None, exclude: Specs) -> dict[str, Neurons]:
    """Select the layers whose neurons a verb changes, and check all of them first."""
    checks.module("model", model)
    refuse_adapters(verb, model)
    selected = select_to_change(verb, model, layers, exclude)
    if not selected:
        raise no_layer_error(selected, verb)
    for name, neurons in selected.items():
        checks.finite_weight(name, neurons.matrix())
        warn_zero_neurons(name, neurons.matrix())
        for part in neurons.parametrizations:
            if hasattr(part, "keeps_angles"):
                raise ValueError(f"{verb}: layer {name!r} is rotated; call {verb} before rotate")
            if not hasattr(part, "right_inverse"):
                kind = type(part).__name__
                raise ValueError(f"{verb}: layer {name!r} is parametrized by {kind}, which has no right_inverse")
            if is_sharded(neurons.stored):
                raise ValueError(f"{verb}: layer {name!r} is parametrized and sharded; call {verb} before fully_shard")
    return selected
