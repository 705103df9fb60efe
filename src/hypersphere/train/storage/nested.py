"""Convert nested states (optimizers, schedules, generators) to tensors and JSON, and back."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from torch import Tensor

_KIND = "$"  # marks an object that encodes a type JSON does not have
_FLOATS = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}
_DICTS: dict[str, type[dict[Any, Any]]] = {"dict": dict, "ordered": OrderedDict}
_DEEPEST = 100


def flatten(state: Any) -> tuple[dict[str, Tensor], Any]:
    """Split a nested state into tensors by name and a JSON tree, from which :func:`unflatten` rebuilds it.

    Dicts (with keys of any kind below, OrderedDict too), lists, tuples, tensors, text, integers of any length, floats,
    bools and None keep type, order and every bit (a NaN becomes the default one). Tensors come back without gradient,
    contiguous and on the CPU. Anything else, a subclass too, is a TypeError that says where it lies.
    """
    tensors: dict[str, Tensor] = {}
    return tensors, _flat(state, (), tensors)


def unflatten(tensors: Mapping[str, Tensor], tree: Any) -> Any:
    """Rebuild the state that :func:`flatten` was given. ValueError in one line for any other tree."""
    try:
        return _nested(tree, tensors)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        what = "it is nested too deep" if isinstance(error, RecursionError) else f"{type(error).__name__}: {error}"
        raise ValueError(f"tree must be one that flatten made with these tensors; {what}") from None


def _flat(value: Any, path: tuple[Any, ...], tensors: dict[str, Tensor]) -> Any:
    if len(path) > _DEEPEST:
        raise ValueError(f"state is nested more than {_DEEPEST} deep, or holds itself, at {_shown(path[:6])}...")
    kind = type(value)
    if value is None or kind in (bool, int, str):
        return value
    if kind is float:
        return value if math.isfinite(value) else {_KIND: "float", "value": str(value)}
    if isinstance(value, Tensor):
        return {_KIND: "tensor", "name": _put(value.detach(), path, tensors)}
    if kind is list:
        return [_flat(item, (*path, i), tensors) for i, item in enumerate(value)]
    if kind is tuple:
        return {_KIND: "tuple", "items": [_flat(item, (*path, i), tensors) for i, item in enumerate(value)]}
    if kind is dict and all(type(key) is str for key in value) and _KIND not in value:
        return {key: _flat(item, (*path, key), tensors) for key, item in value.items()}
    for name, dict_kind in _DICTS.items():
        if kind is dict_kind:
            items = [[_flat(k, (*path, k), tensors), _flat(v, (*path, k), tensors)] for k, v in value.items()]
            return {_KIND: name, "items": items}
    raise TypeError(f"{_shown(path)} must be what flatten can store, got {kind.__module__}.{kind.__qualname__}")


def _put(tensor: Tensor, path: tuple[Any, ...], tensors: dict[str, Tensor]) -> str:
    name = base = ".".join(map(str, path)) or "state"
    count = 1
    while name in tensors:  # 0 and "0", or "a.b" and b in a
        count += 1
        name = f"{base}~{count}"
    tensors[name] = tensor
    return name


def _shown(path: tuple[Any, ...]) -> str:
    return "state" + "".join(f"[{key!r}]" for key in path)


def _nested(tree: Any, tensors: Mapping[str, Tensor]) -> Any:
    if isinstance(tree, list):
        return [_nested(item, tensors) for item in tree]
    if not isinstance(tree, dict):
        return tree
    kind = tree.get(_KIND)
    if kind is None and _KIND not in tree:
        return {key: _nested(item, tensors) for key, item in tree.items()}
    if kind == "float":
        return _FLOATS[tree["value"]]
    if kind == "tensor":
        return tensors[tree["name"]]
    if kind == "tuple":
        return tuple(_nested(item, tensors) for item in tree["items"])
    if kind in _DICTS:
        return _DICTS[kind]({_nested(key, tensors): _nested(item, tensors) for key, item in tree["items"]})
    raise ValueError(f"there is no kind {kind!r}")
