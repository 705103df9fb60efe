"""Inspect a model file without the model's code."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from torch import Tensor

from .._internal.progress import track
from .layers import Unit, find_layers
from .measuring import measure
from .opening import Opened, open_model
from .result import Inspection


def inspect(path: str | os.PathLike[str]) -> Inspection:
    """Report for every layer in a model file how evenly its neurons are spread, and which are redundant or dead.

    Reads tensor by tensor, needs no model code and runs none: a pickle is read by ``torch.load(weights_only=True)`` in
    another process with limits of time and memory.

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
    skipped = dict(opened.skipped)
    units = layers_of(path, opened, skipped)
    layers = tuple(
        measure(unit, tensor, opened.tensors.entries[unit.tensor].dtype)
        for unit, tensor in track(read_layers(opened, units), "inspecting layers", len(units))
    )
    return Inspection(str(path), opened.format, opened.size, layers, skipped)


def layers_of(path: Path, opened: Opened, skipped: dict[str, str]) -> list[Unit]:
    """Find the layers; ValueError if there are none."""
    units = list(find_layers(opened.tensors.entries, opened.config, skipped))
    if not units:
        count = len(opened.tensors.entries) + len(opened.skipped)
        raise ValueError(f"{path} has no layer to inspect: none of its {count} tensors is a matrix of weights")
    return units


def read_layers(opened: Opened, units: list[Unit]) -> Iterator[tuple[Unit, Tensor]]:
    """Yield each layer with its tensor, read once for the layers that share it."""
    name, tensor = None, None
    for unit in units:
        if tensor is None or unit.tensor != name:
            tensor = None  # free it before the next one is read
            name, tensor = unit.tensor, opened.tensors.read(unit.tensor)
        yield unit, tensor
