"""The score of generated images, against the formulas, and its classifier, trained once."""

from dataclasses import replace

import pytest
import torch

from hypersphere.models._registry import PRESETS
from hypersphere.papers import gan_score as generated
from hypersphere.papers.reproduce import worker
from hypersphere.papers.reproduce.metrics import metrics_of
from hypersphere.papers.reproduce.worker import RunLocation
from hypersphere.papers.table import PaperTable, Scoring, TableRow
from hypersphere.train import fit, load_run, processes
from hypersphere.train.storage.folder import LockedError
from tests import reference, runs


def test_the_score_is_the_mean_divergence_from_the_mean_class():
    logits = 3 * torch.randn(50, 7, dtype=torch.float64)
    assert generated.class_score(logits) == pytest.approx(reference.class_score(logits.softmax(1).tolist()), rel=1e-12)
    sure = 1000 * torch.eye(7)
    assert generated.class_score(sure) == pytest.approx(7)
    assert generated.class_score(sure[:1].expand(5, 7)) == pytest.approx(1)


def test_the_distance_of_normal_distributions():
    a, b = torch.randn(300, 4) @ torch.randn(4, 4), torch.randn(200, 4) @ torch.randn(4, 4) + 1
    assert generated.frechet_distance(a, b) == pytest.approx(reference.frechet_distance(a.numpy(), b.numpy()), rel=1e-6)
    assert generated.frechet_distance(a, a) == pytest.approx(0, abs=1e-6)
    assert generated.frechet_distance(a, a + 2) == pytest.approx(16, rel=1e-5)
    flat = torch.cat([a, a], 1)  # a covariance of half the rank
    assert generated.frechet_distance(flat, flat) == pytest.approx(0, abs=1e-4)


@pytest.fixture
def table(monkeypatch):
    for name in ("generator.mhe", "discriminator.mhe"):
        monkeypatch.setitem(PRESETS, name, PRESETS[name])
    runs.small_gan()
    gan = runs.tiny(**{"model.name": "generator.mhe", "model.widths": (4, 4, 4, 4), "steps": 2, "eval_every": 2})
    classifier = runs.tiny(steps=30, eval_every=10, **{"data.validation": 30})
    rows = (TableRow("gan", small=gan), TableRow("real", small=classifier))
    return PaperTable("generated digits", "score", rows, "few digits", scoring=Scoring("real", images=40))


@pytest.fixture
def place(table, tmp_path):
    return RunLocation(table, "digits", "small", str(tmp_path), "cpu")


def measure(place, name, seed=0):
    return metrics_of(place.table, place.train(place.table.row(name), seed), classifier_of(place))


def classifier_of(place):
    return lambda name: place.train(place.table.row(name), 0)


@pytest.mark.slow
def test_the_metrics_of_a_generator(table, place):
    result = place.train(table.rows[0], 0)
    found = metrics_of(table, result, classifier_of(place))
    classifier = load_run(place.folder(table.rows[1], 0))  # which was trained for this
    assert [*found][:1] == ["score"]
    assert {"frechet", "classifier_accuracy"} < {*found}
    assert 1 <= found["score"] <= 10
    assert found["classifier_accuracy"] == 100 * classifier_of(place)("real").summary.accuracy
    assert measure(place, "gan") == found
    noise = torch.randn(40, 4, generator=generated.generator(0, "score", 0))
    with torch.no_grad():
        probabilities = classifier.model(result.model(noise)).double().softmax(1)
    assert found["score"] == pytest.approx(reference.class_score(probabilities.tolist()), rel=1e-6)
    other = measure(place, "gan", 1)
    assert other["classifier_accuracy"] == found["classifier_accuracy"]
    assert other["score"] != found["score"]


def test_the_metrics_of_the_real_images(place):
    found = measure(place, "real")
    assert found["score"] > 1.2
    assert found["classifier_accuracy"] == found["accuracy"]
    assert "frechet" not in found


def test_it_waits_for_a_classifier_in_training(place, monkeypatch):
    busy, waited = [1, 1], []

    def fitted(*args, **options):
        if busy:
            busy.pop()
            raise LockedError(place.runs)
        return fit(*args, **options)

    monkeypatch.setattr(worker, "fit", fitted)
    monkeypatch.setattr(processes.time, "sleep", waited.append)
    assert classifier_of(place)("real").summary.step == 30
    assert waited == [processes.WAIT] * 2


def test_a_classifier_with_other_settings_is_another(table, place):
    changed = replace(table, rows=(table.rows[0], replace(table.rows[1], small=runs.tiny(steps=31))))
    assert replace(place, table=changed).folder(changed.rows[1], 0) != place.folder(table.rows[1], 0)
    assert replace(place, table=changed).folder(changed.rows[0], 0) == place.folder(table.rows[0], 0)
