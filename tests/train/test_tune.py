"""`hypersphere tune`: the space, resuming, and that the test split is never seen."""

import json
import math
import os
import re
from pathlib import Path

import pytest

from hypersphere import data
from hypersphere.cli import main
from hypersphere.cli import tune as command
from hypersphere.data._registry import DATASETS
from hypersphere.train import engine, load_file, recipes
from hypersphere.train.config import Config, apply, to_json, to_tree
from hypersphere.train.storage.folder import lock
from hypersphere.train.tune import Search, default_space, read_space
from tests.runs import few_digits, tiny, workers_in_this_process

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    monkeypatch.setattr("hypersphere.data._registry.DATASETS", dict(DATASETS))


def test_what_is_tried_where_nothing_is_given():
    assert default_space(recipes.load("plain")) == ["optimizer.lr=0.01..1"]
    similarity = "model.similarity=cosine,linear,sigmoid(0.1..1)"
    assert default_space(recipes.load("spherenet")) == [similarity, "optimizer.lr=0.01..1"]
    assert default_space(recipes.load("mhe"))[0] == "energy.hidden_weight=1..100"
    output = apply(recipes.load("mhe"), {"energy.hidden_weight": "0", "energy.output_weight": "2"})
    assert default_space(output)[0] == "energy.output_weight=0.2..20"
    assert default_space(recipes.load("sphereface_plus"))[0] == "loss.energy_weight=0.1..10"
    assert default_space(apply(Config(), {"loss.name": "s_softmax"}))[0] == "loss.scale=10..70"
    photos = apply(Config(), {"data.name": "cifar10"})
    assert default_space(photos) == ["optimizer.name=adamw", "optimizer.lr=0.0003..0.03"]
    for name in ("spherenet", "mhe", "sphereface_plus"):
        base = recipes.load(name)
        assert read_space(base, default_space(base))


MANY = ("optimizer.lr", "optimizer.weight_decay", "clip", "accumulate")


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        ("--try model.similarity=cosine", "--try gives one point only: nothing to choose"),
        (
            "--try optimizer.lrr=1,2",
            "--try optimizer.lrr=1: unknown setting 'optimizer.lrr', did you mean 'opti",
        ),
        (
            "--try optimizer.lr=0.3..0.1",
            "--try optimizer.lr=0.3..0.1: a range needs two numbers, LOW..HIGH",
        ),
        ("--try model.similarity=0.1..1", "--try model.similarity=0.1: unknown model.similarity '0.1'"),
        ("--try optimizer.lr=1,2 --try optimizer.lr=3", "--try optimizer.lr is given twice"),
        ("--try energy=on,off --try energy.s=1,2", "--try energy.s: give energy.s or energy, not both"),
        ("--try seed=1,2", "--try seed: it cannot be chosen by validation accuracy"),
        ("--data.validation 0.1 --folds 3", "give --folds or data.validation, not both"),
        ("--data.fold 1/3", "tune sets data.fold itself: use --folds"),
        ("--model.name gcn --data.name cora --folds 3", "--folds: cora has a validation split of its own"),
        ("--model.name generator.mhe", "tune needs validation accuracy, and generator.mhe has none"),
        ("--patience 3 --data.validation 9", "tune compares trials at equal steps: remove patience"),
        ("--trials 1", "argument --trials: must be an integer from 2 to 10,000, got '1'"),
        (
            " ".join(f"--try {key}={','.join(map(str, range(1, 20)))}" for key in MANY),
            "--try has 130,321 combinations of values; at most 10,000 are possible",
        ),
    ],
)
def test_bad_input_is_one_line(argv, line, capsys, monkeypatch):
    workers_in_this_process(monkeypatch, lambda request: pytest.fail("it trains"))
    assert main(["tune", *argv.split()]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"hypersphere tune: {line}")
    assert err.count("\n") == 1
    assert not Path("runs").exists()


def test_not_under_torchrun(capsys, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main(["tune"]) == 2
    assert "run it without torchrun, with --jobs" in capsys.readouterr().err


# The command


@pytest.fixture
def trained(monkeypatch):
    """Run workers in this process; (learning rate, fold, part) of each training."""
    seen, fit_part = [], engine.fit_part

    def recorded(config, part):
        seen.append((config.optimizer.lr, config.data.fold, part))
        return fit_part(config, part)

    monkeypatch.setattr(engine, "fit_part", recorded)
    workers_in_this_process(monkeypatch, command.work)
    return seen


SPACE = ["--try", "optimizer.lr=0.001,0.02,0.3,1e25"]


def tune(*argv, code=0, capsys=None):
    Path("base.json").write_text(to_json(tiny()))
    assert main(["tune", "--config", "base.json", "--folds", "2", *SPACE, *argv]) == code
    return json.loads(capsys.readouterr().out) if capsys is not None else None


def rows(found):
    return [{**row, "seconds": None} for row in found["trials"]]


def test_the_whole_command(trained, capsys):
    found = tune("--json", "--quiet", capsys=capsys)
    *_, failed = found["trials"]
    first, second = found["trials"][:2]
    assert (found["finished"], found["config"]) == (True, "runs/tune/mlp-few_digits/best.yaml")
    assert found["best"] == first["settings"]
    assert len(found["trials"]) == 4
    assert first["step"] == first["total"] == 12
    assert first["accuracy"] == pytest.approx(sum(first["folds"]) / 2)
    assert first["deviation"] == pytest.approx(abs(first["folds"][0] - first["folds"][1]) / math.sqrt(2))
    assert (first["step"], first["accuracy"]) >= (second["step"], second["accuracy"])
    assert failed["settings"] == {"optimizer.lr": "1e25"}
    assert "is nan" in failed["failed"] or "not finite" in failed["failed"] or "is inf" in failed["failed"]
    assert len(trained) == len(set(trained))
    assert {fold for _, fold, _ in trained} == {"1/2", "2/2"}
    assert {part for *_, part in trained} == {9, 3, 1}

    runs = len(trained)
    assert rows(tune("--json", "--quiet", capsys=capsys)) == rows(found)
    assert len(trained) == runs  # nothing is repeated
    assert rows(tune("--json", "--quiet", "--out=elsewhere", capsys=capsys)) == rows(found)  # and the same comes out
    assert len(trained) == 2 * runs
    tune("--rounds", "1")
    out, err = capsys.readouterr()
    assert [part for *_, part in trained[2 * runs :]] == [1] * 7  # every trial to the end, unless its first fold failed
    assert out.splitlines()[0].split() == ["rank", "optimizer.lr", "validation", "accuracy", "steps", "seconds"]
    assert "next: hypersphere train --config runs/tune/mlp-few_digits/best.yaml" in out
    assert err.count("at step 12 of 12\n") == 3

    config = load_file(found["config"])
    assert (config.out, config.resume, config.data.fold, config.steps) == (None, False, None, 12)
    assert main(["train", "--config", found["config"], "--json", "--out=final"]) == 0
    assert json.loads(capsys.readouterr().out)["data"]["train"] == 163  # of all training data


@pytest.fixture
def played(monkeypatch):
    """Train nothing: a trial's accuracy is its learning rate; (config, part) of each call."""
    calls = []

    def fit_part(config, part):
        calls.append((config, part))
        lr = config.optimizer.lr
        return engine.Part(0.5 if lr == "auto" else lr, loss=0.0, step=9 // part, total=9, seconds=0.0)

    monkeypatch.setattr(engine, "fit_part", fit_part)
    workers_in_this_process(monkeypatch, command.work)
    return calls


def search(capsys, *argv):
    assert main(["tune", "--data.validation=9", "--json", "--quiet", *argv]) == 0
    return json.loads(capsys.readouterr().out)


def test_only_the_best_third_goes_on(played, capsys):
    """With one process a trial goes on if it is in the best third so far."""
    found = search(capsys, "--try", f"optimizer.lr={','.join(f'0.{i}' for i in range(1, 10))}")
    assert found["best"] == {"optimizer.lr": "0.9"}
    trained = [(config.optimizer.lr, part) for config, part in played]
    order = list(dict.fromkeys(lr for lr, _ in trained))
    for part in (9, 3):
        reached = [lr for lr in order if (lr, part) in trained]
        for i, lr in enumerate(reached):
            so_far = sorted(reached[: i + 1], reverse=True)
            assert ((lr, part // 3) in trained) == (lr in so_far[: max(1, len(so_far) // 3)])


def test_a_trial_that_breaks_in_its_last_step_is_last(trained, capsys):
    """No training step looks at its weights; the evaluation does."""
    found = tune("--json", "--quiet", "--steps=1", "--clip=null", "--rounds=1", capsys=capsys)
    assert found["finished"]
    assert [row["accuracy"] is None for row in found["trials"]] == [False, False, False, True]
    assert "the validation loss is" in found["trials"][-1]["failed"]


def test_ranges_are_drawn_within_their_ends(played, capsys):
    """Whole numbers for a setting that is one, three digits for others; a larger number of trials adds to a smaller."""
    argv = ["--try", "model.similarity=cosine,sigmoid(0.1..1)", "--try", "data.batch_size=2..64", "--rounds=1"]
    few = search(capsys, *argv, "--trials=6")["trials"]
    many = search(capsys, *argv, "--trials=14")["trials"]
    assert len(played) == len(many) == 14
    assert all(row["settings"] in [other["settings"] for other in many] for row in few)
    assert all(type(config.data.batch_size) is int and 2 <= config.data.batch_size <= 64 for config, _ in played)
    similarities = [config.model.similarity for config, _ in played]
    ks = [float(text[8:-1]) for text in similarities if text != "cosine"]
    assert len(set(ks)) == len(ks) > 1
    assert all(0.1 <= k <= 1 for k in ks)
    assert "cosine" in similarities


def test_a_point_that_is_drawn_again_is_not_trained_again(played, capsys):
    """A range beside a plain value: the plain value alone is a point, which the sampler draws several times."""
    found = search(capsys, "--try", "model.similarity=cosine,sigmoid(0.1..1)", "--trials=12")
    assert found["finished"]
    assert [row["settings"]["model.similarity"] for row in found["trials"]].count("cosine") == 1
    assert [(config.model.similarity, part) for config, part in played].count(("cosine", 9)) == 1


def test_several_processes_take_different_trials(played, capsys):
    found = search(capsys, "--try", "optimizer.lr=0.1,0.2,0.3", "--jobs=2", "--rounds=1")
    assert sorted(row["settings"]["optimizer.lr"] for row in found["trials"]) == ["0.1", "0.2", "0.3"]
    assert len(played) == 3


def test_a_changed_recipe_and_other_data_are_another_study(tmp_path):
    pytest.importorskip("optuna")
    file = tmp_path / "mine.py"
    names = set()
    for text, root in (("a", None), ("b", None), ("b", "elsewhere")):
        file.write_text(text)
        tree = to_tree(tiny(**{"data.root": root}))
        names.add(Search("found", tree, ["optimizer.lr=0.1,0.2"], [None], 1, 2, str(file)).study().study_name)
    assert len(names) == 3


def test_it_goes_on_after_an_interruption(trained, monkeypatch, capsys):
    whole = tune("--json", "--quiet", "--out=whole", capsys=capsys)
    runs = len(trained)
    del trained[:]
    recorded = engine.fit_part
    for stop in (3, 7):

        def interrupted(config, part, stop=stop):
            if len(trained) == stop:
                raise KeyboardInterrupt
            return recorded(config, part)

        monkeypatch.setattr(engine, "fit_part", interrupted)
        tune("--out=cut", code=130)
        assert capsys.readouterr().err.endswith("hypersphere tune: stopped; run the command again to continue\n")
    monkeypatch.setattr(engine, "fit_part", recorded)
    cut = tune("--json", "--quiet", "--out=cut", capsys=capsys)
    assert rows(cut) == rows(whole)
    assert len(trained) <= runs + 2  # a fold that had ended is asked for its figures again


def test_one_command_at_a_time(trained, capsys):
    with lock(Path("runs/tune/mlp-few_digits")):
        tune("--quiet", code=2)
    assert capsys.readouterr().err.endswith("runs/tune/mlp-few_digits: another process is training there\n")
    assert not trained


def test_a_budget_stops_it_and_shows_what_there_is(trained, capsys):
    found = tune("--json", "--quiet", "--budget=1e-9", capsys=capsys)
    assert not found["finished"]
    assert (found["best"], found["config"]) == (None, None)
    assert len(found["trials"]) == 1
    while not found["finished"]:
        found = tune("--json", "--quiet", "--budget=1e-9", capsys=capsys)
    assert len(trained) == len(set(trained))
    assert len(found["trials"]) == 4
    assert found["best"] is not None


@pytest.mark.parametrize("held_out", [["--folds=2"], ["--data.validation=0.3"]])
def test_the_test_split_is_never_loaded(held_out, trained, capsys):
    asked = []

    def watched(root, split):
        asked.append(split)
        return few_digits(root, split)

    data.register("watched", watched)
    Path("base.json").write_text(to_json(tiny(**{"data.name": "watched"})))
    assert main(["tune", "--config=base.json", "--try", "optimizer.lr=0.01,0.1,0.2", "--quiet", *held_out]) == 0
    assert asked == ["train"] * len(trained)
    assert len(trained) >= 3 * len(held_out)


def test_your_own_recipe(trained, capsys):
    Path("mine.py").write_text(
        "from hypersphere import data\nfrom tests.runs import few_digits, tiny\n"
        "data.register('mine', few_digits)\nprint('I speak')\n"
        "def recipe(): return tiny(**{'data.name': 'mine'})\n"
    )
    argv = ["tune", "mine.py", "--folds=2", "--seed=3", "--try", "optimizer.lr=0.1,0.2", "--quiet"]
    assert main(argv) == 0
    out = capsys.readouterr().out
    assert "I speak" not in out
    best = load_file("runs/tune/mine/best.yaml").optimizer.lr
    assert out.endswith(f"next: hypersphere train mine.py --seed=3 --optimizer.lr={best:g}\n")


def test_a_trial_has_a_process_of_its_own(capsys):
    """One that reads the recipe's file and gives back why it cannot train: soon, before torch's compiler is loaded."""
    Path("mine.py").write_text(
        "import os\nfrom hypersphere import data\nfrom hypersphere.train import Config, Data\n"
        "def mine(root, split): raise ValueError(f'no {split} for {os.getpid()} of {os.getppid()}')\n"
        "data.register('mine', mine)\n"
        "def recipe(): return Config(data=Data('mine'))\n"
    )
    assert main(["tune", "mine.py", "--quiet", "--try", "optimizer.lr=0.1,0.2"]) == 2
    assert re.search(rf"no train for \d+ of {os.getpid()}$", capsys.readouterr().err)


def test_all_trials_fail(trained, capsys):
    Path("base.json").write_text(to_json(tiny()))
    assert main(["tune", "--config=base.json", "--folds=2", "--quiet", "--try", "optimizer.lr=1e25,1e26"]) == 2
    assert capsys.readouterr().err.startswith("hypersphere tune: every trial failed, the first with: step ")
