"""Tools that treat every layer as plain (PEFT, fusion, quantization) are refused.

The classes here have the names by which PEFT is found without importing it; tests/integrations has the real one.
"""

import copy

import pytest
import torch
from torch import nn
from torch.ao.quantization import QConfig, default_dynamic_qconfig, fuse_modules, quantize_dynamic

import hypersphere as hs
from hypersphere._internal import checks
from tests.rotations import shake


class BaseTunerLayer:
    __module__ = "peft.tuners.tuners_utils"


class LoraLayer(BaseTunerLayer):
    adapter_layer_names, active_adapters, merged_adapters = ("lora_A", "lora_B"), ("default",), ()
    disable_adapters, scaling = False, 0.5


class LoraLinear(nn.Module, LoraLayer):
    """Built as PEFT builds its own: base layer, dropout and matrices in dicts by adapter."""

    def __init__(self, base_layer: nn.Module) -> None:
        super().__init__()
        self.base_layer = base_layer
        self.lora_A = nn.ModuleDict({"default": nn.Linear(base_layer.in_features, 2, bias=False)})
        self.lora_B = nn.ModuleDict({"default": nn.Linear(2, base_layer.out_features, bias=False)})

    def forward(self, x):
        return self.base_layer(x) + self.scaling * self.lora_B["default"](self.lora_A["default"](x))

    def get_delta_weight(self, adapter):
        return self.lora_B[adapter].weight @ self.lora_A[adapter].weight * self.scaling


def mlp():
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))


def adapted():
    net = mlp()
    net[2] = LoraLinear(net[2])
    return net


def conv(layer):
    return nn.Sequential(layer, nn.BatchNorm2d(4)).eval()


def test_matrices_of_adapters_are_not_neurons():
    net = adapted()
    assert list(hs.select(net)) == ["0", "2.base_layer", "4"]
    assert hs.select(net)["4"].is_output
    assert [row.name for row in hs.diagnose(net)] == ["0", "2.base_layer", "4"]
    last = nn.Sequential(nn.Linear(6, 8), LoraLinear(nn.Linear(8, 4)))
    assert [name for name, n in hs.select(last).items() if n.is_output] == ["1.base_layer"]
    twice = LoraLinear(nn.Linear(6, 8))
    twice.base_layer = LoraLinear(twice.base_layer)
    assert list(hs.select(twice)) == ["base_layer.base_layer"]


class ModulesToSaveWrapper(nn.Module):
    __module__ = "peft.utils.other"
    active_adapters = ("default",)

    def __init__(self, module) -> None:
        super().__init__()
        self.original_module, self.disable_adapters = module, False
        self.modules_to_save = nn.ModuleDict({"default": copy.deepcopy(module), "other": copy.deepcopy(module)})


def test_one_copy_of_a_trained_module_is_used():
    """The frozen original, and copies of other adapters, are no layers of the network."""
    net = mlp()
    net[4] = ModulesToSaveWrapper(net[4])
    selected = hs.select(net)
    assert list(selected) == ["0", "2", "4.modules_to_save.default"]
    assert selected["4.modules_to_save.default"].is_output
    net[4].disable_adapters = True
    assert list(hs.select(net)) == ["0", "2", "4.original_module"]


def merged(net):
    plain = copy.deepcopy(net)
    with torch.no_grad():
        plain[2].base_layer.weight += plain[2].get_delta_weight("default")
    plain[2] = plain[2].base_layer
    return plain


@pytest.mark.filterwarnings("ignore:.*requires a gradient")
def test_the_energy_of_lora_is_that_of_the_sum_and_trains_it():
    """The frozen base weight alone would be a constant."""
    net = adapted()
    for name, p in net.named_parameters():
        p.requires_grad_("lora" in name)
    energy, expected = hs.EnergyRegularizer(net), hs.EnergyRegularizer(merged(net))
    torch.testing.assert_close(energy(), expected())
    torch.testing.assert_close(list(energy.per_layer().values()), list(expected.per_layer().values()))
    assert [row.energy for row in hs.diagnose(net)] == pytest.approx([row.energy for row in hs.diagnose(merged(net))])
    energy().backward()
    assert all(net[2].get_parameter(f"lora_{part}.default.weight").grad.abs().max() > 1e-4 for part in "AB")
    before = energy()
    net[2].disable_adapters = True
    assert energy() != before
    assert energy() == hs.EnergyRegularizer(nn.Sequential(net[0], net[2].base_layer, net[4]))()


@pytest.mark.parametrize("change", [{"lora_variant": {"default": "dora"}}, {"parameter_name": "weight"}])
def test_adapters_that_are_no_sum_are_warned_of(change):
    net = adapted()
    vars(net[2]).update(change)
    with pytest.warns(UserWarning, match=r"without the adapter 'default' of PEFT in .*only LoRA"):
        value = hs.EnergyRegularizer(net)()
    assert value == hs.EnergyRegularizer(nn.Sequential(net[0], net[2].base_layer, net[4]))()


def test_the_energy_of_a_frozen_model_is_warned_of():
    net = mlp().requires_grad_(False)
    energy = hs.EnergyRegularizer(net)
    with torch.no_grad():
        energy()  # nobody wants a gradient
    with pytest.warns(UserWarning, match="no weight of 0, 2, 4 requires a gradient"):
        energy()
    net[0].requires_grad_()
    checks._warned.clear()
    energy()


@pytest.mark.parametrize("verb", [hs.rotate, hs.spherize, hs.spread, hs.normalize_neurons])
def test_a_model_with_adapters_is_refused(verb):
    net = adapted()
    before = str(net)
    with pytest.raises(ValueError, match=r"adapters \(2 \[LoraLinear\]\).*merge_and_unload"):
        verb(net)
    with pytest.raises(ValueError, match="adapters"):
        verb(net, layers="0")
    assert str(net) == before


def test_rotations_are_not_loaded_into_a_model_with_adapters(tmp_path):
    net = mlp()
    plain = copy.deepcopy(net)
    hs.rotation.save_rotations(hs.rotate(net, layers="0"), tmp_path / "r.safetensors")
    plain[2] = LoraLinear(plain[2])
    with pytest.raises(ValueError, match="load_rotations: the model carries PEFT adapters"):
        hs.rotation.load_rotations(plain, tmp_path / "r.safetensors")


@pytest.mark.parametrize(
    ("verb", "message"),
    [
        (hs.rotate, r"PEFT cannot adapt ParametrizedLinear\(in_features=8.*merge first"),
        (hs.spherize, "SphereLinear.*angle"),
    ],
)
def test_adapters_over_our_layers_are_refused(verb, message):
    net = verb(mlp())
    with pytest.raises(ValueError, match=message):
        LoraLinear(net[2])
    LoraLinear(net[4])  # the output is plain
    if verb is hs.rotate:
        LoraLinear(hs.merge(net)[2])


def test_fusing_batchnorm_with_a_sphere_layer_is_refused_by_torch():
    with pytest.raises(AssertionError, match="SphereConv2d"):
        fuse_modules(conv(hs.SphereConv2d(3, 4, 3)), ["0", "1"])


@pytest.mark.parametrize("layer", [nn.Conv2d(3, 4, 3), hs.SphereConv2d(3, 4, 3)], ids=["plain", "sphere"])
def test_fusing_batchnorm_with_a_rotated_layer_is_refused(layer):
    net = conv(hs.rotate(copy.deepcopy(layer)))
    with pytest.raises(ValueError, match=r"weight of a .*rotated.*hypersphere.merge first"):
        torch.nn.utils.fusion.fuse_conv_bn_eval(net[0], net[1])
    with pytest.raises(ValueError, match="merge first"):
        net[0].weight = nn.Parameter(torch.randn(4, 3, 3, 3))
    net[0].bias = nn.Parameter(torch.zeros(4))  # not rotated
    if isinstance(layer, hs.SphereConv2d):
        return
    with pytest.raises(ValueError, match="merge first"):
        fuse_modules(net, ["0", "1"])
    x = torch.randn(2, 3, 5, 5)
    torch.testing.assert_close(fuse_modules(hs.merge(net), ["0", "1"])(x), net(x))


@pytest.mark.filterwarnings("ignore")  # torch.ao.quantization is deprecated
def test_dynamic_quantization():
    net, x = shake(hs.rotate(mlp())).eval(), torch.randn(3, 6)
    with pytest.raises(ValueError, match=r"cannot be quantized.*rotated.*merge first"):
        quantize_dynamic(net, {nn.Linear})
    expected = net(x)
    assert (quantize_dynamic(hs.merge(net), {nn.Linear})(x) - expected).abs().max() < 0.1

    net = hs.spherize(mlp()).eval()
    with pytest.raises(ValueError, match="SphereLinear cannot be quantized"):
        quantize_dynamic(net, {"0": default_dynamic_qconfig})
    quantized = quantize_dynamic(net, {nn.Linear})
    assert type(quantized[0]) is hs.SphereLinear  # stays in floating point
    assert type(quantized[4]) is not nn.Linear
    assert (quantized(x) - net(x)).abs().max() < 0.1
    assert isinstance(default_dynamic_qconfig, QConfig)
    assert not hasattr(net[0], "qconfig")
