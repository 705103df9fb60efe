"""Neurons of the plane before and after training, and the energy of a network while it is trained (OPT, Fig. 1, 6)."""

from __future__ import annotations

import math
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ... import data, geometry, hyperspherical_energy, param_groups, rotate, spread
from ...report import Chart, line_chart
from ...report.scene import RADIUS
from ...report.svg import PALETTE, RIM, SHADE, arrange, heading
from ...rotation import rotation_penalty
from .drawing import PANEL, TOP

_LENGTH = RADIUS - 14  # of an arrow, in pixels


def rotation() -> Chart:
    """Draw what OPT keeps: the angles between neurons, and the energy."""
    chart_height = 330
    width, height = 3 * PANEL, TOP + PANEL + 56 + chart_height
    title = "What OPT does to neurons"
    parts = [heading(title)]
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
    )
    return arrange([(0, height - chart_height, chart)], title, width, height, parts)


def _digits() -> tuple[Tensor, Tensor]:
    """Return inputs (N, 64) around zero and labels (N,)."""
    splits = [data.load("digits", None, split) for split in ("train", "test")]
    images = torch.cat([split.inputs for split in splits])
    inputs = (images.flatten(1).double() * 16 / 255).round() / 16  # the 17 grey levels
    return inputs - inputs.mean(0), torch.cat([split.labels for split in splits])


def _trained_in_the_plane(start: Tensor, rotated: bool) -> Tensor:
    """Return the angles of neurons (N,) that see the digits' two principal components, after training."""
    inputs, labels = _digits()
    axes = torch.linalg.svd(inputs, full_matrices=False)[2][:2]
    axes = axes * axes.gather(1, axes.abs().argmax(1, keepdim=True)).sign()  # the sign is the machine's choice
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        first = nn.Linear(2, len(start))
        network = nn.Sequential(first, nn.ReLU(), nn.Linear(len(start), 10)).double()
    first.load_state_dict({"weight": torch.stack([start.cos(), start.sin()], 1), "bias": torch.zeros(len(start))})
    if rotated:
        rotate(network)
    optimizer = torch.optim.Adam(param_groups(network), lr=0.01)
    for _ in range(300):
        optimizer.zero_grad()
        F.cross_entropy(network(inputs @ axes.mT), labels).backward()
        optimizer.step()
    weight = first.weight.detach()
    return torch.atan2(weight[:, 1], weight[:, 0])


def _energies_of_digits(steps: int, every: int) -> dict[str, tuple[list[int], list[float]]]:
    """Measure how far the energy of hidden layers is above the least possible while a network learns, in %."""
    inputs, labels = _digits()
    series: dict[str, tuple[list[int], list[float]]] = {}
    for name in ("plain training", "OPT, relaxed", "OPT", "spread, OPT"):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            hidden = [nn.Linear(64, 32), nn.Linear(32, 32), nn.Linear(32, 32)]
            layers = [layer for linear in hidden for layer in (linear, nn.ReLU())]
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
                excess = [geometry.excess_energy(layer.weight.detach()) for layer in hidden]
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
    """Draw directions in the plane as arrows, each with its colour, and the angles between neighbours around them.

    Args:
        start: earlier directions, drawn faintly.
    """
    parts = [f'<circle r="{_LENGTH}" fill="{SHADE}" stroke="{RIM}"/>']
    parts += [_arrow(angle, "#d3d6de") for angle in ([] if start is None else start.tolist())]
    parts += [_arrow(angle, colour) for angle, colour in zip(angles.tolist(), PALETTE, strict=False)]
    around = sorted(angle % (2 * math.pi) for angle in angles.tolist())
    for here, there in pairwise([*around, around[0] + 2 * math.pi]):
        x, y = (RADIUS + 2) * math.cos((here + there) / 2), -(RADIUS + 2) * math.sin((here + there) / 2)
        parts.append(f'<text x="{x:.1f}" y="{y + 4:.1f}" font-size="12">{math.degrees(there - here):.0f}°</text>')
    return parts


def _arrow(angle: float, colour: str, end: float = _LENGTH) -> str:
    """Draw an arrow of `end` pixels from the origin."""
    shape = f"M0 0H{end - 9:g}" + f"M{end:g} 0l-13 5.5v-11z"
    turn = -math.degrees(angle)
    return f'<path d="{shape}" transform="rotate({turn:.1f})" fill="{colour}" stroke="{colour}" stroke-width="2.2"/>'
