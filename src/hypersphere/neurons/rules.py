"""Find eligible layers, layers that are read and not called, and the output layers, without running the model."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from torch import nn

from .._internal import checks
from .._internal.adapters import adapter_modules
from .layouts import CONVOLUTIONS, TRANSPOSED, find_experts, is_linear, is_transformers_conv1d, stored_shape

# names of modules beside each other that both end a network
_HEAD = re.compile(r"cls|class|box|head|logit|score|regress|pred|policy|actor|critic", re.IGNORECASE)


def eligible_layers(model: nn.Module) -> Iterator[tuple[str, nn.Module, str]]:
    """Yield the name, the module and the tensor's name of all neurons of a model."""
    added = adapter_modules(model)
    for name, module in model.named_modules():
        if module in added:
            continue
        if isinstance(module, nn.MultiheadAttention):
            if module._qkv_same_embed_dim:
                yield name, module, "in_proj_weight"
            else:
                for tensor in ("q_proj_weight", "k_proj_weight", "v_proj_weight"):
                    yield f"{name}.{tensor}" if name else tensor, module, tensor
        elif (
            isinstance(module, (*CONVOLUTIONS, *TRANSPOSED))
            or is_linear(module)
            or is_loss_head(module)
            or is_transformers_conv1d(module)
        ):
            yield name, module, "weight"
        else:
            for tensor in find_experts(module):
                yield name if tensor == "weight" else f"{name}.{tensor}" if name else tensor, module, tensor


def matrices_of_others(model: nn.Module, eligible: Iterable[nn.Module]) -> dict[str, tuple[nn.Module, list[str]]]:
    """Return the modules that are not eligible and have matrices of their own, with the names of these."""
    known, found = set(eligible), {}
    for name, module in model.named_modules():
        own = [*module._parameters, *getattr(module, "parametrizations", ())] if module not in known else []
        matrices = [key for key in own if len(stored_shape(module, key)) > 1]
        if matrices and type(module).__name__ != "ParametrizationList":
            found[name] = module, matrices
    return found


def unknown_weights(model: nn.Module, eligible: Iterable[nn.Module]) -> dict[str, nn.Module]:
    """Return the modules of unknown classes whose ``weight`` is a matrix: each may be a Linear."""
    return {
        name: module
        for name, (module, matrices) in matrices_of_others(model, eligible).items()
        if "weight" in matrices
        and len(stored_shape(module, "weight")) == 2
        and not isinstance(module, nn.Embedding | nn.EmbeddingBag | nn.LayerNorm | nn.RMSNorm)
    }


def is_loss_head(module: nn.Module) -> bool:
    """Return whether the module is a loss of this package with class weights."""
    return getattr(type(module), "is_loss_head", False) is True


def uncalled_linears(model: nn.Module) -> set[nn.Module]:
    """Return Linears whose weights are known to be read without calling the layer, at least in eval mode.

    They are those of torch, and timm's attention with a bias for queries and values only (BEiT, EVA, Swin v2).
    """
    found: set[nn.Module] = set()
    for module in model.modules():
        if isinstance(module, nn.MultiheadAttention):
            found.add(module.out_proj)
        elif isinstance(module, nn.TransformerEncoderLayer):
            found |= {module.linear1, module.linear2}
        qkv = module._modules.get("qkv")
        if isinstance(qkv, nn.Linear) and qkv.bias is None and getattr(module, "q_bias", None) is not None:
            found |= set() if getattr(module, "qkv_bias_separate", False) else {qkv}
    return found


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the model inside torch's wrappers: DDP, DataParallel, torch.compile."""
    while True:
        inside = getattr(model, "_orig_mod", None)
        if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
            inside = model.module
        if not isinstance(inside, nn.Module):
            return model
        model = inside


def is_pooler(name: str) -> bool:
    """Return whether a layer is in a pooler, whose results are features of a network without a head."""
    return "pooler" in name.split(".")


def classifier_outputs(model: nn.Module, eligible: Mapping[str, nn.Module]) -> set[str] | None:
    """Return the last layer of every head that the model's get_classifier() returns; None without this method."""
    get_classifier = getattr(unwrapped(model), "get_classifier", None)
    if not callable(get_classifier):
        return None
    candidates = [(name, module) for name, module in eligible.items() if module is not model]
    heads = (set(head.modules()) for head in _modules_in(get_classifier()))
    return {name for inside in heads for name in _last_matching(candidates, inside.__contains__)}


def static_outputs(model: nn.Module, eligible: Mapping[str, nn.Module]) -> set[str]:
    """Return the output layers as far as they are known without running the model.

    In this order: what get_classifier() returns; the heads of a model of transformers, which are its
    get_output_embeddings() and the last Linear outside of its ``base_model`` (none if it is that itself); the last
    loss head; the last Linear. Two Linears, if names and shapes tell that they are heads beside each other.
    """
    declared = classifier_outputs(model, eligible)
    if declared is not None:
        return declared
    candidates = [(name, module) for name, module in eligible.items() if module is not model]
    inner = unwrapped(model)
    base, get_output = getattr(inner, "base_model", None), getattr(inner, "get_output_embeddings", None)
    found: set[str] = set()
    if callable(get_output) and isinstance(base, nn.Module):
        given, body = get_output(), set(base.modules())
        found = {name for name, module in candidates if module is given}
        if base is inner and (beside := [name for name, each in inner.named_children() if isinstance(each, nn.Linear)]):
            checks.warn_once(
                f"{type(inner).__name__} has no output layer by get_output_embeddings(), but {', '.join(beside)} may "
                "be one: pass example_inputs= to have the model traced, or output="
            )
        candidates = [(name, module) for name, module in candidates if module not in body]
    elif heads := _last_matching(candidates, is_loss_head):
        return set(heads)
    uncalled = uncalled_linears(model)
    candidates = [(name, module) for name, module in candidates if module not in uncalled and not is_pooler(name)]
    last = _last_linears(inner, candidates)
    if last and not found and (doubt := _doubt(model, last, candidates, eligible)):
        checks.warn_once(
            f"the output layer of {type(inner).__name__} is not known for certain: {doubt}; pass example_inputs= to "
            "have the model traced, or output="
        )
    return found | last


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
        linears = [each for each in child.modules() if isinstance(each, nn.Linear)]
        others = (each for each in child.modules() if not isinstance(each, nn.Linear))
        if not linears or any(p is not None for each in others for p in each._parameters.values()):
            continue
        first, last = linears[0], linears[-1]
        width = first.in_features if width is None else width
        if not _HEAD.search(name) or first.in_features != width or last.out_features == width:
            break
        heads.append(last)
    return heads if len(heads) > 1 else []


def _doubt(
    model: nn.Module, found: set[str], candidates: list[tuple[str, nn.Module]], eligible: Mapping[str, nn.Module]
) -> str:
    """Return why the last Linear may not be the output; empty if there is no reason."""
    names, modules = [name for name, _ in candidates], dict(candidates)
    *_, last = (name for name in names if name in found)
    later = names[names.index(last) + 1 :]
    convolution = [name for name in later if isinstance(modules[name], (*CONVOLUTIONS, *TRANSPOSED))]
    if convolution:
        return f"{last!r}, the last Linear, is taken for it, but {convolution[-1]!r} comes after it"
    order, others = [name for name, _ in model.named_modules()], unknown_weights(model, eligible.values())
    if unknown := [name for name in order[order.index(last) + 1 :] if name in others]:
        return (
            f"{last!r}, the last Linear, is taken for it, but {unknown[-1]!r} [{type(others[unknown[-1]]).__name__}] "
            "comes after it and has a weight too"
        )
    parts, twins = last.split("."), []
    if not isinstance(modules[last], nn.Linear):  # graph convolutions of torch_geometric add two of their own
        twins = [name for name in names if name.rpartition(".")[0] == last.rpartition(".")[0]]
    for i, part in enumerate(parts):
        block = model.get_submodule(".".join(parts[:i])) if part.isdigit() else None
        if isinstance(block, nn.ModuleList):
            twins += [".".join([*parts[:i], str(other), *parts[i + 1 :]]) for other in range(len(block))]
    size = stored_shape(modules[last], "weight")
    for name in twins:
        if name != last and name in modules and stored_shape(modules[name], "weight") == size:
            return f"{last!r}, the last Linear, is taken for it, but {name!r} is built alike"
    return ""


def _modules_in(given: Any) -> Iterator[nn.Module]:
    """Yield the heads in what get_classifier() returned: a module, or a container of them."""
    if isinstance(given, nn.ModuleDict | Mapping):
        given = list(given.values())
    if isinstance(given, nn.ModuleList | list | tuple):
        for each in given:
            yield from _modules_in(each)
    elif isinstance(given, nn.Module):
        yield given


def _last_matching(candidates: Iterable[tuple[str, nn.Module]], wanted: Callable[[nn.Module], bool]) -> list[str]:
    return [name for name, module in candidates if wanted(module)][-1:]
