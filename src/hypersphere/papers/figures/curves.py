"""Functions of an angle: similarities, margins, the energy of a pair."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ...layers import similarity
from ...losses import MARGINS
from ...report import Chart, line_chart

THETA = torch.linspace(0, math.pi, 241, dtype=torch.float64)  # exact enough for the same bytes on every machine


def operators() -> Chart:
    """Draw the similarity functions g(θ) (SphereNet, Fig. 2)."""
    c = THETA.cos()
    functions = {"cosine": similarity.cosine(c), "linear": similarity.linear(c)}
    functions |= {f"sigmoid, k = {k}": similarity.sigmoid(c, k) for k in (0.1, 0.3, 0.7)}
    return line_chart(
        {name: (THETA, g) for name, g in functions.items()},
        title="Similarity functions g(θ)",
        xlabel="angle θ between neuron and input (radians)",
        ylabel="g(θ)",
    )


def margins() -> Chart:
    """Draw the target logit of each margin (SphereNet, Eq. 11)."""

    def cosine(theta: Tensor) -> Tensor:
        return similarity.cosine(theta.cos())

    def linear(theta: Tensor) -> Tensor:
        return similarity.linear(theta.cos())

    targets = {
        "cosine, no margin": cosine(THETA),
        "A-Softmax, m = 4": MARGINS["multiplicative"](THETA, 4, cosine),
        "linear GA-Softmax, m = 4": MARGINS["multiplicative"](THETA, 4, linear),
        "AM-Softmax, m = 0.35": MARGINS["additive_cosine"](THETA, 0.35, cosine),
        "ArcFace, m = 0.5": MARGINS["additive_angle"](THETA, 0.5, cosine),
    }
    return line_chart(
        {name: (THETA, target) for name, target in targets.items()},
        title="Target logit of each margin",
        xlabel="angle θ between embedding and the label's weight (radians)",
        ylabel="target logit / s",
        height=480,
    )


def heads() -> Chart:
    """Draw the target logit of each head with its default margin."""
    c, m = THETA.cos(), 0.4
    targets = {
        "no margin, SphereFace-R v2": c,
        "CurricularFace, m = 0.5": MARGINS["additive_angle"](THETA, 0.5, lambda theta: theta.cos()),
        "AdaFace, long embeddings": (THETA - m).clamp(min=0).cos() - 2 * m,
        "AdaFace, short embeddings": (THETA + m).clamp(max=math.pi).cos(),
        "MagFace, ‖x‖ = 110": (THETA + 0.8).cos().where(c > 0, c),
        "SphereFace-R v0, m = 1.5": MARGINS["multiplicative"](THETA, 1.5, lambda theta: theta.cos()),
        "SphereFace-R v1, m = 1.5": (1.5 * THETA).clamp(max=math.pi).cos(),
        "SphereFace2, t = 3": 2 * ((c + 1) / 2) ** 3 - 1 - m,
        "UniFace, m = 0.4": c - m,
    }
    return line_chart(
        {name: (THETA, target) for name, target in targets.items()},
        title="Target logit of the heads since 2020",
        xlabel="angle θ between embedding and the label's weight (radians)",
        ylabel="target logit / s",
        height=480,
    )


def pair_energy() -> Chart:
    """Draw what one pair of neurons adds to the energy (MHE, Eq. 1 and 3.4)."""
    theta = torch.linspace(0.02, math.pi, 241, dtype=torch.float64)
    distance, to_antipode = 2 * (theta / 2).sin(), 2 * (theta / 2).cos().clamp(min=0.01)
    energies = {
        "s = 0": -distance.log(),
        "s = 1": 1 / distance,
        "s = 2": distance**-2,
        "s = 2, half space": (distance**-2 + to_antipode**-2) / 2,
    }
    return line_chart(
        {name: (theta, energy) for name, energy in energies.items()},
        title="The energy of a pair of neurons",
        xlabel="angle θ between the neurons (radians)",
        ylabel="energy",
        xlim=(0.0, math.pi),
        ylim=(-0.8, 3.2),
    )
