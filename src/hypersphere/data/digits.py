"""Handwritten digits that come with the package: 1797 images of 8×8.

They are the test set of E. Alpaydin and C. Kaynak's "Optical Recognition of Handwritten Digits" (UCI Machine Learning
Repository, CC BY 4.0), which scikit-learn has too; digits.npz holds it unchanged, grey levels 0 to 16.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from .._internal import checks
from ._dataset import ArrayDataset
from ._registry import register

TRAIN = 1280


def digits(root: Path | None, split: str) -> ArrayDataset:
    """Load images uint8 (N, 1, 8, 8), the 17 grey levels scaled to 0…255; split: train (1280) | test (517).

    The images are in the order of collection, so the last 517 are mostly by other writers than the first.
    """
    checks.choice("split", split, ("train", "test"))
    rows = slice(TRAIN) if split == "train" else slice(TRAIN, None)
    with np.load(Path(__file__).with_suffix(".npz"), allow_pickle=False) as data:
        images, labels = data["images"][rows], data["labels"][rows].astype(np.int64)
    grey = torch.from_numpy(images * (255 / 16)).round().to(torch.uint8).unsqueeze(1)
    return ArrayDataset(grey, torch.from_numpy(labels), [str(digit) for digit in range(10)])


register("digits", digits, kind="images")
