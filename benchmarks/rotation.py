"""Rotations of neurons: cost against a matrix product and against peers, in training steps and in memory."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import partial
from itertools import chain
from typing import Any

import geotorch
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import orthogonal
from torch.nn.utils.parametrize import is_parametrized

import hypersphere as hs
from hypersphere.orthogonal import ORTHOGONALIZERS

from . import literal
from .measure import Contestant, Measurement, Plan, check_same, peak_bytes, seconds

TIME, STEP_TIME, PLAIN_TIME = "time / product", "time / plain step", "time / plain"
PEAK, HELD, BEYOND = "peak MB", "held MB", "both beyond plain, MB"
PRODUCT, STEP, PLAIN = "the product", "plain step", "plain"
CAYLEY, SAMPLED = "cayley", "cayley, a quarter of the dimensions"
TORCH_CAYLEY, GEOTORCH = "torch cayley", "geotorch at its start"

#: method → the largest ratio for V Rᵀ and its gradient; for Cayley against peers too
GOALS: dict[str, dict[str, float]] = {
    CAYLEY: {TIME: 2.5, f"time / {TORCH_CAYLEY}": 1 / 3, f"time / {GEOTORCH}": 1 / 40},
    "gram_schmidt": {TIME: 7.0},
    "householder": {TIME: 7.0},
    "lowdin": {TIME: 15.0},
    "exponential": {TIME: 25.0},
}
SPECTRAL = ("lowdin", "exponential")
STEP_GOALS = {CAYLEY: 1.15, SAMPLED: 1.05}
MERGED_GOAL = 1.05
WHOLE_TIME, PART_GOAL = "time / whole", 0.5  # for the remedies that rotate suggests, if d is large enough to need them
DIMENSIONS = (64, 144, 576, 784, 1152, 1568, 2304)  # of the docs' table of costs


def measurements(plan: Plan) -> Iterator[Measurement]:
    d, n, batch, width = (96, 16, 2, 16) if plan.quick else (576, 64, 128, 64)
    yield from _products_and_peers(d, n, plan)
    if not plan.quick:
        yield from _products(784, 256, plan.fewer(2), plan.fewer(5))
        yield from _products(2304, 256, plan.fewer(13), plan.fewer(40))
    yield from _ogd(d, plan)
    yield from _training_step(batch, width, plan.fewer(4))
    yield from _wide_training_step(min(batch, 16), width, plan.fewer(40))
    yield from _merged(batch, width, plan.fewer(2))


def layer_measurements(plan: Plan) -> Iterator[Measurement]:
    """Measure the docs' table of the cost of a layer's rotation over its dimensions; separate, because it is fast."""
    for d in (24, 576) if plan.quick else DIMENSIONS:
        yield from _one_layer(d, 64, plan.fewer(1 if d < 1000 else 4))


def _products_and_peers(d: int, n: int, plan: Plan) -> Iterator[Measurement]:
    rows = _neurons(n, d)
    ours = {name: _our_method(name, rows, goals=GOALS[name]) for name in GOALS}
    (packed,), (matrix,) = ours[CAYLEY].leaves, ours["gram_schmidt"].leaves
    lower = _unpack_lower(packed.detach(), d)
    fast = [
        _peer(TORCH_CAYLEY, rows, _torch_layer(d, "cayley", 2 * lower)),  # torch halves it
        _peer("torch cayley without base", rows, _torch_layer(d, "cayley", 2 * lower, use_trivialization=False)),
        Contestant("QR under autograd", lambda: rows @ literal.qr(matrix).T, (matrix,), PRODUCT),
    ]
    slow = [
        _peer("torch householder", rows, _torch_layer(d, "householder", lower)),
        _peer("torch matrix_exp", rows, _torch_layer(d, "matrix_exp", lower)),
        _peer("torch matrix_exp at its start", rows, _torch_layer(d, "matrix_exp")),
        _peer("geotorch", rows, _geotorch_layer(d, lower)),
        _peer(GEOTORCH, rows, _geotorch_layer(d)),  # cheapest at A = 0
        Contestant("the paper's loop", lambda: rows @ literal.gram_schmidt(matrix).T, (matrix,), PRODUCT),
    ]
    peers = {peer.name: peer for peer in (*fast, *slow)}
    check_same(ours[CAYLEY], peers[TORCH_CAYLEY])
    check_same(ours[CAYLEY], peers["torch cayley without base"])
    check_same(ours["gram_schmidt"], peers["QR under autograd"])
    for name in ("torch matrix_exp", "geotorch"):
        check_same(_our_method("exponential", rows, packed), peers[name])
    _check_loop(matrix, rows)
    yield from _against_product(f"{n} neurons times R, {d}-d", d, [*ours.values(), *fast], slow, plan, plan.fewer(13))


def _products(d: int, n: int, plan: Plan, few: Plan) -> Iterator[Measurement]:
    rows = _neurons(n, d)
    fast = [_our_method(name, rows) for name in GOALS if name not in SPECTRAL]
    slow = [_our_method(name, rows) for name in SPECTRAL]
    yield from _against_product(f"{n} neurons times R, {d}-d", d, fast, slow, plan, few)


def _against_product(
    case: str, d: int, fast: list[Contestant], slow: list[Contestant], plan: Plan, few: Plan
) -> Iterator[Measurement]:
    """Run two comparisons, the slow one with few rounds; product and first contestant are in both for the ratios."""
    product, first = Contestant(PRODUCT, partial(torch.mm, torch.randn(d, d), torch.randn(d, d))), fast[0]
    for shown, besides, rounds in (([product, *fast], [], plan), (slow, [product, first], few)):
        taken = seconds(case, [*besides, *shown], rounds)
        for contestant in shown:
            name = contestant.name
            yield contestant.measurement(case, "ms", 1e3 * taken[name])
            if contestant.against is not None:
                yield contestant.measurement(case, TIME, taken[name] / taken[contestant.against])
                yield contestant.measurement(case, PEAK, peak_bytes(contestant) / 1e6)
        for peer in (TORCH_CAYLEY, GEOTORCH):
            if peer in taken:
                yield first.measurement(case, f"time / {peer}", taken[first.name] / taken[peer])


def _neurons(n: int, d: int) -> Tensor:
    """Return fixed neurons of the paper's initial length."""
    return torch.randn(n, d) * (2 / d) ** 0.5


def _our_method(
    name: str, rows: Tensor, numbers: Tensor | None = None, goals: dict[str, float] | None = None
) -> Contestant:
    method = ORTHOGONALIZERS[name]
    if numbers is None:
        numbers = method.start(rows.shape[1], "normal").float().requires_grad_()
    return Contestant(name, partial(method.apply, numbers, rows), (numbers,), PRODUCT, goals or {})


def _unpack_lower(packed: Tensor, d: int) -> Tensor:
    """Return the strict lower triangle of A, which the peers use, from its packed upper one."""
    rows, columns = torch.triu_indices(d, d, 1)
    return packed.new_zeros(d, d).index_put((columns, rows), -packed)


def _torch_layer(d: int, map_name: str, lower: Tensor | None = None, use_trivialization: bool = True) -> nn.Module:
    layer = nn.Linear(d, d, bias=False)
    orthogonal(layer, orthogonal_map=map_name, use_trivialization=use_trivialization)
    return _set_numbers(layer, lower)


def _geotorch_layer(d: int, lower: Tensor | None = None) -> nn.Module:
    layer = nn.Linear(d, d, bias=False)
    geotorch.orthogonal(layer)
    return _set_numbers(layer, lower)


def _set_numbers(layer: nn.Module, lower: Tensor | None) -> nn.Module:
    """Set the parameters below the diagonal, and the base matrix to the identity."""
    if lower is not None:
        held = layer.parametrizations.weight
        with torch.no_grad():
            held.original.copy_(lower + held.original.diag().diag())  # torch keeps the signs for Householder there
            if getattr(held[0], "base", None) is not None:
                held[0].base.copy_(torch.eye(len(lower)))
    return layer


def _peer(name: str, rows: Tensor, layer: nn.Module) -> Contestant:
    return Contestant(name, lambda: rows @ layer.weight.T, tuple(layer.parameters()), PRODUCT)


def _check_loop(matrix: Tensor, rows: Tensor) -> None:
    """Compare in float64: the loop in float32 is inaccurate."""
    matrix, rows = matrix.detach().double(), rows.double()
    loop = Contestant("the paper's loop", lambda: rows @ literal.gram_schmidt(matrix).T)
    check_same(_our_method("gram_schmidt", rows, matrix), loop)


def _ogd(d: int, plan: Plan) -> Iterator[Measurement]:
    case, contestants = f"OGD step, {d}-d", []
    product = Contestant(PRODUCT, partial(torch.mm, torch.randn(d, d), torch.randn(d, d)))
    for name, iterations in (("exact", None), ("2 iterations", 2)):
        x = nn.Parameter(ORTHOGONALIZERS["ogd"].start(d, "normal").float())
        x.grad = torch.randn(d, d)
        optimizer = hs.OGD([{"params": [x], "orthogonal": True}], lr=0.02, iterations=iterations)
        contestants.append(Contestant(name, optimizer.step, against=PRODUCT))
    taken = seconds(case, [product, *contestants], plan)
    yield product.measurement(case, "ms", 1e3 * taken[PRODUCT])
    for contestant in contestants:
        yield contestant.measurement(case, "ms", 1e3 * taken[contestant.name])
        yield contestant.measurement(case, TIME, taken[contestant.name] / taken[PRODUCT])


def _one_layer(d: int, n: int, plan: Plan) -> Iterator[Measurement]:
    """Measure the step of a linear layer, which grows with the batch, and of its rotation, which does not."""
    case, contestants = f"a layer of {n} neurons, {d}-d", []
    for batch in (64, 128):
        layer, inputs = nn.Linear(d, n, bias=False), torch.randn(batch, d, requires_grad=True)
        contestants.append(Contestant(f"plain, batch {batch}", partial(layer, inputs), (layer.weight, inputs)))
    block_size = max(m for m in range(2, 65) if d % m == 0 and m < d)
    options: dict[str, dict[str, Any]] = {
        CAYLEY: {},
        f"cayley, blocks of {block_size}": {"block_size": block_size},
        SAMPLED: {"sample": 0.25},
        "gram_schmidt": {"method": "gram_schmidt"},
    }
    for name, rotation in options.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # rotate warns of this cost
            layer = hs.rotate(nn.Linear(d, n, bias=False), **rotation)
        part = bool(rotation.keys() - {"method"})
        goals = {WHOLE_TIME: PART_GOAL} if part and d >= 576 else {}
        weight, against = partial(getattr, layer, "weight"), CAYLEY if part else None
        contestants.append(Contestant(name, weight, tuple(layer.parameters()), against, goals))
    taken = seconds(case, contestants, plan)
    for contestant in contestants:
        yield contestant.measurement(case, "ms", 1e3 * taken[contestant.name])
        if contestant.against is not None:
            yield contestant.measurement(case, WHOLE_TIME, taken[contestant.name] / taken[contestant.against])


def _training_step(batch: int, width: int, plan: Plan) -> Iterator[Measurement]:
    case, plain, data = f"training step of CNN-6 ({width}), batch {batch}", _cnn6(width), _images(batch)
    rotated = {
        CAYLEY: hs.rotate(deepcopy(plain)),
        SAMPLED: hs.rotate(deepcopy(plain), sample=0.25),
        "gram_schmidt": hs.rotate(deepcopy(plain), "gram_schmidt"),
        "ogd": hs.rotate(deepcopy(plain), "ogd"),
    }
    contestants = [Contestant(STEP, _step(plain, *data))]
    for name, model in rotated.items():
        goals = {STEP_TIME: STEP_GOALS[name]} if name in STEP_GOALS else {}
        contestants.append(Contestant(name, _step(model, *data), against=STEP, goals=goals))
    for name, model in rotated.items():
        # the rotations alone, without the noise of a difference of two long times; without the optimizer, OGD above all
        contestants.append(Contestant(f"{name}: rotations alone", _rotations(deepcopy(model)), against=STEP))
    yield from _against_plain(case, contestants, plan, STEP_TIME)


def _wide_training_step(batch: int, width: int, plan: Plan) -> Iterator[Measurement]:
    widths = (width, 2 * width, 4 * width)
    case = f"training step of CNN-9 ({'/'.join(map(str, widths))}), batch {batch}; the paper: out of memory"
    plain, data = _cnn(3, widths, widths[-1]), _images(batch)
    models = {STEP: plain, "cayley, every layer": hs.rotate(deepcopy(plain))}
    contestants = [
        Contestant(name, _step(model, *data), against=None if model is plain else STEP)
        for name, model in models.items()
    ]
    yield from _against_plain(case, contestants, plan, STEP_TIME)
    plain_bytes = 0
    for contestant, model in zip(contestants, models.values(), strict=True):
        # by now every parameter has a momentum; gradients are counted with the step
        momentum = sum(p.nbytes for p in model.parameters() if p.requires_grad)
        held = sum(t.nbytes for t in chain(model.parameters(), model.buffers())) + momentum
        peak = peak_bytes(contestant)
        yield contestant.measurement(case, HELD, held / 1e6)
        yield contestant.measurement(case, PEAK, peak / 1e6)
        if model is plain:
            plain_bytes = held + peak
        else:
            yield contestant.measurement(case, BEYOND, (held + peak - plain_bytes) / 1e6)


def _merged(batch: int, width: int, plan: Plan) -> Iterator[Measurement]:
    case, plain, (images, _) = f"inference, CNN-6 ({width}), batch {batch}", _cnn6(width).eval(), _images(batch)
    merged = hs.merge(hs.rotate(deepcopy(plain)))
    assert [type(module) for module in merged.modules()] == [type(module) for module in plain.modules()]
    assert list(merged.state_dict()) == list(plain.state_dict())
    contestants = [
        Contestant(PLAIN, torch.no_grad()(partial(plain, images))),
        Contestant("merged", torch.no_grad()(partial(merged, images)), against=PLAIN, goals={PLAIN_TIME: MERGED_GOAL}),
    ]
    check_same(*contestants)  # merged at the start, the identity
    yield from _against_plain(case, contestants, plan, PLAIN_TIME)


def _against_plain(case: str, contestants: list[Contestant], plan: Plan, ratio: str) -> Iterator[Measurement]:
    taken = seconds(case, contestants, plan)
    for contestant in contestants:
        yield contestant.measurement(case, "ms", 1e3 * taken[contestant.name])
        if contestant.against is not None:
            yield contestant.measurement(case, ratio, taken[contestant.name] / taken[contestant.against])


def _step(model: nn.Module, images: Tensor, labels: Tensor) -> Callable[[], Tensor]:
    """Make a training step: with OGD if the model needs it, else SGD."""
    groups = hs.param_groups(model, ogd=True)
    by_ogd = any(group.get("orthogonal") for group in groups)
    optimizer = (hs.OGD if by_ogd else torch.optim.SGD)(groups, lr=1e-3, momentum=0.9)
    if any(name.endswith(".dims") for name, _ in model.named_buffers()):
        hs.Resampler(model, optimizer)  # draws every 750 steps, too rare to matter here

    def step() -> Tensor:
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


def _rotations(model: nn.Module) -> Callable[[], Tensor]:
    """Make a step that computes the weights of all rotated layers and their gradients."""
    layers = [module for module in model.modules() if is_parametrized(module)]
    grads = [torch.randn_like(layer.weight) for layer in layers]

    def run() -> Tensor:
        weights = [layer.weight for layer in layers]
        torch.autograd.backward(weights, grads)
        model.zero_grad()
        return weights[-1].detach()

    return run


def _images(batch: int) -> tuple[Tensor, Tensor]:
    return torch.randn(batch, 3, 32, 32), torch.randint(100, (batch,))


def _cnn6(width: int) -> nn.Sequential:
    return _cnn(2, (width, width, width), width)


def _cnn(depth: int, widths: tuple[int, ...], hidden: int) -> nn.Sequential:
    """Build CNN-6 (depth 2) or CNN-9 (depth 3) of OPT for 3×32×32 images; the hidden layer has no ReLU."""
    modules: list[nn.Module] = []
    channels = 3
    for width in widths:
        for _ in range(depth):
            modules += [nn.Conv2d(channels, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
            channels = width
        modules.append(nn.MaxPool2d(2))
    return nn.Sequential(*modules, nn.Flatten(), nn.Linear(channels * 16, hidden, bias=False), nn.Linear(hidden, 100))
