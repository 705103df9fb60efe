"""A small Transformer on the characters of tinyshakespeare: AdamW, and the optimizers that keep something.

Each learning rate is the best on validation of five (docs/optimizers.md).
"""

from __future__ import annotations

from ..config import Config, Data, Model, Optimizer, Rotation, Schedule, derive


def text_adamw() -> Config:
    """Train a small Transformer on characters by AdamW; data.root is the folder with tinyshakespeare."""
    return Config(
        steps=200,
        model=Model("decoder", width=64, depth=4, heads=4),
        data=Data("text", batch_size=4, validation=400),
        optimizer=Optimizer("adamw", lr=0.01, weight_decay=0.0),
        schedule=Schedule(warmup=20),
        clip=1.0,
    )


def text_muon() -> Config:
    """The same by Muon: steps of the matrices are orthogonal."""
    return derive(text_adamw(), optimizer=Optimizer("muon", lr=0.03, weight_decay=0.0))


def text_adamh() -> Config:
    """The same by AdamH (Hyperball): Adam on spheres, every matrix keeps its norm."""
    return derive(text_adamw(), optimizer=Optimizer("adamh", lr=0.03, weight_decay=0.0))


def text_muonh() -> Config:
    """The same by MuonH (Hyperball): Muon on spheres, every matrix keeps its norm."""
    return derive(text_adamw(), optimizer=Optimizer("muonh", lr=0.1, weight_decay=0.0))


def text_pion() -> Config:
    """The same by Pion: rotations as steps, every matrix keeps its singular values."""
    return derive(text_adamw(), optimizer=Optimizer("pion", lr=0.03, weight_decay=0.0))


def text_ngpt() -> Config:
    """nGPT on the same: vectors and weights of length one, by Adam without warm-up."""
    changes = {"model.name": "ngpt", "schedule.warmup": 0}
    return derive(text_adamw(), changes, optimizer=Optimizer("adam", lr=0.03, weight_decay=0.0))


def text_poet() -> Config:
    """The same by POET: fixed random neurons, rotated on both sides in blocks that are drawn anew."""
    rotation = Rotation("cayley", init="identity", side="both", block_size=16, shuffle=True, every=50, normalize=True)
    optimizer = Optimizer("adamw", lr=0.003, rotation_lr=0.01, weight_decay=0.0)
    return derive(text_adamw(), rotation=rotation, optimizer=optimizer, clip=0.1)
