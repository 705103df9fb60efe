"""Plain text, character by character."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch

from .._internal import checks
from . import _files
from ._dataset import ArrayDataset
from ._registry import register

SOURCE = _files.Source(
    "text",
    ("tinyshakespeare", "text"),
    "input.txt (any UTF-8 text; root may also be the file)",
    "https://github.com/karpathy/char-rnn (data/tinyshakespeare)",
)


def text(root: Path | None, split: str, context: int | None = None, stride: int | None = None) -> ArrayDataset:
    """Load characters as int64 indices into `classes`, the sorted characters of the file.

    Without context the inputs are (N,), one character each, and the label is the next one. With context=T they are
    windows (M, T), stride (default T) characters apart, and the label is the character after the window; the targets
    of all T positions are ``torch.cat([inputs[:, 1:], labels[:, None]], 1)``.

    Args:
        split: train, the first 90 % of the characters | test, the rest.
    """
    checks.choice("split", split, ("train", "test"))
    if context is not None:
        context = checks.integer("context", context, low=1)
    elif stride is not None:
        raise ValueError(f"stride needs context, got stride={stride!r} and context=None")
    stride = context if stride is None else checks.integer("stride", stride, low=1)
    path = root if root is not None and root.is_file() else SOURCE.find(root, "input.txt") / "input.txt"
    # As code points: faster than one Python object per character.
    points = np.frombuffer(_files.read_text(path).encode("utf-32-le"), "<u4")
    used = np.zeros(sys.maxunicode + 1, np.bool_)
    used[points] = True
    code_points, index_of = np.flatnonzero(used), np.cumsum(used) - 1
    cut = len(points) * 9 // 10
    part = torch.from_numpy(index_of[points[:cut] if split == "train" else points[cut:]])
    if len(part) <= (context or 1):
        raise ValueError(
            f"{path} is too short: its {split} split must have more than {context or 1} characters, got {len(part)}"
        )
    classes = [chr(point) for point in code_points]
    if context is None:
        return ArrayDataset(part[:-1], part[1:], classes)
    assert stride is not None
    inputs = part[:-1].unfold(0, context, stride)
    return ArrayDataset(inputs, part[context::stride][: len(inputs)], classes)


register("text", text, kind="text")
