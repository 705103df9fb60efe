"""Target logits of the heads since 2020."""

from __future__ import annotations

import math

from ...losses import MARGINS
from ...report import Chart, line_chart
from .curves import THETA


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
