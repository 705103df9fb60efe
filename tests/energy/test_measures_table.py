"""Orthonormal regularization against reference.orthonormal, layer by layer."""

import itertools

import pytest
import torch
from torch import nn

import hypersphere as hs
from hypersphere.energy import orthonormal
from tests import reference

SHAPES = [(3, 7), (7, 3), (5, 5), (1, 4), (4, 1), (1, 1)]


def unit_rows(rows):
    return torch.stack([row / row.norm() if row.any() else row for row in rows])


@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_equals_the_literal_formula(shape, normalized, device):
    rows = torch.randn(shape, dtype=torch.float64)
    expected = reference.orthonormal(unit_rows(rows) if normalized else rows)
    value = orthonormal(rows.to(device), normalized=normalized)
    assert value.shape == ()
    torch.testing.assert_close(value.cpu(), expected, rtol=1e-12, atol=1e-10)


@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize("shape", [(4, 3, 5), (4, 5, 3), (2, 3, 4, 2)])
def test_kernels_of_any_shape_are_flattened(shape, normalized):
    weight = torch.randn(shape, dtype=torch.float64)
    rows = weight.flatten(1)
    expected = reference.orthonormal(unit_rows(rows) if normalized else rows)
    torch.testing.assert_close(orthonormal(weight, normalized=normalized), expected, rtol=1e-12, atol=1e-10)


@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize("shape", [(3, 5), (5, 3), (2, 3, 4), (2, 4, 3)])
def test_gradcheck(shape, normalized):
    weight = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda w: orthonormal(w, normalized=normalized), weight)
    assert torch.autograd.gradgradcheck(lambda w: orthonormal(w, normalized=normalized), weight)


def test_known_values():
    eye = torch.eye(4, dtype=torch.float64)
    assert orthonormal(eye) == 0
    assert orthonormal(eye[:2]) == 0
    assert orthonormal(3 * eye, normalized=True) == 0
    assert orthonormal(2 * eye) == 4 * 9
    assert orthonormal(torch.zeros(3, 5)) == 3  # every missing neuron counts 1
    assert orthonormal(torch.zeros(5, 3)) == 5
    assert orthonormal(torch.zeros(5, 3), normalized=True) == 5
    assert orthonormal(eye[[0, 0]]) == 2  # a pair at the same place, twice


def test_normalized_does_not_see_lengths():
    rows = torch.randn(4, 6, dtype=torch.float64)
    lengths = torch.rand(4, 1, dtype=torch.float64) * 9 + 0.1
    torch.testing.assert_close(orthonormal(rows * lengths, normalized=True), orthonormal(rows, normalized=True))
    assert orthonormal(rows * lengths) != pytest.approx(orthonormal(rows).item())


@pytest.mark.parametrize("normalized", [False, True])
def test_zero_rows_are_finite(normalized):
    weight = torch.randn(4, 3)
    weight[1] = 0
    weight.requires_grad_()
    orthonormal(weight, normalized=normalized).backward()
    assert weight.grad.isfinite().all()


@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", [(8, 64), (64, 8)])
def test_half_precision_is_exact_for_the_rounded_weights(dtype, normalized, shape, device):
    weight = (20 * torch.randn(shape)).to(device, dtype).requires_grad_()  # sums of squares of 6e9: beyond float16
    value = orthonormal(weight, normalized=normalized)
    expected = orthonormal(weight.detach().double(), normalized=normalized)
    torch.testing.assert_close(value.double(), expected, rtol=1e-5, atol=1e-4)
    (value * 1e-6).backward()
    assert weight.grad.isfinite().all()


@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast_does_not_round(dtype, normalized, device):
    weight = torch.randn(6, 40, device=device, requires_grad=True)
    with torch.autocast(device.type, dtype):
        value = orthonormal(weight, normalized=normalized)
    (grad,) = torch.autograd.grad(value, weight)
    expected = orthonormal(weight, normalized=normalized)
    torch.testing.assert_close(value, expected, rtol=1e-6, atol=0)
    torch.testing.assert_close(grad, torch.autograd.grad(expected, weight)[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("weight", "error"),
    [
        (torch.zeros(3), ValueError),
        (torch.zeros(()), ValueError),
        (torch.zeros(3, 3, dtype=torch.int64), TypeError),
        (torch.zeros(3, 3, dtype=torch.complex64), TypeError),
        ([[1.0, 0.0]], TypeError),
        (None, TypeError),
        (nn.Linear(2, 2), TypeError),
    ],
    ids=["1-d", "0-d", "int64", "complex", "list", "None", "module"],
)
def test_bad_weights_are_named(weight, error):
    with pytest.raises(error, match="weight"):
        orthonormal(weight)


# over a model


def net():
    return nn.Sequential(
        nn.Conv2d(4, 6, 3, groups=2),
        nn.BatchNorm2d(6),
        nn.ConvTranspose2d(6, 4, 2, groups=2),
        nn.Flatten(),
        nn.Linear(4, 9),
        hs.SphereLinear(9, 5),
        nn.Linear(5, 3),
    ).double()


def rows_by_hand(model):
    """{name: its neurons, group by group}, cut out of the weights one by one."""
    conv, transposed = model[0].weight, model[2].weight
    return {
        "0": [conv[3 * g : 3 * g + 3].reshape(3, -1) for g in range(2)],
        "2": [torch.stack([transposed[3 * g : 3 * g + 3, o].flatten() for o in range(2)]) for g in range(2)],
        "4": [model[4].weight],
        "5": [model[5].weight],
        "6": [model[6].weight],
    }


def by_hand(model, names, normalized=False):
    return sum(
        reference.orthonormal(unit_rows(rows) if normalized else rows)
        for name in names
        for rows in rows_by_hand(model)[name]
    )


@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({}, "0245"),  # the output is left out
        ({"layers": "*"}, "02456"),
        ({"layers": "6"}, "6"),
        ({"layers": nn.Linear}, "456"),
        ({"layers": [nn.Conv2d, "5"]}, "05"),
        ({"exclude": ["0", hs.SphereLinear]}, "24"),
        ({"layers": nn.Linear, "exclude": "6"}, "45"),
        ({"exclude": lambda name, module: hasattr(module, "groups")}, "45"),
    ],
)
def test_penalty_is_the_sum_by_hand(options, names, normalized):
    model = net()
    value = hs.energy.orthonormal_penalty(model, 0.3, normalized=normalized, **options)
    expected = 0.3 * by_hand(model, names, normalized)
    torch.testing.assert_close(value, expected, rtol=1e-10, atol=1e-10)
    grads = torch.autograd.grad(value, list(model.parameters()), allow_unused=True)
    wanted = torch.autograd.grad(expected, list(model.parameters()), allow_unused=True)
    for grad, want in zip(grads, wanted, strict=True):
        assert (grad is None) == (want is None)
        if grad is not None:
            torch.testing.assert_close(grad, want, rtol=1e-8, atol=1e-8)


def test_default_weight_and_device(device):
    model = net().to(device)
    value = hs.energy.orthonormal_penalty(model)
    assert value.device.type == device.type
    torch.testing.assert_close(value.cpu(), 1e-4 * by_hand(model.cpu(), "0245"), rtol=1e-9, atol=0)
    assert hs.energy.orthonormal_penalty(net(), 0) == 0


def test_attention_and_heads_count():
    attention = nn.MultiheadAttention(4, 2)
    expected = sum(map(reference.orthonormal, attention.in_proj_weight.chunk(3)))
    torch.testing.assert_close(hs.energy.orthonormal_penalty(attention, 1.0, layers=nn.MultiheadAttention), expected)
    head = hs.ArcFaceLoss(3, 5)
    torch.testing.assert_close(hs.energy.orthonormal_penalty(head, 1.0), reference.orthonormal(head.weight))


def test_parametrized_weights_are_seen_as_the_layer_sees_them():
    model = nn.Sequential(nn.utils.parametrizations.orthogonal(nn.Linear(6, 3)), nn.Linear(3, 2))
    assert hs.energy.orthonormal_penalty(model, 1.0).item() == pytest.approx(0, abs=1e-10)


def test_descent_makes_neurons_orthonormal():
    model = nn.Sequential(nn.Conv2d(3, 5, 3), nn.Flatten(), nn.Linear(5, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(60):
        optimizer.zero_grad()
        hs.energy.orthonormal_penalty(model, 1.0).backward()
        optimizer.step()
    rows = model[0].weight.flatten(1)
    torch.testing.assert_close(rows @ rows.T, torch.eye(5), rtol=0, atol=1e-3)


@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_models_and_autocast_are_finite(dtype, normalized, device):
    half = net().to(device, dtype)
    value = hs.energy.orthonormal_penalty(half, normalized=normalized)
    value.backward()
    assert value.isfinite()
    assert all(p.grad.isfinite().all() for p in half.parameters() if p.grad is not None)
    model = net().float().to(device)
    expected = hs.energy.orthonormal_penalty(model, normalized=normalized)
    with torch.autocast(device.type, dtype):
        value = hs.energy.orthonormal_penalty(model, normalized=normalized)
    torch.testing.assert_close(value, expected, rtol=1e-6, atol=0)


def test_layers_of_different_dtypes():
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 4).double(), nn.Linear(4, 4).half(), nn.Linear(4, 2))
    expected = sum(reference.orthonormal(model[i].weight.double()) for i in range(3))
    assert hs.energy.orthonormal_penalty(model, 1.0).item() == pytest.approx(expected.item(), rel=1e-5)


def test_nothing_matches_lists_what_is_there():
    with pytest.raises(ValueError, match=r"orthonormal_penalty.*0 \[Conv2d\].*6 \[Linear, the output\]"):
        hs.energy.orthonormal_penalty(net(), layers="conv*")
    for model in (nn.ReLU(), nn.Sequential(nn.ReLU(), nn.Linear(3, 2))):
        with pytest.raises(ValueError, match="orthonormal_penalty"):
            hs.energy.orthonormal_penalty(model)


@pytest.mark.parametrize(
    ("args", "options", "error", "match"),
    [
        ((None,), {}, TypeError, "model"),
        ((torch.zeros(2, 2),), {}, TypeError, "model"),
        ((nn.Linear(2, 2), "1e-4"), {}, TypeError, "weight"),
        ((nn.Linear(2, 2), -1.0), {}, ValueError, "weight"),
        ((nn.Linear(2, 2), float("nan")), {}, ValueError, "weight"),
        ((nn.Linear(2, 2),), {"layers": [1]}, TypeError, "layers"),
        ((nn.Linear(2, 2),), {"exclude": [1]}, TypeError, "exclude"),
    ],
    ids=itertools.count(),
)
def test_bad_arguments_are_named(args, options, error, match):
    with pytest.raises(error, match=match):
        hs.energy.orthonormal_penalty(*args, **options)
