"""Duplicates? Rows that are equal, and groups of rows with a cosine above 0.995.

Up to 20,000 rows all pairs are compared. Beyond, rows are compared that fall into the same bucket of one of 16 tables,
each of the signs of the centred row along random directions. Along a random direction two rows at an angle a have
different signs with probability a/π. A pair at the limit, 5.7°, is met with a probability of about 0.999; a nearer one
hardly ever escapes. In a narrow cone the angle of the centred rows is larger: there many pairs at the limit escape, of
the many that there are. All pairs that are met are compared exactly.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..._internal import draws
from .answers import Answer, count
from .vectors import Vectors, blocks

NEAR = 0.995
EXACT_UP_TO = 20_000
_TABLES, _MOST_IN_BUCKET, _LEADING = 16, 64, 16
_PAIRS = 2**13  # compared at once
_TILE = 2048


def find_duplicates(vectors: Vectors, spectrum: Tensor, mean: Tensor, labels: npt.NDArray[np.int64] | None) -> Answer:
    """Find equal rows and near-duplicates.

    Args:
        spectrum: (d, m) leading principal directions, by which far pairs are ruled out.
        mean: (d,) of the directions.
        labels: (N,) of the file: groups with two labels are counted.
    """
    n = len(vectors)
    equal = _equal_rows(vectors)
    owner = np.arange(n)
    for group in equal:
        owner[group] = group[0]
    if n <= EXACT_UP_TO:
        _join_all(vectors, owner)
    else:
        _join_buckets(vectors, owner, spectrum[:, :_LEADING], mean)
    groups = [vectors.number(group) for group in _groups(owner)]
    exact = sum(len(group) - 1 for group in equal)
    redundant = sum(len(group) - 1 for group in groups)
    conflicts = [g for g in groups if labels is not None and len(np.unique(labels[g])) > 1]
    groups.sort(key=len, reverse=True)
    about = "" if n <= EXACT_UP_TO else "~"
    verdict = "no"
    if redundant:
        verdict = f"{count(exact, 'equal row')}, {about}{redundant - exact} near: keep one of each group"
    if conflicts:
        verdict += f"; {count(len(conflicts), 'group')} with several labels"
    return Answer(
        "duplicates?",
        verdict,
        not redundant,
        f"{about}{100 * redundant / n:.2g} % redundant",
        "0 %",
        tuple(sorted(int(i) for group in groups for i in np.sort(group)[1:])),
        {
            **{"exact": exact, "redundant": redundant, "all_pairs": n <= EXACT_UP_TO},
            "groups": [group.tolist() for group in groups],
            "exact_groups": [vectors.number(group).tolist() for group in equal],
            "groups_with_several_labels": [group.tolist() for group in conflicts],
        },
    )


def _equal_rows(vectors: Vectors) -> list[npt.NDArray[np.int64]]:
    """Return groups of equal rows, by the hash of their bytes, then by comparison."""
    hashes = []
    for part in blocks(len(vectors), _TILE):
        rows = _stored(vectors, np.arange(part.start, part.stop))
        hashes += [hash(row.tobytes()) for row in rows]
    keys = np.array(hashes, dtype=np.int64)
    groups = []
    for group in _groups(np.unique(keys, return_inverse=True)[1]):
        rows = _stored(vectors, group)
        same = (rows == rows[0]).all(1)
        if same.sum() > 1:  # others share the hash only, once in 2^64
            groups.append(group[same])
    return groups


def _stored(vectors: Vectors, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.generic]:
    return vectors.stored(vectors.number(rows)).numpy() + 0.0  # −0 is 0


def _groups(owner: npt.NDArray[np.int64]) -> list[npt.NDArray[np.int64]]:
    """Return the places of equal numbers, if there are two or more."""
    order = np.argsort(owner, kind="stable")
    begins = np.flatnonzero(np.diff(owner[order])) + 1
    return [group for group in np.split(order, begins) if len(group) > 1]


def _join(owner: npt.NDArray[np.int64], i: npt.NDArray[np.int64], j: npt.NDArray[np.int64]) -> None:
    """Give the rows of all pairs (i, j), and whoever they are joined with, the smallest owner."""
    while True:
        a, b = owner[i], owner[j]
        apart = a != b
        if not apart.any():
            return
        i, j = i[apart], j[apart]
        smaller, larger = np.minimum(a[apart], b[apart]), np.maximum(a[apart], b[apart])
        np.minimum.at(owner, larger, smaller)
        while True:  # to the owner's owner
            next_owner = owner[owner]
            if (next_owner == owner).all():
                break
            owner[:] = next_owner


def _join_all(vectors: Vectors, owner: npt.NDArray[np.int64]) -> None:
    for begin, left in vectors.blocks(_TILE):
        for start in range(begin, len(vectors), _TILE):
            right = vectors.unit(slice(start, min(start + _TILE, len(vectors))))
            near = left @ right.T > NEAR
            if start == begin:
                near.triu_(1)
            if bool(near.any()):
                near &= torch.from_numpy(owner[begin : begin + len(left), None] != owner[start : start + len(right)])
                i, j = (place.numpy() for place in near.nonzero(as_tuple=True))
                _join(owner, i + begin, j + start)


def _join_buckets(vectors: Vectors, owner: npt.NDArray[np.int64], leading: Tensor, mean: Tensor) -> None:
    bits = min(24, max(8, math.ceil(math.log2(len(vectors))) + 2))  # so that float32 holds a key
    directions = torch.randn(vectors.dimension, _TABLES * bits, generator=draws.generator(0, "tables", bits))
    powers = 2.0 ** torch.arange(bits)
    # in place: blocks that are kept between larger ones that are freed would leave holes in the memory
    keys = torch.empty(_TABLES, len(vectors), dtype=torch.int32)
    place = torch.empty(len(vectors), leading.shape[1])
    for start, x in vectors.blocks():
        signs = ((x - mean) @ directions > 0).float().unflatten(1, (_TABLES, bits))
        keys[:, start : start + len(x)] = (signs @ powers).T
        torch.mm(x, leading, out=place[start : start + len(x)])
    table = keys.numpy()
    reach = 2 * (1 - NEAR) + 1e-6  # ‖x − y‖² of unit rows
    for t in range(_TABLES):
        order = np.argsort(table[t], kind="stable")
        key = table[t, order]
        for step in range(1, _MOST_IN_BUCKET):
            met = np.flatnonzero(key[step:] == key[:-step])
            if not len(met):
                break
            i, j = order[met], order[met + step]
            apart = owner[i] != owner[j]
            i, j = i[apart], j[apart]
            for begin in range(0, len(i), _PAIRS):
                some = slice(begin, begin + _PAIRS)
                candidates = ((place[i[some]] - place[j[some]]).square().sum(1) <= reach).numpy()
                a, b = i[some][candidates], j[some][candidates]
                near = ((vectors.unit(a) * vectors.unit(b)).sum(1) > NEAR).numpy()
                _join(owner, a[near], b[near])
