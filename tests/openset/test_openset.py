"""Verification, identification and few-shot episodes as functions of embeddings."""

import math

import pytest
import torch
from sklearn import metrics

from hypersphere import openset
from hypersphere._internal.draws import generator
from hypersphere.openset import _embeddings, few_shot
from hypersphere.openset.verification import best_threshold
from tests import reference


def make_scores(seed, pairs=60, decimals=1):
    torch.manual_seed(seed)
    same = torch.arange(pairs) % 3 == 0
    return (torch.randn(pairs) + same).round(decimals=decimals), same


@pytest.mark.parametrize("decimals", [0, 1, 6])
def test_roc_curve_is_that_of_scikit_learn(decimals):
    """With many ties and with none."""
    for seed in range(5):
        scores, same = make_scores(seed, decimals=decimals)
        curve = openset.roc_curve(scores, same)
        far, tar, thresholds = metrics.roc_curve(same, scores, drop_intermediate=False)
        assert torch.equal(curve.far, torch.tensor(far))
        assert torch.equal(curve.tar, torch.tensor(tar))
        assert torch.equal(curve.thresholds, torch.tensor(thresholds).double())
        assert curve.auc == pytest.approx(metrics.roc_auc_score(same, scores), abs=1e-12)
        corners = curve.corners()
        assert metrics.auc(corners["far"], corners["tar"]) == pytest.approx(curve.auc, abs=1e-12)
        assert corners["thresholds"][0] is None
        for far, tar, threshold in list(zip(*corners.values(), strict=True))[1:]:
            assert far == (scores[~same] >= threshold).double().mean()
            assert tar == (scores[same] >= threshold).double().mean()


def test_roc_values_by_hand():
    same = torch.tensor([True, True, False, True, False, False])
    curve = openset.roc_curve(torch.tensor([6.0, 5, 4, 3, 2, 1]), same)
    assert curve.auc == pytest.approx(8 / 9)
    assert curve.eer == pytest.approx(1 / 3)
    assert str(curve).split()[-6:] == ["7", "0.8889", "33.33%", "66.67%", "66.67%", "66.67%"]
    assert curve.rows[1] == (0, pytest.approx(1 / 3), 6)
    assert [curve.tar_at(far) for far in (0, 0.3, 1 / 3, 0.9, 1)] == pytest.approx([2 / 3, 2 / 3, 1, 1, 1])
    assert curve.corners() == {
        "far": [0, 0, 1 / 3, 1 / 3, 1],
        "tar": [0, 2 / 3, 2 / 3, 1, 1],
        "thresholds": [None, 5, 4, 3, 1],
    }
    perfect = openset.roc_curve(torch.tensor([1.0, 0.0]), torch.tensor([True, False]))
    wrong = openset.roc_curve(torch.tensor([0.0, 1.0]), torch.tensor([True, False]))
    constant = openset.roc_curve(torch.zeros(4), torch.tensor([True, False, True, False]))
    assert [(curve.auc, curve.eer, curve.tar_at(0)) for curve in (perfect, wrong, constant)] == [
        (1, 0, 1),
        (0, 1, 0),
        (0.5, 0.5, 0),
    ]


def test_best_threshold_is_halfway_and_can_accept_nothing_or_everything():
    same = torch.tensor([True, True, False, False])
    assert best_threshold(torch.tensor([4.0, 3, 2, 1]), same) == 2.5
    few = torch.tensor([False, False, True, False])
    assert best_threshold(torch.zeros(4), few) == 1.0  # rejects all
    assert best_threshold(torch.zeros(4), ~few) == -1.0  # accepts all


def make_pairs(seed, pairs=40, d=6):
    torch.manual_seed(seed)
    same = torch.arange(pairs) % 4 < 2
    first = torch.randn(pairs, d) + 3  # far from the origin: without centring all cosines are near 1
    second = torch.where(same[:, None], first, torch.randn(pairs, d) + 3) + 0.7 * torch.randn(pairs, d)
    return first, second, same


def test_verification_is_the_literal_protocol():
    for seed in range(3):
        first, second, same = make_pairs(seed)
        fold = openset.divide_into_folds(same, 4)
        result = openset.verify_pairs(first, second, same, fold)
        allowed, cosines = reference.verification(first.double(), second.double(), same, fold)
        torch.testing.assert_close(result.scores, torch.tensor(cosines, dtype=torch.float64))
        assert all(float(a) in choices for a, choices in zip(result.accuracies, allowed, strict=True))
        right = (result.scores >= result.thresholds[fold]) == same
        assert [float(right[fold == i].double().mean()) for i in range(4)] == result.accuracies.tolist()
        assert result.accuracy == pytest.approx(sum(result.accuracies.tolist()) / 4)
        values = result.to_dict(fars=(0.25,))
        assert values["auc"] == pytest.approx(metrics.roc_auc_score(same, result.scores))
        assert values["tar"] == {"0.25": result.roc.tar_at(0.25)}
        assert str(result).endswith(f"{100 * result.accuracy:.2f}% ± {100 * result.std:.2f}% over folds, 40 pairs")
        assert [row.threshold for row in result.rows] == result.thresholds.tolist() == values["thresholds"]
        assert result._repr_html_().count("<table>") == 2
        assert values["std"] == pytest.approx(float(torch.tensor(values["folds"]).std()))


def test_a_fold_never_sees_its_own_pairs():
    """Labels of one fold change neither its threshold nor its scores."""
    first, second, same = make_pairs(0)
    fold = openset.divide_into_folds(same, 4)
    before = openset.verify_pairs(first, second, same, fold)
    after = openset.verify_pairs(first, second, same ^ (fold == 2), fold)
    assert torch.equal(before.scores, after.scores)
    assert before.thresholds[2] == after.thresholds[2]
    assert after.accuracies[2] == pytest.approx(1 - float(before.accuracies[2]))
    assert not torch.equal(before.thresholds, after.thresholds)


@pytest.mark.parametrize("scale", [1e-200, 1e-14, 1e150, 1e300])
def test_cosines_do_not_depend_on_the_scale(scale):
    first, second, same = (x.double() if x.is_floating_point() else x for x in make_pairs(0))
    fold = openset.divide_into_folds(same, 4)
    plain = openset.verify_pairs(first, second, same, fold)
    scaled = openset.verify_pairs(scale * first, scale * second, same, fold)
    assert scaled.accuracies.tolist() == plain.accuracies.tolist()
    torch.testing.assert_close(scaled.scores, plain.scores)
    labels = torch.arange(len(first))
    ranks = openset.identification_ranks(first, labels, second, labels)
    assert torch.equal(openset.identification_ranks(scale * first, labels, scale * second, labels), ranks)
    openset.verify_pairs(first.requires_grad_(), second, same, fold)  # without a warning


def test_equal_embeddings_verify_at_chance():
    same = torch.arange(40) % 2 == 0
    result = openset.verify_pairs(torch.ones(40, 3), torch.ones(40, 3), same, openset.divide_into_folds(same, 4))
    assert (result.accuracy, result.roc.auc, result.roc.eer) == (0.5, 0.5, 0.5)


def test_folds_of_a_list_without_folds():
    same = torch.arange(1000) < 500
    fold = openset.divide_into_folds(same)
    assert torch.equal(fold, torch.arange(1000) % 500 // 50)
    assert openset.divide_into_folds(torch.tensor([True, False] * 3), 3).tolist() == [0, 0, 1, 1, 2, 2]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda f, s, y, k: openset.verify_pairs(f, s[:, :2], y, k), r"second must be \(8, 3\) as first is"),
        (lambda f, s, y, k: openset.verify_pairs(f[0], s, y, k), r"first must be \(P, d\), got \(3,\)"),
        (lambda f, s, y, k: openset.verify_pairs(f * math.nan, s, y, k), "first must be finite"),
        (lambda f, s, y, k: openset.verify_pairs(f, s, y[:4], k), r"same must be \(8,\)"),
        (lambda f, s, y, k: openset.verify_pairs(f, s, y | True, k), "both kinds, got only same pairs"),
        (lambda f, s, y, k: openset.verify_pairs(f, s, y, k * 0), "F >= 2 folds, got 0 to 0"),
        (lambda f, s, y, k: openset.verify_pairs(f, s, y, k * 2), "fold 1 of 3 has none"),
        (lambda f, s, y, k: openset.verify_pairs(f, s, y, y.long()), "folds other than 0 must have same and different"),
        (lambda f, s, y, k: openset.verify_pairs(f, s, y, k.float()), r"fold must be \(8,\) integers"),
        (lambda f, s, y, k: openset.divide_into_folds(y, 5), "folds must be <= 4, the number of same pairs, got 5"),
        (lambda f, s, y, k: openset.roc_curve(f, y), r"scores must be \(P,\) and finite, got shape \(8, 3\)"),
        (lambda f, s, y, k: openset.roc_curve(f[:, 0] / 0, y), "got NaN or infinity"),
        (lambda f, s, y, k: openset.roc_curve(f[:0, 0], y[:0]), "got no pairs"),
        (lambda f, s, y, k: openset.roc_curve(f[:, 0], y).tar_at(2), "far must be finite and >= 0 and <= 1"),
        (lambda f, s, y, k: openset.identification_ranks(f, k, s[:, :2], k), r"gallery must be \(n, d\)"),
        (lambda f, s, y, k: openset.identification_ranks(f, k, s, k[:2]), r"gallery_labels must be \(8,\) integers"),
        (lambda f, s, y, k: openset.identification_ranks(f, k + 1, s, k), "gallery must have every probe's label"),
        (lambda f, s, y, k: openset.identification_ranks(f[:0], k[:0], s, k), "probes must not be empty"),
        (lambda f, s, y, k: openset.few_shot_accuracy(f, s), r"support must be \(episodes, ways, samples, d\)"),
        (
            lambda f, s, y, k: openset.few_shot_accuracy(f.view(1, 4, 2, 3), s.view(2, 2, 2, 3)),
            "same episodes, one or more, ways and d",
        ),
        (
            lambda f, s, y, k: openset.few_shot_accuracy(f.view(1, 4, 2, 3), s.view(1, 4, 2, 3), "cosin"),
            "'cosin', did you mean 'cosine'",
        ),
    ],
)
def test_bad_input(call, message):
    torch.manual_seed(0)
    same = torch.arange(8) % 2 == 0
    with pytest.raises(ValueError, match=message):
        call(torch.randn(8, 3), torch.randn(8, 3), same, torch.arange(8) // 4)


def test_same_must_be_bool():
    with pytest.raises(TypeError, match="same must be a bool tensor"):
        openset.roc_curve(torch.zeros(2), torch.tensor([0, 1]))


@pytest.mark.parametrize("distractors", [None, 7])
def test_identification_ranks_by_sorting(distractors, monkeypatch):
    monkeypatch.setattr(_embeddings, "QUERIES", 4)  # several blocks
    monkeypatch.setattr(_embeddings, "DATABASE", 4)
    torch.manual_seed(0)
    probes, gallery, labels = torch.randn(10, 5), torch.randn(6, 5), torch.tensor([0, 0, 1, 2, 2, 3])
    noise = None if distractors is None else torch.randn(distractors, 5)
    wanted = torch.arange(10) % 4
    ranks = openset.identification_ranks(probes, wanted, gallery, labels, noise)
    everyone, names = torch.cat([gallery, *([] if noise is None else [noise])]), labels.tolist() + [-1] * 7
    for probe, label, rank in zip(probes, wanted.tolist(), ranks.tolist(), strict=True):
        order = torch.cosine_similarity(probe, everyone).argsort(descending=True).tolist()
        ahead = []
        for i in order:
            if names[i] == label:
                break
            ahead.append(i)
        assert rank == 1 + len(ahead)


def test_ties_count_against_a_probe():
    ranks = openset.identification_ranks(
        torch.ones(2, 3), torch.tensor([0, 1]), torch.ones(2, 3), torch.arange(2), torch.ones(5, 3)
    )
    assert ranks.tolist() == [7, 7]


@pytest.mark.parametrize("classifier", few_shot.CLASSIFIERS)
@pytest.mark.parametrize("d", [3, 40])
def test_few_shot_is_the_literal_training(classifier, d, monkeypatch):
    """In the subspace (d = 40 > 9) and without it."""
    monkeypatch.setattr(few_shot, "EPOCHS", 12)
    torch.manual_seed(0)
    episodes, ways, shots, queries = 2, 3, 2, 4
    centres = torch.randn(episodes, ways, 1, d)
    support, query = (2 * centres + torch.randn(episodes, ways, n, d) for n in (shots, queries))
    result = openset.few_shot_accuracy(support, query, classifier, seed=5)
    draws = generator(5, "few-shot", 0)
    weight = (torch.rand(episodes, ways, d, generator=draws) * 2 - 1) / d**0.5
    bias = (torch.rand(episodes, 1, ways, generator=draws) * 2 - 1) / d**0.5
    orders = [torch.rand(episodes, ways * shots, generator=draws).argsort(1) for _ in range(12)]
    targets, losses = torch.arange(ways).repeat_interleave(queries), []
    for i in range(episodes):
        logits = reference.few_shot_episode(
            *(x[i].double() for x in (support, query, weight)),
            bias[i, 0].double(),
            [order[i].tolist() for order in orders],
            classifier == "cosine",
        )
        losses.append(float(torch.nn.functional.cross_entropy(logits, targets)))
        assert float(result.accuracies[i]) == pytest.approx(float((logits.argmax(1) == targets).double().mean()))
    assert result.loss == pytest.approx(sum(losses) / episodes, rel=1e-5)


def test_episode_accuracy_and_interval():
    result = few_shot.EpisodeAccuracy(torch.tensor([0.5, 0.7, 0.9], dtype=torch.float64), 0.0)
    assert result.accuracy == pytest.approx(0.7)
    assert result.interval == pytest.approx(1.96 * 0.2 / 3**0.5)
    assert str(result).splitlines()[1].split() == ["3", "70.00%", "22.63%", "0"]
    assert result.to_dict()["episodes"] == result.rows == [0.5, 0.7, 0.9]
    assert math.isnan(few_shot.EpisodeAccuracy(torch.ones(1), 0.0).interval)
