"""Every network of the registry: timm's conventions, the verbs of this package, options, initializations, errors."""

import copy
import itertools
import math
import pickle

import pytest
import torch
from torch import nn

import hypersphere as hs
from hypersphere import models
from hypersphere.models.gcn import normalize_adjacency
from hypersphere.papers import gan as gan  # registers it

pytestmark = pytest.mark.slow

LARGE = "cnn69.spherenet resnet34.mhe resnet18v2.spherenet sphereface64 gcn.opt pointnet.opt mlp.opt transformer "
LARGE += "decoder ngpt "
LARGE += "generator.mhe discriminator.mhe"  # the others run forward in test_tables

SMALL = {  # one small network of every family
    "mlp": {"input_size": 6, "widths": (12, 8)},
    "cnn6": {"input_size": 12, "widths": (4, 6, 8), "fc": 10},
    "cnn10.opt": {"input_size": 32, "widths": (4, 6, 8), "fc": 10},
    "cnn4.opt": {"input_size": 16, "widths": (4, 4, 4, 4)},
    "cnn_mnist.opt": {"input_size": 9, "widths": (4, 5, 6)},
    "resnet20": {"input_size": 8, "widths": (4, 6, 8), "depth": (1, 2, 1)},
    "resnet20.opt": {"input_size": 8, "widths": (4, 6, 9), "depth": (1, 2, 1)},
    "resnet18v2.spherenet": {"input_size": 32, "widths": (4, 6, 8, 8)},
    "sphereface20": {"input_size": (14, 12), "widths": (4, 5, 6, 7), "fc": 8},
    "gcn": {"in_features": 9, "widths": (6,)},
    "pointnet": {"widths": (6, 8, 12), "fc": (10, 8)},
    "discriminator.mhe": {"input_size": 8, "widths": (4, 6, 8)},
    "transformer": {"width": 16, "heads": 2, "depth": 2, "context": 8},
    "decoder": {"width": 16, "heads": 2, "depth": 2, "context": 8},
    "ngpt": {"width": 16, "heads": 2, "depth": 2, "context": 8},
}
BATCH = 4
TOKENS = ("transformer", "decoder", "ngpt")


def inputs_of(name, *, batch=2, device="cpu", **options):
    """What a network takes, of the size that it is built for."""
    known = (
        {key: p.default for key, p in models.preset(name).accepted().items()} | models.preset(name).options | options
    )
    if name.startswith("gcn"):
        ring = torch.eye(batch, device=device).roll(1, 0)
        return torch.rand(batch, known["in_features"], device=device), ring + ring.T
    if name in TOKENS:
        return (torch.zeros(batch, min(known["context"], 16), dtype=torch.long, device=device),)
    if name.startswith("generator"):
        return (torch.randn(batch, known["latent"], device=device),)
    if name.startswith("pointnet"):
        return (torch.rand(batch, 16, known["in_channels"], device=device),)
    size = known["input_size"]
    return (
        torch.rand(batch, known["in_channels"], *(size if isinstance(size, tuple) else (size, size)), device=device),
    )


def small(name, num_classes=5, **options):
    options = SMALL[name] | options
    return models.create(name, num_classes, **options), inputs_of(name, batch=BATCH, **options)


def hidden(model):
    return {name: n.module for name, n in hs.select(model).items() if not n.is_output}


@pytest.mark.parametrize("name", LARGE.split())
def test_true_size_runs_forward_and_backward(name):
    device = "cpu" if name.startswith("gcn") else "meta"  # a sparse matrix has no meta form; this one is small
    with torch.device(device):
        model = models.create(name)
    output = model(*inputs_of(name, device=device))
    output.sum().backward()
    assert all(parameter.device.type == device for parameter in model.parameters())
    assert all(p.grad is not None and p.grad.shape == p.shape for p in model.parameters())
    if name == "generator.mhe":
        assert output.shape == (2, 3, 32, 32)
    else:
        assert output.shape == (*output.shape[:-1], model.num_classes or model.num_features)


@pytest.mark.parametrize("name", SMALL)
def test_numbers_run_forward_and_backward(name, device):
    sphere = {} if name in TOKENS else {"similarity": "sigmoid(0.3)", "scale": True}
    for options in ({}, sphere):
        model, inputs = small(name, **options)
        logits = model.to(device)(*(tensor.to(device) for tensor in inputs))
        assert torch.isfinite(logits).all()
        assert logits.std(0).max() > 0 or name in TOKENS
        logits.square().mean().backward()
        assert all(torch.isfinite(parameter.grad).all() for parameter in model.parameters())
        assert sum(float(parameter.grad.abs().sum()) for parameter in model.parameters()) > 0
        with torch.autocast(torch.device(device).type, dtype=torch.bfloat16):
            assert model(*(tensor.to(device) for tensor in inputs)).dtype == torch.bfloat16


@pytest.mark.parametrize("name", SMALL)
def test_timms_conventions(name):
    model, inputs = small(name)
    model.eval()
    features = model.forward_features(*inputs)
    assert features.shape[-1] == model.num_features == model.get_classifier().in_features
    assert torch.equal(model.forward_head(features), model(*inputs))
    assert [n.module for n in hs.select(model).values() if n.is_output] == [model.get_classifier()]
    bias = model.get_classifier().bias is not None
    model.double().reset_classifier(7)
    classifier = model.get_classifier()
    assert (model.num_classes, classifier.out_features, classifier.weight.dtype) == (7, 7, torch.float64)
    assert (classifier.bias is not None) == bias
    model.float()
    assert model(*inputs).shape[-1] == 7
    model.reset_classifier(0)
    assert torch.equal(model(*inputs), features)
    for headless in (model, small(name, 0)[0]):
        assert isinstance(headless.get_classifier(), nn.Identity)
        assert headless(*inputs).shape[-1] == headless.num_features
        assert not any(n.is_output for n in hs.select(headless).values())


@pytest.mark.parametrize("name", SMALL)
def test_verbs_work_on_every_family(name):
    model, inputs = small(name)
    model.eval()
    before = model(*inputs)
    hs.rotate(model)
    assert hs.rotation.count_parameters(model)["rotations"] > 0
    assert torch.allclose(model(*inputs), before, atol=1e-5)
    assert torch.allclose(hs.merge(model)(*inputs), before, atol=1e-5)
    regularizer = hs.EnergyRegularizer(model)
    regularizer().backward()
    assert list(regularizer.per_layer()) == [row.name for row in hs.diagnose(model)] == list(hs.select(model))
    if name == "transformer":
        with pytest.warns(UserWarning, match="out_proj"):
            hs.spherize(model)
    else:
        hs.spherize(model)
        assert all(type(module).__name__.startswith("Sphere") for module in hidden(model).values())
    assert isinstance(model.get_classifier(), nn.Linear)
    assert not torch.allclose(model(*inputs), before, atol=1e-3)


def test_verbs_work_on_the_generator():
    model = models.create("generator.mhe", latent=6, widths=(8, 6, 4), input_size=8)
    model.eval()
    noise = torch.randn(3, 6)
    before = model(noise)
    assert before.shape == (3, 3, 8, 8)
    assert before.abs().max() <= 1
    assert not any(n.is_output for n in hs.select(model).values())
    assert len(hs.diagnose(model)) == 4
    hs.EnergyRegularizer(model)().backward()
    assert torch.allclose(hs.merge(hs.rotate(model))(noise), before, atol=1e-5)
    with pytest.raises(ValueError, match="noise must be"):
        model(torch.randn(3, 5))
    with pytest.raises(ValueError, match="multiple of 4"):
        models.create("generator.mhe", widths=(8, 6, 4), input_size=10)


@pytest.mark.parametrize("name", ["resnet18.spherenet", *(name for name in SMALL if name not in TOKENS)])
def test_similarity_makes_every_hidden_layer_a_sphere_layer(name):
    with torch.device("meta"):
        model = models.create(name, 5, similarity="learnable", scale=True)
        plain = models.create(name, 5)
    assert list(hs.select(model)) == list(hs.select(plain))
    for layer, module in hidden(model).items():
        if name == "resnet18v2.spherenet" and ".shortcut." in layer:
            assert type(module) is nn.Conv2d
        else:
            assert type(module).__name__.startswith("Sphere")
            assert module.scale.shape == (len(module.weight),)
            assert type(module.similarity) is hs.LearnableSigmoid
    assert type(model.get_classifier()) is nn.Linear
    keys = model.state_dict().keys() - plain.state_dict().keys()
    shift = {"bias"} if name == "sphereface20" else set()  # without BatchNorm a learned scale comes with a bias
    assert {key.rpartition(".")[2] for key in keys} == {"scale", "log_k", *shift}
    if name == "resnet18.spherenet":
        assert sum(".shortcut." in layer for layer in hidden(model)) == 3


@pytest.mark.parametrize("name", [name for name in SMALL if "batch_norm" in models.preset(name).accepted()])
def test_batch_norm_and_relu_can_be_switched(name):
    norms = (nn.BatchNorm1d, nn.BatchNorm2d)
    with_norm, _ = small(name, batch_norm=True)
    without, inputs = small(name, batch_norm=False)
    assert any(isinstance(m, norms) for m in with_norm.modules())
    assert not any(isinstance(m, norms) for m in without.modules())
    shapes = [[n.tensor.shape for n in hs.select(model).values()] for model in (with_norm, without)]
    assert shapes[0] == shapes[1]
    without(*inputs)
    if "relu" in models.preset(name).accepted():
        linear, inputs = small(name, batch_norm=False, relu=False)
        assert not any(isinstance(m, nn.ReLU | nn.PReLU) for m in linear.modules())
        if not any(isinstance(m, nn.MaxPool2d) for m in linear.modules()) and name != "pointnet":
            linear.eval().double()
            x = inputs[0].double()
            zero = linear(torch.zeros_like(x))  # what is left is affine
            assert torch.allclose(linear(3 * x) - zero, 3 * (linear(x) - zero))


def test_options_change_what_they_say():
    net = models.create("cnn9", 4, widths=(16, 32, 48), in_channels=1, input_size=(20, 28), fc=33)
    assert [tuple(n.tensor.shape) for n in hs.select(net).values()][::3] == [
        (16, 1, 3, 3),
        (32, 16, 3, 3),
        (48, 32, 3, 3),
        (33, 48 * 3 * 4),  # 20×28 → 10×14 → 5×7 → 3×4
    ]
    assert net(torch.rand(2, 1, 20, 28)).shape == (2, 4)
    for pool, round_up in itertools.product((1, 2, 3), (True, False)):
        options = {"pool": pool, "round_up": round_up, "input_size": (37, 40), "widths": (2, 3), "depth": (1, 1)}
        models.create("cnn6", **options)(*inputs_of("cnn6", **options))
    points = models.create("pointnet", in_channels=6)
    assert points(torch.rand(2, 10, 6)).shape == (2, 40)
    assert models.create("transformer", num_classes=0, vocabulary=11).tokens.weight.shape == (11, 128)
    assert models.create("transformer", num_classes=7).tokens.weight.shape == (7, 128)


def test_pad_shortcuts_subsample_and_fill_with_zeros():
    model, _ = small("resnet20.opt")
    pad = model.stages[1][0].shortcut
    assert not list(pad.parameters())
    x = torch.rand(2, 4, 5, 5)
    y = pad(x)
    assert y.shape == (2, 6, 3, 3)
    assert torch.equal(y[:, 1:5], x[:, :, ::2, ::2])
    assert y[:, 0].abs().max() == y[:, 5].abs().max() == 0


@pytest.mark.parametrize(
    ("init", "mean", "std"),
    [
        ("kaiming(0.5)", 0.5, lambda fan_in, fan_out: math.sqrt(2 / fan_in)),
        ("xavier", 0.0, lambda fan_in, fan_out: math.sqrt(2 / (fan_in + fan_out))),
        ("normal(0.5, 0.25)", 0.5, lambda fan_in, fan_out: 0.25),
    ],
)
def test_initializations_by_name(init, mean, std):
    model = models.create("cnn6.mhe", 100, init=init)
    for layer, neurons in hs.select(model).items():
        weight = neurons.tensor.detach()
        window = math.prod(weight.shape[2:])
        expected = std(weight[0].numel(), len(weight) * window)
        error = expected / math.sqrt(weight.numel())
        assert abs(float(weight.mean()) - mean) < 5 * error, layer
        assert abs(float(weight.std()) - expected) < 5 * error, layer
        if init == "xavier":
            assert weight.abs().max() <= expected * math.sqrt(3)
        if neurons.module.bias is not None:
            assert not neurons.module.bias.any()


def test_the_papers_own_initializations():
    face = models.create("sphereface20", 10)
    for unit in (unit for stage in face.stages for unit in stage if hasattr(unit, "layers")):
        for convolution in (m for m in unit.modules() if isinstance(m, nn.Conv2d)):
            assert float(convolution.weight.detach().std()) == pytest.approx(0.01, rel=0.03)
    for layer in (face.stages[2][0], face.fc):
        window = math.prod(layer.weight.shape[2:])
        fans = layer.weight[0].numel() + len(layer.weight) * window
        assert float(layer.weight.detach().abs().max()) == pytest.approx(math.sqrt(6 / fans), rel=1e-3)
        assert not layer.bias.any()


def test_initialize_by_hand():
    model = models.create("generator.mhe", widths=(64, 32), input_size=8)
    models.initialize(model, "kaiming")
    deconvolution = model.layers[0]  # its neurons are output channels: 64·16 numbers come in
    assert float(deconvolution.weight.detach().std()) == pytest.approx(math.sqrt(2 / (64 * 16)), rel=0.02)
    net = models.create("mlp")
    before = net.get_classifier().weight.clone()
    models.initialize(net, "normal(0, 1)", output=False)
    assert torch.equal(net.get_classifier().weight, before)
    assert float(net.layers[0].weight.detach().std()) == pytest.approx(1, rel=0.01)
    for wrong in ("he", "normal(0)", "normal(a, b)", "normal(nan, 1)", None):
        with pytest.raises(ValueError, match=r"init.*one of kaiming, kaiming\(mean\)"):
            models.initialize(net, wrong)
    with pytest.raises(ValueError, match="parametrized"):
        models.initialize(hs.rotate(net), "kaiming")


def test_a_new_classifier_starts_like_the_first():
    model = models.create("mlp", init="normal(3, 0)")
    model.reset_classifier(4)
    assert torch.equal(model.get_classifier().weight, torch.full((4, 256), 3.0))
    assert not model.get_classifier().bias.any()


# Graphs


def graph(n=12, seed=0):
    """A symmetric adjacency without loops; the last node has no neighbour."""
    upper = torch.rand(n, n, generator=torch.Generator().manual_seed(seed)).lt(0.3).float().triu(1)
    upper[:, -1] = 0
    return upper + upper.T


def dense(adjacency):
    """D^(−½)(A + I)D^(−½) as the formula has it."""
    with_loops = adjacency + torch.eye(len(adjacency), dtype=adjacency.dtype)
    root = torch.diag(with_loops.sum(1)) ** 0.5
    return torch.linalg.inv(root) @ with_loops @ torch.linalg.inv(root)


@pytest.mark.parametrize("form", ["to_sparse_coo", "to_sparse_csr", "bool"])
@pytest.mark.filterwarnings("ignore:Sparse CSR")
def test_normalized_adjacency(form):
    adjacency = graph()
    converted = getattr(adjacency, form)()
    assert torch.allclose(normalize_adjacency(converted).to_dense(), dense(adjacency), atol=1e-6)
    assert normalize_adjacency(converted).to_dense()[-1, -1] == 1  # isolated
    weighted = adjacency.double() * 2.5
    exact = normalize_adjacency(weighted, torch.float64)
    assert exact.dtype == torch.float64
    assert torch.allclose(exact.to_dense(), dense(weighted))
    model = models.create("gcn", 3, in_features=5).eval()
    x = torch.rand(12, 5)
    first, last = model.layers[0].weight, model.get_classifier().weight
    expected = dense(adjacency) @ (dense(adjacency) @ x @ first.T).relu() @ last.T
    assert torch.allclose(model(x, converted), expected, atol=1e-6)


def test_the_normalized_adjacency_is_kept(monkeypatch):
    calls = []
    monkeypatch.setattr(
        "hypersphere.models.gcn.normalize_adjacency", lambda *args: calls.append(1) or normalize_adjacency(*args)
    )
    model = models.create("gcn", 3, in_features=5).eval()
    x, adjacency, other = torch.rand(12, 5), graph().to_sparse(), graph(seed=1)
    first = model(x, adjacency)
    assert torch.equal(model(x, adjacency), first)
    model.forward_features(x, adjacency)
    assert len(calls) == 1
    assert not torch.allclose(model(x, other), first)
    assert torch.equal(model(x, adjacency), first)
    assert len(calls) == 3
    second = model(x, other)
    other.zero_()
    alone = model(x, other)
    assert not torch.allclose(alone, second)
    assert len(calls) == 5
    assert torch.equal(alone, model(x, torch.zeros(12, 12)))
    model.double()(x.double(), adjacency)
    assert len(calls) == 7
    with torch.inference_mode():
        inner = graph()
        assert torch.allclose(model(x.double(), inner), first.double(), atol=1e-6)


def test_gcn_is_copied_and_saved_like_any_network():
    model = models.create("gcn", 3, in_features=5).eval()
    x, adjacency = torch.rand(12, 5), graph().to_sparse()
    expected = model(x, adjacency)
    for network in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(network(x, adjacency), expected)
    assert all(tensor.layout == torch.strided for tensor in model.state_dict().values())


def test_pointnet_does_not_see_the_order_of_points():
    model, (points,) = small("pointnet")
    model.eval()
    shuffled = points[:, torch.randperm(points.shape[1])]
    assert torch.allclose(model(points), model(shuffled), atol=1e-6)
    moved = points.clone()
    moved[:, 0] += 5
    assert not torch.allclose(model(points), model(moved), atol=1e-2)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", TOKENS)
def test_networks_of_tokens_see_only_what_came_before(name, training):
    model = models.create(name, 11, width=16, heads=2, depth=2, context=8).train(training)
    tokens = torch.randint(0, 11, (2, 8))
    with torch.set_grad_enabled(training):
        logits = model(tokens)
        for place in range(8):
            changed = tokens.clone()
            changed[:, place] = (changed[:, place] + 1) % 11
            difference = (model(changed) - logits).abs().amax((0, 2))
            assert (difference[:place] < 1e-6).all()
            assert difference[place] > 1e-4
        assert torch.allclose(model(tokens[:, :5]), logits[:, :5], atol=1e-6)


# The registry


def test_unknown_names_are_met_with_the_nearest():
    with pytest.raises(ValueError, match=r"unknown network 'cnn9.mee', did you mean .*'cnn9\.mhe'"):
        models.create("cnn9.mee")
    with pytest.raises(ValueError, match=r"unknown network 'zzz', see hypersphere\.models\.names\(\)$"):
        models.create("zzz")


def test_unknown_options_are_met_with_those_there_are():
    with pytest.raises(
        ValueError,
        match=r"unknown cnn9 option 'width', did you mean 'widths'\? \(one of num_classes, depth",
    ):
        models.create("cnn9", width=(1, 2, 3))
    with pytest.raises(ValueError, match=r"generator\.mhe option must be one of .*got .num_classes"):
        models.create("generator.mhe", 3)


@pytest.mark.parametrize(
    ("name", "options", "error", "match"),
    [
        ("cnn9", {"widths": (1, 2)}, ValueError, r"3 numbers, one per stage, such as 32,64,128; got 1,2"),
        ("cnn9", {"widths": 64}, ValueError, "widths must be a sequence"),
        ("cnn9", {"widths": (1, 1.5, 2)}, TypeError, "widths must be an int, got 1.5"),
        ("resnet18", {"depth": (2, 0, 2, 2)}, ValueError, "depth must be >= 1, got 0"),
        ("cnn9", {"input_size": (32, 32, 3)}, TypeError, "input_size must be an int"),
        ("cnn4.opt", {"input_size": 15}, ValueError, "input_size must be larger for 4 pools of size 2, got 15"),
        ("cnn9", {"similarity": "cosin"}, ValueError, "similarity"),
        ("cnn9", {"scale": True}, ValueError, "scale needs a similarity"),
        ("cnn6", {"batch_norm": "no"}, TypeError, "batch_norm must be True or False"),
        ("resnet20", {"stem": "big"}, ValueError, "stem must be one of cifar, imagenet; got 'big'"),
        ("gcn", {"dropout": 2}, ValueError, "dropout must be"),
        ("generator.mhe", {"widths": ()}, ValueError, "widths must be a sequence of 1 or more"),
        ("discriminator.mhe", {"input_size": 12}, ValueError, "input_size must be a multiple of 8, got 12"),
        ("transformer", {"width": 10, "heads": 4}, ValueError, "width must be a multiple of heads, got 10 and 4"),
    ],
)
def test_wrong_options_are_named(name, options, error, match):
    with pytest.raises(error, match=match), torch.device("meta"):
        models.create(name, **options)


@pytest.mark.parametrize(
    ("name", "shapes", "match"),
    [
        ("cnn6", [(4, 3, 24, 24)], r"images must be 12×12 .*needs 32 features, got 72"),
        ("cnn6", [(4, 1, 12, 12)], r"images must be \(B, 3, H, W\), got \(4, 1, 12, 12\)"),
        ("mlp", [(4, 1, 7, 7)], "images must be 6×6 .*needs 36 features, got 49"),
        ("discriminator.mhe", [(4, 3, 16, 16)], "images must be 8×8"),
        ("pointnet", [(4, 3, 16)], r"points must be \(B, P, 3\), got \(4, 3, 16\)"),
        ("transformer", [(4, 9)], r"tokens must be \(B, T\) with T <= 8, got \(4, 9\)"),
        ("gcn", [(4, 8), (4, 4)], r"features must be \(N, 9\) and adjacency \(N, N\), got \(4, 8\) and \(4, 4\)"),
        ("gcn", [(4, 9)], "adjacency must be a Tensor"),
    ],
)
def test_wrong_inputs_are_named(name, shapes, match):
    model, _ = small(name)
    with pytest.raises((TypeError, ValueError), match=match):
        model(*(torch.zeros(shape) for shape in shapes))


def test_a_network_of_ones_own(monkeypatch):
    monkeypatch.setattr("hypersphere.models._registry.PRESETS", dict(models.PRESETS))

    def build(num_classes=2, *, width=3):
        return nn.Linear(width, num_classes)

    models.register("mine", build, paper="none", width=4)
    assert "mine" in models.names()
    assert models.preset("mine").options == {"width": 4}
    assert models.create("mine").weight.shape == (2, 4)
    with pytest.raises(ValueError, match=r"mine option .*width; got 'height'"):
        models.create("mine", height=1)
    models.register("cnn9.thin", models.preset("cnn9").build, widths=(4, 8, 12))
    assert models.create("cnn9.thin", 3, input_size=8).stages[2][0].out_channels == 12
    with pytest.raises(TypeError, match="name must be a str"):
        models.register("", build)
    with pytest.raises(TypeError, match="build must be"):
        models.register("no", "cnn9")


@pytest.mark.parametrize("name", ["cnn6", "resnet20.opt", "sphereface20", "pointnet", "transformer"])
def test_compiles_as_one_graph(name):
    """All but the GCN: it looks up whether it has seen this adjacency, which breaks the graph."""
    model, inputs = small(name)
    model.eval()
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    assert torch.equal(compiled(*inputs), model(*inputs))
