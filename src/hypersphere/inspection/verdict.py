"""Say in words how a layer is, and what to do about it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from .._internal.text import escaped
from .rows import Finding, Layer, Verdict

CROWDED = 1.05  # times the energy of random neurons
LOW_RANK = 0.5  # of the possible
UNEVEN = 0.5  # standard deviation of the lengths, by their mean
ONE_SIDED = math.radians(80)  # mean angle; random neurons have 90°

#: finding → what to do about it
REMEDIES = {
    "broken": "go back to a checkpoint before the training diverged; train with a lower rate or with `--clip 1`",
    "dead": "remove them, or start again from `hs.spread(model)`, and train with less weight decay",
    "duplicates": "train with `hs.EnergyRegularizer(model)` (`--energy.measure energy`), or remove one of each pair",
    "opposites": "train with `hs.EnergyRegularizer(model, half_space=True)` (`--energy.half_space true`)",
    "crowded": "train with `hs.EnergyRegularizer(model)` (`--energy.measure energy`)",
    "one-sided": "compare by angle after subtracting the mean vector, or train with `hs.EnergyRegularizer(model)`",
    "low rank": "make the layer narrower, or start from `hs.spread(model)`",
    "uneven": "compare by angle (`hs.spherize(model)`), or start from `hs.normalize_neurons(model)`",
}


GRADES = ("broken", "wasteful", "crowded", "good")
_WASTE = ("dead", "duplicates", "opposites")


def judge(layer: Layer) -> Verdict:
    """Judge a layer by its figures."""
    found = [Finding(name, text) for name, text in _findings(layer)]
    names = {finding.name for finding in found}
    grade = "good"
    if "broken" in names:
        grade = "broken"
    elif names & {*_WASTE}:
        grade = "wasteful"
    elif names & {"crowded", "one-sided", "low rank"}:
        grade = "crowded"
    text = "; ".join(finding.text for finding in found) or _praise(layer)
    return Verdict(grade, tuple(found), text)


def _findings(layer: Layer) -> list[tuple[str, str]]:
    total = layer.neurons * layer.groups
    what = "rows" if layer.kind == "embedding" else "neurons"
    found = []
    if layer.broken:
        found.append(("broken", f"{_count(len(layer.broken), total, what)} NaN or infinity"))
    if layer.dead and not (layer.kind == "embedding" and len(layer.dead) == 1):  # the padding of a vocabulary
        found.append(("dead", f"{_count(len(layer.dead), total, what)} zero"))
    if layer.dimension == 1:  # all point the same way, or the opposite
        return found
    compared = layer.sampled or total
    if layer.redundant:
        noun = "a near-duplicate" if len(layer.redundant) == 1 else "near-duplicates"
        found.append(("duplicates", f"{_count(len(layer.redundant), compared, what)} {noun} of another"))
    if layer.opposite_pairs:
        found.append(
            ("opposites", f"{layer.opposite_pairs} {'pair' if layer.opposite_pairs == 1 else 'pairs'} opposite")
        )
    if layer.mean_angle is not None and layer.mean_angle < ONE_SIDED and not layer.redundant:
        found.append(("one-sided", f"{what} lean one way: {math.degrees(layer.mean_angle):.0f}° apart on average"))
    elif not layer.redundant and _ratio(layer) > CROWDED:
        found.append(("crowded", f"energy {100 * (_ratio(layer) - 1):.0f} % above that of random {what}"))
    possible = min(layer.sampled or layer.neurons, layer.dimension)
    if possible >= 8 and 0 < layer.effective_rank < LOW_RANK * possible:
        found.append(("low rank", f"effective rank {layer.effective_rank:.0f} of {possible}"))
    if layer.norm_spread is not None and layer.norm_spread > UNEVEN:
        longer = (layer.longest or 0) / (layer.shortest or math.inf)
        found.append(("uneven", f"lengths differ up to {longer:.3g} times"))
    return found


def _ratio(layer: Layer) -> float:
    """Return the energy divided by that of random neurons; 0 where that is infinite or there are no pairs."""
    if layer.excess is None or layer.random_excess is None or not math.isfinite(layer.excess):
        return 0.0
    return (1 + layer.excess) / (1 + layer.random_excess)


def _praise(layer: Layer) -> str:
    if layer.separation is None:
        return "nothing to compare: fewer than two neurons"
    ratio = _ratio(layer)
    if not ratio:
        return "nothing found"
    if ratio > 1.01:
        return "nearly as even as random neurons"
    return "more even than random neurons" if ratio < 0.999 else "as even as random neurons"


def _count(k: int, n: int, what: str) -> str:
    if k == n:
        return f"all {n} {what} are"
    return f"{k} of {n} {what} {'is' if k == 1 else 'are'}"


def summarize(layers: Sequence[Layer]) -> list[str]:
    """Say how the layers of a file are: one line in all, and one for each thing to do."""
    graded = {grade: [each for each in layers if each.verdict.grade == grade] for grade in GRADES}
    counts = ", ".join(f"{len(found)} {grade}" for grade, found in graded.items() if found)
    totals = {
        "dead": sum(len(each.dead) for each in layers),
        "near-duplicates": sum(len(each.redundant) for each in layers if each.dimension > 1),
        "opposite pairs": sum(each.opposite_pairs for each in layers if each.dimension > 1),
    }
    waste = ", ".join(f"{k} {what}" for what, k in totals.items() if k) or "no neuron is wasted"
    lines = [f"{len(layers)} {'layer' if len(layers) == 1 else 'layers'}: {counts}; {waste}"]
    for name, remedy in REMEDIES.items():
        where = [each.name for each in layers if any(finding.name == name for finding in each.verdict.findings)]
        if where:
            names = [escaped(each) or "(root)" for each in where[:3]]
            shown = ", ".join(each if len(each) <= 60 else f"{each[:20]}…{each[-39:]}" for each in names)
            more = f" and {len(where) - 3} more" if len(where) > 3 else ""
            lines.append(f"{name} ({shown}{more}): {remedy}")
    return lines
