"""Parameter groups for any optimizer."""

from __future__ import annotations

from dataclasses import asdict

from torch import nn
from torch.optim import Optimizer

from .._internal import checks
from .._internal.global_hooks import OptimizerCheck
from .._internal.nearest import explain_keywords
from ..layers.sphere import SphereOptions
from ..neurons import Layout, head_layouts, is_loss_head, select
from ..rotation.parametrization import find_rotated
from ._shared import ParamGroup
from .ogd import OGD
from .pion import Pion


class _Own(float):
    """A default of 0.0 that differs from a 0.0 that was given."""


_OWN = _Own(0.0)
_NORMS = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)


@explain_keywords
def param_groups(
    model: nn.Module,
    weight_decay: float = _OWN,
    *,
    ogd: bool = False,
    pion: bool = False,
    muon: bool = False,
    split_heads: bool = False,
) -> list[ParamGroup]:
    """Make parameter groups for any torch optimizer, without weight decay on scale-invariant weights.

    ==========  ======  ==========================================================================================
    name        decays  parameters
    ==========  ======  ==========================================================================================
    weights     yes     all other parameters; also the learned neurons of rotated layers
    no_decay    no      biases, norms, k, scale, centres, the weights of sphere layers and angular losses, whose length
                        does not matter (SphereNet, 2.4)
    rotations   yes     the rotations of rotated layers (OPT, App. D)
    orthogonal  no      the matrices of method "ogd", only for :class:`hypersphere.OGD`; with ``orthogonal=True``
    matrices    no      with `pion`: the weights that :func:`hypersphere.select` finds, without the output, only for
                        :class:`hypersphere.Pion`; with ``rotated=True``, one group for every layout (fused queries,
                        keys and values, groups of a convolution)
    matrices    yes     with `muon`: the same weights, for :class:`hypersphere.optim.MuonAdamW`; with ``muon=True``
    ==========  ======  ==========================================================================================

    Empty groups, frozen parameters and the fixed neurons of rotated layers are left out, even after
    ``model.requires_grad_(True)``.

    Args:
        model: the network.
        weight_decay: of the groups that decay. Without it the optimizer's own holds: 0 in SGD and Adam, 0.01 in AdamW.
        ogd: make the group "orthogonal". Without it, a model with such matrices is an error, because other optimizers
            would not keep them orthogonal; with it, optimizers other than OGD refuse the group.
        pion: make the groups "matrices" for Pion. Other optimizers refuse them.
        muon: make the groups "matrices" for MuonAdamW.
        split_heads: with `pion` or `muon`, step every head of queries, keys and values apart. Pion then has an input
            rotation for each: better losses, more memory and time (docs/optimizers.md). The attention module must tell
            the size or the number of its heads, as those of torch, timm and transformers do.

    Example:
        >>> import torch, hypersphere as hs
        >>> net = nn.Sequential(hs.SphereLinear(64, 32), nn.ReLU(), nn.Linear(32, 10))
        >>> optimizer = torch.optim.SGD(param_groups(net, weight_decay=5e-4), lr=0.1)
        >>> [(g["name"], g["weight_decay"], len(g["params"])) for g in optimizer.param_groups]
        [('weights', 0.0005, 1), ('no_decay', 0.0, 3)]
        >>> optimizer = torch.optim.AdamW(param_groups(net), lr=0.001, weight_decay=0.01)
        >>> [(g["name"], g["weight_decay"]) for g in optimizer.param_groups]
        [('weights', 0.01), ('no_decay', 0.0)]
        >>> optimizer = hs.OGD(param_groups(hs.rotate(net, "ogd"), weight_decay=5e-4, ogd=True), lr=0.1)
        >>> [(g["name"], g["weight_decay"], len(g["params"])) for g in optimizer.param_groups]
        [('weights', 0.0005, 1), ('no_decay', 0.0, 2), ('orthogonal', 0.0, 1)]
    """
    checks.module("model", model)
    decay: ParamGroup = {}
    if weight_decay is not _OWN:
        decay = {"weight_decay": checks.number("weight_decay", weight_decay, low=0.0)}
    checks.flag("ogd", ogd)
    checks.flag("pion", pion)
    checks.flag("muon", muon)
    if pion and muon:
        raise ValueError("pion and muon both make the groups of matrices: give one")
    if checks.flag("split_heads", split_heads) and not (pion or muon):
        raise ValueError("split_heads has no effect without pion=True or muon=True")
    no_decay = {
        parameter
        for module in model.modules()
        if isinstance(module, (SphereOptions, *_NORMS)) or is_loss_head(module)
        for name, parameter in module.named_parameters()
        if not name.startswith("weight_hr")  # the projection of an LSTM is plain
    }
    rotated = list(find_rotated(model))
    methods = {p: weight.rotation.plan.method for weight in rotated for p in weight.rotation.task.rotations.values()}
    # never trained: fixed neurons, and the rotations of inactive tasks
    fixed = {weight.neurons for weight in rotated if not weight.rotation.learned and not weight.is_frozen}
    fixed |= {p for weight in rotated for p in weight.rotation.parameters()} - {
        p for weight in rotated for p in weight.rotation.task.parameters()
    }
    matrices = _matrices(model, split_heads) if pion or muon else {}
    by_layout: dict[Layout, list[nn.Parameter]] = {}
    groups: dict[str, list[nn.Parameter]] = {"weights": [], "no_decay": [], "rotations": [], "orthogonal": []}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad or parameter in fixed:
            continue
        if parameter in matrices:
            by_layout.setdefault(matrices[parameter], []).append(parameter)
            continue
        if parameter in methods:
            group = "orthogonal" if methods[parameter] == "ogd" else "rotations"
        elif parameter in no_decay or name.rpartition(".")[2].startswith(("bias", "centers")) or parameter.dim() < 2:
            group = "no_decay"
        else:
            group = "weights"
        groups[group].append(parameter)
    if groups["orthogonal"] and not ogd:
        raise ValueError(
            'the model has matrices of method "ogd", which only OGD keeps orthogonal: use '
            "param_groups(model, ogd=True) with hypersphere.OGD"
        )
    if groups["orthogonal"] or (pion and by_layout):
        _MARKED.recheck()
    options: dict[str, ParamGroup] = {
        "weights": decay,
        "no_decay": {"weight_decay": 0.0},
        "rotations": decay,
        "orthogonal": {"weight_decay": 0.0, "orthogonal": True},
    }
    of_matrices: ParamGroup = {"rotated": True, "weight_decay": 0.0} if pion else {"muon": True, **decay}
    return [{"params": params, "name": name, **options[name]} for name, params in groups.items() if params] + [
        {"params": params, "name": "matrices", **of_matrices, "layout": asdict(layout)}
        for layout, params in by_layout.items()
    ]


def _matrices(model: nn.Module, split_heads: bool) -> dict[nn.Parameter, Layout]:
    """Return the matrices that Pion or Muon step and their layouts, without what an output or an embedding shares."""
    selection = select(model)
    others = {n.tensor for n in selection.values() if n.is_output and not len(n.parametrizations)}
    others |= {p for m in model.modules() if isinstance(m, nn.Embedding | nn.EmbeddingBag) for p in m.parameters()}
    of_heads = head_layouts(model, selection) if split_heads else {}
    return {
        n.tensor: of_heads.get(name, n.layout)
        for name, n in selection.items()
        if not len(n.parametrizations) and isinstance(n.tensor, nn.Parameter) and n.tensor not in others
    }


def _refuse_marked(optimizer: Optimizer, _: list[nn.Module]) -> None:
    """Raise if an optimizer holds a group that only OGD or Pion steps as it must be."""
    kind = type(getattr(optimizer, "optim", optimizer))  # ZeroRedundancyOptimizer wraps one
    for i, group in enumerate(optimizer.param_groups):
        for mark, owner, keeps in (("orthogonal", OGD, "orthogonal"), ("rotated", Pion, "with their singular values")):
            if group.get(mark) and not issubclass(kind, owner):
                raise ValueError(
                    f"{type(optimizer).__name__} would not keep the matrices of group {group.get('name', i)!r} {keeps}:"
                    f" use hypersphere.{owner.__name__}(param_groups(model, {owner.__name__.lower()}=True))"
                )


_MARKED = OptimizerCheck(_refuse_marked)
