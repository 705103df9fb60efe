"""Evaluate a classifier on classes that it was not trained on, by its embeddings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .. import data as datasets
from .. import openset
from ..data import Pairs
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

    Every process computes all of it, so that figures do not depend on their number.
    """
    embedder = Embedder(model, splits, config, to_device, interrupted)
    try:
        if splits.pairs is not None:
            figures = verify(embedder, splits.split(split), splits.pairs)
            return {key: figures[key] for key in ("accuracy", "std", "auc", "eer")}
        settings = episode_settings(config)
        if split != "test":
            settings["episodes"] = VALIDATION_EPISODES
        figures = run_episodes(embedder, splits.split(split), **settings)
        return {key: figures[key] for key in ("loss", "accuracy", "interval")}
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
        data, parts = self.config.data, []
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
            parts.append(embedded.cpu())
        found = torch.cat(parts)
        if not found.isfinite().all():
            raise ValueError("the embeddings are not finite")
        return found


def verify(embedder: Embedder, images: Any, pairs: Pairs) -> dict[str, Any]:
    """Verify pairs of `images` and return the figures."""
    return {"pairs": len(pairs), **verification(embedder, images, pairs).to_dict()}


def verification(embedder: Embedder, images: Any, pairs: Pairs) -> openset.Verification:
    """Verify pairs of `images`; embeddings are of an image and its mirror image."""
    if not hasattr(images, "paths"):
        raise ValueError("pairs name image files, and this dataset has none")
    where = pairs.locate(images)
    used, rows = where.unique(return_inverse=True)
    embedded = embedder(images.subset(used), mirrored=embedder.splits.spec.kind == "images")
    first, second = embedded[rows].unbind(1)
    return openset.verify_pairs(first, second, pairs.same, folds_of(pairs))


def folds_of(pairs: Pairs) -> Tensor:
    """Return the fold of each pair; a list without folds is divided into ten, or as many as it has pairs for."""
    if pairs.folds > 1:
        return pairs.fold
    kinds = int(pairs.same.sum()), int((~pairs.same).sum())
    if min(kinds) < 2:
        raise ValueError(f"the list must have two same and two different pairs or more, got {kinds[0]} and {kinds[1]}")
    return openset.divide_into_folds(pairs.same, max(2, min(FOLDS, *kinds)))


def episode_settings(config: Config) -> dict[str, Any]:
    """Return the default arguments of :func:`run_episodes`; the classifier is cosine after an angular loss."""
    classifier = "linear" if config.loss.name in ("softmax", "center") else "cosine"
    return {"episodes": EPISODES, "ways": WAYS, "shots": SHOTS, "queries": QUERIES, "classifier": classifier}


def run_episodes(
    embedder: Embedder, dataset: Any, *, episodes: int, ways: int, shots: int, queries: int, classifier: str
) -> dict[str, Any]:
    """Train and test a classifier on few-shot episodes of a dataset, the same ones whatever the seed of the run."""
    drawn = torch.stack(
        [datasets.episode_indices(dataset, i, ways=ways, shots=shots, queries=queries) for i in range(episodes)]
    )
    support, query = embedder(dataset)[drawn].split([shots, queries], 2)
    result = openset.few_shot_accuracy(support, query, classifier)
    return {
        "episodes": episodes,
        "ways": ways,
        "shots": shots,
        "queries": queries,
        "classifier": classifier,
        "accuracy": result.accuracy,
        "interval": result.interval,
        "loss": result.loss,
    }


def identify(embedder: Embedder, dataset: Any, distractors: int | None = None) -> dict[str, Any]:
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
    return {
        "probes": len(probes),
        "gallery": len(gallery),
        "distractors": len(noise),
        "rates": {str(k): float((ranks <= k).double().mean()) for k in RANKS},
    }
