"""Rotations of layers that torchao and bitsandbytes have quantized."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torchao import quantization
from torchao.quantization import qat

import hypersphere as hs


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 10))


def int8_by_torchao() -> nn.Module:
    model = net()
    quantization.quantize_(model, quantization.Int8WeightOnlyConfig())
    return model


def int8_by_bitsandbytes() -> nn.Module:
    layers = pytest.importorskip("bitsandbytes").nn
    return _with_first(layers.Linear8bitLt(64, 96, has_fp16_weights=False))


def four_bits_by_bitsandbytes() -> nn.Module:
    return _with_first(pytest.importorskip("bitsandbytes").nn.Linear4bit(64, 96))


def _with_first(layer: nn.Module) -> nn.Module:
    model = net()
    layer.load_state_dict(model[0].state_dict())
    model[0] = layer.to("cpu")
    return model


@pytest.mark.parametrize("quantize", [int8_by_torchao, int8_by_bitsandbytes, four_bits_by_bitsandbytes])
def test_the_rotation_of_a_quantized_layer_learns(quantize, tmp_path):
    model, x = quantize(), torch.randn(50, 64)
    target = net()[0](x @ torch.linalg.qr(torch.randn(64, 64)).Q).detach()
    before = model(x).detach()
    with pytest.raises(ValueError, match=r"'0'.*quantized.*apply='activation'"):
        hs.rotate(model, layers="0", block_size=16)
    hs.rotate(model, layers="0", block_size=16, apply="activation")
    torch.testing.assert_close(model(x), before)
    rotation = model[0].parametrizations.weight[0].default.cayley
    optimizer = torch.optim.Adam([rotation], lr=0.01)
    losses = []
    for _ in range(20):
        loss = (model[0](x) - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    assert losses[-1] < 0.9 * losses[0]
    with pytest.raises(ValueError, match="'0' is quantized or tied"):
        hs.merge(model)
    hs.rotation.save_rotations(model, tmp_path / "r.safetensors")
    exact = hs.rotation.load_rotations(net(), tmp_path / "r.safetensors")  # the weights before quantization
    difference = (exact[0](x) - model[0](x)).abs().max()
    assert difference < 0.2 * (target - net()[0](x)).abs().max()
    assert torch.equal(copy.deepcopy(model)(x), model(x))


PREPARE = qat.QATConfig(weight_config=qat.IntxFakeQuantizeConfig(torch.int8, "per_channel"), step="prepare")


@pytest.mark.parametrize("config", [PREPARE, quantization.Int8WeightOnlyConfig()], ids=["prepare", "int8"])
def test_sphere_layers_are_not_quantized(config):
    model, x = hs.spherize(net()), torch.randn(50, 64)
    before = model(x)
    with pytest.raises(ValueError, match=r"SphereLinear\(in_features=64.*quantize plain layers only.*filter_fn"):
        quantization.quantize_(model, config)
    assert type(model[0]) is hs.SphereLinear
    torch.testing.assert_close(model(x), before)
    quantization.quantize_(model, config, lambda module, name: type(module) is nn.Linear)
    assert type(model[0]) is hs.SphereLinear
    assert 0 < (model(x) - before).abs().max() < 0.1


def test_the_neurons_of_quantized_weights():
    quantized, plain = int8_by_torchao(), net()
    with torch.no_grad():
        for one, other in zip(quantized[::2], plain[::2], strict=True):
            other.weight.copy_(one.weight.dequantize())
    assert torch.equal(hs.hyperspherical_energy(quantized[0].weight), hs.hyperspherical_energy(plain[0].weight))
    assert torch.equal(hs.EnergyRegularizer(quantized)(), hs.EnergyRegularizer(plain)())
    assert hs.diagnose(quantized).to_dicts() == hs.diagnose(plain).to_dicts()
    assert hs.diagnose(quantized.state_dict()).to_dicts() == hs.diagnose(plain.state_dict()).to_dicts()
    for verb in (hs.spherize, hs.normalize_neurons, hs.spread):
        with pytest.raises(ValueError, match=r"quantized \(Int8Tensor\): change the neurons first"):
            verb(quantized)
    assert type(quantized[0]) is nn.Linear


def test_quantized_activations_pass_no_gradient():
    model = net()
    quantization.quantize_(model, quantization.Int8DynamicActivationInt8WeightConfig())
    hs.rotate(model, layers="0", block_size=16, apply="activation")
    with pytest.warns(UserWarning, match=r"quantized activations.*not trained"):
        model(torch.randn(5, 64))
