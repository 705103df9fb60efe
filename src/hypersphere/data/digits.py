"""The handwritten digits that come with scikit-learn: 1797 images of 8×8, for a first try without any file."""

from __future__ import annotations

from pathlib import Path

import torch

from .. import _checks
from . import _files
from ._dataset import ArrayDataset

TRAIN = 1280


def digits(root: Path | None, split: str) -> ArrayDataset:
    """Images uint8 (N, 1, 8, 8), their 17 grey levels spread over 0 to 255; split: train (1280) | test (517).

    The images stand in the order they were collected in, so the last 517 are mostly by other hands than the first.
    """
    _checks.choice("split", split, ("train", "test"))
    data = _files.extra("sklearn.datasets", "scikit-learn", "digits").load_digits()
    rows = slice(TRAIN) if split == "train" else slice(TRAIN, None)
    images = torch.from_numpy(data.images[rows] * (255 / 16)).round().to(torch.uint8).unsqueeze(1)
    return ArrayDataset(images, torch.from_numpy(data.target[rows]), [str(digit) for digit in range(10)])
