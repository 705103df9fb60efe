"""Evaluate a classifier on classes that it was not trained on, by its embeddings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import data as datasets
from .. import openset
from .._internal.tables import TableResult, TextTable, percent
from ..data import Pairs
from ..openset import OperatingPoint
from .config import Config
from .networks import Classifier
from .splits import WAYS, Batch, Splits

SHOTS, QUERIES = 5, 15
EPISODES, VALIDATION_EPISODES = 600, 200  # the latter at each evaluation of a training
FOLDS = 10
RANKS = (1, 5, 10)


class Interrupted(Exception):
    """Raised when an evaluation is interrupted."""


def check_splits(model: Classifier, splits: Splits, what: str) -> None:
    """Raise ValueError in one line, before a training begins, if an open split cannot be evaluated."""
    is_open = splits.is_open("validation") or splits.is_open("test")
    if is_open and model.head is None and not hasattr(model.network, "forward_features"):
        raise ValueError(f"{what} is evaluated by embeddings: the network needs forward_features, or an angular loss")
    for name in ("validation", "test"):
        if not splits.is_open(name):
            continue
        try:
            if splits.pairs is not None:
                splits.pairs.locate(splits.split(name))
                folds_of(splits.pairs)
            else:
                datasets.episode_indices(splits.split(name), 0, ways=WAYS, shots=SHOTS, queries=QUERIES)
        except ValueError as error:
            measure = "pairs" if splits.pairs is not None else f"{WAYS}-way {SHOTS}-shot episodes"
            raise ValueError(f"{what}: split {name} cannot be evaluated by {measure}: {error}") from None


def evaluate(
    model: Classifier,
    splits: Splits,
    split: str,
    config: Config,
    to_device: Callable[[Batch], Batch],
    interrupted: Callable[[], bool] = lambda: False,
) -> dict[str, float] | None:
    """Evaluate an open split by its pairs, else by episodes; None if `interrupted` returned True.

    Every process computes all of it, so that the result does not depend on their number.
    """
    embedder = Embedder(model, splits, config, to_device, interrupted)
    try:
        if splits.pairs is not None:
            pairs = verify(embedder, splits.split(split), splits.pairs)
            return {"accuracy": pairs.accuracy, "std": pairs.std, "auc": pairs.roc.auc, "eer": pairs.roc.eer}
        settings = Episodes.of(config)
        if split != "test":
            settings = replace(settings, episodes=VALIDATION_EPISODES)
        scores = run_episodes(embedder, splits.split(split), settings)
        return {"loss": scores.loss, "accuracy": scores.accuracy, "interval": scores.interval}
    except Interrupted:
        return None


class Embedder:
    """Embed the samples of a dataset as a classifier's evaluation does: augmented for it, not normalized."""

    def __init__(
        self,
        model: Classifier,
        splits: Splits,
        config: Config,
        to_device: Callable[[Batch], Batch],
        interrupted: Callable[[], bool] = lambda: False,
    ) -> None:
        self.model, self.splits, self.config = model, splits, config
        self.to_device, self.interrupted = to_device, interrupted

    @torch.no_grad()
    def __call__(self, dataset: Any, *, mirrored: bool = False) -> Tensor:
        """Return embeddings (N, d) on the CPU; `mirrored` appends those of the mirror images, (N, 2d)."""
        data, embeddings = self.config.data, []
        batches = datasets.batches(
            dataset, data.batch_size, shuffle=False, augment=self.splits.eval_augment, workers=data.workers
        )
        for inputs, labels in batches:
            if self.interrupted():
                raise Interrupted
            batch = self.to_device(Batch(inputs, labels, total=len(labels)))
            views = [batch.inputs, batch.inputs.flip(-1)] if mirrored else [batch.inputs]
            embedded = torch.cat([self.model.embed(view).float() for view in views], -1)
            if embedded.dim() != 2:
                raise ValueError(f"embeddings must be (B, d), got {tuple(embedded.shape)}")
            embeddings.append(embedded.cpu())
        rows = torch.cat(embeddings)
        if not rows.isfinite().all():
            raise ValueError("the embeddings are not finite")
        return rows


def verify(embedder: Embedder, images: Any, pairs: Pairs) -> openset.Verification:
    """Verify pairs of `images`; embeddings are of an image and its mirror image."""
    embedded, rows = _embed_pairs(embedder, images, pairs, mirrored=embedder.splits.spec.kind == "images")
    first, second = embedded[rows].unbind(1)
    return openset.verify_pairs(first, second, pairs.same, folds_of(pairs))


def choose_threshold(embedder: Embedder, dataset: Any, far: float, pairs: Pairs | None = None) -> OperatingPoint:
    """Choose the threshold of the cosine of embeddings for a FAR, from a list of pairs, else from all of a dataset."""
    if pairs is None:
        return openset.threshold_of_embeddings(far, embedder(dataset), dataset.labels)
    embedded, rows = _embed_pairs(embedder, dataset, pairs)
    first, second = embedded[rows].unbind(1)
    cosines = F.cosine_similarity(first, second)
    return openset.threshold_at(far, cosines, pairs.same, identities=dataset.labels[pairs.locate(dataset)])


def _embed_pairs(embedder: Embedder, images: Any, pairs: Pairs, *, mirrored: bool = False) -> tuple[Tensor, Tensor]:
    """Embed the images of pairs; return the embeddings, and (P, 2) the rows of each pair."""
    if not hasattr(images, "paths"):
        raise ValueError("pairs name image files, and this dataset has none")
    used, rows = pairs.locate(images).unique(return_inverse=True)
    return embedder(images.subset(used), mirrored=mirrored), rows


def folds_of(pairs: Pairs) -> Tensor:
    """Return the fold of each pair; a list without folds is divided into ten, or fewer if it has fewer pairs."""
    if pairs.folds > 1:
        return pairs.fold
    kinds = int(pairs.same.sum()), int((~pairs.same).sum())
    if min(kinds) < 2:
        raise ValueError(f"the list must have two same and two different pairs or more, got {kinds[0]} and {kinds[1]}")
    return openset.divide_into_folds(pairs.same, max(2, min(FOLDS, *kinds)))


@dataclass(frozen=True)
class Episodes:
    """Few-shot episodes, and the classifier that is trained on each: "linear" or "cosine"."""

    episodes: int
    ways: int
    shots: int
    queries: int
    classifier: str

    @classmethod
    def of(cls, config: Config) -> Episodes:
        """Return the default episodes; the classifier is cosine after an angular loss."""
        classifier = "linear" if config.loss.name in ("softmax", "center") else "cosine"
        return cls(EPISODES, WAYS, SHOTS, QUERIES, classifier)


def run_episodes(embedder: Embedder, dataset: Any, settings: Episodes) -> openset.EpisodeAccuracy:
    """Train and test a classifier on few-shot episodes of a dataset, the same ones whatever the seed of the run."""
    draw = partial(
        datasets.episode_indices, dataset, ways=settings.ways, shots=settings.shots, queries=settings.queries
    )
    drawn = torch.stack([draw(i) for i in range(settings.episodes)])
    support, query = embedder(dataset)[drawn].split([settings.shots, settings.queries], 2)
    return openset.few_shot_accuracy(support, query, settings.classifier)


@dataclass(frozen=True, eq=False, repr=False)
class Identification(TableResult):
    """The numbers of probes, samples in the gallery and distractors, and the rates of rank k; prints as a table."""

    probes: int
    gallery: int
    distractors: int
    rates: dict[str, float]

    @property
    def rows(self) -> list[tuple[str, float]]:
        """The ranks and their rates."""
        return list(self.rates.items())

    def tables(self) -> list[TextTable]:
        header = ["probes", "gallery", "distractors", *(f"rank {k}" for k in self.rates)]
        cells = [f"{count:,}" for count in (self.probes, self.gallery, self.distractors)]
        return [TextTable(header, [[*cells, *map(percent, self.rates.values())]], left=0)]

    def to_dict(self) -> dict[str, int | dict[str, float]]:
        return asdict(self)


def identify(embedder: Embedder, dataset: Any, distractors: int | None = None) -> Identification:
    """Identify every sample but the first of each class, by these first ones and by distractors.

    Distractors are the samples of classes that have one sample only.

    Args:
        distractors: how many; None: all.
    """
    labels = dataset.labels
    counts = labels.bincount()
    alone = (counts[labels] == 1).nonzero().flatten()
    if distractors is not None and distractors > len(alone):
        raise ValueError(f"distractors must be <= {len(alone)}, the classes with a single sample, got {distractors}")
    known = (counts[labels] > 1).nonzero().flatten()
    if not len(known):
        raise ValueError("identification needs classes with two samples or more")
    first = torch.full((len(counts),), len(labels)).scatter_reduce_(0, labels, torch.arange(len(labels)), "amin")
    gallery = known[first[labels[known]] == known]
    probes = known[first[labels[known]] != known]
    embedded = embedder(dataset, mirrored=embedder.splits.spec.kind == "images")
    noise = alone if distractors is None else alone[:distractors]
    ranks = openset.identification_ranks(
        embedded[probes], labels[probes], embedded[gallery], labels[gallery], embedded[noise] if len(noise) else None
    )
    rates = {str(k): float((ranks <= k).double().mean()) for k in RANKS}
    return Identification(len(probes), len(gallery), len(noise), rates)
