"""Margins, which replace g(θ) at the label: pure functions of the angle θ (B,), a number m, and g."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

#: the similarity g as a function of angles (B,)
AtAngle = Callable[[Tensor], Tensor]


def multiplicative(theta: Tensor, margin: float, g: AtAngle) -> Tensor:
    """Compute ψ(θ) = g(mθ − kπ) − k·(g(0) − g(π)), k = ⌊mθ/π⌋: g(mθ), continued monotonically (Eq. 11)."""
    scaled = margin * theta
    k = torch.floor(scaled.detach() / math.pi)  # piecewise constant: no gradient
    fall = g(torch.zeros_like(theta)) - g(torch.full_like(theta, math.pi))
    return g(scaled - k * math.pi) - k * fall


def additive_cosine(theta: Tensor, margin: float, g: AtAngle) -> Tensor:
    """Compute g(θ) − m (AM-Softmax, CosFace)."""
    return g(theta) - margin


def additive_angle(theta: Tensor, margin: float | Tensor, g: AtAngle) -> Tensor:
    """Compute g(θ + m) (ArcFace); beyond θ = π − m, where it would increase again, g(θ) − m·sin m."""
    sine = margin.sin() if isinstance(margin, Tensor) else math.sin(margin)
    return torch.where(theta <= math.pi - margin, g(theta + margin), g(theta) - margin * sine)


#: name → margin(θ, m, g)
MARGINS: dict[str, Callable[[Tensor, float, AtAngle], Tensor]] = {
    "multiplicative": multiplicative,
    "additive_cosine": additive_cosine,
    "additive_angle": additive_angle,
}


def sphereface_annealing(step: Tensor, base: float = 1000.0, rate: float = 0.12, floor: float = 5.0) -> Tensor:
    """Compute λ = max(floor, base/(1 + rate·n)) of the n-th iteration; the defaults are SphereFace's."""
    n = step if step.device.type == "mps" else step.double()  # Apple's GPUs have no float64
    return (base / (1 + rate * n)).clamp_min(floor)
