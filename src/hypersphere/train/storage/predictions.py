"""Read and check the predictions of a run, ``predictions/<split>.json`` in its folder: which classes are confused.

===========================  ======================================================================================
split, model                 the split of the data; the checksum of final/model.json, which names the weights
run_id                       of the run
classes                      their names
samples, correct             of each class: the samples, and how many of them were predicted right
confused                     rows (label, prediction, samples) of wrong predictions, the most frequent ones first
worst                        images predicted wrong with the highest loss: index in the split, label, prediction,
                             confidence (probability of the prediction), loss (−log of the label's probability) and
                             size (height, width, channels) with base64 of the pixels, uint8
===========================  ======================================================================================
"""

from __future__ import annotations

import base64
import binascii
from pathlib import Path
from typing import Any

from ..._internal import checksummed_json, safe_files
from .identity import check_id, read_id
from .layout import FINAL, MODEL, PREDICTIONS, PREDICTIONS_FORMAT
from .summary import is_count, is_number

LARGEST_FILE = 1 << 26  # bytes
MOST_PAIRS = 2000  # rows of `confused`
MOST_WORST = 24
LARGEST_IMAGE = 64  # pixels along a side


def file_of(run: Path, split: str) -> Path:
    return run / PREDICTIONS / f"{split}.json"


def model_checksum(run: Path) -> str:
    """Return the checksum of final/model.json, as result.json has it."""
    return checksummed_json.checksum(safe_files.read_plain(run / FINAL / MODEL))


def write(run: Path, split: str, model: str, tree: dict[str, Any]) -> None:
    """Write what :meth:`hypersphere.train.evaluation.Predictions.tree` returned, atomically, with its checksum."""
    file = file_of(run, split)
    file.parent.mkdir(exist_ok=True)
    if not safe_files.is_folder(file.parent):
        raise ValueError(f"{file.parent} must be a folder itself, not a link")
    safe_files.remove_temporaries(file.parent, (file.name,))
    known = {"format": PREDICTIONS_FORMAT, checksummed_json.RUN_ID: read_id(run), "split": split, "model": model}
    safe_files.write_text(file, checksummed_json.with_checksum(known | tree))


def read(file: Path) -> dict[str, Any]:
    """Read the predictions and check every field; ValueError in one line. The pixels become bytes."""
    if not safe_files.is_folder(file.parent):
        raise ValueError(f"{file.parent} must be a folder, not a link")
    safe_files.read_plain(file, LARGEST_FILE)  # too large: refused before it is parsed
    tree, _ = checksummed_json.read(file, (PREDICTIONS_FORMAT,))
    check_id(file.parent.parent, file, tree.pop(checksummed_json.RUN_ID, None))
    if (why := _problem(tree)) is not None:
        raise ValueError(f"{file} is malformed: {why}")
    return tree


def _problem(tree: dict[str, Any]) -> str | None:
    if not isinstance(tree.get("split"), str) or not isinstance(tree.get("model"), str):
        return "split and model must be text"
    names = tree.get("classes")
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        return "classes must be names"
    samples, correct = tree.get("samples"), tree.get("correct")
    for row in (samples, correct):
        if not isinstance(row, list) or len(row) != len(names) or not all(map(is_count, row)):
            return "samples and correct must be an integer >= 0 for each class"
    if any(right > count for right, count in zip(correct or [], samples or [], strict=True)):
        return "correct must not be above samples"
    rows, worst = tree.get("confused"), tree.get("worst")
    if not isinstance(rows, list) or len(rows) > MOST_PAIRS or not all(_is_pair(row, len(names)) for row in rows):
        return f"confused must be up to {MOST_PAIRS} rows of label, prediction and samples"
    if not isinstance(worst, list) or len(worst) > MOST_WORST or not all(_is_image(each, len(names)) for each in worst):
        return f"worst must be up to {MOST_WORST} images with label, prediction, confidence and loss"
    return None


def _is_pair(row: Any, classes: int) -> bool:
    return isinstance(row, list) and len(row) == 3 and all(map(is_count, row)) and max(row[:2]) < classes


def _is_image(tree: Any, classes: int) -> bool:
    """Check an image; its pixels become bytes."""
    if not isinstance(tree, dict) or not all(is_count(tree.get(key)) for key in ("index", "label", "prediction")):
        return False
    size, pixels = tree.get("size"), tree.get("pixels")
    if not isinstance(size, list) or len(size) != 3 or not all(map(is_count, size)) or not isinstance(pixels, str):
        return False
    try:
        tree["pixels"] = base64.b64decode(pixels, validate=True)
    except (binascii.Error, ValueError):
        return False
    height, width, channels = size
    return (
        max(tree["label"], tree["prediction"]) < classes
        and is_number(tree.get("confidence"), 0, 1)
        and is_number(tree.get("loss"), 0)
        and min(height, width) >= 1
        and max(height, width) <= LARGEST_IMAGE
        and channels in (1, 3)
        and len(tree["pixels"]) == height * width * channels
    )
