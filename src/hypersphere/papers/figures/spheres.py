"""Draw spheres: a grid, dots in front and behind, paths on the surface."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import groupby, pairwise

import torch
from torch import Tensor

from ...report.svg import PALETTE

RADIUS = 100  # pixels
NEURON, ANTIPODE = PALETTE[1], PALETTE[3]
TURN, TILT = math.radians(40), math.radians(12)  # from where the spheres are seen: no dot hides another
FRONT = (-math.cos(TILT) * math.sin(TURN), -math.cos(TILT) * math.cos(TURN), -math.sin(TILT))  # towards the viewer

Place = tuple[float, float, float]


def seen(point: Iterable[float]) -> Place:
    """Return right and down in pixels, and how far in front, −1 to 1."""
    x, y, z = point
    x, y = x * math.cos(TURN) - y * math.sin(TURN), x * math.sin(TURN) + y * math.cos(TURN)
    y, z = y * math.cos(TILT) + z * math.sin(TILT), z * math.cos(TILT) - y * math.sin(TILT)
    return RADIUS * x, -RADIUS * z, -y


def sphere(points: Tensor, *, antipodes: bool = False, line: tuple[int, int] | None = None) -> list[str]:
    """Draw a sphere with neurons (N, 3) around the origin; dots in front are larger and darker than those behind.

    Args:
        antipodes: draw those of all neurons too.
        line: two neurons to be joined.
    """
    front, back = _grid()
    dots = [(*seen(point), NEURON) for point in points.tolist()]
    if antipodes:
        dots += [(*seen(point), ANTIPODE) for point in (-points).tolist()]
    dots.sort(key=lambda dot: dot[2])
    return [
        f'<circle r="{RADIUS}" fill="#f5f6f8"/>',
        f'<path d="{back}" stroke="#e6e7eb" fill="none"/>',
        *_dots(dot for dot in dots if dot[2] <= 0),
        *([_dashed(*(seen(points[k].tolist()) for k in line))] if line else []),
        f'<path d="{front}" stroke="#c9ccd4" fill="none"/>',
        f'<circle r="{RADIUS}" fill="none" stroke="#a9adb8"/>',
        *_dots(dot for dot in dots if dot[2] > 0),
    ]


def _grid() -> tuple[str, str]:
    """Return the paths of parallels and meridians in front and behind."""
    steps = [math.radians(degree) for degree in range(0, 361, 6)]
    parallels = [
        [(math.cos(lat) * math.cos(t), math.cos(lat) * math.sin(t), math.sin(lat)) for t in steps]
        for lat in map(math.radians, (-60, -30, 0, 30, 60))
    ]
    meridians = [
        [(math.cos(t) * math.cos(lon), math.cos(t) * math.sin(lon), math.sin(t)) for t in steps]
        for lon in map(math.radians, range(0, 180, 30))
    ]
    front = back = ""
    for circle in parallels + meridians:
        for in_front, places in _pieces([seen(point) for point in circle]):
            path = "M" + " ".join(f"{x:.1f} {y:.1f}" for x, y, _ in places)
            front, back = (front + path, back) if in_front else (front, back + path)
    return front, back


def _pieces(places: Sequence[Place]) -> Iterable[tuple[bool, list[Place]]]:
    """Yield the parts of a curve in front of the sphere and behind it."""
    for in_front, run in groupby(pairwise(places), key=lambda piece: piece[0][2] + piece[1][2] > 0):
        found = list(run)
        yield in_front, [found[0][0], *(end for _, end in found)]


def _dots(dots: Iterable[tuple[float, float, float, str]]) -> list[str]:
    parts = []
    for x, y, depth, colour in dots:
        look = f'fill="{colour}"' if depth > 0 else f'fill="{colour}" fill-opacity="{0.45 + 0.2 * depth:.2f}"'
        edge = ' stroke="#fff" stroke-width="1.2"' if depth > 0 else ""
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{5.5 + 2 * depth:.1f}" {look}{edge}/>')
    return parts


def _dashed(one: Place, other: Place) -> str:
    (x, y, _), (u, v, _) = one, other
    return f'<path d="M{x:.1f} {y:.1f}L{u:.1f} {v:.1f}" stroke="{NEURON}" stroke-width="1.5" stroke-dasharray="5 4"/>'


def paths(places: Tensor) -> list[str]:
    """Draw a sphere with the paths of neurons (T, N, 3) on it: a ring where each starts, a dot where it ends."""
    drawn = sphere(places[-1])
    rings = []
    for path in places.unbind(1):
        points = [seen(point) for point in path.tolist()]
        rings += [curve(piece, NEURON, 1.8, 0.6 if in_front else 0.25) for in_front, piece in _pieces(points)]
        x, y, depth = points[0]
        look = f'fill="#fff" stroke="{NEURON}" stroke-opacity="{0.9 if depth > 0 else 0.35}" stroke-width="1.6"'
        rings.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" {look}/>')
    in_front = sum(seen(point)[2] > 0 for point in places[-1].tolist())
    return [*drawn[: len(drawn) - in_front], *rings, *drawn[len(drawn) - in_front :]]


def arc(one: Tensor, other: Tensor, steps: int = 24) -> list[list[float]]:
    """Return points of the great circle between two unit vectors."""
    angle = torch.acos(one @ other)
    at = [k / steps for k in range(steps + 1)]
    return [((torch.sin((1 - t) * angle) * one + torch.sin(t * angle) * other) / angle.sin()).tolist() for t in at]


def curve(points: Iterable[Place], colour: str, width: float, opacity: float = 1.0) -> str:
    path = "M" + " ".join(f"{x:.1f} {y:.1f}" for x, y, _ in points)
    return f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="{width}" stroke-opacity="{opacity}"/>'


def label(x: float, y: float, text: str) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="18" font-style="italic" font-family="Georgia, serif">{text}</text>'
    )
