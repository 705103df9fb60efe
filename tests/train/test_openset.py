"""Training on classes that the test set does not have, and `hypersphere evaluate` on them."""

import json
import os
import shutil
import signal

import pytest
import torch
from PIL import Image

from hypersphere import data, openset
from hypersphere.cli import main
from hypersphere.data import planetoid
from hypersphere.train import load_run
from hypersphere.train.config import derive
from hypersphere.train.inference import scores as scoring
from hypersphere.train.inference.scores import open_scores, scores
from hypersphere.train.networks import Classifier
from tests import official_files as official
from tests import runs
from tests.runs import one_line, quiet, same_run, tiny

pytestmark = pytest.mark.slow

TRAIN = {"Ann": 5, "Bo": 4, "Cy": 4}
TEST = {"Di": 4, "Ed": 4, "Fay": 3, "Gus": 1, "Hal": 1}
SMALL = {"model.name": "cnn3", "model.widths": (4, 4, 4), "model.fc": 6, "data.batch_size": 8, "steps": 6}


def write_pairs(path, different):
    same = ["Di\t1\t2", "Di\t3\t4", "Di\t1\t4", "Ed\t1\t2", "Ed\t3\t4", "Fay\t1\t3"]
    return official.write(path, "\n".join([str(len(same)), *same, *different]) + "\n")


DIFFERENT = ["Di\t1\tEd\t1", "Di\t2\tFay\t1", "Ed\t2\tFay\t2", "Gus\t1\tHal\t1", "Ed\t4\tGus\t1", "Di\t3\tHal\t1"]


@pytest.fixture(scope="module")
def faces(tmp_path_factory):
    """LFW of eight people, each with a colour and some noise, in images of 8×8."""
    folder, g = tmp_path_factory.mktemp("faces") / "lfw64", torch.Generator().manual_seed(0)
    for person, number in (TRAIN | TEST).items():
        (folder / person).mkdir(parents=True)
        colour = torch.randint(60, 190, (1, 1, 3), generator=g)
        for i in range(number):
            pixels = (colour + torch.randint(-50, 50, (8, 8, 3), generator=g)).to(torch.uint8)
            Image.fromarray(pixels.numpy()).save(folder / person / f"{person}_{i + 1:04d}.png")
    for name, people in (("peopleDevTrain.txt", TRAIN), ("peopleDevTest.txt", TEST)):
        text = "".join(f"{person}\t{number}\n" for person, number in people.items())
        official.write(folder / name, f"{len(people)}\n{text}")
    write_pairs(folder / "pairsDevTest.txt", DIFFERENT)
    return folder.parent


@pytest.fixture
def shots(monkeypatch):
    """The digits 0 to 3 for training, 4 and 5 for validation if there is one, and 6 to 9 for testing."""
    monkeypatch.setattr("hypersphere.data._registry.DATASETS", dict(data.DATASETS))
    monkeypatch.setattr("hypersphere.train.openset.WAYS", 2)
    monkeypatch.setattr("hypersphere.train.openset.EPISODES", 20)
    monkeypatch.setattr("hypersphere.train.openset.VALIDATION_EPISODES", 8)
    monkeypatch.setattr(openset.few_shot, "EPOCHS", 10)
    parts = {"train": (0, 4), "val": (4, 6), "test": (6, 10)}

    def loader(root, split, splits=("train", "val", "test")):
        if split not in splits:
            raise ValueError(f"no split {split}")
        whole, (low, high) = data.load("digits", None, "train"), parts[split]
        rows = ((whole.labels >= low) & (whole.labels < high)).nonzero().flatten()
        classes = [str(i) for i in range(low, high)]
        return data.ArrayDataset(whole.inputs[rows], whole.labels[rows] - low, classes)

    data.register("shots", loader)
    data.register("shots_without_val", lambda root, split: loader(root, split, ("train", "test")))


def config(name, **changes):
    return derive(tiny(), SMALL | {"data.name": name} | changes)


def test_faces_are_verified_on_people_that_were_not_trained(faces, tmp_path):
    result = quiet(config("lfw", **{"data.root": str(faces), "out": str(tmp_path / "run")}))
    summary, run = result.summary, load_run(tmp_path / "run")
    assert run.labels == list(TRAIN)
    assert summary.split == "test"
    assert summary.data["test"] == sum(TEST.values())
    metrics = scores(run).to_dict()
    assert {key: metrics[key] for key in ("accuracy", "std", "auc", "eer")} == {
        key: result.to_dict()[key] for key in ("accuracy", "std", "auc", "eer")
    }
    # by hand: image and mirror image, in order
    test, pairs = data.load("lfw", faces, "test"), data.load_pairs("lfw", faces)
    with torch.no_grad():
        images = torch.cat([x for x, _ in data.batches(test, 64, shuffle=False)])
        embedded = torch.cat([run.classifier.embed(images), run.classifier.embed(images.flip(3))], 1)
    first, second = embedded[pairs.locate(test)].unbind(1)
    fold = openset.divide_into_folds(pairs.same, 6)  # as many as there are pairs for
    assert metrics["folds"] == openset.verify_pairs(first, second, pairs.same, fold).accuracies.tolist()
    assert metrics["pairs"] == 12


def test_another_set_of_faces_is_verified_on_the_pairs_of_lfw(faces, tmp_path):
    """As the full-size rows of the papers: trained on CASIA-WebFace, tested by pairs.txt on all of LFW."""
    faces = shutil.copytree(faces, tmp_path / "faces")
    for person in TRAIN:
        shutil.copytree(faces / "lfw64" / person, faces / "CASIA-WebFace-112X96" / f"00{person}")
    write_pairs(faces / "pairs.txt", DIFFERENT)
    result = quiet(config("casia_webface", **{"data.root": str(faces), "out": str(tmp_path / "run")}))
    assert load_run(tmp_path / "run").labels == [f"00{person}" for person in TRAIN]
    assert result.summary.data["test"] == sum((TRAIN | TEST).values())
    assert {"accuracy", "std", "auc", "eer"} <= set(result.to_dict())
    own = open_scores(load_run(tmp_path / "run"))
    given = open_scores(load_run(tmp_path / "run"), pairs=data.read_pairs(faces / "pairs.txt"))
    assert own.to_dict() == given.to_dict()


def test_held_out_faces_choose_the_weights_and_pairs_are_the_test(faces, tmp_path):
    changes = {"data.root": str(faces), "data.validation": 4, "out": str(tmp_path / "run"), "eval_every": 2}
    result = quiet(config("lfw", **changes))
    lines = [line for line in runs.metrics_of(result) if line["split"] == "validation"]
    assert [line["step"] for line in lines] == [2, 4, 6]
    assert all("loss" in line and "auc" not in line for line in lines)
    assert result.summary.split == "test"
    assert "auc" in result.summary.metrics
    assert scores(load_run(tmp_path / "run"), "validation").accuracy == result.summary.validation["accuracy"]


def test_sphereface_first_then_sphereface_plus(faces, tmp_path):
    """The second stage begins with the network and the classes of the first, and its annealing anew (M5)."""
    root = {"data.root": str(faces), "model.name": "sphereface20", "model.widths": (4, 4, 4, 4), "clip": None}
    one = quiet(config("lfw", out=str(tmp_path / "one"), **root | {"loss.name": "a_softmax", "loss.margin": 2}))
    stage = {"loss.name": "sphereface_plus", "loss.margin": 2, "loss.annealing_base": 5, "init_from": str(one.path)}
    still = {"steps": 1, "optimizer.lr": 1e-12}
    two = quiet(config("lfw", out=str(tmp_path / "two"), **root | stage | still))
    first, second = one.model.state_dict(), two.model.state_dict()
    assert first.keys() == second.keys()
    assert (int(first.pop("head.step")), int(second.pop("head.step"))) == (6, 1)
    for name, tensor in first.items():
        torch.testing.assert_close(second[name], tensor, msg=name)
    assert two.summary.accuracy == one.summary.accuracy


@pytest.mark.usefixtures("shots")
@pytest.mark.parametrize(("loss", "classifier"), [("softmax", "linear"), ("am_softmax", "cosine")])
def test_few_shot_episodes_of_new_classes(loss, classifier, tmp_path):
    changes = {"loss.name": loss, "out": str(tmp_path / "run"), "eval_every": 3}
    result = quiet(config("shots", **changes))
    best = result.summary.validation
    assert {line["step"] for line in runs.metrics_of(result) if line["split"] == "validation"} == {3, 6}
    assert best["step"] == result.summary.best_step
    run = load_run(tmp_path / "run")
    metrics = scores(run, "test").to_dict()
    assert metrics["classifier"] == classifier
    assert (metrics["accuracy"], metrics["loss"]) == (result.summary.accuracy, result.summary.loss)
    test = data.load("shots", split="test")
    with torch.no_grad():
        embedded = torch.cat([run.classifier.embed(x) for x, _ in data.batches(test, 8, shuffle=False)])
    drawn = torch.stack([data.episode_indices(test, i, ways=2) for i in range(20)])
    by_hand = openset.few_shot_accuracy(*embedded[drawn].split([5, 15], 2), classifier)
    assert metrics["accuracy"] == by_hand.accuracy
    assert metrics["interval"] == by_hand.interval


@pytest.mark.usefixtures("shots")
def test_without_validation_classes_the_test_is_shown(tmp_path):
    result = quiet(config("shots_without_val", eval_every=3))
    assert {line["step"] for line in runs.metrics_of(result) if line["split"] == "test"} == {3, 6}
    assert result.summary.best_step is None


@pytest.mark.usefixtures("shots")
def test_a_training_stopped_in_an_evaluation_goes_on(tmp_path, monkeypatch):
    """Signals are obeyed between the batches that are embedded."""
    embedded, embed = [], Classifier.embed

    def embed_and_stop(model, inputs):
        embedded.append(len(inputs))
        if len(embedded) == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return embed(model, inputs)

    whole, part = (config("shots", out=str(tmp_path / name), eval_every=3) for name in ("whole", "part"))
    quiet(whole)
    with monkeypatch.context() as patch:
        patch.setattr(Classifier, "embed", embed_and_stop)
        with pytest.raises(KeyboardInterrupt):
            quiet(part)
    assert len(embedded) == 2
    quiet(derive(part, resume=True))
    same_run(tmp_path / "whole", tmp_path / "part")


def test_what_cannot_be_evaluated_is_refused_before_the_training(faces, monkeypatch, shots, tmp_path):
    faces = shutil.copytree(faces, tmp_path / "faces")
    path = faces / "lfw64" / "pairsDevTest.txt"
    text = path.read_text()
    path.unlink()
    assert "pairsDevTest.txt is missing" in one_line(config("lfw", **{"data.root": str(faces)}))
    path.write_text(text.replace("Di\t1\t2", "Ann\t1\t2"))
    wanted = "data.name=lfw: split test cannot be evaluated by pairs: dataset must have the image Ann_0001"
    assert wanted in one_line(config("lfw", **{"data.root": str(faces)}))
    monkeypatch.setattr("hypersphere.train.openset.QUERIES", 500)
    wanted = "split validation cannot be evaluated by 2-way 5-shot episodes: shots + queries must be"
    assert wanted in one_line(config("shots"))
    wanted = "data.name=shots is evaluated by embeddings: the network needs forward_features, or an angular loss"
    own = derive(tiny(), {"data.name": "shots", "model.name": "own_of_test", "model.widths": None})
    assert wanted in one_line(own)


def test_some_classes_in_common_are_refused(monkeypatch):
    monkeypatch.setattr("hypersphere.data._registry.DATASETS", dict(data.DATASETS))
    names = {"train": ["a", "b"], "test": ["b", "c"]}
    data.register("half", lambda root, split: data.ArrayDataset(torch.zeros(4, 1, 8, 8), [0, 1] * 2, names[split]))
    wanted = "train and test must have the same classes, or none in common; only one has a, c"
    assert wanted in one_line(config("half"))


# ------------------------------------------------------------------------------------------------- evaluate


@pytest.fixture(scope="module")
def run_of_faces(faces, tmp_path_factory):
    path = str(tmp_path_factory.mktemp("runs") / "run")
    quiet(config("lfw", **{"data.root": str(faces), "out": path}))
    return path


def printed(capsys, *argv):
    code = main(["evaluate", *argv])
    return code, *capsys.readouterr()


def test_evaluate_pairs(run_of_faces, faces, capsys):
    code, out, err = printed(capsys, run_of_faces)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "cnn3 on lfw, test, step 6"
    assert (lines[1].split(), len(lines[2 : lines.index("")])) == (["fold", "accuracy", "threshold"], 6)
    assert "TAR at FAR 0.001" in out
    assert lines[-1].endswith("over folds, 12 pairs")
    other = write_pairs(faces / "other.txt", ["Di\t1\tAnn\t1", *DIFFERENT[1:]])
    code, out, err = printed(capsys, run_of_faces, "--pairs", str(other), "--json")
    assert code == 0
    assert err == f"hypersphere: 1 of 12 pairs show classes that {run_of_faces} was trained on\n"
    metrics = json.loads(out)
    assert (metrics["measure"], metrics["pairs"], set(metrics["tar"])) == ("pairs", 12, {"0.001", "0.01", "0.1"})
    assert (metrics["roc"]["far"][-1], metrics["roc"]["tar"][-1], metrics["roc"]["thresholds"][0]) == (1, 1, None)


def test_a_list_of_pairs_for_a_dataset_without_the_split_all(run_of_faces, faces, capsys, monkeypatch):
    """A user's own set: its images are those of the split that is evaluated."""
    load = scoring.datasets.load

    def without_all(name, root=None, split="train", **options):
        if split == "all":
            raise ValueError("split must be one of train, test")
        return load(name, root, split, **options)

    own = printed(capsys, run_of_faces, "--json")
    monkeypatch.setattr(scoring.datasets, "load", without_all)
    assert printed(capsys, run_of_faces, "--pairs", str(faces / "lfw64" / "pairsDevTest.txt"), "--json") == own


def test_evaluate_identification(run_of_faces, capsys):
    code, out, _ = printed(capsys, run_of_faces, "--identify", "--json")
    metrics = json.loads(out)
    assert (code, metrics["probes"], metrics["gallery"], metrics["distractors"]) == (0, 3 + 3 + 2, 3, 2)
    assert set(metrics["rates"]) == {"1", "5", "10"}
    assert metrics["rates"]["5"] == 1.0  # there are no more than five
    assert "rank 1" in printed(capsys, run_of_faces, "--distractors", "0")[1]


def test_evaluate_a_threshold(run_of_faces, faces, capsys):
    """Of plain embeddings, as `predict --embeddings` writes them: all pairs of the split, or those of a list."""
    code, out, err = printed(capsys, run_of_faces, "--far", "0.2", "--json")
    tree, run = json.loads(out), load_run(run_of_faces)
    test = data.load("lfw", faces, "test")
    embedded = run.embed(test.paths)
    wanted = openset.threshold_of_embeddings(0.2, embedded, test.labels)
    assert (code, err, tree["measure"]) == (0, "", "threshold")
    assert tree["threshold"] == pytest.approx(wanted.threshold, abs=1e-4)
    assert (tree["far"], tree["same_pairs"], tree["different_pairs"]) == (wanted.far, 6 + 6 + 3, 78 - 15)
    out = printed(capsys, run_of_faces, "--far", "0.2")[1]
    assert out.splitlines()[0] == "cnn3 on lfw, test, step 6"
    assert "63 different pairs of 5 identities" in out
    more = [f"Di\t{i}\tEd\t{j}" for i in (1, 2, 3) for j in (1, 2, 3)]
    other = official.write(faces / "o.txt", "\n".join(["9", "Di\t1\t2", *["Ed\t1\t2"] * 8, *more]) + "\n")
    code, out, err = printed(capsys, run_of_faces, "--far", "0.9", "--pairs", str(other))
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "far=0.9 needs 12 different pairs or more, so that 10 false accepts are expected, got 9: too few" in err
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hypersphere.openset.threshold.LEAST", 1)
        code, out, err = printed(capsys, run_of_faces, "--far", "0.5", "--pairs", str(other), "--json")
    tree = json.loads(out)
    assert (tree["same_pairs"], tree["different_pairs"], tree["identities"], tree["far"] <= 0.5) == (9, 9, 2, True)


def test_a_threshold_of_trained_classes_says_so(tmp_path, capsys):
    quiet(tiny(out=str(tmp_path / "run"), steps=1))
    code, out, err = printed(capsys, str(tmp_path / "run"), "--far", "0.01")
    assert (code, err.count("\n")) == (0, 1)
    assert "was trained on the classes of the split test: others will be accepted more often" in err
    assert "of 10 identities" in out


def test_evaluate_episodes(run_of_faces, capsys, monkeypatch):
    monkeypatch.setattr(openset.few_shot, "EPOCHS", 10)
    argv = ["--split", "train", "--episodes", "3", "--ways", "2", "--shots", "1", "--queries", "3", "--json"]
    code, out, _ = printed(capsys, run_of_faces, *argv, "--classifier", "cosine")
    metrics = json.loads(out)
    keys = ("split", "episodes", "ways", "shots", "queries", "classifier")
    assert (code, *(metrics[key] for key in keys)) == (0, "train", 3, 2, 1, 3, "cosine")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--pairs", "nowhere.txt"], "nowhere.txt must be a file"),
        (["--pairs", "few.txt"], "the list must have two same and two different pairs or more, got 1 and 1"),
        (["--identify", "--episodes", "5"], "one measure at a time, got flags of episodes and identification"),
        (
            ["--far", "0.01"],
            "far=0.01 needs 1,000 different pairs or more, so that 10 false accepts are expected, got 63",
        ),
        (["--far", "1"], "argument --far: must be above 0 and below 1, got '1'"),
        (["--far", "0.1", "--identify"], "one measure at a time, got flags of threshold and identification"),
        (["--distractors", "3"], "distractors must be <= 2, the classes with a single sample, got 3"),
        (["--episodes", "5"], "shots + queries must be <= the samples of every class, got 5 + 15, but class 0 has 4"),
        (["--episodes", "1"], "argument --episodes: must be an integer from 2 to 1,000,000, got '1'"),
        (["--classifier", "cosin"], "unknown --classifier 'cosin', did you mean 'cosine'? (one of linear, cosine)"),
    ],
)
def test_evaluate_bad_input(run_of_faces, capsys, argv, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "few.txt").write_text("1\nAnn\t1\t2\nAnn\t1\tDi\t1\n")
    code, out, err = printed(capsys, run_of_faces, *argv)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message.split(" (one")[0] in err


def test_a_graph_has_no_separate_samples(capsys, tmp_path, monkeypatch):
    monkeypatch.setitem(planetoid.GRAPHS, "cora", planetoid.GraphSpec(540, 6, ("a", "b", "c")))
    official.write_planetoid(tmp_path, official.planetoid_files())
    changes = {"model.name": "gcn", "data.name": "cora", "data.root": str(tmp_path), "data.validation": None}
    quiet(tiny(**changes, out=str(tmp_path / "run"), steps=1))
    code, _, err = printed(capsys, str(tmp_path / "run"), "--identify")
    assert (code, err.count("\n")) == (2, 1)
    assert "needs separate samples, and cora is a graph" in err


def test_pairs_need_image_files(capsys, tmp_path, faces):
    quiet(tiny(out=str(tmp_path / "digits"), steps=1))
    code, _, err = printed(capsys, str(tmp_path / "digits"), "--pairs", str(faces / "lfw64" / "pairsDevTest.txt"))
    assert (code, err) == (2, "hypersphere evaluate: pairs name image files, and this dataset has none\n")
