"""One threshold at a stated FAR: the literal search, Wilson's interval of scipy, the literal jackknife."""

import json
import math

import pytest
import torch
import torch.nn.functional as F
from scipy.stats import binomtest

from hypersphere import openset
from hypersphere.openset import _embeddings


def faces(people=12, images=5, d=6):
    labels = torch.arange(people).repeat_interleave(images)[torch.randperm(people * images)]
    return torch.randn(people, d)[labels] + 0.8 * torch.randn(len(labels), d), labels


def all_pairs(embeddings, labels):
    i, j = torch.triu_indices(len(labels), len(labels), 1)
    unit = F.normalize(embeddings)
    return (unit @ unit.T)[i, j], torch.stack([labels[i], labels[j]], 1)


def wilson(share, n, confidence=0.95):
    """For a number of pairs that is not whole too."""
    z = {0.95: 1.959963984540054, 0.5: 0.6744897501960817}[confidence]
    centre, half = share + z**2 / 2 / n, z * math.sqrt(share * (1 - share) / n + z**2 / 4 / n**2)
    return (centre - half) / (1 + z**2 / n), (centre + half) / (1 + z**2 / n)


def jackknife(accepted, identities):
    """Leave out each identity with all its pairs."""
    members = identities.unique().tolist()
    shares = []
    for member in members:
        rest = (identities != member).all(1)
        shares.append(float(accepted[rest].double().mean()))
    share, groups = float(accepted.double().mean()), len(members)
    return (groups - 1) / groups * sum((other - share) ** 2 for other in shares)


def test_the_smallest_threshold_of_independent_pairs():
    """With ties, and intervals of scipy."""
    torch.manual_seed(1)
    scores, same = (torch.randn(3000) + 2 * (torch.arange(3000) < 1000)).round(decimals=2), torch.arange(3000) < 1000
    for far in (0.005, 0.02, 0.3):
        point = openset.threshold_at(far, scores, same)
        fits = [t for t in scores.unique().tolist() if (scores[~same] >= t).double().mean() <= far]
        assert point.threshold == min(fits)
        false, true = int((scores[~same] >= min(fits)).sum()), int((scores[same] >= min(fits)).sum())
        assert (point.far, point.tar) == (false / 2000, true / 1000)
        for interval, hits, n in ((point.far_interval, false, 2000), (point.tar_interval, true, 1000)):
            assert interval == pytest.approx(tuple(binomtest(hits, n).proportion_ci(method="wilson")), rel=1e-9)
        low, high = point.far_interval
        allowed = [
            min(t for t in scores.unique().tolist() if (scores[~same] >= t).double().mean() <= f) for f in (high, low)
        ]
        assert point.threshold_interval == tuple(allowed)
        assert allowed[0] < point.threshold < allowed[1]


def test_identities_widen_the_intervals_by_the_jackknife():
    embeddings, labels = faces()
    scores, identities = all_pairs(embeddings, labels)
    same = identities[:, 0] == identities[:, 1]
    point = openset.threshold_at(0.05, scores, same, identities=identities, confidence=0.5)
    accepted = scores >= point.threshold
    for interval, kind, share in ((point.far_interval, ~same, point.far), (point.tar_interval, same, point.tar)):
        effective = share * (1 - share) / jackknife(accepted[kind], identities[kind])
        assert effective < int(kind.sum())
        assert interval == pytest.approx(wilson(share, effective, 0.5), rel=1e-6)
    plain = openset.threshold_at(0.05, scores, same, confidence=0.5)
    assert (plain.threshold, plain.far, plain.tar) == (point.threshold, point.far, point.tar)
    assert plain.far_interval[1] < point.far_interval[1]
    assert (plain.identities, point.identities) == (None, 12)


@pytest.mark.parametrize("size", [4, 7, 1000])
def test_embeddings_are_all_pairs_of_them(size, monkeypatch):
    monkeypatch.setattr(_embeddings, "QUERIES", size)
    monkeypatch.setattr(_embeddings, "DATABASE", 2 * size)
    embeddings, labels = faces()
    scores, identities = all_pairs(embeddings, labels)
    wanted = openset.threshold_at(0.03, scores, identities[:, 0] == identities[:, 1], identities=identities)
    point = openset.threshold_of_embeddings(0.03, 7.0 * embeddings, 100 * labels - 3)
    got, expected = point.to_dict(), wanted.to_dict()
    assert got["threshold"] == pytest.approx(expected["threshold"], abs=1e-2)  # it is between two scores
    accepted = scores >= point.threshold
    assert torch.equal(accepted, scores >= wanted.threshold)
    for key in ("far", "tar", "far_interval", "tar_interval", "same_pairs", "different_pairs", "identities"):
        assert got[key] == pytest.approx(expected[key], rel=1e-9)
    assert (point.threshold + 1) * 2**19 % 1 == 0


def test_result_prints_and_goes_to_json():
    torch.manual_seed(0)
    point = openset.threshold_of_embeddings(0.05, *faces())
    assert [row.name for row in point.rows] == ["threshold", "FAR", "TAR"]
    lines = str(point).splitlines()
    assert lines[0].split() == ["FAR", "≤", "0.05", "value", "95", "%", "interval"]
    assert lines[2].split()[:2] == ["FAR", f"{point.far:.4g}"]
    assert lines[-1] == "120 same and 1,650 different pairs of 12 identities, which the intervals allow for"
    assert point._repr_html_().count("<table>") == 1
    tree = json.loads(json.dumps(point.to_dict(), allow_nan=False))
    assert tree["far_interval"] == list(point.far_interval)
    assert (tree["target_far"], tree["confidence"]) == (0.05, 0.95)


def test_one_identity_in_all_false_accepts():
    """Where a single identity is in all pairs, the data cannot tell how high the threshold must be."""
    identities = torch.tensor([[i, j] for i in range(20) for j in range(i, 20)])
    same = identities[:, 0] == identities[:, 1]
    scores = torch.where(same, 2.0, torch.where(identities[:, 0] == 0, 1.0, 0.0))
    point = openset.threshold_at(0.1, scores, same, identities=identities)
    assert (point.far, point.threshold, point.tar) == (0.1, 1.0, 1.0)
    assert point.far_interval[0] < 0.02
    assert point.far_interval[1] > 0.4
    low = wilson(1.0, 20)[0]  # an identity counts once
    assert point.tar_interval == pytest.approx((low, 1.0))
    assert point.threshold_interval == (1.0, 2.0)
    two = openset.threshold_at(
        0.5, torch.arange(42.0), torch.arange(42) > 39, identities=torch.tensor([[0, 1]] * 40 + [[0, 0]] * 2)
    )
    assert two.far_interval == pytest.approx(wilson(0.5, 1))
    assert "independent" in str(openset.threshold_at(0.5, torch.arange(42.0), torch.arange(42) > 39))
    far_up = openset.threshold_at(
        0.25, -torch.arange(80.0), torch.arange(80) > 39, identities=torch.tensor([[0, 1]] * 40 + [[0, 0]] * 40)
    )
    assert far_up.threshold_interval[1] == math.inf
    assert far_up.to_dict()["threshold_interval"][1] is None
    assert "∞" in str(far_up)


def pairs(different, same=5):
    return torch.cat([torch.linspace(0, 1, different), torch.ones(same)]), torch.arange(different + same) >= different


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: openset.threshold_at(1e-4, *pairs(500)),
            "far=0.0001 needs 100,000 different pairs or more, so that 10 false accepts are expected, got 500: the "
            "smallest far is 0.02",
        ),
        (lambda: openset.threshold_at(0.5, *pairs(9)), "got 9: too few for any far"),
        (lambda: openset.threshold_of_embeddings(0.001, *faces()), "got 1,650: the smallest far is 0.00606"),
        (
            lambda: openset.threshold_at(0.1, torch.ones(500), torch.arange(500) < 50),
            "far must be at least 1, the share of different pairs with the highest score",
        ),
        (
            lambda: openset.threshold_of_embeddings(0.1, torch.ones(40, 3), torch.arange(40) // 2),
            "far must be at least 1, the share of different pairs with a cosine of about 1",
        ),
        (lambda: openset.threshold_of_embeddings(0.1, torch.ones(40, 3), torch.arange(40)), "labels must have two"),
        (
            lambda: openset.threshold_of_embeddings(0.1, torch.ones(40, 3), torch.ones(40)),
            r"labels must be \(40,\) int",
        ),
        (lambda: openset.threshold_of_embeddings(0.1, torch.ones(3), torch.ones(3)), r"embeddings must be \(N, d\)"),
        (lambda: openset.threshold_at(0, *pairs(500)), "far must be finite and > 0 and <= 1, got 0"),
        (lambda: openset.threshold_at(0.5, *pairs(500), confidence=1), "confidence must be < 1"),
        (lambda: openset.threshold_at(0.5, *pairs(500, 0)), "pairs of both kinds"),
        (
            lambda: openset.threshold_at(0.5, *pairs(500), identities=torch.zeros(505, 2).long()),
            "identities must be equal where same is True and only there, but pair 0 differs",
        ),
        (lambda: openset.threshold_at(0.5, *pairs(500), identities=torch.zeros(5, 2)), r"must be \(505, 2\) integers"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_ten_expected_false_accepts_are_enough():
    assert openset.threshold_at(10 / 300, *pairs(300)).far == 10 / 300
