"""Losses against pytorch-metric-learning: time and peak memory of forward and backward."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import torch
import torch.nn.functional as F
from pytorch_metric_learning import losses as peers
from torch import Tensor, nn

from hypersphere import AMSoftmaxLoss, ArcFaceLoss, ASoftmaxLoss

from .measure import Contestant, Measurement, Plan, check_same, no_page_faults, peak_bytes, seconds

BATCH, SIZE, CLASSES = 256, 512, 10_000
SMALL = (30, 64, 30)  # the same three of a small head, whose time is the overhead of the calls
QUICK = 2  # a quick run divides all three by this; peak / peer is 0.45 then instead of 0.42, and 0.51 with 4
SOFTMAX, PRODUCTS = "plain softmax", "three matrix products"
TIME, PEAK = "time / peer", "peak / peer"
GOALS = {TIME: 0.55, PEAK: 0.5}
SMALL_GOALS = {TIME: 1.0}


def measurements(plan: Plan) -> Iterator[Measurement]:
    yield from small_measurements(plan)
    batch, size, classes = (number // (QUICK if plan.quick else 1) for number in (BATCH, SIZE, CLASSES))
    case = _case(batch, size, classes)
    contestants = _contestants(batch, size, classes, GOALS)
    taken = seconds(case, contestants, plan)
    with no_page_faults():
        smooth = seconds("the same without page faults", contestants, plan)
    peak = {contestant.name: peak_bytes(contestant) for contestant in contestants}
    for contestant in contestants:
        name, peer = contestant.name, contestant.against
        yield contestant.measurement(case, "ms", 1e3 * taken[name])
        if peer is not None:
            yield contestant.measurement(case, TIME, taken[name] / taken[peer])
            yield contestant.measurement(case, "the same, no page faults", smooth[name] / smooth[peer])
        yield contestant.measurement(case, "time / plain softmax", taken[name] / taken[SOFTMAX])
        yield contestant.measurement(case, "three products / time", taken[PRODUCTS] / taken[name])
        yield contestant.measurement(case, "peak MB", peak[name] / 1e6)
        if peer is not None:
            yield contestant.measurement(case, PEAK, peak[name] / peak[peer])


def small_measurements(plan: Plan) -> Iterator[Measurement]:
    case = _case(*SMALL)
    contestants = _contestants(*SMALL, SMALL_GOALS)
    taken = seconds(case, contestants, plan if plan.quick else replace(plan, rounds=20 * plan.rounds))
    for contestant in contestants:
        name, peer = contestant.name, contestant.against
        yield contestant.measurement(case, "ms", 1e3 * taken[name])
        if peer is not None:
            yield contestant.measurement(case, TIME, taken[name] / taken[peer])


def _case(batch: int, size: int, classes: int) -> str:
    return f"{size}-d, {classes:,} classes, batch {batch}"


def _contestants(batch: int, size: int, classes: int, goals: dict[str, float]) -> list[Contestant]:
    x = torch.randn(batch, size, requires_grad=True)
    labels = torch.randint(classes, (batch,))
    pairs: list[tuple[nn.Module, nn.Module]] = [
        # the peer does not anneal: λ = 0 computes the same
        (ASoftmaxLoss(classes, size, annealing=lambda step: 0 * step), peers.SphereFaceLoss(classes, size, margin=4)),
        (ArcFaceLoss(classes, size, 0.5, 64), peers.ArcFaceLoss(classes, size, math.degrees(0.5), 64)),
        (AMSoftmaxLoss(classes, size, 0.35, 64), peers.CosFaceLoss(classes, size, margin=0.35, scale=64)),
    ]
    contestants = []
    for ours, peer in pairs:
        peer.W.data = ours.weight.detach().T.contiguous()
        theirs = Contestant(f"their {type(peer).__name__}", partial(peer, x, labels), (x, *peer.parameters()))
        leaves = (x, *ours.parameters())
        fast = Contestant(type(ours).__name__, partial(ours, x, labels), leaves, theirs.name, goals)
        check_same(fast, theirs)
        contestants += [fast, theirs]
    weight, grad = pairs[0][0].weight, torch.randn(batch, classes)
    plain = Contestant(SOFTMAX, lambda: F.cross_entropy(F.linear(x, weight), labels), (x, weight))
    return [*contestants, plain, Contestant(PRODUCTS, partial(_products, x.detach(), weight.detach(), grad))]


def _products(x: Tensor, weight: Tensor, grad: Tensor) -> Tensor:
    """Compute the products every linear head needs: logits, gradient of the embeddings, gradient of the weight."""
    F.linear(x, weight)
    grad @ weight
    return grad.T @ x
