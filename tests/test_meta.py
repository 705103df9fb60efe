"""Everything runs forward and backward on the meta device: no value is read, no device is assumed."""

import pytest
import torch
from torch import nn

import hypersphere as hs
from hypersphere import functional, orthogonal
from hypersphere.energy.measures import REGULARIZERS

pytestmark = pytest.mark.slow

HEADS = [hs.WSoftmaxLoss, hs.GASoftmaxLoss, hs.SphereFacePlusLoss, hs.AMSoftmaxLoss, hs.ArcFaceLoss]
LAYERS = {
    "linear": (lambda **options: hs.SphereLinear(6, 8, **options), (5, 6)),
    "conv1d": (lambda **options: hs.SphereConv1d(6, 8, 3, **options), (5, 6, 7)),
    "conv2d": (lambda **options: hs.SphereConv2d(6, 8, 3, padding=1, **options), (5, 6, 7, 7)),
    "conv2d, groups": (lambda **options: hs.SphereConv2d(6, 8, 3, groups=2, stride=2, **options), (5, 6, 7, 7)),
    "conv2d, reflect": (
        lambda **options: hs.SphereConv2d(6, 8, 3, padding=1, padding_mode="reflect", **options),
        (5, 6, 7, 7),
    ),
    "conv3d": (lambda **options: hs.SphereConv3d(6, 8, 3, **options), (5, 6, 4, 4, 4)),
    "rnn": (lambda **options: hs.SphereRNN(6, 4, **options), (5, 3, 6)),
    "gru": (lambda **options: hs.SphereGRU(6, 4, bidirectional=True, **options), (5, 3, 6)),
    "lstm": (lambda **options: hs.SphereLSTM(6, 4, num_layers=2, **options), (5, 3, 6)),
}
# torch has no meta kernel for the factorization under these
WITHOUT_META = {"householder", "givens"}


def meta(*shape, dtype=None):
    return torch.empty(shape, device="meta", dtype=dtype, requires_grad=dtype is None)


def check(value, *leaves):
    """`value` and the gradients of `leaves` exist, on the meta device."""
    assert value.is_meta
    value.sum().backward()
    for leaf in leaves:
        assert leaf.grad is not None
        assert leaf.grad.is_meta
        assert leaf.grad.shape == leaf.shape


def mlp():
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 4))


@pytest.mark.parametrize(
    ("name", "similarity"),
    [*((n, "learnable") for n in LAYERS), *(("conv2d", s) for s in ("cosine", "linear", "sigmoid"))],
)
def test_layers(name, similarity):
    make, shape = LAYERS[name]
    layer, x = make(similarity=similarity, scale=True, device="meta"), meta(*shape)
    out = layer(x)
    check(out if isinstance(out, torch.Tensor) else out[0], x, *layer.parameters())


@pytest.mark.parametrize("name", ["linear", "conv2d", "gru"])
def test_layers_as_on_the_cpu(name):
    """The shape and dtype are the CPU's, also while autocast is on for the CPU, which does not concern meta tensors."""
    make, shape = LAYERS[name]
    outs = []
    for device in ("cpu", "meta"):
        out = make(device=device)(torch.empty(shape, device=device).fill_(1.0))
        outs.append(out if isinstance(out, torch.Tensor) else out[0])
    assert outs[0].shape == outs[1].shape
    with torch.autocast("cpu", torch.bfloat16):
        out = make(device="meta")(torch.empty(shape, device="meta"))
    assert (out if isinstance(out, torch.Tensor) else out[0]).dtype is torch.float32


@pytest.mark.parametrize("head", HEADS)
def test_heads(head):
    loss, x = head(4, 6, bias=True, energy_weight=1.0, label_smoothing=0.1, device="meta"), meta(5, 6)
    check(loss(x, meta(5, dtype=torch.int64), sample_weight=meta(5, dtype=torch.float32)), x, *loss.parameters())
    check(loss.logits(x), x)


@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("s", [0, 2, 6])
def test_energy(s, reduction):
    weight = meta(7, 6)
    for options in ({}, {"half_space": True, "angular": True}):
        check(hs.hyperspherical_energy(weight, s, reduction=reduction, **options), weight)


def test_energy_of_classes_and_lengths():
    weight = meta(7, 6)
    check(hs.class_energy(weight, meta(5, dtype=torch.int64)), weight)
    check(hs.hyperspherical_energy(weight, beta=meta(7, dtype=torch.float32)), weight)


@pytest.mark.parametrize("measure", REGULARIZERS)
def test_measures(measure):
    with torch.device("meta"):
        net = mlp()
    check(hs.EnergyRegularizer(net, measure=measure, norm_weight=0.1)(), net[0].weight, net[4].weight)


def test_regularizer():
    with torch.device("meta"):
        net = mlp()
    check(hs.EnergyRegularizer(net, half_space=True)(meta(5, dtype=torch.int64)), net[0].weight, net[4].weight)
    check(hs.EnergyRegularizer(net, minibatch=3)(), net[0].weight)
    check(functional.orthonormal(net[0].weight), net[0].weight)
    with pytest.raises(ValueError, match="no values on the meta device"):
        hs.EnergyRegularizer(net).per_layer()
    with pytest.raises(ValueError, match="no values on the meta device"):
        hs.spread(net)
    assert hs.normalize_neurons(net)[0].weight.is_meta


@pytest.mark.parametrize("name", ["unit", "angle", "cosine", "linear", "sigmoid"])
def test_functions(name):
    x = meta(5, 6)
    check(getattr(functional, name)(x), x)


@pytest.mark.parametrize(
    ("method", "options"),
    [*((method, {}) for method in orthogonal.ORTHOGONALIZERS), ("cayley", {"sample": 0.5}), ("cayley", {"blocks": 2})],
)
def test_rotations(method, options):
    with torch.device("meta"):
        net = mlp()
    init = "normal" if method in ("canonical", "skew") else "identity"
    net, x = hs.rotate(net, method, init=init, neurons="learned", **options), meta(5, 6)
    if method in WITHOUT_META:
        with pytest.raises(NotImplementedError, match=rf"'{method}'.*no kernel for the meta device.*gram_schmidt"):
            net(x)
        return
    check(net(x), x, *net.parameters())
    assert hs.merge(net)[0].weight.is_meta


def test_rotation_penalty():
    with torch.device("meta"):
        net = hs.rotate(mlp(), "regularized")
    check(hs.rotation.rotation_penalty(net), net[0].parametrizations.weight[0].default.regularized)


def test_ogd():
    with torch.device("meta"):
        net = hs.rotate(mlp(), "ogd")
    net(meta(5, 6)).sum().backward()
    hs.OGD(hs.param_groups(net, ogd=True), lr=0.1).step()


def test_diagnose_says_what_is_missing():
    with torch.device("meta"):
        net = mlp()
    with pytest.raises(ValueError, match="no values on the meta device"):
        hs.diagnose(net)
