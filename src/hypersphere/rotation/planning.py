"""Plan the rotation of each layer: whole, in blocks, or of a sample of dimensions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from numbers import Integral, Real
from typing import Any

from .._internal import checks
from ..neurons import Neurons
from .parametrization import layer_label
from .plan import NONE, Plan

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
    found: dict[str, Neurons],
    method: str,
    *,
    init: str,
    learned: bool,
    blocks: Any,
    block_size: Any,
    share_blocks: bool,
    sample: Any,
    first: str,
) -> dict[str, Plan]:
    """Make a plan for every layer; `first` is the model's first layer, which is sampled only if it is the only one."""
    made = {
        name: Plan(method, neurons.dimension, init=init, learned=learned, layout=neurons.layout.for_rotation)
        for name, neurons in found.items()
    }
    if not isinstance(share_blocks, bool):
        raise TypeError(f"share_blocks must be True or False, got {share_blocks!r}")
    split = checks.integer("blocks", blocks, low=1) != 1 or block_size is not None
    if method == NONE and (split or sample is not None):
        raise ValueError("blocks, block_size and sample need a rotation, got method='none'")
    if split:
        made = _split_into_blocks(made, found, blocks, block_size, share_blocks)
    if sample is not None:
        if split or init != "identity":
            raise ValueError("sample needs blocks=1 and init='identity'")
        whole = {first} if len(made) > 1 else set()
        sizes = {name: _sample_size(name, plan.dimension, sample) for name, plan in made.items() if name not in whole}
        fitting = {name: p for name, p in sizes.items() if p >= 2}
        if not fitting:
            layers = ", ".join(f"{layer_label(name)!r} ({made[name].dimension})" for name in sizes)
            raise ValueError(f"sample must be two dimensions at least, got {sample!r} of those of {layers}")
        made |= {name: replace(made[name], sample=p) for name, p in fitting.items()}
    return made


def _kernel_size(neurons: Neurons) -> int:
    """Return the number of elements of one channel."""
    return neurons.layout.kernel_size(neurons.stored.shape)


def _split_into_blocks(
    made: dict[str, Plan], found: dict[str, Neurons], blocks: int, block_size: Any, share_blocks: bool
) -> dict[str, Plan]:
    if block_size is not None:
        checks.integer("block_size", block_size, low=1)
        if blocks != 1:
            raise ValueError(f"pass blocks or block_size, not both; got blocks={blocks} and block_size={block_size}")
    numbers = {n: _count_blocks(plan.dimension, _kernel_size(found[n]), blocks, block_size) for n, plan in made.items()}
    if not any(numbers.values()):
        if block_size is not None:
            sizes = "; ".join(
                f"{layer_label(name)} ({plan.dimension}): {_divisors(plan.dimension)}" for name, plan in made.items()
            )
            raise ValueError(f"block_size must divide the dimensions of a layer, got {block_size}; possible: {sizes}")
        layers = ", ".join(f"{layer_label(name)} ({_describe_size(plan, found[name])})" for name, plan in made.items())
        raise ValueError(f"no layer can be split into {blocks} blocks of whole channels: {layers}")
    whole = [f"{layer_label(name)} ({_describe_size(made[name], found[name])})" for name, n in numbers.items() if not n]
    if block_size is not None and whole:
        checks.warn_once(f"block_size={block_size} does not fit {', '.join(whole)}: rotated whole")
    return {
        name: replace(plan, blocks=numbers[name], shared=share_blocks and numbers[name] > 1) if numbers[name] else plan
        for name, plan in made.items()
    }


def _divisors(dimension: int) -> str:
    return ", ".join(str(m) for m in range(2, dimension) if dimension % m == 0) or "none"


def step_cost(plan: Plan, neurons: int) -> tuple[float, float]:
    """Estimate the cost per step of factorizing R and of applying it to the neurons, in units of Cayley's d³."""
    factorizations = 1 if plan.shared or plan.sample is not None else plan.blocks
    dimensions = plan.dimension if plan.sample is None else plan.sample
    factor = _FACTORIZATION.get(plan.method, 0.0)
    return factor * factorizations * plan.size**3, 4.0 * neurons * dimensions * plan.size


def estimate_seconds(plans: Iterable[Plan]) -> float:
    """Estimate the seconds on one CPU core to factorize these rotations once, forward and backward."""
    return SECONDS * sum(step_cost(plan, 0)[0] for plan in plans) / LARGE


def cost_warning(made: dict[str, Plan], found: dict[str, Neurons], first: str) -> str | None:
    """Return a warning, with remedies, if one layer takes most of the cost of all rotations; else None.

    `first` is the model's first layer, which is not sampled unless it is the only one.
    """
    parts = {name: step_cost(plan, found[name].stored.numel() // plan.dimension) for name, plan in made.items()}
    name = max(parts, key=lambda each: sum(parts[each]))
    share = sum(parts[name]) / (sum(map(sum, parts.values())) or 1.0)
    plan, alone = made[name], len(made) == 1
    if share <= SHARE or parts[name][0] < LARGE or plan.size < plan.dimension:
        return None
    reduced = [each for each in made.values() if each.size < each.dimension]
    options = [] if alone else [f"exclude={name!r} leaves it plain"]
    if not reduced:
        kernel = _kernel_size(found[name])
        sizes = [m for m in range(kernel, 65, kernel) if m > 1 and plan.dimension % m == 0]
        options += [f"block_size={sizes[-1]} splits it"] if sizes else []
        if plan.init == "identity" and (alone or name != first):
            options.append("sample=0.25 rotates a quarter of it at a time")
    remedies = f" ({'; '.join(options)}; on the command line prefix them with rotation.)" if options else ""
    return (
        f"layer {layer_label(name)!r} takes {int(100 * share)}% of the cost of all rotations, which grows as the cube "
        f"of its {plan.dimension} dimensions{remedies}"
    )


def _count_blocks(dimension: int, kernel: int, blocks: int, block_size: int | None) -> int:
    """Return the number of blocks; 0 if the layer cannot be split like this. A block has at least two dimensions.

    `blocks` are of whole channels (OPT, App. I); a block of `block_size` may cut through channels.
    """
    if block_size is not None:
        fits = block_size > 1 and dimension % block_size == 0
        return dimension // block_size if fits else 0
    size = dimension // blocks if dimension % blocks == 0 else 0
    return blocks if size > 1 and size % kernel == 0 else 0


def _describe_size(plan: Plan, neurons: Neurons) -> str:
    kernel = _kernel_size(neurons)
    return f"{plan.dimension // kernel} channels of {kernel}" if kernel > 1 else f"{plan.dimension} elements"


def _sample_size(name: str, dimension: int, sample: Any) -> int:
    """Return how many of a layer's dimensions to rotate at a time; a share of them may be less than two."""
    if isinstance(sample, Integral) and not isinstance(sample, bool):
        if not 2 <= (size := int(sample)) <= dimension:
            layer = f"layer {layer_label(name)!r}"
            raise ValueError(f"sample must be 2 to {dimension} dimensions for {layer}, got {sample}; exclude skips it")
        return size
    if not isinstance(sample, Real) or isinstance(sample, bool):
        raise TypeError(f"sample must be an int >= 2 or a share between 0 and 1, got {sample!r}")
    if not 0.0 < float(sample) < 1.0:
        raise ValueError(f"sample must be an int >= 2 or a share between 0 and 1, got {sample!r}")
    return round(float(sample) * dimension)
