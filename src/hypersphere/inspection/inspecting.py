"""Inspect a model file without the model's code."""

from __future__ import annotations

import os
from pathlib import Path

from .._internal.progress import track
from ..energy.hyperspherical import make_law
from .formats import open_model
from .measuring import measure
from .results import DUPLICATE_ANGLE, Inspection
from .sources import layers_of_file


def inspect(path: str | os.PathLike[str]) -> Inspection:
    """Report for every layer in a model file how evenly its neurons are spread, and which are redundant or dead.

    Needs no model code and runs none: a pickle is read by ``torch.load(weights_only=True)``.

    Layers of float32 or less are computed in float32, to about six digits, and in float64 if they have close or
    opposite neurons or singular values near zero.

    Args:
        path: a .safetensors file or a folder of shards, a file of ``torch.save`` (.pt, .pth, .bin), an .onnx file, or a
            run folder of ``hypersphere train``.

    Raises:
        ValueError: there is no model file, it is damaged, or none of its tensors is a layer.

    Example:
        >>> import tempfile, torch
        >>> from safetensors.torch import save_file
        >>> path = tempfile.mkdtemp() + "/three.safetensors"
        >>> save_file({"fc.weight": torch.tensor([[1.0, 0.0], [1.0, 0.01], [0.0, 0.0]])}, path)
        >>> (layer,) = inspect(path)
        >>> layer.name, layer.closest, layer.dead, str(layer.verdict)
        ('fc', (0, 1), (2,), '1 of 3 neurons is zero; 1 of 3 neurons is a near-duplicate of another')
    """
    path = Path(path)
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
