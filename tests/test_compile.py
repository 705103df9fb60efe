"""torch.compile of spherical layers, loss heads and rotated networks: the values and gradients of eager mode."""

import copy
from itertools import product

import pytest
import torch
from torch import nn

import hypersphere as hs
from tests.rotated_nets import (
    check_gradients,
    gradients,
    loss_of,
    optimizer_of,
    rotated_batch,
    rotated_net,
    turned,
)
from tests.sphere_nets import HEADS, SphereNet, sphere_batch


def check_compiled(net, backend, *inputs):
    torch.compiler.reset()
    other = copy.deepcopy(net)
    compiled = torch.compile(other, fullgraph=True, backend=backend)
    for _ in range(2):  # an annealing step moves in both
        loss, expected = compiled(*inputs).sum(), net(*inputs).sum()
        assert torch.allclose(loss, expected, rtol=1e-4)
    loss.backward()
    expected.backward()
    for (key, a), b in zip(net.named_parameters(), other.parameters(), strict=True):
        assert (a.grad - b.grad).abs().max() <= 1e-4 * a.grad.abs().max(), key
    return other


def test_compile_to_machine_code(device):
    layer = hs.SphereConv2d(3, 8, 3, padding=1, similarity="learnable", device=device)
    check_compiled(layer, "inductor", sphere_batch(device=device)[0])


@pytest.mark.parametrize("name", HEADS)
def test_compile_fullgraph(name, device):
    """The graph that torch.compile captures, with its own backward pass, run by the eager kernels."""
    net = check_compiled(SphereNet(HEADS[name]()).to(device), "aot_eager", *sphere_batch(device=device))
    if name in ("a", "ga"):
        assert net.head.step == 2


def test_compile_with_sizes_and_numbers_that_vary():
    """Two layers share one code: what differs between them must not become a variable of the graph."""
    layers = [hs.SphereLinear(6, 6, similarity=g, scale=s) for g, s in (("sigmoid(0.3)", 2.0), ("sigmoid(0.9)", 3.0))]
    layers += [hs.SphereLinear(6, 6, similarity="linear"), hs.SphereLinear(6, 6, similarity="learnable", scale=True)]
    for nets in (layers[:2], layers[2:], [nn.Sequential(*layers)], [hs.ArcFaceLoss(5, 6)], [hs.ASoftmaxLoss(5, 6)]):
        for dynamic in (None, True):
            torch.compiler.reset()
            for net, size in product(nets, (3, 5)):
                compiled = torch.compile(net.eval(), fullgraph=True, backend="aot_eager", dynamic=dynamic)
                inputs = (torch.randn(size, 6), torch.randint(5, (size,)))[: 2 if hasattr(net, "num_classes") else 1]
                assert torch.allclose(compiled(*inputs), net(*inputs), atol=1e-4)


def test_compile_does_not_check_labels_but_eager_does():
    head = hs.ArcFaceLoss(5, 16)
    with pytest.raises(ValueError, match="labels must be in"):
        head(torch.randn(2, 16), torch.tensor([0, 9]))
    compiled = torch.compile(head, fullgraph=True, backend="aot_eager")
    assert compiled(torch.randn(2, 16), torch.tensor([0, 1])).isfinite()


@pytest.mark.parametrize("cell", [hs.SphereRNN, hs.SphereGRU, hs.SphereLSTM])
def test_compile_recurrent(cell):
    torch.compiler.reset()
    layer = cell(4, 5, bidirectional=True, similarity="learnable")
    x = torch.randn(2, 2, 4)
    output = torch.compile(layer, fullgraph=True, backend="aot_eager")(x)[0]
    assert torch.allclose(output, layer(x)[0], atol=1e-6)


def check_rotated_compiled(model, backend, x, y):
    torch.compiler.reset()
    other = copy.deepcopy(model)
    compiled = torch.compile(other, fullgraph=True, backend=backend)
    for each in (compiled, model):
        loss_of(each, x, y).backward()
    torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)
    check_gradients(gradients(other), gradients(model), 1e-3)


def test_compile_rotated_to_machine_code():
    model = turned(hs.rotate(nn.Sequential(nn.Linear(10, 6), nn.ReLU(), nn.Linear(6, 4))))
    check_rotated_compiled(model, "inductor", torch.randn(8, 10), torch.arange(8) % 4)


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("exponential", {}),
        ("gram_schmidt", {}),
        ("lowdin", {}),
        ("ogd", {}),
        ("cayley", {"sample": 0.25}),
        ("cayley", {"blocks": 3}),
        ("cayley", {"blocks": 3, "share_blocks": True}),
        ("network", {}),
    ],
    ids=lambda value: ("-".join(value) or "whole") if isinstance(value, dict) else value,
)
def test_compile_rotated_fullgraph(method, options):
    check_rotated_compiled(turned(rotated_net(method, **options), method), "aot_eager", *rotated_batch())


def test_compiled_training_sees_folds():
    """Nothing of a draw is baked into the graph: after a fold the compiled network is still the eager one."""
    torch.compiler.reset()
    model = rotated_net(sample=0.25)
    compiled, optimizer = torch.compile(model, fullgraph=True, backend="aot_eager"), optimizer_of(model)
    resampler, (x, y) = hs.Resampler(model, optimizer, inner=2), rotated_batch()
    for _ in range(5):
        optimizer.zero_grad()
        loss_of(compiled, x, y).backward()
        optimizer.step()
        resampler.step()
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-5, atol=1e-5)
