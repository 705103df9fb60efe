"""Hyperball: its step as it is written down under several optimizers, norms that last, and bad input."""

import copy
import io
import itertools

import pytest
import torch
from torch import nn

import hypersphere as hs
from hypersphere.optim.hyperball import Hyperball

F64 = torch.float64
BASES = {
    "sgd": lambda params: torch.optim.SGD(params, lr=0.02, momentum=0.9),
    "adamw": lambda params: torch.optim.AdamW(params, lr=0.02, weight_decay=0.0),
    "muon": lambda params: torch.optim.Muon(params, lr=0.02, weight_decay=0.0),
}
NORMS = {
    "matrix": ({}, lambda x: x.norm()),
    "neuron": ({"per": "neuron"}, lambda x: x.norm(dim=1, keepdim=True)),
    "column": ({"per": "neuron", "neuron_dim": 1}, lambda x: x.norm(dim=0, keepdim=True)),
    "spectral": ({"norm": "spectral"}, lambda x: torch.linalg.svdvals(x)[0]),
}


def matrix(*shape, dtype=F64):
    return nn.Parameter(torch.randn(*shape, dtype=dtype))


def sgd(*parameters, lr=0.1):
    return torch.optim.SGD(parameters, lr=lr)


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("norm", NORMS)
def test_many_steps_as_they_are_written(base, norm):
    options, length = NORMS[norm]
    w = matrix(4, 6)
    expected, radius = w.detach().clone(), length(w.detach())
    twin = nn.Parameter(w.detach().clone())
    optimizer, bare = Hyperball(BASES[base]([w]), **options), BASES[base]([twin])
    for _ in range(10):
        w.grad = torch.randn_like(w)
        twin.grad = w.grad.clone()
        with torch.no_grad():
            twin.copy_(expected)
        bare.step()
        u = (expected - twin.detach()) / 0.02
        new = expected - 0.02 * radius * u / length(u)
        expected = radius * new / length(new)
        optimizer.step()
        torch.testing.assert_close(w.detach(), expected, rtol=0, atol=1e-11)


@pytest.mark.slow
@pytest.mark.parametrize(("base", "norm"), list(itertools.product(BASES, ["matrix", "column"])))
def test_norms_over_1000_steps(base, norm):
    options, length = NORMS[norm]
    w = matrix(24, 40, dtype=torch.float32)
    before = length(w.detach().double())
    optimizer = Hyperball(BASES[base]([w]), **options)
    for _ in range(1000):
        w.grad = torch.randn_like(w)
        optimizer.step()
    assert ((length(w.detach().double()) / before - 1).abs().max() < 1e-6).item()


def test_a_radius_is_taken_at_the_first_step():
    w = matrix(4, 6)
    optimizer = Hyperball(sgd(w), radius=2.0, per="neuron")
    w.grad = torch.randn_like(w)
    optimizer.step()
    torch.testing.assert_close(w.detach().norm(dim=1), torch.full((4,), 2.0, dtype=F64))


def test_what_is_kept():
    w, v, bias, stepped = matrix(3, 4), matrix(2, 3, 2, 2), matrix(3), matrix(3, 4)
    groups = [{"params": [w, v, bias]}, {"params": [stepped], "hyperball": False}]
    groups += [{"params": [matrix(2, 6)], "name": "rotations"}]
    optimizer = Hyperball(torch.optim.SGD(groups, lr=0.1))
    optimizer.add_param_group({"params": [matrix(3, 3)], "neuron_dim": 1})
    assert [g["hyperball"] for g in optimizer.param_groups] == [True, False, False, True]
    norms = [p.norm().item() for p in (w, v)]
    moved = [p.detach() - 0.1 for p in (bias, stepped)]
    for p in (w, v, bias, stepped):
        p.grad = torch.ones_like(p)
    optimizer.step()
    assert [p.norm().item() for p in (w, v)] == pytest.approx(norms, rel=1e-12)
    torch.testing.assert_close([bias.detach(), stepped.detach()], moved)


def test_parameters_without_a_gradient_stay():
    w, v = matrix(3, 4), matrix(3, 4)
    optimizer = Hyperball(sgd(w, v), radius=1.0)
    w.grad = torch.randn_like(w)
    before = v.detach().clone()
    optimizer.step()
    assert torch.equal(v, before)
    assert v not in optimizer.state or "radius" not in optimizer.state[v]


def mlp():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))


def steps(net, optimizer, count, seed=0):
    data = torch.Generator().manual_seed(seed)
    loss = None
    for _ in range(count):
        x = torch.randn(16, 6, generator=data)
        optimizer.zero_grad()
        loss = (net(x) - x[:, :3].sin()).square().mean()
        loss.backward()
        optimizer.step()
    return loss.item()


def test_resume_is_bit_equal():
    def build():
        net = mlp()
        return net, Hyperball(BASES["adamw"](net.parameters()), per="neuron")

    net, optimizer = build()
    steps(net, optimizer, 3)
    file = io.BytesIO()
    torch.save([net.state_dict(), optimizer.state_dict()], file)
    file.seek(0)
    other, resumed = build()
    weights, state = torch.load(file, weights_only=True)
    other.load_state_dict(weights)
    resumed.load_state_dict(state)
    steps(net, optimizer, 3, seed=1)
    steps(other, resumed, 3, seed=1)
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), other.parameters(), strict=True))


def test_a_state_from_before_hyperball():
    net = mlp()
    bare = BASES["adamw"](net.parameters())
    steps(net, bare, 2)
    optimizer = Hyperball(BASES["adamw"](net.parameters()))
    optimizer.load_state_dict(bare.state_dict())
    before = net[0].weight.norm().item()
    steps(net, optimizer, 2)
    assert net[0].weight.norm().item() == pytest.approx(before, rel=1e-6)
    assert optimizer.state[net[0].weight]["step"] == 4


def test_radii_of_half_precision_are_loaded_as_they_were():
    w = matrix(4, 6, dtype=torch.bfloat16)
    optimizer, other = Hyperball(sgd(w)), Hyperball(sgd(w))
    w.grad = torch.randn_like(w)
    optimizer.step()
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert other.state[w]["radius"].dtype == torch.float32
    assert torch.equal(other.state[w]["radius"], optimizer.state[w]["radius"])
    assert (w.float().norm() / optimizer.state[w]["radius"] - 1).abs().item() < 2e-3


def test_closure_scheduler_scaler_and_clipping():
    net = mlp()
    optimizer = Hyperball(BASES["adamw"](net.parameters()))
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.0)
    scaler = torch.amp.GradScaler("cpu")

    def closure():
        optimizer.zero_grad()
        loss = net(torch.ones(2, 6)).square().sum()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        return loss

    first = optimizer.step(closure)
    assert optimizer.step(closure) < first
    schedule.step()
    before = [p.clone() for p in net.parameters()]
    scaler.scale(net(torch.ones(2, 6)).sum()).backward()
    scaler.step(optimizer)
    torch.testing.assert_close(before, list(net.parameters()), rtol=0, atol=1e-6)  # lr is 0 now
    for group in optimizer.param_groups:
        group["lr"] = 1.0
    net[0].weight.grad.fill_(float("inf"))
    scaler.update()
    scaler.step(optimizer)
    torch.testing.assert_close(before, list(net.parameters()), rtol=0, atol=1e-6)


def test_it_learns():
    net = mlp()
    optimizer = Hyperball(BASES["adamw"](net.parameters()))
    before = steps(net, optimizer, 1)
    assert steps(net, optimizer, 200) < before / 3


@pytest.mark.parametrize("base", ["sgd", "adamw"])
def test_hostile_gradients_stay_finite(base):
    """12,000 neurons in six steps, each with its own norm."""
    w = matrix(2000, 4, dtype=torch.float32)
    norms = w.detach().double().norm(dim=1)
    optimizer = Hyperball(BASES[base]([w]), per="neuron")
    g = torch.randn(2000, 4)
    mixed = g * torch.logspace(-45, 30, 2000)[:, None]
    rank_one = torch.randn(2000, 1) @ torch.randn(1, 4)
    for hostile in (torch.zeros_like(g), g * 1e-42, rank_one, mixed, g * 1e30, g):
        w.grad = hostile.clone()
        optimizer.step()
        assert bool(w.isfinite().all())
    torch.testing.assert_close(w.detach().double().norm(dim=1), norms, rtol=1e-6, atol=0)


@pytest.mark.parametrize("options", [{}, {"per": "neuron"}, {"norm": "spectral"}], ids=["matrix", "neuron", "spectral"])
def test_one_large_gradient_that_overflows_its_square(options):
    w = matrix(4, 6, dtype=torch.float32)
    expected = nn.Parameter(w.detach().clone())
    optimizer, other = Hyperball(sgd(w), **options), Hyperball(sgd(expected), **options)
    w.grad = torch.randn_like(w)
    expected.grad = w.grad.clone() * 1e3
    w.grad *= 1e30
    optimizer.step()
    other.step()
    torch.testing.assert_close(w.detach(), expected.detach(), rtol=1e-4, atol=1e-5)


def test_post_hooks_see_the_weights_on_their_spheres():
    w, norms = matrix(3, 4), []
    optimizer = Hyperball(sgd(w), radius=2.0)
    handle = optimizer.register_step_post_hook(lambda one, *_: norms.append((one is optimizer, float(w.norm()))))
    w.grad = torch.ones_like(w)
    optimizer.step()
    handle.remove()
    copy.deepcopy(optimizer).step()
    optimizer.step()
    assert norms == [(True, pytest.approx(2.0))]


# bad input


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: Hyperball(torch.optim.Adam), TypeError, "optimizer must be a torch optimizer, .* got the class Adam"),
        (lambda: Hyperball([matrix(2, 2)]), TypeError, "optimizer must be a torch optimizer, .* got list"),
        (lambda: Hyperball(Hyperball(sgd(matrix(2, 2)))), ValueError, "must be new, got the Hyperball of another"),
        (
            lambda: [Hyperball(one) for one in [sgd(matrix(2, 2))] * 2],
            ValueError,
            "must be new, got the SGD of another",
        ),
        (lambda: Hyperball(sgd(matrix(2, 2)), radius=0), ValueError, "radius must be finite and > 0, got 0"),
        (lambda: Hyperball(sgd(matrix(2, 2)), radius="first"), TypeError, "radius must be a number"),
        (lambda: Hyperball(sgd(matrix(2, 2)), per="row"), ValueError, "per"),
        (lambda: Hyperball(sgd(matrix(2, 2)), norm="nuclear"), ValueError, "norm"),
        (lambda: Hyperball(sgd(matrix(2, 2)), per="neuron", norm="spectral"), ValueError, 'needs per="matrix"'),
        (lambda: Hyperball(sgd(matrix(2, 2)), neuron_dim=2), ValueError, "neuron_dim must be a dimension"),
        (lambda: Hyperball(sgd(nn.Parameter(torch.ones(2, 2) + 0j))), TypeError, "real floating point"),
        (
            lambda: Hyperball(torch.optim.SGD([{"params": [matrix(4)], "hyperball": True}], lr=0.1)),
            ValueError,
            r"must hold matrices of two dimensions or more, got parameter 0 of group 0, \(4,\)",
        ),
    ],
)
def test_bad_input_is_one_line(make, error, words):
    with pytest.raises(error, match=words) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_zeros_are_refused_with_the_remedy():
    w, v = matrix(3, 4), nn.Parameter(torch.zeros(2, 3))
    w.grad, v.grad = torch.ones_like(w), torch.ones_like(v)
    before = w.detach().clone()
    with pytest.raises(ValueError, match=r"a zero matrix, got parameter 1 of group 0, \(2, 3\): initialize it, with a"):
        Hyperball(sgd(w, v)).step()
    assert torch.equal(w, before)
    with pytest.raises(ValueError, match="2 zero neurons"):
        Hyperball(sgd(v), per="neuron").step()


def test_a_named_parameter_is_refused_by_name():
    net = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2))
    nn.init.zeros_(net[1].weight)
    optimizer = Hyperball(torch.optim.SGD(net.named_parameters(), lr=0.1))
    net(torch.ones(1, 3)).sum().backward()
    with pytest.raises(ValueError, match=r"a zero matrix, got parameter '1\.weight' of group 0, \(2, 2\)"):
        optimizer.step()


def test_sparse_gradients_are_refused():
    w = matrix(3, 4)
    w.grad = torch.ones_like(w).to_sparse()
    with pytest.raises(
        ValueError, match=r"needs dense gradients, got a sparse one for parameter 0 of group 0, \(3, 4\)"
    ):
        Hyperball(sgd(w)).step()


@pytest.mark.parametrize("options", [{}, {"per": "neuron"}, {"norm": "spectral"}], ids=["matrix", "neuron", "spectral"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_bad_gradients_are_named_and_matrices_put_back(bad, options):
    w, v = matrix(3, 4), matrix(2, 5)
    w.grad, v.grad = torch.ones_like(w), torch.ones_like(v)
    v.grad[0, 0] = bad
    before = [w.detach().clone(), v.detach().clone()]
    with pytest.raises(ValueError, match=r"finite steps, got .* for parameter 1 of group 0, \(2, 5\)"):
        Hyperball(sgd(w, v), **options).step()
    assert torch.equal(w, before[0])
    assert torch.equal(v, before[1])


def test_weight_decay_is_warned_of():
    with pytest.warns(UserWarning, match="weight decay 0.1 has no use under Hyperball"):
        Hyperball(torch.optim.AdamW([matrix(2, 2)], weight_decay=0.1))


def test_an_optimizer_from_before_is_warned_of():
    net = mlp()
    optimizer = Hyperball(sgd(*net.parameters()))
    hs.rotate(net)
    with pytest.warns(UserWarning, match="SGD was made before hypersphere.rotate"):
        steps(net, optimizer, 1)


def test_rotations_are_refused_if_they_are_not_in_their_group():
    net = hs.rotate(mlp())
    with torch.no_grad():
        for p in net.parameters():
            p.normal_()
    with pytest.raises(ValueError, match="Hyperball would keep the norm of the rotations of layer"):
        steps(net, Hyperball(sgd(*[p for p in net.parameters() if p.requires_grad])), 1)
    steps(net, Hyperball(torch.optim.SGD(hs.param_groups(net), lr=0.1)), 1)
