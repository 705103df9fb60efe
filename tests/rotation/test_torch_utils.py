"""Rotated networks with torch's training utilities: checkpointing, autocast, clipping, schedules, averages."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import hypersphere as hs
from tests.rotated_nets import (
    ROTATED,
    error,
    gradients,
    loss_of,
    matrix_of,
    optimizer_of,
    rotated_batch,
    rotated_net,
    turned,
)
from tests.rotations import shake

pytestmark = pytest.mark.slow

METHODS = ["cayley", "gram_schmidt"]


# checkpointing, copies, merging


@pytest.mark.parametrize("use_reentrant", [False, True])
@pytest.mark.parametrize("options", [{}, {"sample": 0.25}], ids=["whole", "sampled"])
def test_gradient_checkpointing_is_exact(options, use_reentrant):
    model, (x, y) = turned(rotated_net(**options)), rotated_batch()
    loss_of(model, x, y).backward()
    expected = gradients(model)
    model.zero_grad()
    F.cross_entropy(checkpoint(model, x.requires_grad_(), use_reentrant=use_reentrant), y).backward()
    ours = gradients(model)
    assert set(ours) == set(expected)
    assert all(torch.equal(ours[name], expected[name]) for name in expected)


# bfloat16


@pytest.mark.parametrize("method", [*METHODS, "ogd"])
def test_autocast_leaves_the_factorization_in_float32(method):
    model, (x, y) = rotated_net(method), rotated_batch()
    if method != "ogd":
        turned(model, method)
    weights = [getattr(model, name).weight.detach().clone() for name in ROTATED]
    with torch.autocast("cpu", torch.bfloat16):
        inside = [getattr(model, name).weight for name in ROTATED]
        assert model(x).dtype == torch.bfloat16
    for ours, weight in zip(inside, weights, strict=True):
        assert ours.dtype == torch.float32
        assert torch.equal(ours, weight)
    optimizer, losses = optimizer_of(model, method), []
    before = [hs.hyperspherical_energy(weight).item() for weight in weights]
    for _ in range(30):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_of(model, x, y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    for name, value in zip(ROTATED, before, strict=True):
        layer = getattr(model, name)
        assert layer.get_parameter(f"parametrizations.weight.0.default.{method}").dtype == torch.float32
        assert error(matrix_of(layer)) <= 1e-5
        assert hs.hyperspherical_energy(layer.weight.detach()).item() == pytest.approx(value, rel=1e-5)


def test_folding_under_autocast_is_exact():
    model, (x, _) = rotated_net(sample=0.25), rotated_batch()
    turned(model)
    resampler = hs.Resampler(model, optimizer_of(model))
    output = model(x)
    with torch.autocast("cpu", torch.bfloat16):
        resampler.resample()
    torch.testing.assert_close(model(x), output, rtol=0, atol=1e-5)


# what a training loop has besides


def test_backward_under_autocast_is_exact():
    net = shake(hs.rotate(nn.Linear(12, 6), "gram_schmidt"))
    coefficients = torch.randn(6, 12)
    p = net.parametrizations.weight[0].default.gram_schmidt
    (expected,) = torch.autograd.grad((net.weight * coefficients).sum(), p)
    with torch.autocast("cpu", torch.bfloat16):
        (got,) = torch.autograd.grad((net.weight * coefficients).sum(), p)
    assert torch.equal(got, expected)
