"""The groups of a config and their fields: names, types, ranges, defaults."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, ClassVar, TypeVar, get_type_hints

from ..._internal.nearest import explain_keywords
from .values import read, setting

LAYERS = ("hidden", "output", "all")  # of rotation.layers, beside layers by name

T = TypeVar("T")

_types: dict[Any, dict[str, Any]] = {}  # not functools.cache: a type checker takes no classes for hashable


def types_of(kind: Any) -> dict[str, Any]:
    """Return the types of a group's fields by name."""
    if kind not in _types:
        _types[kind] = get_type_hints(kind)
    return _types[kind]


def explained(kind: type[T]) -> type[T]:
    """Decorate a group: an unknown keyword of its constructor is answered with the nearest field."""
    kind.__init__ = explain_keywords(kind.__init__)  # type: ignore[method-assign]
    return kind


@dataclass(frozen=True)
class Group:
    """Base of the groups: values are checked at construction."""

    prefix: ClassVar[str] = ""

    def __post_init__(self) -> None:
        types = types_of(type(self))
        for leaf in fields(self):
            value = read(self.prefix + leaf.name, types[leaf.name], leaf.metadata, getattr(self, leaf.name))
            object.__setattr__(self, leaf.name, value)


@explained
@dataclass(frozen=True)
class Model(Group):
    """The network. None: the network's own default."""

    prefix: ClassVar[str] = "model."
    name: str = setting("cnn", "network; timm/NAME: a network of timm", names="model")
    similarity: str | None = setting(
        None,
        "compare by angle instead of inner product; with numbers as in sigmoid(0.7)",
        names="similarity",
    )
    scale: bool | float | str | None = setting(
        "auto",
        "output scale of similarity layers: auto fits the layer's size (1 in the papers' networks, such as "
        "cnn9.spherenet), true is learned, a number is fixed, null is 1",
        names=("auto",),
        words="true, a number, auto or null",
    )
    widths: tuple[int, ...] | None = setting(None, "filters of each stage", low=1, high=1_000_000)
    fc: int | None = setting(None, "neurons of the hidden linear layer; 0: none", low=0, high=1_000_000)
    width: int | None = setting(None, "numbers of a token's vector", low=1, high=1_000_000)
    depth: int | None = setting(None, "blocks of a network of tokens", low=1, high=10_000)
    heads: int | None = setting(None, "heads of attention", low=1, high=10_000)
    norm: bool | None = setting(None, "norm layers of the decoder")
    gated: bool | None = setting(None, "SwiGLU in the decoder; false: an MLP with GELU")
    batch_norm: bool | None = setting(None, "BatchNorm after each layer")
    relu: bool | None = setting(None, "ReLU after each layer")
    init: str | None = setting(
        None,
        "initial weights; kaiming: N(0, 2/fan_in), normal: N(0, 1)",
        pattern=r"kaiming(\([^,()]+\))?|xavier|normal(\([^,()]+,[^,()]+\))?",
        words="kaiming, kaiming(mean), xavier, normal or normal(mean, std)",
    )
    k_per: str | None = setting(
        None,
        "what has a k of its own with similarity learnable; null: each filter",
        names=("filter", "layer", "network"),
    )

    @property
    def is_generator(self) -> bool:
        """Return whether it makes images and is trained against a discriminator."""
        return self.name == "generator.mhe"


@explained
@dataclass(frozen=True)
class Data(Group):
    """The dataset."""

    prefix: ClassVar[str] = "data."
    name: str = setting("digits", "dataset", names="data")
    root: str | None = setting(
        None, "folder of the dataset's official files; null: environment variable HYPERSPHERE_DATA"
    )
    batch_size: int = setting(
        "auto",
        "batch size, over all processes; auto: a twentieth of the training samples, from 8 to 64",
        auto=True,
        low=1,
        high=10_000_000,
    )
    size: int | None = setting(
        "auto",
        "resize images to this many pixels per side; null: as they are; auto: image_folder with images of several "
        "sizes or above 256 pixels: their median, at most 128",
        auto=True,
        low=1,
        high=10_000,
    )
    channels: int | None = setting(None, "convert images to 1 channel, grey, or 3; null: as they are", low=1, high=3)
    augment: str | None = setting(
        "auto",
        "augmentation; null: none; auto: images from 16 pixels on are shifted, and flipped if they have colours",
        names="augmentation",
        auto=True,
    )
    imbalance: str | None = setting(None, "remove samples of some classes", names="imbalance")
    validation: int | float | None = setting(
        "auto",
        "validation samples held out of the training set, or their share if below 1; auto: 0.2 of an image_folder "
        "without val and test",
        auto=True,
        above=0,
    )
    fold: str | None = setting(
        None,
        "cross-validation: part of the training set held out for validation; 2/5 is the second of five",
        pattern=r"[0-9]{1,4}/[0-9]{1,4}",
        words="a fold such as 2/5, the second of five, or null",
    )
    labels: str | None = setting(
        None, "labels of cifar100: 100 fine or 20 coarse classes; null: fine", names=("fine", "coarse")
    )
    images_per_class: int | None = setting(
        None,
        "class-balanced batches: batch_size / images_per_class classes with this many images each",
        low=1,
        high=10_000_000,
    )
    workers: int = setting(0, "worker processes of the data loader", low=0, high=256)


@explained
@dataclass(frozen=True)
class Loss(Group):
    """The loss. None: the loss's own default."""

    prefix: ClassVar[str] = "loss."
    name: str = setting("softmax", "loss", names="loss")
    similarity: str | None = setting(
        None, "similarity of embedding and class, where the loss has one", names="similarity"
    )
    margin: float | None = setting(
        None, "margin: a factor of the angle, a difference of cosines (am_softmax) or radians (arcface)", low=0
    )
    scale: float | None = setting(None, "length that embeddings are normalized to", above=0)
    annealing: bool | None = setting(None, "anneal the margin: λ = max(floor, base / (1 + rate·step))")
    annealing_base: float | None = setting(None, "base of the annealing; null: 1000", above=0)
    annealing_rate: float | None = setting(None, "rate of the annealing; null: 0.12", low=0)
    annealing_floor: float | None = setting(None, "floor of the annealing; null: 5", low=0)
    kind: str | None = setting(None, "elasticface: margin of an angle or of a cosine; null: arc", names=("arc", "cos"))
    plus: bool | None = setting(None, "elasticface: the smallest margin to the largest cosine; null: false")
    version: str | None = setting(None, "sphereface_r: version; null: v1", names=("v0", "v1", "v2"))
    detach_margin: bool | None = setting(
        None, "gradient of the logit without the margin; null: true with sphereface_r, else false"
    )
    subcenters: int | None = setting(None, "weight vectors per class; the nearest one counts; null: 1", low=1)
    stream: bool | None = setting(
        None, "compute the loss a block of classes at a time; null: if the logits of a batch would take more than 32 MB"
    )
    sample: float | None = setting(
        None, "share of the classes that take part in a training step; null: all", above=0, high=1
    )
    sparse: bool | None = setting(None, "sparse gradients of class weights, for optimizer.name=row_sgd; null: false")
    bias: bool | None = setting(None, "learn a bias of each class; null: false")
    energy_weight: float | None = setting(None, "weight of the class energy of the batch", low=0)
    center_weight: float | None = setting(None, "center: weight of the squared distance to the centre", low=0)
    softmax_weight: float | None = setting(None, "pml losses: weight of a softmax added to them; null: 0", low=0)
    label_smoothing: float = setting(0.0, "label smoothing", low=0, below=1)


@explained
@dataclass(frozen=True)
class Energy(Group):
    """Hyperspherical energy added to the loss (MHE)."""

    prefix: ClassVar[str] = "energy."
    measure: str = setting("energy", "measure of how evenly neurons are spread, to be minimized", names="measure")
    hidden_weight: float | None = setting(None, "weight for hidden layers; null: the measure's default", low=0)
    output_weight: float | None = setting(
        None, "weight for the output layer; null: the measure's default, 0 if the loss has an energy_weight", low=0
    )
    s: float = setting(2.0, "exponent s of the energy", low=0, high=1_000_000)
    half_space: bool = setting(False, "half-space energy in hidden layers: neurons and their antipodes")
    angular: bool = setting(False, "use angles instead of distances")
    minibatch: int | None = setting(None, "estimate from this many neurons per step", low=2)
    norm_weight: float = setting(0.0, "weight of the neurons' mean norm", low=0)
    average: bool = setting(False, "divide by the number of layers")
    limit_gradient: bool = setting(True, "limit the gradient by a neuron to the neuron's length")
    exclude: str | tuple[str, ...] = setting((), "names and patterns of layers without energy")


@explained
@dataclass(frozen=True)
class Embedding(Group):
    """Evenness of the embeddings of a batch, added to the loss; of losses with a head, whose network returns them."""

    prefix: ClassVar[str] = "embedding."
    measure: str = setting("uniformity", "loss of evenness", names="evenness")
    weight: float = setting(0.1, "its weight", low=0)
    half_space: bool = setting(False, "energy: of the embeddings and their antipodes")
    angular: bool = setting(False, "energy: of angles instead of distances")


@explained
@dataclass(frozen=True)
class Rotation(Group):
    """Rotate fixed random neurons instead of training them (OPT)."""

    prefix: ClassVar[str] = "rotation."
    method: str = setting("cayley", "orthogonalization method; none: fixed random neurons", names="method")
    init: str = setting("identity", "initial rotation", names="init")
    neurons: str = setting("fixed", "whether the rotated neurons are fixed or trained too", names=("fixed", "learned"))
    blocks: int = setting(1, "number of diagonal blocks of a rotation", low=1)
    block_size: int | None = setting(None, "size of a diagonal block, instead of their number", low=1)
    share_blocks: bool = setting(False, "use the same rotation in every block")
    apply: str = setting(
        "auto", "rotate a layer's weight or its activations, to the same effect", names=("auto", "activation", "weight")
    )
    side: str = setting("input", "rotate the neurons, mix them, or both", names=("input", "output", "both"))
    shuffle: bool = setting(False, "blocks of randomly drawn dimensions, drawn anew every so many steps (POET)")
    scaled: bool = setting(False, "divide the parameters by 2√(m−1), so that one rate serves all block sizes m")
    freeze: bool = setting(False, "train only rotations and the output layer, not biases and norms (fine-tuning)")
    sample: int | float | None = setting(
        None, "S-OPT: dimensions rotated at a time, or their share if below 1", above=0
    )
    every: int | None = setting(None, "S-OPT, shuffle: steps until other dimensions are drawn; null: 750", low=1)
    layers: str | tuple[str, ...] = setting(
        "hidden",
        "layers to rotate (output: CLS-OPT), or comma-separated names and patterns of layers",
        names=LAYERS,
        others=True,
    )
    exclude: str | tuple[str, ...] = setting((), "names and patterns of layers not to rotate")
    spread: bool = setting(False, "start from evenly spread neurons")
    spread_measure: str | None = setting(None, "what spread minimizes; null: energy", names="measure")
    spread_half_space: bool | None = setting(
        None, "spread neurons and their antipodes; null: true where the measure has a half space"
    )
    spread_steps: int | None = setting(None, "optimization steps of spread, at most; null: 200", low=1)
    normalize: bool = setting(False, "start from neurons of norm one")
    renormalize: bool = setting(False, "scale learned neurons to norm one after every step")
    penalty: float | None = setting(None, "penalty weight of method regularized; null: 0.1", low=0)
    penalty_squared: bool = setting(True, "square the norm in the penalty; false as in the released code")


@explained
@dataclass(frozen=True)
class Gan(Group):
    """How a generator is trained against a discriminator (MHE, App. G)."""

    prefix: ClassVar[str] = "gan."
    loss: str = setting("logistic", "adversarial loss", names=("logistic", "wasserstein"))
    norm: str | None = setting(
        None,
        "normalization of the discriminator, without a learned scale",
        names=("batch", "layer", "weight", "spectral"),
    )
    gradient_penalty: float = setting(0.0, "weight of the discriminator's gradient penalty, such as 10", low=0)
    clip_weights: float | None = setting(
        None, "after each step clip the discriminator's weights to ± this, such as 0.01", above=0
    )
    discriminator_steps: int = setting(1, "steps of the discriminator for each step of the generator", low=1)
    widths: tuple[int, ...] | None = setting(
        None, "filters of each stage of the generator; model.widths are the discriminator's", low=1, high=1_000_000
    )


@explained
@dataclass(frozen=True)
class Optimizer(Group):
    """The optimizer."""

    prefix: ClassVar[str] = "optimizer."
    name: str = setting(
        "auto",
        "optimizer; auto: adamw for images from 16 pixels on if lr is auto too and nothing is rotated, else sgd",
        names="optimizer",
        auto=True,
    )
    lr: float = setting(
        "auto",
        "learning rate; auto: 0.003 if name is auto and becomes adamw, with sgd 0.1 for images in batches of 64, less "
        "for smaller ones",
        auto=True,
        above=0,
    )
    momentum: float | None = setting(
        None, "momentum of sgd, row_sgd and ogd (null: 0.9), muon (null: 0.95) and rmsprop (null: 0)", low=0, below=1
    )
    weight_decay: float = setting(5e-4, "weight decay of weights and rotations", low=0)
    betas: tuple[float, float] | None = setting(
        None, "betas of the adam family; null: torch's default", low=0, below=1, words="two numbers such as 0.9,0.999"
    )
    iterations: int | None = setting(2, "ogd: fixed-point iterations; null: the exact step, by a linear solve", low=1)
    rest: str = setting("sgd", "ogd: optimizer of everything but the rotations", names=("sgd", "adam"))
    side: str = setting(
        "both",
        "pion: rotated sides; input: keeps the neurons' lengths and angles too",
        names=("both", "alternate", "input", "output"),
    )
    rest_lr: float | None = setting(
        None,
        "pion, muon, muonh: Adam's learning rate for embeddings, output and vectors, on the same schedule; null: 0.003",
        above=0,
    )
    rotation_lr: float | None = setting(None, "learning rate of rotations, on the same schedule; null: lr", above=0)
    decay_layers: str | tuple[str, ...] = setting(
        (), "the only layers with weight decay, comma-separated names and patterns; empty: all"
    )


@explained
@dataclass(frozen=True)
class Schedule(Group):
    """The learning rate schedule."""

    prefix: ClassVar[str] = "schedule."
    name: str = setting("cosine", "learning rate schedule", names="schedule")
    milestones: tuple[int, ...] = setting((), "schedule step: steps at which lr drops", low=1)
    gamma: float = setting(0.1, "schedules step and plateau: factor by which lr is multiplied", above=0, high=1)
    rotation_gamma: float | None = setting(None, "schedule step: gamma of rotations; null: gamma", above=0, high=1)
    batch_norm: float | None = setting(
        None,
        "schedule step: initial momentum of BatchNorm, halved with each drop of lr, at least 0.01",
        above=0,
        high=1,
    )
    warmup: int = setting(
        "auto",
        "linear warm-up steps; auto: a twentieth of all with cosine and images from 16 pixels on, else 0",
        auto=True,
        low=0,
    )
    patience: int | None = setting(
        None, "plateau: evaluations (S-OPT: draws) without a lower training loss; null: 10; patience stops early", low=0
    )
