"""Ask the eight questions about embeddings."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..._internal.progress import track
from .answers import Answer, EmbeddingInspection
from .broken import find_broken
from .duplicates import find_duplicates
from .helping import find_help
from .hubs import distinct_distances, find_neighbors, has_hubs
from .reading import open_embeddings, read_labels
from .recall import draw_sample, may_cut, may_quantize
from .spread import is_collapsed, is_uneven, measure_spectrum, two_nn
from .vectors import Array, Vectors, uniform_points

_QUERIES = 4096
_UNIFORM = 20_000  # points that are drawn for comparison, at most
_DRAWN = 1000  # points of the picture in space


@torch.no_grad()
def inspect_embeddings(source: str | os.PathLike[str] | Array, labels: Any = None) -> EmbeddingInspection:
    """Answer whether embeddings are broken, duplicated, collapsed, uneven or hubs, what may be cut, and what helps.

    Args:
        source: (N, d) as an array or a tensor, or the path of a file; a .npy may be larger than memory.
        labels: (N,) integers, or the path of a .npy or a .csv with a column `label`.

    Example:
        >>> x = torch.randn(200, 16, generator=torch.Generator().manual_seed(0))
        >>> x[7] = x[3]
        >>> inspect_embeddings(x)["duplicates"].indices
        (7,)
    """
    is_path = isinstance(source, str | os.PathLike)
    path = os.fspath(source) if isinstance(source, str | os.PathLike) else ""
    data = open_embeddings(Path(path)) if isinstance(source, str | os.PathLike) else source
    vectors = Vectors(data, path if is_path else "embeddings")
    known = None if labels is None else read_labels(labels, len(vectors.data))
    steps = iter(track(range(7), "inspecting embeddings"))
    broken, lengths = find_broken(vectors)
    rows: list[Answer] = [broken]
    transform = None
    pictures: dict[str, Any] = {"lengths": lengths}
    if len(vectors) >= 3:
        next(steps)
        even = uniform_points(min(len(vectors), _UNIFORM), vectors.dimension)
        spectrum = measure_spectrum(vectors)
        rows.append(find_duplicates(vectors, spectrum.directions, spectrum.mean, known))
        next(steps)
        found = find_neighbors(vectors, _QUERIES)
        # as many queries a row, so that counts of neighbours have the same mean
        queries = max(1, round(len(found.queries) * len(even) / len(vectors)))
        even_found = find_neighbors(even, queries)
        next(steps)
        repeated = np.zeros(len(vectors.data), bool)
        repeated[[i for group in rows[1].details["exact_groups"] for i in group[1:]]] = True
        distances = distinct_distances(found, repeated[vectors.number(np.arange(len(vectors)))])
        dimensions = two_nn(distances), two_nn(even_found.distances)
        even_spectrum = measure_spectrum(even)
        rows += [is_collapsed(spectrum, even_spectrum, dimensions), is_uneven(vectors, even, rows[1].indices)]
        next(steps)
        answer, counts, even_counts = has_hubs(vectors, found, even, even_found)
        sample, even_sample = draw_sample(vectors), draw_sample(even)
        rows += [answer, may_cut(sample, even_sample)]
        next(steps)
        rows.append(may_quantize(sample, even_sample))
        next(steps)
        helping, transform = find_help(vectors, spectrum, sample, rows[-1].details, known)
        rows.append(helping)
        pictures |= {
            **{"variances": spectrum.variances, "uniform_variances": even_spectrum.variances},
            **{"counts": counts, "uniform_counts": even_counts},
            "drawn": (vectors.number(vectors.sample(_DRAWN)), vectors.unit(vectors.sample(_DRAWN))),
            "labels": known,
        }
    for _ in steps:  # ends the bar
        pass
    dtype = str(vectors.data.dtype).removeprefix("torch.")
    return EmbeddingInspection(tuple(rows), path, (len(vectors.data), vectors.dimension), dtype, transform, pictures)
