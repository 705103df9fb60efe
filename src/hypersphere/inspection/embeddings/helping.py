"""What helps? Centring, removing the first components, whitening, and a rotation before quantization."""

from __future__ import annotations

import math
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor

from ...openset import nearest
from ...rotation.quantize import fit_rotation
from .answers import Answer
from .hubs import NEIGHBORS, drop_own, skewness
from .recall import CODES, METHODS, Sample, rotation_gain
from .spread import Spectrum
from .transform import Transform
from .vectors import Vectors

_ROWS = 4096
_LESS_SKEWED = 0.8  # times, of a skewness above 1: what reduces hubs by less is not worth a change
_MORE_RIGHT = 0.005  # share of queries
_BEFORE = {
    "centred": "centring",
    "rotated at random": 'hs.quantize.fit_rotation(method="random")',
    "fit_rotation": "hs.quantize.fit_rotation",
}


def candidates(spectrum: Spectrum) -> list[Transform]:
    """Return the maps that are tried; all-but-the-top-k (Mu & Viswanath 2018) removes k = d/100 components."""
    d, v = len(spectrum.mean), spectrum.directions
    k = max(1, d // 100)
    inverse = torch.where(spectrum.variances > 0, spectrum.variances, math.inf).rsqrt().float()
    return [
        Transform("centring", torch.eye(d), spectrum.mean),
        Transform(f"all but the top {k}", torch.eye(d) - v[:, :k] @ v[:, :k].T, spectrum.mean),
        Transform("whitening", inverse.unsqueeze(1) * v.T, spectrum.mean),
    ]


def find_help(
    vectors: Vectors,
    spectrum: Spectrum,
    sample: Sample,
    quantized: dict[str, Any],
    labels: npt.NDArray[Any] | None,
) -> tuple[Answer, Transform | None]:
    """Find the best map, by the labels of the nearest if there are some, else by how much less skewed the hubs are.

    Args:
        quantized: details of :func:`may_quantize`, which says what is best before quantization.
    """
    index = vectors.sample(_ROWS)
    rows = vectors.unit(index)
    known = None if labels is None else torch.from_numpy(labels[vectors.number(index)])
    maps = candidates(spectrum)
    tried = {"none": _try(rows, known)} | {one.name: _try(one(rows), known) for one in maps}
    for one in maps:
        tried[one.name]["recall"] = sample.recall(one(sample.rows))
    key, is_more = ("same_label", True) if labels is not None else ("skewness", False)
    now = tried["none"][key]
    name = (max if is_more else min)(tried, key=lambda one: tried[one][key])
    best = tried[name][key]
    is_better = best > now + _MORE_RIGHT if is_more else now > 1 and best < _LESS_SKEWED * now
    gain = rotation_gain(quantized["recall"]["1 bit"])
    what = f"nearest of the same label {now:.3f}" if is_more else f"hub skewness {now:.2f}"
    found = []
    if is_better:
        found.append(
            f"{name}{'' if is_more else ', if fewer hubs is the aim; give --labels to see whether it is right'}"
        )
    best_map = next((one for one in maps if is_better and one.name == name), None)
    used = {name: how for name, how in quantized["best"].items() if how in _BEFORE}
    for how in dict.fromkeys(used.values()):
        found.append(f"{_BEFORE[how]} before {' and '.join(name for name in used if used[name] == how)}")
    if used and best_map is None:
        best_map = _map_before(sample, *list(used.items())[-1])  # of the fewest bits
    details = {"tried": tried, "rotation_gain_1_bit": gain, "criterion": key, "best": name if is_better else None}
    return Answer(
        "what helps?",
        "; ".join(found) or "nothing that was tried",
        not is_better,
        what + (f" → {best:.3g} by {name}" if name != "none" else "") + f"; rotation {gain:+.3f} at 1 bit",
        details=details,
    ), best_map


def _map_before(sample: Sample, code: str, how: str) -> Transform:
    method, is_centred = METHODS[how]
    turn = fit_rotation(sample.fitted, CODES[code], method=method, center=is_centred)
    return Transform(how, turn.matrix, turn.mean)


def _try(rows: Tensor, labels: Tensor | None) -> dict[str, float]:
    own = torch.arange(len(rows))
    index = drop_own(nearest(rows, rows, min(NEIGHBORS, len(rows) - 1) + 1).indices, own)
    measured = {"skewness": skewness(torch.bincount(index.flatten(), minlength=len(rows)))}
    if labels is not None:
        measured["same_label"] = float((labels[index[:, 0]] == labels).double().mean())
    return measured
