"""The tables of OPT (Orthogonal Over-Parameterized Training)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from ..train.config import Config, Data, Energy, Model, Optimizer, Rotation, Schedule, derive
from . import _opt_computed as computed
from .table import Row, Table

METHODS = {
    "gs": "gram_schmidt",
    "hr": "householder",
    "ls": "lowdin",
    "cp": "cayley",
    "ogd": "ogd",
    "or": "regularized",
}
NARROW = (
    "CNN-6 with 16 filters in every layer and 16 features instead of 64, 3,000 steps of 64 images instead of 75,000 of "
    "128, a tenth of the training images held out for validation."
)


# ------------------------------------------------------------------------------------------------ full-size configs


def cnn(name: str = "cnn6.opt", **changes: Any) -> Config:
    """A network on CIFAR-100 with the settings of most tables."""
    config = Config(
        steps=75_000,
        eval_every=1000,
        model=Model(name),
        data=Data("cifar100", batch_size=128, augment="cifar.mhe"),
        optimizer=Optimizer("sgd", lr=0.1, momentum=0.9, weight_decay=5e-4),
        schedule=Schedule("step", milestones=(30_000, 50_000, 64_000)),
    )
    return derive(config, changes)


def imagenet(name: str) -> Config:
    """A network on ImageNet; the learning rate falls when the training loss stops falling."""
    data = Data("image_folder", batch_size=128, augment="imagenet")
    return derive(cnn(name), steps=700_000, eval_every=10_000, data=data, schedule=Schedule("plateau", patience=5))


def rotated(config: Config, method: str, **changes: Any) -> Config:
    """Train rotations by a method of :data:`METHODS`: P from N(0, 1), for OGD and S-OPT from the identity."""
    name = METHODS.get(method, method)
    own = name in ("ogd", "none") or changes.get("sample") is not None
    config = derive(config, rotation=Rotation(name, **{"init": "identity" if own else "normal"} | changes))
    if name == "ogd":
        kept = config.optimizer
        made = {"name": "ogd", "rest": kept.name, "rotation_lr": kept.lr / 5}
        config = derive(config, optimizer=made)
    return config


def sampled(config: Config, sample: int | float = 0.25, method: str = "gs", steps: int = 225_000) -> Config:
    """S-OPT: 300 draws of 750 steps; the learning rate falls when draws stop lowering the training loss."""
    return derive(rotated(config, method, sample=sample), steps=steps, schedule=Schedule("plateau", patience=10))


def half_space_energy(config: Config) -> Config:
    """HS-MHE: the energy of the neurons and their antipodes as a regularizer."""
    return derive(config, energy=Energy(half_space=True))


def regularized(config: Config, measure: str) -> Config:
    return derive(config, energy=Energy(measure))


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


# ------------------------------------------------------------------------------------------------ CIFAR-100


def table_1() -> Table:
    """Is orthogonality needed? Unconstrained R against Gram-Schmidt, neurons fixed or learned; CIFAR-100."""
    rows = []
    papers = {"cnn6": (37.59, 48.47, 42.61, 37.24, 33.02), "cnn9": (33.55, 46.72, 39.38, 32.95, 31.03)}
    for network, (plain, upt, upt_fixed, opt, opt_fixed) in papers.items():
        base = cnn(f"{network}.opt")
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


# ------------------------------------------------------------------------------------------------ computed figures


def _counted(title: str, entries: Mapping[str, tuple[int, Callable[[int], dict[str, float]]]], note: str = "") -> Table:
    """Make a table of parameter counts; the paper prints three or four digits."""
    rows = [Row(name, paper, compute=count, note=note) for name, (paper, count) in entries.items()]
    return Table(title, "parameters", tuple(rows), minutes=0.1)


def table_10_parameters() -> Table:
    """Numbers that are trained, OPT against S-OPT (Table 10, columns Params)."""
    printed = {
        "cnn6": (258_000, 1_360_000, 90_900),
        "wide_cnn9": (2_990_000, 16_200_000, 1_040_000),
        "resnet18": (11_700_000, 46_500_000, 3_390_000),
    }
    methods: dict[str, dict[str, Any] | None] = {"baseline": None, "opt": {}, "s-opt": {"sample": 0.25}}
    entries = {
        f"{name.replace('_', '-')}/{method}": (
            paper,
            partial(computed.parameters, f"{name}.opt", options, 1000 if name == "resnet18" else 100),
        )
        for name, papers in printed.items()
        for (method, options), paper in zip(methods.items(), papers, strict=True)
    }
    return _counted("trained parameters of OPT and S-OPT", entries)


#: p of Table 11 → options of the rotation; p = 0: neurons stay fixed
SAMPLES: dict[str, dict[str, Any]] = {
    "d": {},
    "d-4": {"sample": 0.25},
    "d-8": {"sample": 0.125},
    "d-16": {"sample": 0.0625},
    "16": {"sample": 16},
    "3": {"sample": 3},
    "0": {"method": "none"},
}


def table_11_parameters() -> Table:
    """Numbers that are trained in wide CNN-9 by the sampled dimensions p (Table 11, column Params)."""
    printed = (16_200_000, 1_040_000, 278_000, 88_700, 27_000, 26_000, 25_600)
    entries = {
        f"p-{name}": (paper, partial(computed.parameters, "wide_cnn9.opt", options, 100))
        for (name, options), paper in zip(SAMPLES.items(), printed, strict=True)
    }
    return _counted("trained parameters of S-OPT by sampled dimensions", entries)


def table_12_parameters() -> Table:
    """Numbers that are trained in the classifier of ResNet-18 (Table 12, columns Params)."""
    printed = {"resnet18a": (64_000, 8_130), "resnet18b": (512_000, 131_000)}
    odd = "128 features × 1000 classes are 128,000 weights, twice what the paper prints."
    table = _counted(
        "trained parameters of the classifier, ImageNet",
        {
            f"{name}/{method}": (
                paper,
                partial(computed.classifier_parameters, f"{name}.opt", {"num_classes": 1000}, method == "cls-opt"),
            )
            for name, papers in printed.items()
            for method, paper in zip(("oracle", "cls-opt"), papers, strict=True)
        },
    )
    rows = tuple(replace(row, note=odd) if row.name == "resnet18a/oracle" else row for row in table.rows)
    return replace(table, rows=rows)


def table_13_parameters() -> Table:
    """Numbers that are trained in the classifier of 10,572 faces (Table 13, columns Params)."""
    printed = {512: (5_410_000, 131_000), 1024: (10_830_000, 524_000)}
    return _counted(
        "trained parameters of the classifier, CASIA-WebFace",
        {
            f"{size}/{method}": (
                paper,
                partial(
                    computed.classifier_parameters, "cnn20.opt", {"num_classes": 10_572, "fc": size}, method != "oracle"
                ),
            )
            for size, papers in printed.items()
            for method, paper in zip(("oracle", "cls-opt"), papers, strict=True)
        },
    )


#: blocks k of Tables 19 and 20 → numbers of R of one layer that the paper prints: one block for all, a block each
BLOCKS = {
    1: (331_700, 331_700),
    2: (82_900, 165_900),
    4: (20_700, 82_900),
    8: (5_200, 41_500),
    16: (1_300, 20_700),
    32: (300, 10_400),
    64: (100, 5_200),
}


def _of_blocks(shared: bool) -> Table:
    return _counted(
        "numbers of R in one layer of 64 channels, 3×3",
        {
            f"k{k}": (papers[0 if shared else 1], partial(computed.block_parameters, k, shared and k > 1))
            for k, papers in BLOCKS.items()
        },
    )


def table_19_parameters() -> Table:
    """Numbers of a block-diagonal R whose blocks are the same (Table 19, column # Parameters)."""
    return _of_blocks(shared=True)


def table_20_parameters() -> Table:
    """Numbers of a block-diagonal R with a matrix for each block (Table 20, column # Parameters)."""
    return _of_blocks(shared=False)


BOUND = "No neurons have less than 3.4973 (Welch bound), for which 3.4954 is too low."
REFINED: dict[str, tuple[float | None, dict[str, Any] | None, int, str]] = {  # paper, options of spread, draws, note
    "original": (3.5109, None, 10, ""),
    "mhe": (
        3.5003,
        {"half_space": False},
        10,
        "Full space, to the end: in the first layer, 64 neurons of 27 dimensions end in opposite pairs.",
    ),
    "mhe-5-steps": (None, {"half_space": False, "steps": 5}, 10, "Full space, 5 steps of L-BFGS."),
    "hs-mhe": (3.4976, {"half_space": True}, 10, "No neurons have less than 3.4973 (Welch bound)."),
    "comhe": (3.4954, {"half_space": True, "measure": "comhe_random"}, 3, BOUND),
}


def table_2_energy() -> Table:
    """Energy of CNN-6's initial neurons, refined by MHE, HS-MHE and CoMHE (Table 2, row Energy)."""
    rows = [
        Row(name, paper, compute=partial(computed.initial_energy, 0.0, options), seeds=draws, note=note)
        for name, (paper, options, draws, note) in REFINED.items()
    ]
    reduced = "At most 200 steps of L-BFGS instead of 5,000 of gradient descent."
    return Table("energy of the initial neurons, refined", "energy", tuple(rows), reduced, minutes=0.1)


MEANS = {"0": 3.5109, "1e-3": 3.5117, "1e-2": 3.5160, "2e-2": 3.5531, "3e-2": 3.6761}


def table_4_energy() -> Table:
    """Energy of CNN-6's initial neurons by the mean that they are drawn with (Table 4, column Energy)."""
    rows = [
        Row(f"mean-{mean}", paper, compute=partial(computed.initial_energy, float(mean), None), seeds=10)
        for mean, paper in MEANS.items()
    ]
    return Table("energy of the initial neurons by their mean", "energy", tuple(rows), minutes=0.1)
