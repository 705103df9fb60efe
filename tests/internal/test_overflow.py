"""No finite input, however large or small, gives NaN or infinity: neither in value nor in gradient."""

import copy
import math

import pytest
import torch
from torch import nn
from torch.autograd import gradcheck, gradgradcheck

import hypersphere as hs
from hypersphere import functional, orthogonal
from hypersphere._internal import overflow
from hypersphere.energy.measures import REGULARIZERS
from tests.rotations import ALIASES

pytestmark = pytest.mark.slow

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
TABLE = {
    "SphereLinear": (lambda **o: hs.SphereLinear(6, 5, similarity="learnable", **o), (4, 6)),
    "SphereConv2d": (
        lambda **o: hs.SphereConv2d(4, 6, 3, padding=1, similarity="linear", scale=True, **o),
        (2, 4, 5, 5),
    ),
    "reflect": (lambda **o: hs.SphereConv2d(4, 4, 3, padding=1, padding_mode="reflect", scale=9.0, **o), (2, 4, 5, 5)),
    "SphereConv1d": (lambda **o: hs.SphereConv1d(4, 6, 3, groups=2, similarity="sigmoid(0.001)", **o), (2, 4, 7)),
    "SphereGRU": (lambda **o: hs.SphereGRU(6, 4, similarity="sigmoid", **o), (3, 2, 6)),
    "W": (lambda **o: hs.WSoftmaxLoss(5, 6, **o), (4, 6)),
    "GA, learnable": (lambda **o: hs.GASoftmaxLoss(5, 6, "learnable", bias=True, **o), (4, 6)),
    "A": (lambda **o: hs.ASoftmaxLoss(5, 6, margin=3, annealing=False, reduction="sum", **o), (4, 6)),
    "A, smooth": (lambda **o: hs.ASoftmaxLoss(5, 6, label_smoothing=0.1, **o), (4, 6)),
    "SphereFace+": (lambda **o: hs.SphereFacePlusLoss(5, 6, reduction="none", **o), (4, 6)),
    "ArcFace": (lambda **o: hs.ArcFaceLoss(5, 6, energy_weight=1.0, energy_s=6.0, **o), (4, 6)),
}


def extremes(dtype, shape, seed=0):
    """Name → tensor: sizes from the smallest to the largest number, also mixed in one row or from row to row."""
    base = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    info, base = torch.finfo(dtype), base / base.abs().amax()
    sizes = [info.tiny * info.eps * 4, info.tiny * 2, 1e-20, 1e-3, 300.0, 1e18, 1e30, info.max / 2, info.max]
    tensors = {f"{size:.0e}": base * size for size in sizes if info.tiny * info.eps <= size <= info.max}
    scales = torch.logspace(math.log10(info.tiny), math.log10(info.max), 64, dtype=torch.float64)
    tensors["zeros"] = base * 0
    tensors["signs"] = base.sign() * info.max
    tensors["largest"] = torch.full_like(base, info.max)
    tensors["one"] = torch.zeros_like(base)
    tensors["one"].view(-1)[0] = info.max
    tensors["mixed"] = base * scales[torch.linspace(0, 63, shape[-1]).long()]
    tensors["rows"] = base * scales[torch.linspace(0, 63, shape[0]).long()].view(-1, *[1] * (len(shape) - 1))
    tensors["antipodal"] = base[:1] * torch.where(torch.arange(shape[0]) % 2 == 0, 1.0, -1.0).view(
        -1, *[1] * (len(shape) - 1)
    )
    return {name: x.clamp(-info.max, info.max).to(dtype) for name, x in tensors.items()}


def not_finite(y, leaves):
    grads = torch.autograd.grad(y, leaves, torch.ones_like(y), allow_unused=True) if y.requires_grad else []
    return [
        kind
        for kind, t in (("value", y), *(("gradient", g) for g in grads))
        if t is not None and not t.isfinite().all()
    ]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", TABLE)
def test_modules(name, dtype):
    make, shape = TABLE[name]
    module = make(dtype=dtype)
    start = {key: p.detach().clone() for key, p in module.named_parameters()}
    weights = {key: extremes(dtype, p.shape, 1) for key, p in start.items() if p.dim() > 1}
    inputs, bad = extremes(dtype, shape), []
    pairs = [(size, None) for size in inputs] + [("3e+02", size) for size in inputs] + [(size, size) for size in inputs]
    for size, of_weight in [*pairs, ("largest", "1e-03"), ("1e-03", "largest"), ("largest", "1e-20")]:
        if size not in inputs or (of_weight is not None and of_weight not in inputs):
            continue
        with torch.no_grad():
            for key, p in module.named_parameters():
                p.copy_(weights[key][of_weight] if key in weights and of_weight else start[key])
        x = inputs[size].clone().requires_grad_()
        for mode in (None, torch.bfloat16, torch.float16) if dtype is torch.float32 else (None,):
            with torch.autocast("cpu", mode or torch.bfloat16, enabled=mode is not None):
                y = module(x, torch.tensor([0, 1, 2, 4])) if hasattr(module, "num_classes") else module(x)
            y = y[0] if isinstance(y, tuple) else y
            bad += [(size, of_weight, mode, *not_finite(y, [x, *module.parameters()]))]
            if hasattr(module, "num_classes"):
                bad += [(size, of_weight, "logits", *not_finite(module.logits(x), [x]))] if mode is None else []
    assert [case for case in bad if len(case) > 3] == []


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_functions(dtype):
    def measured(name):
        def value(w):
            net = nn.Sequential(nn.Linear(5, 6, bias=False, dtype=dtype), nn.Linear(6, 4, bias=False, dtype=dtype))
            del net[0].weight
            net[0].weight = w
            return hs.EnergyRegularizer(net, measure=name, norm_weight=0.1)()

        return value

    functions = {name: measured(name) for name in REGULARIZERS}
    functions |= {
        name: getattr(functional, name) for name in ("unit", "angle", "cosine", "linear", "sigmoid", "orthonormal")
    }
    functions["energy, s=6"] = lambda w: hs.hyperspherical_energy(w, 6, half_space=True, angular=True)
    functions["class_energy"] = lambda w: hs.class_energy(w, torch.tensor([0, 3, 3]))
    functions["sigmoid of k"] = lambda x: functional.sigmoid(x.clamp(-1, 1), x.abs().clamp(1e-4, 100))
    bad = []
    for name, function in functions.items():
        for size, x in extremes(dtype, (6, 5)).items():
            leaf = x.clone().requires_grad_()
            if (
                name in ("class_energy", "energy, s=6")
                and not (functional.unit(x.float() if dtype.itemsize == 2 else x) != 0).any(1).all()
            ):
                with pytest.raises(ValueError, match="rows that are zero"):
                    function(leaf)
                continue
            if name in ("covering", "polarization", "comhe_angle") and size not in (
                "zeros",
                "rows",
                "largest",
                "signs",
            ):
                continue  # slow
            bad += [(name, size, *not_finite(function(leaf), [leaf]))]
    assert [case for case in bad if len(case) > 2] == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("method", [name for name in orthogonal.ORTHOGONALIZERS if name not in ALIASES])
def test_rotations(method, dtype):
    orthogonalizer, bad = orthogonal.ORTHOGONALIZERS[method], []
    shape, rows = orthogonalizer.shape(5), extremes(dtype, (6, 5))
    for size, numbers in extremes(dtype, (10, 5), 1).items():
        for of_rows in {"3e+02", size, "largest"}:
            p = numbers.flatten()[: math.prod(shape)].view(shape).clone().requires_grad_()
            v = rows[of_rows].clone().requires_grad_()
            bad += [(size, of_rows, *not_finite(orthogonalizer.apply(p, v), [p, v]))]
    for size, weight in rows.items():
        layer = nn.Linear(5, 6, bias=False, dtype=dtype)
        layer.weight.data = weight.clone()
        hs.rotate(layer, method, init="normal" if method in ("canonical", "skew") else "identity", neurons="learned")
        bad += [("rotate", size, *not_finite(layer.weight, list(layer.parameters())))]
    assert [case for case in bad if len(case) > 2] == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_heads_see_lengths_over_the_whole_range(dtype):
    """The loss of very long embeddings grows as they do."""
    x = torch.randn(4, 6, dtype=dtype)
    y = torch.tensor([0, 1, 2, 4])
    for head in (hs.GASoftmaxLoss(5, 6, annealing=False, margin=2, dtype=dtype), hs.WSoftmaxLoss(5, 6, dtype=dtype)):
        head.weight.data.mul_(1e30 if dtype is torch.float32 else 1e290)
        grads = []
        sizes = (1e12, 1e25, 1e34) if dtype is torch.float32 else (1e12, 1e160, 1e300)
        for size in sizes:
            leaf = (x * size).requires_grad_()
            loss = head(leaf, y)
            grads.append(torch.autograd.grad(loss, leaf)[0])
            torch.testing.assert_close(loss / size, head(x * sizes[0], y) / sizes[0])
            torch.testing.assert_close(head.logits(leaf) / size, head.logits(x))
        torch.testing.assert_close(grads[0], grads[1])
        torch.testing.assert_close(grads[0], grads[2])


@pytest.mark.parametrize("head", [hs.WSoftmaxLoss, hs.ArcFaceLoss])
def test_an_infinite_embedding_leaves_a_long_one_as_it_is(head):
    head, y = head(5, 6, reduction="none"), torch.tensor([0, 1, 2])
    x = torch.randn(3, 6) * torch.tensor([[1.0], [1e30], [1.0]])
    infinite = torch.cat([x[:2], torch.full((1, 6), torch.inf)])
    losses = head(infinite, y)
    torch.testing.assert_close(losses[:2], head(x, y)[:2])
    assert losses[2].isnan()


def test_gradients_of_long_embeddings(monkeypatch):
    """As in float64 without scaling, the bias's and the energy's too."""
    x, y = torch.randn(4, 6) * torch.tensor([[1e7], [3e6], [1e5], [1e6]]), torch.tensor([0, 1, 2, 4])
    single = hs.ASoftmaxLoss(5, 6, margin=2, bias=True, energy_weight=0.5)
    double = copy.deepcopy(single).double()
    with torch.no_grad():
        single.bias.copy_(torch.randn(5) * 1e5)
        double.bias.copy_(single.bias)
    gradients = []
    for head in (single, double):
        leaf = x.to(head.weight.dtype).requires_grad_()
        gradients.append(torch.autograd.grad(head(leaf, y), [leaf, head.weight, head.bias]))
        monkeypatch.setattr("hypersphere.losses.softmax.row_divisors", lambda x, limit: None)
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-3, atol=1e-4 * b.abs().max().item())


@pytest.mark.parametrize(("dtype", "size"), [(torch.float32, 1e25), (torch.float32, 1e36), (torch.float64, 1e300)])
def test_directions_do_not_depend_on_sizes(dtype, size):
    x, weight = torch.randn(4, 6, dtype=dtype), torch.randn(5, 6, dtype=dtype)
    image, filters = torch.randn(2, 3, 5, 5, dtype=dtype), torch.randn(4, 3, 3, 3, dtype=dtype)
    for function, *tensors in (
        (functional.unit, x),
        (functional.sphere_linear, x, weight),
        (functional.sphere_conv2d, image, filters),
        (hs.hyperspherical_energy, weight),
        (lambda w: hs.class_energy(w, torch.tensor([0, 2])), weight),
    ):
        torch.testing.assert_close(function(*(t * size for t in tensors)), function(*tensors))
        leaf = (tensors[0] * size).requires_grad_()
        (grad,) = torch.autograd.grad(function(leaf, *tensors[1:]).square().sum(), leaf)
        leaf = tensors[0].clone().requires_grad_()
        (wanted,) = torch.autograd.grad(function(leaf, *tensors[1:]).square().sum(), leaf)
        torch.testing.assert_close(grad * size, wanted, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("method", ["cayley", "gram_schmidt", "lowdin", "network", "unconstrained"])
def test_rotations_of_large_rows_and_numbers(method):
    """A product is homogeneous in its rows, and an orthogonal factor does not see the size of its matrix."""
    orthogonalizer = orthogonal.ORTHOGONALIZERS[method]
    torch.manual_seed(1)
    p, v = torch.randn(orthogonalizer.shape(5)), torch.randn(3, 5)
    torch.testing.assert_close(orthogonalizer.apply(p, v * 2.0**100) / 2.0**100, orthogonalizer.apply(p, v))
    if method in ("gram_schmidt", "lowdin"):
        for size in (2.0**-120, 2.0**120):
            torch.testing.assert_close(orthogonalizer.apply(p * size, v), orthogonalizer.apply(p, v))


def test_what_is_scaled_has_exact_derivatives():
    x = (torch.randn(3, 4, dtype=torch.float64) * 1e3).requires_grad_()
    up = overflow.power_of_two_divisor(x, 8.0)
    assert up >= 64
    assert overflow.power_of_two_divisor(x, 1e9) == 1
    assert overflow.shrink_huge(x, (1,)) is x
    assert overflow.scale_to_one(x, (0, 1)) is x
    assert overflow.clamp_abs(x, 1e9) is x
    assert gradcheck(lambda t: overflow.rescale(t, 3.0, 3.0), x)
    assert gradgradcheck(lambda t: overflow.rescale(t, 3.0, 3.0).square() * 1e-3, x)


def test_a_grad_scaler_still_sees_infinity():
    """Under autocast a gradient that float16 cannot hold stays infinite."""
    x = torch.full((2, 6), 1e-6, dtype=torch.float16, requires_grad=True)
    with torch.autocast("cpu", torch.float16):
        y = hs.SphereConv1d(6, 4, 1)(x.unsqueeze(-1))
    assert not torch.autograd.grad(y.sum() * 3e4, x)[0].isfinite().all()
