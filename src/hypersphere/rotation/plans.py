"""Which rotation each layer gets: whole, in blocks, or of a few dimensions at a time."""

from __future__ import annotations

import math
from dataclasses import replace
from numbers import Integral, Real
from typing import Any

from .._internal import checks
from ..selection import Neurons
from .parametrization import NONE, Plan, shown

# The work of a factorization of d dimensions, a step of its optimizer or its penalty included, over Cayley's: measured
# (benchmarks/rotation.py). Others only multiply, or are the user's own.
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
SHARE = 0.6  # of all rotation work: what one layer may take unsaid
LARGE = 700.0**3  # where Cayley takes some 15 ms a step on a core: what is less is not worth a word


def plans(
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
    """A plan for every layer; `first` is the model's first layer, which is not sampled unless it is alone."""
    made = {
        name: Plan(method, dimension(neurons), init=init, learned=learned, transposed_groups=neurons.transposed_groups)
        for name, neurons in found.items()
    }
    if not isinstance(share_blocks, bool):
        raise TypeError(f"share_blocks must be True or False, got {share_blocks!r}")
    split = checks.integer("blocks", blocks, low=1) != 1 or block_size is not None
    if method == NONE and (split or sample is not None):
        raise ValueError("blocks, block_size and sample go with a rotation, got method='none'")
    if split:
        made = _split(made, found, blocks, block_size, share_blocks)
    if sample is not None:
        if split or init != "identity":
            raise ValueError("sample goes with one block a layer and init='identity' alone")
        whole = {first} if len(made) > 1 else set()
        made = {name: plan if name in whole else _sampled(name, plan, sample) for name, plan in made.items()}
    return made


def dimension(neurons: Neurons) -> int:
    """d: the numbers of one neuron."""
    weight, groups = neurons.stored, neurons.transposed_groups
    return math.prod(weight.shape[1:]) if groups is None else len(weight) // groups * _kernel(neurons)


def _kernel(neurons: Neurons) -> int:
    """The numbers of one channel."""
    return math.prod(neurons.stored.shape[2:])


def _split(
    made: dict[str, Plan], found: dict[str, Neurons], blocks: int, block_size: Any, share_blocks: bool
) -> dict[str, Plan]:
    if block_size is not None:
        checks.integer("block_size", block_size, low=1)
        if blocks != 1:
            raise ValueError(f"give blocks or block_size, not both; got blocks={blocks} and block_size={block_size}")
    numbers = {name: _blocks(plan.dimension, _kernel(found[name]), blocks, block_size) for name, plan in made.items()}
    if not any(numbers.values()):
        wanted = f"{blocks} blocks" if block_size is None else f"blocks of {block_size} numbers"
        there = ", ".join(f"{shown(name)} ({_sizes(plan, found[name])})" for name, plan in made.items())
        raise ValueError(f"no layer can be split into {wanted} of whole channels: {there}")
    return {
        name: replace(plan, blocks=numbers[name], shared=share_blocks and numbers[name] > 1) if numbers[name] else plan
        for name, plan in made.items()
    }


def work(plan: Plan, neurons: int) -> tuple[float, float]:
    """What a step costs, of factorizing R and of applying it to so many neurons; in units of Cayley's d³."""
    factorized = 1 if plan.shared or plan.sample is not None else plan.blocks
    turned = plan.dimension if plan.sample is None else plan.sample
    factor = _FACTORIZATION.get(plan.method, 0.0)
    return factor * factorized * plan.size**3, 4.0 * neurons * turned * plan.size


def costly(made: dict[str, Plan], found: dict[str, Neurons], first: str) -> str | None:
    """What there is to say if one whole layer takes most of the rotations' work, and that is much: with the ways out.

    `first` is the model's first layer, which is not sampled unless it is alone.
    """
    parts = {name: work(plan, found[name].stored.numel() // plan.dimension) for name, plan in made.items()}
    name = max(parts, key=lambda each: sum(parts[each]))
    share = sum(parts[name]) / (sum(map(sum, parts.values())) or 1.0)
    plan, alone = made[name], len(made) == 1
    if share <= SHARE or parts[name][0] < LARGE or plan.size < plan.dimension:
        return None
    others = [each for each in made.values() if each.size < each.dimension]
    ways = [] if alone else [f"exclude={name!r} leaves it plain"]
    if not others:
        kernel = _kernel(found[name])
        sizes = [m for m in range(kernel, 65, kernel) if m > 1 and plan.dimension % m == 0]
        ways += [f"block_size={sizes[-1]} splits it"] if sizes else []
        if plan.init == "identity" and (alone or name != first):
            ways.append("sample=0.25 turns a quarter of it at a time")
    way_out = f" ({'; '.join(ways)}; on the command line with rotation. before it)" if ways else ""
    return (
        f"layer {shown(name)!r} takes {int(100 * share)}% of the work of all rotations, which grows as the cube of its "
        f"{plan.dimension} dimensions{way_out}"
    )


def _blocks(dimension: int, kernel: int, blocks: int, block_size: int | None) -> int:
    """The number of blocks, 0 if the layer cannot be split so; a block of one number has nothing to turn."""
    if block_size is None:
        block_size = dimension // blocks if dimension % blocks == 0 else 0
    fits = block_size > 1 and dimension % block_size == 0 and block_size % kernel == 0
    return dimension // block_size if fits else 0


def _sizes(plan: Plan, neurons: Neurons) -> str:
    kernel = _kernel(neurons)
    return f"{plan.dimension // kernel} channels of {kernel}" if kernel > 1 else f"{plan.dimension} numbers"


def _sampled(name: str, plan: Plan, sample: Any) -> Plan:
    is_share = isinstance(sample, Real) and not isinstance(sample, Integral)
    if not isinstance(sample, Real) or isinstance(sample, bool):
        raise TypeError(f"sample must be an int >= 2 or a share between 0 and 1, got {sample!r}")
    if not is_share:
        p = checks.integer("sample", sample)
    elif 0.0 < float(sample) < 1.0:
        p = round(float(sample) * plan.dimension)
    else:
        raise ValueError(f"sample must be an int >= 2 or a share between 0 and 1, got {sample!r}")
    if not 2 <= p <= plan.dimension:
        share = f" ({sample!r} of them)" if is_share else ""
        raise ValueError(
            f"sample must give from 2 to all dimensions of a layer, got {p}{share} of the {plan.dimension} "
            f"of layer {shown(name)!r}, which exclude leaves out"
        )
    return replace(plan, sample=p)
