"""EnergyRegularizer, spread and normalize_neurons: sums over layers by hand, draws, dead neurons, torch's machinery."""

import copy
import itertools
import math

import pytest
import torch
from torch import nn

import hypersphere as hs
from hypersphere.energy import REGULARIZERS
from hypersphere.energy.measures import WEIGHTS
from tests import reference

pytestmark = pytest.mark.slow

F64 = torch.float64


class Net(nn.Module):
    """Every kind of layer once, with names; (B, 4, 5, 5) in, three classes out."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 8, 3, groups=2)
        self.norm = nn.BatchNorm2d(8)
        self.up = nn.ConvTranspose2d(8, 6, 2, groups=2)
        self.flat = nn.Flatten()
        self.plain = nn.Linear(6 * 16, 7)
        self.sphere = hs.SphereLinear(7, 5)
        self.fc = nn.Linear(5, 3)

    def forward(self, x):
        x = self.flat(self.up(self.norm(self.conv(x)).relu()).relu())
        return self.fc(self.sphere(self.plain(x)).relu())


def long(model):
    """Neurons so long that the bound on the force is inactive in small layers too: the formula alone."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(100)
    return model


def net():
    return long(Net().double())


def rows_by_hand(model):
    """{name: its neurons, group by group}, cut out of the weights one by one."""
    conv, up = model.conv.weight, model.up.weight
    return {
        "conv": [conv[4 * g : 4 * g + 4].reshape(4, -1) for g in range(2)],
        "up": [torch.stack([up[4 * g : 4 * g + 4, o].flatten() for o in range(3)]) for g in range(2)],
        "plain": [model.plain.weight],
        "sphere": [model.sphere.weight],
        "fc": [model.fc.weight],
    }


HIDDEN = ["conv", "up", "plain", "sphere"]


def by_hand(model, name, s=2.0, **options):
    """The mean energy of a layer, averaged over its groups."""
    groups = rows_by_hand(model)[name]
    return sum(reference.energy(rows, s, **options) for rows in groups) / len(groups)


def check(value, expected, model):
    """The same value and the same gradients."""
    torch.testing.assert_close(value, expected, rtol=1e-9, atol=1e-12)
    parameters = list(model.parameters())
    grads = torch.autograd.grad(value, parameters, allow_unused=True)
    wanted = torch.autograd.grad(expected, parameters, allow_unused=True, retain_graph=True)
    for grad, want in zip(grads, wanted, strict=True):
        grad, want = (torch.zeros(()).double() if x is None else x for x in (grad, want))
        torch.testing.assert_close(grad, want.expand_as(grad), rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("angular", [False, True])
@pytest.mark.parametrize("half_space", [False, True])
@pytest.mark.parametrize("s", [0.0, 2.0])
def test_defaults_are_the_papers(s, half_space, angular):
    model = net()
    value = hs.EnergyRegularizer(model, s=s, half_space=half_space, angular=angular)()
    hidden = sum(by_hand(model, name, s, half_space=half_space, angular=angular) for name in HIDDEN)
    expected = (1 if half_space else 10) * hidden + by_hand(model, "fc", s, angular=angular)
    assert value.shape == ()
    check(value, expected, model)


@pytest.mark.parametrize(
    ("options", "hidden", "output"),
    [
        ({}, HIDDEN, ["fc"]),
        ({"layers": [nn.Linear]}, ["plain", "sphere"], ["fc"]),
        ({"layers": "conv"}, ["conv"], []),
        ({"exclude": ["fc", nn.Conv2d]}, ["up", "plain", "sphere"], []),
        ({"layers": "fc"}, [], ["fc"]),
    ],
    ids=itertools.count(),
)
def test_layers_weights_and_decay(options, hidden, output):
    model = net()
    value = hs.EnergyRegularizer(model, hidden_weight=0.7, output_weight=0.3, norm_weight=0.2, **options)()
    norms = torch.cat([rows.norm(dim=1) for name in hidden + output for rows in rows_by_hand(model)[name]])
    expected = (
        0.7 * sum(by_hand(model, name) for name in hidden)
        + 0.3 * sum(by_hand(model, name) for name in output)
        + 0.2 * norms.mean()  # 3.7: over the neurons of all layers
    )
    check(value, expected, model)


@pytest.mark.parametrize("output", [None, "plain"])
def test_the_output_of_a_selection(output):
    model = net()
    layers = hs.select(model, output=output)
    value = hs.EnergyRegularizer(model, layers=layers, hidden_weight=0.7, output_weight=0.3)()
    weights = {name: 0.3 if name == output else 0.7 for name in [*HIDDEN, "fc"]}
    check(value, sum(weight * by_hand(model, name) for name, weight in weights.items()), model)


def test_average_divides_by_the_number_of_layers():
    model = net()
    value = hs.EnergyRegularizer(model, hidden_weight=3.0, layers=hs.select(model, output=None), average=True)()
    check(value, 3 * sum(by_hand(model, name) for name in [*HIDDEN, "fc"]) / 5, model)
    value = hs.EnergyRegularizer(model, hidden_weight=3.0, output_weight=2.0, average=True)()
    hidden = sum(by_hand(model, name) for name in HIDDEN)
    check(value, (3 * hidden + 2 * by_hand(model, "fc")) / 5, model)


@pytest.mark.parametrize("angular", [False, True])
def test_labels_make_the_output_term_depend_on_data(angular):
    model, labels = net(), torch.tensor([2, 2, 0])
    regularizer = hs.EnergyRegularizer(model, half_space=True, angular=angular, s=1.0, output_weight=2.0)
    hidden = sum(by_hand(model, name, 1.0, half_space=True, angular=angular) for name in HIDDEN)
    classes = reference.class_energies(model.fc.weight, labels, 1.0, angular=angular).mean()
    check(regularizer(labels), hidden + 2 * classes, model)
    check(regularizer(labels=labels), hidden + 2 * classes, model)
    check(regularizer(), hidden + 2 * by_hand(model, "fc", 1.0, angular=angular), model)
    with pytest.raises(ValueError, match="labels"):
        regularizer(torch.tensor([3]))


def test_a_head_beside_the_model_is_the_output():
    model, head, labels = net(), long(hs.ArcFaceLoss(6, 3, dtype=F64)), torch.tensor([5, 1])
    regularizer = hs.EnergyRegularizer(model, head=head, half_space=True, norm_weight=0.5)
    hidden = sum(by_hand(model, name, half_space=True) for name in [*HIDDEN, "fc"])
    rows = [*(rows for groups in rows_by_hand(model).values() for rows in groups), head.weight]
    decay = 0.5 * torch.cat([r.norm(dim=1) for r in rows]).mean()
    both = nn.ModuleList([model, head])
    check(regularizer(), hidden + reference.energy(head.weight, 2.0) + decay, both)
    check(regularizer(labels), hidden + reference.class_energies(head.weight, labels, 2.0).mean() + decay, both)
    energies = regularizer.per_layer()
    assert set(energies) >= {*HIDDEN, "fc"}
    assert len(energies) == 6
    others = [float(energy) for name, energy in energies.items() if name not in (*HIDDEN, "fc")]
    assert others == pytest.approx([reference.energy(head.weight, 2.0).item()])
    for wrong in ("head", nn.ReLU(), torch.zeros(3, 3)):
        with pytest.raises((TypeError, ValueError), match="head"):
            hs.EnergyRegularizer(model, head=wrong)


def test_per_layer_is_the_plain_energy():
    model = net()
    regularizer = hs.EnergyRegularizer(model, half_space=True, minibatch=2, hidden_weight=5.0, average=True)
    for energies in (regularizer.per_layer(), regularizer.per_layer()):  # never sampled
        assert list(energies) == [*HIDDEN, "fc"]
        for name, energy in energies.items():
            assert float(energy) == pytest.approx(by_hand(model, name, half_space=name != "fc").item())


def test_weights_are_read_at_each_call():
    model = net()
    regularizer = hs.EnergyRegularizer(model)
    assert not isinstance(regularizer, nn.Module)
    before = regularizer()
    with torch.no_grad():
        model.plain.weight.normal_()
    after = regularizer()
    assert after != before
    torch.testing.assert_close(after, hs.EnergyRegularizer(copy.deepcopy(model))(), rtol=1e-12, atol=0)
    model.plain = nn.Linear(96, 7).double()
    model.load_state_dict(net().state_dict())
    assert regularizer().isfinite()


def test_a_callable_measure():
    model = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3)).double()
    regularizer = hs.EnergyRegularizer(
        model,
        layers=hs.select(model, output=None),
        measure=lambda rows: rows.norm(dim=-1).square().mean(),
        hidden_weight=2.0,
    )
    check(regularizer(), 2 * sum(layer.weight.norm(dim=1).square().mean() for layer in model), model)


@pytest.mark.parametrize("measure", [*REGULARIZERS])
def test_every_measure_has_weights_of_its_own(measure):
    hidden, output = WEIGHTS[measure]
    regularizer = hs.EnergyRegularizer(net(), measure=measure)
    assert (regularizer.hidden_weight, regularizer.output_weight) == (hidden, output)
    assert hidden > 0
    regularizer = hs.EnergyRegularizer(net(), measure=measure, hidden_weight=0.0, output_weight=0.25)
    assert (regularizer.hidden_weight, regularizer.output_weight) == (0.0, 0.25)


@pytest.mark.parametrize("measure", ["energy", "comhe_random", "comhe_angle"])
def test_energies_weigh_a_tenth_in_half_space(measure):
    regularizer = hs.EnergyRegularizer(net(), measure=measure, half_space=True)
    assert (regularizer.hidden_weight, regularizer.output_weight) == (1.0, 1.0)


def test_a_measure_of_ones_own_needs_a_weight(monkeypatch):
    def lengths(rows):
        return rows.norm(dim=-1).mean()

    with pytest.raises(ValueError, match="hidden_weight must be a number for a measure of your own"):
        hs.EnergyRegularizer(net(), measure=lengths)
    assert hs.EnergyRegularizer(net(), measure=lengths, hidden_weight=0.5).output_weight == 0
    monkeypatch.setitem(REGULARIZERS, "lengths", lambda rows, law, draw: rows.norm(dim=-1).mean(1))
    with pytest.raises(ValueError, match="hidden_weight must be a number for a measure of your own"):
        hs.EnergyRegularizer(net(), measure="lengths")


# inside torch's machinery


def test_autocast_and_half_precision(device):
    model, labels = Net().to(device), torch.tensor([0, 2], device=device)
    regularizer = hs.EnergyRegularizer(model, half_space=True, norm_weight=0.1)
    expected = regularizer(labels)
    with torch.autocast(device.type, torch.bfloat16):
        torch.testing.assert_close(regularizer(labels), expected, rtol=1e-6, atol=0)
    half = copy.deepcopy(model).to(torch.bfloat16)
    value = hs.EnergyRegularizer(half, half_space=True, norm_weight=0.1)(labels)
    value.backward()
    torch.testing.assert_close(value.float(), expected, rtol=1e-2, atol=0)
    assert all(p.grad.isfinite().all() for p in half.parameters() if p.grad is not None)


def test_layers_of_different_dtypes():
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 4).double(), nn.Linear(4, 4).half(), nn.Linear(4, 2))
    expected = sum(reference.energy(model[i].weight.double(), 2.0) for i in range(3))
    value = hs.EnergyRegularizer(model, output_weight=0.0, hidden_weight=1.0)()
    assert value.item() == pytest.approx(expected.item(), rel=1e-5)


def small():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))


def train(model, term, compiled):
    """The parameters after three steps on a fixed batch; term(y) is added to the loss."""
    generator = torch.Generator().manual_seed(5)
    x, y = torch.randn(8, 5, generator=generator), torch.randint(3, (8,), generator=generator)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def loss(x, y):
        return nn.functional.cross_entropy(model(x), y) + term(y)

    loss = torch.compile(loss, backend="aot_eager") if compiled else loss
    for _ in range(3):
        optimizer.zero_grad()
        loss(x, y).backward()
        optimizer.step()
    return [p.detach().clone() for p in model.parameters()]


def test_a_compiled_training_step():
    torch.compiler.reset()
    results = []
    for compiled in (False, True):
        model = small()
        regularizer = hs.EnergyRegularizer(model, half_space=True, norm_weight=0.1, minibatch=5)
        results.append(train(model, regularizer, compiled))  # with labels
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


# what is refused


def test_a_model_without_layers_lists_what_is_there():
    for model in (nn.ReLU(), nn.Sequential(nn.ReLU(), nn.BatchNorm1d(3))):
        with pytest.raises(ValueError, match="EnergyRegularizer"):
            hs.EnergyRegularizer(model)
    with pytest.raises(ValueError, match=r"EnergyRegularizer.*conv \[Conv2d\].*fc \[Linear, the output\]"):
        hs.EnergyRegularizer(net(), layers="nothing*")


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"s": -1.0}, ValueError, r"\bs must"),
        ({"hidden_weight": math.nan}, ValueError, "hidden_weight"),
        ({"output_weight": "1"}, TypeError, "output_weight"),
        ({"norm_weight": -1e-4}, ValueError, "norm_weight"),
        ({"hidden_weight": -1}, ValueError, "hidden_weight must be finite and >= 0"),
        ({"output_weight": -1}, ValueError, "output_weight must be finite and >= 0"),
        ({"measure": "thomson"}, ValueError, r"measure.*energy"),
        ({"measure": 3}, (TypeError, ValueError), "measure"),
        ({"minibatch": 0}, ValueError, "minibatch"),
        ({"layers": [1]}, TypeError, "layers"),
        ({"seed": "a"}, TypeError, "seed"),
    ],
    ids=itertools.count(),
)
def test_bad_arguments_are_named(options, error, match):
    with pytest.raises(error, match=match):
        hs.EnergyRegularizer(net(), **options)
