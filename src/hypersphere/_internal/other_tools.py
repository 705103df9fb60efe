"""Keep tools that treat every nn.Linear and nn.Conv as plain from changing sphere and rotated layers silently.

A sphere layer is an nn.Linear whose output is no inner product; a rotated layer's weight is computed. PEFT's adapters,
torch's fusion with BatchNorm and quantization would give wrong results or lose what they write. A class refuses them by
its attribute ``not_plain``, which says why and what to do instead.
"""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.module import register_module_module_registration_hook

from .checks import warn_once
from .quantized import is_quantized_tensor
from .sharding import gather

NOT_PLAIN = "not_plain"
_FILTER = "for torchao by quantize_(model, config, filter_fn)"
_HUGGING_FACE = ("transformers.", "diffusers.", "huggingface_hub.")


def has_adapters(module: nn.Module) -> bool:
    """Return whether the module is a layer that PEFT wrapped to add adapters (PEFT is not imported)."""
    return _is_of_peft(module, "BaseTunerLayer")


def _is_of_peft(module: nn.Module, name: str) -> bool:
    return any(each.__name__ == name and each.__module__.partition(".")[0] == "peft" for each in type(module).__mro__)


def adapter_modules(model: nn.Module) -> set[nn.Module]:
    """Return all modules that PEFT added: wrappers and their matrices (lora_A, lora_B, ...), not the base layers.

    Of a module that PEFT trains beside its adapters (modules_to_save) and of its copies, those that are not used.
    """
    found: set[nn.Module] = set()
    for module in model.modules():
        if has_adapters(module):
            found.add(module)
            for name, child in module.named_children():
                found.update(child.modules() if name != "base_layer" else ())
        elif _is_of_peft(module, "ModulesToSaveWrapper"):
            wrapper: Any = module
            copies = dict(wrapper.modules_to_save.items())
            active = [] if wrapper.disable_adapters else [name for name in wrapper.active_adapters if name in copies]
            used = [copies[name] for name in active] or [wrapper.original_module]
            for each in (wrapper.original_module, *copies.values()):
                found.update(each.modules() if each not in used else ())
    return found


def with_lora(weight: Tensor, wrapper: Any) -> Tensor:
    """Add what the active LoRA adapters of PEFT's wrapper add to the weight of its base layer, with its gradient.

    Other kinds (DoRA, OFT, IA³, ...) are no sum: a warning says that they are not read.
    """
    for adapter in () if wrapper.disable_adapters else wrapper.active_adapters:
        there = any(adapter in getattr(wrapper, name) for name in wrapper.adapter_layer_names)
        if not there or adapter in wrapper.merged_adapters:
            continue
        is_sum = any(kind.__name__ == "LoraLayer" for kind in type(wrapper).__mro__)
        if not is_sum or adapter in getattr(wrapper, "lora_variant", ()) or hasattr(wrapper, "parameter_name"):
            warn_once(
                f"weights are read without the adapter {adapter!r} of PEFT in {type(wrapper).__module__}: only LoRA is "
                "added to them, without variants such as DoRA"
            )
        else:
            weight = weight + gather(wrapper.get_delta_weight(adapter))
    return weight


def refuse_adapters(verb: str, model: nn.Module) -> None:
    """Raise if the model carries adapters of PEFT."""
    names = [
        f"{name or '(root)'} [{type(module).__name__}]"
        for name, module in model.named_modules()
        if has_adapters(module)
    ]
    if names:
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        raise ValueError(
            f"{verb}: the model carries PEFT adapters ({', '.join(names[:3])}{more}): merge them first, "
            "model = model.merge_and_unload()"
        )


def refuse_fusion(layer: nn.Module, name: str) -> None:
    """Raise if torch.nn.utils.fusion is the caller of the method that sets the parameter `name` of `layer`."""
    frame: FrameType | None = sys._getframe(1)
    for _ in range(4):  # register_parameter (of a rotated layer too), nn.Module.__setattr__, the caller
        if frame is not None and frame.f_globals.get("__name__") == "torch.nn.utils.fusion":
            raise ValueError(f"BatchNorm cannot be fused into {name} here: {getattr(layer, NOT_PLAIN)}")
        frame = frame.f_back if frame is not None else None


def refuse_quantized(layer: nn.Module, name: str, value: Any) -> None:
    """Raise if torchao sets a quantized parameter of `layer`."""
    if is_quantized_tensor(value):
        raise ValueError(
            f"{name} of {type(layer).__name__}({layer.extra_repr()}) cannot be quantized: {getattr(layer, NOT_PLAIN)}, "
            f"{_FILTER}"
        )


def warn_of_save_pretrained() -> None:
    """Warn if a plain save_pretrained is calling: the network that from_pretrained gives has no such layers."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "save_pretrained" and frame.f_globals.get("__name__", "").startswith(_HUGGING_FACE):
            warn_once(
                "save_pretrained writes no sphere layers and no rotations: from_pretrained would give a network "
                "without them; use save_pretrained and from_pretrained of hypersphere.integrations.huggingface"
            )
            return
        frame = frame.f_back


def _get_qconfig(layer: nn.Module) -> Any:
    if "qconfig" not in vars(layer):
        raise AttributeError("qconfig")
    return vars(layer)["qconfig"]


def _set_qconfig(layer: nn.Module, value: Any) -> None:
    if value is not None:
        raise ValueError(
            f"{type(layer).__name__} cannot be quantized (layer.qconfig = None keeps it in floating point): "
            f"{getattr(layer, NOT_PLAIN)}"
        )
    vars(layer)["qconfig"] = None


def _delete_qconfig(layer: nn.Module) -> None:
    del vars(layer)["qconfig"]


#: what torch.ao.quantization sets on the layers it is to quantize
QCONFIG = property(_get_qconfig, _set_qconfig, _delete_qconfig)


def _refuse_as_plain(parent: nn.Module, name: str, child: nn.Module | None) -> None:
    """Raise when a layer of PEFT takes a sphere or rotated layer as its base layer, or one of torchao its place."""
    before = parent._modules.get(name)
    if hasattr(type(before), NOT_PLAIN) and type(child).__module__.startswith("torchao."):
        assert before is not None
        raise ValueError(
            f"torchao cannot replace {name} = {type(before).__name__}({before.extra_repr()}) by a "
            f"{type(child).__name__}: {getattr(before, NOT_PLAIN)}, {_FILTER}. Layers before it are replaced already"
        )
    if name == "base_layer" and hasattr(type(child), NOT_PLAIN) and has_adapters(parent):
        assert child is not None
        raise ValueError(
            f"PEFT cannot adapt {type(child).__name__}({child.extra_repr()}): {getattr(child, NOT_PLAIN)}; or leave it "
            "out of target_modules. Layers before "
            "it have adapters already: model.unload() of a PEFT model, or a fresh model, is without"
        )


register_module_module_registration_hook(_refuse_as_plain)
