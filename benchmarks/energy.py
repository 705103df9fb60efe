"""The energy of neurons: time against the matrix product it needs, memory, and known minima."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from rich.progress import track
from torch import Tensor, nn

from hypersphere import EnergyRegularizer, class_energy, hyperspherical_energy
from hypersphere.geometry import known_minimum, minimize_energy

from .measure import Contestant, Measurement, Plan, check_same, peak_bytes, seconds

TIME, BARE_TIME = "time / product", "time / its arithmetic"
PEAK, PEAK_IN_WEIGHTS = "peak MB", "peak / weight"
STEP_TIME = "time / plain step"
PRODUCT, BARE_PRODUCT = "the product", "its arithmetic alone"
PLAIN, STEP = "plain autograd, s=2", "plain step"

#: (neurons, dimensions) → the largest ratio or size allowed
ENERGY_GOALS = {(256, 576): {TIME: 5.0}, (2048, 512): {TIME: 2.5}, (8192, 512): {TIME: 2.5, PEAK: 80.0}}
#: for B = d both the gradient and B × N are as large as the weight; N × N would be N/d times as large
CLASS_GOALS = {TIME: 3.0, PEAK_IN_WEIGHTS: 2.0}
STEP_GOALS = {STEP_TIME: 0.03}
THOMSON_GOALS = {"seconds": 60.0, "largest difference": 1e-6}
#: other forms of the energy, for information
FORMS: dict[str, dict[str, Any]] = {
    "half space": {"half_space": True},
    "s=0": {"s": 0.0},
    "s=1": {"s": 1.0},
    "angular": {"angular": True},
}


def measurements(plan: Plan) -> Iterator[Measurement]:
    for n, d in ENERGY_GOALS:
        yield from _energy(n, d, plan.fewer(max(1, n // 1024)))
    yield from _class_energy(*((60_000, 128, 128) if plan.quick else (100_000, 512, 512)), plan.fewer(5))
    yield from _training_step(8 if plan.quick else 128, plan.fewer(8))
    yield from _thomson(8 if plan.quick else 32)


def _energy(n: int, d: int, plan: Plan) -> Iterator[Measurement]:
    case, weight = f"energy of {n} neurons, {d}-d", torch.randn(n, d, requires_grad=True)
    ours = Contestant("s=2", partial(hyperspherical_energy, weight), (weight,), PRODUCT, ENERGY_GOALS[n, d])
    if plan.quick and n > 256:  # only deterministic measurements
        yield from _peak(case, ours)
        return
    plain = Contestant(PLAIN, partial(_naive_energy, weight), (weight,), PRODUCT)
    check_same(ours, plain)
    contestants = [*_products(weight, weight), plain, ours]
    if n <= 2048:
        for name, options in FORMS.items():
            contestants.append(Contestant(name, partial(hyperspherical_energy, weight, **options), (weight,), PRODUCT))
    yield from _against_product(case, contestants, plan)


def _class_energy(n: int, d: int, batch: int, plan: Plan) -> Iterator[Measurement]:
    weight, labels = torch.randn(n, d, requires_grad=True), torch.randint(n, (batch,))
    ours = Contestant("class_energy, s=2", partial(class_energy, weight, labels), (weight,), PRODUCT, CLASS_GOALS)
    plain = Contestant(PLAIN, partial(_naive_class_energy, weight, labels), (weight,), PRODUCT)
    check_same(ours, plain)
    case = f"energy of {n:,} classes, {d}-d, batch {batch}"
    if plan.quick:
        yield from _peak(case, ours)
        return
    yield from _against_product(case, [*_products(weight[labels], weight), plain, ours], plan)


def _products(a: Tensor, b: Tensor) -> list[Contestant]:
    """Return a·bᵀ twice: with allocation, as in all contestants, and with preallocated output."""
    a, b = a.detach(), b.detach()
    bare = partial(torch.mm, a, b.T, out=a.new_empty(len(a), len(b)))
    return [Contestant(PRODUCT, partial(torch.mm, a, b.T)), Contestant(BARE_PRODUCT, bare)]


def _against_product(case: str, contestants: list[Contestant], plan: Plan) -> Iterator[Measurement]:
    taken = seconds(case, contestants, plan)
    for contestant in contestants:
        name = contestant.name
        yield contestant.measurement(case, "ms", 1e3 * taken[name])
        if contestant.against is not None:
            yield contestant.measurement(case, TIME, taken[name] / taken[PRODUCT])
            yield contestant.measurement(case, BARE_TIME, taken[name] / taken[BARE_PRODUCT])
            yield from _peak(case, contestant)


def _peak(case: str, contestant: Contestant) -> Iterator[Measurement]:
    peak = peak_bytes(contestant)
    yield contestant.measurement(case, PEAK, peak / 1e6)
    yield contestant.measurement(case, PEAK_IN_WEIGHTS, peak / contestant.leaves[0].nbytes)


def _naive_energy(weight: Tensor) -> Tensor:
    """Compute the energy with naive autograd."""
    w = F.normalize(weight)
    same = torch.eye(len(w), dtype=torch.bool)
    return _mean_inverse(w @ w.T, same, len(w) - 1)


def _naive_class_energy(weight: Tensor, labels: Tensor) -> Tensor:
    w = F.normalize(weight)
    same = labels.unsqueeze(1) == torch.arange(len(w))
    return _mean_inverse(w[labels] @ w.T, same, len(w) - 1)


def _mean_inverse(cosines: Tensor, same: Tensor, others: int) -> Tensor:
    squared = (2 - 2 * cosines + 1e-6).masked_fill(same, math.inf)
    return (squared ** (-2 / 2)).sum() / (len(cosines) * others)


def _training_step(batch: int, plan: Plan) -> Iterator[Measurement]:
    case, model = f"training step of CNN-9, batch {batch}", _cnn9(100)
    images, labels = torch.randn(batch, 3, 32, 32), torch.randint(100, (batch,))
    optimizer, regularizer = torch.optim.SGD(model.parameters(), 1e-3, momentum=0.9), EnergyRegularizer(model)

    def step(regularized: bool) -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        if regularized:
            loss = loss + regularizer()
        loss.backward()
        optimizer.step()
        return loss.detach()

    def regularize() -> Tensor:
        """Run the term alone, without the noise of a difference of two long times; gradients accumulate."""
        term = regularizer()
        term.backward()
        return term.detach()

    contestants = [
        Contestant(STEP, partial(step, False)),
        Contestant("with EnergyRegularizer", partial(step, True), against=STEP),
        Contestant("EnergyRegularizer alone", regularize, against=STEP, goals=STEP_GOALS),
    ]
    taken = seconds(case, contestants, plan)
    for contestant in contestants:
        yield contestant.measurement(case, "ms", 1e3 * taken[contestant.name])
        if contestant.against is not None:
            yield contestant.measurement(case, STEP_TIME, taken[contestant.name] / taken[contestant.against])


def _cnn9(classes: int, widths: tuple[int, ...] = (64, 128, 256), hidden: int = 256) -> nn.Sequential:
    """Build CNN-9 of MHE for 3×32×32 images: three stages of three 3×3 convolutions, each followed by pooling."""
    modules: list[nn.Module] = []
    channels = 3
    for width in widths:
        for _ in range(3):
            modules += [nn.Conv2d(channels, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
            channels = width
        modules.append(nn.MaxPool2d(2))
    modules += [nn.Flatten(), nn.Linear(channels * 4 * 4, hidden, bias=False), nn.BatchNorm1d(hidden), nn.ReLU()]
    return nn.Sequential(*modules, nn.Linear(hidden, classes))


def _thomson(most: int) -> Iterator[Measurement]:
    case, taken, difference = f"Thomson's problem, N = 2 to {most}", 0.0, 0.0
    for n in track(range(2, most + 1), case, auto_refresh=False):
        start = time.process_time()
        points = minimize_energy(n)
        taken += time.process_time() - start
        difference = max(difference, abs(torch.pdist(points).reciprocal().sum().item() - known_minimum(n)))
    for name, value in (("seconds", taken), ("largest difference", difference)):
        yield Measurement(case, "minimize_energy", name, value, THOMSON_GOALS[name])
