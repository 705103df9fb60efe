"""A training that is stopped and resumed is the training that was never stopped, bit for bit."""

import json
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from hypersphere.models._registry import PRESETS
from hypersphere.train import TrainingError, derive, fit
from hypersphere.train.networks import Classifier
from hypersphere.train.storage import checkpoint
from tests import runs
from tests.runs import at_forward, at_line, lines, same_final, same_run, stopped, tiny

pytestmark = pytest.mark.slow

INT, TERM = signal.SIGINT, signal.SIGTERM


@dataclass(frozen=True)
class Case:
    """A training and the forward pass in the middle of which the signal comes.

    Attributes:
        step: of the checkpoint then left; None: the number of that forward pass.
        workers: when it is resumed; none before.
        training: False: the forward pass is one of an evaluation.
        proof: of the whole run's result, lines and last checkpoint: that it did what the case is about.
    """

    name: str
    stop: int
    changes: dict
    step: int | None
    signal: int
    workers: int
    training: bool
    proof: Callable | None


def case(name, stop, /, step=None, signal=INT, workers=0, training=True, proof=None, **changes):
    changes = {key.replace("__", "."): value for key, value in changes.items()}
    return Case(name, stop, changes, step, signal, workers, training, proof)


def rate_falls(result, lines, state):
    return len({line["lr"] for line in lines if "lr" in line}) > 1


def best_is_not_last(result, lines, state):
    return result["best_step"] < result["step"]


def stops_early(result, lines, state):
    return result["step"] < 40


def scale_fell(result, lines, state):
    return state["precision"]["scale"] < 65536


def draws_are_counted(result, lines, state):
    return any(state["regularizer"].values())


def rows_have_their_own_steps(result, lines, state):
    return any(len(set(s["step"].tolist())) > 1 for s in state["optimizers"][0]["state"].values() if "step" in s)


def rotations_have_their_own_rate(result, lines, state):
    groups = {group["name"]: group for group in state["optimizers"][0]["param_groups"]}
    rates = [round(groups[name]["lr"], 9) for name in ("orthogonal", "weights")]
    return rates == [0.005, 0.001] and groups["orthogonal"]["iterations"] is None


CNN = {"model__name": "cnn3", "model__widths": (4, 4, 6), "model__fc": 8}
TEXT = {"model__name": "transformer_of_test", "model__widths": None, "data__name": "letters_of_test"}
GRAPH = {"model__name": "gcn", "model__widths": (5,), "data__name": "graph_of_test"}
OWN = {"model__name": "own_of_test", "model__widths": None}
GAN = {"model__name": "generator.mhe", "model__widths": (4, 4, 4, 4), "optimizer__name": "adam", "steps": 8}
MOMENTUM = {"schedule__name": "step", "schedule__milestones": (2,), "schedule__batch_norm": 0.5}
CRITIC = {"norm": "spectral", "loss": "wasserstein", "gradient_penalty": 10.0}
ADAM = {"optimizer__name": "adam", "optimizer__lr": 0.003}
OGD_ADAM = {"rotation__method": "ogd", "optimizer__name": "ogd", "optimizer__rest": "adam"}
OGD_ADAM |= {"optimizer__iterations": None, "optimizer__lr": 0.01, "optimizer__rotation_lr": 0.05}
OGD_ADAM |= {"schedule__name": "step", "schedule__milestones": (4,)}
SAMPLED = {"rotation__sample": 4, "rotation__every": 4}
SAMPLED_CLASSES = {"loss__name": "arcface", "loss__sample": 0.4, "loss__sparse": True, "optimizer__name": "row_sgd"}
SHARED = {"blocks": 2, "share_blocks": True, "neurons": "learned"}
FAST = {"optimizer__lr": 4.0}
LEARNABLE = {"model__similarity": "learnable", "loss__name": "ga_softmax", "loss__similarity": "learnable"}
ONE_K = {"model__similarity": "learnable(0.7)", "model__k_per": "network", "loss__name": "a_softmax"}
ONE_K |= {"loss__bias": True, "loss__annealing_base": 10.0, "loss__annealing_rate": 0.5, "loss__annealing_floor": 0.0}
ANGULAR = {"energy__s": 0.0, "energy__angular": True, "rotation__normalize": True}
WARMUP = {"schedule__name": "cosine", "schedule__warmup": 5, "energy__measure": "comhe_random"}
HELD_OUT = {"data__validation": 30, "eval_every": 2}
BETWEEN = {"checkpoint_every": 3, "keep": 1, "optimizer__lr": 0.5}

CASES = [
    # networks and plain optimizers
    case("mlp sgd", 4, workers=1),
    case("mlp sgd first step", 1, signal=TERM),
    case("cnn3 adam cosine warmup and comhe_random", 7, workers=1, **CNN, **ADAM, **WARMUP),
    case("cnn3 batchnorm accumulate", 11, step=6, **CNN, model__batch_norm=True, accumulate=2),
    case(
        "opt transformer adamw s_softmax",
        8,
        **TEXT,
        optimizer__name="adamw",
        loss__name="s_softmax",
        rotation__method="cayley",
    ),
    case("gcn adam", 7, **GRAPH, **ADAM, optimizer__decay_layers="layers.0"),
    case("own network with dropout and samples one by one", 8, **OWN, workers=2, data__name="slow_digits"),
    case(
        "plateau", 9, schedule__name="plateau", schedule__patience=0, eval_every=2, optimizer__lr=1.0, proof=rate_falls
    ),
    case("augmentation", 8, workers=1, **CNN, data__size=32, data__augment="cifar.mhe", steps=10, data__batch_size=16),
    # angles, losses and energies without a state of their own: several in one run
    case("learnable similarities", 7, **CNN, **LEARNABLE),
    case("one k, a bias and an annealing of its own", 7, **CNN, **ONE_K, model__init="xavier"),
    # what counts its steps or draws
    case("sampled classes", 7, **SAMPLED_CLASSES, clip=0.5, data__batch_size=4, proof=rows_have_their_own_steps),
    case(
        "mhe minibatch and opt regularized",
        7,
        energy__minibatch=3,
        rotation__method="regularized",
        rotation__penalty=0.5,
        proof=draws_are_counted,
    ),
    case("slices of embeddings", 7, step=4, accumulate=2, loss__name="arcface", embedding__measure="sigreg"),
    # rotations
    case("opt exponential, angular energy, s=0, and clip", 8, **ANGULAR, rotation__method="exponential", clip=0.1),
    case("opt ogd exact beside adam", 6, **OGD_ADAM, proof=rotations_have_their_own_rate),
    case("opt shared blocks of learned neurons", 6, **CNN, rotation=SHARED),
    case("cls-opt of a head", 6, rotation__layers="all", loss__name="am_softmax"),
    case("s-opt inside an inner loop", 6, workers=1, **SAMPLED),
    case("s-opt where it draws anew", 8, **SAMPLED, **ADAM),
    case(
        "s-opt plateau of draws",
        10,
        **SAMPLED,
        schedule__name="plateau",
        schedule__patience=0,
        signal=TERM,
        **FAST,
        proof=rate_falls,
    ),
    # validation
    case("validation and patience", 5, **HELD_OUT, patience=2, optimizer__lr=0.5, steps=40, proof=stops_early),
    case("validation and checkpoints between", 9, **HELD_OUT, **BETWEEN, proof=best_is_not_last),
    # precision
    case("float16 with a scale that changes", 5, amp="float16", proof=scale_fell),
    case("accumulate and clip", 17, step=9, accumulate=2, clip=0.5, rotation__method="cayley"),
    # adversarial
    case("gan rotated", 11, step=6, workers=1, **GAN, rotation__method="cayley"),
    case("gan with spectral norm and gradient penalty", 6, step=3, **GAN, gan=CRITIC, energy__half_space=True),
    case(
        "gan with clipped weights, between two steps of the discriminator for one of the generator",
        4,
        step=3,
        **GAN,
        **MOMENTUM,
        gan={"clip_weights": 0.01, "discriminator_steps": 2},
        signal=TERM,
    ),
    # inside an evaluation
    case("inside an evaluation", 2, step=5, training=False),
    case("inside an evaluation on validation", 3, step=4, training=False, **HELD_OUT, data__batch_size=16, workers=2),
]


@pytest.fixture(autouse=True)
def _small_gan(monkeypatch):
    for name in ("generator.mhe", "discriminator.mhe"):
        monkeypatch.setitem(PRESETS, name, PRESETS[name])
    runs.small_gan()


@pytest.fixture(scope="module")
def whole_and_parts(tmp_path_factory):
    """The config of an uninterrupted run and that of one to be stopped; tests of equal configs share the first."""
    finished = {}

    def make(tmp_path, **changes):
        key = repr(sorted(changes.items()))
        if key not in finished:
            finished[key] = tiny(out=str(tmp_path_factory.mktemp("whole") / "run"), **changes)
            fit(finished[key], progress=False)
        return finished[key], tiny(out=str(tmp_path / "parts"), **changes)

    return make


@pytest.mark.parametrize("entry", CASES, ids=lambda entry: entry.name.replace(" ", "_"))
def test_bit_identical_to_an_uninterrupted_run(entry, tmp_path, whole_and_parts):
    whole, parts = whole_and_parts(tmp_path, **entry.changes)
    if entry.proof is not None:
        tensors, state = checkpoint.load(checkpoint.latest(Path(whole.out) / "checkpoints"))
        result = json.loads((Path(whole.out) / "result.json").read_text())
        assert entry.proof(result, lines(whole.out), checkpoint.unflatten(tensors, state["tree"]))
    callback = at_forward(entry.stop, entry.signal, training=entry.training)
    assert stopped(parts, callback, entry.signal) == (entry.stop if entry.step is None else entry.step)
    fit(derive(parts, {"resume": True, "data.workers": entry.workers}), progress=False)
    same_run(whole.out, parts.out)


# ------------------------------------------------------------------------------------------------------- other stops


def resumed(config, **changes):
    return fit(derive(config, {"resume": True, **changes}), progress=False)


def test_stopped_again_and_again(tmp_path, whole_and_parts):
    whole, parts = whole_and_parts(tmp_path, **{"data.validation": 30, "schedule.name": "plateau"})
    config = parts
    for step, which in ((2, INT), (3, TERM), (5, INT), (6, TERM), (9, INT), (11, TERM)):
        done = 0 if config is parts else int(checkpoint.latest(Path(parts.out) / "checkpoints").name)
        assert stopped(config, at_resumed_forward(step - done, which), which) == step
        config = derive(parts, {"resume": True, "data.workers": step % 2})
    resumed(parts)
    same_run(whole.out, parts.out)


def at_resumed_forward(number, which):
    """A resumed run calls back with its first line only: the hook goes to all networks."""
    passes = 0

    def hook(module, inputs):
        nonlocal passes
        if isinstance(module, Classifier) and module.training:
            passes += 1
            if passes == number:
                handle.remove()
                os.kill(os.getpid(), which)

    handle = torch.nn.modules.module.register_module_forward_pre_hook(hook)
    return lambda *_: None


def test_stopped_inside_the_evaluation_that_is_the_best(tmp_path, whole_and_parts):
    """The checkpoint of that step is of before the evaluation; the best weights must be found all the same."""
    changes = {"data.validation": 30, "data.batch_size": 16, "eval_every": 2, "optimizer.lr": 0.5}
    whole, parts = whole_and_parts(tmp_path, **changes)
    best = json.loads((Path(whole.out) / "result.json").read_text())["best_step"]
    later = 7
    assert best < later
    assert stopped(parts, at_forward(best - 1, training=False)) == best
    again = derive(parts, resume=True)
    assert stopped(again, at_resumed_forward(later - best, INT)) == later
    resumed(parts)
    same_run(whole.out, parts.out)


@pytest.mark.parametrize(("step", "split", "every"), [(3, "train", None), (10, "test", None), (9, "train", 4)])
def test_a_signal_while_a_line_is_written(tmp_path, step, split, every, whole_and_parts):
    """Between two checkpoints, and between an evaluation and its checkpoint."""
    whole, parts = whole_and_parts(tmp_path, checkpoint_every=every)
    assert stopped(parts, at_line(step, split=split)) == step
    resumed(parts)
    same_run(whole.out, parts.out)


def test_a_signal_before_the_first_step(tmp_path, whole_and_parts):
    whole, parts = whole_and_parts(tmp_path)
    assert stopped(parts, at_line(0)) is None
    resumed(parts)
    same_run(whole.out, parts.out)


def until(is_so):
    """Waits for a state, in steps in which Python can call a signal's handler."""
    end = time.monotonic() + 100
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.001)


@pytest.mark.parametrize("which", [INT, TERM])
def test_a_second_signal_does_not_wait(tmp_path, which, whole_and_parts):
    """The first is noted, the second has its usual effect at once: no checkpoint, but those before it are whole."""
    whole, parts = whole_and_parts(tmp_path)
    # pytest would die of SIGTERM, and SIGINT is ignored where a shell has put it into the background
    usual = {INT: signal.default_int_handler, TERM: lambda *_: sys.exit(143)}
    before = signal.signal(which, usual[which])
    try:

        def twice(model, step, metrics):
            if step == 9:
                noted = signal.getsignal(which)
                os.kill(os.getpid(), which)
                # Two that wait for the interpreter at once would be one; the first gives the handler of before back.
                until(lambda: signal.getsignal(which) is not noted)
                os.kill(os.getpid(), which)
                until(lambda: False)  # what it raises ends this

        assert stopped(parts, twice, which) == 5
    finally:
        signal.signal(which, before)
    resumed(parts)
    same_run(whole.out, parts.out)


def test_handlers_are_put_back(tmp_path):
    def mine(*_):
        raise AssertionError

    before = [signal.signal(number, mine) for number in (INT, TERM)]
    try:
        inside = []
        fit(tiny(steps=1), callbacks=[lambda *_: inside.append(signal.getsignal(INT) is mine)], progress=False)
        assert inside[-1] is False
        assert [signal.getsignal(number) for number in (INT, TERM)] == [mine, mine]
        with pytest.raises(TrainingError):
            fit(tiny(steps=4, **{"optimizer.lr": 1e30}), progress=False)
        assert [signal.getsignal(number) for number in (INT, TERM)] == [mine, mine]
    finally:
        for number, handler in zip((INT, TERM), before, strict=True):
            signal.signal(number, handler)


def test_another_thread_trains_too(tmp_path):
    """Signals belong to the main thread."""
    found = []
    thread = threading.Thread(target=lambda: found.append(fit(tiny(out=str(tmp_path / "a")), progress=False)))
    thread.start()
    thread.join()
    fit(tiny(out=str(tmp_path / "b")), progress=False)
    assert found[0].summary.step == 12
    same_run(tmp_path / "a", tmp_path / "b")


@pytest.mark.parametrize(
    "changes", [{}, {"data.validation": 30, "eval_every": 2, "optimizer.lr": 0.5}, {"patience": 1}]
)
def test_gone_between_the_last_checkpoint_and_the_result(tmp_path, changes, whole_and_parts):
    """As after a kill: all steps are done, but final/ and result.json are not there, and the history has more."""
    if "patience" in changes:
        changes = {**changes, "data.validation": 30, "eval_every": 2, "optimizer.lr": 0.5, "steps": 40}
    whole, parts = whole_and_parts(tmp_path, **changes)
    shutil.copytree(whole.out, parts.out)
    shutil.rmtree(Path(parts.out) / "final")
    (Path(parts.out) / "result.json").unlink()
    resumed(parts)
    same_run(whole.out, parts.out)


def test_a_history_with_half_a_line(tmp_path, whole_and_parts):
    whole, parts = whole_and_parts(tmp_path)
    stopped(parts, at_forward(8))
    with open(Path(parts.out) / "metrics.jsonl", "a") as file:
        file.write('{"step": 9, "split": "train", "lo')
    resumed(parts)
    same_run(whole.out, parts.out)


def test_what_may_change_changes_nothing(tmp_path, whole_and_parts):
    """The folder's name too."""
    whole, parts = whole_and_parts(tmp_path)
    stopped(parts, at_forward(8))
    moved = tmp_path / "moved"
    os.rename(parts.out, moved)
    resumed(parts, out=str(moved), checkpoint_every=1, keep=5, **{"data.workers": 1, "data.root": str(tmp_path)})
    same_run(whole.out, moved)
    assert sorted(int(entry.name) for entry in (moved / "checkpoints").iterdir()) == [8, 9, 10, 11, 12]


@pytest.mark.parametrize("name", ["step", "plateau"])
def test_a_longer_run(tmp_path, name):
    milestones = {"schedule.milestones": (3, 8)} if name == "step" else {}
    changes = {"schedule.name": name, "eval_every": 4, **milestones}
    fit(tiny(out=str(tmp_path / "whole"), **changes), progress=False)
    short = tiny(out=str(tmp_path / "parts"), steps=8, **changes)
    assert fit(short, progress=False).summary.step == 8
    longer = derive(short, steps=12, resume=True)
    assert fit(longer, progress=False).summary.step == 12
    same_final(tmp_path / "whole", tmp_path / "parts")
    assert lines(tmp_path / "parts")[-1] == lines(tmp_path / "whole")[-1]


def test_the_best_checkpoint_stays_beside_the_last(tmp_path, whole_and_parts):
    _, parts = whole_and_parts(tmp_path, keep=1, eval_every=2, **{"data.validation": 30, "optimizer.lr": 0.5})
    summary = resumed(parts).summary
    kept = {int(entry.name) for entry in (Path(parts.out) / "checkpoints").iterdir()}
    assert kept == {summary.best_step, 12}
    assert checkpoint.latest(Path(parts.out) / "checkpoints", best=True).name == str(summary.best_step)


# ------------------------------------------------------------------------------------------------------- found


@pytest.mark.parametrize("changes", [{"data.validation": 30}, {"model.name": "gcn", "data.name": "graph_of_test"}])
def test_a_signal_at_the_very_end_is_not_lost(tmp_path, changes):
    config = tiny(out=str(tmp_path / "run"), **changes)
    last = at_line(12, split="test" if "data.validation" in changes else "train")
    with pytest.raises(KeyboardInterrupt):
        fit(config, callbacks=[last], progress=False)


def test_resumed_without_the_run_it_began_with(tmp_path, whole_and_parts):
    fit(tiny(out=str(tmp_path / "first")), progress=False)
    whole, parts = whole_and_parts(tmp_path, init_from=str(tmp_path / "first"))
    stopped(parts, at_forward(4))
    shutil.rmtree(tmp_path / "first")
    resumed(parts)
    same_run(whole.out, parts.out)


def test_torchrun_starts_anew_a_run_without_a_folder(monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert fit(tiny(), progress=False).summary.step == 12


def test_killed_while_the_folder_was_claimed(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".config.json.0123abcd.tmp").write_text("{")
    assert resumed(tiny(out=str(tmp_path / "run"))).summary.step == 12
