"""OGD: its equations step by step, the order of its iterations, orthogonality that lasts, and SGD beside it."""

import io
import itertools
import math
from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import hypersphere as hs
from hypersphere.optim.ogd import OGD, _cayley_step
from tests.rotated_nets import error
from tests.rotations import mlp

pytestmark = pytest.mark.slow


def orthogonal(*shape, dtype=torch.float32):
    return torch.linalg.qr(torch.randn(*shape, shape[-1], dtype=torch.float64))[0].to(dtype)


def skew(*shape):
    a = torch.randn(*shape, shape[-1], dtype=torch.float64)
    return a - a.mT


def optimizer_of(*parameters, lr=0.1, **options):
    return OGD([{"params": parameters, "orthogonal": True}], lr=lr, **options)


def literal_curve(x, w, step, iterations):
    """Eq. 3 with its inverse, Eq. 4 as it stands."""
    if iterations is None:
        identity = torch.eye(x.shape[-1], dtype=x.dtype)
        return torch.linalg.inv(identity - step / 2 * w) @ (identity + step / 2 * w) @ x
    y = x + step * w @ x
    for _ in range(iterations):
        y = x + step / 2 * w @ (x + y)
    return y


def literal_step(x, m, gradient, lr, momentum, iterations):
    """One step for one matrix in the order of the paper, then the nearest orthogonal matrix by an SVD."""
    m = momentum * m - gradient
    w = m @ x.T - x @ (x.T @ m @ x.T) / 2
    w = w - w.T
    step = min(lr, 1 / (w.square().sum().sqrt().item() + 1e-8))
    u, _, vt = torch.linalg.svd(literal_curve(x, w, step, iterations))
    return u @ vt, w @ x


class Matching(nn.Module):
    """½‖XV − T‖² with a target that a rotation can reach."""

    def __init__(self, m=12, n=5, blocks=(), dtype=torch.float32):
        super().__init__()
        torch.manual_seed(1)
        self.x = nn.Parameter(orthogonal(*blocks, m, dtype=dtype))
        self.v = torch.randn(*blocks, m, n, dtype=torch.float64).to(dtype)
        turn = torch.linalg.matrix_exp(0.1 * skew(*blocks, m)).to(dtype)
        self.target = turn @ self.x.detach() @ self.v
        self.bias = nn.Parameter(torch.zeros(n, dtype=dtype))

    def forward(self):
        return (self.x @ self.v + self.bias - self.target).square().sum() / 2

    def groups(self):
        return [{"params": [self.x], "orthogonal": True}, {"params": [self.bias], "weight_decay": 0.01}]


def train(model, optimizer, steps):
    for _ in range(steps):
        optimizer.zero_grad()
        model().backward()
        optimizer.step()
    return model().item()


# the equations


@pytest.mark.parametrize("iterations", [1, 2, None])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize(("lr", "atol"), [(0.003, 1e-9), (10.0, 1e-6)], ids=["short steps", "longest steps"])
def test_many_steps_as_the_paper_writes_them(iterations, momentum, lr, atol):
    x = nn.Parameter(orthogonal(6, dtype=torch.float64))
    expected, m = x.detach().clone(), torch.zeros(6, 6, dtype=torch.float64)
    optimizer = optimizer_of(x, lr=lr, momentum=momentum, iterations=iterations)
    for _ in range(30):
        x.grad = torch.randn(6, 6, dtype=torch.float64)
        before = x.grad.clone()
        expected, m = literal_step(expected, m, x.grad, lr, momentum, iterations)
        optimizer.step()
        assert torch.equal(x.grad, before)
        torch.testing.assert_close(x.detach(), expected, rtol=0, atol=30 * atol)
    assert ("momentum_buffer" in optimizer.state[x]) == (momentum > 0)


@pytest.mark.parametrize("iterations", [1, 2, 3])
def test_order_of_the_iterations(iterations):
    """n iterations are O(λⁿ⁺²) from the exact form: halving λ divides the error by 2ⁿ⁺²."""
    x, w = orthogonal(5, dtype=torch.float64), skew(5)
    steps = [0.02 / 2**k for k in range(4)]
    errors = [
        (_cayley_step(x, w, w @ x, step, iterations) - _cayley_step(x, w, w @ x, step, None)).norm() for step in steps
    ]
    for coarse, fine in itertools.pairwise(errors):
        assert math.log2(coarse / fine) == pytest.approx(iterations + 2, abs=0.1)


@pytest.mark.parametrize(("size", "λw"), [(0.5, 0.1 * 0.5), (1e4, 1 / math.sqrt(2))], ids=["lr", "1/‖W‖"])
def test_known_angle(size, λw):
    """In the plane Eq. 3 turns by 2·atan(λw/2), with λ = min(lr, 1/‖W‖) and ‖W‖ = √2·w."""
    x = nn.Parameter(torch.eye(2, dtype=torch.float64))
    x.grad = size * torch.tensor([[0.0, 2.0], [0.0, 0.0]], dtype=torch.float64)  # W = −½(G − Gᵀ): it turns to the left
    optimizer_of(x, lr=0.1, iterations=None).step()
    assert math.atan2(x[1, 0].item(), x[0, 0].item()) == pytest.approx(2 * math.atan(λw / 2), abs=1e-9)


def test_a_gradient_that_only_stretches_does_nothing():
    """G = XS with S symmetric has no part along the orthogonal matrices; 1/‖W‖ is 1e8 there."""
    x = nn.Parameter(torch.eye(3))
    s = torch.randn(3, 3)
    x.grad = s + s.mT
    optimizer_of(x, lr=1e6).step()
    assert torch.equal(x, torch.eye(3))


@pytest.mark.parametrize("iterations", [2, None])
def test_blocks_do_not_see_each_other(iterations):
    together = nn.Parameter(orthogonal(2, 3, 5))
    alone = [nn.Parameter(block.clone()) for block in together.detach().flatten(0, 1)]
    sizes = torch.logspace(-3, 3, 6).view(2, 3, 1, 1)  # some blocks take lr, some 1/‖W‖
    optimizers = [optimizer_of(together, iterations=iterations), optimizer_of(*alone, iterations=iterations)]
    for _ in range(5):
        together.grad = sizes * torch.randn(2, 3, 5, 5)
        for block, gradient in zip(alone, together.grad.flatten(0, 1), strict=True):
            block.grad = gradient.clone()
        for optimizer in optimizers:
            optimizer.step()
    torch.testing.assert_close(together.detach().flatten(0, 1), torch.stack([*alone]).detach(), rtol=0, atol=2e-6)


# orthogonality


@pytest.mark.parametrize("iterations", [1, 2, None])
@pytest.mark.parametrize(
    ("m", "rank", "size", "lr", "steps"),
    [
        (16, 1, 100.0, 0.05, 1000),  # λ‖W‖ = 1 in one plane: the worst that can come out of the iterations
        (16, 16, 0.3, 0.05, 400),
        (3, 1, 1.0, 1.0, 500),
        (576, 1, 10.0, 0.05, 12),
    ],
    ids=["one plane", "all planes", "small", "wide, one plane"],
)
def test_orthogonal_for_ever(iterations, m, rank, size, lr, steps):
    x = nn.Parameter(orthogonal(m) if m > 100 else torch.eye(m))
    optimizer = optimizer_of(x, lr=lr, iterations=iterations)
    worst = 0.0
    for i in range(1, steps + 1):
        x.grad = size * torch.randn(m, rank) @ torch.randn(rank, m)
        optimizer.step()
        if i % 4 == 0:
            worst = max(worst, error(x))
    assert worst < 1e-6


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_dtypes(dtype, device):
    x = nn.Parameter(orthogonal(2, 8, dtype=dtype).to(device))
    place = x.data_ptr()
    optimizer = optimizer_of(x)
    for _ in range(20):
        x.grad = torch.randn_like(x)
        optimizer.step()
    assert x.dtype == optimizer.state[x]["momentum_buffer"].dtype == dtype
    assert x.data_ptr() == place
    assert error(x) < {torch.float16: 2e-3, torch.bfloat16: 1e-2, torch.float64: 1e-6}[dtype]


def test_autocast_does_not_reach_it():
    models = [Matching(), Matching()]
    for model, on in zip(models, (True, False), strict=True):
        model().backward()
        with torch.autocast("cpu", torch.bfloat16, enabled=on):
            OGD(model.groups(), lr=0.1).step()
    assert torch.equal(models[0].x, models[1].x)


# SGD beside it


@pytest.mark.parametrize(
    ("rest", "options"), [("sgd", {"momentum": 0.0}), ("sgd", {"momentum": 0.9}), ("adam", {"betas": (0.5, 0.99)})]
)
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_other_groups_step_as_torch_does(rest, options, weight_decay, device):
    ours, theirs = [nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 3), nn.Linear(2, 2)).to(device) for _ in range(2)]
    theirs.load_state_dict(ours.state_dict())
    matrix, alone = [nn.Parameter(torch.eye(3, device=device)) for _ in range(2)]
    options = {"lr": 0.01, "weight_decay": weight_decay} | options
    optimizers = [
        OGD([{"params": [matrix], "orthogonal": True}, {"params": ours.parameters()}], rest=rest, **options),
        {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[rest](theirs.parameters(), **options),
    ]
    plain = optimizer_of(alone, lr=0.01, momentum=options.get("momentum", 0.9))
    for _ in range(10):
        batch = torch.randn(5, 4, device=device)
        matrix.grad = alone.grad = torch.randn_like(matrix)
        for model, optimizer in zip((ours, theirs), optimizers, strict=True):
            model.zero_grad()
            model[1](model[0](batch)).square().sum().backward()  # the third layer gets no gradient
            optimizer.step()
        plain.step()
    for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(p, q)
    assert torch.equal(matrix, alone)
    assert len(optimizers[0].state) == (0 if options.get("momentum") == 0 else 1 + 4)


def test_weight_decay_is_not_for_orthogonal_matrices():
    models = [Matching(), Matching()]
    for model, decay in zip(models, (0.0, 0.5), strict=True):
        train(model, OGD([{"params": [model.x], "orthogonal": True}], lr=0.05, weight_decay=decay), 5)
    assert torch.equal(models[0].x, models[1].x)


# a training


@pytest.mark.parametrize(("iterations", "rest"), [(2, "sgd"), (None, "sgd"), (2, "adam")])
def test_a_resumed_run_is_the_same_run(iterations, rest):
    model = Matching(blocks=(2,))
    optimizer = OGD(model.groups(), lr=0.05, iterations=iterations, rest=rest)
    train(model, optimizer, 5)
    file = io.BytesIO()
    torch.save([model.state_dict(), optimizer.state_dict()], file)
    file.seek(0)
    model_state, optimizer_state = torch.load(file, weights_only=True)

    resumed = Matching(blocks=(2,))
    resumed.load_state_dict(model_state)
    other = OGD(resumed.groups(), lr=0.3, momentum=0.1)  # the state's own options win
    other.load_state_dict(optimizer_state)
    assert [g["orthogonal"] for g in other.param_groups] == [True, False]
    assert other.param_groups[0]["iterations"] == iterations
    train(model, optimizer, 5)
    train(resumed, other, 5)
    assert torch.equal(model.x, resumed.x)
    assert torch.equal(model.bias, resumed.bias)


def test_state_of_other_groups_is_refused():
    """An SGD state says nothing of orthogonal groups: with it the matrices would be stepped by SGD from then on."""
    model = Matching()
    optimizer = OGD(model.groups(), lr=0.1)
    plain = torch.optim.SGD([{"params": [model.x]}, {"params": [model.bias]}], lr=0.1)
    with pytest.raises(ValueError, match="same orthogonal groups"):
        optimizer.load_state_dict(plain.state_dict())
    assert optimizer.param_groups[0]["orthogonal"]
    layer = nn.Linear(2, 2)
    optimizer = OGD(layer.parameters(), lr=0.1)
    optimizer.load_state_dict(torch.optim.SGD(layer.parameters(), lr=0.3).state_dict())
    layer(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    assert (optimizer.param_groups[0]["lr"], optimizer.param_groups[0]["rest"]) == (0.3, "sgd")


def test_closure_and_hooks():
    model, seen = Matching(), []
    optimizer = OGD(model.groups(), lr=0.01)
    optimizer.register_step_post_hook(lambda *_: seen.append(1))

    def closure():
        optimizer.zero_grad()
        loss = model()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() > optimizer.step(closure).item()
    assert len(seen) == 2
    optimizer.zero_grad()
    assert model.x.grad is None
    before = model.x.detach().clone()
    assert optimizer.step() is None
    assert torch.equal(model.x, before)


class _NoReading(TorchDispatchMode):
    """Refuses what would make a GPU wait: the value of a tensor read by Python."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        assert "_local_scalar_dense" not in str(func)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("iterations", [2, None])
def test_a_step_reads_no_value(iterations):
    model = Matching(blocks=(2,))
    optimizer = OGD(model.groups(), lr=0.05, iterations=iterations)
    for _ in range(2):
        model().backward()
        with _NoReading():
            optimizer.step()
    with pytest.raises(AssertionError), _NoReading():
        model.x.sum().item()


# groups and errors


def test_groups_may_come_later_and_have_their_own_options():
    x, y = nn.Parameter(torch.eye(3)), nn.Parameter(torch.eye(3))
    optimizer = OGD([{"params": x, "orthogonal": True, "lr": 0.02}], lr=torch.tensor(0.1))
    optimizer.add_param_group({"params": [y], "orthogonal": True, "iterations": None, "momentum": 0.0})
    assert [g["lr"] for g in optimizer.param_groups] == [0.02, 0.1]
    x.grad = y.grad = torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    optimizer.step()
    assert x[1, 0].item() == pytest.approx(0.02 / 2, rel=1e-3)
    assert y[1, 0].item() == pytest.approx(0.1 / 2, rel=1e-2)
    assert optimizer.state.keys() == {x}


@pytest.mark.parametrize(
    ("options", "kind", "match"),
    [
        ({"lr": -0.1}, ValueError, r"lr must be .*>= 0.*-0\.1"),
        ({"lr": "0.1"}, TypeError, "lr must be a number"),
        ({"momentum": 1.0}, ValueError, "momentum must be >= 0 and < 1, got 1.0"),
        ({"weight_decay": -1.0}, ValueError, "weight_decay"),
        ({"iterations": 0}, ValueError, "iterations must be >= 1, got 0"),
        ({"iterations": 2.0}, TypeError, "iterations must be an int"),
        ({"orthogonal": "yes"}, TypeError, "orthogonal must be True or False, got 'yes'"),
    ],
)
def test_bad_options(options, kind, match):
    parameter = nn.Parameter(torch.eye(2))
    if "orthogonal" not in options:  # a group's own
        with pytest.raises(kind, match=match):
            OGD([parameter], **{"lr": 0.1, **options})
    with pytest.raises(kind, match=match):
        OGD([{"params": [parameter], **options}], lr=0.1)


@pytest.mark.parametrize(
    ("tensor", "kind", "match"),
    [
        (torch.zeros(3, 4), ValueError, r"square matrices .*\(3, 4\)"),
        (torch.zeros(3), ValueError, r"\(3,\)"),
        (torch.zeros(0, 3, 3), ValueError, r"\(0, 3, 3\)"),
        (torch.eye(3, dtype=torch.int64), TypeError, r"int64 \(3, 3\)"),
        (2 * torch.eye(3), ValueError, r"orthogonal matrices, got \(3, 3\) with max.* = 3"),
        (torch.full((2, 2), float("nan")), ValueError, "nan"),
    ],
    ids=["not square", "vector", "empty", "integer", "not orthogonal", "nan"],
)
def test_bad_orthogonal_parameters(tensor, kind, match):
    good = nn.Parameter(torch.eye(2))
    with pytest.raises(kind, match=match):
        OGD([{"params": [good, tensor], "orthogonal": True}], lr=0.1)
    optimizer = optimizer_of(good)
    with pytest.raises(kind, match=match):
        optimizer.add_param_group({"params": [tensor], "orthogonal": True})
    assert len(optimizer.param_groups) == 1
    if tensor.is_floating_point():
        OGD([tensor], lr=0.1)  # SGD takes what it always took


# a rotated network


def rotated_net(**options):
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.Linear(24, 8), nn.Linear(8, 3)
    )
    return hs.rotate(net, "ogd", **options)


def loss_of(net):
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(32, 4, 4, 4, generator=generator)
    return nn.functional.cross_entropy(net(images), torch.arange(32) % 3)


@pytest.mark.parametrize(("iterations", "options"), [(2, {"blocks": 2}), (None, {"init": "normal"})])
def test_a_network_learns_and_keeps_its_energy(iterations, options):
    net = rotated_net(**options)
    layers = [net[0], net[4]]
    energies = [hs.hyperspherical_energy(layer.weight).item() for layer in layers]
    optimizer = OGD(hs.param_groups(net, 5e-4, ogd=True), lr=0.05, iterations=iterations)
    before = loss_of(net).item()
    for _ in range(100):
        optimizer.zero_grad()
        loss_of(net).backward()
        optimizer.step()
    assert loss_of(net).item() < 0.5 * before
    (matrices,) = [group["params"] for group in optimizer.param_groups if group["orthogonal"]]
    assert max(map(error, matrices)) < 1e-6
    after = [hs.hyperspherical_energy(layer.weight).item() for layer in layers]
    assert after == pytest.approx(energies, rel=1e-5)


# other optimizers are refused


OTHERS = {
    "SGD": lambda groups: torch.optim.SGD(groups, lr=0.1),
    "Adam": lambda groups: torch.optim.Adam(groups, lr=0.1),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_optimizers_are_refused(name):
    net = rotated_net()
    loss_of(net).backward()
    before = {key: value.clone() for key, value in net.state_dict().items()}
    optimizer = OTHERS[name](hs.param_groups(net, ogd=True))
    with pytest.raises(ValueError, match=rf"{name} would not keep .* 'orthogonal' orthogonal.*hypersphere\.OGD"):
        optimizer.step()
    assert all(torch.equal(value, before[key]) for key, value in net.state_dict().items())
    OTHERS[name](net[5].parameters()).step()  # what holds no such group goes on
    OGD(hs.param_groups(net, ogd=True), lr=0.1).step()
    assert not torch.equal(net.state_dict()["5.weight"], before["5.weight"])


def test_a_group_without_a_name_is_named_by_its_number():
    hs.param_groups(hs.rotate(nn.Linear(3, 3), "ogd"), ogd=True)  # from now on optimizers are checked
    x = nn.Parameter(torch.eye(3))
    with pytest.raises(ValueError, match="group 1 orthogonal"):
        torch.optim.SGD([{"params": [nn.Parameter(torch.eye(2))]}, {"params": [x], "orthogonal": True}], lr=1.0).step()


@pytest.mark.parametrize("inner", [OGD, torch.optim.SGD], ids=["OGD", "SGD"])
def test_a_wrapper_is_judged_by_what_it_holds(inner):
    """As torch's ZeroRedundancyOptimizer: an optimizer with the same groups that steps another."""

    class Wrapper(torch.optim.Optimizer):
        def __init__(self, groups):
            super().__init__(groups, {})
            self.optim = inner(groups, lr=0.1)

        def step(self, closure=None):
            return self.optim.step(closure)

    net = rotated_net()
    loss_of(net).backward()
    wrapper = Wrapper(hs.param_groups(net, ogd=True))
    with nullcontext() if inner is OGD else pytest.raises(ValueError, match="would not keep"):
        wrapper.step()


@pytest.mark.parametrize("make", [hs.OGD, torch.optim.SGD])
def test_ogd_matrices_in_a_plain_group_are_refused(make):
    net = hs.rotate(mlp(), "ogd")
    before = {name: value.clone() for name, value in net.state_dict().items()}
    net(torch.randn(4, net[0].in_features, dtype=net[0].weight.dtype)).square().sum().backward()
    with pytest.raises(ValueError, match="param_groups"):
        make(net.parameters(), lr=0.1).step()
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())
