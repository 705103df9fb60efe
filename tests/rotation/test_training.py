"""Rotated networks in training: energy and orthogonality that last, penalties, blocks."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import hypersphere as hs
from tests.rotated_nets import error, matrix_of

pytestmark = pytest.mark.slow

ORTHOGONAL = ["cayley", "exponential", "gram_schmidt", "householder", "lowdin", "canonical"]
OPTIMIZERS = {  # fused: the same updates in half the time
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, fused=True),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, weight_decay=0.01, fused=True),
}
D, N, CLASSES = 24, 16, 4


def small():
    return nn.Sequential(nn.Linear(D, N), nn.ReLU(), nn.Linear(N, CLASSES))


def numbers_of(layer, method):
    """P under the name that a state_dict gives it."""
    return layer.get_parameter(f"parametrizations.weight.0.default.{method}")


def energy(layer):
    return hs.hyperspherical_energy(layer.weight.detach()).item()


def train(model, optimizer, steps):
    """The losses of the first and the last step."""
    generator = torch.Generator().manual_seed(7)
    x, y = torch.randn(24, D, generator=generator), torch.randint(CLASSES, (24,), generator=generator)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        losses.append(F.cross_entropy(model(x), y))
        losses[-1].backward()
        optimizer.step()
    return losses[0].item(), losses[-1].item()


# what must hold over many steps


@pytest.mark.parametrize(("method", "optimizer"), [*((method, "adamw") for method in ORTHOGONAL), ("cayley", "sgd")])
def test_energy_and_orthogonality_last(method, optimizer):
    """Training turns R and nothing else happens to the neurons: their energy, their lengths, R's orthogonality."""
    net = hs.rotate(small(), method, init="normal" if method == "canonical" else "identity")
    net.requires_grad_(True)  # trains nothing that it should not: weight decay would shrink the neurons
    layer = net[0]
    start, before, neurons = matrix_of(layer), energy(layer), layer.parametrizations.weight.original.clone()
    lengths = layer.weight.detach().norm(dim=1)
    first, last = train(net, OPTIMIZERS[optimizer](net.parameters()), steps=150)
    assert last < 0.5 * first
    r = matrix_of(layer)
    assert energy(layer) == pytest.approx(before, rel=1e-5)
    assert error(r) <= 1e-5
    assert (r - start).norm() > 0.5
    assert torch.equal(layer.parametrizations.weight.original, neurons)
    torch.testing.assert_close(layer.weight.detach().norm(dim=1), lengths, rtol=1e-5, atol=0)
    torch.testing.assert_close(layer.weight.detach(), neurons @ r.T, rtol=0, atol=1e-5)


LENGTHS = {"cayley": 8, "exponential": 2, "gram_schmidt": 2, "householder": 2, "givens": 2, "lowdin": 1}


@pytest.mark.parametrize(("method", "length"), LENGTHS.items())
def test_first_steps_from_the_identity_have_one_direction_and_these_lengths(method, length):
    """docs/rotation.md: which learning rates of two methods compare."""
    torch.manual_seed(0)
    base = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)).double()
    inputs, labels = torch.randn(20, 6, dtype=torch.float64), torch.arange(20) % 3

    def first_step(method):
        net = hs.rotate(copy.deepcopy(base), method)
        groups = hs.param_groups(net, ogd=method == "ogd")
        optimizer = hs.OGD(groups, lr=1e-6) if method == "ogd" else torch.optim.SGD(groups, lr=1e-6)
        before = net[0].weight.detach().clone()
        nn.functional.cross_entropy(net(inputs), labels).backward()
        optimizer.step()
        return net[0].weight.detach() - before

    torch.testing.assert_close(first_step(method), length * first_step("ogd"), rtol=1e-4, atol=1e-11)


# regularized


def penalty_by_hand(net, layers, weight, squared):
    """weight·Σ‖RᵀR − I‖²_F of the layers' whole matrices, or of the norms themselves."""
    total = 0.0
    for index in layers:
        r = matrix_of(net[index]).double()
        norm = (r.T @ r - torch.eye(len(r), dtype=r.dtype)).norm().item()
        total += weight * (norm**2 if squared else norm)
    return total


def perturbed(net, method="regularized", size=0.1):
    with torch.no_grad():
        for name, parameter in net.named_parameters():
            if name.endswith(f".{method}"):
                parameter.add_(size * torch.randn_like(parameter))
    return net


@pytest.mark.parametrize("squared", [True, False])
def test_penalty_is_the_literal_sum(squared):
    net = nn.Sequential(nn.Linear(6, 5), nn.Conv1d(4, 3, 2), nn.Linear(7, 5), nn.Linear(8, 4), nn.Linear(4, 2))
    hs.rotate(net, "cayley", layers="2")
    hs.rotate(net, "unconstrained", layers="3")
    perturbed(hs.rotate(net, "regularized", layers=["0", "1"]))
    perturbed(net, "unconstrained")
    for weight in (0.1, 3.0):
        value = hs.rotation.rotation_penalty(net, weight, squared=squared)
        assert value.shape == ()
        assert value.item() == pytest.approx(penalty_by_hand(net, (0, 1), weight, squared), rel=1e-5)
    assert hs.rotation.rotation_penalty(net).item() == pytest.approx(penalty_by_hand(net, (0, 1), 0.1, True), rel=1e-5)
    hs.rotation.rotation_penalty(net, squared=squared).backward()
    touched = {name for name, p in net.named_parameters() if p.grad is not None and p.grad.any()}
    assert touched == {f"{i}.parametrizations.weight.0.default.regularized" for i in (0, 1)}


@pytest.mark.parametrize("squared", [True, False])
@pytest.mark.parametrize("share_blocks", [False, True])
def test_penalty_of_blocks_is_that_of_the_whole_matrix(share_blocks, squared):
    """R of a layer with blocks is the block diagonal matrix (Eq. 47, 48), also where all blocks are one."""
    net = nn.Sequential(nn.Linear(12, 5), nn.Linear(5, 2))
    perturbed(hs.rotate(net, "regularized", blocks=3, share_blocks=share_blocks))
    expected = penalty_by_hand(net, (0,), 0.1, squared)
    assert hs.rotation.rotation_penalty(net, squared=squared).item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("squared", [True, False])
def test_penalty_at_the_identity(squared):
    net = hs.rotate(small(), "regularized")
    value = hs.rotation.rotation_penalty(net, squared=squared)
    value.backward()
    assert value.item() == 0.0
    assert numbers_of(net[0], "regularized").grad.isfinite().all()


@pytest.mark.parametrize("model", [small, lambda: hs.rotate(small(), "unconstrained")])
def test_penalty_needs_a_regularized_layer(model):
    with pytest.raises(ValueError, match="regularized"):
        hs.rotation.rotation_penalty(model())


@pytest.mark.parametrize("weight", [-1.0, "0.1"])
def test_penalty_refuses_a_wrong_weight(weight):
    with pytest.raises((ValueError, TypeError), match="weight"):
        hs.rotation.rotation_penalty(hs.rotate(small(), "regularized"), weight)


# blocks (PE-OPT)


def blocks_by_hand(r, k):
    """The k blocks on the diagonal of R, and what is left beside them."""
    m = len(r) // k
    blocks = torch.stack([r[i * m : i * m + m, i * m : i * m + m] for i in range(k)])
    return blocks, r - torch.block_diag(*blocks)


@pytest.mark.parametrize(
    ("method", "share_blocks"), [("cayley", True), ("gram_schmidt", False), ("ogd", False), ("ogd", True)]
)
def test_blocks_are_on_the_diagonal(method, share_blocks):
    net = hs.rotate(small(), method, blocks=4, share_blocks=share_blocks)
    before, numbers = energy(net[0]), numbers_of(net[0], method)
    assert len(numbers) == (1 if share_blocks else 4)
    groups = hs.param_groups(net, ogd=method == "ogd")
    first, last = train(net, hs.OGD(groups, lr=0.05) if method == "ogd" else torch.optim.Adam(groups, lr=0.01), 40)
    assert last < first
    blocks, rest = blocks_by_hand(matrix_of(net[0]), 4)
    assert not rest.any()
    stored = hs.orthogonal.ORTHOGONALIZERS[method].matrix(numbers.detach())
    torch.testing.assert_close(blocks, stored.expand(4, -1, -1), rtol=0, atol=1e-5)
    assert all((block - torch.eye(6)).norm() > 0.05 for block in blocks)
    assert (torch.equal(blocks[0], blocks[1])) == share_blocks
    assert error(matrix_of(net[0])) <= 1e-5
    assert energy(net[0]) == pytest.approx(before, rel=1e-5)


@pytest.mark.parametrize("share_blocks", [False, True], ids=["independent", "shared"])
@pytest.mark.parametrize(
    "conv", [lambda: nn.Conv2d(12, 8, (2, 3), groups=2), lambda: nn.Conv1d(6, 8, 4)], ids=["grouped", "1d"]
)
def test_blocks_never_cross_a_channel(conv, share_blocks):
    """Six channels a filter in three blocks: what R mixes lies in the same pair of channels, and there it mixes all."""
    layer = conv()
    weight = layer.weight.detach().clone()
    hs.rotate(layer, "cayley", blocks=3, share_blocks=share_blocks)
    with torch.no_grad():
        numbers_of(layer, "cayley").normal_()
    channel = torch.arange(6).repeat_interleave(weight[0, 0].numel())
    inside = channel[:, None] // 2 == channel // 2
    r = matrix_of(layer)
    assert not r[~inside].any()
    assert r[inside].abs().min() > 0
    assert error(r) <= 1e-5
    torch.testing.assert_close(layer.weight.detach().flatten(1), weight.flatten(1) @ r.T, rtol=0, atol=1e-5)


@pytest.mark.parametrize("share_blocks", [False, True])
def test_blocks_and_block_size_are_one(share_blocks):
    nets = []
    for options in ({"blocks": 3}, {"block_size": 18}):
        torch.manual_seed(1)
        nets.append(hs.rotate(nn.Conv2d(6, 8, 3), init="normal", share_blocks=share_blocks, **options))
    assert torch.equal(nets[0].weight, nets[1].weight)
    states = [net.state_dict() for net in nets]
    assert {k: v.shape for k, v in states[0].items()} == {k: v.shape for k, v in states[1].items()}
    assert numbers_of(nets[1], "cayley").shape == (1 if share_blocks else 3, 18 * 17 // 2)


@pytest.mark.parametrize("options", [{"blocks": 4}, {"block_size": 8}], ids=["blocks", "block_size"])
def test_a_layer_that_cannot_be_split_stays_whole(options):
    """Three channels of four numbers: twelve numbers can be split in four, but not along channels."""
    net = nn.Sequential(nn.Conv2d(3, 5, 2), nn.Conv2d(8, 7, 2), nn.Flatten(), nn.Linear(32, 3), nn.Linear(3, 2))
    ((key, value),) = options.items()
    with pytest.warns(UserWarning, match=rf"{key}={value} does not fit 0 \(3 channels of 4\): rotated whole"):
        hs.rotate(net, **options)
    shapes = {i: tuple(numbers_of(net[i], "cayley").shape) for i in (0, 1, 3)}
    assert shapes[0] == (1, 12 * 11 // 2)
    assert shapes[1] == shapes[3] == (4, 8 * 7 // 2)
