"""Stochastic OPT (Sec. 4): which dimensions are drawn, folding, exact resume, and that small rotations reach any."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import hypersphere as hs
from tests.rotations import mlp

pytestmark = pytest.mark.slow

OPTIMIZERS = {
    "sgd": lambda model: torch.optim.SGD(hs.param_groups(model), lr=0.05, momentum=0.9),
    "adam": lambda model: torch.optim.Adam(hs.param_groups(model), lr=0.01),
    "adamw": lambda model: torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.01),
    "ogd": lambda model: hs.OGD(hs.param_groups(model, ogd=True), lr=0.05),
}


def small():
    return nn.Sequential(
        nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 12), nn.Linear(12, 4)
    )


def task(layer):
    return layer.get_submodule("parametrizations.weight.0.default")


def is_sampled(layer):
    return hasattr(task(layer), "dims")


def dims(layer):
    return task(layer).dims.tolist()


def numbers(layer, method="cayley"):
    return task(layer).get_parameter(method)


def energy(layer):
    return hs.hyperspherical_energy(layer.weight.detach()).item()


def data():
    generator = torch.Generator().manual_seed(3)
    return torch.randn(32, 10, generator=generator), torch.randint(4, (32,), generator=generator)


def train(model, optimizer, resampler, steps):
    x, y = data()
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        resampler.step()
        losses.append(loss.item())
    return losses


# which layers, how many dimensions


@pytest.mark.parametrize(
    ("options", "whole", "sampled"),
    [
        ({}, "0", "24"),
        ({"layers": ["0", "2"]}, "0", "2"),
        ({"layers": ["2", "4"]}, "", "24"),  # the first of these is not the model's first
        ({"exclude": "0"}, "", "24"),
        ({"layers": "2"}, "", "2"),
        ({"layers": "0"}, "", "0"),  # alone
        ({"layers": ["0", "5"]}, "0", "5"),
    ],
)
def test_the_models_first_layer_stays_whole(options, whole, sampled):
    net = hs.rotate(small(), sample=4, **options)
    for name in whole:
        layer = net.get_submodule(name)
        assert not is_sampled(layer)
        assert numbers(layer).shape == (1, 10 * 9 // 2)
    for name in sampled:
        assert is_sampled(net.get_submodule(name))
        assert numbers(net.get_submodule(name)).shape == (1, 4 * 3 // 2)
        assert len(dims(net.get_submodule(name))) == 4
    for name in set("0245") - set(whole) - set(sampled):
        assert not hasattr(net.get_submodule(name), "parametrizations")


def test_what_cannot_be_rotated_is_not_the_first_layer():
    net = nn.ModuleList([nn.Embedding(7, 5), nn.Linear(10, 20), nn.Linear(20, 16), nn.Linear(16, 4)])
    hs.rotate(net, sample=4)
    assert [is_sampled(net[i]) for i in (1, 2)] == [False, True]


@pytest.mark.parametrize(
    ("d", "sample", "p"),
    [(576, 0.25, 144), (11, 0.25, 3), (9, 0.4, 4), (7, 0.99, 7), (7, 7, 7), (7, 2, 2), (8, 0.25, 2)],
)
def test_p_is_a_number_or_a_share(d, sample, p):
    layer = hs.rotate(nn.Linear(d, 4), sample=sample)
    assert len(dims(layer)) == len(set(dims(layer))) == p
    assert set(dims(layer)) <= set(range(d))
    assert numbers(layer).shape == (1, p * (p - 1) // 2)


def test_only_the_drawn_dimensions_turn():
    layer = nn.Conv2d(4, 6, 2)
    before = layer.weight.detach().clone().flatten(1)
    hs.rotate(layer, sample=5)
    torch.testing.assert_close(layer.weight.flatten(1), before, rtol=0, atol=1e-6)
    with torch.no_grad():
        numbers(layer).normal_()
    after = layer.weight.detach().flatten(1)
    drawn = dims(layer)
    rest = [i for i in range(16) if i not in drawn]
    assert torch.equal(after[:, rest], before[:, rest])
    r = hs.orthogonal.ORTHOGONALIZERS["cayley"].matrix(numbers(layer).detach())[0]
    torch.testing.assert_close(after[:, drawn], before[:, drawn] @ r.T, rtol=0, atol=1e-6)
    assert (after[:, drawn] - before[:, drawn]).abs().max() > 0.1


# draws


def draws(net, count, layers=(2, 4)):
    """The dimensions of the first draws of each layer."""
    resampler = hs.Resampler(net, torch.optim.SGD(hs.param_groups(net), lr=0.1))
    drawn = []
    for number in range(count):
        assert all(task(net[i]).draw.item() == number for i in layers)
        drawn.append([dims(net[i]) for i in layers])
        resampler.resample()
    return drawn


def test_draws_depend_on_seed_layer_and_number_alone():
    expected = draws(hs.rotate(small(), sample=4, seed=5), 6)
    assert expected[:2] == [[[1, 7, 13, 18], [2, 5, 6, 11]], [[6, 12, 13, 15], [0, 11, 12, 15]]]  # in every process
    torch.manual_seed(123)
    other = hs.rotate(small().double(), "gram_schmidt", sample=4, seed=5, exclude="0")  # other weights, method, layers
    assert draws(other, 6) == expected
    assert len({str(pair) for pair in expected}) == 6  # by number
    assert draws(hs.rotate(small(), sample=4, seed=6), 6) != expected  # by seed
    assert draws(hs.rotate(small(), sample=4), 6) == draws(hs.rotate(small(), sample=4, seed=0), 6)
    twins = nn.Sequential(*(nn.Linear(16, 16) for _ in range(4)), nn.Linear(16, 2))
    by_layer = draws(hs.rotate(twins, sample=4), 3, layers=(1, 2, 3))
    assert all(len({str(dims) for dims in drawn}) == 3 for drawn in by_layer)  # by layer, all else equal


# folding


@pytest.mark.parametrize("name", ["adamw", "ogd"])
def test_folding_keeps_function_and_energy_and_starts_anew(name):
    method = "ogd" if name == "ogd" else "cayley"
    net = hs.rotate(small(), method, sample=5)
    optimizer = OPTIMIZERS[name](net)
    start = numbers(net[2], method).detach().clone()
    resampler = hs.Resampler(net, optimizer, every=100)
    before = [energy(net[i]) for i in (0, 2, 4)]
    train(net, optimizer, resampler, 12)
    x, _ = data()
    output, weights = net(x), [net[i].weight.detach().clone() for i in (0, 2, 4)]
    first, drawn = numbers(net[0], method).detach().clone(), dims(net[2])
    assert (numbers(net[2], method) - start).abs().max() > 1e-3
    small_ones = [numbers(net[i], method) for i in (2, 4)]
    kept = {
        p: {k: copy.deepcopy(v) for k, v in state.items()}
        for p, state in optimizer.state.items()
        if all(p is not q for q in small_ones)
    }
    assert numbers(net[0], method) in kept
    assert all(p in optimizer.state for p in small_ones)

    resampler.resample()

    torch.testing.assert_close(net(x), output, rtol=0, atol=1e-5)
    for i, weight in zip((0, 2, 4), weights, strict=True):
        torch.testing.assert_close(net[i].weight.detach(), weight, rtol=0, atol=1e-6)
    assert [energy(net[i]) for i in (0, 2, 4)] == pytest.approx(before, rel=1e-5)
    assert torch.equal(numbers(net[0], method), first)  # a whole rotation goes on as it is
    assert all(torch.equal(p, start) for p in small_ones)
    for i in (2, 4):  # R = I: the neurons hold all that was learned
        torch.testing.assert_close(net[i].weight, net[i].parametrizations.weight.original, rtol=0, atol=1e-6)
    assert dims(net[2]) != drawn
    assert not any(optimizer.state.get(p) for p in small_ones)
    assert set(optimizer.state) - set(small_ones) == set(kept)
    for p, state in kept.items():
        for key, value in state.items():
            new = optimizer.state[p][key]
            assert torch.equal(new, value) if isinstance(value, torch.Tensor) else new == value
    train(net, optimizer, resampler, 3)  # and goes on
    assert all((p - start).abs().max() > 0 for p in small_ones)


def test_no_gradient_of_an_old_rotation_is_left():
    """A step after a fold without a backward pass in between must not turn the new dimensions."""
    net = hs.rotate(small(), sample=5)
    optimizer = torch.optim.SGD(hs.param_groups(net), lr=0.1)
    resampler = hs.Resampler(net, optimizer, every=1)
    train(net, optimizer, resampler, 1)
    assert not numbers(net[2]).any()
    optimizer.step()
    assert not numbers(net[2]).any()


def test_counters():
    net = hs.rotate(small(), sample=4)
    optimizer = OPTIMIZERS["adam"](net)
    resampler = hs.Resampler(net, optimizer, every=3)
    seen = []
    for _ in range(8):
        train(net, optimizer, resampler, 1)
        seen.append((task(net[2]).draw.item(), task(net[2]).inner.item()))
        assert (task(net[4]).draw.item(), task(net[4]).inner.item()) == seen[-1]
    assert seen == [(0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (2, 0), (2, 1), (2, 2)]
    resampler.resample()
    assert (task(net[2]).draw.item(), task(net[2]).inner.item()) == (3, 0)


# what counts as a step


def counters(net):
    return task(net[2]).draw.item(), task(net[2]).inner.item()


@pytest.mark.parametrize("calls", [False, True], ids=["hook", "step too"])
def test_accumulated_batches_are_one_step(calls):
    """Also if step() is called after every batch."""
    net, (x, y) = hs.rotate(small(), sample=4), data()
    optimizer = OPTIMIZERS["sgd"](net)
    resampler = hs.Resampler(net, optimizer, every=2)
    for batch in range(1, 21):
        F.cross_entropy(net(x), y).backward()
        if batch % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
        if calls:
            resampler.step()
    assert counters(net) == (2, 1)


@pytest.mark.parametrize("fused", [False, True])
def test_a_step_that_a_scaler_skips_does_not_count(fused):
    net, (x, y) = hs.rotate(small(), sample=4), data()
    optimizer = torch.optim.SGD(hs.param_groups(net), lr=0.05, fused=fused)
    hs.Resampler(net, optimizer, every=3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    for overflows in (False, True, False, True):
        optimizer.zero_grad()
        scaler.scale(F.cross_entropy(net(x), y)).backward()
        if overflows:
            numbers(net[2]).grad.fill_(torch.inf)
        scaler.step(optimizer)
        scaler.update()
    assert counters(net) == (0, 2)


def test_a_closure_of_many_evaluations_is_one_step():
    net, (x, y) = hs.rotate(small(), sample=4), data()
    optimizer = torch.optim.LBFGS([p for p in net.parameters() if p.requires_grad], max_iter=5)
    hs.Resampler(net, optimizer, every=3)
    evaluations = 0

    def closure():
        nonlocal evaluations
        evaluations += 1
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        return loss

    optimizer.step(closure)
    assert evaluations > 1
    assert counters(net) == (0, 1)


def test_the_newest_resampler_counts_alone():
    """As when a cell of a notebook runs twice."""
    net = hs.rotate(small(), sample=4)
    optimizer = OPTIMIZERS["sgd"](net)
    first = hs.Resampler(net, optimizer, every=2)
    hs.Resampler(net, optimizer, every=3)
    for _ in range(5):
        optimizer.step()
        first.optimizer.zero_grad()
    assert counters(net) == (1, 2)


def test_a_copy_counts_its_own_steps():
    net = hs.rotate(small(), sample=4)
    optimizer = OPTIMIZERS["sgd"](net)
    resampler = hs.Resampler(net, optimizer, every=3)
    other, its_optimizer, _ = copy.deepcopy((net, optimizer, resampler))
    its_optimizer.step()
    assert (counters(net), counters(other)) == ((0, 0), (0, 1))
    optimizer.step()
    assert (counters(net), counters(other)) == ((0, 1), (0, 1))


@pytest.mark.filterwarnings("ignore:AdamW was made before")
def test_an_optimizer_goes_on_after_merge():
    net, (x, y) = hs.rotate(small(), sample=4), data()
    optimizer = OPTIMIZERS["adamw"](net)
    resampler = hs.Resampler(net, optimizer, every=1)
    train(net, optimizer, resampler, 2)
    hs.merge(net)
    keys = list(net.state_dict())
    F.cross_entropy(net(x), y).backward()
    optimizer.step()
    assert list(net.state_dict()) == keys


# exact resume


# 10: at a fold; the last: with a Resampler that is made before the states are loaded
@pytest.mark.parametrize(
    ("name", "stop", "early"), [("sgd", 4, False), ("adamw", 10, False), ("ogd", 13, False), ("adam", 7, True)]
)
def test_exact_resume_from_model_and_optimizer_state(name, stop, early, tmp_path):
    method = "ogd" if name == "ogd" else "cayley"
    net = hs.rotate(small(), method, sample=5, seed=3)
    optimizer = OPTIMIZERS[name](net)
    resampler = hs.Resampler(net, optimizer, every=5)
    train(net, optimizer, resampler, stop)
    torch.save({"model": net.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "state.pt")
    losses = train(net, optimizer, resampler, 12)
    assert task(net[2]).draw.item() == (stop + 12) // 5

    torch.manual_seed(99)  # nothing of the new model's own start may count
    fresh = hs.rotate(small(), method, sample=5)
    saved = torch.load(tmp_path / "state.pt", weights_only=True)
    other = OPTIMIZERS[name](fresh)
    resampler = hs.Resampler(fresh, other, every=5) if early else None
    fresh.load_state_dict(saved["model"])
    other.load_state_dict(saved["optimizer"])
    again = train(fresh, other, resampler or hs.Resampler(fresh, other, every=5), 12)
    assert again == losses
    for (key, a), b in zip(net.state_dict().items(), fresh.state_dict().values(), strict=True):
        assert torch.equal(a, b), key


# small rotations reach what a large one can


# bad input


def test_model_that_is_not_sampled():
    for model in (small(), hs.rotate(small())):
        with pytest.raises(ValueError, match="sample"):
            hs.Resampler(model, torch.optim.SGD(model.parameters(), lr=0.1))


def test_optimizer_without_the_rotations():
    net = small()
    early = torch.optim.SGD(net.parameters(), lr=0.1)
    hs.rotate(net, sample=4)
    with pytest.raises(ValueError, match="optimizer"):
        hs.Resampler(net, early)
    partial = torch.optim.SGD([p for p in net.parameters() if p is not numbers(net[4])], lr=0.1)
    with pytest.raises(ValueError, match="'4'"):
        hs.Resampler(net, partial)


def test_wrong_arguments():
    net = hs.rotate(small(), sample=4)
    for every in (0, 1.5):
        with pytest.raises((ValueError, TypeError), match="every"):
            hs.Resampler(net, OPTIMIZERS["adam"](net), every=every)
    with pytest.raises(TypeError, match="model"):
        hs.Resampler(net.state_dict(), OPTIMIZERS["adam"](net))
    with pytest.raises(TypeError, match="optimizer"):
        hs.Resampler(net, list(net.parameters()))


def test_folds_of_a_network_do_not_depend_on_the_global_seed():
    states = []
    for seed in (1, 2):
        torch.manual_seed(0)
        net = hs.rotate(mlp(), "network", sample=0.5)
        resampler = hs.Resampler(net, torch.optim.SGD(hs.param_groups(net), lr=0.1), every=1)
        torch.manual_seed(seed)
        before = torch.random.get_rng_state()
        resampler.resample()
        assert torch.equal(torch.random.get_rng_state(), before)
        states.append(net.state_dict())
    assert all(torch.equal(a, b) for a, b in zip(*(state.values() for state in states), strict=True))


def test_a_resampler_of_a_merged_model_says_so():
    net = hs.rotate(mlp(), sample=0.5)
    resampler = hs.Resampler(net, torch.optim.SGD(hs.param_groups(net), lr=0.1))
    hs.merge(net)
    with pytest.raises(ValueError, match="no longer rotated"):
        resampler.step()


def plain_step(net, optimizer):
    net(torch.randn(4, net[0].in_features, dtype=net[-1].weight.dtype)).square().sum().backward()
    optimizer.step()


def test_sampling_without_a_resampler_is_noticed(recwarn):
    net = hs.rotate(mlp(), sample=0.5)
    optimizer = torch.optim.SGD(hs.param_groups(net), lr=0.1)
    hs.Resampler(net, optimizer)
    plain_step(net, optimizer)
    assert not [w for w in recwarn if "Resampler" in str(w.message)]
    net = hs.rotate(mlp(), sample=0.5)
    with pytest.warns(UserWarning, match="Resampler"):
        plain_step(net, torch.optim.SGD(hs.param_groups(net), lr=0.1))
