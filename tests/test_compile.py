"""torch.compile of spherical layers, loss heads and rotated networks: the values and gradients of eager mode.

One graph carries many checks: capturing it takes longer than running it.
"""

import copy

import pytest
import torch
from torch import nn

import hypersphere as hs
from tests.rotated_nets import loss_of, optimizer_of, rotated_batch, rotated_net, turned
from tests.sphere_nets import HEADS, SphereNet, sphere_batch

pytestmark = pytest.mark.slow


class Losses(nn.Module):
    """The loss of every head on the embeddings of one network."""

    def __init__(self) -> None:
        super().__init__()
        self.body = SphereNet()
        self.heads = nn.ModuleDict({name: make() for name, make in HEADS.items()})

    def forward(self, x, y):
        embeddings = self.body(x)
        return torch.stack([head(embeddings, y) for head in self.heads.values()])


class Branches(nn.ModuleList):
    """The outputs of several modules for the same input."""

    def forward(self, x):
        outputs = [branch(x) for branch in self]
        return torch.stack([y[0] if isinstance(y, tuple) else y for y in outputs])


def check_compiled(net, backend, *inputs, tolerance=1e-4):
    torch.compiler.reset()
    other = copy.deepcopy(net)
    compiled = torch.compile(other, fullgraph=True, backend=backend)
    for _ in range(2):  # an annealing step moves in both
        outputs, expected = compiled(*inputs), net(*inputs)
        torch.testing.assert_close(outputs, expected, rtol=1e-4, atol=1e-5)
    outputs.sum().backward()
    expected.sum().backward()
    for (key, a), b in zip(net.named_parameters(), other.parameters(), strict=True):
        assert a.requires_grad is (a.grad is not None) is (b.grad is not None), key
        if a.requires_grad:
            assert (a.grad - b.grad).abs().max() <= tolerance * a.grad.abs().max(), key
    return other


def test_to_machine_code(device):
    net = nn.Sequential(
        hs.SphereConv2d(3, 8, 3, padding=1, similarity="learnable"),
        nn.AvgPool2d(8),
        nn.Flatten(),
        turned(hs.rotate(nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 4)))),
    )
    check_compiled(net.to(device), "inductor", sphere_batch(device=device)[0], tolerance=1e-3)


def test_every_head_in_one_graph(device):
    """The graph that torch.compile captures, with its own backward pass, run by the eager kernels."""
    net = check_compiled(Losses().to(device), "aot_eager", *sphere_batch(device=device))
    assert net.heads["a"].step == net.heads["ga"].step == 2


ROTATIONS = [
    ("exponential", {}),
    ("gram_schmidt", {}),
    ("lowdin", {}),
    ("ogd", {}),
    ("cayley", {"sample": 0.25}),
    ("cayley", {"blocks": 3}),
    ("cayley", {"blocks": 3, "share_blocks": True}),
    ("network", {}),
]


def test_gradients_of_float16_stay_finite():
    torch.manual_seed(0)
    head = hs.ArcFaceLoss(10, 8).half()
    with torch.no_grad():
        head.weight.mul_(1e-3)
    x = (1e-3 * torch.randn(4, 8)).half().requires_grad_()
    (1000 * torch.compile(head, fullgraph=True, backend="aot_eager")(x, torch.arange(4))).backward()
    largest = torch.finfo(torch.float16).max
    assert x.grad.abs().max() == largest
    assert head.weight.grad.abs().max() == largest


def test_every_rotation_in_one_graph():
    net = Branches(
        turned(hs.rotate(nn.Sequential(nn.Linear(12, 9), nn.ReLU(), nn.Linear(9, 4)), method, **options), method)
        for method, options in ROTATIONS
    )
    check_compiled(net, "aot_eager", torch.randn(8, 12), tolerance=1e-3)
    learned = [p for name, p in net.named_parameters() if p.requires_grad and "parametrizations" in name]
    assert len(learned) == len(ROTATIONS)
    assert all(p.grad.any() for p in learned)


def test_sizes_and_numbers_that_vary():
    """Two layers share one code: what differs between them must not become a variable of the graph."""
    numbers = [hs.SphereLinear(6, 6, similarity=g, scale=s) for g, s in (("sigmoid(0.3)", 2.0), ("sigmoid(0.9)", 3.0))]
    kinds = [hs.SphereLinear(6, 6, similarity="linear"), hs.SphereLinear(6, 6, similarity="learnable", scale=True)]
    heads = [(nets, None) for nets in ([hs.ArcFaceLoss(5, 6)] * 2, [hs.ASoftmaxLoss(5, 6)] * 2)]
    for nets, dynamic in ((numbers, None), (numbers, True), (kinds, None), (kinds, True), *heads):
        torch.compiler.reset()
        for net, size in zip(nets, (3, 5), strict=True):
            compiled = torch.compile(net.eval(), fullgraph=True, backend="aot_eager", dynamic=dynamic)
            inputs = (torch.randn(size, 6), torch.randint(5, (size,)))[: 2 if hasattr(net, "num_classes") else 1]
            with torch.set_grad_enabled(nets is numbers and not dynamic):  # a backward pass of one is enough
                assert torch.allclose(compiled(*inputs), net(*inputs), atol=1e-4)


def test_labels_are_checked_in_eager_mode_only():
    head = hs.ArcFaceLoss(5, 16)
    with pytest.raises(ValueError, match="labels must be in"):
        head(torch.randn(2, 16), torch.tensor([0, 9]))
    compiled = torch.compile(head, fullgraph=True, backend="aot_eager")
    assert compiled(torch.randn(2, 16), torch.tensor([0, 1])).isfinite()


def test_recurrent_layers():
    cells = (hs.SphereRNN, hs.SphereGRU, hs.SphereLSTM)
    check_compiled(Branches([hs.SphereGRU(4, 5, similarity="learnable")]), "aot_eager", torch.randn(2, 2, 4))
    torch.compiler.reset()
    net, x = Branches(cell(4, 5, bidirectional=True, similarity="learnable") for cell in cells), torch.randn(2, 2, 4)
    with torch.no_grad():
        outputs = torch.compile(net, fullgraph=True, backend="aot_eager")(x)
        torch.testing.assert_close(outputs, net(x), rtol=0, atol=1e-6)


def test_training_sees_folds():
    """Nothing of a draw is baked into the graph: after a fold the compiled network is still the eager one."""
    torch.compiler.reset()
    model = rotated_net(sample=0.25)
    compiled, optimizer = torch.compile(model, fullgraph=True, backend="aot_eager"), optimizer_of(model)
    resampler, (x, y) = hs.Resampler(model, optimizer, every=2), rotated_batch()
    for _ in range(5):
        optimizer.zero_grad()
        loss_of(compiled, x, y).backward()
        optimizer.step()
        resampler.step()
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-5, atol=1e-5)
