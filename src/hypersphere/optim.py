"""Parameter groups for any optimizer."""

from __future__ import annotations

from typing import Any

from torch import nn

from . import _checks
from .layers import SphereOptions
from .selection import is_loss_head

_NORMS = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)


def param_groups(model: nn.Module, weight_decay: float = 0.0) -> list[dict[str, Any]]:
    """Groups for any torch optimizer, with weight decay only where it means something.

    "no_decay" holds biases, norms, k, scale, and the weights of sphere layers and angular losses, whose length does
    not matter (SphereNet, 2.4); "weights" holds the rest. Frozen parameters are left out.

    Example:
        >>> import torch, hypersphere as hs
        >>> net = nn.Sequential(hs.SphereLinear(64, 32), nn.ReLU(), nn.Linear(32, 10))
        >>> optimizer = torch.optim.SGD(param_groups(net, weight_decay=5e-4), lr=0.1)
        >>> [(g["name"], g["weight_decay"], len(g["params"])) for g in optimizer.param_groups]
        [('weights', 0.0005, 1), ('no_decay', 0.0, 3)]
    """
    _checks.module("model", model)
    decay = _checks.number("weight_decay", weight_decay, low=0.0)
    no_decay = {
        parameter
        for module in model.modules()
        if isinstance(module, (SphereOptions, *_NORMS)) or is_loss_head(module)
        for name, parameter in module.named_parameters()
        if not name.startswith("weight_hr")  # the projection of an LSTM is plain
    }
    groups: dict[str, list[nn.Parameter]] = {"weights": [], "no_decay": []}
    for name, parameter in model.named_parameters():
        is_bias = name.rpartition(".")[2].startswith("bias")
        if parameter.requires_grad:
            keeps = parameter in no_decay or is_bias or parameter.dim() < 2
            groups["no_decay" if keeps else "weights"].append(parameter)
    decays = {"weights": decay, "no_decay": 0.0}
    return [{"params": params, "name": name, "weight_decay": decays[name]} for name, params in groups.items() if params]
