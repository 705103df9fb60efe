"""Trainable parameters as the paper counts them: Tables 10–13, 19 and 20 of OPT, to the last one.

The networks of Tables 10 to 13 are counted in tests/models/test_tables.py.
"""

import pytest
import torch
from torch import nn

import hypersphere as hs


def conv(inputs, outputs, kernel=3):
    return nn.Conv2d(inputs, outputs, kernel, bias=False)


def on_meta(make):
    """The shapes alone: what is counted needs no memory."""
    with torch.device("meta"):
        return make()


@pytest.mark.parametrize("method", ["gram_schmidt", "cayley", "ogd"])
def test_every_orthogonal_method_counts_the_same(method):
    """A rotation has d(d−1)/2 free numbers however many its method stores; Table 10 is of Gram-Schmidt."""
    counts = hs.rotation.count_parameters(hs.rotate(on_meta(lambda: hs.models.create("cnn6.opt")), method))
    assert counts["rotations"] + counts["weights"] == 1_358_527
    assert counts["matrices"] == 27**2 + 5 * 576**2 + 1024**2
    stored = counts["rotations"] if method in ("cayley", "exponential") else counts["matrices"]
    assert counts["stored"] == 257_984 + counts["other"] + stored


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
