"""Map weights of all layouts to neurons as rows, and find the layout of a layer.

Shapes: G groups, N neurons in each, d the dimension of a neuron.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize

from .._internal.quantized import dequantized

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
EXPERTS = ("gate_up_proj", "down_proj")
ATTENTION = ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight")  # of nn.MultiheadAttention
EMBEDDING, RECURRENT = "an embedding", "a recurrent layer"  # why a layer is passed over
# Names of a Linear that computes query, key and value one after the other. Not query_key_value and qkv_proj: some
# networks compute them head by head under these names.
FUSED = ("qkv", "Wqkv", "to_qkv", "in_proj", "c_attn", "att_proj")


@dataclass(frozen=True)
class Layout:
    """How a weight holds its neurons; :func:`neuron_rows` reads them as (groups·parts, N, d).

    Args:
        groups: the groups of a convolution, or the number of stacked experts.
        parts: fused layers that follow each other along the outputs: 3 for query, key and value.
        transposed: inputs come before outputs, as in transposed convolutions and the Conv1D of transformers.
        stacked: dimension 0 is that of the groups: (experts, outputs, inputs), or (experts, inputs, outputs).

    Example:
        >>> import torch
        >>> neuron_rows(torch.zeros(6, 5), Layout()).shape  # nn.Linear(5, 6)
        torch.Size([1, 6, 5])
        >>> neuron_rows(torch.zeros(5, 6), Layout(transposed=True, parts=3)).shape
        torch.Size([3, 2, 5])
        >>> neuron_rows(torch.zeros(4, 6, 5), Layout(groups=4, stacked=True)).shape
        torch.Size([4, 6, 5])
    """

    groups: int = 1
    parts: int = 1
    transposed: bool = False
    stacked: bool = False

    @property
    def transposed_groups(self) -> int | None:
        """The groups if inputs come before outputs, else None."""
        return self.groups if self.transposed else None

    @property
    def for_rotation(self) -> Layout:
        """The layout without the groups along the outputs, which share one rotation."""
        return replace(self, groups=self.groups if self.transposed else 1, parts=1)

    def dimension(self, shape: tuple[int, ...]) -> int:
        """Return d for a weight of this shape."""
        inputs = shape[int(self.stacked) + (not self.transposed) :]
        if not self.transposed:
            return math.prod(inputs)
        return inputs[0] // (1 if self.stacked else self.groups) * self.kernel_size(shape)

    def kernel_size(self, shape: tuple[int, ...]) -> int:
        """Return the number of elements of one channel."""
        return math.prod(shape[2 + int(self.stacked) :])


def neuron_rows(weight: Tensor, layout: Layout) -> Tensor:
    """Reshape a weight to its neurons as rows (groups·parts, N, d)."""
    weight = dequantized(weight)
    flat = weight.flatten(0, 1) if layout.stacked else weight
    rows = flat.unflatten(0, (layout.groups, -1))
    rows = (rows.transpose(1, 2) if layout.transposed else rows).flatten(2)
    return rows.reshape(layout.groups * layout.parts, -1, rows.shape[2]) if layout.parts > 1 else rows


def from_neuron_rows(rows: Tensor, shape: tuple[int, ...], layout: Layout) -> Tensor:
    """Invert :func:`neuron_rows`: return the weight of this shape."""
    if not layout.transposed:
        return rows.reshape(shape)
    kernel = shape[2 + int(layout.stacked) :]
    rows = rows.reshape(layout.groups, -1, rows.shape[-1])
    return rows.unflatten(2, (-1, *kernel)).transpose(1, 2).reshape(shape)


def find_layout(module: nn.Module, tensor_name: str, name: str = "", parent: nn.Module | None = None) -> Layout:
    """Return the layout of a module's weight; its name and its parent tell a fused query, key and value."""
    if isinstance(module, nn.MultiheadAttention):
        return Layout(parts=3) if tensor_name == "in_proj_weight" else Layout()
    if isinstance(module, TRANSPOSED):
        return Layout(groups=module.groups, transposed=True)
    if isinstance(module, CONVOLUTIONS):
        return Layout(groups=module.groups)
    if isinstance(module, nn.Linear):
        shape: tuple[int, ...] = (module.out_features, module.in_features)
        return Layout(parts=fused_parts(name, shape, parent))
    if is_transformers_conv1d(module):
        shape = stored_shape(module, tensor_name)[::-1]
        return Layout(parts=fused_parts(name, shape, parent), transposed=True)
    if getattr(module, "subcenters", 1) > 1:  # a loss head's (classes, sub-centers, d): all are neurons of one group
        return Layout(stacked=True)
    return find_experts(module).get(tensor_name, Layout())


def fused_parts(name: str, shape: tuple[int, ...], parent: nn.Module | None = None) -> int:
    """Return 3 if a Linear of this name and shape (outputs, inputs) computes query, key and value, else 1.

    Networks that compute them head by head say so by ``head_first``.
    """
    in_order = not getattr(parent, "head_first", False)
    fused = len(shape) == 2 and shape[0] == 3 * shape[1] and name.rpartition(".")[2] in FUSED
    return 3 if fused and in_order else 1


def is_transformers_conv1d(module: nn.Module) -> bool:
    """Return whether the module is transformers' Conv1D: a Linear with its weight as (inputs, outputs)."""
    return any(
        cls.__name__ == "Conv1D" and cls.__module__.partition(".")[0] == "transformers" for cls in type(module).__mro__
    )


def is_linear(module: nn.Module) -> bool:
    """Return whether the module is an nn.Linear, or a class of this name and form that does not inherit from it.

    torch_geometric has one, others too: a weight (outputs, inputs), as its own attributes say.
    """
    if isinstance(module, nn.Linear):
        return True
    if "linear" not in type(module).__name__.lower():
        return False
    sizes = [(getattr(module, f"out_{of}", None), getattr(module, f"in_{of}", None)) for of in ("features", "channels")]
    weight = module._parameters.get("weight")
    return (weight is not None and is_lazy(weight)) or stored_shape(module, "weight") in sizes


def find_experts(module: nn.Module) -> dict[str, Layout]:
    """Return the layouts of the stacked weights of a mixture of experts (of transformers) by name; {} for others."""
    kind = type(module).__name__
    names = ("weight",) if kind.endswith("ParallelExperts") else EXPERTS if kind.endswith("Experts") else ()
    return expert_layouts({name: stored_shape(module, name) for name in names})


def expert_layouts(shapes: dict[str, tuple[int, ...]]) -> dict[str, Layout]:
    """Return the layouts of stacked weights by name, from their shapes; {} if these are not those of experts.

    Both projections are (experts, outputs, inputs), or both are (experts, inputs, outputs): only one of them fits.
    """
    weight, up, down = (shapes.get(name, ()) for name in ("weight", *EXPERTS))
    if len(weight) == 3:
        return {"weight": Layout(groups=weight[0], stacked=True)}
    if len(up) != 3 or len(down) != 3 or up[0] != down[0]:
        return {}
    for transposed in (False, True):
        (hidden, inputs), (outputs, inner) = (up[:0:-1], down[:0:-1]) if transposed else (up[1:], down[1:])
        if hidden == 2 * inner and inputs == outputs:
            return dict.fromkeys(EXPERTS, Layout(groups=up[0], transposed=transposed, stacked=True))
    return {}


def stored_shape(module: nn.Module, tensor_name: str) -> tuple[int, ...]:
    """Return the shape of a parameter without evaluating a parametrization; () if there is none."""
    parameter = module._parameters.get(tensor_name)
    if parameter is None and parametrize.is_parametrized(module, tensor_name):
        parameter = getattr(module.parametrizations[tensor_name], "original", None)  # type: ignore[index]
    return () if parameter is None or is_lazy(parameter) else tuple(parameter.shape)
