"""Rotate weight matrices by their gradients, so that their singular values never change (Pion), with Adam for the rest.

Letters: W (..., m, n) matrices of m neurons with n numbers, G their gradient, A skew-symmetric, Q(A) its Cayley
transform, α the length of the step.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from .._internal import checks
from .._internal.nearest import explain_keywords
from .._internal.owners import put, whole
from .._internal.precision import accumulation_dtype, without_autocast
from .._internal.sharding import gather, is_sharded, local_part, reduce_together, whole_mesh
from ..neurons import from_neuron_rows, neuron_rows
from ..orthogonal import pack_difference, skew
from ._shared import (
    MarkedOptimizer,
    ParamGroup,
    adam_step,
    check_matrix,
    check_rates,
    collect_states,
    keep_precision,
    layout_of,
    matrix_shape,
    place_of,
    refuse_sparse,
    shard_states,
)

_EPS = 1e-8  # as Adam's; also the least ‖A_out W + W A_in‖_F, of ‖W‖_F: below it steps become shorter
_LONGEST = 100.0  # of α‖A‖_F: a step this long has turned by nearly π already, and longer ones lose digits
_LARGEST = 1e15  # of gradients; larger ones are scaled down to it, so that no square overflows
_TOGETHER = 2**20  # numbers of matrices that are rotated at once
_MOMENTS = ("exp_avg_in", "exp_avg_sq_in", "exp_avg_out", "exp_avg_sq_out")


class Pion(MarkedOptimizer):
    """Rotate the matrices of groups with ``rotated=True``; step all other groups by torch.optim.Adam.

        G_in = WᵀG − GᵀW,   G_out = GWᵀ − WGᵀ
        A = −m/(√v + 10⁻⁸),   m, v Adam's moving averages of G_in and of G_out (without bias correction)
        α = lr·‖W‖_F/‖A_out W + W A_in‖_F
        W ← Q(αA_out) W Q(αA_in),   Q(A) = (I − A/2)⁻¹(I + A/2)

    Q is exactly orthogonal, by a linear solve. What is then constant, up to rounding:

    ===========  ==============================================================================================
    side         constant
    ===========  ==============================================================================================
    "both"       singular values and ‖W‖_F; not the lengths of rows and columns
    "alternate"  the same; input and output take turns, which halves the cost
    "input"      also the neurons' lengths and angles, and so their energy: OPT without a parametrization
    "output"     also the lengths and angles of columns
    ===========  ==============================================================================================

    Args:
        params: groups, best those of :func:`hypersphere.param_groups` with ``pion=True``: it splits fused queries, keys
            and values, and leaves vectors, embeddings and the output to Adam. A rotated group may have ``layout``, the
            fields of :class:`hypersphere.neurons.Layout` as a dict: ``{"parts": 3}`` rotates three equal blocks of
            outputs apart. Dimensions behind the first are flattened, as in convolutions.
        lr: the learning rate; of matrices the relative length of a step. A group may have its own.
        betas: of both moving averages, and of Adam.
        side: which sides are rotated; a group may have its own.
        rms: None, or α = lr·rms·√(mn)/‖A_out W + W A_in‖_F, the scale of Pion's authors with 0.2.
        weight_decay: of the other groups. Rotated groups must have 0: decay would change what Pion keeps.

    Example:
        >>> import hypersphere as hs
        >>> net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))
        >>> optimizer = Pion(hs.param_groups(net, pion=True), lr=0.01)
        >>> before = torch.linalg.svdvals(net[0].weight)
        >>> for _ in range(10):
        ...     optimizer.zero_grad()
        ...     net(torch.randn(4, 8)).square().sum().backward()
        ...     optimizer.step()
        >>> bool((torch.linalg.svdvals(net[0].weight) - before).abs().max() < 1e-5)
        True
    """

    mark = "rotated"

    @explain_keywords
    def __init__(
        self,
        params: ParamsT,
        lr: float,
        betas: tuple[float, float] = (0.9, 0.95),
        side: str = "both",
        rms: float | None = None,
        weight_decay: float = 0.0,
    ) -> None:
        defaults = {
            "lr": lr,
            "betas": betas,
            "side": side,
            "rms": rms,
            "weight_decay": weight_decay,
            "rotated": False,
            "layout": None,
        }
        _check_options(defaults)
        super().__init__(params, defaults)
        self._warn_if_unmarked()

    def _check(self, group: ParamGroup, number: int) -> None:
        _check_options(group)
        for i, parameter in enumerate(group["params"] if group["rotated"] else ()):
            _check_parameter(parameter, group, place_of(i, parameter, group, number))

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state of the same parameters in the same layouts."""
        _check_state(self.param_groups, state_dict)
        super().load_state_dict(state_dict)
        keep_precision(self, state_dict, _MOMENTS)
        collect_states(self, _MOMENTS, self._splits())

    def state_dict(self) -> dict[str, Any]:
        """Return the state; of sharded matrices as DTensors, which all processes must ask for."""
        return shard_states(self, super().state_dict(), _MOMENTS, self._splits())

    def _step(self) -> None:
        largest = self._largest_gradients()
        for group in self.param_groups:
            if not group["rotated"]:
                adam_step(self.state, group)
        turning, splits = self._marked(), self._splits()
        params = [p for p, _ in turning]
        weights = whole(params, (p.detach() for p in params), splits)
        grads = whole(params, (p.grad for p in params), splits)
        news: dict[Tensor, Tensor] = {}
        for numbers, group, side in self._batches(turning, weights):
            w, g = ([x for i in numbers if (x := xs[i]) is not None] for xs in (weights, grads))
            own = [params[i] for i in numbers]
            scales = [min(1.0, _LARGEST / largest[p]) if largest[p] else 1.0 for p in own]
            for p, new in zip(own, self._rotate(own, w, g, scales, group, side), strict=True):
                if is_sharded(p):
                    news[p] = new
                else:
                    p.copy_(new)
        sharded = [p for p in params if is_sharded(p)]
        put(sharded, [news.get(p) for p in sharded], splits)

    def _batches(
        self, turning: list[tuple[Tensor, ParamGroup]], weights: list[Tensor | None]
    ) -> Iterator[tuple[list[int], ParamGroup, str]]:
        """Count the turns, and yield matrices of equal shape, which are rotated together, with their group and side."""
        batches: dict[Any, list[int]] = {}
        groups = {}
        for i, (p, group) in enumerate(turning):
            state = self.state[p]
            turns = state["turns"] = state.get("turns", 0) + 1
            side = ("input", "output")[(turns + 1) % 2] if group["side"] == "alternate" else group["side"]
            groups[id(group)] = group
            self._make_moments(p, group, p.device if weights[i] is not None else torch.device("meta"))
            if weights[i] is not None:
                batches.setdefault((id(group), side, p.shape, p.dtype, p.device), []).append(i)
        for (number, side, shape, *_), numbers in batches.items():
            count = max(1, _TOGETHER // shape.numel())
            for start in range(0, len(numbers), count):
                yield numbers[start : start + count], groups[number], side

    def _largest_gradients(self) -> dict[Tensor, float]:
        """Return the largest magnitude in all gradients, by parameter, in one synchronization; refuse NaN and Inf."""
        places = []
        for number, group in enumerate(self.param_groups):
            refuse_sparse(self, number)
            places += [(p, place_of(i, p, group, number)) for i, p in enumerate(group["params"]) if p.grad is not None]
        gradients = [local_part(p.grad) for p, _ in places]
        magnitudes = [g.abs().amax().double() if g.numel() else g.new_zeros(()).double() for g in gradients]
        if any(is_sharded(p) for p, _ in places):
            finite = [torch.nan_to_num(m, nan=math.inf, posinf=math.inf) for m in magnitudes]
            magnitudes = reduce_together(finite, [whole_mesh(p) for p, _ in places], "MAX")
        values = torch.stack([m.to(magnitudes[0].device) for m in magnitudes]).tolist() if places else []
        for (_, place), value in zip(places, values, strict=True):
            if not value < float("inf"):
                raise ValueError(f"Pion needs finite gradients, got {value} for {place}; nothing was stepped")
        return {p: value for (p, _), value in zip(places, values, strict=True)}

    def _make_moments(self, p: Tensor, group: ParamGroup, device: torch.device) -> None:
        """Make the moments that are not there yet, on the meta device if another process has them."""
        state = self.state[p]
        sides = {"input": ("in",), "output": ("out",)}.get(group["side"], ("in", "out"))
        if all(f"exp_avg_{side}" in state for side in sides):
            return
        blocks, m, n = matrix_shape(p, group)
        for side in sides:
            size, dtype = n if side == "in" else m, accumulation_dtype(p.dtype)
            for key in (f"exp_avg_{side}", f"exp_avg_sq_{side}"):
                state.setdefault(key, torch.zeros(blocks, size * (size - 1) // 2, dtype=dtype, device=device))

    def _rotate(
        self,
        params: list[Tensor],
        weights: list[Tensor],
        grads: list[Tensor],
        scales: list[float],
        group: ParamGroup,
        side: str,
    ) -> list[Tensor]:
        """Return the rotated weights of parameters of equal shape, and update their moments."""
        layout, dtype = layout_of(group), accumulation_dtype(params[0].dtype)
        with without_autocast(params[0]):
            w = _join([neuron_rows(x, layout).to(dtype) for x in weights])
            g = _join(
                [
                    rows if scale == 1.0 else rows * scale
                    for rows, scale in zip((neuron_rows(x, layout).to(dtype) for x in grads), scales, strict=True)
                ]
            )
            states = [self.state[p] for p in params]
            a_in = None if side == "output" else _direction(states, "in", w.mT @ g, group["betas"])
            a_out = None if side == "input" else _direction(states, "out", g @ w.mT, group["betas"])
            new = rotate_both(w, a_in, a_out, group["lr"], group["rms"])
        return [from_neuron_rows(rows, p.shape, layout) for p, rows in zip(params, new.chunk(len(params)), strict=True)]


def _join(blocks: list[Tensor]) -> Tensor:
    return blocks[0] if len(blocks) == 1 else torch.cat(blocks)


def _direction(states: list[dict[str, Any]], side: str, product: Tensor, betas: tuple[float, float]) -> Tensor:
    """Compute A from WᵀG or GWᵀ by Adam's rule, as packed strict triangles, and update the moments in place."""
    gradients = pack_difference(product).clamp_(-(_LARGEST**1.2), _LARGEST**1.2)
    directions = []
    for state, gradient in zip(states, gradients.chunk(len(states)), strict=True):
        m, v = state[f"exp_avg_{side}"], state[f"exp_avg_sq_{side}"]
        m.lerp_(gradient, 1 - betas[0])
        v.mul_(betas[1]).addcmul_(gradient, gradient, value=1 - betas[1])
        directions.append(v.sqrt().add_(_EPS).reciprocal_().mul_(m).neg_())
    return _join(directions)


def rotate_both(
    w: Tensor, a_in: Tensor | None, a_out: Tensor | None, lr: float | Tensor, rms: float | None = None
) -> Tensor:
    """Compute Q(αA_out) W Q(αA_in) from packed A, each (..., k(k−1)/2); None: this side is not rotated.

    Every side adds a small matrix to W, T = 2WX(I − X)⁻¹ with X = αA_in/2, so that rounding is relative to the step's
    length and not to W's: products with Q itself would let the singular values drift by 1e-7 a step.
    """
    x = None if a_in is None else skew(a_in)
    z = None if a_out is None else skew(a_out)
    wx = None if x is None else w @ x
    zw = None if z is None else z @ w
    change = zw if wx is None else wx if zw is None else wx + zw
    assert change is not None
    size = torch.linalg.matrix_norm(w, keepdim=True)
    if rms is not None:
        size = torch.full_like(size, rms * (w.shape[-1] * w.shape[-2]) ** 0.5)
    length = torch.linalg.matrix_norm(change, keepdim=True)
    alpha = size * lr / torch.maximum(length, size * _EPS).clamp_min_(torch.finfo(w.dtype).tiny)
    norms = [torch.linalg.vector_norm(a, dim=-1)[..., None, None] * 2**0.5 for a in (a_in, a_out) if a is not None]
    longest = norms[0] if len(norms) == 1 else torch.maximum(*norms)
    half = torch.minimum(alpha, _LONGEST / longest.clamp_min(_EPS)) / 2
    turned = None if x is None or wx is None else _solve(x.mul_(half), wx.mul_(half).mul_(2))
    if z is None or zw is None:
        assert turned is not None
        return turned.add_(w)
    z, zw = z.mul_(half), zw.mul_(half)
    if turned is None:
        return _solve(z.mT, zw.mul_(2).mT).mT.add(w)
    # 2(I − Z)⁻¹Z(W + T) = 2(I − Z)⁻¹(ZW + T) − 2T, without a product with Z
    return _solve(z.mT, zw.add_(turned).mul_(2).mT).mT.add(w).sub_(turned)


def _solve(x: Tensor, product: Tensor) -> Tensor:
    """Compute P(I − X)⁻¹ from X, which is overwritten, and P."""
    x.diagonal(dim1=-2, dim2=-1).add_(1)
    # I − X = (I + X)ᵀ, column-major, as LAPACK needs it. It is never singular, so the error code need not be read.
    lu, pivots, _ = torch.linalg.lu_factor_ex(x.mT)
    return torch.linalg.lu_solve(lu, pivots, product, left=False)


def _check_options(options: ParamGroup) -> None:
    check_rates(options)
    checks.choice("side", options["side"], ("both", "alternate", "input", "output"))
    if options["rms"] is not None:
        checks.number("rms", options["rms"], low=0.0, open_low=True)
    checks.flag("rotated", options["rotated"])
    if options["rotated"] and options["weight_decay"]:
        raise ValueError(
            f"weight_decay must be 0 in a rotated group, got {options['weight_decay']!r}: Pion keeps ‖W‖; give it to "
            "the other groups, hypersphere.param_groups(model, weight_decay, pion=True)"
        )


def _check_state(groups: list[ParamGroup], state_dict: dict[str, Any]) -> None:
    """Refuse a state whose moments are of other matrices. What else differs, torch or the base class refuses."""
    for number, (group, theirs) in enumerate(zip(groups, state_dict["param_groups"], strict=False)):
        if not (group["rotated"] and theirs.get("rotated")):
            continue
        ours, loaded = (asdict(layout_of({"layout": None} | g)) for g in (group, theirs))
        if differ := [key for key in ours if ours[key] != loaded[key]]:
            has, got = (", ".join(f"{key}={layout[key]!r}" for key in differ) for layout in (ours, loaded))
            raise ValueError(
                f"state_dict must be of a Pion with the same layouts, as by the same split_heads: group {number} "
                f"({group.get('name')!r}) has {has}, got {got}"
            )
        for i, (p, key) in enumerate(zip(group["params"], theirs["params"], strict=False)):
            blocks, m, n = matrix_shape(p, group)
            for name in _MOMENTS:
                size = n if name.endswith("in") else m
                shape = (blocks, size * (size - 1) // 2)
                state = state_dict["state"].get(key, {}).get(name)
                if state is not None and tuple(state.shape) != shape:
                    raise ValueError(
                        f"state_dict must be of matrices of the same shapes: {name} must be {shape} for "
                        f"{place_of(i, p, group, number)}, got {tuple(state.shape)}"
                    )


def _check_parameter(parameter: Tensor, group: ParamGroup, place: str) -> None:
    """Refuse what Pion cannot step. Values are read once, when the optimizer is made."""
    check_matrix(parameter, group, "a rotated group", place)
    matrices = neuron_rows(gather(parameter.detach()), layout_of(group))
    if not parameter.is_meta and not bool(matrices.flatten(1).any(1).all()):
        raise ValueError(
            f"a rotated matrix must not be zero, as it would stay so, got {place}: initialize it, with a learned gain "
            "behind it if its layer must start at zero"
        )
