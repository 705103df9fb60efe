"""The table of networks in the docs: sizes and costs, computed from the registry."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from hypersphere.models import create, names, preset
from hypersphere.models.decoder import Attention, TokenNetwork
from hypersphere.models.gcn import GCN
from hypersphere.models.pointnet import PointNet
from hypersphere.models.transformer import Transformer
from hypersphere.papers.gan_networks import Generator

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


@dataclass(frozen=True)
class Row:
    """One network; multiply-adds are those of one input."""

    name: str
    paper: str
    table: str
    input: str
    output: int
    parameters: int
    multiply_adds: int


def multiply_adds(model: nn.Module, *inputs: Tensor) -> int:
    """Count the multiply-adds of all convolutions, linear layers and attentions in one forward pass.

    Example:
        >>> multiply_adds(nn.Conv2d(3, 8, 3, padding=1), torch.empty(1, 3, 10, 10))  # 8 filters of 27, at 100 places
        21600
    """
    counts: list[int] = []

    def count(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
        if isinstance(module, nn.MultiheadAttention):  # its Linear is never called; plus scores and weighted sum
            batch, length, width = args[0].shape
            counts.append(batch * length * width * (4 * width + 2 * length))
        elif isinstance(module, Attention):  # scores and weighted sum; its Linears are called
            counts.append(2 * output.numel() * output.shape[1])
        elif isinstance(module, _TRANSPOSED):
            counts.append(args[0].numel() * module.weight[0].numel())
        elif isinstance(module, (nn.Linear, *_CONVOLUTIONS)):
            counts.append(output.numel() * module.weight[0].numel())

    handles = [module.register_forward_hook(count) for module in model.modules()]
    with torch.no_grad():
        model(*inputs)
    for handle in handles:
        handle.remove()
    return sum(counts)


def row(name: str) -> Row:
    """Build the table row of a network."""
    entry = preset(name)
    with torch.device("cpu" if entry.build is GCN else "meta"):  # sparse tensors do not work on meta
        model = create(name).eval()
        parameters = sum(parameter.numel() for parameter in model.parameters())
        description, inputs = _example_input(model)
        _skip_batch_norms(model)
        cost = multiply_adds(model, *inputs)
    output = getattr(model, "num_classes", 0) or getattr(model, "num_features", 0)
    return Row(name, entry.paper, entry.table, description, output, parameters, cost)


def _skip_batch_norms(model: nn.Module) -> None:
    """Replace BatchNorm by Identity: it has no multiply-adds, and on the meta device it takes most of the time."""
    for parent in [*model.modules()]:
        for name, child in parent.named_children():
            if isinstance(child, nn.modules.batchnorm._BatchNorm):
                setattr(parent, name, nn.Identity())


def _example_input(model: nn.Module) -> tuple[str, tuple[Tensor, ...]]:
    """Return one input as text and as tensors."""
    if isinstance(model, GCN):
        return f"a node, {model.in_features:,}", (torch.zeros(1, model.in_features), torch.zeros(1, 1))
    if isinstance(model, PointNet):
        return f"1,024 points, {model.in_channels}", (torch.zeros(1, 1024, model.in_channels),)
    if isinstance(model, Transformer | TokenNetwork):
        return f"{model.context} tokens", (torch.zeros(1, model.context, dtype=torch.long),)
    if isinstance(model, Generator):
        return f"noise, {model.latent}", (torch.zeros(1, model.latent),)
    shape = (model.in_channels, *model.input_size)
    return "×".join(map(str, shape)), (torch.zeros(1, *shape),)


def markdown() -> str:
    """Return the table of all registered networks."""
    lines = ["| name | paper | table | input | output | parameters | multiply-adds |", "|---|---|---|---|---|---|---|"]
    for network in map(row, names()):
        output = network.output or "image"
        cost = f"{network.multiply_adds / 1e6:,.2f} M"
        cells = (
            f"`{network.name}`",
            network.paper,
            network.table,
            network.input,
            output,
            f"{network.parameters:,}",
            cost,
        )
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines) + "\n"
