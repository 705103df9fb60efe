"""Identification: which class of a gallery does an embedding show, among distractors?"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ._embeddings import check_embeddings, unit_rows

ROWS = 1024  # probes compared with the gallery at a time


def identification_ranks(
    probes: Tensor,
    probe_labels: Tensor,
    gallery: Tensor,
    gallery_labels: Tensor,
    distractors: Tensor | None = None,
) -> Tensor:
    """Return the rank (Q,) int64 of each probe's class in the gallery by cosine; 1 is the best.

    It is one more than the number of gallery embeddings of other classes and of distractors that are at least as
    close as the closest of its own class: a tie counts against it. The share of ranks <= k is the rank-k
    identification rate.

    Args:
        probes, gallery: (Q, d) and (G, d) embeddings.
        probe_labels, gallery_labels: (Q,) and (G,) integers; every probe's label must be in the gallery.
        distractors: (D, d) embeddings of classes that no probe has.

    Example:
        >>> gallery, labels = torch.eye(3), torch.arange(3)
        >>> probes = torch.tensor([[0.9, 0.1, 0.0], [0.9, 0.1, 0.0]])
        >>> ranks = identification_ranks(probes, torch.tensor([0, 1]), gallery, labels, torch.full((1, 3), 0.5))
        >>> ranks.tolist(), float((ranks <= 2).double().mean())
        ([1, 3], 0.5)
    """
    for name, embeddings in (("probes", probes), ("gallery", gallery), ("distractors", distractors)):
        if embeddings is not None:
            check_embeddings(name, embeddings, "(n, d) with one d for all", 2, (len(embeddings), probes.shape[-1]))
    _check_labels("probe_labels", probe_labels, probes)
    _check_labels("gallery_labels", gallery_labels, gallery)
    if not len(probes):
        raise ValueError("probes must not be empty")
    missing = probe_labels[~torch.isin(probe_labels, gallery_labels)]
    if len(missing):
        raise ValueError(f"the gallery must have every probe's label, but has no {int(missing[0])}")
    everyone = gallery if distractors is None else torch.cat([gallery, distractors.to(gallery.dtype)])
    unit = unit_rows(everyone)
    ranks = []
    for rows, labels in zip(probes.split(ROWS), probe_labels.split(ROWS), strict=True):
        cosines = unit_rows(rows) @ unit.T  # (rows, G + D)
        own = F.pad(labels[:, None] == gallery_labels, (0, len(unit) - len(gallery)))
        best = cosines.masked_fill(~own, -torch.inf).amax(1, keepdim=True)
        ranks.append(1 + ((cosines >= best) & ~own).sum(1))
    return torch.cat(ranks)


def _check_labels(name: str, labels: Any, rows: Tensor) -> None:
    if (
        not isinstance(labels, Tensor)
        or labels.is_floating_point()
        or labels.is_complex()
        or labels.shape != rows.shape[:1]
    ):
        got = f"{tuple(labels.shape)} of {labels.dtype}" if isinstance(labels, Tensor) else type(labels).__name__
        raise ValueError(f"{name} must be ({len(rows)},) integers, got {got}")
