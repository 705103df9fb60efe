"""Gradient descent that keeps matrices orthogonal (OPT, 3.5), with SGD or Adam for all other parameters.

Letters: X (..., m, m) orthogonal matrices, G their gradient, M the momentum, W skew-symmetric, λ the step.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT
from torch.optim.sgd import sgd

from .._internal import checks
from .._internal.nearest import explain_keywords
from .._internal.owners import put, whole
from .._internal.precision import accumulation_dtype, without_autocast
from .._internal.sharding import gather
from ._shared import MarkedOptimizer, ParamGroup, adam_step, check_rates, collect_states, refuse_sparse, shard_states

_FAR_FROM_ORTHOGONAL = 2e-2  # max|XᵀX − I|; beyond it the series may not converge. bfloat16 rounds to 6e-3


class OGD(MarkedOptimizer):
    """Orthogonality-preserving gradient descent (OPT, 3.5) for groups with ``orthogonal=True``.

        M ← μM − G,   Ŵ = MXᵀ − ½X(XᵀMXᵀ),   W = Ŵ − Ŵᵀ,   M ← WX,   λ = min(lr, 1/(‖W‖_F + 10⁻⁸))
        X ← (I − λ/2·W)⁻¹(I + λ/2·W)X        (Eq. 3), or a few of its fixed-point iterations (Eq. 4)

    with one λ per block, then a re-orthogonalization: max|XᵀX − I| stays below 1e-6 in float32, for any lr and any
    number of steps (with full float32 products, not TF32).
    :func:`hypersphere.param_groups` with ``ogd=True`` makes the groups. Other groups are stepped exactly as by
    torch.optim.SGD or torch.optim.Adam, so one optimizer and one schedule are enough. Of matrices that FSDP2 has
    sharded each is stepped by one process.

    Args:
        params: parameters or groups. Those with ``orthogonal=True`` hold orthogonal matrices (..., m, m).
        lr: the learning rate; a group may have its own (the paper's code: 0.02 for the matrices, 0.1 for the rest).
        momentum: μ in [0, 1).
        weight_decay: of the other groups; orthogonal groups ignore it, as ‖X‖ is constant.
        iterations: the number n of fixed-point iterations, with error O(λⁿ⁺²); None: exact, by a linear solve.
        rest: "sgd" (with `momentum`) or "adam" (with `betas`), for the other groups.

    Example:
        >>> x = torch.nn.Parameter(torch.eye(3))
        >>> bias = torch.nn.Parameter(torch.zeros(3))
        >>> optimizer = OGD([{"params": [x], "orthogonal": True}, {"params": [bias]}], lr=0.1)
        >>> for _ in range(100):
        ...     optimizer.zero_grad()
        ...     loss = (x @ torch.tensor([1.0, 0.0, 0.0]) + bias - torch.tensor([0.0, 1.0, 0.0])).square().sum()
        ...     loss.backward()
        ...     optimizer.step()
        >>> bool(loss < 1e-3), bool((x.mT @ x - torch.eye(3)).abs().max() < 1e-6)
        (True, True)
    """

    mark = "orthogonal"

    @explain_keywords
    def __init__(
        self,
        params: ParamsT,
        lr: float,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        iterations: int | None = 2,
        rest: str = "sgd",
        betas: tuple[float, float] = (0.9, 0.999),
    ) -> None:
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "weight_decay": weight_decay,
            "iterations": iterations,
            "rest": rest,
            "betas": betas,
            "orthogonal": False,
        }
        _check_options(defaults)
        super().__init__(params, defaults)
        self._warn_if_unmarked("Adam" if rest == "adam" else "SGD", ', after hypersphere.rotate(model, "ogd")')

    def _check(self, group: ParamGroup, number: int) -> None:
        _check_options(group)
        for parameter in group["params"] if group["orthogonal"] else ():
            _check_orthogonal(parameter)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        collect_states(self, ("momentum_buffer",), self._splits())

    def state_dict(self) -> dict[str, Any]:
        """Return the state; of sharded matrices as DTensors, which all processes must ask for."""
        return shard_states(self, super().state_dict(), ("momentum_buffer",), self._splits())

    def _step(self) -> None:
        for number, group in enumerate(self.param_groups):
            if group["orthogonal"] or group["rest"] == "adam":
                refuse_sparse(self, number)
            if group["orthogonal"]:
                continue
            if group["rest"] == "adam":
                adam_step(self.state, group)
            else:
                self._step_sgd(group)
        self._step_orthogonal()

    def _step_sgd(self, group: ParamGroup) -> None:
        params = [p for p in group["params"] if p.grad is not None]
        momentum = group["momentum"]
        buffers = [self.state[p].get("momentum_buffer") for p in params] if momentum else []
        sgd(
            params,
            [p.grad for p in params],
            buffers,
            has_sparse_grad=any(p.grad.is_sparse for p in params),
            weight_decay=group["weight_decay"],
            momentum=momentum,
            lr=group["lr"],
            dampening=0.0,
            nesterov=False,
            maximize=False,
        )
        if momentum:
            for p, buffer in zip(params, buffers, strict=True):
                self.state[p]["momentum_buffer"] = buffer

    def _step_orthogonal(self) -> None:
        stepped, splits = self._marked(), self._splits()
        params = [p for p, _ in stepped]
        xs = whole(params, (p.detach() for p in params), splits)
        grads = whole(params, (p.grad for p in params), splits)
        for i, (p, group) in enumerate(stepped):
            x, grad = xs[i], grads[i]
            if x is not None and grad is not None:
                xs[i] = self._turn(p, x, grad, group)
            elif group["momentum"]:
                self.state[p]["momentum_buffer"] = torch.empty(p.shape, dtype=p.dtype, device="meta")
        put(params, xs, splits)

    def _turn(self, parameter: Tensor, x: Tensor, grad: Tensor, group: ParamGroup) -> Tensor:
        """Return the next X: six products of X's size beside the iterations, no synchronization."""
        momentum, iterations, stored = group["momentum"], group["iterations"], x.dtype
        with without_autocast(x):
            x = x.to(accumulation_dtype(x.dtype))
            m = grad.to(x.dtype).neg()
            if momentum and "momentum_buffer" in self.state[parameter]:
                m.add_(self.state[parameter]["momentum_buffer"], alpha=momentum)
            # X(XᵀMXᵀ) = (XXᵀ)MXᵀ = MXᵀ as X is square and orthogonal: Ŵ = ½MXᵀ.
            w = m @ x.mT
            w = (w - w.mT).mul_(0.5)
            wx = w @ x
            if momentum:
                self.state[parameter]["momentum_buffer"] = wx.to(stored)
            norm = torch.linalg.matrix_norm(w, keepdim=True)
            step = (norm + 1e-8).reciprocal_().clamp_(max=group["lr"])
            y = _cayley_step(x, w, wx, step, iterations)
            return _reorthogonalize(y, near=iterations is None)


def _cayley_step(x: Tensor, w: Tensor, wx: Tensor, step: float | Tensor, iterations: int | None) -> Tensor:
    """Compute the step from X with λ (..., 1, 1), before the re-orthogonalization (OPT, Eq. 3 and 4).

    Y(λ) = (I − λ/2·W)⁻¹(I + λ/2·W)X,   or   Y ← X + λ/2·W(X + Y), n times from Y = X + λWX
    """
    half, half_x = w * (step / 2), wx * (step / 2)
    if iterations is None:
        identity = torch.eye(x.shape[-1], dtype=x.dtype, device=x.device)
        # Y = X + (I − λ/2·W)⁻¹·λWX: the solution is small. I minus a skew matrix is never singular, so the error code
        # need not be read, which would synchronize.
        solution, _ = torch.linalg.solve_ex(identity - half, half_x.mul_(2.0))
        return solution.add_(x)
    fixed = x + half_x
    y = fixed + half_x
    for _ in range(iterations):
        y = (half @ y).add_(fixed)
    return y


def _reorthogonalize(y: Tensor, near: bool) -> Tensor:
    """Compute Y(YᵀY)^(−½), the nearest orthogonal matrix, by its series in E = I − YᵀY (Newton–Schulz).

    The first term, Y + ½YE = Y(3I − YᵀY)/2, leaves an error of ¾‖E‖², enough if Y is orthogonal up to rounding
    (`near`). With the longest steps, λ‖W‖_F = 1, ‖E‖ is up to 0.06 after two iterations: three more terms reduce it to
    3e-7, for two more products.
    """
    e = (y.mT @ y).neg_()
    # A product rounds long sums of squares most: this lowers the error from 9e-7 to 4e-7 at m = 576.
    e.diagonal(dim1=-2, dim2=-1).copy_(1.0 - y.square().sum(-2))
    if near:
        return y + (y @ e).mul_(0.5)
    squared = e @ e
    series = squared @ (e * (5 / 16)).add_(squared, alpha=35 / 128)
    series.add_(squared, alpha=3 / 8).add_(e, alpha=1 / 2)
    return (y @ series).add_(y)


def _check_options(options: ParamGroup) -> None:
    check_rates(options)
    if options["iterations"] is not None:
        checks.integer("iterations", options["iterations"], low=1)
    checks.choice("rest", options["rest"], ("sgd", "adam"))
    if not isinstance(options["orthogonal"], bool):
        raise TypeError(f"orthogonal must be True or False, got {options['orthogonal']!r}")


def _check_orthogonal(x: Tensor) -> None:
    """Require orthogonal matrices. Values are read once, when the optimizer is made."""
    shape = tuple(x.shape)
    if not x.is_floating_point():
        raise TypeError(f"an orthogonal group must hold real floating point matrices, got {x.dtype} {shape}")
    if x.dim() < 2 or shape[-1] != shape[-2] or not x.numel():
        raise ValueError(f"an orthogonal group must hold square matrices (..., m, m), got {shape}")
    if x.is_meta:
        return
    with torch.no_grad(), without_autocast(x):
        values = gather(x.detach()).to(accumulation_dtype(x.dtype))
        gram = values.mT @ values
        error = float((gram - torch.eye(shape[-1], dtype=gram.dtype, device=gram.device)).abs().max())
    if not error <= _FAR_FROM_ORTHOGONAL:
        raise ValueError(
            f"an orthogonal group must hold orthogonal matrices, got {shape} with max|XᵀX − I| = {error:.2g}; start "
            "from the identity or hypersphere.orthogonal.gram_schmidt"
        )
