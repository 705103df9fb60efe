"""Decide which tensors are layers, and how their neurons lie, from names, shapes and config.json.

Rows of a tensor are neurons, flattened. Fused queries, keys and values become three layers; queries and keys are
groups of neurons, one for each head, where the number of heads is known.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from .stored import Entry

_NO_LAYER = re.compile(r"bias|mask|running_|num_batches|anchor|inv_freq|_scale|scale_|zero_point|table$", re.IGNORECASE)
_EMBEDDING = re.compile(r"embed|(^|[._])(wte|wpe|emb|tokens|places|vocab)([._]|$)", re.IGNORECASE)
_HEAD = re.compile(r"head|classif|decoder|output|fc|score|proj|logit", re.IGNORECASE)
_QUERY = re.compile(r"(q|query|q_proj|to_q|q_lin|wq|q_proj_weight)", re.IGNORECASE)
_KEY_VALUE = re.compile(
    r"(k|v|key|value|k_proj|v_proj|to_k|to_v|k_lin|v_lin|wk|wv|k_proj_weight|v_proj_weight)", re.IGNORECASE
)
_FUSED = re.compile(r"(in_proj|in_proj_weight|qkv|qkv_proj|to_qkv|wqkv|query_key_value|c_attn)", re.IGNORECASE)
_BY_HEAD = ("gpt_neox", "bloom")  # whose query_key_value has q, k and v of one head after another
_MANY = 8192  # rows of a matrix that is an embedding by its shape, if it is 16 times as high as wide


@dataclass(frozen=True)
class Unit:
    """A layer: a tensor, or a part of it."""

    name: str
    tensor: str
    kind: str
    neurons: int
    dimension: int
    heads: int = 1
    part: int | None = None
    """0, 1, 2: queries, keys, values of a fused tensor."""
    splits: tuple[int, ...] = ()
    """The number of rows of each part."""
    by_head: bool = False
    """Whether the parts alternate, head by head."""
    transposed: bool = False

    def rows(self, tensor: Tensor) -> Tensor:
        """Return the neurons (N, d) in the tensor."""
        if tensor.dim() == 3 and tensor.shape[0] == self.heads and self.heads > 1:
            return tensor.reshape(self.neurons, self.dimension)
        while tensor.dim() > 2 and tensor.shape[0] == 1:
            tensor = tensor[0]
        rows = tensor.T if self.transposed else tensor.flatten(1)
        if self.part is None:
            return rows
        if self.by_head:
            size = self.neurons // self.heads
            return rows.reshape(self.heads, 3, size, -1)[:, self.part].flatten(0, 1)
        return rows.split(list(self.splits))[self.part]


@dataclass(frozen=True)
class Heads:
    """The heads of attention, as config.json has them; 0 where it does not say."""

    queries: int = 0
    keys: int = 0
    model_type: str = ""

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Heads:
        def number(*names: str) -> int:
            values = (config.get(name) for name in names)
            return next((value for value in values if type(value) is int and 0 < value <= 1024), 0)

        queries = number("num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads")
        return cls(queries, number("num_key_value_heads", "n_head_kv") or queries, str(config.get("model_type", "")))


def find_layers(entries: Mapping[str, Entry], config: Mapping[str, Any], skipped: dict[str, str]) -> Iterator[Unit]:
    """Yield the layers in the order of the file; tensors of two or more dimensions that are none go to `skipped`."""
    heads = Heads.of(config)
    columns = _has_columns(entries)
    taken: set[str] = set()
    for name, entry in entries.items():
        shape = entry.shape
        while len(shape) > 2 and shape[0] == 1:
            shape = shape[1:]
        if len(shape) < 2:
            continue
        module, _, last = name.rpartition(".")
        if not entry.is_floating:
            skipped[name] = f"{entry.dtype}, not floating point"
        elif _NO_LAYER.search(last):
            skipped[name] = "not a weight by its name"
        elif len(shape) > 16:
            skipped[name] = f"{len(shape)} dimensions"
        elif 0 in shape:
            skipped[name] = "empty"
        elif shape[0] == 1 and len(entry.shape) > 2 and not any(n > 1 for n in shape[2:]):
            skipped[name] = "a single vector"
        else:
            shown = module if last == "weight" and module and module not in taken else name
            transposed = columns and len(shape) == 2 and module.rpartition(".")[2] in ("c_attn", "c_fc", "c_proj")
            found = [*_units(shown, name, shape[::-1] if transposed else shape, heads, entries)]
            if found[0].dimension < 2:
                skipped[name] = "its neurons have one dimension"
                continue
            taken.add(shown)
            yield from (replace(each, transposed=transposed) for each in found)


def _has_columns(entries: Mapping[str, Entry]) -> bool:
    """Return whether matrices lie the other way round, as in GPT-2: c_attn is (d, 3d)."""
    fused = [entry.shape for name, entry in entries.items() if name.endswith("c_attn.weight")]
    return bool(fused) and all(len(shape) == 2 and shape[1] == 3 * shape[0] for shape in fused)


def _units(shown: str, name: str, shape: tuple[int, ...], heads: Heads, entries: Mapping[str, Entry]) -> Iterator[Unit]:
    n, d = shape[0], 1
    for size in shape[1:]:
        d *= size
    module, _, last = name.rpartition(".")
    part = module.rpartition(".")[2] if last == "weight" else last
    if _FUSED.fullmatch(part) and len(shape) == 2:
        yield from _split(shown.removesuffix(".in_proj_weight"), name, part, n, d, heads)
    elif (is_query := _QUERY.fullmatch(part)) or _KEY_VALUE.fullmatch(part):
        if len(shape) == 3 and shape[1] > 1:  # (heads, neurons of a head, d)
            yield Unit(shown, name, "attention", shape[0] * shape[1], shape[2], heads=shape[0])
        elif len(shape) == 2:
            known = heads.queries if is_query else heads.keys
            known = known or _heads_by_norm(module, n, entries)
            yield Unit(shown, name, "attention", n, d, heads=_fitting(n, known))
        else:
            yield Unit(shown, name, "attention", n, d)
    elif len(shape) > 2:
        yield Unit(shown, name, "convolution", n, d)
    else:
        large = n >= _MANY and n >= 16 * d and not _HEAD.search(shown)
        yield Unit(shown, name, "embedding" if _EMBEDDING.search(name) or large else "linear", n, d)


def _split(shown: str, name: str, part: str, n: int, d: int, heads: Heads) -> Iterator[Unit]:
    """Yield queries, keys and values of a fused matrix, or the whole where it is unknown how they lie."""
    by_head = part.lower() == "query_key_value"
    known = heads.queries if heads.keys == heads.queries else 0
    if by_head and not (known and heads.model_type in _BY_HEAD and n % (3 * known) == 0):
        yield Unit(shown, name, "attention", n, d)
        return
    total = heads.queries + 2 * heads.keys
    if heads.queries and heads.keys != heads.queries and n % total == 0:  # fewer heads of keys and values
        size = n // total
        splits = (heads.queries * size, heads.keys * size, heads.keys * size)
    elif n % 3 == 0:
        splits = (n // 3,) * 3
    else:
        yield Unit(shown, name, "attention", n, d)
        return
    for i, (letter, rows) in enumerate(zip("qkv", splits, strict=True)):
        count = heads.queries if i == 0 else heads.keys
        yield Unit(f"{shown}.{letter}", name, "attention", rows, d, _fitting(rows, count), i, splits, by_head)


def _heads_by_norm(module: str, n: int, entries: Mapping[str, Entry]) -> int:
    """Return the number of heads that a norm of queries says, which has the size of one head."""
    norm = entries.get(f"{module.rpartition('.')[0]}.q_norm.weight")
    return n // norm.shape[0] if norm and len(norm.shape) == 1 and norm.shape[0] > 1 and n % norm.shape[0] == 0 else 0


def _fitting(n: int, heads: int) -> int:
    """Return the number of heads if each has two neurons at least, else one."""
    return heads if heads and n % heads == 0 and n // heads > 1 else 1
