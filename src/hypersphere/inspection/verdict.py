"""Grade each layer and suggest fixes."""

from __future__ import annotations

import math
from collections.abc import Sequence

from .._internal.text import escaped
from .layer_report import Finding, LayerReport, Verdict

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
#: grade → the findings that give it, the worst first
GRADES = {
    "broken": {"broken"},
    "wasteful": {"dead", "duplicates", "opposites"},
    "crowded": {"crowded", "one-sided", "low rank"},
    "good": {"uneven"},
}


def grade_layer(layer: LayerReport) -> Verdict:
    """Grade a layer by what was measured of it."""
    findings = [Finding(name, text) for name, text in _findings(layer)]
    names = {finding.name for finding in findings}
    grade = next((grade for grade, reasons in GRADES.items() if names & reasons), "good")
    return Verdict(grade, tuple(findings), "; ".join(finding.text for finding in findings) or _praise(layer))


def _findings(layer: LayerReport) -> list[tuple[str, str]]:
    total = layer.neurons * layer.groups
    what = "rows" if layer.kind == "embedding" else "neurons"
    findings = []
    if layer.broken:
        findings.append(("broken", f"{_count(len(layer.broken), total, what)} NaN or infinity"))
    if layer.dead and not (layer.kind == "embedding" and len(layer.dead) == 1):  # the padding of a vocabulary
        findings.append(("dead", f"{_count(len(layer.dead), total, what)} zero"))
    if layer.dimension == 1:  # all point the same way, or the opposite
        return findings
    if layer.redundant:
        noun = "a near-duplicate" if len(layer.redundant) == 1 else "near-duplicates"
        compared = layer.sampled or total
        findings.append(("duplicates", f"{_count(len(layer.redundant), compared, what)} {noun} of another"))
    if layer.opposite_pairs:
        pairs = "pair" if layer.opposite_pairs == 1 else "pairs"
        findings.append(("opposites", f"{layer.opposite_pairs} {pairs} opposite"))
    if layer.mean_angle is not None and layer.mean_angle < ONE_SIDED and not layer.redundant:
        findings.append(("one-sided", f"{what} lean one way: {math.degrees(layer.mean_angle):.0f}° apart on average"))
    elif not layer.redundant and (layer.relative_energy or 0) > CROWDED:
        above = 100 * ((layer.relative_energy or 0) - 1)
        findings.append(("crowded", f"energy {above:.0f} % above that of random {what}"))
    possible = min(layer.sampled or layer.neurons, layer.dimension)
    if possible >= 8 and 0 < layer.effective_rank < LOW_RANK * possible:
        findings.append(("low rank", f"effective rank {layer.effective_rank:.0f} of {possible}"))
    if layer.norm_spread is not None and layer.norm_spread > UNEVEN:
        longer = (layer.longest or 0) / (layer.shortest or math.inf)
        findings.append(("uneven", f"lengths differ up to {longer:.3g} times"))
    return findings


def _praise(layer: LayerReport) -> str:
    if layer.separation is None:
        return "nothing to compare: fewer than two neurons"
    if not layer.relative_energy:
        return "nothing found"
    if layer.relative_energy > 1.01:
        return "nearly as even as random neurons"
    return "more even than random neurons" if layer.relative_energy < 0.999 else "as even as random neurons"


def _count(k: int, n: int, what: str) -> str:
    if k == n:
        return f"all {n} {what} are"
    return f"{k} of {n} {what} {'is' if k == 1 else 'are'}"


def summarize(layers: Sequence[LayerReport]) -> list[str]:
    """Count the grades and the wasted neurons of all layers in a line, and suggest a fix a line for what was found."""
    if not layers:
        return ["no layers"]
    grades = [layer.verdict.grade for layer in layers]
    counts = ", ".join(f"{grades.count(grade)} {grade}" for grade in GRADES if grade in grades)
    totals = {
        "dead": sum(len(layer.dead) for layer in layers),
        "near-duplicates": sum(len(layer.redundant) for layer in layers if layer.dimension > 1),
        "opposite pairs": sum(layer.opposite_pairs for layer in layers if layer.dimension > 1),
    }
    waste = ", ".join(f"{k} {what}" for what, k in totals.items() if k) or "no neuron is wasted"
    lines = [f"{len(layers)} {'layer' if len(layers) == 1 else 'layers'}: {counts}; {waste}"]
    for finding, remedy in REMEDIES.items():
        names = [layer.name for layer in layers if any(x.name == finding for x in layer.verdict.findings)]
        if names:
            lines.append(f"{finding} ({name_some(names)}): {remedy}")
    return lines


def name_some(names: Sequence[str], most: int = 3) -> str:
    """List the first names, shortened, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(shorten(name, 60) for name in names[:most]) + more


def shorten(name: str, room: int = 40) -> str:
    """Escape a name, and drop its middle if it is longer than `room`: the end tells most."""
    name = escaped(name if len(name) <= 1000 else name[:500] + name[-500:]) or "(root)"
    begin = min(6, room // 4)
    return name if len(name) <= room else f"{name[:begin]}…{name[len(name) - (room - 1 - begin) :]}"
