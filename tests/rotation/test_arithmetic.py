"""Rotations as things: strengths of a task, combinations of tasks, and rotations between two networks."""

import copy
import math

import pytest
import torch
from torch import nn

import hypersphere as hs
from tests.rotations import PACKED, close, inputs, mlp, refused, rotation, shake


def tasks_of(net, *names):
    """Rotations with random numbers under every name."""
    for name in names:
        if name != "default":
            hs.rotation.add_task(net, name)
        hs.rotation.use_task(net, name)
        shake(net)
    return net


def skew(numbers, size):
    q = torch.zeros(size, size, dtype=numbers.dtype)
    rows, columns = torch.triu_indices(size, size, 1)
    q[rows, columns] = numbers
    return q - q.T


def numbers_of(net, layer, task, method="cayley"):
    return net[layer].state_dict()[f"parametrizations.weight.0.{task}.{method}"]


def set_numbers(net, layer, task, values):
    getattr(net[layer].parametrizations.weight[0], task).cayley.data.copy_(values)


# -------------------------------------------------------------------------------------------------------- strength


@pytest.mark.parametrize("t", [0.0, 0.7, -1.0])
@pytest.mark.parametrize("method", PACKED)
@pytest.mark.parametrize("apply", ["activation", "weight"])
def test_strength_multiplies_the_skew_matrix(t, method, apply):
    net = tasks_of(hs.rotate(mlp(), method, apply=apply), "default", "birds")
    assert hs.rotation.use_task(net, "birds", strength=t) is net
    q = t * skew(numbers_of(net, 0, "birds", method)[0], 6)
    eye = torch.eye(6, dtype=q.dtype)
    r = torch.linalg.matrix_exp(q) if method == "exponential" else (eye + q) @ torch.linalg.inv(eye - q)
    close(r.T @ r, eye, 1e-10)
    close(net[0].weight, mlp()[0].weight @ r.T)
    x = inputs(3, 6)
    close(hs.merge(copy.deepcopy(net))(x), net(x))
    if t in (0.0, 1.0, -1.0):
        first = rotation(net[0], method, task="birds")
        close(r, {0.0: eye, 1.0: first, -1.0: first.T}[t])


def test_strength_lasts_until_the_next_call_and_is_in_no_state():
    net = tasks_of(hs.rotate(mlp(), scaled=True), "default", "birds")
    x = inputs(3, 6)
    full, state = net(x), {key: value.clone() for key, value in net.state_dict().items()}
    hs.rotation.use_task(net, "birds", strength=0.5)
    half = net(x)
    assert (half - full).abs().max() > 1e-3
    assert all(value.equal(state[key]) for key, value in net.state_dict().items())
    close(copy.deepcopy(net)(x), half)
    plain = mlp()
    plain.load_state_dict(hs.rotation.merge_state_dict(net.state_dict(), task="birds"))
    close(plain(x), full)
    hs.rotation.use_task(net, "birds")
    assert net(x).equal(full)


@pytest.mark.parametrize("strength", [math.nan, -math.inf])
def test_strength_must_be_finite(strength):
    net = tasks_of(hs.rotate(mlp()), "default", "birds")
    with refused(ValueError, "strength.*finite", net):
        hs.rotation.use_task(net, "default", strength=strength)
    assert net[0].parametrizations.weight[0].active == "birds"
    with refused(TypeError, "strength", net):
        hs.rotation.use_task(net, "default", strength="0.5")


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"method": "gram_schmidt"}, "cayley.*exponential.*gram_schmidt"),
        ({"magnitude": True}, "magnitude"),
        ({"sample": 3}, "sample"),
        ({"shuffle": True, "block_size": 2}, "shuffle"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_strength_and_combining_need_a_skew_matrix_and_nothing_else(options, match):
    net = hs.rotate(mlp(), **options)
    with refused(ValueError, "strength.*" + match, net):
        hs.rotation.use_task(net, "default", strength=0.5)
    hs.rotation.use_task(net, "default", strength=1)
    with refused(ValueError, "combine_tasks.*" + match.rpartition(".*")[2], net):
        hs.rotation.combine_tasks(net, {"default": 1}, into="other")


# ------------------------------------------------------------------------------------------------------- combining


@pytest.mark.parametrize(
    ("method", "options"), [("cayley", {"blocks": 2}), ("cayley", {"side": "both"}), ("exponential", {"scaled": True})]
)
def test_combining_is_the_mean_at_its_mean_length(method, options):
    net = tasks_of(hs.rotate(mlp(), method, **options), "default", "birds", "fish")
    weights = {"default": 1, "birds": 0.5, "fish": -2.0}
    assert hs.rotation.combine_tasks(net, weights, into="all") is net
    assert net[0].parametrizations.weight[0].active == "fish"  # only added
    for layer in (0, 2):
        names = [name for name, _ in net[layer].parametrizations.weight[0].fish.named_parameters()]
        assert len(names) == (2 if "side" in options else 1)
        for name in names:
            parts = [weight * numbers_of(net, layer, task, name) for task, weight in weights.items()]
            total = sum(parts)
            factor = sum(part.norm() for part in parts) / total.norm()
            assert 1 < factor < 3
            close(numbers_of(net, layer, "all", name), factor * total / 3)
    hs.rotation.use_task(net, "all")
    assert net[0].parametrizations.weight[0].get_submodule("all").get_parameter(method).requires_grad


def test_tasks_that_oppose_each_other_are_capped_and_said(recwarn):
    net = tasks_of(hs.rotate(mlp()), "default", "birds")
    first = numbers_of(net, 0, "default")
    set_numbers(net, 0, "birds", -0.9 * first)
    set_numbers(net, 2, "birds", numbers_of(net, 2, "default"))
    with pytest.warns(UserWarning, match=r"default, birds oppose each other in 0:"):
        hs.rotation.combine_tasks(net, {"default": 1, "birds": 1}, into="both")
    close(numbers_of(net, 0, "both"), 0.1 * first)  # the sum: the factor is at most 2
    set_numbers(net, 0, "birds", -first)
    with pytest.warns(UserWarning, match="oppose"):
        hs.rotation.combine_tasks(net, {"default": 1, "birds": 1}, into="nothing")
    assert not numbers_of(net, 0, "nothing").any()
    hs.rotation.add_task(fresh := hs.rotate(mlp()), "birds")
    recwarn.clear()
    hs.rotation.combine_tasks(fresh, {"default": 1, "birds": 1}, into="start")  # all zero: nothing opposes
    assert not recwarn.list
    assert not numbers_of(fresh, 0, "start").any()


@pytest.mark.parametrize(
    ("tasks", "into", "error", "match"),
    [
        ({}, "x", ValueError, "weights.*at least one"),
        (["default"], "x", ValueError, "weights.*dict"),
        ({"fish": 1}, "x", ValueError, "default, birds.*fish"),
        ({"default": math.nan}, "x", ValueError, "default.*finite"),
        ({"default": "1"}, "x", TypeError, "default.*number"),
        ({"default": 1}, "birds", ValueError, "into.*new.*birds"),
        ({"default": 1}, "a.b", ValueError, "a.b"),
        ({"default": 1}, "forward", ValueError, "forward"),
        ({"default": 1}, 3, TypeError, "3"),
    ],
    ids=str,
)
def test_bad_combinations(tasks, into, error, match):
    net = tasks_of(hs.rotate(mlp()), "default", "birds")
    with refused(error, match, net):
        hs.rotation.combine_tasks(net, tasks, into)


def test_combining_needs_rotations_and_fixed_neurons():
    net = mlp()
    with refused(ValueError, "rotate", net):
        hs.rotation.combine_tasks(net, {"default": 1}, into="x")
    net = hs.rotate(mlp(), neurons="learned")
    with refused(ValueError, "learns", net):
        hs.rotation.combine_tasks(net, {"default": 1}, into="x")


# ------------------------------------------------------------------------------------------------------ extraction


def conv_net():
    torch.manual_seed(3)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 6, 1), nn.Flatten(), nn.Linear(6, 3)).double()


@pytest.mark.parametrize(
    ("make", "block_size", "dtype"),
    [(mlp, 2, torch.float64), (conv_net, None, torch.float64), (mlp, None, torch.float32), (mlp, None, torch.bfloat16)],
)
def test_rotations_are_found_again(make, block_size, dtype):
    base = make().to(dtype)
    tuned = shake(hs.rotate(copy.deepcopy(base), block_size=block_size), 0.1)
    before = copy.deepcopy(base.state_dict())
    found = hs.rotation.extract_rotations(base, tuned, block_size)
    atol = {torch.float64: 1e-7, torch.float32: 1e-5, torch.bfloat16: 2e-2}[dtype]
    assert list(found.explained) == ["0", "2"]
    for name, explained in found.explained.items():
        close(found.model.get_submodule(name).weight, tuned.get_submodule(name).weight, atol)
        assert explained > (0.99 if dtype is torch.bfloat16 else 1 - 1e-8)
    assert type(base[0]) in (nn.Linear, nn.Conv2d)
    assert all(value.equal(before[key]) for key, value in base.state_dict().items())


@pytest.mark.parametrize("neurons", [3, 12, 40])
def test_it_is_the_best_rotation(neurons):
    """Few neurons leave R open, 3 of them so that all lie in a subspace; no small rotation of R is better."""
    torch.manual_seed(neurons)
    base = nn.Sequential(nn.Linear(12, neurons), nn.ReLU(), nn.Linear(neurons, 2)).double()
    tuned = copy.deepcopy(base)
    tuned[0].weight.data += 0.02 * torch.randn_like(tuned[0].weight)
    found = hs.rotation.extract_rotations(base, tuned)
    v, w, r = base[0].weight.detach(), tuned[0].weight.detach(), rotation(found.model[0], "cayley")
    eye = torch.eye(12, dtype=r.dtype)
    close(r.T @ r, eye)
    assert torch.linalg.det(r) > 0
    left = (w - v @ r.T).norm()
    assert found.explained["0"] == pytest.approx(float(1 - (left / (w - v).norm()) ** 2), abs=1e-9)
    for _ in range(20):
        q = skew(0.01 * torch.randn(66, dtype=r.dtype), 12)
        assert (w - v @ (torch.linalg.matrix_exp(q) @ r).T).norm() > left - 1e-12
    assert (r - eye).norm() < 1  # near the identity where the neurons leave it open


def test_no_change_is_no_rotation():
    base = mlp()
    tuned = copy.deepcopy(base)
    tuned[0].weight.data *= 2  # longer, not turned
    found = hs.rotation.extract_rotations(base, tuned)
    assert found.explained["2"] is None
    assert found.explained["0"] == pytest.approx(0, abs=1e-12)
    close(found.model[2].weight, base[2].weight)


@pytest.mark.parametrize("block_size", [None, 2])
def test_half_turns_come_close(block_size):
    """W = −V: Cayley does not reach R = −I, but 0.001 of a turn below it."""
    base = mlp()
    tuned = copy.deepcopy(base)
    for layer in (0, 2):
        tuned[layer].weight.data.neg_()
    found = hs.rotation.extract_rotations(base, tuned, block_size)
    for layer, name in ((0, "0"), (2, "2")):
        close(found.model[layer].weight, tuned[layer].weight, 2e-3)
        assert found.explained[name] > 1 - 1e-6


def test_a_reflection_is_not_reached_but_the_best_rotation_is():
    torch.manual_seed(0)
    base = nn.Sequential(nn.Linear(5, 20), nn.ReLU(), nn.Linear(20, 2)).double()
    tuned = copy.deepcopy(base)
    tuned[0].weight.data[:, 0].neg_()
    found = hs.rotation.extract_rotations(base, tuned)
    v, w, r = base[0].weight.detach(), tuned[0].weight.detach(), rotation(found.model[0], "cayley")
    assert torch.linalg.det(r).item() == pytest.approx(1)
    sigma = torch.linalg.svdvals(w.T @ v)
    left = v.square().sum() + w.square().sum() - 2 * (sigma.sum() - 2 * sigma.min())  # a reflection has σ.sum()
    assert found.explained["0"] == pytest.approx(float(1 - left / (w - v).square().sum()), abs=1e-5)


def test_extracted_rotations_ignore_dropout():
    tuned = shake(hs.rotate(mlp(), block_size=2, dropout=0.5), 0.1).train()
    found = hs.rotation.extract_rotations(mlp(), tuned, block_size=2)
    close(found.model[0].weight, hs.merge(copy.deepcopy(tuned))[0].weight, 1e-7)
    assert all(share > 0.999 for share in found.explained.values())


def test_bad_pairs():
    base = mlp()
    with refused(ValueError, r"'2'.*\(4, 8\).*\(4, 9\)", base):
        hs.rotation.extract_rotations(
            base, nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(9, 4), nn.Tanh(), nn.Linear(4, 3))
        )
    with refused(ValueError, "no weight of layer '2'", base):
        hs.rotation.extract_rotations(base, nn.Sequential(nn.Linear(6, 8)))
    tuned = copy.deepcopy(base)
    tuned[2].weight.data[0, 0] = math.nan
    with refused(ValueError, "'2'.*finite", base):
        hs.rotation.extract_rotations(base, tuned)
    with torch.device("meta"):
        empty = mlp()
    for pair in ((base, empty), (empty, base)):
        with pytest.raises(ValueError, match="'0' has no values on the meta device"):
            hs.rotation.extract_rotations(*pair)
    with refused(TypeError, "tuned", base):
        hs.rotation.extract_rotations(base, base.state_dict())
    with pytest.raises(TypeError, match="base"):
        hs.rotation.extract_rotations(base.state_dict(), base)
    with refused(ValueError, "already rotated", hs.rotate(rotated := mlp())):
        hs.rotation.extract_rotations(rotated, base)
