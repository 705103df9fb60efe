"""The cost of the rotations of a model, and a warning if one layer takes most of it."""

from __future__ import annotations

from collections.abc import Iterable

from ..neurons import Neurons
from .parametrization import layer_label
from .plan import Plan
from .planning import channel_size

# Measured cost of a factorization of d dimensions, including OGD's step or the penalty, relative to Cayley's
# (benchmarks/rotation.py). Other methods only multiply, or are the user's own.
_FACTORIZATION = {
    "cayley": 1.0,
    "gram_schmidt": 3.0,
    "modified_gram_schmidt": 3.0,
    "iterative_gram_schmidt": 3.0,
    "householder": 3.0,
    "givens": 3.0,
    "lowdin": 8.0,
    "canonical": 8.0,
    "exponential": 10.0,
    "ogd": 3.5,
    "regularized": 1.5,
}
SHARE = 0.6  # of the cost of all rotations: one layer above it gives a warning
LARGE = 700.0**3  # Cayley takes about SECONDS per step on one core: no warning below
SECONDS = 0.015


def step_cost(plan: Plan, neurons: int) -> tuple[float, float]:
    """Estimate the cost per step of factorizing R and of applying it to the neurons, in units of Cayley's d³."""
    factorizations = 1 if plan.shared or plan.sample is not None else plan.blocks
    dimensions = plan.dimension if plan.sample is None else plan.sample
    factor = _FACTORIZATION.get(plan.method, 0.0)
    return factor * factorizations * plan.size**3, 4.0 * neurons * dimensions * plan.size


def estimate_seconds(plans: Iterable[Plan]) -> float:
    """Estimate the seconds on one CPU core to factorize these rotations once, forward and backward."""
    return SECONDS * sum(step_cost(plan, 0)[0] for plan in plans) / LARGE


def cost_warning(plans: dict[str, Plan], layers: dict[str, Neurons], first: str) -> str | None:
    """Return a warning, with remedies, if one layer takes most of the cost of all rotations; else None.

    `first` is the model's first layer, which is not sampled unless it is the only one.
    """
    costs = {name: step_cost(plan, layers[name].stored.numel() // plan.dimension) for name, plan in plans.items()}
    name = max(costs, key=lambda layer: sum(costs[layer]))
    share = sum(costs[name]) / (sum(map(sum, costs.values())) or 1.0)
    plan, alone = plans[name], len(plans) == 1
    if share <= SHARE or costs[name][0] < LARGE or plan.size < plan.dimension:
        return None
    options = [] if alone else [f"exclude={name!r} leaves it plain"]
    if all(plan.size == plan.dimension for plan in plans.values()):
        channel = channel_size(layers[name])
        sizes = [m for m in range(channel, 65, channel) if m > 1 and plan.dimension % m == 0]
        options += [f"block_size={sizes[-1]} splits it"] if sizes else []
        if plan.init == "identity" and (alone or name != first):
            options.append("sample=0.25 rotates a quarter of it at a time")
    remedies = f" ({'; '.join(options)}; on the command line prefix them with rotation.)" if options else ""
    return (
        f"layer {layer_label(name)!r} takes {int(100 * share)}% of the cost of all rotations, which grows as the cube "
        f"of its {plan.dimension} dimensions{remedies}"
    )
