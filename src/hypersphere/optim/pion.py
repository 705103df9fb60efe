"""Rotate weight matrices by their gradients, so that their singular values never change (Pion), with Adam for the rest.

Letters: W (..., m, n) matrices of m neurons with n numbers, G their gradient, A skew-symmetric, Q(A) its Cayley
transform, α the length of the step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT

from .._internal import checks
from .._internal.nearest import explain_keywords
from .._internal.precision import accumulation_dtype, without_autocast
from .._internal.sharding import is_sharded
from ..neurons import Layout, from_neuron_rows, neuron_rows
from ..orthogonal import pack_difference, skew
from ._shared import ParamGroup, adam_step, check_betas, check_matrix, check_same_marks, keep_precision, place_of

_EPS = 1e-8  # as Adam's; also the least ‖A_out W + W A_in‖_F, of ‖W‖_F: below it steps become shorter
_LONGEST = 100.0  # of α‖A‖_F: a step this long has turned by nearly π already, and longer ones lose digits
_LARGEST = 1e15  # of gradients; larger ones are scaled down to it, so that no square overflows
_MOMENTS = ("exp_avg_in", "exp_avg_sq_in", "exp_avg_out", "exp_avg_sq_out")


class Pion(Optimizer):
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

    def add_param_group(self, param_group: ParamGroup) -> None:
        """Add a group; with ``rotated=True`` it must hold matrices, or tensors that `layout` makes matrices."""
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        try:
            _check_options(group)
            for i, parameter in enumerate(group["params"]):
                _check_parameter(i, parameter, group)
        except (TypeError, ValueError):
            self.param_groups.pop()
            raise

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state; the same groups must be rotated in it."""
        check_same_marks(self, state_dict, "rotated")
        super().load_state_dict(state_dict)
        keep_precision(self, state_dict, _MOMENTS)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Take one step; `closure` evaluates the model again and returns the loss."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        largest = self._largest_gradients()
        for group in self.param_groups:
            if not group["rotated"]:
                adam_step(self.state, group)
                continue
            for parameter in group["params"]:
                if parameter.grad is not None:
                    scale = min(1.0, _LARGEST / largest[parameter]) if largest[parameter] else 1.0
                    self._rotate(parameter, scale, group)
        return loss

    def _largest_gradients(self) -> dict[Tensor, float]:
        """Return the largest magnitude in all gradients, by parameter, in one synchronization; refuse NaN and Inf."""
        places = [
            (p, place_of(i, p, group, number))
            for number, group in enumerate(self.param_groups)
            for i, p in enumerate(group["params"])
            if p.grad is not None
        ]
        for p, place in places:
            if p.grad.is_sparse:
                raise ValueError(f"Pion needs dense gradients, got a sparse one for {place}")
        magnitudes = [p.grad.abs().amax().double() if p.numel() else torch.zeros(()).double() for p, _ in places]
        values = torch.stack([m.to(magnitudes[0].device) for m in magnitudes]).tolist() if places else []
        for (_, place), value in zip(places, values, strict=True):
            if not value < float("inf"):
                raise ValueError(f"Pion needs finite gradients, got {value} for {place}; nothing was stepped")
        return {p: value for (p, _), value in zip(places, values, strict=True)}

    def _rotate(self, parameter: Tensor, scale: float, group: ParamGroup) -> None:
        layout, dtype, state = (
            Layout(**(group["layout"] or {})),
            accumulation_dtype(parameter.dtype),
            self.state[parameter],
        )
        with without_autocast(parameter):
            w = neuron_rows(parameter, layout).to(dtype)
            g = neuron_rows(parameter.grad, layout).to(dtype)  # type: ignore[arg-type]
            if scale < 1.0:
                g = g * scale
            turns = state["turns"] = state.get("turns", 0) + 1
            side = ("input", "output")[(turns + 1) % 2] if group["side"] == "alternate" else group["side"]
            a_in = a_out = None
            if side != "output":
                a_in = _direction(state, "in", w.mT @ g, group["betas"])
            if side != "input":
                a_out = _direction(state, "out", g @ w.mT, group["betas"])
            parameter.copy_(
                from_neuron_rows(rotate_both(w, a_in, a_out, group["lr"], group["rms"]), parameter.shape, layout)
            )


def _direction(state: dict[str, Any], side: str, product: Tensor, betas: tuple[float, float]) -> Tensor:
    """Compute A from WᵀG or GWᵀ by Adam's rule, as packed strict triangles, and update its moments in place."""
    gradient = pack_difference(product).clamp_(-(_LARGEST**1.2), _LARGEST**1.2)
    average, square = f"exp_avg_{side}", f"exp_avg_sq_{side}"
    if average not in state:
        state[average], state[square] = torch.zeros_like(gradient), torch.zeros_like(gradient)
    m, v = state[average], state[square]
    m.lerp_(gradient, 1 - betas[0])
    v.mul_(betas[1]).addcmul_(gradient, gradient, value=1 - betas[1])
    return v.sqrt().add_(_EPS).reciprocal_().mul_(m).neg_()


def rotate_both(
    w: Tensor, a_in: Tensor | None, a_out: Tensor | None, lr: float | Tensor, rms: float | None = None
) -> Tensor:
    """Compute Q(αA_out) W Q(αA_in) from packed A, each (..., k(k−1)/2); None: this side is not rotated.

    Every side adds a small matrix to W, D_in = 2WX(I − X)⁻¹ with X = αA_in/2, so that rounding is relative to the
    step's length and not to W's: products with Q itself would let the singular values drift by 1e-7 a step.
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
    steps = [(m.mul_(half), product.mul_(half)) for m, product in ((x, wx), (z, zw)) if m is not None]  # type: ignore[union-attr]
    if z is None:
        return w + _turn(*steps[0])
    if x is None:
        return w + _turn(steps[0][0].mT, steps[0][1].mT).mT
    (x, wx), (z, zw) = steps
    if w.shape[-2] <= w.shape[-1]:  # the second side needs one more product: with the smaller of both matrices
        turned = _turn(x, wx)
        zw.add_(z @ turned)
        return (w + turned).add_(_turn(z.mT, zw.mT).mT)
    turned = _turn(z.mT, zw.mT).mT
    wx.add_(turned @ x)
    return (w + turned).add_(_turn(x, wx))


def _turn(x: Tensor, wx: Tensor) -> Tensor:
    """Compute W Q(2X) − W = 2WX(I − X)⁻¹ from X and WX."""
    matrix = x.clone()
    matrix.diagonal(dim1=-2, dim2=-1).add_(1)
    # I − X = (I + X)ᵀ, column-major, as LAPACK needs it. It is never singular, so the error code need not be read.
    lu, pivots, _ = torch.linalg.lu_factor_ex(matrix.mT)
    return torch.linalg.lu_solve(lu, pivots, wx * 2, left=False)


def _check_options(options: ParamGroup) -> None:
    for name in ("lr", "weight_decay"):
        checks.number(name, float(options[name]) if isinstance(options[name], Tensor) else options[name], low=0.0)
    check_betas(options["betas"])
    checks.choice("side", options["side"], ("both", "alternate", "input", "output"))
    if options["rms"] is not None:
        checks.number("rms", options["rms"], low=0.0, open_low=True)
    checks.flag("rotated", options["rotated"])
    if options["rotated"] and options["weight_decay"]:
        raise ValueError(
            f"weight_decay must be 0 in a rotated group, got {options['weight_decay']!r}: Pion keeps ‖W‖; give it to "
            "the other groups, hypersphere.param_groups(model, weight_decay, pion=True)"
        )


def _check_parameter(i: int, parameter: Tensor, group: ParamGroup) -> None:
    """Refuse what Pion cannot step. Values are read once, when the optimizer is made."""
    place = place_of(i, parameter, group)
    if is_sharded(parameter):
        raise ValueError(f"Pion cannot step sharded parameters (DTensor, FSDP2) yet, got {place}")
    if not group["rotated"]:
        return
    matrices = check_matrix(parameter, group, "a rotated group", place)
    if not parameter.is_meta and not bool(matrices.flatten(1).any(1).all()):
        raise ValueError(
            f"a rotated matrix must not be zero, as it would stay so, got {place}: initialize it, with a learned gain "
            "behind it if its layer must start at zero"
        )
