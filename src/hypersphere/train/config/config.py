"""The whole config: its own fields and its groups."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from functools import cache
from typing import get_args

from . import consistency
from .groups import Data, Embedding, Energy, Gan, Group, Loss, Model, Optimizer, Rotation, Schedule, explained, types_of
from .values import AUTO, ConfigError, read, setting, shown


@explained
@dataclass(frozen=True)
class Config(Group):
    """Configure one training. The defaults train a small network on the embedded digits.

    Example:
        >>> config = Config(model=Model("cnn9.mhe"), data=Data("cifar10"), energy=Energy(half_space=True))
        >>> config.energy.s, config.rotation, config.epochs
        (2.0, None, 'auto')
        >>> Config(model=Model("cnn9.mh"))
        Traceback (most recent call last):
        hypersphere.train.config.ConfigError: unknown model.name 'cnn9.mh', did you mean 'cnn9.mhe'? (...)
    """

    seed: int = setting(0, "random seed", low=0)
    steps: int | None = setting(None, "training length in steps", low=1)
    epochs: int | None = setting(
        None,
        "training length in epochs; auto, the default without steps: 30 for images from 16 pixels on, 12 for others, "
        "and at least 240 steps",
        auto=True,
        low=1,
    )
    out: str | None = setting(None, "run folder; null: a new folder in runs/")
    resume: bool = setting(False, "continue the run in the folder out")
    init_from: str | None = setting(None, "start from the weights of another run, or of a .safetensors file")
    eval_every: int | None = setting(None, "steps between evaluations; null: one epoch (graphs: 10 steps)", low=1)
    checkpoint_every: int | None = setting(None, "steps between checkpoints; null: at each evaluation", low=1)
    keep: int = setting(2, "checkpoints to keep, besides the best", low=1)
    log_every: int = setting(50, "steps between lines of metrics", low=1)
    patience: int | None = setting(
        None, "early stopping: evaluations without a better validation accuracy; schedule.patience lowers lr", low=1
    )
    amp: bool | str = setting(
        False, "mixed precision; true: the best type of the device", names=("bfloat16", "float16")
    )
    compile: bool = setting(False, "use torch.compile")
    channels_last: bool | None = setting(
        None, "use the channels_last memory format; null: for convolutions on a CPU, from 16×16 pixels"
    )
    clip: float | str | None = setting(
        "auto",
        "clip the gradient norm; auto: at 1 with energy, and for images from 16 pixels on if optimizer.lr is auto and "
        "optimizer.name is given or sgd",
        names=("auto",),
        above=0,
    )
    accumulate: int = setting(1, "gradient accumulation: batches per step", low=1)
    device: str = setting(
        "auto", "device", pattern=r"auto|cpu|mps|cuda(:[0-9]{1,4})?", words="auto, cpu, mps, cuda or cuda:N"
    )
    model: Model = field(default=Model(), metadata={"help": "network"})
    data: Data = field(default=Data(), metadata={"help": "dataset"})
    loss: Loss = field(default=Loss(), metadata={"help": "loss"})
    energy: Energy | None = field(
        default=None, metadata={"help": "hyperspherical energy added to the loss (MHE); null: off"}
    )
    embedding: Embedding | None = field(
        default=None, metadata={"help": "evenness of embeddings added to an angular loss; null: off"}
    )
    rotation: Rotation | None = field(
        default=None, metadata={"help": "train rotations of fixed random neurons (OPT); null: off"}
    )
    gan: Gan | None = field(default=None, metadata={"help": "training of a generator; null: a plain GAN"})
    optimizer: Optimizer = field(default=Optimizer(), metadata={"help": "optimizer"})
    schedule: Schedule = field(default=Schedule(), metadata={"help": "learning rate schedule"})

    def __post_init__(self) -> None:
        if self.steps is None and self.epochs is None:
            object.__setattr__(self, "epochs", AUTO)
        for leaf in fields(self):
            kind, optional = group_of(leaf.name)
            value = getattr(self, leaf.name)
            if kind is None:
                value = read(leaf.name, types_of(Config)[leaf.name], leaf.metadata, value)
                object.__setattr__(self, leaf.name, value)
            elif not isinstance(value, kind) and not (value is None and optional):
                raise ConfigError(f"{leaf.name} must be a group of settings, got {shown(value)}")
        consistency.check(self)


@cache
def group_of(name: str) -> tuple[type[Group] | None, bool]:
    """Return the class of a group of the config and whether it may be off; None for a plain field."""
    hint = types_of(Config)[name]
    kinds = [kind for kind in (hint, *get_args(hint)) if isinstance(kind, type) and issubclass(kind, Group)]
    return (kinds[0], kinds[0] is not hint) if kinds else (None, False)
