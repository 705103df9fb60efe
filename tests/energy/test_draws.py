"""What an EnergyRegularizer draws and what it leaves out: mini-batches of neurons, and dead ones."""

import copy
import warnings

import pytest
import torch
from torch import nn

import hypersphere as hs
from hypersphere.energy.repulsion import Law
from tests import reference
from tests.energy.test_regularizer import by_hand, check, long, net

pytestmark = pytest.mark.slow

# mini-batches


@pytest.mark.parametrize("half_space", [False, True])
@pytest.mark.parametrize("n", [2, 5])
def test_a_mini_batch_is_unbiased(n, half_space):
    model = long(nn.Sequential(nn.Linear(5, 12), nn.Linear(12, 3)).double())
    options = {"half_space": half_space, "output_weight": 0.0, "hidden_weight": 1.0}
    exact = hs.EnergyRegularizer(model, **options)()
    regularizer = hs.EnergyRegularizer(model, minibatch=n, **options)
    draws, grads = [], []
    for _ in range(225):
        value = regularizer()
        draws.append(value.detach())
        grads.append(torch.autograd.grad(value, model[0].weight)[0])
    draws, grads = torch.stack(draws), torch.stack(grads)
    assert draws.std() > 0
    assert (draws.mean() - exact).abs() < 4 * draws.std() / 15
    (grad,) = torch.autograd.grad(exact, model[0].weight)
    assert ((grads.mean(0) - grad).norm() / (grads - grads.mean(0)).norm(dim=(1, 2)).mean()) < 4 / 15


def test_a_mini_batch_of_all_and_the_output_are_exact():
    model = net()
    exact = hs.EnergyRegularizer(model, half_space=True)()
    check(hs.EnergyRegularizer(model, half_space=True, minibatch=1000)(), exact, model)
    regularizer = hs.EnergyRegularizer(model, hidden_weight=0.0, minibatch=2)
    for _ in range(3):
        torch.testing.assert_close(regularizer(), by_hand(model, "fc"), rtol=1e-9, atol=0)


def test_draws_depend_on_seed_layer_and_number_alone():
    model = nn.Sequential(nn.Linear(5, 12), nn.Linear(12, 9), nn.Linear(9, 3))

    def values(regularizer, n=4):
        return [regularizer().item() for _ in range(n)]

    def make(**options):
        return hs.EnergyRegularizer(model, minibatch=4, output_weight=0.0, **options)

    first = make()
    random = torch.get_rng_state()
    expected = values(first, 6)
    assert torch.equal(torch.get_rng_state(), random)  # no random numbers of the user's are spent
    assert len(set(expected)) == 6
    torch.manual_seed(77)
    assert values(make(), 6) == expected
    assert values(make(seed=1), 6) != expected
    pairs = zip(values(make(layers="0"), 6), values(make(layers="1"), 6), strict=True)
    assert [a + b for a, b in pairs] == pytest.approx(expected, rel=1e-6)
    again = make()
    values(again, 2)
    again.per_layer()
    state = copy.deepcopy(again.state_dict())
    fresh = make()
    fresh.load_state_dict(state)
    assert values(fresh) == values(again) == expected[2:]
    fresh.load_state_dict(state)
    assert values(fresh) == expected[2:]
    signed = make(seed=-3)
    signed.load_state_dict(make(seed=-3).state_dict())
    assert values(signed) == values(make(seed=-3))


def test_layers_do_not_share_their_draws():
    twins = nn.Sequential(nn.Linear(5, 12), nn.Linear(5, 12))
    twins[1].load_state_dict(twins[0].state_dict())
    pair = [hs.EnergyRegularizer(twins, layers=hs.select(twins, name, output=None), minibatch=3) for name in "01"]
    assert [pair[0]().item() for _ in range(5)] != [pair[1]().item() for _ in range(5)]


# dead neurons


@pytest.mark.parametrize("half_space", [False, True])
def test_dead_neurons_count_for_nothing_and_are_reported_once(half_space):
    name = f"dying_{half_space}"
    model = long(nn.ModuleDict({name: nn.Linear(4, 6), "fc": nn.Linear(6, 3)}).double())
    with torch.no_grad():
        model[name].weight[[1, 4]] = 0
    with pytest.warns(UserWarning, match=name):
        regularizer = hs.EnergyRegularizer(model, half_space=half_space, hidden_weight=1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        value = regularizer()
    alive = model[name].weight[[0, 2, 3, 5]]
    expected = reference.energy(alive, 2.0, half_space=half_space) + reference.energy(model["fc"].weight, 2.0)
    check(value, expected, model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check(regularizer(), expected, model)
        assert float(regularizer.per_layer()[name]) == pytest.approx(
            reference.energy(alive, 2.0, half_space=half_space).item()
        )


def test_neurons_that_die_in_training_are_reported():
    model = nn.ModuleDict({"dying_later": nn.Linear(4, 6), "fc": nn.Linear(6, 3)})
    regularizer = hs.EnergyRegularizer(model)
    with torch.no_grad():
        model["dying_later"].weight[2] = 0
    with pytest.warns(UserWarning, match="dying_later"):
        regularizer()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for row in range(3):  # one report a layer, not one a neuron
            with torch.no_grad():
                model["dying_later"].weight[row] = 0
            regularizer()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("half_space", [False, True])
def test_mini_batches_with_dead_neurons_are_unbiased(half_space):
    layer = nn.Linear(6, 12).double()
    with torch.no_grad():
        layer.weight[8:] = 0
    exact = hs.EnergyRegularizer(layer, half_space=half_space, hidden_weight=1.0)()
    regularizer = hs.EnergyRegularizer(layer, half_space=half_space, hidden_weight=1.0, minibatch=3)
    draws = torch.stack([regularizer().detach() for _ in range(900)])
    assert (draws.mean() - exact).abs() < 4 * draws.std() / 30


def test_few_living_neurons_among_many_dead():
    rows = torch.zeros(1, 4096, 5)
    rows[0, :2] = torch.randn(2, 5)
    torch.testing.assert_close(
        hs.energy.group_energy(rows, Law())[0], hs.hyperspherical_energy(rows[0, :2]), rtol=1e-3, atol=0
    )


def test_a_random_measure_draws_anew_at_each_call():
    energy = hs.EnergyRegularizer(net(), measure="comhe_random")
    first, second = energy().item(), energy().item()
    assert first != second


def test_a_compiled_model_draws_as_the_plain_one():
    model = net()
    plain = hs.EnergyRegularizer(model, measure="comhe_random")
    wrapped = hs.EnergyRegularizer(torch.compile(model, backend="eager"), measure="comhe_random")
    assert wrapped().item() == plain().item()
