"""How the minimal energy grows with the number of neurons (MHE, Theorem 2): law against minimized energies."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ... import geometry, hyperspherical_energy
from ...report import line_chart
from .. import theory
from .drawing import Drawing

CIRCLE, SPHERE = (4, 8, 16, 32, 64, 128, 512, 2048), (4, 8, 16, 32, 64, 128)  # N
POWERS = {2: (0.5, 1.0, 3.0), 3: (1.0, 2.0, 3.0)}  # dimension of the space → s below, at and above dim − 1
_STARTS = {8: 8, 16: 8, 32: 8}  # of a minimization; 2 for larger N: the law needs the energy to a thousandth
_POWER = str.maketrans("0123456789.", "⁰¹²³⁴⁵⁶⁷⁸⁹·")


def minimal_energy(n: int, dim: int, s: float) -> tuple[float, str]:
    """Return the smallest known energy over ordered pairs, and where it comes from."""
    known = geometry.known_minimum(n, dim, s)
    if known is not None:
        return 2 * known, "exact" if dim == 2 else "known"
    points = geometry.minimize_energy(n, dim, s, starts=_STARTS.get(n, 2))
    return float(hyperspherical_energy(points, s, reduction="sum")), "minimized"


def measure(n: int, dim: int, s: float) -> dict[str, Any]:
    law = theory.growth_law(s, dim)
    energy, source = minimal_energy(n, dim, s)
    p = f"N{f'{law.power:g}'.translate(_POWER)}{' log N' if law.log else ''}"
    return {
        "sphere": f"S{'¹²'[dim - 2]}",
        "p(N)": p,
        "source": source,
        "s": s,
        "N": n,
        "energy": energy,
        "energy/p(N)": energy / law.p(n),
        "limit": law.constant,
        "ratio": None if law.constant is None else energy / law.energy(n),
    }


def growth(_: Sequence[Path] = ()) -> Drawing:
    """Draw minimal energies divided by their growth law."""
    rows = [measure(n, dim, s) for dim, numbers in ((2, CIRCLE), (3, SPHERE)) for s in POWERS[dim] for n in numbers]
    series: dict[str, tuple[list[float], list[float]]] = {}
    for row in rows:
        if row["ratio"] is not None:
            x, y = series.setdefault(f"{row['sphere']}, s = {row['s']:g}: {row['p(N)']}", ([], []))
            x.append(row["N"])
            y.append(row["ratio"])
    chart = line_chart(
        {**series, "limit": ([SPHERE[0], CIRCLE[-1]], [1.0, 1.0])},
        title="The least energy of N neurons, divided by its growth law",
        xlabel="N",
        ylabel="energy / (constant · p(N))",
        log="x",
        height=460,
    )
    last, before = rows[-1], rows[-2]
    power = math.log(last["energy"] / before["energy"]) / math.log(last["N"] / before["N"])
    note = (
        f"S², s = 3: the constant is not known in closed form; from N = {before['N']} to {last['N']} the energy grows "
        f"as N^{power:.3f}, the law says {1 + last['s'] / 2:g}."
    )
    return Drawing(chart, rows, [note])
