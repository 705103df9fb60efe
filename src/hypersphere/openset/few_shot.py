"""Few-shot episodes: a new classifier on frozen embeddings for each (OPT, App. D; baseline and baseline++)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .._internal import checks
from .._internal.draws import generator
from .._internal.tables import TableResult, TextTable, number, percent
from ._embeddings import check_embeddings

CLASSIFIERS = ("linear", "cosine")
COSINE_SCALE = 2.0  # OPT, App. D
LR, MOMENTUM, DAMPENING, WEIGHT_DECAY, BATCH, EPOCHS = 0.01, 0.9, 0.9, 1e-3, 4, 100  # OPT, App. D


@dataclass(frozen=True, eq=False, repr=False)
class EpisodeAccuracy(TableResult):
    """The result of :func:`few_shot_accuracy` on E episodes.

    Attributes:
        accuracies: (E,) of the queries of each episode.
        loss: the mean cross-entropy of all queries.
    """

    accuracies: Tensor
    loss: float

    @property
    def rows(self) -> list[float]:
        """The accuracy of each episode."""
        accuracies: list[float] = self.accuracies.tolist()
        return accuracies

    def tables(self) -> list[TextTable]:
        cells = [str(len(self.accuracies)), percent(self.accuracy), percent(self.interval), number(self.loss)]
        return [TextTable(["episodes", "accuracy", "± (95 %)", "loss"], [cells], left=0)]

    def to_dict(self) -> Mapping[str, Any]:
        return {"accuracy": self.accuracy, "interval": self.interval, "loss": self.loss, "episodes": self.rows}

    @property
    def accuracy(self) -> float:
        """The mean over the episodes."""
        return float(self.accuracies.mean())

    @property
    def interval(self) -> float:
        """Half the width of the 95 % confidence interval of the mean: 1.96·std/√E; NaN for one episode."""
        if len(self.accuracies) < 2:
            return math.nan
        return 1.96 * float(self.accuracies.std()) / len(self.accuracies) ** 0.5


def few_shot_accuracy(support: Tensor, query: Tensor, classifier: str = "linear", *, seed: int = 0) -> EpisodeAccuracy:
    """Train a classifier on the support of each episode and test it on the queries; all E episodes at once.

    Every episode has its own new weights, trained by SGD: learning rate 0.01, momentum 0.9, dampening 0.9, weight decay
    1e-3, 100 epochs in batches of 4 (OPT, App. D). Gradients lie in the span of the support and the first weights, so
    the training runs in that subspace, whatever d is.

    Args:
        support: (E, ways, shots, d) embeddings.
        query: (E, ways, queries, d) embeddings of the same classes.
        classifier: "linear" (w·x + b, the baseline) or "cosine" (2·cos(w, x), baseline++).
        seed: of the first weights and of the order of the samples.

    Example:
        >>> centres = torch.eye(5).reshape(1, 5, 1, 5)
        >>> support, query = (centres + 0.1 * torch.randn(8, 5, n, 5) for n in (5, 15))
        >>> few_shot_accuracy(support, query).accuracy
        1.0
    """
    _check(support, query)
    checks.choice("classifier", classifier, CLASSIFIERS)
    device, (episodes, ways, shots, _) = support.device, support.shape
    draws = generator(seed, "few-shot", 0)
    support, query = support.detach().flatten(1, 2).float(), query.detach().flatten(1, 2).float()
    if classifier == "cosine":
        support, query = F.normalize(support, dim=2), F.normalize(query, dim=2)
    bound = support.shape[2] ** -0.5  # as nn.Linear
    first = (torch.rand(episodes, ways, support.shape[2], generator=draws) * 2 - 1) * bound
    bias = ((torch.rand(episodes, 1, ways, generator=draws) * 2 - 1) * bound).to(device)
    support, query, first = _in_subspace(support, query, first.to(device))
    labels = torch.arange(ways, device=device).repeat_interleave(shots)
    weight, bias = nn.Parameter(first), nn.Parameter(bias, requires_grad=classifier == "linear")
    trained = [weight, bias] if classifier == "linear" else [weight]
    optimizer = torch.optim.SGD(trained, LR, MOMENTUM, DAMPENING, WEIGHT_DECAY)

    def logits(inputs: Tensor) -> Tensor:
        if classifier == "linear":
            return torch.baddbmm(bias, inputs, weight.mT)
        return COSINE_SCALE * inputs @ F.normalize(weight, dim=2).mT

    with torch.enable_grad():
        for _ in range(EPOCHS):
            order = torch.rand(episodes, len(labels), generator=draws).argsort(1).to(device)
            for rows in order.split(BATCH, 1):
                inputs = support.gather(1, rows.unsqueeze(2).expand(-1, -1, support.shape[2]))
                loss = F.cross_entropy(logits(inputs).flatten(0, 1), labels[rows].flatten(), reduction="sum")
                optimizer.zero_grad()
                (loss / rows.shape[1]).backward()
                optimizer.step()
    with torch.no_grad():
        scores = logits(query)
        targets = torch.arange(ways, device=device).repeat_interleave(query.shape[1] // ways)
        hits = (scores.argmax(2) == targets).double().mean(1)
        return EpisodeAccuracy(hits, float(F.cross_entropy(scores.mT, targets.expand(episodes, -1))))


def _in_subspace(support: Tensor, query: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return coordinates in an orthonormal basis of each episode's support and weights; inner products stay."""
    spanning = torch.cat([support, weight], 1)
    if spanning.shape[1] >= spanning.shape[2]:
        return support, query, weight
    basis = torch.linalg.qr(spanning.mT).Q  # (E, d, n)
    return support @ basis, query @ basis, weight @ basis


def _check(support: Any, query: Any) -> None:
    for name, embeddings in (("support", support), ("query", query)):
        check_embeddings(name, embeddings, "(episodes, ways, samples, d)", 4)
    if not len(support) or support.shape[:2] != query.shape[:2] or support.shape[3] != query.shape[3]:
        raise ValueError(
            "support and query must have the same episodes, one or more, ways and d, "
            f"got {tuple(support.shape)} and {tuple(query.shape)}"
        )
