"""The whole config: its own fields and its groups."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from functools import cache
from typing import get_args

from . import consistency
from .groups import Data, Energy, Group, Loss, Model, Optimizer, Rotation, Schedule, types_of
from .values import ConfigError, read, setting, shown

EPOCHS = 10  # where neither steps nor epochs are given


@dataclass(frozen=True)
class Config(Group):
    """One training. The defaults train a small network on the embedded digits.

    Example:
        >>> config = Config(model=Model("cnn9.mhe"), data=Data("cifar10"), energy=Energy(half_space=True))
        >>> config.energy.s, config.rotation, config.epochs
        (2.0, None, 10)
        >>> Config(model=Model("cn9.mhe"))
        Traceback (most recent call last):
        hypersphere.train.config.ConfigError: unknown model.name 'cn9.mhe', did you mean cnn9.mhe?
    """

    seed: int = setting(0, "of all that is random", low=0)
    steps: int | None = setting(None, "length of the training in steps", low=1)
    epochs: int | None = setting(None, f"length in epochs; null with steps null: {EPOCHS}", low=1)
    out: str | None = setting(None, "the run's folder; the command line's default is a new one in runs/")
    resume: bool = setting(False, "go on where the run in that folder stopped")
    init_from: str | None = setting(None, "begin with the weights of another run")
    eval_every: int | None = setting(None, "steps between evaluations; null: an epoch (10 steps of a graph)", low=1)
    checkpoint_every: int | None = setting(None, "steps between checkpoints; null: at each evaluation", low=1)
    keep: int = setting(2, "last checkpoints that stay, beside the best", low=1)
    log_every: int = setting(50, "steps between lines of metrics", low=1)
    patience: int | None = setting(None, "stop after so many evaluations without a better validation", low=1)
    amp: bool | str = setting(False, "mixed precision; true: what the device has", names=("bfloat16", "float16"))
    compile: bool = setting(False, "use torch.compile")
    channels_last: bool | None = setting(
        None, "keep the channels of a pixel side by side; null: for convolutions of images on a CPU, from 16×16 pixels"
    )
    clip: float | str | None = setting(
        "auto", "largest norm of the gradient; auto is 1 with energy and none without", names=("auto",), above=0
    )
    accumulate: int = setting(1, "batches a step is made of", low=1)
    device: str = setting("auto", "auto, cpu, cuda, cuda:0, mps", pattern=r"auto|cpu|mps|cuda(:[0-9]{1,4})?")
    model: Model = field(default=Model(), metadata={"help": "the network"})
    data: Data = field(default=Data(), metadata={"help": "what is learned from"})
    loss: Loss = field(default=Loss(), metadata={"help": "what is made small"})
    energy: Energy | None = field(
        default=None, metadata={"help": "neurons spread evenly over the sphere (MHE); null: off"}
    )
    rotation: Rotation | None = field(
        default=None, metadata={"help": "rotate fixed neurons in place of learning them (OPT); null: off"}
    )
    optimizer: Optimizer = field(default=Optimizer(), metadata={"help": "how it is learned"})
    schedule: Schedule = field(default=Schedule(), metadata={"help": "how the learning rate changes"})

    def __post_init__(self) -> None:
        if self.steps is None and self.epochs is None:
            object.__setattr__(self, "epochs", EPOCHS)
        for each in fields(self):
            kind, optional = group_of(each.name)
            value = getattr(self, each.name)
            if kind is None:
                value = read(each.name, types_of(Config)[each.name], each.metadata, value)
                object.__setattr__(self, each.name, value)
            elif not isinstance(value, kind) and not (value is None and optional):
                raise ConfigError(f"{each.name} must be a group of settings, got {shown(value)}")
        consistency.check(self)


@cache
def group_of(name: str) -> tuple[type[Group] | None, bool]:
    """The class of a group of the config and whether it may be off; None for a plain field."""
    hint = types_of(Config)[name]
    kinds = [each for each in (hint, *get_args(hint)) if isinstance(each, type) and issubclass(each, Group)]
    return (kinds[0], kinds[0] is not hint) if kinds else (None, False)
