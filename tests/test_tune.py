"""`hypersphere tune`: the space, successive halving, resuming, and that the test split is never seen."""

import itertools
import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hypersphere import data, recipes
from hypersphere.cli import main
from hypersphere.data._registry import LOADERS
from hypersphere.train import load_file
from hypersphere.train.config import Config, apply, to_json
from hypersphere.tune import worker
from hypersphere.tune.search import Trial, best, halve, parts
from hypersphere.tune.space import default_space, points, read_space
from tests.runs import few_digits, tiny, workers_in_this_process


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    monkeypatch.setattr("hypersphere.data._registry.LOADERS", dict(LOADERS))


# The space


def drawn(*texts, seed=0, trials=None):
    return points(read_space(Config(), texts), seed, trials)


def test_a_grid_is_taken_whole_in_an_order_of_its_seed():
    texts = "model.similarity=cosine,linear,sigmoid(0.3)", "model.widths=[4,4,4],[8,8,16]"
    whole = drawn(*texts)
    assert len(whole) == len({tuple(point.values()) for point in whole}) == 6
    assert {point["model.widths"] for point in whole} == {"[4,4,4]", "[8,8,16]"}
    assert apply(Config(), whole[0]).model.widths in ((4, 4, 4), (8, 8, 16))
    assert drawn(*texts) == whole
    assert drawn(*texts, seed=1) != whole
    assert drawn(*texts, trials=4) == whole[:4]
    assert drawn(*texts, trials=100) == whole


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("lists", [[], ["model.similarity=cosine,linear"], ["data.batch_size=1,2,3,4", "model.fc=8,9"]])
def test_a_single_range_has_no_gaps(lists, seed):
    """Golden steps: the gaps of 16 points are at most 1.62 / 13 of the range."""
    some = drawn(*lists, "optimizer.lr=0.001..1", seed=seed, trials=16 * max(1, 2 ** (3 * len(lists) // 2)))
    of_first = [point for point in some if all(point[key] == some[0][key] for key in point if key != "optimizer.lr")]
    places = sorted(math.log10(float(point["optimizer.lr"])) / 3 + 1 for point in of_first)
    assert len(places) == 16
    assert max(b - a for a, b in itertools.pairwise([places[-1] - 1, *places])) < 0.13
    first = sorted(math.log10(float(point["optimizer.lr"])) / 3 + 1 for point in some[:8])
    assert max(b - a for a, b in itertools.pairwise([first[-1] - 1, *first])) < 0.4


def test_ranges_are_filled_evenly_and_more_trials_extend_fewer():
    texts = "model.similarity=cosine,linear,sigmoid(0.1..1)", "optimizer.lr=0.01..1"
    some = drawn(*texts, trials=30)
    assert drawn(*texts, trials=12) == some[:12]
    assert len(drawn(*texts)) == 16
    assert drawn(*texts, seed=1, trials=30) != some
    for start in ("cosine", "linear", "sigmoid"):
        of = [point for point in some if point["model.similarity"].startswith(start)]
        places = sorted(math.log10(float(point["optimizer.lr"])) / 2 + 1 for point in of)
        assert len(of) == 10
        assert 0 <= places[0] <= places[-1] <= 1
        assert max(b - a for a, b in zip([0, *places], [*places, 1], strict=True)) < 0.3  # chance: 0.29 on average
    ks = {point["model.similarity"] for point in some if point["model.similarity"].startswith("sigmoid(")}
    assert len(ks) == 10
    assert all(0.1 <= float(k[8:-1]) <= 1 for k in ks)


def test_ranges_of_whole_numbers_and_beside_a_list():
    sizes = [int(point["data.batch_size"]) for point in drawn("data.batch_size=2..5")]
    assert sorted(sizes) == [2, 3, 4, 5]  # no point twice, and no more than there are
    decays = [float(point["optimizer.weight_decay"]) for point in drawn("optimizer.weight_decay=0,1e-5..1e-3")]
    assert decays.count(0) == 1
    assert all(1e-5 <= decay <= 1e-3 for decay in decays if decay)


def test_what_is_tried_where_nothing_is_given():
    assert default_space(recipes.load("plain")) == ["optimizer.lr=0.01..1"]
    similarity = "model.similarity=cosine,linear,sigmoid(0.1..1)"
    assert default_space(recipes.load("spherenet")) == [similarity, "optimizer.lr=0.01..1"]
    assert default_space(recipes.load("mhe"))[0] == "energy.hidden_weight=1..100"
    output = apply(recipes.load("mhe"), {"energy.hidden_weight": "0", "energy.output_weight": "2"})
    assert default_space(output)[0] == "energy.output_weight=0.2..20"
    assert default_space(recipes.load("sphereface_plus"))[0] == "loss.energy_weight=0.1..10"
    assert default_space(apply(Config(), {"loss.name": "s_softmax"}))[0] == "loss.scale=10..70"
    for name in ("spherenet", "mhe", "sphereface_plus"):
        base = recipes.load(name)
        assert all(apply(base, point) for point in points(read_space(base, default_space(base)), 0))


MANY = ("optimizer.lr", "optimizer.weight_decay", "clip", "accumulate")


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        ("--try model.similarity=cosine", "--try gives one point only: nothing to choose"),
        ("--try optimizer.lrr=1,2", "unknown setting 'optimizer.lrr', did you mean 'optimizer.lr'?"),
        ("--try optimizer.lr=", "--try needs KEY=A,B,... or KEY=LOW..HIGH, got 'optimizer.lr='"),
        ("--try optimizer.lr", "--try needs KEY=A,B,... or KEY=LOW..HIGH, got 'optimizer.lr'"),
        ("--try optimizer.lr=0.3..0.1", "--try optimizer.lr=0.3..0.1: LOW must be below HIGH"),
        ("--try optimizer.weight_decay=0..1", "--try optimizer.weight_decay=0..1: LOW must be above 0, since"),
        ("--try optimizer.lr=-1..1", "optimizer.lr must be a number > 0 or auto, got -1.0"),
        ("--try model.similarity=a..b", "--try model.similarity=a..b: a range needs two numbers, LOW..HIGH"),
        ("--try model.similarity=0.1..1", "unknown model.similarity '0.1'"),
        ("--try model.similarity=sigmo(0.1..1)", "unknown model.similarity 'sigmo(0.1)', did you mean 'sigmoid'?"),
        ("--try model.similarity=cosine,,linear", "--try model.similarity has an empty value"),
        ("--try optimizer.lr=0.1,0.1", "--try optimizer.lr has a value twice: 0.1,0.1"),
        ("--try optimizer.lr=1,2 --try optimizer.lr=3", "--try optimizer.lr is given twice"),
        ("--try energy=on,off --try energy.s=1,2", "--try energy.s: give energy.s or energy, not both"),
        ("--try seed=1,2", "--try seed: the best seed says nothing about the next training"),
        ("--try epochs=1,2", "--try epochs: a longer training is better at a price of its own"),
        ("--try data.validation=1,2", "--try data.validation: it would change what accuracies are measured on"),
        ("--try loss.scale=1,2", "scale=1: loss.scale needs loss.name to be one of ga_softmax"),
        ("--data.validation 0.1 --folds 3", "give --folds or data.validation, not both"),
        ("--data.fold 1/3", "tune sets data.fold itself: use --folds"),
        ("--model.name gcn --data.name cora --folds 3", "--folds: cora has a validation split of its own"),
        ("--model.name generator.mhe", "tune needs validation accuracy, and generator.mhe has none"),
        ("--patience 3 --data.validation 9", "tune compares trials at equal steps: remove patience"),
        ("--folds 1", "argument --folds: must be an integer from 2 to 1,000, got '1'"),
        ("--trials 1", "argument --trials: must be an integer from 2 to 10,000, got '1'"),
        ("--budget 0", "argument --budget: must be a number of minutes above 0, got '0'"),
        ("--out file --try optimizer.lr=1,2", "out must be a folder, got the file file"),
        ("spherent", "unknown recipe 'spherent', did you mean 'spherenet'?"),
        ("--try optimizer.lr=0.1,0.10", "--try has a point twice: lr=0.1 and lr=0.10"),
        ("--try optimizer.lr=0.1..0.1001 --trials 5", "--try has 1 different points only, to three digits; --trials"),
        (
            " ".join(f"--try {key}={','.join(map(str, range(1, 20)))}" for key in MANY),
            "--try has 130,321 combinations of values; at most 100,000 are possible",
        ),
        ("--out folder --try optimizer.lr=1,2", "folder/best.yaml must be a file, got a folder"),
    ],
)
def test_bad_input_is_one_line(argv, line, capsys, monkeypatch):
    Path("file").touch()
    Path("folder/best.yaml").mkdir(parents=True)
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


# Halving


def test_halving_measures_the_best_third_of_the_rung_before():
    """With a fake objective: trial i ends at accuracy q(i), and is the further from it the fewer its steps."""
    seen = []

    def measure(alive, part):
        seen.append((part, sorted(alive)))
        return {i: ((i * 7 % 12) / 12 * (1 - 0.1 * math.log(part)), 0.0) for i in alive}

    assert halve(range(12), parts(12), measure)
    order = sorted(range(12), key=lambda i: -(i * 7 % 12))
    assert seen == [(9, [*range(12)]), (3, sorted(order[:4])), (1, sorted(order[:2]))]


def test_a_trial_that_only_looked_good_early_does_not_win():
    late = {1: 0.9, 3: 0.4, 9: 0.3}
    early = {1: 0.5, 3: 0.5, 9: 0.5}
    scores = {}

    def measure(alive, part):
        scores[part] = {name: (curve[part], 0.0) for name, curve in alive_curves(alive)}
        return scores[part]

    def alive_curves(alive):
        return [(name, {"late": late, "early": early}.get(name, {1: 0, 3: 0, 9: 0})) for name in alive]

    names = ["late", "early", *"abcdefgh"]
    assert halve(names, parts(len(names)), measure)
    assert best(scores[1], 1) == ["late"]
    assert [len(scores[part]) for part in (9, 3, 1)] == [10, 4, 2]


def test_ties_go_to_the_lower_loss_and_failures_nowhere():
    assert best({"a": (0.5, -2.0), "b": (0.5, -1.0), "c": None}, 3) == ["b", "a"]
    seen = []

    def measure(alive, part):
        seen.append([*alive])
        return dict.fromkeys(alive)

    assert halve("abc", parts(3), measure)
    assert seen == [["a", "b", "c"], []]
    assert not halve("abc", parts(3), lambda alive, part: None)


@pytest.mark.parametrize(
    ("trials", "rungs", "expected"), [(2, 3, [1]), (3, 3, [3, 1]), (9, 3, [9, 3, 1]), (99, 2, [3, 1])]
)
def test_rungs(trials, rungs, expected):
    assert parts(trials, rungs) == expected


# The command


@pytest.fixture
def trained(monkeypatch):
    """Run workers in this process; (settings of the run, part) of each."""
    seen = []

    def run(request):
        seen.append((request["config"]["optimizer"]["lr"], request["config"]["data"]["fold"], request["part"]))
        return worker.run(request)

    workers_in_this_process(monkeypatch, run)
    return seen


SPACE = ["--try", "optimizer.lr=0.001,0.02,0.3,1e25"]


def tune(*argv, code=0, capsys=None):
    Path("base.json").write_text(to_json(tiny()))
    assert main(["tune", "--config", "base.json", "--folds", "2", *SPACE, *argv]) == code
    return json.loads(capsys.readouterr().out) if capsys is not None else None


def rows(found):
    return [{key: value for key, value in row.items() if key != "seconds"} for row in found["trials"]]


def test_the_whole_command(trained, capsys):
    found = tune("--json", "--quiet", capsys=capsys)
    first, second, _, failed = found["trials"]
    assert (found["finished"], found["config"]) == (True, "runs/tune/mlp-few_digits/best.yaml")
    assert found["best"] == first["settings"]
    assert [row["step"] for row in found["trials"]] == [12, 12, 4, None]
    assert first["accuracy"] == pytest.approx(sum(first["folds"]) / 2)
    assert first["deviation"] == pytest.approx(abs(first["folds"][0] - first["folds"][1]) / math.sqrt(2))
    assert first["accuracy"] >= second["accuracy"]
    assert failed["settings"] == {"optimizer.lr": "1e25"}
    assert "is nan" in failed["failed"] or "not finite" in failed["failed"] or "is inf" in failed["failed"]
    assert len(trained) == 4 * 2 + 2 * 2
    assert {fold for _, fold, _ in trained} == {"1/2", "2/2"}

    assert rows(tune("--json", "--quiet", capsys=capsys)) == rows(found)
    assert len(trained) == 12  # nothing is repeated
    assert rows(tune("--json", "--quiet", "--out=elsewhere", capsys=capsys)) == rows(found)  # and the same comes out
    assert len(trained) == 24
    tune("--rungs", "1")
    out, err = capsys.readouterr()
    assert len(trained) == 24 + 4  # the two trials that did not come to the last rung
    assert out.splitlines()[0].split() == ["rank", "lr", "validation", "accuracy", "steps", "seconds"]
    assert out.splitlines()[1].split()[:2] == ["1", first["settings"]["optimizer.lr"]]
    assert "next: hypersphere train --config runs/tune/mlp-few_digits/best.yaml" in out
    assert err.startswith("rung 1 of 1: 4 trials to all steps, 2 folds each\n")

    config = load_file(found["config"])
    assert config.optimizer.lr == float(found["best"]["optimizer.lr"])
    assert (config.out, config.resume, config.data.fold, config.steps) == (None, False, None, 12)
    assert main(["train", "--config", found["config"], "--json", "--out=final"]) == 0
    assert json.loads(capsys.readouterr().out)["data"]["train"] == 163  # of all training data


def test_a_trial_that_breaks_in_its_last_step_is_last(trained, capsys):
    """No training step looks at its weights; the evaluation does."""
    found = tune("--json", "--quiet", "--steps=1", "--clip=null", "--rungs=1", capsys=capsys)
    assert found["finished"]
    assert [row["accuracy"] is None for row in found["trials"]] == [False, False, False, True]
    assert "the validation loss is" in found["trials"][-1]["failed"]


def test_ranges_from_the_smallest_numbers():
    drawn = points(read_space(tiny(), ["optimizer.lr=1e-300..1"]), 0, 5)
    assert len({float(point["optimizer.lr"]) for point in drawn}) == 5


def test_a_changed_recipe_and_other_data_are_other_trials():
    kinds = [Trial.of({}, tiny()), Trial.of({}, tiny(), "text"), Trial.of({}, tiny(), "other text")]
    kinds.append(Trial.of({}, tiny(**{"data.root": "elsewhere"})))
    assert len({each.key for each in kinds}) == 4


def test_more_trials_after_few(trained, capsys):
    """Two trials have one rung, four have two: those that were trained to the end begin anew at the first."""
    few = tune("--json", "--quiet", "--trials=2", capsys=capsys)
    assert {part for *_, part in trained} == {1}
    more = tune("--json", "--quiet", capsys=capsys)
    assert more["finished"]
    assert len([part for *_, part in trained[4:] if part == 3]) == 4 * 2
    ended = {row["settings"]["optimizer.lr"]: row["folds"] for row in few["trials"]}
    both = [row for row in more["trials"] if row["step"] == 12 and row["settings"]["optimizer.lr"] in ended]
    assert all(row["folds"] == ended[row["settings"]["optimizer.lr"]] for row in both)


def test_it_goes_on_after_an_interruption(trained, monkeypatch, capsys):
    whole = tune("--json", "--quiet", "--out=whole", capsys=capsys)
    del trained[:]
    working = worker.run
    for stop in (3, 7):

        def run(request, stop=stop):
            if len(trained) == stop:
                trained.pop()
                raise KeyboardInterrupt
            return working(request)

        monkeypatch.setattr(worker, "run", run)
        tune("--out=cut", code=130)
        assert capsys.readouterr().err.endswith("hypersphere tune: stopped; repeat the command to go on\n")
    monkeypatch.setattr(worker, "run", working)
    assert rows(tune("--json", "--quiet", "--out=cut", capsys=capsys)) == rows(whole)
    assert len(trained) == len(set(trained)) == 12


def test_a_budget_stops_it_and_shows_what_there_is(trained, capsys):
    found = tune("--json", "--quiet", "--budget=1e-9", capsys=capsys)
    assert not found["finished"]
    assert (found["best"], found["config"]) == (None, None)
    assert len(trained) == 1
    while not found["finished"]:
        found = tune("--json", "--quiet", "--budget=1e-9", capsys=capsys)
    assert len(trained) == len(set(trained)) == 12
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
    assert len(trained) == (2 * 3 + 2 if held_out == ["--folds=2"] else 3 + 1)


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


def test_help_needs_no_torch():
    code = "import sys; from hypersphere.cli import main; main(['tune', '--help']); assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0
