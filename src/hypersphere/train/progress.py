"""The progress of a training."""

from __future__ import annotations

from dataclasses import dataclass, field

from .storage.records import Count, Positive


@dataclass
class LossMean:
    """The mean of the losses of some steps."""

    total: float = 0.0
    steps: Count = 0

    def add(self, loss: float) -> None:
        self.total += loss
        self.steps += 1

    def take(self) -> float:
        """Return the mean and start again."""
        mean = self.total / self.steps
        self.total, self.steps = 0.0, 0
        return mean


@dataclass
class Progress:
    """Counters and measurements of a training that a checkpoint stores beside weights and optimizers."""

    step: Count = 0
    evaluated: Count = 0  # the step of the last evaluation
    lines: Count = 0  # of metrics.jsonl
    seconds: Positive = 0.0
    samples: Count = 0
    loss: LossMean = field(default_factory=LossMean)  # since the last line
    round: LossMean = field(default_factory=LossMean)  # since the schedule last observed it
    metrics: dict[str, float] = field(default_factory=dict)  # of the last evaluation
    best: dict[str, float] | None = None  # step and metrics of the best evaluation on validation
    waited: Count = 0  # evaluations since then
    first: float | None = None  # the loss of the first step

    def __post_init__(self) -> None:
        if self.best is not None and not {"step", "accuracy", "loss"} <= set(self.best):
            raise ValueError("best must have step, accuracy and loss")
