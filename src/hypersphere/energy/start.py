"""A better start: spread random neurons over the sphere, or give them length one (OPT, 3.7)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from .._internal import checks
from .._internal.draws import generator
from .._internal.overflow import max_root, power_of_two_divisor, rescale, saturating_cast
from .._internal.progress import track
from ..cosine import unit
from ..selection import Neurons, Specs, no_layer_error, select_to_change
from .hyperspherical import checked_law, exact, report_zero_neurons
from .measures import RANDOM, MeasureLike, by_function, checked_measure, measured


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
    output: str | None = "auto",
) -> nn.Module:
    """Refines a start: makes the energy (or another measure) of every layer's neurons small, data aside (OPT, 3.7).

    In place; every neuron keeps its length. The output layer is left alone unless `layers` matches it.

    Args:
        steps: of L-BFGS; fewer where it converges.
        measure, s, half_space, angular: what is made small, as in :class:`EnergyRegularizer`.
        seed: of measures that draw.
        layers, exclude, output: which layers, as in :func:`hypersphere.select`.

    Example:
        >>> net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
        >>> rows = spread(net)[0].weight.detach()
        >>> torch.nn.functional.cosine_similarity(rows[0], rows[1:]).round(decimals=2)  # a tetrahedron
        tensor([-0.3300, -0.3300, -0.3300])
    """
    checked, law = checked_measure(measure), checked_law(s, half_space, angular)
    steps, seed = checks.integer("steps", steps, low=0), checks.integer("seed", seed)
    found = _to_change("spread", model, layers, exclude, output)
    for name, neurons in found.items():
        checks.has_values(name, neurons.stored)
    for name, neurons in track(found.items(), "spreading neurons"):
        rows = exact(neurons.matrix().detach())

        def value(p: Tensor, draw: int, name: str = name) -> Tensor:
            if not isinstance(checked, str):
                return by_function(checked, p).sum()
            return measured(checked, p, law, partial(generator, seed, name, draw)).sum()

        up = power_of_two_divisor(rows, max_root(rows.dtype, 4))
        lengths = torch.linalg.vector_norm(rows / up, dim=2, keepdim=True)
        steps_a_draw = 20 if checked in RANDOM else max(steps, 1)
        spread_out = unit(_minimized(value, unit(rows), steps, steps_a_draw)) * lengths
        neurons.write(saturating_cast(rescale(spread_out, up, 1.0), neurons.tensor.dtype))
    return model


def normalize_neurons(
    model: nn.Module, *, layers: Specs | None = None, exclude: Specs = (), output: str | None = "auto"
) -> nn.Module:
    """Gives every neuron of the model's hidden layers length one, in place (OPT, 3.7); zero neurons stay zero.

    Example:
        >>> net = normalize_neurons(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)))
        >>> net[0].weight.norm(dim=1)
        tensor([1.0000, 1.0000, 1.0000, 1.0000], grad_fn=<LinalgVectorNormBackward0>)
    """
    for neurons in _to_change("normalize_neurons", model, layers, exclude, output).values():
        neurons.write(unit(exact(neurons.matrix().detach())))
    return model


def _minimized(value: Callable[[Tensor, int], Tensor], start: Tensor, steps: int, steps_a_draw: int) -> Tensor:
    """L-BFGS, begun anew with every draw."""
    p = start
    for draw, done in enumerate(range(0, steps, steps_a_draw)):
        leaf = unit(p).clone().requires_grad_()
        optimizer = torch.optim.LBFGS(
            [leaf],
            max_iter=min(steps_a_draw, steps - done),
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


def _to_change(
    verb: str, model: nn.Module, layers: Specs | None, exclude: Specs, output: str | None
) -> dict[str, Neurons]:
    """The layers whose neurons a verb changes; all are checked before the first is touched."""
    found = select_to_change(verb, model, layers, exclude, output)
    if not found:
        raise no_layer_error(model, verb)
    for name, neurons in found.items():
        checks.finite_weight(name, neurons.matrix())
        report_zero_neurons(name, neurons.matrix())
        for part in neurons.parametrizations:
            if hasattr(part, "keeps_angles"):
                raise ValueError(f"{verb}: layer {name!r} is rotated; call {verb} before rotate")
            if not hasattr(part, "right_inverse"):
                kind = type(part).__name__
                raise ValueError(f"{verb}: layer {name!r} is parametrized by {kind}, which has no right_inverse")
    return found
