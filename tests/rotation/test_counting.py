"""Trainable parameters as the paper counts them: Tables 10–13, 19 and 20 of OPT, to the last one."""

import pytest
import torch
from torch import nn

import hypersphere as hs


def conv(inputs, outputs, kernel=3):
    return nn.Conv2d(inputs, outputs, kernel, bias=False)


def cnn(widths, repeats, fc, classes=100):
    """The plain CNNs of Tables 14 and 17 on 32×32 images: three stages, each followed by a pool; no bias, no norm."""
    layers, inputs = [], 3
    for width in widths:
        for _ in range(repeats):
            layers.append(conv(inputs, width))
            inputs = width
    return nn.Sequential(*layers, nn.Linear(inputs * 4 * 4, fc, bias=False), nn.Linear(fc, classes, bias=False))


def resnet18(classes=1000):
    """Its matrices in order: the root, four stages of two units of two convolutions, 1×1 where the width changes."""
    layers, inputs = [conv(3, 64, 7)], 64
    for width in (64, 128, 256, 512):
        layers += [conv(inputs, width), conv(width, width), conv(width, width), conv(width, width)]
        if width != inputs:
            layers.append(conv(inputs, width, 1))
        inputs = width
    return nn.Sequential(*layers, nn.Linear(512, classes, bias=False))


NETWORKS = {
    "cnn6": lambda: cnn((64, 64, 64), 2, 64),
    "wide_cnn9": lambda: cnn((64, 128, 256), 3, 256),
    "resnet18": resnet18,
}
TABLES = [  # network, options of rotate (None: plain), numbers to learn
    ("cnn6", None, 257_984),
    ("cnn6", {}, 1_358_527),
    ("cnn6", {"sample": 1 / 4}, 90_871),
    ("wide_cnn9", None, 2_992_832),
    ("wide_cnn9", {}, 16_204_351),
    ("wide_cnn9", {"sample": 1 / 4}, 1_035_799),
    ("wide_cnn9", {"sample": 1 / 8}, 277_979),
    ("wide_cnn9", {"sample": 1 / 16}, 88_741),
    ("wide_cnn9", {"sample": 16}, 27_031),
    ("wide_cnn9", {"sample": 3}, 25_978),
    ("wide_cnn9", {"method": "none"}, 25_600),
    ("resnet18", None, 11_678_912),
    ("resnet18", {}, 46_501_227),
    ("resnet18", {"sample": 1 / 4}, 3_393_483),
]


def on_meta(make):
    """The shapes alone: what is counted needs no memory."""
    with torch.device("meta"):
        return make()


def identify(value):
    return "-".join(f"{k} {v}" for k, v in value.items()) or "full" if isinstance(value, dict) else None


@pytest.mark.parametrize(("network", "options", "expected"), TABLES, ids=identify)
def test_networks_of_tables_10_and_11(network, options, expected):
    model = on_meta(NETWORKS[network])
    classifier = model[-1].weight.numel()
    if options is not None:
        hs.rotate(model, **options)
    counts = hs.rotation.count_parameters(model)
    assert counts["total"] == expected
    assert counts["other"] == 0
    if options is not None:
        assert counts["weights"] == classifier
        assert counts["rotations"] == expected - classifier


@pytest.mark.parametrize("method", ["gram_schmidt", "cayley", "ogd"])
def test_every_orthogonal_method_counts_the_same(method):
    """A rotation has d(d−1)/2 free numbers however many its method stores; Table 10 is of Gram-Schmidt."""
    model = hs.rotate(on_meta(NETWORKS["cnn6"]), method)
    counts = hs.rotation.count_parameters(model)
    assert counts["total"] == 1_358_527
    assert counts["matrices"] == 27**2 + 5 * 576**2 + 1024**2
    stored = counts["rotations"] if method in ("cayley", "exponential") else counts["matrices"]
    assert counts["stored"] == 257_984 + stored
    sampled = hs.rotation.count_parameters(hs.rotate(on_meta(NETWORKS["cnn6"]), method, sample=0.25))
    assert sampled["total"] == 90_871


@pytest.mark.parametrize(
    ("classes", "d", "plain", "rotated"),
    [
        (1000, 128, 128_000, 8_128),
        (1000, 512, 512_000, 130_816),
        (10_572, 512, 5_412_864, 130_816),
        (10_572, 1024, 10_825_728, 523_776),
    ],
)
def test_classifiers_of_tables_12_and_13(classes, d, plain, rotated):
    """Only the classifier is rotated; its count does not depend on the classes. (Table 12 prints 64.0K for 128,000.)"""
    alone = on_meta(lambda: nn.Linear(d, classes, bias=False))
    assert hs.rotation.count_parameters(alone)["total"] == plain
    assert hs.rotation.count_parameters(hs.rotate(alone))["total"] == rotated
    model = on_meta(lambda: nn.Sequential(nn.Linear(9, d, bias=False), nn.Linear(d, classes, bias=False)))
    counts = hs.rotation.count_parameters(hs.rotate(model, layers="1"))
    assert (counts["rotations"], counts["weights"]) == (rotated, 9 * d)
    head = on_meta(lambda: hs.SSoftmaxLoss(classes, d))
    assert hs.rotation.count_parameters(head)["total"] == plain
    assert hs.rotation.count_parameters(hs.rotate(head))["total"] == rotated


@pytest.mark.parametrize("k", [1, 2, 4, 8, 16, 32, 64])
def test_blocks_of_tables_19_and_20(k):
    """One 3×3×64 layer; these tables count d² a block, not its free numbers."""
    m = 576 // k
    independent = hs.rotation.count_parameters(hs.rotate(on_meta(lambda: conv(64, 64)), "gram_schmidt", blocks=k))
    assert independent["matrices"] == 576**2 // k
    assert independent["rotations"] == independent["total"] == k * m * (m - 1) // 2
    if k > 1:
        layer = hs.rotate(on_meta(lambda: conv(64, 64)), "gram_schmidt", blocks=k, share_blocks=True)
        shared = hs.rotation.count_parameters(layer)
        assert shared["matrices"] == (576 // k) ** 2
        assert shared["rotations"] == shared["total"] == m * (m - 1) // 2


@pytest.mark.parametrize(
    ("method", "free"),
    [
        ("unconstrained", 36),
        ("regularized", 36),
        ("upper", 21),
        ("lower", 21),
        ("symmetric", 21),
        ("positive_definite", 21),
        ("banded", 16),
        ("skew", 15),
        ("hessenberg_upper", 26),
        ("hessenberg_lower", 26),
        ("network", 72),
        ("none", 0),
    ],
)
def test_other_methods_count_their_free_numbers(method, free):
    net = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))
    hs.rotate(net, method, init="normal" if method == "skew" else "identity")
    counts = hs.rotation.count_parameters(net)
    assert counts["rotations"] == free
    assert counts["weights"] == 15
    assert counts["other"] == 5 + 10 + 3
    assert counts["total"] == free + 15 + 18


def test_what_is_learned_counts_and_what_is_fixed_does_not():
    net = nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 4), nn.Linear(4, 3))
    plain = hs.rotation.count_parameters(net)
    assert plain == {"rotations": 0, "matrices": 0, "weights": 62, "other": 12, "total": 74, "stored": 74}
    hs.rotate(net, layers="0")
    hs.rotate(net, layers="1", neurons="learned")
    counts = hs.rotation.count_parameters(net)
    assert counts["rotations"] == 15 + 10
    assert counts["matrices"] == 36 + 25
    assert counts["weights"] == 20 + 12
    assert counts["total"] == 25 + 32 + 12
    assert counts["stored"] == 74 + 25
    net.requires_grad_(True)  # the neurons of layer 0 stay fixed
    assert hs.rotation.count_parameters(net) == counts
    hs.merge(net)
    assert hs.rotation.count_parameters(net) == plain


def test_frozen_networks_learn_rotations_alone():
    net = nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 3)).requires_grad_(False)
    counts = hs.rotation.count_parameters(hs.rotate(net))
    assert counts["total"] == counts["rotations"] == 15
