"""The pictures of the docs pages: python docs/make_pictures.py [folder], docs/pictures if none is given."""

import math
import sys
from collections.abc import Callable, Iterable
from itertools import groupby, pairwise
from pathlib import Path

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

from hypersphere import (
    functional,
    geometry,
    hyperspherical_energy,
    param_groups,
    rotate,
    rotation_penalty,
    similarity,
    spread,
)
from hypersphere._internal.safe_files import write_text
from hypersphere.cosine import unit
from hypersphere.losses import MARGINS
from hypersphere.report import line_chart
from hypersphere.report.svg import PALETTE

THETA = torch.linspace(0, math.pi, 241, dtype=torch.float64)  # exact enough for the same bytes on every machine


def similarities(path: Path) -> None:
    """How neurons answer to an angle (SphereNet, Fig. 2)."""
    c = THETA.cos()
    answers = {"cosine": similarity.cosine(c), "linear": similarity.linear(c)}
    answers |= {f"sigmoid, k = {k}": similarity.sigmoid(c, k) for k in (0.1, 0.3, 0.7)}
    line_chart(
        {name: (THETA, g) for name, g in answers.items()},
        path,
        title="What a neuron answers to an angle",
        xlabel="angle θ between neuron and input (radians)",
        ylabel="g(θ)",
    )


def margins(path: Path) -> None:
    """What the losses put in the place of g(θ) at the label."""

    def cosine(theta: torch.Tensor) -> torch.Tensor:
        return similarity.cosine(theta.cos())

    def linear(theta: torch.Tensor) -> torch.Tensor:
        return similarity.linear(theta.cos())

    targets = {
        "cosine, no margin": cosine(THETA),
        "A-Softmax, m = 4": MARGINS["multiplicative"](THETA, 4, cosine),
        "linear GA-Softmax, m = 4": MARGINS["multiplicative"](THETA, 4, linear),
        "AM-Softmax, m = 0.35": MARGINS["additive_cosine"](THETA, 0.35, cosine),
        "ArcFace, m = 0.5": MARGINS["additive_angle"](THETA, 0.5, cosine),
    }
    line_chart(
        {name: (THETA, target) for name, target in targets.items()},
        path,
        title="What the losses make of the label's angle",
        xlabel="angle θ between embedding and the label's weight (radians)",
        ylabel="target logit / s",
        height=480,
    )


def pair_energy(path: Path) -> None:
    """What one pair of neurons adds to the energy (MHE, Eq. 1 and 3.4)."""
    theta = torch.linspace(0.02, math.pi, 241, dtype=torch.float64)
    distance, to_antipode = 2 * (theta / 2).sin(), 2 * (theta / 2).cos().clamp(min=0.01)
    energies = {
        "s = 0": -distance.log(),
        "s = 1": 1 / distance,
        "s = 2": distance**-2,
        "s = 2, half space": (distance**-2 + to_antipode**-2) / 2,
    }
    line_chart(
        {name: (theta, energy) for name, energy in energies.items()},
        path,
        title="The energy of a pair of neurons",
        xlabel="angle θ between the neurons (radians)",
        ylabel="energy",
        xlim=(0.0, math.pi),
        ylim=(-0.8, 3.2),
    )


def regularized(path: Path) -> None:
    """Ten neurons in space after three regularizations (MHE, Fig. 1)."""

    def half_space(w: Tensor) -> Tensor:
        return hyperspherical_energy(w, half_space=True)

    start = geometry.random_points(10, 3, seed=1)
    ends = {
        "orthonormal": _moved(start, functional.orthonormal, lr=0.05),
        "energy": _moved(start, hyperspherical_energy, lr=1.5),
        "energy in half space": _moved(start, half_space, lr=0.5),
    }
    write_text(path, _spheres("Ten random neurons in space, after each regularizer alone", ends))


def _moved(w: Tensor, term: Callable[[Tensor], Tensor], lr: float) -> Tensor:
    """Where gradient descent on the sphere takes the neurons (N, 3)."""
    for _ in range(400):
        w = w.detach().requires_grad_()
        (slope,) = torch.autograd.grad(term(w), w)
        w = unit(w - lr * slope)
    return w.detach()


PANEL, RADIUS, TOP = 240, 100, 34  # pixels: a sphere with its margin, a sphere, the title
NEURON, ANTIPODE = PALETTE[1], PALETTE[3]
TURN, TILT = math.radians(40), math.radians(12)  # from where the spheres are seen: no dot hides another


def _head(title: str, width: float, height: float) -> list[str]:
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" width="{width}" height="{height}" viewBox="0 0 {width} '
        f'{height}" font-family="system-ui, Helvetica, Arial, sans-serif" fill="#333" text-anchor="middle">',
        f'<title>{title}</title><rect width="{width}" height="{height}" fill="#fff"/>',
        f'<text x="20" y="27" font-size="16" text-anchor="start" font-weight="600">{title}</text>',
    ]


def _spheres(title: str, panels: dict[str, Tensor]) -> str:
    """Spheres with neurons (N, 3) side by side, the last one with their antipodes."""
    width, height = PANEL * len(panels), TOP + PANEL + 96
    parts = _head(title, width, height)
    for k, (name, points) in enumerate(panels.items()):
        x, y = PANEL * (k + 0.5), TOP + PANEL / 2
        i, j, cosine = _closest_lines(points)
        opposite = cosine < -0.999
        below = [
            f"closest two: {math.degrees(geometry.separation(points)):.0f}° apart",
            f"closest lines: {math.degrees(math.acos(min(1.0, abs(cosine)))):.0f}° apart{' (dashed)' * opposite}",
        ]
        parts.append(f'<g transform="translate({x:g} {y:g})">')
        parts += _sphere(points, antipodes=k == len(panels) - 1, line=(i, j) if opposite else None)
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
    return "\n".join([*parts, "</svg>"]) + "\n"


def _closest_lines(points: Tensor) -> tuple[int, int, float]:
    """The two neurons whose lines through the origin are closest, and their cosine."""
    cosines = (points @ points.mT).triu(1)
    i, j = divmod(int(cosines.abs().argmax()), len(points))
    return i, j, float(cosines[i, j])


def _sphere(points: Tensor, antipodes: bool, line: tuple[int, int] | None) -> list[str]:
    """A sphere with a grid around the origin; dots in front are larger and darker than those behind.

    Args:
        antipodes: draw those of all neurons too.
        line: two neurons to be joined.
    """
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
        for in_front, run in groupby(pairwise(map(_seen, circle)), key=lambda piece: piece[0][2] + piece[1][2] > 0):
            pieces = list(run)
            path = "M" + " ".join(f"{x:.1f} {y:.1f}" for x, y, _ in [pieces[0][0], *(end for _, end in pieces)])
            front, back = (front + path, back) if in_front else (front, back + path)
    dots = [(*_seen(point), NEURON) for point in points.tolist()]
    if antipodes:
        dots += [(*_seen(point), ANTIPODE) for point in (-points).tolist()]
    dots.sort(key=lambda dot: dot[2])
    return [
        f'<circle r="{RADIUS}" fill="#f5f6f8"/>',
        f'<path d="{back}" stroke="#e6e7eb" fill="none"/>',
        *_dots(dot for dot in dots if dot[2] <= 0),
        *([_dashed(*(_seen(points[k].tolist()) for k in line))] if line else []),
        f'<path d="{front}" stroke="#c9ccd4" fill="none"/>',
        f'<circle r="{RADIUS}" fill="none" stroke="#a9adb8"/>',
        *_dots(dot for dot in dots if dot[2] > 0),
    ]


def _dots(dots: Iterable[tuple[float, float, float, str]]) -> list[str]:
    parts = []
    for x, y, depth, colour in dots:
        look = f'fill="{colour}"' if depth > 0 else f'fill="{colour}" fill-opacity="{0.45 + 0.2 * depth:.2f}"'
        edge = ' stroke="#fff" stroke-width="1.2"' if depth > 0 else ""
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{5.5 + 2 * depth:.1f}" {look}{edge}/>')
    return parts


def _dashed(one: tuple[float, float, float], other: tuple[float, float, float]) -> str:
    (x, y, _), (u, v, _) = one, other
    return f'<path d="M{x:.1f} {y:.1f}L{u:.1f} {v:.1f}" stroke="{NEURON}" stroke-width="1.5" stroke-dasharray="5 4"/>'


def _seen(point: Iterable[float]) -> tuple[float, float, float]:
    """Right and down in pixels, and how far in front, −1 to 1."""
    x, y, z = point
    x, y = x * math.cos(TURN) - y * math.sin(TURN), x * math.sin(TURN) + y * math.cos(TURN)
    y, z = y * math.cos(TILT) + z * math.sin(TILT), z * math.cos(TILT) - y * math.sin(TILT)
    return RADIUS * x, -RADIUS * z, -y


FRONT = (-math.cos(TILT) * math.sin(TURN), -math.cos(TILT) * math.cos(TURN), -math.sin(TILT))  # towards the viewer


def three_ideas(path: Path) -> None:
    """The picture of the README: an angle, neurons that spread, neurons that turn together."""
    panels = (
        ("Angles", "instead of inner products", "SphereNet · hs.spherize", _angle_panel()),
        ("Even spacing", "by minimum energy", "MHE · hs.EnergyRegularizer", _spread_panel()),
        ("Rotations", "of fixed neurons", "OPT · hs.rotate", _turned_panel()),
    )
    width, height = 3 * PANEL, PANEL + 96
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" width="{width}" height="{height}" viewBox="0 0 {width} '
        f'{height}" font-family="system-ui, Helvetica, Arial, sans-serif" fill="#333" text-anchor="middle">',
        "<title>Angles instead of inner products, evenly spread neurons, fixed neurons that rotate</title>",
        f'<rect width="{width}" height="{height}" rx="10" fill="#fff"/>',
    ]
    for k, (name, what, calls, sphere) in enumerate(panels):
        parts.append(f'<g transform="translate({PANEL * (k + 0.5):g} {PANEL / 2:g})">')
        parts += sphere
        parts.append(f'<text y="{PANEL / 2 + 8:g}" font-size="17" font-weight="600">{name}</text>')
        parts.append(f'<text y="{PANEL / 2 + 29:g}" font-size="14">{what}</text>')
        parts.append(f'<text y="{PANEL / 2 + 54:g}" font-size="13" fill="#666">{calls}</text></g>')
    legend = "rings: neurons before training, dots: after"
    parts.append(f'<text x="{width / 2:g}" y="{height - 12}" font-size="12" fill="#666">{legend}</text>')
    write_text(path, "\n".join([*parts, "</svg>"]) + "\n")


def _angle_panel() -> list[str]:
    """An input x and a neuron w as arrows from the centre, the angle θ between them as an arc on the sphere."""
    w, x = (unit(torch.tensor(v, dtype=torch.float64)) for v in ((-0.62, -0.6, 0.62), (0.9, -0.35, 0.12)))
    parts = _sphere(torch.empty(0, 3), antipodes=False, line=None)
    parts.append(_curve([_seen(point) for point in _arc(w, x)], "#333", 2.4))
    for point, colour, name, shift in ((w, NEURON, "w", (-8, -9)), (x, PALETTE[0], "x", (14, 1))):
        u, v, _ = _seen(point.tolist())
        parts.append(f'<path d="M0 0L{u:.1f} {v:.1f}" stroke="{colour}" stroke-width="2.4"/>')
        parts.append(f'<circle cx="{u:.1f}" cy="{v:.1f}" r="6.5" fill="{colour}" stroke="#fff" stroke-width="1.2"/>')
        parts.append(_label(u + shift[0], v + shift[1], name))
    u, v, _ = _seen(_arc(w, x)[12])
    return [*parts, '<circle r="2.5" fill="#333"/>', _label(u + 10, v - 9, "θ")]


def _spread_panel() -> list[str]:
    """Random neurons, and the shortest ways to where the energy takes them."""
    start = geometry.random_points(12, 3, seed=1).double()
    end = _moved(start, hyperspherical_energy, lr=0.2)
    ways = [torch.tensor(_arc(one, other), dtype=torch.float64) for one, other in zip(start, end, strict=True)]
    return _paths(torch.stack(ways, 1))


def _turned_panel() -> list[str]:
    """Neurons that one rotation turns, all around the same axis."""
    start = geometry.minimize_energy(12).double()
    axis = unit(torch.tensor([0.75 * x for x in FRONT], dtype=torch.float64) + torch.tensor([0.0, 0.0, 1.0]))
    along = (start @ axis)[:, None] * axis
    side, across = start - along, torch.linalg.cross(axis.expand_as(start), start)
    places = [along + math.cos(t) * side + math.sin(t) * across for t in map(math.radians, range(41))]
    (x, y, _), (u, v, _) = _seen((1.22 * axis).tolist()), _seen(axis.tolist())
    pole = f'<path d="M{u:.1f} {v:.1f}L{x:.1f} {y:.1f}" stroke="#333" stroke-width="2" stroke-dasharray="4 3"/>'
    return [*_paths(torch.stack(places)), pole, _label(x + 14, y + 10, "R")]


def _paths(places: Tensor) -> list[str]:
    """A sphere with the paths of neurons (T, N, 3) on it: a ring where each starts, a dot where it ends."""
    sphere = _sphere(places[-1], antipodes=False, line=None)
    rings = []
    for path in places.unbind(1):
        points = [_seen(point) for point in path.tolist()]
        for in_front, run in groupby(pairwise(points), key=lambda piece: piece[0][2] + piece[1][2] > 0):
            pieces = list(run)
            rings.append(_curve([pieces[0][0], *(end for _, end in pieces)], NEURON, 1.8, 0.6 if in_front else 0.25))
        x, y, depth = points[0]
        look = f'fill="#fff" stroke="{NEURON}" stroke-opacity="{0.9 if depth > 0 else 0.35}" stroke-width="1.6"'
        rings.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" {look}/>')
    in_front = sum(_seen(point)[2] > 0 for point in places[-1].tolist())
    return [*sphere[: len(sphere) - in_front], *rings, *sphere[len(sphere) - in_front :]]


def _arc(one: Tensor, other: Tensor, steps: int = 24) -> list[list[float]]:
    """Points of the great circle between two unit vectors."""
    angle = torch.acos(one @ other)
    at = [k / steps for k in range(steps + 1)]
    return [((torch.sin((1 - t) * angle) * one + torch.sin(t * angle) * other) / angle.sin()).tolist() for t in at]


def _curve(points: list[tuple[float, float, float]], colour: str, width: float, opacity: float = 1.0) -> str:
    path = "M" + " ".join(f"{x:.1f} {y:.1f}" for x, y, _ in points)
    return f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="{width}" stroke-opacity="{opacity}"/>'


def _label(x: float, y: float, text: str) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="18" font-style="italic" font-family="Georgia, serif">{text}</text>'
    )


def rotation(path: Path) -> None:
    """Neurons of the plane before and after training, and the energy of a network while it is trained (OPT, Fig. 6)."""
    title, chart_height = "What OPT does to neurons", 330
    width, height = 3 * PANEL, TOP + PANEL + 56 + chart_height
    parts = _head(title, width, height)
    start = torch.tensor([20.0, 75.0, 105.0, 180.0, 295.0], dtype=torch.float64).deg2rad()
    ends = {
        "five neurons at the start": start,
        "trained by OPT": _trained_in_the_plane(start, rotated=True),
        "trained plainly": _trained_in_the_plane(start, rotated=False),
    }
    for k, (name, angles) in enumerate(ends.items()):
        energy = hyperspherical_energy(torch.stack([angles.cos(), angles.sin()], 1)).item()
        parts.append(f'<g transform="translate({PANEL * (k + 0.5):g} {TOP + PANEL / 2:g})">')
        parts += _compass(angles, start if k else None)
        parts.append(f'<text y="{PANEL / 2 + 4:g}" font-size="14" font-weight="600">{name}</text>')
        parts.append(f'<text y="{PANEL / 2 + 25:g}" font-size="13">energy {energy:.2f}</text></g>')
    chart = line_chart(
        _energies_of_digits(steps=150, every=5),
        title="The same in a network (64-32-32-32-10, digits): energy of its hidden layers",
        xlabel="step",
        ylabel="energy above the least, %",
        width=width,
        height=chart_height,
    ).replace("<svg ", f'<svg y="{height - chart_height}" text-anchor="start" ', 1)
    write_text(path, "\n".join([*parts, chart + "</svg>"]) + "\n")


def _digits() -> tuple[Tensor, Tensor]:
    """Inputs (N, 64) around zero and labels (N,)."""
    data = load_digits()
    inputs = torch.tensor(data.data / 16, dtype=torch.float64)
    return inputs - inputs.mean(0), torch.tensor(data.target, dtype=torch.int64)


def _trained_in_the_plane(start: Tensor, rotated: bool) -> Tensor:
    """The angles of neurons (N,) that see the digits' two principal components, after training."""
    inputs, labels = _digits()
    axes = torch.linalg.svd(inputs, full_matrices=False)[2][:2]
    axes = axes * axes.gather(1, axes.abs().argmax(1, keepdim=True)).sign()  # the sign is the machine's choice
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = nn.Sequential(nn.Linear(2, len(start)), nn.ReLU(), nn.Linear(len(start), 10)).double()
    network[0].load_state_dict({"weight": torch.stack([start.cos(), start.sin()], 1), "bias": torch.zeros(len(start))})
    if rotated:
        rotate(network)
    optimizer = torch.optim.Adam(param_groups(network), lr=0.01)
    for _ in range(300):
        optimizer.zero_grad()
        F.cross_entropy(network(inputs @ axes.mT), labels).backward()
        optimizer.step()
    weight = network[0].weight.detach()
    return torch.atan2(weight[:, 1], weight[:, 0])


def _energies_of_digits(steps: int, every: int) -> dict[str, tuple[list[int], list[float]]]:
    """How far the energy of a network's hidden layers is above the least possible while the network learns, in %."""
    inputs, labels = _digits()
    series: dict[str, tuple[list[int], list[float]]] = {}
    for name in ("plain training", "OPT, relaxed", "OPT", "spread, OPT"):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            layers = [nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU()]
            network = nn.Sequential(*layers, nn.Linear(32, 10)).double()
        if name == "spread, OPT":
            spread(network, steps=60)
        if name != "plain training":
            rotate(network, "regularized" if "relaxed" in name else "cayley")
        optimizer = torch.optim.Adam(param_groups(network), lr=3e-3)
        generator, x, y = torch.Generator().manual_seed(0), [], []
        for step in range(steps + 1):
            if step % every == 0:
                x.append(step)
                excess = [geometry.excess_energy(layer.weight.detach()) for layer in network[:6:2]]
                y.append(100 * sum(map(float, excess)) / len(excess))
            batch = torch.randperm(len(labels), generator=generator)[:128]
            loss = F.cross_entropy(network(inputs[batch]), labels[batch])
            if "relaxed" in name:
                loss = loss + rotation_penalty(network)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        series[name] = (x, y)
    return series


def _compass(angles: Tensor, start: Tensor | None) -> list[str]:
    """Directions in the plane as arrows, each with its colour, and the angles between neighbours around them.

    Args:
        start: earlier directions, drawn faintly.
    """
    parts = [f'<circle r="{RADIUS - 14}" fill="#f5f6f8" stroke="#a9adb8"/>']
    parts += [_arrow(angle, "#d3d6de") for angle in ([] if start is None else start.tolist())]
    parts += [_arrow(angle, colour) for angle, colour in zip(angles.tolist(), PALETTE, strict=False)]
    around = sorted(angle % (2 * math.pi) for angle in angles.tolist())
    for here, there in pairwise([*around, around[0] + 2 * math.pi]):
        x, y = (RADIUS + 2) * math.cos((here + there) / 2), -(RADIUS + 2) * math.sin((here + there) / 2)
        parts.append(f'<text x="{x:.1f}" y="{y + 4:.1f}" font-size="12">{math.degrees(there - here):.0f}°</text>')
    return parts


def _arrow(angle: float, colour: str) -> str:
    turn, end = -math.degrees(angle), RADIUS - 14
    shape = f"M0 0H{end - 9}" + f"M{end} 0l-13 5.5v-11z"
    return f'<path d="{shape}" transform="rotate({turn:.1f})" fill="{colour}" stroke="{colour}" stroke-width="2.2"/>'


PICTURES = {
    "three_ideas.svg": three_ideas,
    "similarities.svg": similarities,
    "margins.svg": margins,
    "pair_energy.svg": pair_energy,
    "regularized.svg": regularized,
    "rotation.svg": rotation,
}


def main(folder: Path) -> None:
    for name, draw in PICTURES.items():
        draw(folder / name)


if __name__ == "__main__":
    torch.set_num_threads(1)  # many small steps: more threads only wait for each other
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "pictures")
