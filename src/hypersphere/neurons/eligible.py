"""Decide which layers of a model hold neurons, and which of them are read and not called, without running it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from torch import nn

from .._internal.adapters import adapter_modules
from .layouts import (
    ATTENTION,
    CONVOLUTIONS,
    EMBEDDING,
    RECURRENT,
    TRANSPOSED,
    find_experts,
    is_linear,
    is_transformers_conv1d,
    stored_shape,
)


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
                for tensor in ATTENTION[1:]:
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
    known, others = set(eligible), {}
    for name, module in model.named_modules():
        own = [*module._parameters, *getattr(module, "parametrizations", ())] if module not in known else []
        matrices = [key for key in own if len(stored_shape(module, key)) > 1]
        if matrices and type(module).__name__ != "ParametrizationList":
            others[name] = module, matrices
    return others


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
    uncalled: set[nn.Module] = set()
    for module in model.modules():
        if isinstance(module, nn.MultiheadAttention):
            uncalled.add(module.out_proj)
        elif isinstance(module, nn.TransformerEncoderLayer):
            uncalled |= {module.linear1, module.linear2}
        qkv = module._modules.get("qkv")
        if isinstance(qkv, nn.Linear) and qkv.bias is None and getattr(module, "q_bias", None) is not None:
            uncalled |= set() if getattr(module, "qkv_bias_separate", False) else {qkv}
    return uncalled


def why_not_eligible(model: nn.Module, eligible: Iterable[nn.Module]) -> dict[str, tuple[nn.Module, str]]:
    """Return the other modules with matrices of their own, and why they are not selected."""

    def reason(module: nn.Module, matrices: list[str]) -> str:
        if isinstance(module, nn.RNNBase | nn.RNNCellBase):
            return RECURRENT
        if isinstance(module, nn.Embedding | nn.EmbeddingBag):
            return EMBEDDING
        return f"{', '.join(matrices)} not known to hold neurons"

    others = matrices_of_others(model, eligible).items()
    return {name: (module, reason(module, matrices)) for name, (module, matrices) in others}


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the model inside torch's wrappers: DDP, DataParallel, torch.compile."""
    while True:
        inside = getattr(model, "_orig_mod", None)
        if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
            inside = model.module
        if not isinstance(inside, nn.Module):
            return model
        model = inside
