"""The progress of a training."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Progress:
    """Counters and figures of a training that a checkpoint stores beside weights and optimizers."""

    step: int = 0
    evaluated: int = 0  # the step of the last evaluation
    lines: int = 0  # of metrics.jsonl
    seconds: float = 0.0
    samples: int = 0
    loss: list[float] = field(default_factory=lambda: [0.0, 0.0])  # sum of losses and steps since the last line
    round: list[float] = field(default_factory=lambda: [0.0, 0.0])  # the same since the schedule last observed it
    figures: dict[str, float] = field(default_factory=dict)  # of the last evaluation
    best: dict[str, Any] | None = None  # the best evaluation on validation
    waited: int = 0  # evaluations since then
    first: float | None = None  # the loss of the first step
