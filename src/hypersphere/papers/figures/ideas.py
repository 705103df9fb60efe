"""The picture of the README: an angle, neurons that spread, neurons that turn together."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ... import geometry, hyperspherical_energy
from ...layers.cosine import unit
from ...report import Chart
from ...report.scene import TOWARDS, curve, seen, sphere, split_by_side
from ...report.svg import INK, PALETTE, PAPER, document
from .drawing import PANEL
from .neurons import NEURON, moved


def ideas() -> Chart:
    """Draw the three papers' ideas side by side."""
    panels = (
        ("Angles", "instead of inner products", "SphereNet · hs.spherize", _angle()),
        ("Even spacing", "by minimum energy", "MHE · hs.EnergyRegularizer", _spread()),
        ("Rotations", "of fixed neurons", "OPT · hs.rotate", _turned()),
    )
    width, height = 3 * PANEL, PANEL + 96
    title = "Angles instead of inner products, evenly spread neurons, fixed neurons that rotate"
    parts = []
    for k, (name, what, calls, drawn) in enumerate(panels):
        parts.append(f'<g transform="translate({PANEL * (k + 0.5):g} {PANEL / 2:g})">')
        parts += drawn
        parts.append(f'<text y="{PANEL / 2 + 8:g}" font-size="17" font-weight="600">{name}</text>')
        parts.append(f'<text y="{PANEL / 2 + 29:g}" font-size="14">{what}</text>')
        parts.append(f'<text y="{PANEL / 2 + 54:g}" font-size="13" fill="#666">{calls}</text></g>')
    legend = "rings: neurons before training, dots: after"
    parts.append(f'<text x="{width / 2:g}" y="{height - 12}" font-size="12" fill="#666">{legend}</text>')
    return Chart(document(parts, title, width, height, is_centred=True, rounding=10))


def _angle() -> list[str]:
    """An input x and a neuron w as arrows from the centre, the angle θ between them as an arc on the sphere."""
    w, x = (unit(torch.tensor(v, dtype=torch.float64)) for v in ((-0.62, -0.6, 0.62), (0.9, -0.35, 0.12)))
    parts = sphere([], NEURON)
    parts.append(curve([seen(point) for point in _arc(w, x)], INK, 2.4))
    for point, colour, name, shift in ((w, NEURON, "w", (-8, -9)), (x, PALETTE[0], "x", (14, 1))):
        u, v, _ = seen(point.tolist())
        parts.append(f'<path d="M0 0L{u:.1f} {v:.1f}" stroke="{colour}" stroke-width="2.4"/>')
        parts.append(f'<circle cx="{u:.1f}" cy="{v:.1f}" r="6.5" fill="{colour}" stroke="#fff" stroke-width="1.2"/>')
        parts.append(_label(u + shift[0], v + shift[1], name))
    u, v, _ = seen(_arc(w, x)[12])
    return [*parts, '<circle r="2.5" fill="#333"/>', _label(u + 10, v - 9, "θ")]


def _spread() -> list[str]:
    """Random neurons, and the shortest ways to where the energy takes them."""
    start = geometry.random_points(12, 3, seed=1).double()
    end = moved(start, hyperspherical_energy, lr=0.2)[-1]
    ways = [torch.tensor(_arc(one, other), dtype=torch.float64) for one, other in zip(start, end, strict=True)]
    return _paths(torch.stack(ways, 1))


def _turned() -> list[str]:
    """Neurons that one rotation turns, all around the same axis."""
    start = geometry.minimize_energy(12).double()
    axis = unit(torch.tensor([0.75 * x for x in TOWARDS], dtype=torch.float64) + torch.tensor([0.0, 0.0, 1.0]))
    along = (start @ axis)[:, None] * axis
    side, across = start - along, torch.linalg.cross(axis.expand_as(start), start)
    places = [along + math.cos(t) * side + math.sin(t) * across for t in map(math.radians, range(41))]
    (x, y, _), (u, v, _) = seen((1.22 * axis).tolist()), seen(axis.tolist())
    pole = f'<path d="M{u:.1f} {v:.1f}L{x:.1f} {y:.1f}" stroke="#333" stroke-width="2" stroke-dasharray="4 3"/>'
    return [*_paths(torch.stack(places)), pole, _label(x + 14, y + 10, "R")]


def _paths(places: Tensor) -> list[str]:
    """Draw a sphere with the paths of neurons (T, N, 3) on it: a ring where each starts, a dot where it ends."""
    rings = []
    for path in places.unbind(1):
        points = [seen(point) for point in path.tolist()]
        rings += [curve(piece, NEURON, 1.8, 0.6 if in_front else 0.25) for in_front, piece in split_by_side(points)]
        x, y, depth = points[0]
        look = f'fill="{PAPER}" stroke="{NEURON}" stroke-opacity="{0.9 if depth > 0 else 0.35}" stroke-width="1.6"'
        rings.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" {look}/>')
    return sphere(places[-1].tolist(), NEURON, between=rings)


def _arc(one: Tensor, other: Tensor, steps: int = 24) -> list[list[float]]:
    """Return points of the great circle between two unit vectors."""
    angle = torch.acos(one @ other)
    shares = [k / steps for k in range(steps + 1)]
    return [((torch.sin((1 - t) * angle) * one + torch.sin(t * angle) * other) / angle.sin()).tolist() for t in shares]


def _label(x: float, y: float, text: str) -> str:
    look = 'font-size="18" font-style="italic" font-family="Georgia, serif"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {look}>{text}</text>'
