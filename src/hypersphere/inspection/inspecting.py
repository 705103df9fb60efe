"""Inspect a model file without the model's code."""

from __future__ import annotations

import os
import re
from pathlib import Path

from .._internal.progress import track
from ..neurons.stored import StoredNeurons, find_stored
from .measuring import measure
from .opening import Opened, open_model
from .result import Inspection
from .stored import MOST_DIMENSIONS, Entry

_NO_LAYER = re.compile(r"bias|mask|running_|num_batches|anchor|inv_freq|_scale|scale_|zero_point|table$", re.IGNORECASE)


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
    found = layers_of(path, opened, skipped)
    layers = [
        measure(name, stored, opened.tensors.read(stored.key), opened.tensors.entries[stored.key].dtype)
        for name, stored in track(found.items(), "inspecting layers", len(found))
    ]
    chosen = tuple(layer for layer in layers if not layer.passed_over)
    others = tuple(layer for layer in layers if layer.passed_over)
    return Inspection(str(path), opened.format, opened.size, chosen, skipped, others)


def layers_of(path: Path, opened: Opened, skipped: dict[str, str]) -> dict[str, StoredNeurons]:
    """Find the layers by name; other matrices go to `skipped`. ValueError if there are none."""
    entries = opened.tensors.entries
    for key, entry in entries.items():
        if len(entry.shape) > 1 and (why := _why_not(key, entry)):
            skipped[key] = why
    shapes = {key: entry.shape for key, entry in entries.items() if entry.is_floating}
    found = {}
    for name, stored in find_stored(shapes, opened.layouts).items():
        if stored.passed_over and stored.shape[0] == 1:
            skipped.setdefault(stored.key, "a single vector")
        elif stored.key not in skipped:
            found[name] = stored
    if not found:
        count = len(entries) + len(opened.skipped)
        raise ValueError(f"{path} has no layer to inspect: none of its {count} tensors is a matrix of weights")
    return found


def _why_not(key: str, entry: Entry) -> str:
    """Return why a tensor holds no neurons, by its name, type and shape; empty if it may."""
    if not entry.is_floating:
        return f"{entry.dtype}, not floating point"
    if _NO_LAYER.search(key.rpartition(".")[2]):
        return "not a weight by its name"
    if len(entry.shape) > MOST_DIMENSIONS:
        return f"{len(entry.shape)} dimensions"
    return "empty" if 0 in entry.shape else ""
