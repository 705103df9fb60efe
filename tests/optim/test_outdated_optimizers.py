"""Optimizers made before rotate, merge or spherize hold the parameters of the model that was: they are warned of."""

import copy
import gc
import warnings
import weakref

import pytest
import torch
from torch import nn

import hypersphere as hs

pytestmark = pytest.mark.slow


def mlp():
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3))


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def step(net, optimizer, steps=1):
    """What is said of the optimizer."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(steps):
            net(torch.randn(4, net[0].in_features)).square().sum().backward()
            optimizer.step()
    return [str(warning.message) for warning in caught if "was made before" in str(warning.message)]


def learned_scale(net):
    return hs.spherize(net, scale=True)


def learnable(net):
    return hs.spherize(net, "learnable")


BEFORE = {  # the model as it was, what changed it, and what the warning names
    "rotate": (mlp, hs.rotate, "rotate and does not hold"),
    "rotate learned neurons": (mlp, lambda net: hs.rotate(net, neurons="learned"), "rotate and does not hold"),
    "merge": (lambda: hs.rotate(mlp()), hs.merge, "merge and holds parameters that the model no longer has"),
    "spherize scale": (mlp, learned_scale, "spherize and does not hold"),
    "spherize learnable": (mlp, learnable, "spherize and does not hold"),
}


@pytest.mark.parametrize(("make", "verb", "named"), BEFORE.values(), ids=BEFORE)
def test_an_optimizer_from_before_is_warned_of_once(make, verb, named):
    net = make()
    optimizer = sgd(net.parameters())
    verb(net)
    (message,) = step(net, optimizer, steps=3)
    assert message.startswith("SGD was made before hypersphere.")
    assert named in message


@pytest.mark.parametrize(("make", "verb", "named"), BEFORE.values(), ids=BEFORE)
def test_one_made_after_is_not(make, verb, named):
    net = make()
    other, plain = make(), mlp()
    optimizers = {other: sgd(other.parameters()), plain: sgd(plain.parameters())}  # of other models
    twin = copy.deepcopy(net)
    optimizers[twin] = sgd(twin.parameters())
    old = sgd(net.parameters())
    verb(net)
    optimizers[net] = sgd(net.parameters())
    again = copy.deepcopy(net)
    again.load_state_dict(net.state_dict())
    optimizers[again] = sgd(again.parameters())
    for model, optimizer in optimizers.items():
        optimizer.load_state_dict(optimizer.state_dict())
        assert step(model, optimizer) == []
    del old


def test_spherize_without_new_parameters_leaves_optimizers_as_they_are():
    for options in ({}, {"scale": 10.0}, {"similarity": "sigmoid(0.3)"}):
        net = mlp()
        optimizer = sgd(net.parameters())
        hs.spherize(net, **options)
        assert step(net, optimizer) == []


def test_what_is_added_to_the_optimizer_mends_it():
    net = mlp()
    optimizer = sgd(net.parameters())
    learned_scale(net)
    optimizer.add_param_group({"params": [net[0].scale, net[2].scale]})
    assert step(net, optimizer) == []


def test_what_is_not_learned_is_not_missed():
    net = mlp()
    optimizer = sgd(net.parameters())
    learned_scale(net)
    for name, parameter in net.named_parameters():
        parameter.requires_grad_("scale" not in name)
    assert step(net, optimizer) == []


def test_progressive_training_with_new_optimizers():
    """merge ends what rotate began: the numbers of the first rotation are not missed though somebody keeps them."""
    net, rotations = mlp(), []
    for _ in range(3):
        hs.rotate(net)
        rotations += [p for name, p in net.named_parameters() if "cayley" in name]
        assert step(net, sgd(hs.param_groups(net))) == []
        hs.merge(net)
        assert step(net, sgd(net.parameters())) == []


def test_rotations_from_a_file(tmp_path):
    net = mlp()
    hs.rotation.save_rotations(hs.rotate(copy.deepcopy(net)), tmp_path / "rotations.safetensors")
    optimizer = sgd(net.parameters())
    hs.rotation.load_rotations(net, tmp_path / "rotations.safetensors")
    (message,) = step(net, optimizer)
    assert "load_rotations" in message


def test_an_optimizer_for_another_task():
    net = hs.rotate(mlp())
    optimizer = sgd(hs.param_groups(net))
    hs.rotation.add_task(net, "birds")
    hs.rotation.use_task(net, "birds")
    with pytest.warns(UserWarning, match="another task than 'birds'"):
        step_loudly(net, optimizer)


def step_loudly(net, optimizer):
    net(torch.randn(4, 6)).square().sum().backward()
    optimizer.step()


@pytest.mark.parametrize(("make", "verb", "named"), BEFORE.values(), ids=BEFORE)
def test_nothing_is_kept_alive(make, verb, named):
    net = make()
    optimizer = sgd(net.parameters())
    verb(net)
    step(net, optimizer)
    refs = [weakref.ref(thing) for thing in (net, optimizer, *net.parameters())]
    del net, optimizer
    gc.collect()
    assert not any(ref() is not None for ref in refs)


def test_compiled_steps_work():
    torch.compiler.reset()
    net = learned_scale(mlp())
    optimizer = sgd(net.parameters())
    before = net[0].scale.detach().clone()
    compiled = torch.compile(optimizer.step, backend="eager")
    net(torch.randn(4, 6)).square().sum().backward()
    compiled()
    assert not torch.equal(net[0].scale, before)
