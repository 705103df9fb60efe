"""torch.func and forward-mode AD of layers, heads and energies against the literal formulas in float64."""

import copy

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, stack_module_state, vmap

import hypersphere as hs
from tests import reference

F64 = torch.float64
LABELS = torch.tensor([0, 1, 3])


def randn(*shape, seed=0):
    return torch.randn(*shape, dtype=F64, generator=torch.Generator().manual_seed(seed))


X, W, IMAGE, FILTERS = randn(3, 6), randn(4, 6, seed=1), randn(2, 2, 4, 4), randn(4, 1, 2, 2, seed=1)


def head_case(head, **literal):
    """The loss as a function of the class weights."""
    head = head.eval()
    return (
        lambda w: functional_call(head, {"weight": w}, (X, LABELS)),
        lambda w: reference.softmax_losses(X, LABELS, w, **literal).mean(),
        W,
    )


def energy_case(**options):
    options = {"s": 2.0, **options}
    return (
        lambda w: hs.hyperspherical_energy(w, **options),
        lambda w: reference.energy(w, **options),
        W,
    )


CASES = {  # name: function, literal formula, argument
    "linear layer, input": (
        lambda x: hs.functional.sphere_linear(x, W, similarity="linear"),
        lambda x: reference.sphere_linear(x, W, g=reference.linear),
        X,
    ),
    "linear layer, weight": (
        lambda w: hs.functional.sphere_linear(X, w, similarity="sigmoid(0.7)", scale=3.0),
        lambda w: reference.sphere_linear(X, w, g=lambda theta: reference.sigmoid(theta, 0.7), scale=3.0),
        W,
    ),
    "convolution, input": (
        lambda x: hs.functional.sphere_conv2d(x, FILTERS, padding=1, stride=2, groups=2),
        lambda x: reference.sphere_conv(x, FILTERS, padding=1, stride=2, groups=2),
        IMAGE + 0.1,
    ),
    "convolution, weight": (
        lambda w: hs.functional.sphere_conv2d(IMAGE, w, similarity="sigmoid", groups=2),
        lambda w: reference.sphere_conv(IMAGE, w, g=reference.sigmoid, groups=2),
        FILTERS,
    ),
    "learnable k": (
        lambda k: hs.similarity.sigmoid(torch.tanh(X @ W.T), k),
        lambda k: reference.sigmoid(torch.tanh(X @ W.T).acos(), k),
        randn(4).abs() + 0.3,
    ),
    "w_softmax": head_case(hs.WSoftmaxLoss(4, 6, similarity="linear", dtype=F64), g=reference.linear),
    "a_softmax": head_case(
        hs.ASoftmaxLoss(4, 6, margin=2, annealing=False, dtype=F64), margin=lambda theta: reference.psi(theta, 2)
    ),
    "arcface": head_case(
        hs.ArcFaceLoss(4, 6, scale=8.0, dtype=F64), margin=lambda theta: reference.arcface(theta, 0.5), scale=8.0
    ),
    "am_softmax": head_case(
        hs.AMSoftmaxLoss(4, 6, scale=8.0, dtype=F64), margin=lambda theta: reference.am_softmax(theta, 0.35), scale=8.0
    ),
    "energy": energy_case(),
    "energy, half space": energy_case(half_space=True),
    "energy, angular": energy_case(angular=True, s=1.0),
    "energy, logarithmic": energy_case(s=0.0, reduction="sum"),
    "energy, large s": energy_case(s=12.0),
    "energies of neurons": energy_case(reduction="none", half_space=True),
    "energy, lengths": energy_case(beta=torch.tensor([1.0, 2.0, 1.5, 3.0], dtype=F64)),
    "class energy": (
        lambda w: hs.class_energy(w, LABELS),
        lambda w: reference.class_energies(w, LABELS, 2.0).mean(),
        W,
    ),
}


@pytest.fixture(params=CASES)
def case(request):
    return CASES[request.param]


def scalar(f):
    return lambda x: f(x).square().sum()


def test_forward_mode(case):
    f, literal, x = case
    t = randn(*x.shape, seed=7)
    value, tangent = jvp(f, (x,), (t,))
    torch.testing.assert_close(value, literal(x))
    _, backward = torch.autograd.functional.jvp(literal, x, t)  # by two reverse passes
    torch.testing.assert_close(tangent, backward)
    with forward_ad.dual_level():
        dual = f(forward_ad.make_dual(x, t))
        torch.testing.assert_close(forward_ad.unpack_dual(dual).tangent, backward)


@pytest.mark.slow
def test_hessians(case):
    """Forward over reverse (torch.func.hessian), reverse over reverse and reverse over forward."""
    f, literal, x = case
    expected = torch.autograd.functional.hessian(scalar(literal), x)
    tolerance = {"rtol": 1e-6, "atol": 1e-8 * expected.abs().max().item()}
    for transform in (hessian, lambda g: jacrev(jacrev(g)), lambda g: jacrev(jacfwd(g))):
        torch.testing.assert_close(transform(scalar(f))(x), expected, **tolerance)


def test_vmap(case, recwarn):
    """Over a stack of arguments: values, gradients inside of it and outside."""
    f, literal, x = case
    stack = torch.stack([x, x.flip(0) + 0.1, x * 2])
    torch.testing.assert_close(vmap(f)(stack), torch.stack([literal(argument) for argument in stack]))
    expected = torch.stack([grad(scalar(literal))(argument) for argument in stack])
    torch.testing.assert_close(vmap(grad(scalar(f)))(stack), expected, rtol=1e-6, atol=1e-8)
    leaf = stack.clone().requires_grad_()
    vmap(scalar(f))(leaf).sum().backward()
    torch.testing.assert_close(leaf.grad, expected, rtol=1e-6, atol=1e-8)
    assert not [w for w in recwarn if "performance" in str(w.message)]


@pytest.mark.parametrize("options", [{}, {"half_space": True}, {"angular": True}, {"s": 12.0}])
def test_close_neurons(options):
    """Pairs nearer than 0.03 have the bounded force here too; coincident ones stay finite."""
    w = randn(5, 6)
    w[1], w[2] = 2 * w[0] + 0.01 * randn(6, seed=2), 0.02 * randn(6, seed=3) - w[0]
    f = lambda w: hs.hyperspherical_energy(w, **options)  # noqa: E731
    leaf = w.clone().requires_grad_()
    f(leaf).backward()
    torch.testing.assert_close(jacfwd(f)(w), leaf.grad, rtol=1e-4, atol=1e-4 * leaf.grad.abs().max().item())
    for rows in (w.float(), w):
        torch.testing.assert_close(vmap(f)(rows[None])[0], f(rows), rtol=1e-5, atol=0)
    w[1] = w[0]
    assert jacfwd(f)(w).isfinite().all()
    assert hessian(f)(w).isfinite().all()


def test_the_energy_of_a_head():
    """Second derivatives take the bound of the energy's gradient as a constant, in every mode."""
    head = hs.SphereFacePlusLoss(4, 6, dtype=F64).eval()
    f = lambda w: functional_call(head, {"weight": w}, (X, LABELS))  # noqa: E731
    expected = torch.autograd.functional.hessian(f, W)
    torch.testing.assert_close(hessian(f)(W), expected)
    torch.testing.assert_close(jacrev(jacrev(f))(W), expected)


@pytest.mark.parametrize(
    ("make", "inputs"),
    [
        (lambda: hs.SphereLinear(6, 4, similarity="learnable", scale=True, dtype=F64), (X,)),
        (lambda: hs.SphereConv2d(2, 4, 2, groups=2, similarity="linear", dtype=F64), (IMAGE,)),
        (lambda: nn.Sequential(hs.SphereLinear(6, 8, dtype=F64), nn.ReLU(), hs.SphereLinear(8, 3, dtype=F64)), (X,)),
        (lambda: hs.ArcFaceLoss(4, 6, dtype=F64), (X, LABELS)),
        (lambda: hs.SphereFacePlusLoss(4, 6, dtype=F64).eval(), (X, LABELS)),
    ],
    ids=["linear", "convolution", "network", "head", "head with energy"],
)
def test_ensembles(make, inputs, recwarn):
    """functional_call under vmap over the stacked parameters of several modules, and their gradients."""
    modules = [make() for _ in range(3)]
    parameters, buffers = stack_module_state(modules)
    base = copy.deepcopy(modules[0]).to("meta")

    def loss(p, b):
        return functional_call(base, (p, b), inputs).square().sum()

    torch.testing.assert_close(
        vmap(loss)(parameters, buffers), torch.stack([m(*inputs).square().sum() for m in modules])
    )
    gradients = vmap(grad(loss))(parameters, buffers)
    for i, module in enumerate(modules):
        module.zero_grad()
        module(*inputs).square().sum().backward()
        for name, parameter in module.named_parameters():
            torch.testing.assert_close(gradients[name][i], parameter.grad)
    assert not [w for w in recwarn if "performance" in str(w.message)]
