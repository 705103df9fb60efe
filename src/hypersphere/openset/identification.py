"""Identification: which class of a gallery does an embedding show, among distractors?"""

from __future__ import annotations

import torch
from torch import Tensor

from ._embeddings import blocks, check_embeddings, check_labels


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
    check_labels("probe_labels", probe_labels, len(probes))
    check_labels("gallery_labels", gallery_labels, len(gallery))
    if not len(probes):
        raise ValueError("probes must not be empty")
    missing = probe_labels[~torch.isin(probe_labels, gallery_labels)]
    if len(missing):
        raise ValueError(f"the gallery must have every probe's label, but has no {int(missing[0])}")
    best = torch.full((len(probes),), -torch.inf, dtype=torch.float64, device=probes.device)
    for rows, columns, left, right in blocks(probes, gallery, dtype=torch.float64):
        own = probe_labels[rows, None] == gallery_labels[columns]
        closest = (left @ right.T).masked_fill_(~own, -torch.inf).amax(1)
        best[rows] = best[rows].maximum(closest)
    ranks = torch.ones(len(probes), dtype=torch.int64, device=probes.device)
    for rows, columns, left, right in blocks(probes, gallery, dtype=torch.float64):
        others = probe_labels[rows, None] != gallery_labels[columns]
        ranks[rows] += ((left @ right.T >= best[rows, None]) & others).sum(1)
    if distractors is not None:
        for rows, _, left, right in blocks(probes, distractors, dtype=torch.float64):
            ranks[rows] += (left @ right.T >= best[rows, None]).sum(1)
    return ranks
