"""Plan the rotation of each layer: whole, in blocks, or of a sample of dimensions; and estimate what it costs."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from .._internal import checks
from ..neurons import Neurons
from .cheapest_path import planned_path
from .parametrization import layer_label
from .plan import Plan
from .rules import RotationOptions, count_blocks, sample_size

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


def make_plans(
    layers: dict[str, Neurons], options: RotationOptions, *, first: str, frozen: Collection[str] = ()
) -> dict[str, Plan]:
    """Plan the rotation of every layer.

    Args:
        options: checked already.
        first: the model's first layer, which is sampled only if it is the only one.
        frozen: layers whose weight cannot be modified (quantized or tied).
    """
    blocks = _count_blocks(layers, options) if options.splits else {}
    samples = {} if options.sample is None else _sample_sizes(layers, options.sample, first)
    return {
        name: _make_plan(name, neurons, options, blocks.get(name) or 1, samples.get(name), name in frozen)
        for name, neurons in layers.items()
    }


def _make_plan(
    name: str, neurons: Neurons, options: RotationOptions, blocks: int, sample: int | None, frozen: bool
) -> Plan:
    layer, side = f"layer {layer_label(name)!r}", options.side
    layout, outputs = neurons.layout.for_rotation, neurons.stored.numel() // neurons.dimension
    rotates_outputs, learned = side != "input", options.neurons == "learned"
    if rotates_outputs and (neurons.layout.groups > 1 or layout.stacked):
        raise ValueError(f"side={side!r} would mix the {neurons.layout.groups} groups of {layer}: exclude it")
    if frozen and (rotates_outputs or options.magnitude or options.shuffle or options.sample is not None or learned):
        raise ValueError(
            f"{layer} has a quantized or tied weight: side, magnitude, shuffle, sample and learned neurons need a "
            "weight that can be changed; exclude it"
        )
    plan = Plan(
        options.method,
        neurons.dimension,
        blocks,
        shared=options.share_blocks and blocks > 1,
        sample=sample,
        init=options.init,
        learned=learned,
        layout=layout,
        side=side,
        outputs=outputs if rotates_outputs or options.magnitude else 0,
        output_blocks=count_blocks(outputs, options.blocks, options.block_size) or 1 if rotates_outputs else 1,
        shuffle=options.shuffle and blocks > 1,
        scaled=options.scaled,
        magnitude=options.magnitude,
        dropout=options.dropout,
        frozen=frozen,
    )
    return replace(plan, apply=planned_path(plan, neurons, options.apply, name))


def channel_size(neurons: Neurons) -> int:
    """Return the number of elements of one channel of a neuron."""
    return neurons.layout.kernel_size(neurons.stored.shape)


def _count_blocks(layers: dict[str, Neurons], options: RotationOptions) -> dict[str, int]:
    """Return the number of blocks of each layer, 0 for one that cannot be split; ValueError if none can."""
    key = "blocks" if options.block_size is None else "block_size"
    value = options.blocks if options.block_size is None else options.block_size

    def count(neurons: Neurons, value: int) -> int:
        split = (value, None) if key == "blocks" else (1, value)
        return count_blocks(neurons.dimension, *split, channel=channel_size(neurons))

    def describe(name: str) -> str:
        dimension, channel = layers[name].dimension, channel_size(layers[name])
        size = f"{dimension // channel} channels of {channel}" if channel > 1 else f"{dimension} elements"
        return f"{layer_label(name)} ({size})"

    counts = {name: count(neurons, value) for name, neurons in layers.items()}
    if not any(counts.values()):
        possible = {name: [v for v in range(2, n.dimension) if count(n, v)] for name, n in layers.items()}
        hints = (f"{describe(name)}: {', '.join(map(str, values)) or 'none'}" for name, values in possible.items())
        raise ValueError(f"{key}={value} fits no layer; possible: {'; '.join(hints)}")
    whole = ", ".join(describe(name) for name, blocks in counts.items() if not blocks)
    if whole:
        checks.warn_once(f"{key}={value} does not fit {whole}: rotated whole")
    return counts


def _sample_sizes(layers: dict[str, Neurons], sample: float, first: str) -> dict[str, int]:
    """Return how many dimensions of each layer to rotate at a time; without the layers that stay whole."""
    sizes = {}
    for name, neurons in layers.items():
        if name == first and len(layers) > 1:
            continue
        size, dimension = sample_size(neurons.dimension, sample), neurons.dimension
        if size > dimension:
            layer = f"layer {layer_label(name)!r}"
            raise ValueError(f"sample must be 2 to {dimension} dimensions for {layer}, got {sample}; exclude skips it")
        sizes[name] = size
    fitting = {name: size for name, size in sizes.items() if size >= 2}
    if not fitting:
        dimensions = ", ".join(f"{layer_label(name)!r} ({layers[name].dimension})" for name in sizes)
        raise ValueError(f"sample must be two dimensions at least, got {sample!r} of those of {dimensions}")
    return fitting


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
