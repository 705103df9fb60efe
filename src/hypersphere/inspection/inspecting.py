"""Inspect a model file without the model's code, or embeddings."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, overload

from torch import Tensor, nn

from .._internal.progress import track
from ..energy.hyperspherical import make_law
from .diagnosing import diagnose
from .embeddings import EmbeddingInspection, holds_embeddings, inspect_embeddings
from .embeddings.vectors import Array
from .formats import open_model
from .measuring import measure
from .results import DUPLICATE_ANGLE, Diagnosis, Inspection
from .sources import layers_of_file


@overload
def inspect(source: nn.Module | Mapping[str, Tensor]) -> Diagnosis: ...
@overload
def inspect(source: Array, *, labels: Any = None, embeddings: bool | None = None) -> EmbeddingInspection: ...
@overload
def inspect(
    source: str | os.PathLike[str], *, labels: Any = None, embeddings: Literal[True]
) -> EmbeddingInspection: ...
@overload
def inspect(source: str | os.PathLike[str], *, labels: None = None, embeddings: Literal[False]) -> Inspection: ...
@overload
def inspect(source: str | os.PathLike[str], *, labels: Any = None, embeddings: bool | None = None) -> Any: ...
def inspect(source: Any, *, labels: Any = None, embeddings: bool | None = None) -> Any:
    """Report for every layer of a model how evenly its neurons are spread; or answer questions about embeddings.

    A file needs no model code and none is run: a pickle is read by ``torch.load(weights_only=True)``.

    Layers of float32 or less are computed in float32, to about six digits, and in float64 if they have close or
    opposite neurons or singular values near zero.

    Args:
        source: a model in memory or its state_dict, for which the result is that of :func:`diagnose`, which has more
            options. A model file: a .safetensors file or a folder of shards, a file of ``torch.save`` (.pt, .pth,
            .bin), an .onnx file, or a run folder of ``hypersphere train``. Or embeddings (N, d): a numpy array, a
            tensor, a .npy, .npz or .parquet file, or a .safetensors or .pt file with one tensor whose name is not a
            layer's and N > d.
        labels: of embeddings: (N,) integers, a .npy of them, or a .csv with a column ``label``.
        embeddings: True: read the file as embeddings, False: as a model; None: as above.

    Returns:
        An :class:`Inspection` of a model file, a :class:`Diagnosis` of a model in memory, an
        :class:`EmbeddingInspection` of embeddings.

    Raises:
        ValueError: there is no such file, it is damaged, or it holds neither a layer nor embeddings.

    Example:
        >>> import tempfile, torch
        >>> from safetensors.torch import save_file
        >>> path = tempfile.mkdtemp() + "/three.safetensors"
        >>> save_file({"fc.weight": torch.tensor([[1.0, 0.0], [1.0, 0.01], [0.0, 0.0]])}, path)
        >>> (layer,) = inspect(path)
        >>> layer.name, layer.closest, layer.dead, str(layer.verdict)
        ('fc', (0, 1), (2,), '1 of 3 neurons is zero; 1 of 3 neurons is a near-duplicate of another')
        >>> inspect(torch.eye(50))["duplicates"].verdict
        'no'
    """
    if isinstance(source, Mapping | nn.Module):
        if labels is not None or embeddings:
            raise ValueError("labels and embeddings=True need embeddings, got a model")
        return diagnose(source)
    if not isinstance(source, str | os.PathLike):
        return inspect_embeddings(source, labels)
    path = Path(source)
    if embeddings or (embeddings is None and holds_embeddings(path)):
        return inspect_embeddings(path, labels)
    if labels is not None:
        raise ValueError(f"labels need embeddings, and {path} is read as a model; force it with embeddings=True")
    return _inspect_model(path)


def _inspect_model(path: Path) -> Inspection:
    opened = open_model(path)
    sources, skipped = layers_of_file(path, opened)
    law = make_law(2.0, False, False)
    reports = [
        measure(source, law, DUPLICATE_ANGLE, exact=False)
        for source in track(sources, "inspecting layers", len(sources))
    ]
    return Inspection(
        rows=tuple(report for report in reports if not report.passed_over),
        path=str(path),
        format=opened.format,
        bytes=opened.size,
        skipped=skipped,
        others=tuple(report for report in reports if report.passed_over),
    )
