"""Losses against pytorch-metric-learning: time and peak memory of forward and backward."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

import torch
import torch.nn.functional as F
from pytorch_metric_learning import losses as peers
from torch import Tensor, nn

from hypersphere import AMSoftmaxLoss, ArcFaceLoss, ASoftmaxLoss

from .measure import Contestant, Figure, Plan, check_same, no_page_faults, peak_bytes, seconds

BATCH, SIZE, CLASSES = 256, 512, 10_000
CASE = f"{SIZE}-d, {CLASSES:,} classes, batch {BATCH}"
SOFTMAX, PRODUCTS = "plain softmax", "three matrix products"
TIME, PEAK = "time / peer", "peak / peer"
GOALS = {TIME: 0.55, PEAK: 0.5}


def figures(plan: Plan) -> Iterator[Figure]:
    contestants = _contestants()
    taken = seconds(CASE, contestants, plan)
    with no_page_faults():
        smooth = seconds("the same without page faults", contestants, plan)
    peak = {contestant.name: peak_bytes(contestant) for contestant in contestants}
    for contestant in contestants:
        name, peer = contestant.name, contestant.against
        yield contestant.figure(CASE, "ms", 1e3 * taken[name])
        if peer is not None:
            yield contestant.figure(CASE, TIME, taken[name] / taken[peer])
            yield contestant.figure(CASE, "the same, no page faults", smooth[name] / smooth[peer])
        yield contestant.figure(CASE, "time / plain softmax", taken[name] / taken[SOFTMAX])
        yield contestant.figure(CASE, "three products / time", taken[PRODUCTS] / taken[name])
        yield contestant.figure(CASE, "peak MB", peak[name] / 1e6)
        if peer is not None:
            yield contestant.figure(CASE, PEAK, peak[name] / peak[peer])


def _contestants() -> list[Contestant]:
    x = torch.randn(BATCH, SIZE, requires_grad=True)
    labels = torch.randint(CLASSES, (BATCH,))
    pairs: list[tuple[nn.Module, nn.Module]] = [
        # the peer does not anneal: λ = 0 computes the same
        (ASoftmaxLoss(CLASSES, SIZE, annealing=lambda step: 0 * step), peers.SphereFaceLoss(CLASSES, SIZE, margin=4)),
        (ArcFaceLoss(CLASSES, SIZE, 0.5, 64), peers.ArcFaceLoss(CLASSES, SIZE, math.degrees(0.5), 64)),
        (AMSoftmaxLoss(CLASSES, SIZE, 0.35, 64), peers.CosFaceLoss(CLASSES, SIZE, margin=0.35, scale=64)),
    ]
    contestants = []
    for ours, peer in pairs:
        peer.W.data = ours.weight.detach().T.contiguous()
        theirs = Contestant(f"their {type(peer).__name__}", partial(peer, x, labels), (x, *peer.parameters()))
        leaves = (x, *ours.parameters())
        fast = Contestant(type(ours).__name__, partial(ours, x, labels), leaves, theirs.name, GOALS)
        check_same(fast, theirs)
        contestants += [fast, theirs]
    weight, grad = pairs[0][0].weight, torch.randn(BATCH, CLASSES)
    plain = Contestant(SOFTMAX, lambda: F.cross_entropy(F.linear(x, weight), labels), (x, weight))
    return [*contestants, plain, Contestant(PRODUCTS, partial(_products, x.detach(), weight.detach(), grad))]


def _products(x: Tensor, weight: Tensor, grad: Tensor) -> Tensor:
    """Compute the products every linear head needs: logits, gradient of the embeddings, gradient of the weight."""
    F.linear(x, weight)
    grad @ weight
    return grad.T @ x
