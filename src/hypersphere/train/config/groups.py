"""The groups of a config and their fields: names, types, ranges, defaults."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, ClassVar, get_type_hints

from .values import read, setting

LAYERS = ("hidden", "output", "all")  # of rotation.layers, beside layers by name

_types: dict[Any, dict[str, Any]] = {}


def types_of(kind: Any) -> dict[str, Any]:
    """The types of a group's fields by name."""
    if kind not in _types:
        _types[kind] = get_type_hints(kind)
    return _types[kind]


@dataclass(frozen=True)
class Group:
    """Fields that are checked when they are set."""

    prefix: ClassVar[str] = ""

    def __post_init__(self) -> None:
        for each in fields(self):
            value = read(
                self.prefix + each.name, types_of(type(self))[each.name], each.metadata, getattr(self, each.name)
            )
            object.__setattr__(self, each.name, value)


@dataclass(frozen=True)
class Model(Group):
    """The network. What is None is as the network has it."""

    prefix: ClassVar[str] = "model."
    name: str = setting("cnn3", "the network", names="model")
    similarity: str | None = setting(
        None,
        "compare by angle instead of inner product; with numbers as in sigmoid(0.7)",
        names="similarity",
    )
    scale: bool | float | str | None = setting(
        "auto",
        "of a similarity: auto suits the layer's size (1 in the papers' networks, such as cnn9.spherenet), "
        "true is learned, a number is fixed, null is 1",
        names=("auto",),
    )
    widths: tuple[int, ...] | None = setting(None, "filters of each stage", low=1, high=1_000_000)
    fc: int | None = setting(None, "neurons of the hidden linear layer; 0: none", low=0, high=1_000_000)
    batch_norm: bool | None = setting(None, "BatchNorm after each layer")
    relu: bool | None = setting(None, "ReLU after each layer")

    @property
    def is_generator(self) -> bool:
        """Whether it makes images and is trained against a discriminator."""
        return self.name == "generator.mhe"


@dataclass(frozen=True)
class Data(Group):
    """What is learned from."""

    prefix: ClassVar[str] = "data."
    name: str = setting("digits", "the data set", names="data")
    root: str | None = setting(None, "the folder of the official files; null: the environment's HYPERSPHERE_DATA")
    batch_size: int = setting(64, "samples in a batch, over all processes", low=1, high=10_000_000)
    size: int | None = setting(None, "bring images to so many pixels a side", low=1, high=10_000)
    augment: str | None = setting(None, "the augmentation; null: none", names="augmentation")
    imbalance: str | None = setting(None, "thin out some classes", names="imbalance")
    validation: int | float | None = setting(
        None, "samples held out of the training set, or their share if below 1", above=0
    )
    workers: int = setting(0, "processes that prepare batches", low=0, high=256)


@dataclass(frozen=True)
class Loss(Group):
    """What is made small. What is None is as the loss has it."""

    prefix: ClassVar[str] = "loss."
    name: str = setting("softmax", "the loss", names="loss")
    similarity: str | None = setting(None, "of w_softmax, ga_softmax and s_softmax", names="similarity")
    margin: float | None = setting(None, "a factor of the angle, a cosine (am_softmax) or radians (arcface)", low=0)
    scale: float | None = setting(None, "the length embeddings are given", above=0)
    annealing: bool | None = setting(None, "let the margin come in slowly")
    energy_weight: float | None = setting(None, "times the energy of the classes in the batch", low=0)
    label_smoothing: float = setting(0.0, "share of the target spread over all classes", low=0, below=1)


@dataclass(frozen=True)
class Energy(Group):
    """Hyperspherical energy added to the loss (MHE)."""

    prefix: ClassVar[str] = "energy."
    measure: str = setting("energy", "what keeps neurons apart", names="measure")
    hidden_weight: float | None = setting(None, "of hidden layers; null: the measure's own", low=0)
    output_weight: float | None = setting(
        None, "of the output layer; null: the measure's own, 0 where the loss has an energy_weight", low=0
    )
    s: float = setting(2.0, "the exponent", low=0, high=1e6)
    half_space: bool = setting(False, "neurons and their antipodes, in hidden layers")
    angular: bool = setting(False, "angles in place of distances")
    minibatch: int | None = setting(None, "estimate from so many neurons a step", low=2)
    weight_decay: float = setting(0.0, "times the neurons' mean length", low=0)
    average: bool = setting(False, "divide by the number of layers")


@dataclass(frozen=True)
class Rotation(Group):
    """Rotate fixed random neurons in place of learning them (OPT)."""

    prefix: ClassVar[str] = "rotation."
    method: str = setting("cayley", "how the rotation is made; none: fixed random neurons", names="method")
    init: str = setting("identity", "where it begins", names="init")
    neurons: str = setting("fixed", "the neurons that are rotated", names=("fixed", "learned"))
    blocks: int = setting(1, "blocks of the rotation", low=1)
    block_size: int | None = setting(None, "in place of blocks, the size of one", low=1)
    share_blocks: bool = setting(False, "one block for all")
    sample: int | float | None = setting(
        None, "dimensions rotated at a time, or their share if below 1 (S-OPT)", above=0
    )
    inner: int | None = setting(None, "steps between draws of a sample; null: 750", low=1)
    layers: str | tuple[str, ...] = setting(
        "hidden",
        "what is rotated, output is CLS-OPT; or names and patterns of layers, separated by commas",
        names=LAYERS,
        others=True,
    )
    exclude: str | tuple[str, ...] = setting((), "names and patterns of layers that are not rotated")
    spread: bool = setting(False, "begin with neurons of small energy")
    normalize: bool = setting(False, "begin with neurons of length one")
    penalty: float | None = setting(None, "of method regularized, the weight of its penalty; null: 0.1", low=0)


@dataclass(frozen=True)
class Optimizer(Group):
    """How it is learned."""

    prefix: ClassVar[str] = "optimizer."
    name: str = setting("sgd", "the optimizer", names="optimizer")
    lr: float = setting(0.02, "the learning rate", above=0)
    momentum: float | None = setting(None, "of sgd and ogd (null: 0.9) and rmsprop (null: 0)", low=0, below=1)
    weight_decay: float = setting(5e-4, "of weights and rotations", low=0)
    betas: tuple[float, float] | None = setting(None, "of adam and its like; null: its own", low=0, below=1)


@dataclass(frozen=True)
class Schedule(Group):
    """How the learning rate changes."""

    prefix: ClassVar[str] = "schedule."
    name: str = setting("constant", "how the learning rate falls", names="schedule")
    milestones: tuple[int, ...] = setting((), "of step: the steps at which it falls", low=1)
    gamma: float = setting(0.1, "of step and plateau: what it is multiplied by", above=0, high=1)
    warmup: int = setting(0, "steps in which it rises from 0", low=0)
    patience: int | None = setting(
        None, "of plateau: evaluations (S-OPT: draws) without a smaller training loss; null: 10", low=0
    )
