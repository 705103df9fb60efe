"""A tensor of neurons in a model."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from .._internal.adapters import with_lora
from .._internal.quantized import dequantized, is_quantized_tensor
from .._internal.sharding import read, write
from .layouts import Layout, find_layout, from_neuron_rows, neuron_rows


@dataclass(frozen=True)
class Neurons:
    """A tensor of neurons: its module and name, whether it is the model's output layer, and how it holds neurons."""

    module: nn.Module
    tensor_name: str
    is_output: bool
    layout: Layout = None  # type: ignore[assignment]  # that of the module
    adapters: nn.Module | None = None
    """PEFT's wrapper of the module."""

    def __post_init__(self) -> None:
        if self.layout is None:
            object.__setattr__(self, "layout", find_layout(self.module, self.tensor_name))

    @property
    def tensor(self) -> Tensor:
        """The current tensor (a parametrized weight is evaluated)."""
        tensor: Tensor = getattr(self.module, self.tensor_name)
        return tensor

    @property
    def parametrizations(self) -> nn.ModuleList:
        """The parametrizations of the tensor; empty if it is plain."""
        everything = getattr(self.module, "parametrizations", {})
        own = everything[self.tensor_name] if self.tensor_name in everything else nn.ModuleList()
        assert isinstance(own, nn.ModuleList)
        return own

    @property
    def stored(self) -> Tensor:
        """The stored tensor: `tensor`, or the first parameter of its parametrization."""
        parts = self.parametrizations
        return next(parts.parameters()) if isinstance(parts, parametrize.ParametrizationList) else self.tensor

    @property
    def is_constant(self) -> bool:
        """Return whether training keeps the angles between neurons: they are fixed and rotated orthogonally."""
        parts = self.parametrizations
        return len(parts) == 1 and getattr(parts[0], "keeps_angles", False) is True

    @property
    def unwritable(self) -> str:
        """Why the tensor cannot be changed; empty if it can."""
        if is_quantized_tensor(self.tensor):
            return f"quantized ({type(self.tensor).__name__}): change the neurons first, then quantize"
        if self.tensor_name not in self.module._parameters and not len(self.parametrizations):
            return (
                f"computed before each forward pass, from {self.tensor_name}_orig if it is pruned: make it a parameter "
                f"with torch.nn.utils.prune.remove(layer, {self.tensor_name!r}) first"
            )
        return ""

    @property
    def dimension(self) -> int:
        """The dimension d of a neuron."""
        return self.layout.dimension(self.stored.shape)

    def matrix(self) -> Tensor:
        """Return the neurons (output channels) as rows: (groups, N, d), with LoRA; those FSDP2 sharded are gathered."""
        weight = read(self.module, self.tensor_name)
        if self.adapters is not None:
            weight = with_lora(dequantized(weight), self.adapters)
        return neuron_rows(weight, self.layout)

    def write(self, matrix: Tensor) -> None:
        """Replace the neurons by `matrix` (groups, N, d); a parametrized weight uses its right_inverse."""
        weight = self.tensor
        if self.unwritable:
            raise ValueError(f"{self.tensor_name} of {self.module} cannot be changed: it is {self.unwritable}")
        value = from_neuron_rows(matrix, weight.shape, self.layout)
        with torch.no_grad():
            if parametrize.is_parametrized(self.module, self.tensor_name):
                setattr(self.module, self.tensor_name, value.to(weight.dtype))
            else:
                write(weight, value)
