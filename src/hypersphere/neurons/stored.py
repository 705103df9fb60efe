"""Decide how the tensors of a state_dict or a file hold neurons: by names and shapes, which must do for the modules.

The rows are those of :func:`select` wherever names, shapes and biases tell; elsewhere `assumed` says what was assumed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from torch import Tensor

from .._internal.quantized import dequantized
from .layouts import ATTENTION, EMBEDDING, EXPERTS, RECURRENT, Layout, expert_layouts, fused_parts, neuron_rows

FIRST, GROUPS, LINEAR = "outputs before inputs", "outputs before inputs, one group", "a Linear, not an embedding"

_CONV1D = ("c_attn", "q_attn", "c_fc", "c_proj")  # of GPT-2; others use these names for nn.Linear
_RECURRENT = ("weight_ih", "weight_hh", "weight_hr")
_ADAPTER = re.compile(r"(^|\.)(lora|b?oft|hada|vera)_", re.IGNORECASE)
_EMBEDDING = re.compile(r"embed|relative|^(wte|wpe|emb|tokens|places|vocab|shared)$", re.IGNORECASE)
_LINEAR = re.compile(
    r"proj|lin|fc|dense|head|classif|score|logit|query|key|value|qkv|attn|out|loss|^w?[qkvo]$|^w\d$", re.IGNORECASE
)


@dataclass(frozen=True)
class StoredNeurons:
    """How a tensor holds neurons."""

    key: str
    """The name of the tensor; that of the layer is the key of :func:`find_stored`."""
    shape: tuple[int, ...]
    layout: Layout = Layout()  # noqa: RUF009 (frozen)
    passed_over: str = ""
    """Why :func:`select` would pass it over; empty for a layer."""
    assumed: str = ""
    """What names and shapes do not tell; empty if they do."""

    @property
    def kind(self) -> str:
        """One of embedding, recurrent, convolution, linear."""
        passed_over = {EMBEDDING: "embedding", RECURRENT: "recurrent"}.get(self.passed_over)
        return passed_over or ("convolution" if len(self.shape) > 2 and not self.layout.stacked else "linear")

    def matrix(self, tensor: Tensor) -> Tensor:
        """Return the neurons of the tensor as rows: (groups, N, d)."""
        return neuron_rows(dequantized(tensor).reshape(self.shape), self.layout)


def find_stored(
    shapes: Mapping[str, tuple[int, ...]], known: Mapping[str, Layout] | None = None
) -> dict[str, StoredNeurons]:
    """Return all tensors of two or more dimensions by the name that :func:`select` gives their layer, in their order.

    Args:
        shapes: of all floating point tensors, by key; vectors too, since biases tell outputs from inputs.
        known: layouts that are known otherwise, by key: a graph has them.

    Example:
        >>> find_stored({"fc.weight": (5, 7), "fc.bias": (7,)})["fc"].layout.transposed  # as in transformers' Conv1D
        True
    """
    rules = _Rules(shapes, known or {})
    layers: dict[str, StoredNeurons] = {}
    for key, shape in shapes.items():
        if len(shape) > 1:
            module, _, tensor = key.rpartition(".")
            own = tensor in ("weight", "in_proj_weight") and module not in layers
            layers[module if own else key] = rules.decide(key, shape)
    return layers


class _Rules:
    """What biases, names and other layers tell about a tensor."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], known: Mapping[str, Layout]) -> None:
        self.shapes, self.known = shapes, dict(known)
        self.columns: dict[str, bool] = {}  # whether inputs come first, of layers whose bias tells
        for key, shape in shapes.items():
            module, _, tensor = key.rpartition(".")
            if tensor == EXPERTS[0]:
                prefix = key.removesuffix(tensor)
                experts = expert_layouts({name: shapes.get(prefix + name, ()) for name in EXPERTS})
                self.known |= {prefix + name: layout for name, layout in experts.items()}
            elif tensor == "weight" and len(shape) == 2:
                bias = self._bias(key)
                if bias in ((shape[0],), (shape[1],)) and shape[0] != shape[1]:
                    self.columns[module] = bias == (shape[1],)
                elif _last(module) == "c_attn" and 3 * min(shape) == max(shape):
                    self.columns[module] = shape[0] < shape[1]
        self.gpt2 = {columns for module, columns in self.columns.items() if _last(module) in _CONV1D}

    def _bias(self, key: str) -> tuple[int, ...]:
        return self.shapes.get(key.removesuffix("weight") + "bias", ())

    def decide(self, key: str, shape: tuple[int, ...]) -> StoredNeurons:
        module, _, tensor = key.rpartition(".")
        if key in self.known:
            return self._with_parts(StoredNeurons(key, shape, self.known[key]), module)
        if tensor in ATTENTION and len(shape) == 2:
            fused = tensor == "in_proj_weight" and shape[0] == 3 * shape[1]
            return StoredNeurons(key, shape, Layout(parts=3 if fused else 1))
        if tensor.startswith(_RECURRENT):
            return StoredNeurons(key, shape, passed_over=RECURRENT)
        if _ADAPTER.search(key):
            return StoredNeurons(key, shape, passed_over="of an adapter")
        bias = self._bias(key)
        if tensor != "weight" or bias == shape:
            first = next((i for i, n in enumerate(shape[:-2]) if n != 1), len(shape) - 2)
            reason = EMBEDDING if _EMBEDDING.search(tensor) else "not known to hold neurons"
            return StoredNeurons(key, shape[first:], passed_over=reason)
        if len(shape) > 2:
            return StoredNeurons(key, shape, *self._convolution(shape, bias))
        if not bias and _EMBEDDING.search(_last(module)):  # nn.Embedding has no bias
            return StoredNeurons(key, shape, passed_over=EMBEDDING)
        return self._with_parts(self._linear(key, module, shape, bias), module)

    def _convolution(self, shape: tuple[int, ...], bias: tuple[int, ...]) -> tuple[Layout, str, str]:
        if len(bias) == 1 and bias[0] != shape[0] and shape[1] and bias[0] % shape[1] == 0:
            groups = bias[0] // shape[1]
            if groups and shape[0] % groups == 0:
                return Layout(groups=groups, transposed=True), "", ""
        return Layout(), "", GROUPS

    def _linear(self, key: str, module: str, shape: tuple[int, ...], bias: tuple[int, ...]) -> StoredNeurons:
        columns, assumed = False, ""
        if module in self.columns:
            columns = self.columns[module]
        elif _last(module) in _CONV1D:
            columns, assumed = self.gpt2 == {True}, "" if len(self.gpt2) == 1 else FIRST
        elif bias and any(self.columns.values()):  # square: as the others, if these agree
            columns = all(self.columns.values())
            assumed = "inputs before outputs, as in other layers" if columns else FIRST
        elif not bias and not _LINEAR.search(_last(module)):
            assumed = LINEAR
        return StoredNeurons(key, shape, Layout(transposed=columns), assumed=assumed)

    def _with_parts(self, neurons: StoredNeurons, module: str) -> StoredNeurons:
        shape = neurons.shape[::-1] if neurons.layout.transposed else neurons.shape
        return replace(neurons, layout=replace(neurons.layout, parts=fused_parts(module, shape)))


def _last(module: str) -> str:
    return module.rpartition(".")[2]
