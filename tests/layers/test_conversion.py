"""spherize on networks in the manner of VGG, ResNet and on torch's Transformers."""

import copy
import pickle
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations

import hypersphere as hs
from tests import reference


class VGG(nn.Module):
    def __init__(self, classes=5):
        super().__init__()
        layers, width = [], 3
        for out in (6, 8, "pool", 8, 8, "pool"):
            if out == "pool":
                layers.append(nn.MaxPool2d(2))
            else:
                layers += [nn.Conv2d(width, out, 3, padding=1), nn.ReLU(inplace=True)]
                width = out
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(
            nn.Linear(width * 4, 16),
            nn.ReLU(True),
            nn.Dropout(0.0),
            nn.Linear(16, 16),
            nn.ReLU(True),
            nn.Linear(16, classes),
        )

    def forward(self, x):
        return self.classifier(self.features(x).flatten(1))


class Residual(nn.Module):
    def __init__(self, width, out, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(width, out, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(out)
        self.conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(out)
        self.shortcut = nn.Identity()
        if stride > 1 or width != out:
            self.shortcut = nn.Sequential(nn.Conv2d(width, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x):
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(y + self.shortcut(x))


class ResNet(nn.Module):
    def __init__(self, classes=5):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 4, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(4)
        self.layers = nn.Sequential(Residual(4, 4, 1), Residual(4, 8, 2))
        self.fc = nn.Linear(8, classes)

    def forward(self, x):
        return self.fc(self.layers(F.relu(self.bn1(self.conv1(x)))).mean((2, 3)))

    def get_classifier(self):
        return self.fc


OUTPUT = {VGG: "classifier.5", ResNet: "fc"}
NETS = list(OUTPUT)
every_net = pytest.mark.parametrize("make", NETS, ids=lambda net: net.__name__)
BECOMES = {
    nn.Linear: hs.SphereLinear,
    nn.Conv1d: hs.SphereConv1d,
    nn.Conv2d: hs.SphereConv2d,
    nn.Conv3d: hs.SphereConv3d,
}


def kinds(model):
    return {name: type(module) for name, module in model.named_modules()}


def picture(model):
    """Everything that a failing call must leave as it was."""
    modules = {
        name: (
            id(module),
            type(module),
            list(module.__dict__),
            {key: id(value) for key, value in module._parameters.items()},
            {key: id(value) for key, value in module._buffers.items()},
            {key: id(value) for key, value in module._modules.items()},
            module.training,
            list(module._forward_hooks.values()),
        )
        for name, module in model.named_modules()
    }
    return modules, {name: value.clone() for name, value in model.state_dict().items()}


def assert_unchanged(model, before):
    modules, state = picture(model)
    assert modules == before[0]
    assert list(state) == list(before[1])
    for name, value in state.items():
        torch.testing.assert_close(value, before[1][name], rtol=0, atol=0, equal_nan=True)


def refused(model, error, match, *args, **options):
    before = picture(model)
    with pytest.raises(error, match=match) as caught:
        hs.spherize(model, *args, **options)
    assert_unchanged(model, before)
    return str(caught.value)


# in place


@every_net
def test_every_layer_but_the_output_changes_its_class(make):
    model = make()
    before = kinds(model)
    assert hs.spherize(model) is model
    expected = {name: BECOMES.get(kind, kind) for name, kind in before.items()} | {OUTPUT[make]: nn.Linear}
    assert kinds(model) == expected


@every_net
def test_parameters_hooks_references_and_flags_stay(make, device):
    model = make().to(device).eval()
    parameters = dict(model.named_parameters())
    modules = dict(model.named_modules())
    state = {name: value.clone() for name, value in model.state_dict().items()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    calls = []
    first = next(module for module in model.modules() if isinstance(module, nn.Conv2d))
    first.register_forward_hook(lambda *_: calls.append("after"))
    first.register_forward_pre_hook(lambda *_: calls.append("before"))
    first.note = "mine"
    first.weight.requires_grad_(False)
    hs.spherize(model)
    assert dict(model.named_parameters()).keys() == parameters.keys()
    assert all(value is parameters[name] for name, value in model.named_parameters())
    assert dict(model.named_modules()).keys() == modules.keys()
    assert all(module is modules[name] for name, module in model.named_modules())
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert all(value.device.type == device.type for value in model.state_dict().values())
    assert not any(module.training for module in model.modules())
    assert first.note == "mine"
    assert not first.weight.requires_grad
    model(torch.randn(2, 3, 8, 8, device=device)).square().sum().backward()
    assert calls == ["before", "after"]
    held = parameters[f"{OUTPUT[make]}.weight"]
    before = [value.detach().clone() for value in parameters.values()]
    optimizer.step()  # the optimizer made before steps the same tensors
    assert held.grad is not None
    changed = [not torch.equal(old, new) for old, new in zip(before, parameters.values(), strict=True)]
    assert sum(changed) > len(changed) / 2


def test_new_modules_take_on_the_training_flag():
    model = hs.spherize(VGG().eval(), "learnable")
    assert not [name for name, module in model.named_modules() if module.training]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_dtype_and_device_of_new_parameters(dtype, device):
    model = hs.spherize(VGG().to(device, dtype), "learnable", scale=True)
    assert {p.dtype for p in model.parameters()} == {dtype}
    assert {p.device.type for p in model.parameters()} == {device.type}
    assert model(torch.randn(2, 3, 8, 8, device=device, dtype=dtype)).isfinite().all()


def test_meta_models_convert_without_memory():
    with torch.device("meta"):
        model = VGG()
    hs.spherize(model, "learnable", scale=True)
    assert all(p.is_meta for p in model.parameters())
    assert isinstance(model.features[0], hs.SphereConv2d)


@pytest.mark.parametrize(
    ("root", "shape"),
    [
        (nn.Linear(4, 3), (5, 4)),
        (nn.Conv1d(2, 3, 3), (5, 2, 6)),
        (nn.Conv2d(2, 4, 3, groups=2, padding="same"), (5, 2, 6, 6)),
        (nn.Conv3d(2, 3, 2, bias=False), (5, 2, 3, 3, 3)),
    ],
    ids=["Linear", "Conv1d", "Conv2d", "Conv3d"],
)
def test_a_root_layer_converts(root, shape):
    root = copy.deepcopy(root)
    kind, weight, plain = type(root), root.weight, root(torch.zeros(shape)).shape
    assert hs.spherize(root, scale=2.0) is root
    assert type(root) is BECOMES[kind]
    assert root.weight is weight
    with torch.no_grad():
        if root.bias is not None:
            root.bias.zero_()
        assert root(torch.randn(shape)).shape == plain
        assert 0.5 < root(torch.randn(shape)).abs().max() <= 2.0001


def test_every_option_of_a_convolution_stays():
    layer = nn.Conv2d(4, 6, (3, 2), stride=(2, 1), padding=(1, 2), dilation=(1, 2), groups=2, padding_mode="circular")
    layer.double()
    x = torch.randn(1, 4, 6, 5, dtype=torch.float64)
    hs.spherize(layer, "linear")
    expected = reference.sphere_conv(
        x, layer.weight, layer.bias, (2, 1), (1, 2), (1, 2), 2, "circular", g=reference.linear
    )
    torch.testing.assert_close(layer(x), expected)


# the output


@pytest.mark.parametrize("layers", ["fc", nn.Linear])
def test_the_output_converts_when_asked_and_warns(layers):
    model = ResNet()
    with pytest.warns(UserWarning, match=r"logits.*fc.*\[-1, 1\]") as caught:
        hs.spherize(model, scale=None, layers=layers)
    assert type(model.fc) is hs.SphereLinear
    assert caught[0].filename == __file__  # it points at the call


def test_no_warning_when_the_output_stays_plain():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        hs.spherize(VGG())
        hs.spherize(nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2)), layers="*")  # no layer is the output


def test_output_by_name_none_and_exclude():
    model = VGG()
    hs.spherize(model, layers=hs.select(model, output="classifier.0"))
    assert type(model.classifier[0]) is nn.Linear
    assert type(model.classifier[5]) is hs.SphereLinear
    assert type(hs.spherize(VGG(), layers="*").classifier[5]) is hs.SphereLinear
    model = hs.spherize(VGG(), exclude=["features.*", "classifier.0"])
    assert [name for name, kind in kinds(model).items() if kind in BECOMES.values()] == ["classifier.3"]


# options


def test_learnable_has_its_own_k_in_every_layer():
    model = hs.spherize(VGG(), "learnable", scale=True)
    layers = [module for module in model.modules() if type(module) in BECOMES.values()]
    assert len(layers) == 6
    assert len({id(layer.similarity) for layer in layers}) == 6
    assert len({id(layer.scale) for layer in layers}) == 6
    for layer in layers:
        assert layer.similarity.log_k.shape == layer.scale.shape == layer.weight.shape[:1]
        assert bool((layer.scale == 1).all())
    assert set(model.state_dict()) - set(VGG().state_dict()) == {
        f"{name}.{key}"
        for name, module in model.named_modules()
        if type(module) in BECOMES.values()
        for key in ("scale", "similarity.log_k")
    }


def test_a_given_module_is_shared_by_all():
    g = hs.LearnableSigmoid(k=0.7)
    model = hs.spherize(ResNet(), g)
    assert all(module.similarity is g for module in model.modules() if type(module) in BECOMES.values())
    assert sum(p is g.log_k for p in model.parameters()) == 1
    model(torch.randn(2, 3, 8, 8)).sum().backward()
    assert g.log_k.grad is not None


# values


@every_net
def test_deepcopy_and_pickle(make):
    model = hs.spherize(make(), "sigmoid(0.7)", scale=True).eval()
    x = torch.randn(2, 3, 8, 8)
    expected = model(x)
    twin, again = copy.deepcopy(model), pickle.loads(pickle.dumps(model))
    assert torch.equal(twin(x), expected)
    assert torch.equal(again(x), expected)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.add_(torch.rand_like(parameter))
    assert torch.equal(model(x), expected)


# Transformers


def encoder():
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


def spherized(model, *args, **options):
    """The model and spherize's own warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        hs.spherize(model, *args, **options)
    return [str(w.message) for w in caught if "spherize" in str(w.message)]


class Sentence(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(6, 8)
        self.encoder = encoder()
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.encoder(self.embed(x)).mean(1))


NEVER_CALLED = [f"encoder.layers.{i}.{name}" for i in range(2) for name in ("self_attn.out_proj", "linear1", "linear2")]


def test_layers_that_torch_never_calls_stay_plain_with_one_warning_that_names_them():
    model = Sentence()
    before = kinds(model)
    messages = spherized(model, "sigmoid")
    assert len(messages) == 1
    assert all(name in messages[0] for name in NEVER_CALLED)
    assert "embed" not in messages[0]
    assert kinds(model) == before | {"embed": hs.SphereLinear}


def test_excluded_or_unmatched_layers_are_not_warned_of():
    assert spherized(Sentence(), layers="embed") == []
    assert spherized(Sentence(), exclude="encoder.*") == []


@pytest.mark.parametrize("name", NEVER_CALLED[:3])
def test_asking_for_them_by_name_is_an_error(name):
    message = refused(Sentence(), ValueError, "layers", layers=("embed", name))
    assert name in message


@pytest.mark.parametrize("layers", ["encoder.*", nn.Linear, ["embed", lambda name, module: "linear" in name]])
def test_asking_for_them_by_pattern_type_or_predicate_is_a_warning(layers):
    messages = spherized(Sentence(), scale=True, layers=layers)
    assert len(messages) == 1
    assert "encoder.layers.1.linear2" in messages[0]


def test_attention_alone_is_skipped_not_refused():
    model = nn.ModuleDict({"attn": nn.MultiheadAttention(8, 2)})
    before = picture(model)
    (message,) = spherized(model)
    assert message.startswith("spherize converted nothing: it skipped attn.out_proj: ")
    assert_unchanged(model, before)


def all_modes(model, *inputs):
    """The output in training mode, in eval mode, and where torch takes its fast path."""
    results = [model.train()(*inputs), model.eval()(*inputs)]
    with torch.no_grad():
        results.append(model(*inputs))
    with torch.inference_mode():
        results.append(model(*inputs))
    return [result.detach().clone() for result in results]


def test_a_whole_transformer_is_the_same_in_every_mode(device):
    model = nn.Transformer(8, 2, 2, 2, 16, dropout=0.0, batch_first=True).to(device)
    model.encoder.enable_nested_tensor = False
    (message,) = spherized(model, scale=True)
    converted = [name for name, kind in kinds(model).items() if kind is hs.SphereLinear]
    assert converted == ["decoder.layers.0.linear1", "decoder.layers.0.linear2", "decoder.layers.1.linear1"]
    skipped = [f"encoder.layers.{i}.{name}" for i in range(2) for name in ("linear1", "linear2", "self_attn.out_proj")]
    skipped += [f"decoder.layers.{i}.{name}.out_proj" for i in range(2) for name in ("self_attn", "multihead_attn")]
    assert all(name in message for name in skipped)
    first, *others = all_modes(model, torch.randn(2, 4, 8, device=device), torch.randn(2, 3, 8, device=device))
    for other in others:
        torch.testing.assert_close(other, first, rtol=1e-5, atol=1e-5)


def test_attention_of_ones_own_that_calls_its_projections_converts():
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv, self.out_proj = nn.Linear(4, 12), nn.Linear(4, 4)
            self.linear1 = nn.Linear(4, 2)

    assert spherized(Attention(), layers="*") == []
    model = hs.spherize(Attention(), layers="*")
    assert type(model.qkv) is type(model.out_proj) is type(model.linear1) is hs.SphereLinear


# what stays and what is refused


def test_subclasses_and_other_layers_are_untouched():
    class Mine(nn.Linear):
        pass

    others = [Mine(3, 3), nn.ConvTranspose2d(3, 3, 2), nn.Embedding(3, 3), nn.LSTM(3, 3), nn.Bilinear(3, 3, 3)]
    model = nn.Sequential(*others, nn.Linear(3, 3), nn.Linear(3, 2))
    before = kinds(model)
    with pytest.warns(UserWarning, match=r"spherize left 0 \[Mine\], 1 \[ConvTranspose2d\] plain"):
        hs.spherize(model)
    assert kinds(model) == before | {"5": hs.SphereLinear}


def test_a_second_time_there_is_nothing_left():
    model = hs.spherize(VGG(), "learnable", scale=True)
    message = refused(model, ValueError, "spherize")
    assert "features.0" in message
    assert "SphereConv2d" in message


def test_nothing_to_convert_lists_what_is_there():
    message = refused(VGG(), ValueError, "spherize", layers="feature.*")
    for name in ("features.0", "classifier.5", "Conv2d", "Linear"):
        assert name in message
    refused(nn.Sequential(nn.ReLU()), ValueError, "spherize")
    refused(nn.Sequential(nn.ReLU(), nn.Linear(3, 2)), ValueError, "spherize")  # only an output
    refused(nn.ConvTranspose2d(3, 3, 2), ValueError, "ConvTranspose2d")
    refused(hs.ArcFaceLoss(3, 4), ValueError, "ArcFaceLoss")
    refused(VGG(), ValueError, "spherize", exclude="*")


@pytest.mark.parametrize("where", ["features.0", "classifier.5"])
@pytest.mark.parametrize("options", [{}, {"exclude": "features.2"}])
def test_a_parametrized_model_is_refused_by_name(where, options):
    model = VGG()
    parametrizations.weight_norm(model.get_submodule(where))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    classes = kinds(model)
    with pytest.raises(ValueError, match=r"parametriz") as caught:
        hs.spherize(model, **options)
    assert where in str(caught.value)
    assert kinds(model) == classes
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize(
    ("args", "options", "error", "match"),
    [
        (("cosin",), {}, ValueError, "similarity.*cosine.*linear.*sigmoid.*learnable"),
        ((3,), {}, TypeError, "similarity"),
        ((hs.LearnableSigmoid(6),), {}, ValueError, "similarity.*6.*8"),  # fits the first layer only
        ((), {"scale": 0}, ValueError, "scale"),
        ((), {"layers": 3}, TypeError, "layers"),
        ((), {"exclude": 3}, TypeError, "exclude"),
    ],
    ids=lambda v: str(v) if isinstance(v, tuple | dict) else "",
)
def test_bad_arguments_leave_the_model_as_it_was(args, options, error, match):
    refused(VGG(), error, match, *args, **options)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_weight_that_is_not_finite_in_the_last_layer(bad):
    model = VGG()
    with torch.no_grad():
        model.classifier[3].weight[1, 2] = bad
    message = refused(model, ValueError, "finite", "learnable", scale=True)
    assert "classifier.3" in message
    hs.spherize(model, exclude="classifier.3")  # what is not converted is not looked at


@pytest.mark.parametrize("model", [None, nn.Linear])
def test_a_model_of_a_wrong_type(model):
    with pytest.raises(TypeError, match="model"):
        hs.spherize(model)


@pytest.mark.parametrize("name", ["scale", "similarity"])
def test_a_layer_with_such_an_attribute_is_refused_before_anything_changes(name):
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 5), nn.Linear(5, 2))
    setattr(model[1], name, 2.0)
    with pytest.raises(ValueError, match=f"layer '1' already has an attribute {name}"):
        hs.spherize(model)
    assert [type(layer) for layer in model] == [nn.Linear] * 3


@pytest.mark.parametrize("layers", [["0", "typo"], ["0", "1"], "1"])
def test_names_that_cannot_be_honoured_are_errors(layers):
    model = nn.Sequential(nn.Linear(3, 4), nn.ConvTranspose1d(4, 4, 1), nn.Linear(4, 2))
    with pytest.raises(ValueError, match=r"spherize: no layer to work on.*(typo|in 1)"):
        hs.spherize(model, layers=layers)
    assert type(model[0]) is nn.Linear


def test_reset_parameters_resets_scale_and_k():
    layer = hs.SphereLinear(3, 4, similarity="learnable(0.7)", scale=True, device="meta").to_empty(device="cpu")
    layer.reset_parameters()
    layer.similarity.reset_parameters()
    assert (layer.scale == 1).all()
    assert torch.allclose(layer.similarity.k, torch.full((4,), 0.7))


# scale="auto"


def test_the_automatic_scale_follows_the_size_of_a_neuron():
    layers = [nn.Conv2d(1, 8, 3), nn.Conv2d(64, 8, 3), nn.Conv1d(32, 8, 18), nn.Linear(1200, 8), nn.Linear(3, 3)]
    model = hs.spherize(nn.Sequential(*layers), layers="*")
    assert [layer.scale for layer in model] == [1.0, 4.0, 4.0, 20.0, 1.0]  # max(1, √d/6) for Conv, √(d/3) for Linear
    assert "scale=4.0" in repr(model[1])
    assert not any("scale" in name for name in model.state_dict())  # the architecture alone gives it


def test_the_layers_take_the_automatic_scale_too():
    assert hs.SphereLinear(300, 4, scale="auto").scale == 10.0
    assert hs.SphereConv3d(36, 4, 4, scale="auto").scale == 8.0
    with pytest.raises(TypeError, match=r"scale must be None .*'auto'.*got 'sqrt'"):
        hs.SphereLinear(3, 4, scale="sqrt")
    with pytest.raises(ValueError, match="recurrent layers take"):
        hs.SphereLSTM(3, 4, scale="auto")
