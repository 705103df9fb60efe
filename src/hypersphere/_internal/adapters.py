"""Adapters of PEFT, recognized by the names of its classes: PEFT is not imported."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from .checks import warn_once
from .sharding import gather


def has_adapters(module: nn.Module) -> bool:
    """Return whether the module is a layer that PEFT wrapped to add adapters."""
    return _is_of_peft(module, "BaseTunerLayer")


def _is_of_peft(module: nn.Module, name: str) -> bool:
    return any(kind.__name__ == name and kind.__module__.partition(".")[0] == "peft" for kind in type(module).__mro__)


def adapter_modules(model: nn.Module) -> set[nn.Module]:
    """Return all modules that PEFT added: wrappers and their matrices (lora_A, lora_B, ...), not the base layers.

    Of a module that PEFT trains beside its adapters (modules_to_save) and of its copies, those that are not used.
    """
    added: set[nn.Module] = set()
    for module in model.modules():
        if has_adapters(module):
            added.add(module)
            for name, child in module.named_children():
                added.update(child.modules() if name != "base_layer" else ())
        elif _is_of_peft(module, "ModulesToSaveWrapper"):
            wrapper: Any = module
            copies = dict(wrapper.modules_to_save.items())
            active = [] if wrapper.disable_adapters else [name for name in wrapper.active_adapters if name in copies]
            used = [copies[name] for name in active] or [wrapper.original_module]
            for copy in (wrapper.original_module, *copies.values()):
                added.update(copy.modules() if copy not in used else ())
    return added


def with_lora(weight: Tensor, wrapper: Any) -> Tensor:
    """Add what the active LoRA adapters of PEFT's wrapper add to the weight of its base layer, with its gradient.

    Other kinds (DoRA, OFT, IA³, ...) are no sum: a warning says that they are not read.
    """
    for adapter in () if wrapper.disable_adapters else wrapper.active_adapters:
        is_here = any(adapter in getattr(wrapper, name) for name in wrapper.adapter_layer_names)
        if not is_here or adapter in wrapper.merged_adapters:
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
