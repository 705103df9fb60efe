"""predictions/<split>.json of a run: what the training and `evaluate` write, what is refused, what a report draws."""

from __future__ import annotations

import base64
import json
import re
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from hypersphere import data
from hypersphere._internal.checksummed_json import with_checksum
from hypersphere.cli import main
from hypersphere.report import mistakes, report_runs
from hypersphere.report.run_files import group_runs, read_runs
from hypersphere.report.run_page import build_page
from hypersphere.train import Optimizer, fit, load_run
from hypersphere.train.evaluation import Predictions
from hypersphere.train.splits import Batch, DataSpec
from hypersphere.train.storage import predictions
from tests.report_runs import train_small


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return train_small(tmp_path_factory.mktemp("runs") / "small", steps=20)


@pytest.fixture
def run(trained, tmp_path):
    return shutil.copytree(trained, tmp_path / "run")


def change(run, **fields):
    """Write other fields into the file, with a right checksum."""
    file = predictions.file_of(run, "test")
    tree = json.loads(file.read_text())
    del tree["checksum"]
    file.write_text(with_checksum(tree | fields))
    return file


def test_training_writes_the_literal_counts(trained):
    tree = predictions.read(predictions.file_of(trained, "test"))
    images, run = data.load("digits", None, "test"), load_run(trained)
    with torch.no_grad():
        logits = run.model(run.preprocess(images.inputs)).double()
    guesses = logits.argmax(1)
    matrix = np.zeros((10, 10), int)
    for label, guess in zip(images.labels.tolist(), guesses.tolist(), strict=True):
        matrix[label, guess] += 1
    assert tree.samples == matrix.sum(1).tolist()
    assert tree.correct == matrix.diagonal().tolist()
    assert {(a, b): n for a, b, n in tree.confused} == {
        (a, b): matrix[a, b] for a in range(10) for b in range(10) if a != b and matrix[a, b]
    }
    counts = [row[2] for row in tree.confused]
    assert counts == sorted(counts, reverse=True)
    losses = torch.nn.functional.cross_entropy(logits, images.labels, reduction="none")
    worst = losses.where(guesses != images.labels, -1.0).topk(24)
    assert [image.index for image in tree.worst] == worst.indices.tolist()
    assert [image.loss for image in tree.worst] == pytest.approx(worst.values.tolist(), rel=1e-4)
    for image in tree.worst:
        index = image.index
        assert (image.label, image.prediction) == (images.labels[index], guesses[index])
        assert image.confidence == pytest.approx(float(logits[index].softmax(0).max()), rel=1e-4)
        assert image.decode() == images.inputs[index].numpy().tobytes()


def test_evaluate_and_a_resumed_run_write_the_same(run, capsys):
    file = predictions.file_of(run, "test")
    before = file.read_bytes()
    file.unlink()
    assert main(["evaluate", str(run)]) == 0
    assert file.read_bytes() == before
    file.unlink()
    (run / "result.json").unlink()  # killed after the last checkpoint
    config = load_run(run).config
    fit(replace(config, out=str(run), resume=True), progress=False)
    assert file.read_bytes() == before
    assert main(["verify", str(run)]) == 0
    assert f"ok       {file}" in capsys.readouterr().out


def test_evaluate_writes_nothing_for_other_data(run):
    result = json.loads((run / "result.json").read_text())
    del result["checksum"]
    (run / "result.json").write_text(with_checksum(result | {"data": {"hash": "other"}}))
    predictions.file_of(run, "test").unlink()
    assert main(["evaluate", str(run)]) == 0
    assert not predictions.file_of(run, "test").exists()


@pytest.mark.slow
def test_best_weights_are_those_of_the_predictions(tmp_path):
    """Without a test split the file is of the best step on validation, not of the last one."""
    pixels = np.random.default_rng(0).integers(0, 255, (40, 8, 8), np.uint8)
    for i, image in enumerate(pixels):
        folder = tmp_path / "data" / "train" / "ab"[i % 2]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(folder / f"{i}.png")
    images = {"name": "image_folder", "root": str(tmp_path / "data"), "validation": 0.5}
    run = train_small(tmp_path / "run", seed=2, steps=12, data=images, eval_every=1, optimizer=Optimizer(lr=1.0))
    tree = predictions.read(predictions.file_of(run, "validation"))
    result = json.loads((run / "result.json").read_text())
    last = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    assert result["accuracy"] != last["accuracy"]
    assert sum(tree.correct) / sum(tree.samples) == result["accuracy"]


IMAGE = {"index": 0, "label": 1, "prediction": 2, "confidence": 0.5, "loss": 1.0, "size": [1, 2, 1], "pixels": "AAA="}


@pytest.mark.parametrize(
    "fields",
    [
        {"classes": "abc"},
        {"samples": [1]},
        {"correct": [10**6] * 10},
        {"confused": [[0, 10, 1]]},
        {"confused": [[0, 1, 1]] * 2001},
        {"worst": [IMAGE] * 25},
        {"worst": [IMAGE | {"pixels": "AA=="}]},
        {"worst": [IMAGE | {"size": [10**9, 10**9, 3]}]},
        {"worst": [IMAGE | {"label": 10}]},
        {"worst": [IMAGE | {"confidence": 2}]},
        {"model": None},
    ],
)
def test_strange_files_are_refused(run, fields, capsys):
    file = change(run, **fields)
    with pytest.raises(ValueError, match=f"^{re.escape(str(file))} is malformed: "):
        predictions.read(file)
    assert main(["verify", str(run)]) == 1
    assert f"damaged  {file}: " in capsys.readouterr().out


def test_an_image_is_read(run):
    (image,) = predictions.read(change(run, worst=[IMAGE])).worst
    assert vars(image) == IMAGE | {"size": (1, 2, 1)}
    assert image.decode() == bytes(2)


def test_large_damaged_and_linked_files_are_refused(run):
    file = predictions.file_of(run, "test")
    file.write_bytes(file.read_bytes().replace(b'"split": "test"', b'"split": "tess"'))
    with pytest.raises(ValueError, match="checksum does not match"):
        predictions.read(file)
    with open(file, "r+b") as opened:
        opened.truncate(predictions.LARGEST_FILE + 1)
    with pytest.raises(ValueError, match="too large"):
        predictions.read(file)
    file.unlink()
    shutil.move(file.parent, run.parent / "elsewhere")
    file.parent.symlink_to(run.parent / "elsewhere")
    with pytest.raises(ValueError, match="must be a folder"):
        predictions.read(file)


def collect(kind, inputs, labels, logits, classes):
    """Collect one batch of a network that gives these logits."""

    class Fixed:
        logits = staticmethod(lambda given: given)

    found = Predictions(DataSpec(kind, tuple(inputs.shape[1:]), "float32", classes))
    found.add(Fixed(), logits, Batch(inputs, labels))
    return found.tree()


def test_large_images_are_small_and_other_data_have_none():
    logits, labels = torch.eye(3)[[1, 1, 0]] * 5, torch.tensor([0, 1, 2])
    tree = collect("images", torch.rand(3, 3, 40, 200), labels, logits, ["a", "b", "c"])
    assert [image["index"] for image in tree["worst"]] == [0, 2]
    for image in tree["worst"]:
        assert image["size"] == [13, 64, 3]
        assert len(base64.b64decode(image["pixels"])) == 13 * 64 * 3
    assert collect("points", torch.rand(3, 5, 3), labels, logits, ["a", "b", "c"])["worst"] == []
    left_out = collect("graph", torch.rand(3, 5), torch.tensor([0, -100, 2]), logits, ["a", "b", "c"])
    assert (left_out["samples"], left_out["confused"]) == ([1, 0, 1], [[0, 1, 1], [2, 0, 1]])


# Report


def text_of(runs) -> str:
    return build_page(group_runs(read_runs(runs))).html()


def test_report_draws_them(run):
    text = text_of([run])
    assert "accuracy of each class" in text
    assert "run: confusion matrix" in text
    tree = predictions.read(predictions.file_of(run, "test"))
    assert text.count("data:image/png") == len(tree.worst)
    first = tree.worst[0]
    assert f"<figcaption>{first.label} → {first.prediction}, {first.confidence:.0%}</figcaption>" in text
    cells = re.findall(r"<title>(\d), predicted as (\d): (\d+)</title>", text)
    counts = {(int(label), int(guess)): int(count) for label, guess, count in cells}
    expected = {(i, i): right for i, right in enumerate(tree.correct) if right}
    assert counts == expected | {(label, guess): count for label, guess, count in tree.confused}


def test_report_says_what_is_missing_or_of_other_weights(run, tmp_path):
    change(run, model="00000000")
    assert "test.json belongs to other weights" in text_of([run])
    predictions.file_of(run, "test").unlink()
    text = text_of([run])
    assert f"`hypersphere evaluate {run}` writes it into the run folder" in text
    assert ">Mistakes<" not in text
    report_runs([run], html=tmp_path / "x.html")


def test_many_classes_and_odd_names(run):
    """A thousand classes make a page of bars and one long table; names are text, also empty ones."""
    names = ["<b>&", "\n", *map(str, range(998))]
    pairs = [[i, i + 1, 999 - i] for i in range(999)]
    change(run, classes=names, samples=[1000] * 1000, correct=[500] * 1000, confused=pairs, worst=[IMAGE])
    text = text_of([run])
    assert "<b>" not in text
    assert "accuracy of the 25 worst of 1000 classes" in text
    assert len(text) < 1_500_000
    bars = re.findall("<title>([^<]* → [^<]*)</title>", text)
    assert bars[:2] == ["&lt;b&gt;&amp; → '\\n': 999", "'\\n' → 0: 998"]
    assert len(bars) == mistakes.MOST_ROWS
