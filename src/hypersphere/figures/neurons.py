"""Ten neurons on the sphere that only a regularizer moves (MHE, Fig. 1, 5 and 6)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from .. import functional, geometry, hyperspherical_energy
from ..cosine import unit
from .drawing import PANEL, TOP, Drawing, close_svg, open_svg
from .spheres import ANTIPODE, NEURON, sphere


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
    return Drawing(_spheres("Ten random neurons in space, after each regularizer alone", ends))


def _spheres(title: str, panels: dict[str, Tensor]) -> str:
    """Draw spheres with neurons (N, 3) side by side, the last one with their antipodes."""
    width, height = PANEL * len(panels), TOP + PANEL + 96
    parts = open_svg(title, width, height)
    for k, (name, points) in enumerate(panels.items()):
        x, y = PANEL * (k + 0.5), TOP + PANEL / 2
        i, j, cosine = _closest_lines(points)
        opposite = cosine < -0.999
        below = [
            f"closest two: {math.degrees(geometry.separation(points)):.0f}° apart",
            f"closest lines: {math.degrees(math.acos(min(1.0, abs(cosine)))):.0f}° apart{' (dashed)' * opposite}",
        ]
        parts.append(f'<g transform="translate({x:g} {y:g})">')
        parts += sphere(points, antipodes=k == len(panels) - 1, line=(i, j) if opposite else None)
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
    return close_svg(parts)


def _closest_lines(points: Tensor) -> tuple[int, int, float]:
    """Return the two neurons whose lines through the origin are closest, and their cosine."""
    cosines = (points @ points.mT).triu(1)
    i, j = divmod(int(cosines.abs().argmax()), len(points))
    return i, j, float(cosines[i, j])
