"""The pictures of the docs pages: python docs/make_pictures.py [folder], docs/pictures if none is given."""

import math
import sys
from pathlib import Path

import torch

from hypersphere import similarity
from hypersphere.losses import MARGINS
from hypersphere.report import line_chart

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


PICTURES = {"similarities.svg": similarities, "margins.svg": margins}


def main(folder: Path) -> None:
    for name, draw in PICTURES.items():
        draw(folder / name)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "pictures")
