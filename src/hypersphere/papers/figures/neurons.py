"""Ten neurons on the sphere that only a regularizer moves (MHE, Fig. 1, 5 and 6)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from ... import functional, geometry, hyperspherical_energy
from ...layers.cosine import unit
from ...report import Chart
from ...report.chart import Scene, Series
from ...report.scene import curve, draw_scene, seen, sphere
from ...report.svg import INK, PALETTE, PAPER, document, heading
from .drawing import PANEL, TOP, Drawing

NEURON, ANTIPODE = PALETTE[1], PALETTE[3]

BETAS = (1.0, 2.0, 4.0, 10.0)  # of the neurons whose paths are drawn (MHE, appendix D)


def moved(w: Tensor, term: Callable[[Tensor], Tensor], lr: float, steps: int = 400) -> Tensor:
    """Return where gradient descent on the sphere takes neurons (N, 3) step by step, (steps + 1, N, 3)."""
    places = [w.detach()]
    for _ in range(steps):
        w = places[-1].requires_grad_()
        (slope,) = torch.autograd.grad(term(w), w)
        places.append(unit(w - lr * slope).detach())
    return torch.stack(places).detach()


def regularized(_: Sequence[Path] = ()) -> Drawing:
    """Draw ten neurons in space after three regularizations (MHE, Fig. 1)."""

    def half_space(w: Tensor) -> Tensor:
        return hyperspherical_energy(w, half_space=True)

    start = geometry.random_points(10, 3, seed=1)
    ends = {
        "orthonormal": moved(start, functional.orthonormal, lr=0.05)[-1],
        "energy": moved(start, hyperspherical_energy, lr=1.5)[-1],
        "energy in half space": moved(start, half_space, lr=0.5)[-1],
    }
    panels = []
    for name, end in ends.items():
        series = [Series("neuron", end.tolist(), 1, size=10)]
        series += [Series("antipode", (-end).tolist(), 3, size=8)] if "half" in name else []
        panels.append(draw_scene(Scene(series, has_sphere=True), name))
    return Drawing(_spheres("Ten random neurons in space, after each regularizer alone", ends), panels=panels)


def _spheres(title: str, panels: dict[str, Tensor]) -> Chart:
    """Draw spheres with neurons (N, 3) side by side, the last one with their antipodes."""
    width, height = PANEL * len(panels), TOP + PANEL + 96
    parts = [heading(title)]
    for k, (name, points) in enumerate(panels.items()):
        x, y = PANEL * (k + 0.5), TOP + PANEL / 2
        i, j, cosine = _closest_lines(points)
        opposite = cosine < -0.999
        below = [
            f"closest two: {math.degrees(geometry.separation(points)):.0f}° apart",
            f"closest lines: {math.degrees(math.acos(min(1.0, abs(cosine)))):.0f}° apart{' (dashed)' * opposite}",
        ]
        parts.append(f'<g transform="translate({x:g} {y:g})">')
        line = (points[i].tolist(), points[j].tolist()) if opposite else None
        parts += sphere(points.tolist(), NEURON, antipodes=ANTIPODE * (k == len(panels) - 1), line=line)
        parts.append(f'<text y="{PANEL / 2 + 4:g}" font-size="14" font-weight="600">{name}</text>')
        parts += [f'<text y="{PANEL / 2 + 25 + 18 * i:g}" font-size="13">{text}</text>' for i, text in enumerate(below)]
        parts.append("</g>")
    y, x = height - 18, 20.0
    for text, colour, opacity in (
        ("neuron", NEURON, 1.0),
        ("behind the sphere", NEURON, 0.35),
        ("its antipode, a virtual neuron", ANTIPODE, 1.0),
    ):
        parts.append(f'<circle cx="{x + 6:g}" cy="{y}" r="6" fill="{colour}" fill-opacity="{opacity}"/>')
        parts.append(f'<text x="{x + 18:g}" y="{y + 4.5}" font-size="13" text-anchor="start">{text}</text>')
        x += 60 + 7 * len(text)
    return Chart(document(parts, title, width, height, is_centred=True))


def _closest_lines(points: Tensor) -> tuple[int, int, float]:
    """Return the two neurons whose lines through the origin are closest, and their cosine."""
    cosines = (points @ points.mT).triu(1)
    i, j = divmod(int(cosines.abs().argmax()), len(points))
    return i, j, float(cosines[i, j])


def weighted(_: Sequence[Path] = ()) -> Drawing:
    """Draw the paths of one neuron and of two whose β is larger than that of the others (MHE, Fig. 5 and 6)."""
    title = "Weighted energy: the larger β, the less a neuron moves"
    height = TOP + 2 * (PANEL + 34) + 34
    parts, rows, panels = [heading(title)], [], []
    start = geometry.random_points(10, 3, seed=1)
    for line, heavy in enumerate((1, 2)):
        for k, strength in enumerate(BETAS):
            beta = torch.ones(10, dtype=torch.float64)
            beta[:heavy] = strength
            places = moved(start, partial(hyperspherical_energy, beta=beta), lr=0.3, steps=250)
            ways = _lengths(places)[:heavy]
            rows.append({"neurons with β": heavy, "β": strength, "path (radians)": float(ways.mean())})
            name = f"{'β₁' if heavy == 1 else 'β₁ = β₂'} = {strength:g}"
            others = Series("β = 1", places[-1, heavy:].tolist(), 1, size=10)
            panels.append(draw_scene(Scene([*_ways(places, heavy), others], has_sphere=True), name))
            parts.append(f'<g transform="translate({PANEL * (k + 0.5):g} {TOP + line * (PANEL + 34) + PANEL / 2:g})">')
            parts += _trajectories(places, heavy)
            parts.append(f'<text y="{PANEL / 2 + 2:g}" font-size="14" font-weight="600">{name}</text>')
            lengths = " and ".join(f"{float(length):.2f}" for length in ways)
            parts.append(f'<text y="{PANEL / 2 + 20:g}" font-size="13">path {lengths} rad</text></g>')
    legend = "squares: places of a neuron with β on its way; line: to where it ends; dots: the other neurons, β = 1"
    parts.append(f'<text x="20" y="{height - 14:g}" font-size="13" text-anchor="start">{legend}</text>')
    chart = Chart(document(parts, title, PANEL * len(BETAS), height, is_centred=True))
    return Drawing(chart, rows, panels=panels)


def _ways(places: Tensor, heavy: int) -> list[Series]:
    """Draw the paths of the first neurons of (T, N, 3) for a turnable sphere, from the centre to where they end."""
    series = []
    for i, colour in zip(range(heavy), (0, 2), strict=False):
        end = places[-1, i].tolist()
        for name, way in ((f"path of neuron {i + 1}", places[:, i].tolist()), (f"neuron {i + 1}", [[0.0] * 3, end])):
            series.append(Series(name, way, colour, size=3, is_line=True))
    return series


def _lengths(places: Tensor) -> Tensor:
    """Compute the length of each neuron's path (T, N, 3) on the sphere, (N,)."""
    return geometry.points.angle_between(places[1:], places[:-1]).sum(0)


def _trajectories(places: Tensor, heavy: int) -> list[str]:
    """Draw the paths of the first neurons of (T, N, 3), and where the others end."""
    parts = sphere(places[-1, heavy:].tolist(), NEURON)
    steps = sorted({0, *(round(2 ** (k / 2)) for k in range(17))} & {*range(len(places))})
    for i, colour in zip(range(heavy), (PALETTE[0], PALETTE[2]), strict=False):
        points = [seen(point) for point in places[steps, i].tolist()]
        parts.append(curve(points, colour, 1.4).replace("/>", ' stroke-dasharray="4 3"/>'))
        parts += [
            f'<rect x="{x - 2.5:.1f}" y="{y - 2.5:.1f}" width="5" height="5" fill="{colour}" '
            f'fill-opacity="{0.85 if depth > 0 else 0.35}"/>'
            for x, y, depth in points
        ]
        x, y, _ = seen(places[-1, i].tolist())
        parts.append(f'<path d="M0 0L{x:.1f} {y:.1f}" stroke="{colour}" stroke-width="2.2"/>')
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="6" fill="{colour}" stroke="{PAPER}" stroke-width="1.2"/>')
    return [*parts, f'<circle r="2.5" fill="{INK}"/>']
