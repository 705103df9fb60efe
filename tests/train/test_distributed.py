"""Two processes by torchrun (gloo): the losses of one, the same weights in both, and the same end after a kill."""

import json
import multiprocessing
import os
import signal
import sys
import time
from pathlib import Path

import pytest
import torch
import torch._dynamo  # which the first optimizer imports: here once, not in each fork
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from hypersphere.models._registry import PRESETS
from hypersphere.train import derive, fit
from hypersphere.train.config import to_tree
from hypersphere.train.storage import checkpoint
from tests import runs
from tests.runs import lines, same_final, same_run, tiny

pytestmark = pytest.mark.slow

# Every rank says in a file of its own what it saw: torchrun mixes what processes print.
SCRIPT = """
import contextlib, io, json, os, signal, sys
from datetime import timedelta
import torch
import torch.distributed
torch.set_num_threads(1)
from hypersphere._internal.tensors import hash_of
from hypersphere.train import distributed, fit
from hypersphere.train.config import derive, from_tree
from tests import runs

orders = json.loads(open(sys.argv[1]).read())
rank, restarts = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
runs.small_gan()
if orders["group"]:  # one for all runs; else every run has its own
    torch.distributed.init_process_group("gloo", timeout=timedelta(seconds=60))
else:
    distributed._PATIENCE["gloo"] = timedelta(seconds=5)
before = torch.random.get_rng_state()

def callback(model, step, line):
    for at, who, restart, number in order.get("signals", []):
        if (step, rank, restarts) == (at, who, restart) and line["split"] == "train":
            os.kill(os.getpid(), number)

with open(f"{orders['folder']}/rank{rank}.jsonl", "a") as said:
    for order in orders["runs"]:
        config = from_tree(order["config"])
        errors, code = io.StringIO(), None
        with contextlib.redirect_stderr(errors):
            try:
                result = fit(config, callbacks=[callback])
            except SystemExit as error:
                code = error.code
                if "again" not in order:
                    raise
                result = fit(derive(config, resume=True))
        weights = {name: hash_of(value) for name, value in result.model.state_dict().items()}
        last = runs.metrics_of(result)[-1] if runs.metrics_of(result) else None
        line = {"name": order["name"], "weights": weights, "code": code, "text": errors.getvalue(), "last": last}
        line["run_id"] = result.summary.run_id
        said.write(json.dumps(line) + "\\n")
        said.flush()
    assert torch.equal(before, torch.random.get_rng_state())
"""


def start(folder, orders, *, group, restarts=0):
    """torchrun in a fork of this process, whose workers are forks of it: five processes would import torch."""
    (folder / "script.py").write_text(SCRIPT)
    (folder / "orders.json").write_text(json.dumps({"folder": str(folder), "runs": orders, "group": group}))
    process = multiprocessing.get_context("fork").Process(target=_torchrun, args=(folder, restarts))
    process.start()
    return process


def _torchrun(folder, restarts):
    with open(folder / "output", "w") as output:
        for stream in (1, 2):
            os.dup2(output.fileno(), stream)
    options = {"rdzv_backend": "c10d", "rdzv_endpoint": "localhost:0", "run_id": "forked", "monitor_interval": 0.1}
    config = LaunchConfig(1, 1, 2, start_method="fork", max_restarts=restarts, **options)
    elastic_launch(config, _run_script)(str(folder / "script.py"), str(folder / "orders.json"))


def _run_script(*argv):
    sys.argv = list(argv)
    exec(compile(Path(argv[0]).read_text(), argv[0], "exec"), {"__name__": "__main__"})


def said_by(folder):
    ranks = [(folder / f"rank{rank}.jsonl").read_text().splitlines() for rank in (0, 1)]
    return [{line["name"]: line for line in map(json.loads, said)} for said in ranks]


def plain(**changes):
    """No BatchNorm, no dropout; more than an epoch, which has six steps, and a line a step."""
    return tiny(**{"steps": 8, "log_every": 1, **changes})


TEXT = {"model.name": "transformer_of_test", "model.widths": None, "data.name": "letters_of_test"}
GAN = {"model.name": "generator.mhe", "model.widths": (4, 4, 4, 4), "model.batch_norm": False, "steps": 6}
CNN = {"model.name": "cnn3", "model.widths": (4, 4, 6), "model.fc": 8, "model.batch_norm": False}
EMBEDDING = {"loss.name": "s_softmax", "loss.scale": 10.0}
# those whose losses are the same as one process's, within 1e-6
EQUAL = {
    "plain": plain(),
    "convolutions": plain(**CNN, **{"model.similarity": "cosine"}),
    "energy": plain(**CNN, **{"energy.s": 2.0}),
    "energy of a minibatch": plain(**{"energy.minibatch": 4}),
    "cayley": plain(**{"rotation.method": "cayley"}),
    "ogd": plain(**{"rotation.method": "ogd", "optimizer.name": "ogd"}),
    "sampled": plain(**{"rotation.sample": 4, "rotation.every": 4}),
    "regularized": plain(**{"rotation.method": "regularized"}),
    "a_softmax": plain(**CNN, **{"loss.name": "a_softmax"}),
    "sphereface_plus": plain(**CNN, **{"loss.name": "sphereface_plus", "rotation.layers": "all"}),
    "accumulate": plain(accumulate=2, clip=0.5, steps=8),
    "accumulate with energy": plain(accumulate=4, steps=6, **{"energy.half_space": True}),
    "slices of embeddings": plain(**EMBEDDING, **{"embedding.measure": "sigreg"}),
    "hug": plain(**EMBEDDING, **{"embedding.measure": "hug", "embedding.weight": 1.0}),
    "validation": plain(eval_every=2, **{"data.validation": 31, "optimizer.lr": 0.1, "schedule.name": "plateau"}),
    "samples one by one": plain(**{"data.name": "slow_digits", "data.workers": 1, "steps": 7}),
    "gan": plain(**GAN),
    "gan with gradient penalty": plain(**GAN, **{"gan.loss": "wasserstein", "gan.gradient_penalty": 0.1}),
}
# those of which only the ranks must agree
OTHERS = {
    "batch norm": plain(**CNN | {"model.batch_norm": True}),
    "text with dropout": plain(**TEXT),
    "dropout": plain(**{"model.name": "own_of_test", "model.widths": None}),
    "adam float16": plain(amp="float16", **{"optimizer.name": "adam"}),
    "uneven": plain(
        steps=12, eval_every=3, **{"data.validation": 1, "data.batch_size": 18}
    ),  # 162 are 9 batches, 1 is held out
    "stopped": plain(**{"rotation.sample": 4, "rotation.every": 4}),
}


@pytest.fixture(scope="module")
def together(tmp_path_factory):
    """All runs of two processes, by one torchrun."""
    folder = tmp_path_factory.mktemp("together")
    orders = [
        {"name": name, "config": to_tree(derive(config, out=str(folder / name)))}
        for name, config in (EQUAL | OTHERS).items()
    ]
    orders[-1] |= {"signals": [[5, 1, 0, signal.SIGTERM]], "again": True}
    process = start(folder, orders, group=True)
    process.join(200)
    process.kill()
    assert process.exitcode == 0, (folder / "output").read_text()[-5000:]
    return folder, *said_by(folder)


@pytest.fixture(autouse=True)
def _small_gan(monkeypatch):
    for name in ("generator.mhe", "discriminator.mhe"):
        monkeypatch.setitem(PRESETS, name, PRESETS[name])
    runs.small_gan()


@pytest.mark.parametrize("name", EQUAL)
def test_the_losses_of_one_process(name, together, tmp_path):
    folder, _, _ = together
    alone = fit(derive(EQUAL[name], out=str(tmp_path)), progress=False)
    ours, theirs = lines(tmp_path), lines(folder / name)
    assert len(ours) == len(theirs) > 6
    for one, two in zip(ours, theirs, strict=True):
        assert set(one) == set(two)
        if name.startswith("gan") and one["split"] == "test":
            assert one["loss"] == pytest.approx(two["loss"], abs=1e-6)
            continue
        for key in ("step", "split", "epoch", "lr"):
            assert one.get(key) == two.get(key)
        for key in ("loss", "discriminator_loss", "generator_loss", "evenness"):
            assert one.get(key) is None or abs(one[key] - two[key]) <= 1e-6 * max(1, abs(one[key])), (key, one, two)
    assert alone.summary.step == json.loads((folder / name / "result.json").read_text())["step"]


@pytest.mark.parametrize("name", EQUAL | OTHERS)
def test_the_ranks_agree(name, together):
    folder, first, second = together
    assert first[name]["weights"] == second[name]["weights"]
    run_id = json.loads((folder / name / "config.json").read_text())["run_id"]
    assert first[name]["run_id"] == second[name]["run_id"] == run_id
    assert len(first[name]["weights"]) > 2
    assert runs.without_times(first[name]["last"]) == runs.without_times(second[name]["last"])


def test_the_first_alone_speaks_and_writes(together):
    folder, first, second = together
    assert all(line["text"] for line in first.values())
    assert {line["text"] for line in second.values()} == {""}
    for name in EQUAL:
        files = sorted(entry.name for entry in (folder / name).iterdir())
        assert len([entry for entry in files if entry.startswith("events")]) == 1
        assert len(files) == 6
        steps = [(line["step"], line["split"]) for line in lines(folder / name)]
        assert len(steps) == len(set(steps))


def test_a_signal_to_one_stops_all(together):
    """The second process got it; both left with 143 after a checkpoint, and went on to the end of the other run."""
    folder, first, second = together
    assert first["stopped"]["code"] == second["stopped"]["code"] == 143
    same_run(folder / "sampled", folder / "stopped")


def test_two_processes_need_a_batch_of_both(monkeypatch):
    from hypersphere.train import engine
    from hypersphere.train.distributed import World

    with pytest.raises(ValueError, match=r"data\.batch_size must be a multiple of the 2 processes, got 33"):
        engine.Training(plain(**{"data.batch_size": 33}), World(torch.device("cpu"), 0, 2), ())


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """The second run of a script, in which the process that writes is killed and torchrun starts both anew; in the
    third, which would last, torchrun itself gets SIGTERM."""
    folder = tmp_path_factory.mktemp("killed")
    configs = {
        "short": plain(out=str(folder / "short"), steps=1),
        "run": derive(EQUAL["sampled"], out=str(folder / "run"), checkpoint_every=2),
        "long": plain(out=str(folder / "long"), steps=100_000, eval_every=100_000),
    }
    orders = [{"name": name, "config": to_tree(config)} for name, config in configs.items()]
    orders[1]["signals"] = [[7, 0, 0, signal.SIGKILL]]
    process = start(folder, orders, group=False, restarts=1)
    history = folder / "long" / "metrics.jsonl"
    deadline = time.monotonic() + 200
    while not (history.exists() and len(history.read_text().splitlines()) > 5):
        assert process.is_alive(), (folder / "output").read_text()[-5000:]
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.terminate()
    process.join(200)
    process.kill()
    return folder, configs["long"], *said_by(folder)


def test_killed_and_started_anew(together, killed):
    whole, _, _ = together
    folder, _, first, second = killed
    assert first["run"]["weights"] == second["run"]["weights"]
    assert "resumed at step" in first["run"]["text"]
    same_final(whole / "sampled", folder / "run")
    assert lines(whole / "sampled") == lines(folder / "run")


def test_sigterm_to_torchrun_leaves_a_checkpoint(killed):
    folder, config, first, second = killed
    assert "long" not in first | second
    found = checkpoint.latest(folder / "long" / "checkpoints")
    assert found is not None
    assert not (folder / "long" / "result.json").exists()
    step = int(found.name)
    assert step >= 5
    # one process goes on where two stopped, for as long as is asked
    result = fit(derive(config, resume=True, steps=step + 3), progress=False)
    assert result.summary.step == step + 3
    alone = fit(derive(config, out=None, steps=10), progress=False)
    for one, two in zip(runs.without_times(runs.metrics_of(alone))[1:6], lines(folder / "long")[1:6], strict=True):
        assert abs(one["loss"] - two["loss"]) <= 1e-6
