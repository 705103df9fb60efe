"""Adapters of the real PEFT and our layers: merged first, or refused by name."""

import warnings

import pytest
import torch
from torch import nn

import hypersphere as hs
from hypersphere._internal import checks

peft = pytest.importorskip("peft")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(16, 4)

    def forward(self, x):
        return self.c(self.b(self.a(x).relu()).relu())


CONFIGS = {
    "lora": lambda: peft.LoraConfig(target_modules=["a", "b"], init_lora_weights=False),
    "dora": lambda: peft.LoraConfig(target_modules=["b"], use_dora=True),
    "adalora": lambda: peft.AdaLoraConfig(target_modules=["b"], total_step=10),
    "oft": lambda: peft.OFTConfig(target_modules=["b"], r=0, oft_block_size=4),
    "boft": lambda: peft.BOFTConfig(target_modules=["b"], boft_block_size=4),
    "ia3": lambda: peft.IA3Config(target_modules=["b"], feedforward_modules=["b"]),
    "vera": lambda: peft.VeraConfig(target_modules=["b"], r=4),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CONFIGS)
def test_adapters_are_not_neurons_and_are_merged_first(name):
    model = peft.get_peft_model(Net(), CONFIGS[name]())
    assert [name.rpartition("model.")[2].removesuffix(".base_layer") for name in hs.select(model)] == ["a", "b", "c"]
    for verb in (hs.rotate, hs.spherize):
        with pytest.raises(ValueError, match="merge_and_unload"):
            verb(model)
    x = torch.randn(3, 8)
    model.eval()
    expected = model(x)
    torch.testing.assert_close(hs.rotate(model.merge_and_unload())(x), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore")
def test_one_copy_of_a_trained_module_is_used():
    model = peft.get_peft_model(Net(), peft.LoraConfig(target_modules=["a", "b"], modules_to_save=["c"]))
    names = [name.removeprefix("base_model.model.") for name in hs.select(model)]
    assert names == ["a.base_layer", "b.base_layer", "c.modules_to_save.default"]
    with model.disable_adapter():
        assert list(hs.select(model))[-1] == "base_model.model.c.original_module"


SUMS = ("lora", "adalora")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CONFIGS)
def test_the_energy_of_adapters(name):
    """LoRA is read as the network computes it, and gets a gradient; other adapters are warned of."""
    torch.manual_seed(0)
    model = peft.get_peft_model(Net(), CONFIGS[name]())
    for p in model.parameters():
        if p.requires_grad:
            nn.init.normal_(p, std=0.3)
    regularizer = hs.EnergyRegularizer(model)
    if name not in SUMS:
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            checks._warned.clear()
            regularizer()
        assert any("without the adapter 'default' of PEFT in peft.tuners." in str(warning.message) for warning in seen)
        return
    value = regularizer()
    value.backward()
    trained = {key: p.grad for key, p in model.named_parameters() if p.requires_grad}
    assert all(grad is not None and grad.abs().max() > 1e-5 for grad in trained.values()), trained
    torch.testing.assert_close(hs.EnergyRegularizer(model.merge_and_unload())(), value.detach())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("verb", [hs.rotate, hs.spherize])
@pytest.mark.parametrize("name", CONFIGS)
def test_our_layers_take_no_adapters(name, verb):
    with pytest.raises(ValueError, match="PEFT cannot adapt"):
        peft.get_peft_model(verb(Net()), CONFIGS[name]())


@pytest.mark.filterwarnings("ignore")
def test_other_layers_may_have_adapters():
    config = peft.LoraConfig(target_modules=["c"], modules_to_save=["b"], init_lora_weights=False)
    model = peft.get_peft_model(hs.spherize(Net()), config).eval()
    x = torch.randn(3, 8)
    expected = model(x)
    torch.testing.assert_close(model.merge_and_unload()(x), expected)
