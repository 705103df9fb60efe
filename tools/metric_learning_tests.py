"""Run pytorch-metric-learning's own tests of ArcFace, CosFace, SphereFace and NormalizedSoftmax against our heads.

    python -m tools.metric_learning_tests PATH [seed ...]

PATH is a checkout of its repository (its tests are neither in the wheel nor in the sdist). Its four losses are replaced
by our heads, adapted in four points: its ArcFace has the margin in degrees, its SphereFace and NormalizedSoftmax
multiply the norm of embeddings by a number, class weights are `W` (d, C), and they are cast to the dtype of the
embeddings. All else is ours, `get_logits`, `distance` and `weight_regularizer` included. Logits and losses may differ
by ATOL, beside the relative tolerances of its tests (1e-5, in float16 1e-2).
"""

import math
import os
import sys
import unittest
import warnings
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from pytorch_metric_learning import losses
from torch import Tensor

import hypersphere as hs

FILES = (
    *("losses.test_arcface_loss", "losses.test_cosface_loss", "losses.test_normalized_softmax_loss"),
    *("losses.test_large_margin_softmax_loss", "regularizers.test_regular_face_regularizer"),
    "regularizers.test_center_invariant_regularizer",
)
# Another order of operations gives other last digits: logits of 64 are 0.06 apart in float16, 8e-6 in float32.
ATOL = {torch.float16: 0.1, torch.float32: 1e-4, torch.float64: 1e-8}


def adapt(head: hs.losses.AngularSoftmaxLoss, factor: float = 1.0) -> hs.losses.AngularSoftmaxLoss:
    """Give a head the names that pytorch-metric-learning's tests use, and its cast of the class weights."""

    class Adapted(type(head)):
        W = property(lambda self: self.weight.T)

        def forward(self, embeddings: Tensor, labels: Tensor, *rest: Any) -> Tensor:
            return super().forward(self.to(embeddings.dtype).prepare(embeddings), labels, *rest)

        def get_logits(self, embeddings: Tensor) -> Tensor:
            return super().get_logits(self.prepare(embeddings))

        def prepare(self, embeddings: Tensor) -> Tensor:
            return factor * embeddings

    head.__class__ = Adapted
    return head


def arcface(num_classes: int, embedding_size: int, margin: float = 28.6, scale: float = 64, **options: Any) -> Any:
    return adapt(hs.ArcFaceLoss(num_classes, embedding_size, math.radians(margin), scale, **options))


def cosface(num_classes: int, embedding_size: int, margin: float = 0.35, scale: float = 64, **options: Any) -> Any:
    return adapt(hs.AMSoftmaxLoss(num_classes, embedding_size, margin, scale, **options))


def sphereface(num_classes: int, embedding_size: int, margin: float = 4, scale: float = 1, **options: Any) -> Any:
    return adapt(hs.ASoftmaxLoss(num_classes, embedding_size, margin, annealing=False, **options), scale)


def normalized_softmax(num_classes: int, embedding_size: int, temperature: float = 0.05, **options: Any) -> Any:
    distance = options.get("distance")
    if distance is None or distance.normalize_embeddings:
        return adapt(hs.SSoftmaxLoss(num_classes, embedding_size, scale=1 / temperature, **options))
    return adapt(hs.WSoftmaxLoss(num_classes, embedding_size, **options), 1 / temperature)


OURS = {
    "ArcFaceLoss": arcface,
    "CosFaceLoss": cosface,
    "SphereFaceLoss": sphereface,
    "NormalizedSoftmaxLoss": normalized_softmax,
}


def close(a: Tensor, b: Tensor, rtol: float = 1e-5, **_: Any) -> bool:
    return bool(((a - b).abs() <= ATOL[a.dtype] + rtol * b.abs()).all())


def run(path: Path, seed: int) -> unittest.TestResult:
    """Run the tests below `path` once; their labels and weights are drawn from the seed."""
    sys.path.insert(0, str(path))
    torch.manual_seed(seed)
    tolerant = {"allclose": close, "isclose": lambda a, b, rtol=1e-5: torch.tensor(close(a, b, rtol))}
    with patch.multiple(losses, **OURS), patch.multiple(torch, **tolerant), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
            del sys.modules[name]
        suite = unittest.TestLoader().loadTestsFromNames([f"tests.{name}" for name in FILES])
        return unittest.TextTestRunner(verbosity=2).run(suite)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    os.environ.setdefault("TEST_DEVICE", "cpu")
    results = [run(Path(sys.argv[1]), seed) for seed in map(int, sys.argv[2:] or ["0"])]
    sys.exit(not all(result.wasSuccessful() for result in results))
