"""Layers against torch's: time of forward and backward, and memory saved for the backward pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from rich.progress import track
from torch import Tensor, nn

from hypersphere import SphereConv2d, SphereLinear, SphereLSTM

from . import literal
from .measure import Contestant, Measurement, Plan, check_same, kept_bytes, seconds

TIME, KEPT = "time / baseline", "kept beyond it, outputs"

#: form → similarity → the largest ratio of its time to that of the torch layer in the same form
TIME_GOALS = {
    "eager": {"cosine": 1.15, "linear": 1.40, "sigmoid": 1.40, "learnable": 1.50},
    "compiled": {"cosine": 1.10, "linear": 1.30, "sigmoid": 1.30, "learnable": 1.50},
}
#: similarity → how many tensors of the output's size it may save for the backward pass
KEPT_GOALS = {"cosine": 1, "linear": 2, "sigmoid": 2, "learnable": 2}


def measurements(plan: Plan) -> Iterator[Measurement]:
    for case, contestants in _cases(plan):
        taken = seconds(case, contestants, plan)
        kept = {contestant.name: kept_bytes(contestant) for contestant in contestants}
        for contestant in contestants:
            name, baseline = contestant.name, contestant.against
            yield contestant.measurement(case, "ms", 1e3 * taken[name])
            if baseline is not None:
                yield contestant.measurement(case, TIME, taken[name] / taken[baseline])
                beyond = (kept[name] - kept[baseline]) / contestant.forward().nbytes
                yield contestant.measurement(case, KEPT, beyond)


def _cases(plan: Plan) -> Iterator[tuple[str, list[Contestant]]]:
    batch = 2 if plan.quick else 16
    for shape in ((batch, 64, 32, 32), (batch, 128, 8, 8)):
        channels = shape[1]
        conv = nn.Conv2d(channels, channels, 3, padding=1)
        spheres = {g: SphereConv2d(channels, channels, 3, padding=1, similarity=g) for g in KEPT_GOALS}
        # besides: the one-channel map of patch norms, and a few numbers for each filter
        extra = 1 / channels + 4 / (shape[0] * shape[2] * shape[3])
        case = f"conv 3×3, {'×'.join(map(str, shape))} → {channels}"
        yield case, _against_torch(shape, conv, spheres, literal.conv2d, plan, extra)
    spheres = {g: SphereLinear(1024, 1024, similarity=g) for g in KEPT_GOALS}
    yield "linear, 256×1024 → 1024", _against_torch((256, 1024), nn.Linear(1024, 1024), spheres, literal.linear, plan)
    yield "lstm, 32 steps, 16×64 → 64", _lstm()


def _against_torch(
    shape: Sequence[int],
    plain: nn.Module,
    spheres: dict[str, nn.Module],
    naive: Callable[..., Tensor],
    plan: Plan,
    extra: float | None = None,
) -> list[Contestant]:
    """Compare the torch layer and ours in every form; with goals if `extra`, the additional outputs, is given."""
    x = torch.randn(shape, requires_grad=True)
    base = f"nn.{type(plain).__name__}"
    contestants = {}
    for form in ("eager", "literal", "compiled") if plan.compile else ("eager", "literal"):
        if form == "compiled":
            torch.compiler.reset()  # a second shape would be compiled as dynamic
        layers = spheres if form == "literal" else {base: plain} | spheres
        for g, layer in track(layers.items(), f"preparing {form}", auto_refresh=False):
            run: Callable[[Tensor], Tensor] = layer
            if form == "literal":
                run = partial(naive, layer, literal.similarity(layer))
            elif form == "compiled":
                run = torch.compile(layer, dynamic=False)
            goals = {}
            if extra is not None and g in TIME_GOALS.get(form, {}):
                goals = {TIME: TIME_GOALS[form][g], KEPT: KEPT_GOALS[g] + extra}
            against = None if g == base else f"{base}, {'compiled' if form == 'compiled' else 'eager'}"
            contestant = Contestant(f"{g}, {form}", partial(run, x), (x, *layer.parameters()), against, goals)
            contestants[g, form] = contestant
            check_same(contestants[g, "eager"], contestant)
    return list(contestants.values())


def _lstm() -> list[Contestant]:
    x = torch.randn(32, 16, 64, requires_grad=True)
    plain, sphere = nn.LSTM(64, 64), SphereLSTM(64, 64)
    leaves = (x, *sphere.parameters())
    loop = Contestant("cosine, literal", lambda: literal.lstm(sphere, x), leaves)
    ours = Contestant("cosine, eager", lambda: sphere(x)[0], leaves, loop.name)
    check_same(ours, loop)
    return [loop, ours, Contestant("nn.LSTM, eager", lambda: plain(x)[0], (x, *plain.parameters()), loop.name)]
