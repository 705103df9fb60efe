"""Build the optimizer of a config."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from .._internal import catalog
from ..neurons import select
from ..optim import OGD, Hyperball, MuonAdamW, Pion, RowSGD, param_groups
from .automatic import learning_rate
from .config import Config
from .config.values import AUTO
from .networks import Classifier
from .neurons import as_tuple, check_layers


def adamh(params: Any, lr: float, betas: tuple[float, float] = (0.9, 0.999)) -> Optimizer:
    """Adam on spheres: every matrix keeps its norm."""
    return Hyperball(torch.optim.Adam(params, lr=lr, betas=betas))


def muonh(params: Any, lr: float, momentum: float = 0.95, betas: tuple[float, float] = (0.9, 0.95)) -> Optimizer:
    """Muon on spheres: every matrix keeps its norm; Adam for the rest."""
    return Hyperball(MuonAdamW(params, lr, momentum, betas=betas))


# LBFGS needs a closure, SparseAdam sparse gradients; torch's Muon takes matrices only.
OPTIMIZERS: dict[str, Any] = {
    name.lower(): kind
    for name, kind in sorted(vars(torch.optim).items(), key=lambda pair: pair[0].lower())
    if isinstance(kind, type)
    and issubclass(kind, Optimizer)
    and name not in ("Optimizer", "LBFGS", "SparseAdam", "Muon")
} | {"ogd": OGD, "pion": Pion, "muon": MuonAdamW, "adamh": adamh, "muonh": muonh, "row_sgd": RowSGD}


def build_optimizer(module: nn.Module, config: Config) -> Optimizer:
    """Build the optimizer of a module; no weight decay on scale-invariant weights."""
    settings = config.optimizer
    uses_ogd = config.rotation is not None and config.rotation.method == "ogd"
    groups = param_groups(
        module,
        settings.weight_decay,
        ogd=uses_ogd,
        pion=settings.name == "pion",
        muon=settings.name in ("muon", "muonh"),
    )
    if not groups:
        raise ValueError("no parameters to train: every parameter is fixed")
    if settings.decay_layers:
        groups = _decay_only(module, groups, as_tuple(settings.decay_layers))
    name = "sgd" if settings.name == AUTO else settings.name
    taken = [key for key in catalog.OPTIMIZERS[name] if key != "weight_decay"]  # which is in the groups
    options = {k: getattr(settings, k) for k in taken if getattr(settings, k) is not None or k == "iterations"}
    if name == "sgd":
        options = {"momentum": 0.9} | options
    options["lr"] = learning_rate(config) if settings.lr == AUTO else settings.lr
    optimizer: Optimizer = OPTIMIZERS[name](groups, **options)
    return optimizer


def _decay_only(module: nn.Module, groups: list[dict[str, Any]], names: tuple[str, ...]) -> list[dict[str, Any]]:
    """Split the groups that decay: only the layers named so still do."""
    body = module.network if isinstance(module, Classifier) else module
    check_layers(body, None, {"optimizer.decay_layers": names})
    chosen: set[Tensor] = {p for neurons in select(body, names).values() for p in neurons.module.parameters()}
    split = []
    for group in groups:
        decaying = [p for p in group["params"] if group["weight_decay"] and p in chosen]
        rest = [p for p in group["params"] if not group["weight_decay"] or p not in chosen]
        for params, decay in ((decaying, group["weight_decay"]), (rest, 0.0)):
            if params:
                split.append({**group, "params": params, "weight_decay": decay})
    return split
