"""Score the images of a generator by a classifier that was trained on the real ones.

The Inception score of the papers comes from a network trained on ImageNet. The formula is the same here; the classifier
is trained by a row of the table, on the table's own data, so its scores compare with each other only.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor

from .._internal.draws import generator
from ..recipes.table import Table
from ..train import derive, fit, load_run
from ..train.building import Classifier
from ..train.distributed import World
from ..train.results import Result
from ..train.splits import evaluation, load
from ..train.storage.folder import LockedError
from .results import FULL

BATCH = 500
WAIT = 5.0  # seconds between looks at a classifier that another process trains


def class_score(logits: Tensor) -> float:
    """Return exp(mean KL(p(y|x) ‖ p(y))) of logits (N, C): from 1 to C, high if classes are sure and all occur."""
    conditional = logits.double().log_softmax(1)
    marginal = conditional.logsumexp(0) - torch.tensor(len(logits), dtype=torch.float64).log()
    return float((conditional.exp() * (conditional - marginal)).sum(1).mean().exp())


def frechet_distance(a: Tensor, b: Tensor) -> float:
    """Return ‖μ₁ − μ₂‖² + tr(Σ₁ + Σ₂ − 2(Σ₁Σ₂)^½) of the features (N, d) and (M, d)."""
    a, b = a.double(), b.double()
    first, second = torch.cov(a.T).reshape(a.shape[1], -1), torch.cov(b.T).reshape(b.shape[1], -1)
    values, vectors = torch.linalg.eigh(first)
    root = (vectors * values.clamp(min=0).sqrt()) @ vectors.T
    # Σ₁^½ Σ₂ Σ₁^½ has the eigenvalues of Σ₁Σ₂ and is symmetric
    cross = torch.linalg.eigvalsh(root @ second @ root).clamp(min=0).sqrt().sum()
    return float((a.mean(0) - b.mean(0)).square().sum() + first.trace() + second.trace() - 2 * cross)


def score(table: Table, result: Result) -> dict[str, float]:
    """Return the score of a run's images, their Fréchet distance from the test images, and the classifier's accuracy.

    The table's options name the row that trains the classifier and the number of images. For that row itself the score
    is that of the test images.
    """
    judge = _classifier(table, result)
    assert judge.path is not None
    classifier = load_run(judge.path).classifier
    splits = load(judge.config.data, judge.config.seed)
    batches = evaluation(
        splits, "test", derive(judge.config, {"data.batch_size": BATCH}).data, World(torch.device("cpu"))
    )
    real, features = _judged(classifier, (batch.inputs for batch in batches))
    accuracy = {"classifier_accuracy": 100 * judge.summary["accuracy"]}
    if not result.config.model.is_generator:
        return {"score": class_score(real)} | accuracy
    latent = result.model.get_parameter("dense.weight").shape[1]
    noise = torch.randn(table.options["images"], latent, generator=generator(result.config.seed, "score", 0))
    made, found = _judged(classifier, (result.model(part) for part in noise.split(BATCH)))
    return {"score": class_score(made), "frechet": frechet_distance(found, features)} | accuracy


def _classifier(table: Table, result: Result) -> Result:
    """Return the finished run of the table's classifier, seed 0, beside this run; train it if there is none."""
    if not result.config.model.is_generator:
        return result
    assert result.path is not None
    form, name = result.path.parents[1], table.options["classifier"]  # see worker.folder_of
    row = table.row(name)
    config = row.full if form.name == FULL else row.small
    assert config is not None
    changes = {"seed": 0, "out": str(Path(form, name, "seed0")), "resume": True, "device": result.config.device}
    while True:
        try:
            return fit(derive(config, changes | {"data.root": result.config.data.root}), progress=False)
        except LockedError:
            time.sleep(WAIT)


@torch.no_grad()
def _judged(classifier: Classifier, batches: Iterable[Tensor]) -> tuple[Tensor, Tensor]:
    """Return the logits and the features of all images."""
    pairs = [(classifier(images), classifier.embed(images)) for images in batches]
    logits, features = zip(*pairs, strict=True)
    return torch.cat(logits), torch.cat(features)
