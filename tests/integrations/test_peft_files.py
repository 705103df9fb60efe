"""Rotations and the OFT of the real PEFT: the same function, the same training, and files both ways."""

import copy

import peft
import pytest
import torch
import transformers
from torch import nn

import hypersphere as hs

pytestmark = pytest.mark.filterwarnings("ignore")
EXACT = {"use_cayley_neumann": False}


def bert():
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
    config = transformers.BertConfig(
        vocab_size=100, **sizes, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, max_position_embeddings=32
    )
    return transformers.BertModel(config)


def tokens():
    return torch.randint(0, 100, (8, 12), generator=torch.Generator().manual_seed(1))


def layers(model):
    return [name for name, module in model.named_modules() if isinstance(module, nn.Linear) and "encoder" in name]


def rotated(apply="activation", **options):
    model = bert()
    hs.rotate(model, layers=layers(model), apply=apply, **{"block_size": 32} | options)
    model.requires_grad_(False)
    for name, numbers in model.named_parameters():
        numbers.requires_grad_("cayley" in name)
    return model


def with_peft(init_weights=True, **options):
    model = bert()
    changes = EXACT | {"r": 0, "oft_block_size": 32} | options
    return peft.get_peft_model(
        model, peft.OFTConfig(target_modules=layers(model), init_weights=init_weights, **changes)
    )


def outputs(model):
    return model.eval()(tokens()).last_hidden_state


def theirs(model, name):
    return model.base_model.model.get_submodule(name).oft_R["default"].weight


def ours(model, name):
    return model.get_submodule(name).parametrizations.weight[0].default.cayley


@pytest.mark.parametrize("apply", ["activation", "auto"])  # auto forms weights: 96 rows, 64 neurons
def test_equal_forward_and_after_training(apply):
    left, right = with_peft(), rotated(apply)
    names = layers(bert())
    torch.manual_seed(2)
    with torch.no_grad():
        for name in names:
            theirs(left, name).copy_(0.05 * torch.randn_like(theirs(left, name)))
            ours(right, name).copy_(-theirs(left, name))
    torch.testing.assert_close(outputs(right), outputs(left), rtol=0, atol=1e-5)
    start = theirs(left, names[-1]).detach().clone()
    target = torch.randn(8, 12, 64, generator=torch.Generator().manual_seed(3))
    for model in (left, right):
        optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1.0)
        for _ in range(20):
            optimizer.zero_grad()
            (model(tokens()).last_hidden_state - target).square().mean().backward()
            optimizer.step()
    assert (theirs(left, names[-1]) - start).abs().max() > 1e-3  # it learned
    torch.testing.assert_close(outputs(right), outputs(left), rtol=0, atol=1e-5)
    for name in names:
        torch.testing.assert_close(-ours(right, name), theirs(left, name), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "options", [{}, {"block_size": None, "blocks": 2}, {"share_blocks": True}, {"scaled": True}], ids=str
)
def test_ours_in_peft_and_back(tmp_path, options):
    model = rotated(**options)
    model.embeddings.LayerNorm.requires_grad_(True)
    for numbers in model.parameters():
        if numbers.requires_grad:
            numbers.data.normal_(std=0.1)
    model.get_submodule("encoder.layer.0.attention.self.query").bias.requires_grad_(True).data.normal_()
    hs.rotation.save_rotations(model, tmp_path / "adapter", format="peft")
    loaded = peft.PeftModel.from_pretrained(bert(), tmp_path / "adapter")
    torch.testing.assert_close(outputs(loaded), outputs(model), rtol=0, atol=1e-5)
    assert [name for name in layers(bert()) if name in dict(loaded.base_model.model.named_modules())] == layers(bert())
    loaded.save_pretrained(tmp_path / "theirs")
    tensors = [tmp_path / "adapter", *([] if options.get("scaled") else [tmp_path / "theirs"])]
    for path in tensors:
        again = hs.rotation.load_rotations(bert(), path)
        torch.testing.assert_close(outputs(again), outputs(model), rtol=0, atol=1e-5)
        if not options.get("scaled"):
            assert all(ours(again, name).equal(ours(model, name)) for name in layers(bert()))


def classifier(tied=False):
    """A network with a trained classifier, BatchNorm and a frozen bias; its names are ends of others."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.ModuleDict({"up": nn.Linear(12, 16), "down": nn.Linear(16, 12)})
            self.norm, self.classifier, self.my_classifier = nn.BatchNorm1d(12), nn.Linear(12, 5), nn.Linear(5, 12)
            if tied:
                self.again = nn.Linear(12, 5)
                self.again.weight = self.classifier.weight

        def forward(self, x):
            x = self.norm(self.body["down"](self.body["up"](x).relu()))
            x = self.classifier(x + self.my_classifier(self.classifier(x)))
            return x + self.again(x.new_ones(12)) if tied else x

    torch.manual_seed(7)
    return Net()


@pytest.mark.parametrize("tied", [False, True])
def test_a_trained_classifier_in_peft_and_back(tmp_path, tied):
    """PEFT saves what modules_to_save names; without it the classifier was lost."""
    model = hs.rotate(classifier(tied), layers=["body.up", "body.down"], block_size=4)
    model.my_classifier.requires_grad_(False)
    model.classifier.bias.requires_grad_(False)
    model.train()
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1.0)
    x = torch.randn(32, 12)
    for _ in range(5):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), torch.arange(32) % 5).backward()
        optimizer.step()
    expected = model.eval()(x)
    assert (expected - classifier(tied).eval()(x)).abs().max() > 0.5
    hs.rotation.save_rotations(model, tmp_path / "ours", format="peft")
    loaded = peft.PeftModel.from_pretrained(classifier(tied), tmp_path / "ours").eval()
    torch.testing.assert_close(loaded(x), expected, rtol=0, atol=1e-5)
    loaded.save_pretrained(tmp_path / "theirs")
    again = peft.PeftModel.from_pretrained(classifier(tied), tmp_path / "theirs").eval()
    torch.testing.assert_close(again(x), expected, rtol=0, atol=1e-5)
    for path in ("ours", "theirs"):
        back = hs.rotation.load_rotations(classifier(tied), tmp_path / path).eval()
        torch.testing.assert_close(back(x), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "options", [{"oft_block_size": 32}, {"r": 4, "oft_block_size": 0}, {"block_share": True}], ids=str
)
def test_theirs_in_ours(tmp_path, options):
    torch.manual_seed(4)
    model = with_peft(init_weights=False, **options)
    model.save_pretrained(tmp_path)
    loaded = hs.rotation.load_rotations(bert(), tmp_path)
    torch.testing.assert_close(outputs(loaded), outputs(model), rtol=0, atol=1e-5)
    assert all(ours(loaded, name).equal(-theirs(model, name)) for name in layers(bert()))


def test_their_series_is_the_other_way_round_and_truncated(tmp_path):
    torch.manual_seed(5)
    model = with_peft(init_weights=False, use_cayley_neumann=True)
    small = copy.deepcopy(model)
    for name in layers(bert()):
        theirs(small, name).data.mul_(0.05)  # where the series is exact
    small.save_pretrained(tmp_path / "small")
    loaded = hs.rotation.load_rotations(bert(), tmp_path / "small")
    torch.testing.assert_close(outputs(loaded), outputs(small), rtol=0, atol=1e-5)
    assert all(ours(loaded, name).equal(theirs(small, name)) for name in layers(bert()))
    model.save_pretrained(tmp_path / "large")
    loaded = hs.rotation.load_rotations(bert(), tmp_path / "large")
    name = layers(bert())[0]
    matrix = model.base_model.model.get_submodule(name).oft_R["default"].get_weight().detach()
    eye = torch.eye(len(matrix))
    assert (matrix.T @ matrix - eye).abs().max() > 0.1  # PEFT's R is not orthogonal,
    exact = hs.orthogonal.ORTHOGONALIZERS["cayley"].matrix(ours(loaded, name))
    assert (exact.mT @ exact - torch.eye(32)).abs().max() < 1e-5  # ours is


@pytest.mark.parametrize("config", ["LoraConfig", "BOFTConfig"])
def test_other_adapters_of_peft_are_named(tmp_path, config):
    model = bert()
    options = {"boft_block_size": 4} if config == "BOFTConfig" else {}
    model = peft.get_peft_model(model, getattr(peft, config)(target_modules=layers(model), **options))
    model.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"LORA|BOFT"):
        hs.rotation.load_rotations(bert(), tmp_path)


class Layer(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(x)


def test_a_convolution_that_peft_gets_wrong():
    x = torch.randn(2, 4, 8, 8)
    base = Layer(nn.Conv2d(4, 6, 3, padding=1))
    expected = base(x)
    config = peft.OFTConfig(target_modules=["layer"], r=0, oft_block_size=9, **EXACT)
    wrong = peft.get_peft_model(copy.deepcopy(base), config)(x)
    assert (wrong - expected).abs().max() > 0.1  # its start is not the identity
    torch.testing.assert_close(hs.rotate(copy.deepcopy(base), block_size=9)(x), expected)


def test_inputs_of_four_dimensions_that_peft_cannot_take():
    x = torch.randn(2, 3, 5, 8)
    base = Layer(nn.Linear(8, 16))
    expected = base(x)
    config = peft.OFTConfig(target_modules=["layer"], r=0, oft_block_size=4, **EXACT)
    with pytest.raises((RuntimeError, ValueError)):
        peft.get_peft_model(copy.deepcopy(base), config)(x)
    for apply in ("activation", "weight"):
        torch.testing.assert_close(
            hs.rotate(copy.deepcopy(base), layers="layer", block_size=4, apply=apply)(x), expected
        )
