"""Score the images of a generator by a classifier that was trained on the real ones.

The Inception score of the papers comes from a network trained on ImageNet. The formula is the same here; the classifier
is trained by a row of the table, on the table's own data, so its scores compare with each other only.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from .._internal.draws import generator
from ..train import derive, load_run
from ..train.distributed import World
from ..train.networks import Classifier
from ..train.results import Result
from ..train.splits import evaluation, load

BATCH = 500


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


def score(result: Result, trained: Result, images: int) -> dict[str, float]:
    """Return the score of a run's images, their Fréchet distance from the test images, and the classifier's accuracy.

    Args:
        trained: the run of the classifier. If it is `result` itself, the score is that of the test images.
        images: how many are generated.
    """
    assert trained.path is not None
    classifier = load_run(trained.path).classifier
    splits = load(trained.config.data, trained.config.seed)
    batches = evaluation(
        splits, "test", derive(trained.config, {"data.batch_size": BATCH}).data, World(torch.device("cpu"))
    )
    real, features = _outputs(classifier, (batch.inputs for batch in batches))
    accuracy = {"classifier_accuracy": 100 * (trained.summary.accuracy or 0.0)}
    if result is trained:
        return {"score": class_score(real)} | accuracy
    latent = result.model.get_parameter("dense.weight").shape[1]
    noise = torch.randn(images, latent, generator=generator(result.config.seed, "score", 0))
    logits, generated = _outputs(classifier, (result.model(part) for part in noise.split(BATCH)))
    return {"score": class_score(logits), "frechet": frechet_distance(generated, features)} | accuracy


@torch.no_grad()
def _outputs(classifier: Classifier, batches: Iterable[Tensor]) -> tuple[Tensor, Tensor]:
    """Return the logits and the features of all images."""
    pairs = [(classifier(images), classifier.embed(images)) for images in batches]
    logits, features = zip(*pairs, strict=True)
    return torch.cat(logits), torch.cat(features)
