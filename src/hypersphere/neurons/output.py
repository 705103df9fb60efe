"""Decide which layers are the output of a model: by its own methods, by names and types, or by a forward pass."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from torch import nn

from .._internal import checks
from .eligible import is_loss_head, uncalled_linears, unknown_weights, unwrapped
from .layouts import CONVOLUTIONS, TRANSPOSED, is_linear, stored_shape
from .tracing import Trace

# names of modules beside each other that both end a network
_HEAD = re.compile(r"cls|class|box|head|logit|score|regress|pred|policy|actor|critic", re.IGNORECASE)


def output_names(
    model: nn.Module, output: str | None, layers: Mapping[str, nn.Module], traced: Trace | None
) -> set[str]:
    """Return the names of the output layers among `layers`, all that hold neurons; `output` is that of select."""
    if output is not None and not isinstance(output, str):
        raise TypeError(f"output must be 'auto', a layer's name or None, got {output!r}")
    if output not in (None, "auto", *layers):
        raise ValueError(f"output must be 'auto', None or one of {', '.join(map(repr, layers))}; got {output!r}")
    if output != "auto":
        return set() if output is None else {output}
    if traced is not None and traced.outputs is None:
        checks.warn_once("example_inputs: the forward pass returns no tensor, so its outputs cannot be followed")
    if traced is None or traced.outputs is None:
        return _static_outputs(model, layers)
    declared = _classifier_outputs(model, layers)
    if declared == set():
        return set()
    heads = [name for name, module in layers.items() if is_loss_head(module) and module is not model]
    if heads and heads[-1] not in traced.called:
        return set(heads[-1:])
    leaving = {name for name in traced.outputs if layers[name] is not model and not _is_pooler(name)}
    return leaving or declared or set()


def _is_pooler(name: str) -> bool:
    """Return whether a layer is in a pooler, whose results are features of a network without a head."""
    return "pooler" in name.split(".")


def _classifier_outputs(model: nn.Module, layers: Mapping[str, nn.Module]) -> set[str] | None:
    """Return the last layer of every head that the model's get_classifier() returns; None without this method."""
    get_classifier = getattr(unwrapped(model), "get_classifier", None)
    if not callable(get_classifier):
        return None
    candidates = [(name, module) for name, module in layers.items() if module is not model]
    heads = (set(head.modules()) for head in _modules_in(get_classifier()))
    return {name for inside in heads for name in _last_matching(candidates, inside.__contains__)}


def _static_outputs(model: nn.Module, layers: Mapping[str, nn.Module]) -> set[str]:
    """Return the output layers as far as they are known without running the model.

    In this order: what get_classifier() returns; the heads of a model of transformers, which are its
    get_output_embeddings() and the last Linear outside of its ``base_model`` (none if it is that itself); the last
    loss head; the last Linear. Two Linears, if names and shapes tell that they are heads beside each other.
    """
    declared = _classifier_outputs(model, layers)
    if declared is not None:
        return declared
    candidates = [(name, module) for name, module in layers.items() if module is not model]
    inner = unwrapped(model)
    base, get_output = getattr(inner, "base_model", None), getattr(inner, "get_output_embeddings", None)
    embeddings: set[str] = set()
    if callable(get_output) and isinstance(base, nn.Module):
        head, body = get_output(), set(base.modules())
        embeddings = {name for name, module in candidates if module is head}
        beside = [name for name, child in inner.named_children() if isinstance(child, nn.Linear)]
        if base is inner and beside:
            checks.warn_once(
                f"{type(inner).__name__} has no output layer by get_output_embeddings(), but {', '.join(beside)} may "
                "be one: pass example_inputs= to have the model traced, or output="
            )
        candidates = [(name, module) for name, module in candidates if module not in body]
    elif heads := _last_matching(candidates, is_loss_head):
        return set(heads)
    uncalled = uncalled_linears(model)
    candidates = [(name, module) for name, module in candidates if module not in uncalled and not _is_pooler(name)]
    last = _last_linears(inner, candidates)
    if last and not embeddings and (doubt := _doubt(model, last, candidates, layers)):
        checks.warn_once(
            f"the output layer of {type(inner).__name__} is not known for certain: {doubt}; pass example_inputs= to "
            "have the model traced, or output="
        )
    return embeddings | last


def _last_linears(model: nn.Module, candidates: list[tuple[str, nn.Module]]) -> set[str]:
    """Return the last Linear, and with it Linears that must be heads beside it."""
    last = _last_matching(candidates, is_linear)
    names = {module: name for name, module in candidates}
    heads = {names[head] for head in _heads_beside(model) if head in names}
    return heads if heads.intersection(last) else set(last)


def _heads_beside(model: nn.Module) -> list[nn.Linear]:
    """Return the last Linears of the model's last children if these are heads beside each other.

    Their names must be those of heads, they read the same number of features, and none can read another's result.
    """
    heads: list[nn.Linear] = []
    width = None
    for name, child in reversed(list(model.named_children())):
        linears = [module for module in child.modules() if isinstance(module, nn.Linear)]
        others = (module for module in child.modules() if not isinstance(module, nn.Linear))
        if not linears or any(p is not None for module in others for p in module._parameters.values()):
            continue
        first, last = linears[0], linears[-1]
        width = first.in_features if width is None else width
        if not _HEAD.search(name) or first.in_features != width or last.out_features == width:
            break
        heads.append(last)
    return heads if len(heads) > 1 else []


def _doubt(
    model: nn.Module, outputs: set[str], candidates: list[tuple[str, nn.Module]], layers: Mapping[str, nn.Module]
) -> str:
    """Return why the last Linear may not be the output; empty if there is no reason."""
    names, modules = [name for name, _ in candidates], dict(candidates)
    *_, last = (name for name in names if name in outputs)
    later = names[names.index(last) + 1 :]
    convolution = [name for name in later if isinstance(modules[name], (*CONVOLUTIONS, *TRANSPOSED))]
    if convolution:
        return f"{last!r}, the last Linear, is taken for it, but {convolution[-1]!r} comes after it"
    order, others = [name for name, _ in model.named_modules()], unknown_weights(model, layers.values())
    if unknown := [name for name in order[order.index(last) + 1 :] if name in others]:
        return (
            f"{last!r}, the last Linear, is taken for it, but {unknown[-1]!r} [{type(others[unknown[-1]]).__name__}] "
            "comes after it and has a weight too"
        )
    path, twins = last.split("."), []
    if not isinstance(modules[last], nn.Linear):  # graph convolutions of torch_geometric add two of their own
        twins = [name for name in names if name.rpartition(".")[0] == last.rpartition(".")[0]]
    for i, part in enumerate(path):
        block = model.get_submodule(".".join(path[:i])) if part.isdigit() else None
        if isinstance(block, nn.ModuleList):
            twins += [".".join([*path[:i], str(other), *path[i + 1 :]]) for other in range(len(block))]
    size = stored_shape(modules[last], "weight")
    for name in twins:
        if name != last and name in modules and stored_shape(modules[name], "weight") == size:
            return f"{last!r}, the last Linear, is taken for it, but {name!r} is built alike"
    return ""


def _modules_in(heads: Any) -> Iterator[nn.Module]:
    """Yield the heads in what get_classifier() returned: a module, or a container of them."""
    if isinstance(heads, nn.ModuleDict | Mapping):
        heads = list(heads.values())
    if isinstance(heads, nn.ModuleList | list | tuple):
        for head in heads:
            yield from _modules_in(head)
    elif isinstance(heads, nn.Module):
        yield heads


def _last_matching(candidates: Iterable[tuple[str, nn.Module]], wanted: Callable[[nn.Module], bool]) -> list[str]:
    return [name for name, module in candidates if wanted(module)][-1:]
