"""Keep the norm of every matrix, or of every neuron, under any optimizer (Hyperball, MuonSphere, nGPT).

Letters: W a weight, u the base optimizer's step divided by its learning rate, R the radius, N(x) = x/‖x‖.
"""

from __future__ import annotations

import math
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.optim import Optimizer

from .._internal import checks
from .._internal.checks import warn_once
from .._internal.nearest import explain_keywords
from .._internal.precision import accumulation_dtype, without_autocast
from .._internal.sharding import check_in_all, local_part, mesh_of
from ._kept_norms import Kept, measure, new_norms, norms_of
from ._shared import ParamGroup, keep_options, keep_precision, place_of

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
            got = f"the class {optimizer.__name__}" if isinstance(optimizer, type) else type(optimizer).__name__
            raise TypeError(
                f"optimizer must be a torch optimizer, such as torch.optim.AdamW(groups, lr=0.02), got {got}"
            )
        if isinstance(optimizer, Hyperball) or "_hyperball" in vars(optimizer):
            raise ValueError(f"optimizer must be new, got the {type(optimizer).__name__} of another Hyperball")
        if radius != "initial":
            checks.number("radius", radius, low=0.0, open_low=True, hint=' ("initial" is allowed too)')
        checks.choice("per", per, ("matrix", "neuron"))
        checks.choice("norm", norm, ("frobenius", "spectral"))
        if norm == "spectral" and per == "neuron":
            raise ValueError('norm="spectral" needs per="matrix", got per="neuron"')
        self.optimizer, self.radius, self.per, self.norm = optimizer, radius, per, norm
        self.neuron_dim = checks.integer("neuron_dim", neuron_dim)
        self._memory: dict[Any, Tensor] = {}
        self._optimizer_step_post_hooks = OrderedDict()  # own ones: they must see the weights on their spheres
        for number, group in enumerate(self.param_groups):
            self._mark(group, number)
        optimizer._hyperball = True  # type: ignore[attr-defined]

    # Groups, state and other hooks are the wrapped optimizer's: Optimizer.__init__ would make others.

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
        return self.__dict__ | {"_memory": {}, "_optimizer_step_post_hooks": OrderedDict()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    def __repr__(self) -> str:
        return f"Hyperball({self.optimizer!r})"

    def state_dict(self) -> dict[str, Any]:
        return self.optimizer.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        before = self.param_groups
        self.optimizer.load_state_dict(state_dict)
        keep_options(self.param_groups, before)  # what is not in a state of the wrapped optimizer alone
        keep_precision(self.optimizer, state_dict, ("radius",))

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.optimizer.zero_grad(set_to_none)

    def add_param_group(self, param_group: ParamGroup) -> None:
        self.optimizer.add_param_group(param_group)
        self._mark(self.param_groups[-1], len(self.param_groups) - 1)

    def _mark(self, group: ParamGroup, number: int) -> None:
        """Decide what is kept, and refuse what cannot be."""
        apart = group.get("name") == "rotations" or group.get("orthogonal") or group.get("rotated")
        apart = apart or not group.get("muon", True)  # what AdamW steps in MuonAdamW
        given = "hyperball" in group
        group.setdefault("hyperball", not apart and any(p.dim() > 1 for p in group["params"]))
        group.setdefault("neuron_dim", self.neuron_dim)
        checks.flag("hyperball", group["hyperball"])
        for i, p in enumerate(group["params"]):
            place = place_of(i, p, group, number)
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
        """Step the wrapped optimizer, then put the weights on their spheres; `closure` is passed on.

        Memory is passed over six times beside the wrapped step: copy W, subtract, ‖u‖, W − lr·R·N(u), its norm, scale.
        """
        loss = self._step(closure)
        for hook in self._optimizer_step_post_hooks.values():
            hook(self, (self, closure), {})
        return loss

    def _step(self, closure: Callable[[], float] | None) -> float | None:
        kept = [
            Kept(p, group, number, i, self._dims(p, group), here := local_part(p), accumulation_dtype(here.dtype))
            for number, group in enumerate(self.param_groups)
            if group["hyperball"]
            for i, p in enumerate(group["params"])
            if p.dim() > 1 and (p.grad is not None or closure is not None)
        ]
        for k in kept:
            if k.parameter.grad is not None and k.parameter.grad.is_sparse:
                raise ValueError(f"Hyperball needs dense gradients, got a sparse one for {k.place}")
        if not kept:
            return self.optimizer.step(closure)
        befores = [self._buffer((k.parameter, k.here.dtype), k.here) for k in kept]
        torch._foreach_copy_(befores, [k.here for k in kept])
        with without_autocast(kept[0].here):
            radii = self._radii(kept)
        loss = self.optimizer.step(closure)
        with without_autocast(kept[0].here):
            if all(k.is_plain for k in kept):
                self._put_one_by_one(kept, befores, radii)
            else:
                self._put(kept, befores, radii)
        for k, radius in zip(kept, radii, strict=True):
            # not before the step: optimizers make their states where there is none
            if k.parameter.grad is not None and "radius" not in self.state[k.parameter]:
                self.state[k.parameter]["radius"] = k.stored(radius)
        return loss

    def _dims(self, p: Tensor, group: ParamGroup) -> tuple[int, ...] | None:
        own = group["neuron_dim"] % p.dim() if self.per == "neuron" else None
        return None if self.norm == "spectral" else tuple(d for d in range(p.dim()) if d != own)

    def _buffer(self, key: Any, like: Tensor) -> Tensor:
        """Return memory like a tensor; on a CPU the same in every step: fresh pages would cost more than the copy."""
        buffer = self._memory.get(key) if like.is_cpu else None
        if buffer is None or buffer.stride() != like.stride() or buffer.shape != like.shape:
            buffer = torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=like.device)
            if like.is_cpu:
                self._memory[key] = buffer
        return buffer

    def _radii(self, kept: list[Kept]) -> list[Tensor]:
        """Return the radii; those of parameters at their first step are measured, and zeros refused."""
        radii = [self.state.get(k.parameter, {}).get("radius") for k in kept]
        new = [k for k, radius in zip(kept, radii, strict=True) if radius is None]
        norms = norms_of(new, (k.here.to(k.dtype) for k in new))

        def refuse_zeros() -> None:
            for k, norm in zip(new, norms, strict=True):
                if not bool((norm > 0).all()):
                    what = "a zero matrix" if self.per == "matrix" else f"{int((norm == 0).sum())} zero neurons"
                    raise ValueError(
                        f"Hyperball keeps norms, and has no direction for {what}, got {k.place}: initialize it, with a "
                        "learned gain behind it if its layer must start at zero, or give its group hyperball=False"
                    )

        if new:
            meshes = [mesh for k in new if (mesh := mesh_of(k.parameter)) is not None]
            check_in_all(refuse_zeros, norms[0], meshes[0] if meshes else None)
        if self.radius != "initial":
            norms = [torch.full_like(n, float(self.radius)) for n in norms]
        measured = iter(norms)
        return [next(measured) if radius is None else local_part(radius) for radius in radii]

    def _change(self, k: Kept, before: Tensor) -> Tensor:
        if before.dtype != k.dtype:
            return k.here.float().sub_(before)
        return torch.sub(k.here, before, out=self._buffer((before.dtype, before.shape), before))

    def _put_one_by_one(self, kept: list[Kept], befores: list[Tensor], radii: list[Tensor]) -> None:
        """Do what :meth:`_put` does, each matrix while it is in the cache of the CPU."""
        for k, before, radius in zip(kept, befores, radii, strict=True):
            length, lr = k.norm(self._change(k, before)), float(k.group["lr"])
            if not math.isfinite(length if length.numel() == 1 else length.sum()):
                length = k.norm(k.here.double().sub_(before))
                if not math.isfinite(total := float(length.sum())):
                    _put_back(kept, befores, k, total)
            if not lr or k.parameter.grad is None:
                k.here.copy_(before)
                continue
            torch.lerp(before, k.here, _ratio(radius * lr, length, _least(lr, length)), out=k.here)
            k.here.mul_(_ratio(radius, k.norm(k.here), torch.finfo(torch.float32).tiny))

    def _put(self, kept: list[Kept], befores: list[Tensor], radii: list[Tensor]) -> None:
        """Write R·N(W − lr·R·N(u)) into parameters that hold W_after."""
        rates, tiny = [float(k.group["lr"]) for k in kept], torch.finfo(torch.float32).tiny
        lengths, products, totals = measure(kept, befores, map(self._change, kept, befores))
        if not all(map(math.isfinite, totals)):  # a square overflowed, or a number is not finite
            changes = (k.here.double().sub_(b) for k, b in zip(kept, befores, strict=True))
            lengths, products, totals = measure(kept, befores, changes)
        for k, total in zip(kept, totals, strict=True):
            if not math.isfinite(total):
                _put_back(kept, befores, k, total)
        least = [_least(lr, n) for lr, n in zip(rates, lengths, strict=True)]
        factors = torch._foreach_div(torch._foreach_mul(radii, rates), torch._foreach_clamp_min(lengths, least))
        news = []
        for k, before, factor in zip(kept, befores, factors, strict=True):
            if before.dtype == k.dtype:
                news.append(torch.lerp(before, k.here, factor.to(k.dtype), out=k.here))
            else:
                news.append(before.to(k.dtype).lerp_(k.here.to(k.dtype), factor.to(k.dtype)))
        norms = torch._foreach_clamp_min(new_norms(kept, news, products, factors), tiny)
        torch._foreach_mul_(news, [x.to(n.dtype) for x, n in zip(torch._foreach_div(radii, norms), news, strict=True)])
        for k, before, new, lr in zip(kept, befores, news, rates, strict=True):
            if not lr or k.parameter.grad is None:  # torch.distributed.checkpoint makes states by a step with lr = 0
                k.here.copy_(before)
            elif new is not k.here:
                k.here.copy_(new)


def _least(lr: float, lengths: Tensor) -> float:
    return max(lr * _SMALLEST, torch.finfo(lengths.dtype).tiny)


def _ratio(radius: Tensor, length: Tensor, least: float) -> Any:
    """Return R/max(length, least), one of them as a number, which is faster."""
    if radius.numel() == 1:
        return float(radius) / max(float(length), least)
    return (radius / length.clamp_min(least)).to(radius.dtype)


def _put_back(kept: list[Kept], befores: list[Tensor], bad: Kept, length: float) -> NoReturn:
    for k, before in zip(kept, befores, strict=True):
        k.here.copy_(before)
    raise ValueError(
        f"Hyperball needs finite steps, got {length} for {bad.place}: its gradient or the optimizer's state is not "
        "finite; the matrices are as before the step"
    )
