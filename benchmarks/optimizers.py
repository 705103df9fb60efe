"""Optimizers: a Pion step beside Muon's, Hyperball around others, and what both keep over many steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

import hypersphere as hs

from .measure import Contestant, Measurement, Plan, seconds

Make = Callable[[list[nn.Parameter]], Optimizer]
MUON, BARE_TIME, TRAINING = "torch.optim.Muon", "time / bare step", "added / training step"
PION_GOALS = {f"time / {MUON}": 1.5}
TOGETHER_GOALS = {"time / one by one": 1.0}
HYPERBALL_GOALS = {BARE_TIME: 1.03, TRAINING: 0.03}
SINGULAR, NORMS = "largest difference of singular values, relative", "largest difference of norms, relative"
SINGULAR_GOAL, NORMS_GOAL = 1e-5, 1e-6

BARE: dict[str, Make] = {
    "AdamW": lambda matrices: torch.optim.AdamW(matrices, lr=1e-3, weight_decay=0.0),
    "AdamW, foreach": lambda matrices: torch.optim.AdamW(matrices, lr=1e-3, weight_decay=0.0, foreach=True),
    "Muon": lambda matrices: torch.optim.Muon(matrices, lr=1e-3, weight_decay=0.0),
}


def pion(matrices: list[nn.Parameter], lr: float = 0.01, side: str = "both") -> hs.Pion:
    return hs.Pion([{"params": matrices, "rotated": True}], lr=lr, side=side)


class Float32Muon(Optimizer):
    """torch.optim.Muon without rounding to bfloat16, for which some CPUs have units of their own."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for p in self.param_groups[0]["params"]:
            buffer = self.state[p].setdefault("momentum_buffer", torch.zeros_like(p)).lerp_(p.grad, 0.05)
            x = p.grad.lerp(buffer, 0.95)
            x = (x.mT if len(x) > x.shape[1] else x) / x.norm().clamp_min(1e-7)
            for _ in range(5):
                gram = x @ x.mT
                x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=-4.7750, alpha=2.0315), x, beta=3.4445)
            p.sub_(x if x.shape == p.shape else x.mT, alpha=1e-3)


def measurements(plan: Plan) -> Iterator[Measurement]:
    for shape in ((16, 16), (16, 48)) if plan.quick else ((512, 512), (768, 3072)):
        yield from _step_measurements(plan, *shape)
    yield from _together_measurements(plan)
    yield from _hyperball_measurements(plan)
    yield from _kept_measurements(plan)


def _matrices(*shapes: tuple[int, int]) -> list[nn.Parameter]:
    """Return matrices with gradients."""
    matrices = [nn.Parameter(torch.randn(shape) / shape[1] ** 0.5) for shape in shapes]
    for matrix in matrices:
        matrix.grad = torch.randn_like(matrix)
    return matrices


def _step(optimizers: Sequence[Optimizer]) -> Tensor:
    for optimizer in optimizers:
        optimizer.step()
    return torch.empty(0)


def _step_measurements(plan: Plan, m: int, n: int) -> Iterator[Measurement]:
    case = f"a step of one {m}×{n} matrix"
    makes: dict[str, Make] = {MUON: BARE["Muon"], "Muon in float32": lambda matrices: Float32Muon(matrices, {})}
    makes |= {f"Pion, {side}": partial(pion, side=side) for side in ("both", "alternate", "input")}
    contestants = [
        Contestant(name, partial(_step, [make(_matrices((m, n)))]), goals=PION_GOALS if name == "Pion, both" else {})
        for name, make in makes.items()
    ]
    taken = seconds(case, contestants, plan.fewer(2 if m == n else 4))
    for contestant in contestants:
        yield contestant.measurement(case, "ms", 1e3 * taken[contestant.name])
        yield contestant.measurement(case, f"time / {MUON}", taken[contestant.name] / taken[MUON])


def _together_measurements(plan: Plan) -> Iterator[Measurement]:
    for count, size in ((3, 8), (2, 16)) if plan.quick else ((24, 64), (24, 256)):
        case = f"a Pion step of {count} layers of {size}×{size}"
        alone, matrices = (_matrices(*[(size, size)] * count) for _ in range(2))
        contestants = [
            Contestant("one by one", partial(_step, [pion([matrix]) for matrix in alone])),
            Contestant("together", partial(_step, [pion(matrices)]), goals=TOGETHER_GOALS),
        ]
        taken = seconds(case, contestants, plan.fewer(2))
        for contestant in contestants:
            time = taken[contestant.name]
            yield contestant.measurement(case, "ms", 1e3 * time)
            yield contestant.measurement(case, "time / one by one", time / taken["one by one"])


def _hyperball_measurements(plan: Plan) -> Iterator[Measurement]:
    for width, depth in ((8, 1),) if plan.quick else ((64, 4), (256, 6)):
        case = f"decoder of {depth} layers of width {width}, 8 × 64 characters"
        forward = Contestant("forward and backward", partial(_train, _decoder(width, depth)))
        contestants = [forward]
        for name, make in BARE.items():
            bare, wrapped = (_hidden(_decoder(width, depth)) for _ in range(2))
            contestants.append(Contestant(name, partial(_step, [make(bare)])))
            hyperball = partial(_step, [hs.Hyperball(make(wrapped))])
            contestants.append(Contestant(f"Hyperball, {name}", hyperball, against=name, goals=HYPERBALL_GOALS))
        taken = seconds(case, contestants, plan.fewer(2 if width < 100 else 4))
        for contestant in contestants:
            time = taken[contestant.name]
            yield contestant.measurement(case, "ms", 1e3 * time)
            if contestant.against:
                bare_time = taken[contestant.against]
                yield contestant.measurement(case, BARE_TIME, time / bare_time)
                share = (time - bare_time) / (taken[forward.name] + bare_time)
                yield contestant.measurement(case, TRAINING, share)


def _decoder(width: int, depth: int) -> nn.Module:
    return hs.models.create("decoder", 65, width=width, depth=depth, heads=4, context=64)


def _hidden(model: nn.Module) -> list[nn.Parameter]:
    """Return the hidden matrices of a model, with gradients."""
    found = hs.select(model).values()
    return _matrices(*[tuple(neurons.tensor.shape) for neurons in found if not neurons.is_output])


def _train(model: nn.Module) -> Tensor:
    text = torch.randint(65, (8, 65))
    model.zero_grad()
    loss = F.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())
    loss.backward()
    return loss.detach()


def _kept_measurements(plan: Plan) -> Iterator[Measurement]:
    """Compare in float64 what random gradients leave of float32 matrices."""
    steps, shapes = (20, [(8, 8), (8, 24)]) if plan.quick else (1000, [(256, 256), (192, 768)])
    case = f"{steps} steps at lr 0.05, {' and '.join(f'{m}×{n}' for m, n in shapes)}, float32"
    for side in ("both", "alternate", "input"):
        matrices = _matrices(*shapes)
        change = _largest_change(matrices, pion(matrices, lr=0.05, side=side), steps, torch.linalg.svdvals)
        yield Measurement(case, f"Pion, {side}", SINGULAR, change, SINGULAR_GOAL)
    for name, make in BARE.items():
        matrices = _matrices(*shapes)
        optimizer = hs.Hyperball(make(matrices))
        for group in optimizer.param_groups:
            group["lr"] = 0.05
        change = _largest_change(matrices, optimizer, steps, torch.linalg.matrix_norm)
        yield Measurement(case, f"Hyperball, {name}", NORMS, change, NORMS_GOAL)


def _largest_change(
    matrices: list[nn.Parameter], optimizer: Optimizer, steps: int, measure: Callable[[Tensor], Tensor]
) -> float:
    """Return the largest change of a measure, in units of its largest value."""
    before = [measure(matrix.detach().double()) for matrix in matrices]
    for _ in range(steps):
        for matrix in matrices:
            matrix.grad = torch.randn_like(matrix)
        optimizer.step()
    after = [measure(matrix.detach().double()) for matrix in matrices]
    return max(float((a - b).abs().max() / b.max()) for a, b in zip(after, before, strict=True))
