"""fuse_bn gives the same output in eval mode, or leaves a BatchNorm and says why."""

import copy
import warnings

import pytest
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

import hypersphere as hs
from tests.rotations import shake

F64 = torch.float64


def prepared(net):
    """In eval mode and float64, with statistics and affine parameters of both signs."""
    for norm in net.modules():
        if isinstance(norm, _BatchNorm):
            if norm.running_mean is not None:
                norm.running_mean.normal_()
                norm.running_var.uniform_(0.2, 3)
            if norm.affine:
                nn.init.normal_(norm.weight)
                nn.init.normal_(norm.bias)
    return net.double().eval()


IMAGES, ROWS = (3, 4, 7, 7), (3, 4)
LAYERS = {
    "sphere conv": (lambda: hs.SphereConv2d(4, 6, 3, bias=False), nn.BatchNorm2d, IMAGES),
    "sphere conv, learned scale": (lambda: hs.SphereConv2d(4, 6, 3, scale=True, groups=2), nn.BatchNorm2d, IMAGES),
    "sphere conv, learnable g": (lambda: hs.SphereConv2d(4, 6, 3, similarity="learnable"), nn.BatchNorm2d, IMAGES),
    "sphere conv 1d": (lambda: hs.SphereConv1d(4, 6, 3), nn.BatchNorm1d, (3, 4, 7)),
    "sphere conv 3d": (lambda: hs.SphereConv3d(4, 6, 3), nn.BatchNorm3d, (3, 4, 4, 4, 4)),
    "sphere linear": (lambda: hs.SphereLinear(4, 6, similarity="linear", scale=3.0), nn.BatchNorm1d, ROWS),
    "rotated sphere": (lambda: shake(hs.rotate(hs.SphereLinear(4, 6))), nn.BatchNorm1d, ROWS),
    "conv": (lambda: nn.Conv2d(4, 6, 3, bias=False, groups=2), nn.BatchNorm2d, IMAGES),
    "transposed conv": (lambda: nn.ConvTranspose2d(4, 6, 3, groups=2), nn.BatchNorm2d, IMAGES),
    "linear": (lambda: nn.Linear(4, 6), nn.BatchNorm1d, ROWS),
    "no affine": (lambda: hs.SphereLinear(4, 6), lambda n: nn.BatchNorm1d(n, affine=False), ROWS),
    "synchronized": (lambda: nn.Conv2d(4, 6, 3), nn.SyncBatchNorm, IMAGES),
}


@pytest.mark.parametrize("traced", [False, True], ids=["fx", "inputs"])
@pytest.mark.parametrize("name", LAYERS)
def test_the_output_is_the_same(name, traced):
    make, norm, shape = LAYERS[name]
    net, x = prepared(nn.Sequential(make(), norm(6), nn.ReLU())), torch.randn(shape, dtype=F64)
    expected, weight = net(x), net[0].weight.detach().clone()
    before = set(net.state_dict())
    assert hs.fuse_bn(net, example_inputs=x if traced else None) is net
    torch.testing.assert_close(net(x), expected, rtol=0, atol=1e-13)
    is_sphere = "sphere" in name or name == "no affine"
    added = {"0.bias", "0.scale"} if is_sphere else {"0.bias"}
    assert set(net.state_dict()) == {key for key in before if key.startswith("0.")} | added
    assert torch.equal(net[0].weight, weight) is is_sphere
    assert net[0].bias.dtype is F64


def test_float32_is_rounded_once():
    net = prepared(nn.Sequential(hs.SphereConv2d(4, 6, 3), nn.BatchNorm2d(6))).float()
    x, exact = torch.randn(IMAGES), copy.deepcopy(net).double()
    hs.fuse_bn(net)
    torch.testing.assert_close(net(x).double(), exact(x.double()), rtol=1e-5, atol=1e-5)


class Block(nn.Module):
    """A residual block: what else reads the output of `conv` is the option."""

    def __init__(self, option: str = "") -> None:
        super().__init__()
        self.option = option
        self.conv, self.bn = hs.SphereConv2d(4, 4, 1), nn.BatchNorm2d(4)
        self.last, self.last_bn = nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)

    def forward(self, x):
        y = self.conv(x)
        if self.option == "inplace":
            y.relu_()
        z = self.bn(y)
        if self.option == "skip":
            z = z + y
        elif self.option == "twice":
            z = self.bn(self.conv(z))
        elif self.option == "weight":
            z = z + self.conv.weight.sum() + self.conv.bias.sum()
        elif self.option == "view":
            z = z + y.mT.sum()
        z = self.last_bn(self.last(z.relu()))
        return (z, y) if self.option == "returned" else z


@pytest.mark.parametrize("traced", [False, True], ids=["fx", "inputs"])
@pytest.mark.parametrize("option", ["skip", "twice", "returned", "inplace", "view"])
def test_an_output_with_other_readers_stays(option, traced):
    net, x = prepared(Block(option)), torch.randn(IMAGES, dtype=F64)
    expected = net(x)
    with pytest.warns(UserWarning, match=r"fuse_bn leaves bn \('conv' has other readers"):
        hs.fuse_bn(net, example_inputs=(x,) if traced else None)
    assert type(net.bn) is nn.BatchNorm2d
    assert type(net.last_bn) is hs.layers.fusion.FoldedBatchNorm
    torch.testing.assert_close(net(x), expected, rtol=0, atol=1e-13)


def test_parameters_that_are_read_elsewhere_stay():
    net, x = prepared(Block("weight")), torch.randn(IMAGES, dtype=F64)
    expected = net(x)
    with pytest.warns(UserWarning, match="leaves bn"):
        hs.fuse_bn(net)
    torch.testing.assert_close(net(x), expected, rtol=0, atol=1e-13)


class Valued(nn.Module):
    """Control flow that depends on a value: torch.fx cannot trace it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.bn = hs.SphereLinear(4, 4), hs.SphereLinear(4, 4), nn.BatchNorm1d(4)

    def forward(self, x):
        return self.bn(self.first(x) if x.sum() > 0 else self.second(x))


def test_what_cannot_be_traced_needs_example_inputs():
    net, x = prepared(Valued()), torch.ones(2, 4, dtype=F64)
    expected = net(x)
    with pytest.raises(ValueError, match=r"torch.fx cannot trace Valued.*pass example_inputs"):
        hs.fuse_bn(net)
    assert type(net.bn) is nn.BatchNorm1d
    torch.testing.assert_close(hs.fuse_bn(net, example_inputs=x)(x), expected)
    assert isinstance(net.first.scale, nn.Parameter)
    assert net.second.scale is None


class Act(nn.BatchNorm2d):
    def forward(self, x):
        return super().forward(x).relu()


def with_hook(net):
    net[0].register_forward_hook(lambda module, args, output: output)
    return net


def tied(net):
    net.append(nn.Conv2d(4, 4, 1, bias=False))
    net[2].weight = net[0].weight
    return net


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: nn.Sequential(nn.ReLU(), nn.BatchNorm2d(4)), "1 .follows no layer"),
        (lambda: nn.Sequential(hs.SphereConv2d(4, 4, 1), nn.ReLU(), nn.BatchNorm2d(4)), "2 .follows no layer"),
        (lambda: nn.Sequential(nn.Conv2d(4, 4, 1), Act(4)), "Act is not a plain BatchNorm"),
        (
            lambda: nn.Sequential(hs.rotate(nn.Conv2d(4, 4, 1)), nn.BatchNorm2d(4)),
            "'0' is parametrized.*merge it first",
        ),
        (lambda: nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4, track_running_stats=False)), "no running stat"),
        (lambda: with_hook(nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4))), "has hooks"),
        (lambda: tied(nn.Sequential(nn.Conv2d(4, 4, 1, bias=False), nn.BatchNorm2d(4))), "'0' has tied parameters"),
        (lambda: nn.Sequential(nn.Linear(7, 9), nn.BatchNorm2d(4)), "has 4 channels, but '0' has 9"),
        (lambda: nn.Linear(3, 4), "no BatchNorm"),
    ],
)
def test_nothing_to_fold_is_an_error(make, message):
    net = prepared(make())
    before = list(net.state_dict())
    with pytest.raises(ValueError, match=message):
        hs.fuse_bn(net)
    assert list(net.state_dict()) == before


def test_training_mode_is_refused():
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    with pytest.raises(ValueError, match="'1' is in training mode"):
        hs.fuse_bn(net)


def test_channels_on_another_dimension_are_refused_at_run_time():
    """BatchNorm1d of (B, L, C) has its channels on dimension 1: with L = C it was not what was folded."""
    net = hs.fuse_bn(prepared(nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4))))
    with pytest.raises(ValueError, match="inputs of 2 dimensions"):
        net(torch.randn(3, 4, 5, dtype=F64))


def test_a_network_of_this_package():
    net = prepared(hs.spherize(hs.models.create("resnet20", num_classes=4), scale=None))
    x = torch.randn(2, 3, 32, 32, dtype=F64)
    expected = net(x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        hs.fuse_bn(net, example_inputs=x)
    assert not any(isinstance(module, _BatchNorm) for module in net.modules())
    torch.testing.assert_close(net(x), expected, rtol=0, atol=1e-12)


def test_batch_norm_over_another_dimension_stays():
    model, x = nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7)).eval(), torch.randn(3, 7, 5)
    expected = model(x)
    with pytest.raises(ValueError, match="channels are not those of '0'"):
        hs.fuse_bn(model, example_inputs=x)
    assert torch.equal(model(x), expected)
    rows = torch.randn(3, 5)
    flat = model(rows)
    torch.testing.assert_close(hs.fuse_bn(model, example_inputs={"input": rows})(rows), flat)
