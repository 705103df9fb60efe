"""The ideas of the three papers, one recipe each, on the digits that come with the package."""

from __future__ import annotations

from ..train.config import Config, Data, Energy, Loss, Model, Optimizer, Rotation, Schedule, derive


def plain() -> Config:
    """a small plain CNN on the embedded digits"""
    return Config(
        epochs=12,
        model=Model("cnn3", widths=(32, 32, 128), fc=0),
        data=Data("digits", batch_size=64),
        optimizer=Optimizer("sgd", lr=0.1, momentum=0.9, weight_decay=5e-4),
        schedule=Schedule("cosine"),
    )


def spherenet() -> Config:
    """the same network with layers that answer to angles (SphereNet)"""
    return derive(plain(), model={"similarity": "cosine"})


def mhe() -> Config:
    """the plain network with its neurons' energy in the loss (MHE)"""
    return derive(plain(), energy=Energy())


def opt() -> Config:
    """the plain network, its random neurons fixed and rotated (OPT)"""
    return derive(plain(), rotation=Rotation("cayley", init="identity"), **{"optimizer.weight_decay": 0.0})


def s_opt() -> Config:
    """OPT with a quarter of the dimensions at a time (S-OPT)"""
    return derive(opt(), {"rotation.sample": 0.25, "rotation.inner": 10})


def sphereface_plus() -> Config:
    """the plain network with angular margin and class energy (SphereFace+)"""
    return derive(plain(), loss=Loss("sphereface_plus"))
