"""Options of rotations for fine-tuning: where R is applied, on which side, and what is learned besides."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import replace
from typing import Any

from torch import nn

from .._internal import checks
from ..neurons import Neurons, is_transformers_conv1d
from .activations import is_cheaper_on_inputs
from .formed_weight import can_form
from .parametrization import layer_label
from .plan import NONE, TRIANGLES, Plan
from .quantized_or_tied import FrozenNeurons

APPLY = ("auto", "activation", "weight")
SIDES = ("input", "output", "both")


def add_options(
    made: dict[str, Plan],
    found: dict[str, Neurons],
    *,
    blocks: int,
    block_size: int | None,
    apply: str,
    side: str,
    shuffle: bool,
    scaled: bool,
    magnitude: bool,
    dropout: float,
    frozen: Collection[str] = (),
) -> dict[str, Plan]:
    """Return the plans with these options; `blocks` and `block_size` split the outputs as they split the inputs.

    `frozen` are layers whose weight stays where it is.
    """
    checks.choice("side", side, SIDES)
    for name, flag in {"shuffle": shuffle, "scaled": scaled, "magnitude": magnitude}.items():
        if not isinstance(flag, bool):
            raise TypeError(f"{name} must be True or False, got {flag!r}")
    rate = checks.number("dropout", dropout, low=0.0)
    if rate >= 1:
        raise ValueError(f"dropout must be at least 0 and below 1, got {dropout!r}")
    any_plan = next(iter(made.values()))
    method = any_plan.orthogonalizer
    used = {"side": side != "input", "shuffle": shuffle, "scaled": scaled, "magnitude": magnitude, "dropout": rate > 0}
    if method is None and any(used.values()):
        wrong = ", ".join(name for name, given in used.items() if given)
        raise ValueError(f"{wrong} need a rotation, got method={NONE!r}")
    if scaled and any_plan.method not in TRIANGLES:
        raise ValueError(f"scaled needs the method 'cayley' or 'exponential', got {any_plan.method!r}")
    sampled = any(plan.sample is not None for plan in made.values())
    if shuffle and (sampled or any_plan.init != "identity"):
        raise ValueError("shuffle needs init='identity' and no sample")
    if shuffle and all(plan.blocks == 1 for plan in made.values()):
        raise ValueError("shuffle needs blocks: pass blocks or block_size")
    if side != "input" and sampled:
        raise ValueError(f"sample rotates the inputs only, got side={side!r}")
    plans = {}
    for name, plan in made.items():
        neurons, layer = found[name], f"layer {layer_label(name)!r}"
        outputs = math.prod(neurons.stored.shape) // plan.dimension
        if side != "input" and (neurons.layout.groups > 1 or plan.layout.stacked):
            raise ValueError(f"side={side!r} would mix the {neurons.layout.groups} groups of {layer}: exclude it")
        changed = replace(
            plan,
            side=side,
            outputs=outputs if side != "input" or magnitude else 0,
            output_blocks=_output_blocks(outputs, blocks, block_size) if side != "input" else 1,
            shuffle=shuffle and plan.blocks > 1,
            scaled=scaled,
            magnitude=magnitude,
            dropout=rate,
        )
        possible = method is not None and method.orthogonal and acts_on_inputs(neurons)
        if apply == "activation" and not possible:
            raise ValueError(
                "apply='activation' needs an orthogonal method and a Linear, or a convolution with 1×1 kernels and one "
                f"group; got method={plan.method!r} and {layer} [{type(neurons.module).__name__}]: use apply='auto' "
                "or exclude it"
            )
        if name in frozen and (side != "input" or magnitude or shuffle or plan.sample is not None or plan.learned):
            raise ValueError(
                f"{layer} has a quantized or tied weight: side, magnitude, shuffle, sample and learned neurons need a "
                "weight that can be changed; exclude it"
            )
        changed = replace(changed, frozen=name in frozen)
        if apply == "auto":
            plans[name] = replace(changed, apply=choose_apply(changed, neurons) if possible else "weight")
        else:
            plans[name] = replace(changed, apply=apply)
    return plans


def acts_on_inputs(neurons: Neurons) -> bool:
    """Return whether a rotation can act on the inputs of this layer: no two neurons see different parts of them."""
    module = neurons.module
    if isinstance(neurons, FrozenNeurons):
        return True
    if isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d):
        plain = type(module) in (nn.Conv1d, nn.Conv2d, nn.Conv3d)
        return plain and module.groups == 1 and set(module.kernel_size) == {1}
    return type(module) is nn.Linear or is_transformers_conv1d(module)


def choose_apply(plan: Plan, neurons: Neurons) -> str:
    """Return "weight" if rotating the weight always takes the fewest multiplications, else "auto"."""
    if plan.sample is not None:  # dimensions that are chosen one by one cost copies of the inputs
        return "weight"
    outputs = neurons.stored.numel() // plan.dimension
    convolution = isinstance(neurons.module, nn.Conv1d | nn.Conv2d | nn.Conv3d)
    formed = not convolution and can_form(plan, outputs)
    return "auto" if formed or is_cheaper_on_inputs(plan, outputs) else "weight"


def _output_blocks(outputs: int, blocks: int, block_size: Any) -> int:
    """Return the number of blocks of the outputs; 1 if they cannot be split like this."""
    if block_size is not None:
        blocks = outputs // block_size if outputs % block_size == 0 else 1
    return blocks if outputs % blocks == 0 and outputs // blocks > 1 else 1
