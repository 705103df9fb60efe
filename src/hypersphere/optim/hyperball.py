"""Keep the norm of every matrix, or of every neuron, under any optimizer (Hyperball, MuonSphere, nGPT).

Letters: W a weight, u the base optimizer's step divided by its learning rate, R the radius, N(x) = x/‖x‖.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from .._internal import checks
from .._internal.checks import warn_once
from .._internal.nearest import explain_keywords
from .._internal.precision import accumulation_dtype, without_autocast
from .._internal.sharding import is_sharded
from ._shared import ParamGroup, keep_precision, place_of

_SMALLEST = 1e-10  # of ‖u‖: below it steps become shorter


class Hyperball(Optimizer):
    """Wrap an optimizer so that weights stay on a sphere, where the learning rate alone is the angle of a step.

        W ← R·N(W − lr·R·N(u)),   u = (W_before − W_after)/lr of the wrapped optimizer's step

    The radius is that of the weights at their first step. Only the direction of u counts, so the wrapped optimizer's
    own scale has no effect, and no weight decay is needed: what there is only shortens u, and is warned of.

    A group with ``hyperball=True`` or ``False`` says whether its parameters are kept; without, those with two
    dimensions or more are, but not rotations, and not what OGD or Pion keep. Embeddings and outputs count as matrices,
    but not around :class:`hypersphere.optim.MuonAdamW`, where only the groups with ``muon=True`` do.
    All other parameters are stepped by the wrapped optimizer, with the same `lr`.

    `param_groups` and `state` are the wrapped optimizer's own: schedules, clipping and GradScaler work on this one;
    a state_dict holds the radii too.

    Args:
        optimizer: any torch optimizer, for example AdamW(..., weight_decay=0), SGD or Muon.
        radius: "initial" or a number, the norm that all have from the first step on.
        per: "matrix", or "neuron": every slice along `neuron_dim` has its own norm, as in nGPT.
        neuron_dim: the dimension that counts neurons; 1 for the output projections of nGPT, whose columns are kept. A
            group may have its own.
        norm: "frobenius" or, per matrix, "spectral": the largest singular value, as in MuonSphere. It takes two
            factorizations of every matrix a step.

    Example:
        >>> net = torch.nn.Linear(8, 4)
        >>> before = net.weight.norm()
        >>> optimizer = Hyperball(torch.optim.AdamW(net.parameters(), lr=0.02, weight_decay=0.0))
        >>> for _ in range(10):
        ...     optimizer.zero_grad()
        ...     net(torch.randn(2, 8)).square().sum().backward()
        ...     optimizer.step()
        >>> bool((net.weight.norm() / before - 1).abs() < 1e-6)
        True
    """

    @explain_keywords
    def __init__(
        self,
        optimizer: Optimizer,
        radius: str | float = "initial",
        per: str = "matrix",
        neuron_dim: int = 0,
        norm: str = "frobenius",
    ) -> None:
        if not isinstance(optimizer, Optimizer):
            raise TypeError(f"optimizer must be a torch optimizer, got {type(optimizer).__name__}")
        if radius != "initial":
            checks.number("radius", radius, low=0.0, open_low=True, hint=' (or "initial")')
        checks.choice("per", per, ("matrix", "neuron"))
        checks.choice("norm", norm, ("frobenius", "spectral"))
        if norm == "spectral" and per == "neuron":
            raise ValueError('norm="spectral" needs per="matrix", got per="neuron"')
        self.optimizer, self.radius, self.per, self.norm = optimizer, radius, per, norm
        self.neuron_dim = checks.integer("neuron_dim", neuron_dim)
        for group in self.param_groups:
            self._mark(group)

    # Hooks, groups and state are the wrapped optimizer's: Optimizer.__init__ would make others.

    @property
    def param_groups(self) -> list[ParamGroup]:  # type: ignore[override]
        return self.optimizer.param_groups

    @property
    def state(self) -> defaultdict[Tensor, Any]:  # type: ignore[override]
        return self.optimizer.state

    @property
    def defaults(self) -> dict[str, Any]:  # type: ignore[override]
        return self.optimizer.defaults

    _step_supports_amp_scaling = False  # GradScaler unscales before the step

    def __getattr__(self, name: str) -> Any:
        if name == "optimizer":  # not there yet: it is copied or unpickled
            raise AttributeError(name)
        return getattr(self.optimizer, name)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    def __repr__(self) -> str:
        return f"Hyperball({self.optimizer!r})"

    def state_dict(self) -> dict[str, Any]:
        return self.optimizer.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.optimizer.load_state_dict(state_dict)
        keep_precision(self.optimizer, state_dict, ("radius",))

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.optimizer.zero_grad(set_to_none)

    def add_param_group(self, param_group: ParamGroup) -> None:
        self.optimizer.add_param_group(param_group)
        self._mark(self.param_groups[-1])

    def _mark(self, group: ParamGroup) -> None:
        """Decide what is kept, and refuse what cannot be."""
        apart = group.get("name") == "rotations" or group.get("orthogonal") or group.get("rotated")
        apart = apart or not group.get("muon", True)  # what AdamW steps in MuonAdamW
        given = "hyperball" in group
        group.setdefault("hyperball", not apart and any(p.dim() > 1 for p in group["params"]))
        group.setdefault("neuron_dim", self.neuron_dim)
        checks.flag("hyperball", group["hyperball"])
        for i, p in enumerate(group["params"]):
            place = place_of(i, p, group)
            if is_sharded(p):
                raise ValueError(f"Hyperball cannot step sharded parameters (DTensor, FSDP2) yet, got {place}")
            if not group["hyperball"] or (p.dim() < 2 and not given):
                continue
            if not p.is_floating_point():
                raise TypeError(f"Hyperball needs real floating point parameters, got {p.dtype} in {place}")
            if p.dim() < 2 or not p.numel():
                raise ValueError(
                    f"a group with hyperball=True must hold matrices of two dimensions or more, got {place}"
                )
            if not -p.dim() <= group["neuron_dim"] < p.dim():
                raise ValueError(
                    f"neuron_dim must be a dimension of every matrix, got {group['neuron_dim']} for {place}"
                )
        if group["hyperball"] and group.get("weight_decay"):
            warn_once(
                f"weight decay {group['weight_decay']:g} has no use under Hyperball, which keeps the norm: set it to 0 "
                "in groups with matrices"
            )

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Step the wrapped optimizer, then put the weights on their spheres; `closure` is passed on."""
        kept = [
            (p, group, place_of(i, p, group, number))
            for number, group in enumerate(self.param_groups)
            if group["hyperball"]
            for i, p in enumerate(group["params"])
            if p.dim() > 1 and (p.grad is not None or closure is not None)
        ]
        for p, _, place in kept:
            if p.grad is not None and p.grad.is_sparse:
                raise ValueError(f"Hyperball needs dense gradients, got a sparse one for {place}")
        befores = [p.clone() for p, _, _ in kept]
        radii = self._radii(kept)
        loss = self.optimizer.step(closure)
        moved = [p if p.dtype == accumulation_dtype(p.dtype) else p.float() for p, _, _ in kept]
        lengths = [
            self._norm(after - before, group) for after, before, (_, group, _) in zip(moved, befores, kept, strict=True)
        ]
        for i, finite in enumerate(_all_finite(lengths)):
            if not finite:  # a square overflowed, or the gradient is NaN
                change, group = moved[i] - befores[i], kept[i][1]
                largest = change.abs().amax()
                if not bool(largest.isfinite()):
                    for (p, _, _), before in zip(kept, befores, strict=True):
                        p.copy_(before)
                    raise ValueError(
                        f"Hyperball needs finite steps, got {largest.item()} for {kept[i][2]}: its gradient or the "
                        "optimizer's state is not finite; the matrices are as before the step"
                    )
                lengths[i] = self._norm(change / largest, group) * largest
        for (p, group, _), before, radius, length in zip(kept, befores, radii, lengths, strict=True):
            if p.grad is None:
                continue
            self.state[p]["radius"] = radius
            with without_autocast(p):
                _put(p, before, radius, length, group["lr"], lambda x, group=group: self._norm(x, group))  # type: ignore[misc]
        return loss

    def _norm(self, x: Tensor, group: ParamGroup) -> Tensor:
        if self.norm == "spectral":
            return torch.linalg.matrix_norm(x.flatten(1), 2).reshape([1] * x.dim())
        own = group["neuron_dim"] % x.dim()
        dims = [d for d in range(x.dim()) if self.per == "matrix" or d != own]
        return torch.linalg.vector_norm(x, dim=dims, keepdim=True)

    def _radii(self, kept: list[tuple[Tensor, ParamGroup, str]]) -> list[Tensor]:
        """Return the radii; those of parameters at their first step are measured, and zeros refused."""
        radii = []
        for p, group, place in kept:
            radius = self.state[p].get("radius") if p in self.state else None
            if radius is None:
                radius = self._norm(p.to(accumulation_dtype(p.dtype)), group)
                if not bool((radius > 0).all()):
                    what = "a zero matrix" if self.per == "matrix" else f"{int((radius == 0).sum())} zero neurons"
                    raise ValueError(
                        f"Hyperball keeps norms, and has no direction for {what}, got {place}: initialize it, with a "
                        "learned gain behind it if its layer must start at zero, or give its group hyperball=False"
                    )
                if self.radius != "initial":
                    radius = torch.full_like(radius, float(self.radius))
            radii.append(radius)
        return radii


def _put(
    p: Tensor, before: Tensor, radius: Tensor, length: Tensor, lr: float | Tensor, norm: Callable[[Tensor], Tensor]
) -> None:
    """Write R·N(W − lr·R·N(u)) into a parameter that holds W_after; `length` is ‖W_before − W_after‖."""
    smallest = torch.as_tensor(lr, dtype=length.dtype, device=length.device) * _SMALLEST
    factor = radius * lr / torch.maximum(length, smallest).clamp_min_(torch.finfo(length.dtype).tiny)
    if p.dtype != factor.dtype:
        new = before.to(factor.dtype).lerp_(p.to(factor.dtype), factor.expand(p.shape))
        p.copy_(new.mul_(radius / norm(new)))
        return
    torch.lerp(before, p, factor, out=p)
    p.mul_(radius / norm(p).clamp_min_(torch.finfo(length.dtype).tiny))


def _all_finite(lengths: list[Tensor]) -> list[bool]:
    """Return whether every one is finite, by one synchronization."""
    if not lengths:
        return []
    return torch.stack([x.sum().to(lengths[0].device).isfinite() for x in lengths]).tolist()
