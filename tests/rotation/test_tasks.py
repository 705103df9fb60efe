"""Tasks: several sets of rotations over one set of neurons."""

import copy

import pytest
import torch

import hypersphere as hs
from tests.rotations import close, inputs, mlp, refused, shake, train


def rotations(model, task):
    return {name: p for name, p in model.named_parameters() if f".0.{task}." in name}


def two_tasks(method="cayley", **options):
    net = hs.rotate(mlp(), method, **options)
    hs.rotation.add_task(net, "birds")
    return net


def test_a_new_task_starts_where_the_first_did_and_shares_the_neurons():
    net = mlp()
    x = inputs(3, 6)
    start = net(x)
    shake(hs.rotate(net))
    trained = net(x)
    assert hs.rotation.add_task(net, "birds") is net
    close(net(x), trained)  # the first is still in use
    assert hs.rotation.use_task(net, "birds") is net
    close(net(x), start)
    hs.rotation.use_task(net, "default")
    close(net(x), trained)
    assert set(net.state_dict()) == {
        *(f"{i}.parametrizations.weight.original" for i in (0, 2)),
        *(f"{i}.parametrizations.weight.0.{task}.cayley" for i in (0, 2) for task in ("default", "birds")),
        *("0.bias", "2.bias", "4.weight", "4.bias"),
    }
    sizes = [tuple(p.shape) for p in rotations(net, "birds").values()]
    assert sizes == [tuple(p.shape) for p in rotations(net, "default").values()]


@pytest.mark.parametrize("method", ["cayley", "gram_schmidt", "network"])
def test_every_method(method):
    net = two_tasks(method, blocks=2)
    hs.rotation.use_task(net, "birds")
    shake(net)
    x = inputs(3, 6)
    birds = net(x)
    hs.rotation.use_task(net, "default")
    shake(net)
    default = net(x)
    assert (birds - default).abs().max() > 1e-3
    state = net.state_dict()
    for task, output in (("birds", birds), ("default", default)):
        hs.rotation.use_task(net, task)
        assert torch.equal(net(x), output)
        plain = mlp()
        plain.load_state_dict(hs.rotation.merge_state_dict(state, task=task))
        close(plain(x), output)
        close(hs.merge(copy.deepcopy(net))(x), output)


def test_a_normal_start_is_drawn_for_each():
    net = two_tasks("lowdin", init="normal")
    first, second = (
        rotations(net, task)[f"0.parametrizations.weight.0.{task}.lowdin"] for task in ("default", "birds")
    )
    assert not torch.equal(first, second)
    assert len(second.unique()) > 6


def test_only_the_active_task_learns():
    net = two_tasks()
    for active, other in (("default", "birds"), ("birds", "default"), ("default", "birds")):
        hs.rotation.use_task(net, active)
        assert all(p.requires_grad for p in rotations(net, active).values())
        assert not any(p.requires_grad for p in rotations(net, other).values())
        before = copy.deepcopy(net.state_dict())
        net.zero_grad()
        train(net, inputs(3, 6), optimizer=torch.optim.AdamW(net.parameters(), lr=0.1, weight_decay=0.1))
        changed = {key for key, value in net.state_dict().items() if not torch.equal(value, before[key])}
        assert changed == {*rotations(net, active), "0.bias", "2.bias", "4.weight", "4.bias"}
        assert all(p.grad is not None for p in net.parameters() if p.requires_grad)  # DDP waits for them
        assert all(p.grad is None for p in rotations(net, other).values())


def test_every_parameter_that_asks_gets_a_gradient():
    """DDP waits for a gradient of each; fixed neurons and other tasks must not ask."""
    for net in (two_tasks(), hs.rotate(mlp(), sample=4), hs.rotate(mlp(), "none"), hs.rotate(mlp(), neurons="learned")):
        net(inputs(3, 6)).sum().backward()
        assert all((p.grad is not None) == p.requires_grad for p in net.parameters())


def test_a_frozen_task_stays_frozen():
    net = two_tasks()
    for p in rotations(net, "default").values():
        p.requires_grad_(False)
    hs.rotation.use_task(net, "birds")
    assert all(p.requires_grad for p in rotations(net, "birds").values())
    hs.rotation.use_task(net, "default")
    assert not any(p.requires_grad for p in rotations(net, "default").values())
    assert not any(p.requires_grad for p in rotations(net, "birds").values())
    hs.rotation.use_task(net, "birds")
    assert all(p.requires_grad for p in rotations(net, "birds").values())


def test_one_frozen_layer_of_a_task():
    net = two_tasks()
    net[0].get_parameter("parametrizations.weight.0.default.cayley").requires_grad_(False)
    for task in ("birds", "default", "default", "birds", "default"):
        hs.rotation.use_task(net, task)
    assert [p.requires_grad for p in rotations(net, "default").values()] == [False, True]


def test_merge_state_dict_needs_to_know():
    net = shake(two_tasks())
    state = net.state_dict()
    with pytest.raises(ValueError, match=r"task.*(default.*birds|birds.*default)"):
        hs.rotation.merge_state_dict(state)
    with pytest.raises(ValueError, match=r"task.*(default.*birds|birds.*default).*fish"):
        hs.rotation.merge_state_dict(state, task="fish")
    close(hs.rotation.merge_state_dict(state, task="default")["0.weight"], net[0].weight)
    close(hs.rotation.merge_state_dict(state, task="birds")["0.weight"], mlp()[0].weight.detach(), 1e-12)
    one = shake(hs.rotate(mlp())).state_dict()
    with pytest.raises(ValueError, match="birds"):
        hs.rotation.merge_state_dict(one, task="birds")
    assert list(hs.rotation.merge_state_dict(one, task="default")) == list(mlp().state_dict())


def test_state_dict_loads_after_add_task():
    net = two_tasks()
    shake(net)
    hs.rotation.use_task(net, "birds")
    shake(net)
    other = two_tasks()
    other.load_state_dict(net.state_dict())
    x = inputs(3, 6)
    for task in ("default", "birds"):
        hs.rotation.use_task(net, task)
        hs.rotation.use_task(other, task)
        assert torch.equal(other(x), net(x))
    with pytest.raises(RuntimeError, match="birds"):
        hs.rotate(mlp()).load_state_dict(net.state_dict())


def test_counting_with_tasks():
    net = hs.rotate(mlp())
    one = hs.rotation.count_parameters(net)
    hs.rotation.add_task(net, "birds")
    two = hs.rotation.count_parameters(net)
    assert two["rotations"] == one["rotations"] == 15 + 28
    assert two["stored"] == one["stored"] + 15 + 28
    assert two["total"] == one["total"]


def test_layers_without_rotation_keep_out_of_tasks():
    net = mlp()
    hs.rotate(net, layers="0")
    hs.rotate(net, "none", layers="2")
    hs.rotation.add_task(net, "birds")
    hs.rotation.use_task(net, "birds")
    assert list(rotations(net, "birds")) == ["0.parametrizations.weight.0.birds.cayley"]


# ----------------------------------------------------------------------------------------------------- bad input


def test_names_that_are_refused():
    net = two_tasks()
    for name in ("forward", "training", "a.b", ""):
        with refused(ValueError, "name", net):
            hs.rotation.add_task(net, name)
    for verb in (hs.rotation.add_task, hs.rotation.use_task):
        with refused(TypeError, "name", net):
            verb(net, 3)
    for name in ("default", "birds"):
        with refused(ValueError, name, net):
            hs.rotation.add_task(net, name)
    with refused(ValueError, "default.*birds.*fish", net):
        hs.rotation.use_task(net, "fish")
    assert all(p.requires_grad for p in rotations(net, "default").values())


@pytest.mark.parametrize("verb", [hs.rotation.add_task, hs.rotation.use_task])
def test_a_plain_model_has_no_tasks(verb):
    net = mlp()
    with refused(ValueError, "rotate", net):
        verb(net, "birds")
    with pytest.raises(TypeError, match="model"):
        verb(None, "birds")


@pytest.mark.parametrize(("options", "match"), [({"sample": 4}, "'2'.*sample"), ({"neurons": "learned"}, "'0'.*learn")])
def test_tasks_need_fixed_neurons(options, match):
    net = hs.rotate(mlp(), **options)
    with refused(ValueError, match, net):
        hs.rotation.add_task(net, "birds")


def test_a_task_that_a_layer_lacks_is_an_error_in_a_state_dict_too():
    net = mlp()
    hs.rotate(net, layers="0")
    hs.rotation.add_task(net, "birds")
    hs.rotate(net, layers="2")
    with pytest.raises(ValueError, match=r"2\.parametrizations"):
        hs.rotation.merge_state_dict(net.state_dict(), task="birds")
    hs.rotation.add_task(net, "birds")  # for the layer that lacks it
    hs.rotation.use_task(net, "birds")
    assert set(hs.rotation.merge_state_dict(net.state_dict(), task="birds")) == set(mlp().state_dict())


def test_tasks_that_are_not_in_use_are_in_no_group():
    net = hs.rotate(mlp())
    hs.rotation.add_task(net, "birds")
    net.requires_grad_(True)
    in_groups = {p for group in hs.param_groups(net) for p in group["params"]}
    assert net[0].parametrizations.weight[0].default.cayley in in_groups
    assert net[0].parametrizations.weight[0].birds.cayley not in in_groups
