"""The tables of OPT (Orthogonal Over-Parameterized Training)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from ..train.config import Config, Data, Energy, Model, Optimizer, Rotation, Schedule, derive
from .table import Row, Table

METHODS = {
    "gs": "gram_schmidt",
    "hr": "householder",
    "lw": "lowdin",
    "cp": "cayley",
    "ogd": "ogd",
    "or": "regularized",
}
NARROW = (
    "CNN-6 with 16 filters in every layer and 16 features instead of 64, 3,000 steps of 64 images instead of 75,000 of "
    "128, a tenth of the training images held out for validation."
)


# ------------------------------------------------------------------------------------------------ CIFAR-100


def cnn6() -> Config:
    """CNN-6 on CIFAR-100, the baseline of most tables."""
    return Config(
        steps=75_000,
        eval_every=1000,
        model=Model("cnn6.opt"),
        data=Data("cifar100", batch_size=128, augment="cifar.mhe"),
        optimizer=Optimizer("sgd", lr=0.1, momentum=0.9, weight_decay=5e-4),
        schedule=Schedule("step", milestones=(30_000, 50_000, 64_000)),
    )


def rotated(config: Config, method: str, **changes: Any) -> Config:
    """Train rotations by a method of :data:`METHODS`: P from N(0, 1), for OGD and S-OPT from the identity."""
    name = METHODS.get(method, method)
    own = name == "ogd" or changes.get("sample") is not None
    config = derive(config, rotation=Rotation(name, **{"init": "identity" if own else "normal"} | changes))
    if name == "ogd":
        config = derive(config, {"optimizer.name": "ogd", "optimizer.lr": config.optimizer.lr / 5})
    return config


def half_space_energy(config: Config) -> Config:
    """HS-MHE: the energy of the neurons and their antipodes as a regularizer."""
    return derive(config, energy=Energy(half_space=True))


def small(config: Config) -> Config:
    """The small form of a network on CIFAR-100 (see :data:`NARROW`)."""
    rate = config.optimizer.lr
    changed = derive(
        config,
        {"model.widths": (16, 16, 16), "model.fc": 16, "data.batch_size": 64, "data.validation": 0.1},
        steps=3000,
        eval_every=500,
        schedule=Schedule("cosine"),
        optimizer={"lr": rate / 2},
    )
    if changed.rotation is not None and changed.rotation.sample is not None:
        changed = derive(changed, {"rotation.inner": 100})
    return changed


def _row(name: str, paper: float | None, full: Config, *, seeds: int = 2, note: str = "") -> Row:
    return Row(name, paper, full, small(full), seeds, note=note)


def table_1() -> Table:
    """Is orthogonality needed? Unconstrained R against Gram-Schmidt, neurons fixed or learned; CIFAR-100."""
    rows = []
    papers = {"cnn6": (37.59, 48.47, 42.61, 37.24, 33.02), "cnn9": (33.55, 46.72, 39.38, 32.95, 31.03)}
    for network, (plain, upt, upt_fixed, opt, opt_fixed) in papers.items():
        base = derive(cnn6(), {"model.name": f"{network}.opt"})
        full = {
            "baseline": (plain, base),
            "unconstrained-learned": (upt, rotated(base, "unconstrained", neurons="learned")),
            "unconstrained-fixed": (upt_fixed, rotated(base, "unconstrained")),
            "gs-learned": (opt, rotated(base, "gs", neurons="learned")),
            "gs-fixed": (opt_fixed, rotated(base, "gs")),
        }
        for name, (paper, config) in full.items():
            rows.append(Row(f"{network}/{name}", paper, config, small(config) if network == "cnn6" else None, 2))
    return Table("orthogonality, CIFAR-100", "error", tuple(rows), NARROW, minutes=4)


# ------------------------------------------------------------------------------------------------ parameters


def table_10_parameters() -> Table:
    """Numbers that are trained, OPT against S-OPT (Table 10, columns Params)."""
    rows = [
        _counted("cnn6/baseline", 257_984, "cnn6.opt"),
        _counted("cnn6/opt", 1_358_527, "cnn6.opt", {}),
        _counted("cnn6/s-opt", 90_871, "cnn6.opt", {"sample": 0.25}),
        _counted("wide-cnn9/baseline", 2_992_832, "wide_cnn9.opt"),
        _counted("wide-cnn9/opt", 16_204_351, "wide_cnn9.opt", {}),
        _counted("wide-cnn9/s-opt", 1_035_799, "wide_cnn9.opt", {"sample": 0.25}),
        _counted("resnet18/baseline", 11_678_912, "resnet18.opt"),
        _counted("resnet18/opt", 46_501_227, "resnet18.opt", {}),
        _counted("resnet18/s-opt", 3_393_483, "resnet18.opt", {"sample": 0.25}),
    ]
    return Table("trained parameters of OPT and S-OPT", "parameters", tuple(rows), minutes=0.05)


def _counted(name: str, paper: int, network: str, options: Mapping[str, Any] | None = None) -> Row:
    return Row(name, paper, compute=partial(_parameters, network, options))


def _parameters(network: str, options: Mapping[str, Any] | None, seed: int) -> dict[str, float]:
    """Count the learned matrices of a network as the paper does, without biases and BatchNorm."""
    import torch

    from .. import count_parameters, models, rotate

    with torch.device("meta"):
        model = models.create(network)
    if options is not None:
        rotate(model, **options)
    counts = count_parameters(model)
    return {"parameters": counts["rotations"] + counts["weights"]}
