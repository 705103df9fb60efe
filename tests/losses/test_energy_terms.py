"""Heads with energy_weight, and SphereFace+: the loss plus the data-dependent energy of the head's weight (Eq. 8)."""

import inspect

import pytest
import torch

import hypersphere as hs
from hypersphere.train import neurons
from hypersphere.train.config import Energy
from tests import reference
from tests.losses.test_heads import F64, literal_losses
from tests.losses.test_heads import HEADS as PLAIN_HEADS
from tests.sphere_nets import check_derivatives

pytestmark = pytest.mark.slow

HEADS = {name: PLAIN_HEADS[name] for name in ("w linear", "ga learnable", "am")}
HEADS["plus"] = lambda *a, **k: hs.SphereFacePlusLoss(*a, **k)
every_head = pytest.mark.parametrize("name", HEADS)


def data(size=12, classes=7, d=5, dtype=F64):
    return torch.randn(size, d, dtype=dtype), torch.randint(classes, (size,))


def twins(name, classes=7, d=5, dtype=F64, energy_weight=0.3, energy_s=2.0, **options):
    """A head with energy and the same head without; with long weights, for which the force is not bounded."""
    head = HEADS[name](classes, d, dtype=dtype, energy_weight=energy_weight, energy_s=energy_s, **options)
    with torch.no_grad():
        head.weight.mul_(30)
    plain = HEADS[name](classes, d, dtype=dtype, energy_weight=0.0, **options)
    plain.load_state_dict(head.state_dict())
    return head, plain


@every_head
@pytest.mark.parametrize("s", [0.0, 2.0])
def test_the_energy_is_added_to_the_loss(name, s):
    x, y = data()
    for reduction, reduce in (("mean", torch.mean), ("sum", torch.sum), ("none", lambda losses: losses)):
        head, plain = twins(name, energy_s=s, reduction=reduction)
        value, without = head(x, y), plain(x, y)
        terms = reference.class_energies(head.weight, y, s)  # one a sample, so that their mean is Eq. 8's
        assert value.shape == without.shape
        torch.testing.assert_close(value, without + 0.3 * reduce(terms), rtol=1e-10, atol=1e-10)
        (grad,) = torch.autograd.grad(value.sum(), head.weight)
        (wanted,) = torch.autograd.grad(0.3 * reduce(terms).sum(), head.weight)
        wanted = wanted + torch.autograd.grad(without.sum(), plain.weight)[0]
        torch.testing.assert_close(grad, wanted, rtol=1e-8, atol=1e-9)
        if reduction == "mean":
            energy = hs.class_energy(head.weight, y, s)
            torch.testing.assert_close(value, without + 0.3 * energy, rtol=1e-10, atol=0)


def test_sphereface_plus_is_eq_8():
    head = hs.SphereFacePlusLoss(7, 5, dtype=F64)
    x, y = data()
    expected = literal_losses(head, x, y).mean() + reference.class_energies(head.weight, y, 2.0).mean()
    torch.testing.assert_close(head(x, y), expected, rtol=1e-10, atol=0)
    assert isinstance(head, hs.ASoftmaxLoss)
    assert head.step == 1
    same = hs.ASoftmaxLoss(7, 5, dtype=F64, energy_weight=1.0)
    same.load_state_dict(head.state_dict())
    torch.testing.assert_close(same.eval()(x, y), head.eval()(x, y), rtol=1e-12, atol=0)
    defaults = {k: p.default for k, p in inspect.signature(hs.SphereFacePlusLoss).parameters.items()}
    assert (defaults["margin"], defaults["scale"], defaults["annealing"]) == (4, None, True)
    light = hs.SphereFacePlusLoss(7, 5, dtype=F64, energy_weight=0.25, energy_s=1.0)
    light.load_state_dict(head.state_dict())
    plain = literal_losses(head, x, y).mean()
    light.step.zero_()
    expected = plain + 0.25 * reference.class_energies(head.weight, y, 1.0).mean()
    torch.testing.assert_close(light(x, y), expected, rtol=1e-10, atol=0)


@every_head
def test_ignored_samples_do_not_count(name):
    x, y = data()
    ignored = y.clone()
    ignored[[2, 5]] = -100
    counted = ignored >= 0
    for reduction in ("mean", "sum"):
        head, _ = twins(name, reduction=reduction)
        torch.testing.assert_close(head.eval()(x, ignored), head(x[counted], y[counted]), rtol=1e-10, atol=0)
    head, _ = twins(name, reduction="none")
    losses = head.eval()(x, ignored)
    assert (losses[[2, 5]] == 0).all()
    torch.testing.assert_close(losses[counted], head(x[counted], y[counted]), rtol=1e-10, atol=0)
    head, _ = twins(name, ignore_index=3)
    nothing = torch.full_like(y, 3)
    value = head(x.requires_grad_(), nothing)
    assert value == 0
    value.backward()
    assert x.grad.abs().max() == 0
    assert head.weight.grad is None or head.weight.grad.abs().max() == 0


@every_head
def test_derivatives(name):
    head, _ = twins(name, 4, 3, energy_weight=0.5)
    head.eval()
    check_derivatives(head, *data(5, 4, 3), second=name in ("w linear", "am", "plus"), atol=1e-4)


@pytest.mark.parametrize("s", [0.0, 2.0, 40.0])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_classes_with_a_zero_weight_have_no_energy(reduction, s):
    """They have no direction: the energy is that of the others among themselves, and 0 for their own samples."""
    head, plain = twins("am", energy_s=s, reduction=reduction)
    for loss in (head, plain):
        with torch.no_grad():
            loss.weight.mul_(1000)[[2, 5]] = 0  # s = 40 is steep: its force is bounded for shorter weights
    x, y = data()
    y[:4] = torch.tensor([2, 0, 5, 6])
    alive = torch.tensor([0, 1, 3, 4, 6])
    counted = (y.unsqueeze(1) == alive).any(1)
    weight = head.weight.detach()[alive].requires_grad_()
    terms = torch.zeros(len(y), dtype=F64)
    terms[counted] = reference.class_energies(weight, torch.searchsorted(alive, y[counted]), s)
    energy = 0.3 * {"mean": torch.mean, "sum": torch.sum, "none": lambda losses: losses}[reduction](terms)
    value, without = head(x, y), plain(x, y)
    torch.testing.assert_close(value, without + energy, rtol=1e-10, atol=1e-10)
    (wanted,) = torch.autograd.grad(without.sum(), plain.weight)
    wanted = wanted.index_add(0, alive, torch.autograd.grad(energy.sum(), weight)[0])
    torch.testing.assert_close(torch.autograd.grad(value.sum(), head.weight)[0], wanted, rtol=1e-8, atol=1e-9)


def test_autocast_half_precision_and_compile(device):
    head, plain = twins("plus", dtype=torch.float32)
    head, plain = head.to(device).eval(), plain.to(device).eval()
    x, y = (t.to(device) for t in data(dtype=torch.float32))
    expected = head(x, y)
    rounded = x.bfloat16()
    with torch.autocast(device.type, torch.bfloat16):
        energy = head(rounded, y) - plain(rounded, y)
    torch.testing.assert_close(energy, 0.3 * hs.class_energy(head.weight, y), rtol=1e-4, atol=1e-5)
    torch.compiler.reset()
    compiled = torch.compile(head, fullgraph=True, backend="aot_eager")
    value = compiled(x, y)
    torch.testing.assert_close(value, expected, rtol=1e-5, atol=0)
    (grad,) = torch.autograd.grad(value, head.weight)
    torch.testing.assert_close(grad, torch.autograd.grad(expected, head.weight)[0], rtol=1e-4, atol=1e-6)
    half = head.half()
    value = half(x.half(), y)
    value.backward()
    torch.testing.assert_close(value.float(), expected, rtol=1e-2, atol=1e-2)
    assert half.weight.grad.isfinite().all()


def test_a_head_with_energy_is_still_an_output_layer():
    head = hs.SphereFacePlusLoss(7, 5)
    assert hs.select(torch.nn.ModuleList([torch.nn.Linear(5, 5), head]))["1"].is_output
    regularizer = hs.EnergyRegularizer(torch.nn.Linear(4, 5), head=head, hidden_weight=0.0, output_weight=1.0)
    torch.testing.assert_close(regularizer(), hs.hyperspherical_energy(head.weight))


@pytest.mark.parametrize("inside", [False, True])
def test_classes_count_once(inside):
    """A head that adds its classes' energy to its loss leaves the regularizer no output term, unless one is given."""
    for head, output_weight in (
        (hs.SphereFacePlusLoss(7, 5), 0.0),
        (hs.ArcFaceLoss(7, 5, energy_weight=0.1), 0.0),
        (hs.SphereFacePlusLoss(7, 5, energy_weight=0.0), 1.0),
        (hs.ArcFaceLoss(7, 5), 1.0),
    ):
        body = torch.nn.Linear(4, 5)
        model, options = (torch.nn.ModuleList([body, head]), {}) if inside else (body, {"head": head})
        regularizer = hs.EnergyRegularizer(model, **options)
        hidden = 10 * hs.hyperspherical_energy(body.weight)
        expected = hidden + output_weight * hs.hyperspherical_energy(head.weight)
        torch.testing.assert_close(regularizer(), expected)
        assert len(regularizer.per_layer()) == 2  # to look at, as ever
        regularizer = hs.EnergyRegularizer(model, output_weight=0.5, **options)
        torch.testing.assert_close(regularizer(), hidden + 0.5 * hs.hyperspherical_energy(head.weight))
        labels = torch.tensor([1, 3])
        torch.testing.assert_close(regularizer(labels), hidden + 0.5 * hs.class_energy(head.weight, labels))


def test_configs_leave_weights_to_the_measure_and_the_head():
    body, plus = torch.nn.Linear(4, 5), hs.SphereFacePlusLoss(7, 5)
    for settings, weights in (
        (Energy(), (10.0, 0.0)),
        (Energy(half_space=True), (1.0, 0.0)),
        (Energy(output_weight=1.0), (10.0, 1.0)),
        (Energy(measure="orthonormal"), (1e-4, 0.0)),
        (Energy(measure="srip", hidden_weight=0.5), (0.5, 0.0)),
    ):
        regularizer = neurons.build_regularizer(body, plus, settings, 0)
        assert (regularizer.hidden_weight, regularizer.output_weight) == weights
    assert neurons.build_regularizer(body, hs.ArcFaceLoss(7, 5), Energy(), 0).output_weight == 1


def test_weights_of_samples_get_the_gradient_of_their_energy():
    x, y = data()
    grads = []
    for reduction in ("none", "sum"):
        torch.manual_seed(1)
        head = hs.AMSoftmaxLoss(int(y.max()) + 1, x.shape[1], energy_weight=1.0, reduction=reduction, dtype=F64)
        weights = torch.ones(len(y), dtype=F64, requires_grad=True)
        grads.append(torch.autograd.grad(head(x, y, sample_weight=weights).sum(), weights)[0])
    torch.testing.assert_close(*grads)


def test_an_empty_batch_has_no_energy():
    head = hs.SphereFacePlusLoss(5, 4)
    assert head(torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64)) == 0


def test_the_regularizer_ignores_what_its_head_ignores():
    head = hs.ArcFaceLoss(5, 4, ignore_index=-1, dtype=F64)
    energy = hs.EnergyRegularizer(torch.nn.Linear(3, 4).double(), head=head, hidden_weight=0.0)
    expected = hs.class_energy(head.weight, torch.tensor([2, 0]))
    torch.testing.assert_close(energy(torch.tensor([2, -1, 0])), expected)
    assert "head (output)" in repr(energy)
