"""The networks layer by layer against the papers' tables, written out here as they are printed.

A row is what a stage does and the size of its maps: [k×k, filters]×n are convolutions with BatchNorm and ReLU, {…; …}×n
residual units, s2 means stride 2; "pool", "mean" and "FC" are what they say. Where the papers
leave something out, the authors' released code decides: BatchNorm and ReLU after every convolution, 1×1 shortcuts,
stride 2 at the start of later stages.
"""

import re

import pytest
import torch
from tools import networks
from torch import nn

import hypersphere as hs
from hypersphere import models

pytestmark = pytest.mark.slow

POOL = "pool 2×2 s2"


def plain(n, widths, fc, sizes=((32, 16), (16, 8), (8, 4))):
    rows = []
    for width, (before, after) in zip(widths, sizes, strict=True):
        rows += [(f"[3×3, {width}]×{n}", before), (POOL, after)]
    return [*rows, (f"FC {fc}", None)]


def residual(root, n, widths, shortcut=""):
    """A root, units of two convolutions in each stage (n of them, or a number for each), and the mean."""
    counts = n if isinstance(n, tuple) else (n,) * len(widths)
    first = root[-1][1]
    stages = [
        (f"{{3×3, {width}; 3×3, {width}}}×{count}{shortcut if i else ''}", first >> i)
        for i, (count, width) in enumerate(zip(counts, widths, strict=True))
    ]
    return [*root, *stages, ("mean", None)]


def root_32(width):
    return [(f"[3×3, {width}]×1", 32)]


def root_224(width=64):
    return [(f"[7×7, {width}]×1 s2", 112), ("pool 3×3 s2", 56)]


MINI_IMAGENET = [[("[3×3, 64]×1", size), (POOL, size // 2)] for size in (84, 42, 21, 10)]
MNIST = [
    [(f"[3×3, {width}]×2", size), ("pool 3×3 s2", -(-size // 2))] for width, size in ((32, 28), (64, 14), (128, 7))
]
TABLES = {
    # SphereNet, Table 5
    **{f"cnn{3 * n}.spherenet": plain(n, (64, 96, 128), 256) for n in (1, 3, 6, 15, 20, 23)},
    # SphereNet, Table 6
    "resnet32.spherenet": residual(root_32(64), 5, (64, 96, 128)),
    "resnet32w.spherenet": residual(root_32(96), 5, (96, 192, 384)),
    "resnet18.spherenet": residual(root_224(256), 2, (256, 512, 768, 1024)),
    # MHE, Table 11
    **{f"cnn{3 * n}.mhe": plain(n, (64, 128, 256), 256) for n in (2, 3, 5)},
    # MHE, Table 12
    "resnet32.mhe": residual(root_32(64), 5, (64, 128, 256)),
    "resnet18.mhe": residual(root_224(), 2, (64, 128, 256, 512)),
    "resnet34.mhe": residual(root_224(), (3, 4, 6, 3), (64, 128, 256, 512)),
    # OPT, Table 14
    "cnn6.opt": plain(2, (64, 64, 64), 64),
    "cnn9.opt": plain(3, (64, 64, 64), 64),
    "cnn10.opt": [*root_224(), *plain(3, (64, 128, 256), 256, ((56, 28), (28, 14), (14, 7)))],
    # OPT, Table 15: widths change without parameters
    "resnet20.opt": residual(root_32(16), 3, (16, 32, 64), " pad"),
    "resnet32.opt": residual(root_32(16), 5, (16, 32, 64), " pad"),
    # OPT, Table 16: 84 → 42 → 21 → 10 → 5
    "cnn4.opt": [row for stage in MINI_IMAGENET for row in stage],
    # OPT, Table 17
    "wide_cnn9.opt": plain(3, (64, 128, 256), 256),
    # OPT, Table 18
    "cnn_mnist.opt": [*(row for stage in MNIST for row in stage), ("FC 3", None)],
    "resnet18a.opt": residual(root_224(), 2, (64, 128, 128, 128)),
}
TABLES |= dict.fromkeys(("resnet18.opt", "resnet18b.opt"), TABLES["resnet18.mhe"])  # Tables 17 and 18
TABLES |= {"resnet18v2.spherenet": TABLES["resnet18.spherenet"]}
IMAGES = {"cnn4.opt": (3, 84, 84), "cnn_mnist.opt": (1, 28, 28)}
IMAGES |= {name: (3, 224, 224) for name, rows in TABLES.items() if "7×7" in rows[0][0]}
FEATURES = {"cnn4.opt": 1600, "resnet18a.opt": 128, "resnet18b.opt": 512}


def expected_of(rows, channels):
    """The layers of a table, in the order in which they are computed."""
    layers, size, stage = [], None, 0
    for text, after in rows:
        if match := re.fullmatch(r"\[(\d)×\d, (\d+)\]×(\d+)( s2)?", text):
            kernel, width, count = map(int, match.groups()[:3])
            for _ in range(count):
                stride = 2 if match[4] else 1
                layers += [("conv", kernel, channels, width, stride, after), ("norm", width), ("relu",)]
                channels = width
        elif match := re.fullmatch(r"\{3×3, (\d+); 3×3, (\d+)\}×(\d+)( pad)?", text):
            first, second, count = map(int, match.groups()[:3])
            for i in range(count):
                stride = 2 if stage and not i else 1
                layers += [("conv", 3, channels, first, stride, after), ("norm", first), ("relu",)]
                layers += [("conv", 3, first, second, 1, after), ("norm", second)]
                if (channels != second or stride == 2) and not match[4]:
                    layers += [("conv", 1, channels, second, stride, after), ("norm", second)]
                layers.append(("relu",))
                channels = second
            stage += 1
        elif match := re.fullmatch(r"pool (\d)×\d s2", text):
            layers.append(("pool", int(match[1]), 2, after))
        elif match := re.fullmatch(r"FC (\d+)", text):
            layers.append(("linear", channels * size * size, int(match[1]), False))
            channels, after = int(match[1]), 1
        else:
            assert text == "mean"
            after = 1
        size = after
    return layers, channels * size * size


def event(module, output):
    if isinstance(module, nn.Conv2d | nn.ConvTranspose2d):
        kernel, stride = module.kernel_size, module.stride
        assert kernel[0] == kernel[1]
        assert stride[0] == stride[1]
        kind = "conv" if isinstance(module, nn.Conv2d) else "deconv"
        return (kind, kernel[0], module.in_channels, module.out_channels, stride[0], square(output))
    if isinstance(module, nn.Linear):
        return ("linear", module.in_features, module.out_features, module.bias is not None)
    if isinstance(module, nn.BatchNorm2d | nn.BatchNorm1d):
        return ("norm", module.num_features)
    if isinstance(module, nn.MaxPool2d):
        return ("pool", module.kernel_size, module.stride, square(output))
    if isinstance(module, nn.PReLU):
        return ("prelu", module.num_parameters)
    if isinstance(module, nn.LeakyReLU):
        return ("leaky", module.negative_slope)
    return {nn.ReLU: ("relu",), nn.Tanh: ("tanh",), nn.Dropout: ("dropout",)}.get(type(module))


def square(output):
    height, width = output.shape[2:]
    return height if height == width else (height, width)


def layers_of(model, *inputs):
    """What a forward pass calls, in order, with the sizes that come out."""
    events = []
    for module in model.modules():
        if not list(module.children()):
            module.register_forward_hook(lambda module, _, output: events.append(event(module, output)))
    output = model(*inputs)
    return [layer for layer in events if layer is not None], output


def on_meta(name, *args, **options):
    with torch.device("meta"):
        return models.create(name, *args, **options)


@pytest.mark.parametrize("name", TABLES)
def test_every_layer_is_the_tables(name):
    image = IMAGES.get(name, (3, 32, 32))
    expected, features = expected_of(TABLES[name], image[0])
    model = on_meta(name, 10)
    layers, logits = layers_of(model, torch.empty(2, *image, device="meta"))
    assert layers[-1] == ("linear", features, 10, True)
    assert layers[:-1] == expected
    assert logits.shape == (2, 10)
    assert model.num_features == features == FEATURES.get(name, features)
    convolutions = [module for module in model.modules() if isinstance(module, nn.Conv2d)]
    assert all(module.bias is None for module in convolutions)


@pytest.mark.parametrize(
    ("name", "units"), [("sphereface20", (1, 2, 4, 1)), ("sphereface64", (3, 8, 16, 3)), ("cnn20.opt", (1, 2, 4, 1))]
)
def test_sphereface(name, units):
    maps = ((56, 48), (28, 24), (14, 12), (7, 6))
    expected, channels = [], 3
    for count, width, size in zip(units, (64, 128, 256, 512), maps, strict=True):
        expected += [("conv", 3, channels, width, 2, size), ("prelu", width)]
        expected += [("conv", 3, width, width, 1, size), ("prelu", width)] * 2 * count
        channels = width
    model = on_meta(name)
    layers, embeddings = layers_of(model, torch.empty(2, 3, 112, 96, device="meta"))
    assert layers == [*expected, ("linear", 512 * 7 * 6, 512, True)]
    assert sum(layer[0] == "conv" for layer in layers) == 2 * sum(units) + 4
    assert embeddings.shape == (2, 512)
    assert isinstance(model.get_classifier(), nn.Identity)
    biased = [
        module.stride[0] for module in model.modules() if isinstance(module, nn.Conv2d) and module.bias is not None
    ]
    assert biased == [2, 2, 2, 2]
    assert on_meta(name, 10_572, fc=1024).get_classifier().weight.shape == (10_572, 1024)


def test_generator_of_table_15():
    layers, images = layers_of(on_meta("generator.mhe"), torch.empty(2, 128, device="meta"))
    assert layers == [
        ("linear", 128, 4 * 4 * 512, True),
        ("deconv", 4, 512, 256, 2, 8),
        ("norm", 256),
        ("relu",),
        ("deconv", 4, 256, 128, 2, 16),
        ("norm", 128),
        ("relu",),
        ("deconv", 4, 128, 64, 2, 32),
        ("norm", 64),
        ("relu",),
        ("conv", 3, 64, 3, 1, 32),
        ("tanh",),
    ]
    assert images.shape == (2, 3, 32, 32)


def test_discriminator_of_table_15():
    layers, output = layers_of(on_meta("discriminator.mhe"), torch.empty(2, 3, 32, 32, device="meta"))
    assert layers == [
        ("conv", 3, 3, 64, 1, 32),
        ("leaky", 0.1),
        ("conv", 4, 64, 64, 2, 16),
        ("leaky", 0.1),
        ("conv", 3, 64, 128, 1, 16),
        ("leaky", 0.1),
        ("conv", 4, 128, 128, 2, 8),
        ("leaky", 0.1),
        ("conv", 3, 128, 256, 1, 8),
        ("leaky", 0.1),
        ("conv", 4, 256, 256, 2, 4),
        ("leaky", 0.1),
        ("conv", 3, 256, 512, 1, 4),
        ("leaky", 0.1),
        ("linear", 4 * 4 * 512, 1, True),
    ]
    assert output.shape == (2, 1)


def test_mlp_of_opt():
    layers, _ = layers_of(on_meta("mlp.opt"), torch.empty(2, 1, 28, 28, device="meta"))
    assert layers == [
        ("linear", 784, 256, True),
        ("relu",),
        ("linear", 256, 256, True),
        ("relu",),
        ("linear", 256, 10, True),
    ]


def test_pointnet_of_opt():
    model = on_meta("pointnet.opt")
    layers, _ = layers_of(model, torch.empty(2, 1024, 3, device="meta"))
    after = [
        ("linear", 1024, 512, False),
        ("norm", 512),
        ("relu",),
        ("linear", 512, 256, False),
        ("norm", 256),
        ("relu",),
    ]
    assert [layer for layer in layers if layer[0] == "linear"] == [after[0], after[3], ("linear", 256, 40, True)]
    assert layers[-8:] == [*after, ("dropout",), ("linear", 256, 40, True)]
    assert layers[:-8] == [layer for width in (64, 64, 64, 128, 1024) for layer in (("norm", width), ("relu",))]
    shared = [(m.in_channels, m.out_channels, m.kernel_size) for m in model.modules() if isinstance(m, nn.Conv1d)]
    assert shared == [(3, 64, (1,)), (64, 64, (1,)), (64, 64, (1,)), (64, 128, (1,)), (128, 1024, (1,))]
    assert next(m.p for m in model.modules() if isinstance(m, nn.Dropout)) == 0.3


def test_gcn_of_opt():
    model = models.create("gcn.opt", 3, in_features=500)
    layers, _ = layers_of(model, torch.rand(4, 500), torch.ones(4, 4))
    assert layers == [("linear", 500, 16, False), ("linear", 16, 3, False)]
    assert model.dropout == 0.5


ROTATED = [  # network, classes, options of rotate (None: plain), numbers to learn (Tables 10 and 11 of OPT)
    ("cnn6.opt", 100, None, 257_984),
    ("cnn6.opt", 100, {}, 1_358_527),
    ("cnn6.opt", 100, {"sample": 1 / 4}, 90_871),
    ("wide_cnn9.opt", 100, None, 2_992_832),
    ("wide_cnn9.opt", 100, {}, 16_204_351),
    ("wide_cnn9.opt", 100, {"sample": 1 / 4}, 1_035_799),
    ("wide_cnn9.opt", 100, {"sample": 1 / 8}, 277_979),
    ("wide_cnn9.opt", 100, {"sample": 1 / 16}, 88_741),
    ("wide_cnn9.opt", 100, {"sample": 16}, 27_031),
    ("wide_cnn9.opt", 100, {"sample": 3}, 25_978),
    ("wide_cnn9.opt", 100, {"method": "none"}, 25_600),
    ("resnet18.opt", 1000, None, 11_678_912),
    ("resnet18.opt", 1000, {}, 46_501_227),
    ("resnet18.opt", 1000, {"sample": 1 / 4}, 3_393_483),
]


@pytest.mark.parametrize(("name", "classes", "options", "expected"), ROTATED)
def test_matrices_counted_as_the_paper_does(name, classes, options, expected):
    """Matrices alone: biases and BatchNorm are counted apart. The papers' classes are the preset's own."""
    model = on_meta(name)
    assert model.num_classes == classes
    if options is not None:
        hs.rotate(model, **options)
    counts = hs.rotation.count_parameters(model)
    assert counts["rotations"] + counts["weights"] == expected
    norms = sum(2 * module.num_features for module in model.modules() if isinstance(module, nn.BatchNorm2d))
    assert counts["other"] == norms + classes


@pytest.mark.parametrize(
    ("name", "classes", "options", "plain", "rotated"),
    [
        ("resnet18a.opt", 1000, {}, 128_000, 8_128),
        ("resnet18b.opt", 1000, {}, 512_000, 130_816),
        ("cnn20.opt", 10_572, {}, 5_412_864, 130_816),
        ("cnn20.opt", 10_572, {"fc": 1024}, 10_825_728, 523_776),
    ],
)
def test_classifiers_of_tables_12_and_13(name, classes, options, plain, rotated):
    model = on_meta(name, classes, **options)
    assert model.get_classifier().weight.numel() == plain
    hs.rotate(model, layers="classifier")
    assert hs.rotation.count_parameters(model)["rotations"] == rotated


# The docs' table


def test_multiply_adds_by_hand():
    """Every filter once at every place; ResNet-18's number is the well-known 1.81 billion."""
    convolutions = 32 * 32 * 27 * 64 + 16 * 16 * 576 * 96 + 8 * 8 * 864 * 128
    assert networks.row("cnn3.spherenet").multiply_adds == convolutions + 2048 * 256 + 256 * 10
    assert networks.row("mlp.opt").multiply_adds == 784 * 256 + 256 * 256 + 256 * 10
    assert networks.row("gcn.opt").multiply_adds == 1433 * 16 + 16 * 7
    assert round(networks.row("resnet18.opt").multiply_adds / 1e9, 2) == 1.81
    deconvolution = nn.ConvTranspose2d(2, 3, 4, 2, padding=1)
    assert networks.multiply_adds(deconvolution, torch.zeros(1, 2, 5, 5)) == 25 * 2 * 3 * 16
    attention = nn.MultiheadAttention(8, 2, batch_first=True)
    x = torch.zeros(1, 5, 8)
    assert networks.multiply_adds(attention, x, x, x) == 4 * 5 * 64 + 2 * 25 * 8
    assert not any(module._forward_hooks for module in attention.modules())
