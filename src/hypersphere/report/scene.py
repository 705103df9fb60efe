"""Pictures in three dimensions: spheres, dots and lines in space, surfaces. page.js draws the same, to be turned."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby, pairwise

from .chart import TILT, TURN, Chart, Point, Scene, Surface
from .svg import BACK, CLASSES, FRONT, GRID, LABEL, PAPER, RIM, SHADE, TITLE, document, legend_key, text_line

RADIUS = 100  # pixels
_TURN, _TILT = math.radians(TURN), math.radians(TILT)
TOWARDS = (-math.cos(_TILT) * math.sin(_TURN), -math.cos(_TILT) * math.cos(_TURN), -math.sin(_TILT))  # the viewer
PANEL = 330  # pixels of a scene without its title and legend
SCALE = 1.45  # of a scene's unit length, in RADIUS

Place = tuple[float, float, float]


def seen(point: Iterable[float], turn: float = _TURN, tilt: float = _TILT) -> Place:
    """Return right and down in pixels, and how far in front, −1 to 1."""
    x, y, z = point
    x, y = x * math.cos(turn) - y * math.sin(turn), x * math.sin(turn) + y * math.cos(turn)
    y, z = y * math.cos(tilt) + z * math.sin(tilt), z * math.cos(tilt) - y * math.sin(tilt)
    return RADIUS * x, -RADIUS * z, -y


def draw_scene(scene: Scene, title: str) -> Chart:
    """Draw a scene from one side: what is farther away first."""
    front, back = _grid()
    parts: dict[bool, list[tuple[float, str]]] = {False: [], True: []}

    def place(point: Point) -> Place:
        return seen(point, math.radians(scene.turn), math.radians(scene.tilt))

    def add(depth: float, part: str) -> None:
        parts[depth > 0].append((depth, part))

    for series in scene.series:
        if not series.is_shown:
            continue
        colour, places = CLASSES[series.colour % len(CLASSES)], [place(point) for point in series.points]
        if series.is_line:
            add(sum(depth for *_, depth in places) / max(1, len(places)), curve(places, colour, series.size / SCALE))
        else:
            for dot in places:
                add(dot[2], _dot(*dot, colour, series.size / 2 / SCALE, fade=scene.has_sphere))
    for depth, face in _faces(scene.surface, place) if scene.surface else ():
        add(depth, face)
    for point, text in scene.labels:
        x, y, depth = place(point)
        add(depth, text_line(text, x, y, LABEL / SCALE, anchor="middle"))
    behind, before = ([part for _, part in sorted(parts[side], key=lambda item: item[0])] for side in (False, True))
    if scene.has_sphere:
        drawn = [*_disc(back), *behind, *_outline(front), *before]
    else:
        ends = [place(end) for end in ((1, 0, 0), (0, 1, 0), (0, 0, 1))]
        axes = "".join(f"M{-x:.1f} {-y:.1f}L{x:.1f} {y:.1f}" for x, y, _ in ends)
        drawn = [f'<path d="{axes}" stroke="{GRID}"/>' if scene.surface is None else "", *behind, *before]
    names = [series for series in scene.series if series.in_legend]
    height = PANEL + 40 + 22 * math.ceil(len(names) / 2)
    shown = [
        text_line(title, 14, 14 + TITLE * 0.8, TITLE, room=PANEL, more='font-weight="600"'),
        f'<g transform="translate({PANEL / 2 + 14:g} {PANEL / 2 + 34:g}) scale({SCALE:g})">',
        *drawn,
        "</g>",
    ]
    for i, series in enumerate(names):
        x, y = 20 + i % 2 * PANEL / 2, PANEL + 46 + 22 * (i // 2)
        shown.append(legend_key(i, series.name, CLASSES[series.colour % len(CLASSES)], x, y, PANEL / 2 - 20))
    return Chart(document(shown, title, PANEL + 28, height + 6), scene=scene)


def _faces(surface: Surface, place: Callable[[Point], Place]) -> Iterable[tuple[float, str]]:
    """Yield depth and polygon of each cell of a surface."""
    rows = [[place(point) for point in row] for row in surface.points]
    for i, (one, other) in enumerate(pairwise(rows)):
        for j, colour in enumerate(surface.colours[i]):
            corners = (one[j], one[j + 1], other[j + 1], other[j])
            if colour is not None:
                points = " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in corners)
                look = f'fill="{colour}" stroke="{colour}" stroke-width=".4"'
                yield sum(corner[2] for corner in corners) / 4, f'<polygon points="{points}" {look}/>'


# Spheres


def sphere(
    points: Iterable[Point],
    colour: str,
    *,
    antipodes: str = "",
    line: tuple[Point, Point] | None = None,
    between: Sequence[str] = (),
) -> list[str]:
    """Draw a sphere with neurons around the origin; dots in front are larger and darker than those behind.

    Args:
        antipodes: the colour of the neurons' antipodes; "": they are not drawn.
        line: two places to be joined.
        between: what is drawn above the sphere and below the dots in front.
    """
    front, back = _grid()
    neurons = list(points)
    dots = [(*seen(point), colour) for point in neurons]
    dots += [(*seen([-x for x in point]), antipodes) for point in neurons if antipodes]
    dots.sort(key=lambda dot: dot[2])
    drawn = [(dot[2] > 0, _dot(*dot, 5.5 + 2 * dot[2])) for dot in dots]
    return [
        *_disc(back),
        *(dot for in_front, dot in drawn if not in_front),
        *([_dashed(seen(line[0]), seen(line[1]), colour)] if line else []),
        *_outline(front),
        *between,
        *(dot for in_front, dot in drawn if in_front),
    ]


def _disc(back: str) -> list[str]:
    return [f'<circle r="{RADIUS}" fill="{SHADE}"/>', f'<path d="{back}" stroke="{BACK}" fill="none"/>']


def _outline(front: str) -> list[str]:
    return [
        f'<path d="{front}" stroke="{FRONT}" fill="none"/>',
        f'<circle r="{RADIUS}" fill="none" stroke="{RIM}"/>',
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
        for in_front, places in split_by_side([seen(point) for point in circle]):
            path = "M" + " ".join(f"{x:.1f} {y:.1f}" for x, y, _ in places)
            front, back = (front + path, back) if in_front else (front, back + path)
    return front, back


def split_by_side(places: Sequence[Place]) -> Iterable[tuple[bool, list[Place]]]:
    """Yield the parts of a curve in front of the sphere and behind it."""
    for in_front, group in groupby(pairwise(places), key=lambda piece: piece[0][2] + piece[1][2] > 0):
        pieces = list(group)
        yield in_front, [pieces[0][0], *(end for _, end in pieces)]


def _dot(x: float, y: float, depth: float, colour: str, radius: float, fade: bool = True) -> str:
    in_front = depth > 0 or not fade
    look = f'fill="{colour}"' if in_front else f'fill="{colour}" fill-opacity="{0.45 + 0.2 * depth:.2f}"'
    edge = f' stroke="{PAPER}" stroke-width="1.2"' if in_front and radius > 4 else ""
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}" {look}{edge}/>'


def _dashed(one: Place, other: Place, colour: str) -> str:
    (x, y, _), (u, v, _) = one, other
    return f'<path d="M{x:.1f} {y:.1f}L{u:.1f} {v:.1f}" stroke="{colour}" stroke-width="1.5" stroke-dasharray="5 4"/>'


def curve(points: Iterable[Place], colour: str, width: float, opacity: float = 1.0) -> str:
    """Draw a line through places."""
    path = "M" + " ".join(f"{x:.1f} {y:.1f}" for x, y, _ in points)
    return f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="{width:.3g}" stroke-opacity="{opacity}"/>'
