"""The tables of OPT that need no training: numbers of parameters, and energies of initial neurons."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from .opt import SAMPLES
from .table import PaperTable, TableRow


def parameters(network: str, rotation: Mapping[str, Any] | None, classes: int, seed: int) -> dict[str, float]:
    """Count the learned matrices of a network as the paper does, without biases and BatchNorm (Tables 10 and 11).

    Args:
        rotation: options of :func:`hypersphere.rotate`; None: not rotated.
    """
    import torch

    from .. import models, rotate
    from ..rotation import count_parameters

    with torch.device("meta"):
        model = models.create(network, classes)
    if rotation is not None:
        rotate(model, **rotation)
    counts = count_parameters(model)
    return {"parameters": counts["rotations"] + counts["weights"]}


def classifier_parameters(network: str, options: Mapping[str, Any], rotated: bool, seed: int) -> dict[str, float]:
    """Count the learned numbers of the output layer's matrix (Tables 12 and 13)."""
    import torch

    from .. import models, rotate, select
    from ..rotation import count_parameters

    with torch.device("meta"):
        model = models.create(network, **options)
    (name, output), *_ = [(name, neurons) for name, neurons in select(model).items() if neurons.is_output]
    if rotated:
        rotate(model, layers=name)
    counts = count_parameters(output.module)
    return {"parameters": counts["rotations"] + counts["weights"]}


def block_parameters(blocks: int, shared: bool, seed: int) -> dict[str, float]:
    """Count the numbers of R for one 3×3 layer of 64 channels: m² for each block (Tables 19 and 20)."""
    import torch
    from torch import nn

    from .. import rotate
    from ..rotation import count_parameters

    with torch.device("meta"):
        model = nn.Sequential(nn.Conv2d(64, 64, 3, bias=False), nn.Flatten(), nn.Linear(64, 100))
    rotate(model, blocks=blocks, share_blocks=shared)
    return {"parameters": count_parameters(model)["matrices"]}


def initial_energy(mean: float, spread: Mapping[str, Any] | None, seed: int) -> dict[str, float]:
    """Compute the energy of CNN-6's initial neurons as Tables 2 and 4 do: half space, s = 2, summed over the layers.

    Args:
        mean: of the normal distribution that the neurons are drawn from.
        spread: options of :func:`hypersphere.spread`; None: not spread.
    """
    import torch

    from .. import EnergyRegularizer, models, select
    from .. import spread as spread_neurons

    torch.manual_seed(seed)
    model = models.create("cnn6.opt")
    hidden = {name: neurons for name, neurons in select(model).items() if not neurons.is_output}
    with torch.no_grad():
        for neurons in hidden.values():
            neurons.tensor.add_(mean)
    if spread is not None:
        spread_neurons(model, seed=seed, **spread)
    energies = EnergyRegularizer(model, half_space=True).per_layer()
    return {"energy": sum(energies[name] for name in hidden)}


# ------------------------------------------------------------------------------------------------ tables


def _counted(title: str, rows: Iterable[TableRow]) -> PaperTable:
    """Make a table of parameter counts; the paper prints three or four digits."""
    return PaperTable(title, "parameters", [*rows], minutes=0.1)


def table_10_parameters() -> PaperTable:
    """Numbers that are trained, OPT against S-OPT (Table 10, columns Params)."""
    printed = {
        "cnn6": (100, (258_000, 258_000, 1_360_000, 90_900)),
        "wide-cnn9": (100, (2_990_000, 2_990_000, 16_200_000, 1_040_000)),
        "resnet18": (1000, (11_700_000, 11_700_000, 46_500_000, 3_390_000)),
    }
    methods: dict[str, dict[str, Any] | None] = {"baseline": None, "hs-mhe": None, "opt": {}, "s-opt": {"sample": 0.25}}
    rows = [
        TableRow(
            f"{name}/{method}", paper, compute=partial(parameters, f"{name.replace('-', '_')}.opt", options, classes)
        )
        for name, (classes, papers) in printed.items()
        for (method, options), paper in zip(methods.items(), papers, strict=True)
    ]
    return _counted("trained parameters of OPT and S-OPT", rows)


def table_11_parameters() -> PaperTable:
    """Numbers that are trained in wide CNN-9 by the sampled dimensions p (Table 11, column Params)."""
    printed = (16_200_000, 1_040_000, 278_000, 88_700, 27_000, 26_000, 25_600)
    rows = [
        TableRow(f"p-{name}", paper, compute=partial(parameters, "wide_cnn9.opt", options, 100))
        for (name, options), paper in zip(SAMPLES.items(), printed, strict=True)
    ]
    return _counted("trained parameters of S-OPT by sampled dimensions", rows)


def _classifier(column: str, papers: tuple[int, int], network: str, note: str = "", **options: Any) -> list[TableRow]:
    """Make the two rows of a classifier: learned as a whole, and rotated."""
    count = partial(classifier_parameters, network, options)
    return [
        TableRow(f"{column}/oracle", papers[0], compute=partial(count, False), note=note),
        TableRow(f"{column}/cls-opt", papers[1], compute=partial(count, True)),
    ]


def table_12_parameters() -> PaperTable:
    """Numbers that are trained in the classifier of ResNet-18 (Table 12, columns Params)."""
    odd = "128 features × 1000 classes are 128,000 weights, twice what the paper prints."
    rows = [
        *_classifier("resnet18a", (64_000, 8_130), "resnet18a.opt", odd, num_classes=1000),
        *_classifier("resnet18b", (512_000, 131_000), "resnet18b.opt", num_classes=1000),
    ]
    return _counted("trained parameters of the classifier, ImageNet", rows)


def table_13_parameters() -> PaperTable:
    """Numbers that are trained in the classifier of 10,572 people (Table 13, columns Params)."""
    rows = [
        *_classifier("512", (5_410_000, 131_000), "cnn20.opt", num_classes=10_572, fc=512),
        *_classifier("1024", (10_830_000, 524_000), "cnn20.opt", num_classes=10_572, fc=1024),
    ]
    return _counted("trained parameters of the classifier, CASIA-WebFace", rows)


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


def _of_blocks(shared: bool) -> PaperTable:
    rows = [
        TableRow(f"k{k}", papers[0 if shared else 1], compute=partial(block_parameters, k, shared and k > 1))
        for k, papers in BLOCKS.items()
    ]
    return _counted("numbers of R in one layer of 64 channels, 3×3", rows)


def table_19_parameters() -> PaperTable:
    """Numbers of a block-diagonal R whose blocks are the same (Table 19, column # Parameters)."""
    return _of_blocks(shared=True)


def table_20_parameters() -> PaperTable:
    """Numbers of a block-diagonal R with a matrix for each block (Table 20, column # Parameters)."""
    return _of_blocks(shared=False)


BOUND = "No neurons have less than 3.4973 (Welch bound); the paper's 3.4954 is below it."
REFINED: dict[str, tuple[float | None, dict[str, Any] | None, int, str]] = {  # paper, options of spread, draws, note
    "original": (3.5109, None, 10, ""),
    "mhe": (
        3.5003,
        {"half_space": False},
        10,
        "Full-space MHE to its end: in the first layer, 64 neurons of 27 dimensions end in opposite pairs.",
    ),
    "mhe-5-steps": (None, {"half_space": False, "steps": 5}, 10, "Full-space MHE, 5 steps of L-BFGS."),
    "hs-mhe": (3.4976, {"half_space": True}, 10, "No neurons have less than 3.4973 (Welch bound)."),
    "comhe": (3.4954, {"half_space": True, "measure": "comhe_random"}, 3, BOUND),
}


def table_2_energy() -> PaperTable:
    """Energy of CNN-6's initial neurons, refined by MHE, HS-MHE and CoMHE (Table 2, row Energy)."""
    rows = [
        TableRow(name, paper, compute=partial(initial_energy, 0.0, options), seeds=draws, note=note)
        for name, (paper, options, draws, note) in REFINED.items()
    ]
    reduced = "At most 200 steps of L-BFGS instead of 5,000 of gradient descent."
    return PaperTable("half-space energy of the initial neurons, refined", "energy", rows, reduced, minutes=0.1)


MEANS = {"0": 3.5109, "1e-3": 3.5117, "1e-2": 3.5160, "2e-2": 3.5531, "3e-2": 3.6761}


def table_4_energy() -> PaperTable:
    """Energy of CNN-6's initial neurons by the mean that they are drawn with (Table 4, column Energy)."""
    rows = [
        TableRow(f"mean-{mean}", paper, compute=partial(initial_energy, float(mean), None), seeds=10)
        for mean, paper in MEANS.items()
    ]
    return PaperTable("energy of the initial neurons by their mean", "energy", rows, minutes=0.1)
