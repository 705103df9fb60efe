"""The force of an energy term is bounded by the neuron's own length: weight·‖gradient‖ ≤ c·‖w‖, at any scale."""

import pytest
import torch
from torch import nn
from torch.autograd import gradgradcheck

import hypersphere as hs
from hypersphere.energy.gradient_limit import MAX_GRADIENT_RATIO, bound_gradient
from tests import reference

pytestmark = pytest.mark.slow

F64 = torch.float64
LABELS = torch.arange(10).repeat(3)
LAWS = [{"half_space": True}, {"angular": True}, {"s": 0.0}, {"s": 400.0}, {"minibatch": 9}]


def crowded(length=0.1, dtype=torch.float32):
    """(10, 2): short neurons in the plane, two of them close, as a classifier of 2-D features may start."""
    rows = torch.randn(10, 2, dtype=F64, generator=torch.Generator().manual_seed(5))
    rows[1] = rows[0] + 1e-3 * rows[2]
    return (length * rows).to(dtype)


def network(**options):
    model = nn.Sequential(nn.Linear(2, 10, bias=False, dtype=options.get("dtype")))
    model[0].load_state_dict({"weight": crowded(**options)})
    return model


def check_bound(grad, weight, free, scale=1.0):
    """`grad` is `free`, the gradient without a bound, shortened where it is too long, and some of it is."""
    limit = scale * MAX_GRADIENT_RATIO * weight.detach().norm(dim=1)
    lengths = grad.norm(dim=1)
    assert grad.isfinite().all()
    assert (lengths <= 1.001 * limit).all()
    too_long = free.norm(dim=1) > limit
    assert too_long.any()
    squares_overflow = free.norm(dim=1).isinf()  # then the bound takes ‖g‖ for √d times its largest element
    assert (lengths[too_long] > 0.999 * limit[too_long] / (1 + squares_overflow[too_long])).all()
    cosines = torch.cosine_similarity(grad.double(), free.double(), dim=1, eps=0)
    assert (cosines[lengths > 0] > 0.999).all()
    torch.testing.assert_close(grad[~too_long], free[~too_long], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("law", LAWS, ids=str)
@pytest.mark.parametrize("output", [None, "0"], ids=["hidden", "output"])
def test_a_regularizers_force_is_bounded(output, law, monkeypatch):
    model = network()
    regularizer = hs.EnergyRegularizer(model, layers=hs.select(model, output=output), **law)
    value = regularizer()
    (grad,) = torch.autograd.grad(value, model[0].weight)
    monkeypatch.setattr("hypersphere.energy.gradient_limit.MAX_GRADIENT_RATIO", 1e30)
    regularizer.load_state_dict({"draws": 0, "seed": 0})
    without = regularizer()
    assert torch.equal(value, without)
    check_bound(grad, model[0].weight, torch.autograd.grad(without, model[0].weight)[0])


@pytest.mark.parametrize("law", [{}, {"half_space": True}, {"angular": True}, {"s": 0.0}], ids=str)
@pytest.mark.parametrize("length", [0.01, 1.0])
def test_without_the_limit_the_gradient_is_that_of_equation_4(length, law):
    """Pairs as near as 0.05, short ones too; nearer than 0.03 the energy itself bounds its force."""
    angles = torch.tensor([0.0, 0.05, 0.3, 1.0, 2.0, 2.5, 4.0], dtype=F64)
    layer = nn.Linear(2, 7, bias=False, dtype=F64)
    layer.load_state_dict({"weight": length * torch.stack([angles.cos(), angles.sin()], 1)})
    regularizer = hs.EnergyRegularizer(
        layer, layers=hs.select(layer, output=None), hidden_weight=10.0, limit_gradient=False, **law
    )
    literal = 10 * reference.energy(layer.weight.flatten(1), **({"s": 2.0} | law))
    expected, grad = (torch.autograd.grad(value, layer.weight)[0] for value in (literal, regularizer()))
    torch.testing.assert_close(grad, expected)


def test_without_the_limit_with_labels_and_with_a_minibatch():
    model = nn.Sequential(nn.Linear(5, 10, bias=False, dtype=F64))
    with torch.no_grad():
        model[0].weight *= 0.01
    regularizer = hs.EnergyRegularizer(model, layers=hs.select(model, output="0"), limit_gradient=False)
    literal = reference.class_energies(model[0].weight, LABELS, 2.0).mean()
    expected, grad = (torch.autograd.grad(value, model[0].weight)[0] for value in (literal, regularizer(LABELS)))
    torch.testing.assert_close(grad, expected)
    limited, free = (
        hs.EnergyRegularizer(model, layers=hs.select(model, output=None), minibatch=9, limit_gradient=limit)
        for limit in (True, False)
    )
    grads = [torch.autograd.grad(energy(), model[0].weight)[0].norm() for energy in (limited, free)]
    assert grads[1] > 10 * grads[0]


@pytest.mark.parametrize("length", [1e-8, 1e-3, 1.0])
def test_the_bound_holds_at_any_length(length, monkeypatch):
    model = network(length=length)
    regularizer = hs.EnergyRegularizer(model, layers=hs.select(model, output="0"))
    for labels in (None, LABELS):
        (grad,) = torch.autograd.grad(regularizer(labels), model[0].weight)
        with monkeypatch.context() as patch:
            patch.setattr("hypersphere.energy.gradient_limit.MAX_GRADIENT_RATIO", 1e30)
            (free,) = torch.autograd.grad(regularizer(labels), model[0].weight)
        check_bound(grad, model[0].weight, free)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_a_heads_force_is_bounded(reduction, monkeypatch):
    """By the mean over samples, however the losses are reduced."""
    x = torch.zeros(30, 2)  # an A-Softmax loss without a gradient
    head = hs.SphereFacePlusLoss(10, 2, reduction=reduction)
    head.load_state_dict({"weight": crowded()}, strict=False)
    scale = 30.0 if reduction == "sum" else 1.0
    (grad,) = torch.autograd.grad(head(x, LABELS).mean(), head.weight)
    monkeypatch.setattr("hypersphere.energy.gradient_limit.MAX_GRADIENT_RATIO", 1e30)
    (free,) = torch.autograd.grad(head(x, LABELS).mean(), head.weight)
    check_bound(grad, head.weight, free, scale)


def test_a_scaled_loss_has_a_scaled_gradient():
    """As with a GradScaler: a bound on the gradient that arrives would be another one."""
    model = network()
    regularizer = hs.EnergyRegularizer(model, layers=hs.select(model, output="0"))
    grads = [torch.autograd.grad(scale * regularizer(), model[0].weight)[0] for scale in (1.0, 2.0**16, -(2.0**-10))]
    torch.testing.assert_close(grads[1], 2.0**16 * grads[0], rtol=1e-6, atol=0)
    torch.testing.assert_close(grads[2], -(2.0**-10) * grads[0], rtol=1e-6, atol=0)


def test_float16_neurons():
    model = network(dtype=torch.float16)
    hs.EnergyRegularizer(model, layers=hs.select(model, output="0"))().backward()
    weight = model[0].weight
    assert (weight.grad.norm(dim=1) <= 1.01 * MAX_GRADIENT_RATIO * weight.norm(dim=1)).all()
    assert weight.grad.norm(dim=1)[:2].min() > 0.9 * MAX_GRADIENT_RATIO * weight.norm(dim=1)[:2].min()


def test_second_derivatives_below_the_bound():
    rows = 30 * torch.randn(4, 3, dtype=F64, generator=torch.Generator().manual_seed(0))
    rows.requires_grad_()

    def term(rows):
        return 3 * bound_gradient(hs.hyperspherical_energy, rows)

    assert gradgradcheck(term, rows, eps=1e-3, atol=1e-9)

    def step(f):  # value and gradient in one loss
        value = f(rows)
        (grad,) = torch.autograd.grad(value, rows, create_graph=True)
        return torch.autograd.grad(value + 100 * grad.square().sum(), rows)[0]

    torch.testing.assert_close(step(term), step(lambda rows: 3 * hs.hyperspherical_energy(rows)), rtol=1e-9, atol=0)


def test_second_derivatives_above_the_bound_are_finite():
    rows = crowded().requires_grad_()
    (grad,) = torch.autograd.grad(bound_gradient(hs.hyperspherical_energy, rows), rows, create_graph=True)
    assert torch.autograd.grad(grad.square().sum(), rows)[0].isfinite().all()


def test_compiled_in_one_graph():
    torch.compiler.reset()
    model = network()
    regularizer = hs.EnergyRegularizer(model, layers=hs.select(model, output="0"))
    (expected,) = torch.autograd.grad(regularizer(), model[0].weight)
    compiled = torch.compile(regularizer, fullgraph=True, backend="aot_eager")
    (grad,) = torch.autograd.grad(compiled(), model[0].weight)
    torch.testing.assert_close(grad, expected, rtol=1e-3, atol=1e-6)
