"""The rows of results/plan.toml: tables of reduced size, wider or longer than those of the papers' modules.

A comparison of the plan names two rows of one of these tables. The plan records the hash of both configs, so a change
here is refused once the plan is committed. There is no full size: that is the row of the paper's table.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..train.config import Config, derive
from . import mhe, opt, spherenet
from .table import PaperTable, TableRow, scaled_milestones

OGD_RATE = 0.05
_HELD_OUT = "{:,} training images held out for validation."


def _row(name: str, original: TableRow, small: Config, start: str | None = None, note: str = "") -> TableRow:
    return TableRow(name, original.reported, small=small, seeds=10, start=start, note=note)


# ------------------------------------------------------------------------------------------------ SphereNet


def _cnn9(config: Config, steps: int = 2000) -> Config:
    return spherenet.small(config, steps, 2, eval_every=steps // 10)


def table_operators() -> PaperTable:
    """SphereNet, Table 1 and Section 4.3: operators, losses and learnable k; CNN-9 on CIFAR-10."""
    printed, learnable = spherenet.table_1(), spherenet.section_4_3()
    names = [f"softmax/{operator}" for operator in spherenet.SMALL_OPERATORS] + ["ga-softmax/sigmoid-0.3"]
    sources = {name: printed.row(name) for name in names}
    sources |= {f"w-cosine/{name}": learnable.row(name) for name in ("sigmoid-0.3", "learnable")}
    rows = [_row(name, row, _cnn9(row.full)) for name, row in sources.items() if row.full is not None]
    reduced = f"CNN-9 with 32/48/64 filters and 128 features; 2,000 steps; 16×16 pixels; {_HELD_OUT.format(2000)}"
    return PaperTable("operators and losses, CIFAR-10", "accuracy", rows, reduced, minutes=5.5)


def table_depth() -> PaperTable:
    """SphereNet, Tables 2 and 3: CNN-18 on CIFAR-10 with BatchNorm, without it, and without ReLU."""
    deep, without_relu = spherenet.table_2(), spherenet.table_3()
    rows = []
    for name in ("original", "cosine"):
        for column, row in (("batch-norm", deep.row(f"cnn18/{name}")), ("without-relu", without_relu.row(name))):
            assert row.full is not None
            rows.append(_row(f"{column}/{name}", row, _cnn18(row.full)))
        plain = derive(spherenet.cnn9(), model={"name": "cnn18.spherenet", "batch_norm": False})
        rows.append(
            TableRow(
                f"without-batch-norm/{name}",
                small=_cnn18(spherenet.sphere(plain, spherenet.OPERATORS[name])),
                seeds=10,
            )
        )
    rows.sort(key=lambda row: row.column)
    reduced = (
        "CNN-18 with 16/24/32 filters and 64 features; 3,000 steps of 64 images; 16×16 pixels; "
        f"{_HELD_OUT.format(2000)} Without BatchNorm the loss is softmax in both rows."
    )
    return PaperTable("CNN-18, CIFAR-10", "accuracy", rows, reduced, minutes=5)


def _cnn18(config: Config) -> Config:
    return derive(spherenet.small(config, 3000, 4, eval_every=300), {"data.batch_size": 64})


def table_batch() -> PaperTable:
    """SphereNet, Figure 5: normalization with batches of 8; CNN-9 on CIFAR-10."""
    printed = spherenet.figure_5()
    rows = []
    for name in ("batch-norm", "sphere-norm-batch-norm"):
        row = printed.row(f"batch-8/{name}")
        assert row.full is not None
        rows.append(_row(row.name, row, _cnn9(row.full, 5000)))
    reduced = f"CNN-9 with 32/48/64 filters and 128 features; 5,000 steps; 16×16 pixels; {_HELD_OUT.format(2000)}"
    return PaperTable("batches of 8, CIFAR-10", "accuracy", rows, reduced, minutes=3)


# ------------------------------------------------------------------------------------------------ MHE


def _energetic(config: Config, steps: int, **data: Any) -> Config:
    changes = {f"data.{key}": value for key, value in data.items()}
    return derive(mhe.small(config, steps), changes)


def table_energy() -> PaperTable:
    """MHE, Table 1: the energy in full and half space; CNN-9 on CIFAR-100, all images or 50 a class."""
    printed, rows = mhe.table_1(), []
    for name in ("baseline", "half-space-s2"):
        row = printed.row(f"cifar100/{name}")
        assert row.full is not None
        rows.append(_row(f"all/{name}", row, _energetic(row.full, 3000)))
    for name in ("baseline", "mhe-s2"):
        full = printed.row(f"cifar100/{name}").full
        assert full is not None
        few = derive(_energetic(full, 1500, validation=45_000), eval_every=500)
        rows.append(TableRow(f"few/{name}", small=few, seeds=10))
    reduced = (
        "CNN-9 with 16/32/64 filters; 3,000 steps, of 50 images a class (column few) 1,500; 16×16 pixels, flipped but "
        f"not cropped; {_HELD_OUT.format(5000)[:-1]}, in column few all but 5,000."
    )
    return PaperTable("energy, CIFAR-100", "error", rows, reduced, minutes=3.5)


def table_imbalance() -> PaperTable:
    """MHE, Table 7: the energy in half space on imbalanced CIFAR-10; CNN-9."""
    printed, rows = mhe.table_7(), []
    for name in ("single/baseline", "single/half-space", "multiple/baseline", "multiple/half-space"):
        row = printed.row(name)
        assert row.full is not None
        rows.append(_row(name, row, _energetic(row.full, 2400)))
    reduced = (
        "CNN-9 with 16/32/64 filters; 2,400 steps; 16×16 pixels, flipped but not cropped; "
        f"{_HELD_OUT.format(5000)[:-1]}, after the classes were reduced."
    )
    return PaperTable("imbalanced CIFAR-10", "error", rows, reduced, minutes=3)


def table_faces() -> PaperTable:
    """MHE, Table 8: SphereFace+ against an equally long second stage without energy; verified on LFW."""
    printed = mhe.table_8()
    first, second, longer = (printed.row(f"m4/{name}") for name in ("sphereface", "sphereface+", "sphereface-longer"))
    rows = []
    for row, start in ((first, None), (second, first.name), (longer, first.name)):
        assert row.small is not None
        steps = 3000 if start is None else 800
        milestones = scaled_milestones(row.small, steps)
        small = derive(row.small, steps=steps, eval_every=steps // 4, schedule={"milestones": milestones})
        rows.append(_row(row.name, row, small, start))
    reduced = (
        f"{printed.reduced.partition(',')[0]}, 128 features and BatchNorm; peopleDevTrain of LFW at 32×32 pixels; "
        "3,000 steps of 64 images by Adam at 1e-3, second stages 800 at 1e-4; a twentieth held out for validation; "
        "verified on pairsDevTest."
    )
    return PaperTable("SphereFace-20", "verification", rows, reduced, minutes=3)


# ------------------------------------------------------------------------------------------------ OPT


def table_rotations() -> PaperTable:
    """OPT, Tables 1, 3 and 10: rotations against plain training, learned neurons and S-OPT; CNN-6 on CIFAR-100."""
    printed = opt.table_3()
    sources = {name: printed.row(f"plain/{name}") for name in ("baseline", "gs", "hr", "cp", "ogd")}
    sources["gs-learned"] = opt.table_1().row("cnn6/gs-learned")
    sources["s-opt"] = opt.table_10().row("cnn6/s-opt")
    rows = [_row(name, row, _cnn6(row.full)) for name, row in sources.items() if row.full is not None]
    reduced = (
        "CNN-6 with 32 filters in every convolution; 4,000 steps of 64 images, half the learning rate, falling as a "
        "cosine; 16×16 pixels, flipped and shifted; R from the identity; a tenth of the training images held "
        f"out for validation. OGD has a rate of {OGD_RATE} for R, the best of 0.02, 0.05 and 0.2 by validation "
        "accuracy after 1,000 steps. S-OPT draws dimensions every 100 steps."
    )
    return PaperTable("rotations, CIFAR-100", "error", rows, reduced, minutes=4.3)


def _cnn6(config: Config) -> Config:
    changes: dict[str, Any] = {"model.widths": (32, 32, 32), "data.size": 16, "data.augment": "photo"}
    if config.optimizer.rotation_lr is not None:
        changes["optimizer.rotation_lr"] = OGD_RATE
    return derive(opt.small(config), changes, steps=4000, eval_every=500)


def table_mlp() -> PaperTable:
    """OPT, Table 6: Cayley against plain training of an MLP on MNIST from N(0, 1) and by Xavier's rule."""
    printed, rows = opt.table_6(), []
    for name in ("mlp-n/baseline", "mlp-n/cp", "mlp-x/baseline", "mlp-x/cp"):
        row = printed.row(name)
        assert row.small is not None
        rows.append(_row(name, row, derive(row.small, epochs=10)))
    reduced = (
        "MLP on MNIST with 10 epochs instead of 100, R from the identity, a rate of 0.0001 instead of 0.01 for MLP-N; "
        "5,000 images held out for validation."
    )
    return PaperTable("MLP, MNIST", "error", rows, reduced, minutes=2)


def table_few_shot() -> PaperTable:
    """OPT, Table 8: few-shot recognition with and without rotations (CP); CNN-4 on CIFAR-FS."""
    printed, rows = opt.table_8(), []
    for name in ("baseline", "baseline-opt"):
        row = printed.row(name)
        assert row.small is not None
        rows.append(_row(name, row, derive(row.small, steps=4000)))
    reduced = printed.reduced.replace("2,000 steps", "4,000 steps")
    return PaperTable("few-shot recognition", "few_shot", rows, reduced, minutes=3)


def table_graphs() -> PaperTable:
    """OPT, Table 9: GCN with and without rotations (CP) on Cora."""
    printed, rows = opt.table_9(), []
    for name in ("baseline", "cp"):
        row = printed.row(f"cora/{name}")
        assert row.small is not None
        rows.append(replace(_row(row.name, row, derive(row.small, epochs=300)), seeds=20))
    reduced = (
        "Cora at the paper's size; 300 epochs, every tenth of which is validated, and the best of these is tested. The "
        "rotation has settings found on validation nodes, as in the table of the paper; the baseline has its authors'."
    )
    return PaperTable("GCN, Cora", "accuracy", rows, reduced, minutes=0.8)
