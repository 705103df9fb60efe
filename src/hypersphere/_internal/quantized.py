"""Quantized weights of torchao (not imported here), and the refusal to quantize layers that are not plain.

A class whose weight is more than a factor of a product, a sphere or a rotated layer, says in its attribute
``not_plain`` why tools for plain layers are refused and what to do instead.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

USE_FILTER = "for torchao by quantize_(model, config, filter_fn)"


def is_quantized_tensor(x: Any) -> bool:
    # torch.compile cannot read the __module__ of Parameter
    return type(x) not in (Tensor, nn.Parameter) and type(x).__module__.startswith("torchao.")


def dequantized(x: Tensor) -> Tensor:
    """Return the numbers that a quantized weight stands for; other tensors as they are."""
    return x.dequantize() if is_quantized_tensor(x) else x


def refuse_quantized(layer: Any, name: str, value: Any) -> None:
    """Raise if torchao sets a quantized parameter of `layer`."""
    if is_quantized_tensor(value):
        raise ValueError(
            f"{name} of {type(layer).__name__}({layer.extra_repr()}) cannot be quantized: {layer.not_plain}, "
            f"{USE_FILTER}"
        )


def _get_qconfig(layer: nn.Module) -> Any:
    if "qconfig" not in vars(layer):
        raise AttributeError("qconfig")
    return vars(layer)["qconfig"]


def _set_qconfig(layer: Any, value: Any) -> None:
    if value is not None:
        raise ValueError(
            f"{type(layer).__name__} cannot be quantized (layer.qconfig = None keeps it in floating point): "
            f"{layer.not_plain}"
        )
    vars(layer)["qconfig"] = None


def _delete_qconfig(layer: nn.Module) -> None:
    del vars(layer)["qconfig"]


#: what torch.ao.quantization sets on the layers it is to quantize
QCONFIG = property(_get_qconfig, _set_qconfig, _delete_qconfig)
