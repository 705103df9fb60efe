"""Find the heads of attention: which rows of a query, key or value belong together."""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from .layouts import FUSED, Layout, stored_shape
from .selection import Selection

_SIZES = ("head_dim", "attention_head_size", "head_size", "key_value_proj_dim")  # of a head, as attention modules say
_COUNTS = ("num_heads", "num_attention_heads", "n_heads", "n_head", "heads")
_QUERY_KEY_VALUE = {
    *FUSED,
    *("query_key_value", "qkv_proj"),  # head by head in some networks; the rows of a head lie together all the same
    *(form.format(name) for name in "qkv" for form in ("{}", "{}_proj", "{}_lin", "{}_linear", "to_{}", "w{}", "W{}")),
    *("query", "key", "value", "query_proj", "key_proj", "value_proj"),
}


def head_layouts(model: nn.Module, selection: Selection) -> dict[str, Layout]:
    """Return the layouts of a selection's queries, keys and values by layer name, every head a part of its own.

    The size of a head is what the attention module says, or its inputs divided by its number of heads. Layers whose
    rows it does not divide are left out.
    """
    parents = {child: module for module in model.modules() for child in module.children()}
    layouts = {}
    for name, neurons in selection.items():
        module, layout = neurons.module, neurons.layout
        is_attention = isinstance(module, nn.MultiheadAttention)
        if is_attention or name.rpartition(".")[2] in _QUERY_KEY_VALUE:
            size = _head_size(module if is_attention else parents.get(module), neurons.dimension)
            shape = stored_shape(module, neurons.tensor_name)
            rows = shape[int(layout.transposed)] if len(shape) == 2 else 0
            if size and rows % size == 0:
                layouts[name] = replace(layout, parts=rows // size)
    return layouts


def _head_size(attention: nn.Module | None, inputs: int) -> int:
    for names in (_SIZES, _COUNTS):
        for name in names:
            number = getattr(attention, name, None)
            if isinstance(number, int) and number > 0:
                return number if names is _SIZES else inputs // number
    return 0
