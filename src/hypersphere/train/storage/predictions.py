"""Which classes a run confuses: ``predictions/<split>.json`` in its folder."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..._internal import safe_files
from .layout import FORMAT, PREDICTIONS
from .records import Count, Positive, Share, own_folder, read_record, write_tree

LARGEST_FILE = 1 << 26  # bytes
MOST_PAIRS = 2000  # rows of `confused`
MOST_WORST = 24
LARGEST_IMAGE = 64  # pixels along a side


@dataclass(frozen=True)
class WorstImage:
    """An image that was predicted wrong with a high loss.

    Attributes:
        index: in the split.
        confidence: probability of the prediction.
        loss: −log of the label's probability.
        size: height, width, channels.
        pixels: uint8, as base64.
    """

    index: Count
    label: Count
    prediction: Count
    confidence: Share
    loss: Positive
    size: tuple[Count, ...]
    pixels: str

    def __post_init__(self) -> None:
        fits = len(self.size) == 3 and min(self.size) >= 1 and max(self.size) <= LARGEST_IMAGE
        if not fits or self.size[2] not in (1, 3):
            raise ValueError(f"size must be height and width up to {LARGEST_IMAGE}, and 1 or 3 channels")
        if len(self.decode()) != self.size[0] * self.size[1] * self.size[2]:
            raise ValueError("pixels must have height × width × channels bytes, as size says")

    def decode(self) -> bytes:
        """Return the pixels (height, width, channels)."""
        return base64.b64decode(self.pixels, validate=True)


@dataclass(frozen=True)
class StoredPredictions:
    """The predictions of a split.

    Attributes:
        model: the checksum of final/model.json, which names the weights.
        classes: their names.
        samples, correct: of each class: the samples, and how many of them were predicted right.
        confused: rows (label, prediction, samples) of wrong predictions, the most frequent ones first.
        worst: images, the highest loss first.
    """

    split: str
    model: str
    classes: list[str]
    samples: list[Count]
    correct: list[Count]
    confused: list[list[Count]]
    worst: list[WorstImage]

    def __post_init__(self) -> None:
        count = len(self.classes)
        if not count or len(self.samples) != count or len(self.correct) != count:
            raise ValueError("samples and correct must have a number for each class")
        if any(right > whole for right, whole in zip(self.correct, self.samples, strict=True)):
            raise ValueError("correct must not be above samples")
        if len(self.confused) > MOST_PAIRS or any(len(row) != 3 or max(row[:2]) >= count for row in self.confused):
            raise ValueError(f"confused must be up to {MOST_PAIRS} rows of label, prediction and samples")
        if len(self.worst) > MOST_WORST or any(max(image.label, image.prediction) >= count for image in self.worst):
            raise ValueError(f"worst must be up to {MOST_WORST} images of these classes")


def file_of(run: Path, split: str) -> Path:
    return run / PREDICTIONS / f"{split}.json"


def write(run: Path, split: str, model: str, tree: Mapping[str, Any]) -> None:
    """Write what :meth:`hypersphere.train.evaluation.Predictions.tree` returned, atomically, with its checksum."""
    file = file_of(run, split)
    safe_files.remove_temporaries(own_folder(file.parent, make=True), (file.name,))
    write_tree(file, FORMAT, {"split": split, "model": model, **tree})


def read(file: Path) -> StoredPredictions:
    """Read the predictions and check every field; ValueError in one line."""
    own_folder(file.parent)
    safe_files.read_plain(file, LARGEST_FILE)  # too large: refused before it is parsed
    return read_record(StoredPredictions, file, FORMAT)
