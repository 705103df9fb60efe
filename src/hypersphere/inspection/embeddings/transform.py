"""An affine map of directions that a file holds, for whoever has numpy and safetensors only."""

from __future__ import annotations

import os
from dataclasses import dataclass

from safetensors.torch import save
from torch import Tensor

from ..._internal import safe_files
from ...layers.cosine import unit


@dataclass(frozen=True, repr=False)
class Transform:
    """x ↦ (x/‖x‖ − mean)·matrixᵀ.

    Attributes:
        name: what it does, such as "centring".
        matrix, mean: (d', d) and (d,).

    Example:
        >>> import torch
        >>> Transform("centring", torch.eye(2), torch.tensor([0.5, 0.0]))(torch.tensor([[2.0, 0.0]]))
        tensor([[0.5000, 0.0000]])
    """

    name: str
    matrix: Tensor
    mean: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """Map rows (N, d) of any length."""
        return (unit(x) - self.mean) @ self.matrix.mT

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write `matrix` and `mean` to a .safetensors file."""
        tensors = {"matrix": self.matrix.contiguous(), "mean": self.mean.contiguous()}
        safe_files.write_bytes(path, save(tensors, {"format": "hypersphere transform 1", "name": self.name}))

    def __repr__(self) -> str:
        return f"Transform({self.name!r}, {self.matrix.shape[1]} → {self.matrix.shape[0]})"
