"""One recipe for each idea of the three papers: the defaults, which suit the digits and photos, and the idea."""

from __future__ import annotations

from ..config import Config, Energy, Loss, Rotation, derive


def plain() -> Config:
    """Train a small CNN on the digits that come with the package: the defaults, as without a recipe."""
    return Config()


def spherenet() -> Config:
    """Use layers that compare by angle instead of inner product (SphereNet)."""
    return derive(plain(), model={"similarity": "cosine"})


def mhe() -> Config:
    """Add the hyperspherical energy of the neurons to the loss (MHE)."""
    return derive(plain(), energy=Energy())


def opt() -> Config:
    """Train rotations of fixed random neurons instead of the neurons (OPT)."""
    return derive(plain(), rotation=Rotation("cayley", init="identity"), **{"optimizer.weight_decay": 0.0})


def s_opt() -> Config:
    """Rotate a random quarter of the dimensions at a time (S-OPT)."""
    return derive(opt(), {"rotation.sample": 0.25, "rotation.every": 10})


def sphereface_plus() -> Config:
    """Use a loss with an angular margin and the energy of the classes (SphereFace+)."""
    return derive(plain(), loss=Loss("sphereface_plus"))
