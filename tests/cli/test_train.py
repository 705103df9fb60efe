"""The commands around a training: train, list, verify, completion."""

import json
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from torch import nn

from hypersphere._internal import catalog
from hypersphere._internal.catalog import COMMANDS
from hypersphere._internal.modules import install_command
from hypersphere._internal.tables import TextTable
from hypersphere.cli import _output, completion, finetune, main, train
from hypersphere.cli import list as listing
from hypersphere.cli._settings import COMMON
from hypersphere.train import Data, recipes
from hypersphere.train.config import Config, flags, from_tree, to_json
from hypersphere.train.results import Result
from hypersphere.train.storage.metrics import MetricsLine
from hypersphere.train.storage.summary import Summary
from tests.runs import rewritten

SUMMARY = Summary(
    step=5,
    split="test",
    energies={},
    seconds=3.21,
    samples_per_second=1.0,
    seed=0,
    model="mlp",
    length=(5, None),
    parameters={"trained": 48042, "total": 5},
    data={},
    versions={},
    accuracy=0.96325,
    loss=0.12,
    energy=2.5,
)


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("WORLD_SIZE", "RANK"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def fitted(monkeypatch):
    """Trains nothing; what fit was called with."""
    calls = []

    def fit(config, *, progress):
        calls.append((config, progress))
        return Result(SUMMARY, [], nn.Identity(), Path(config.out), config)

    monkeypatch.setattr("hypersphere.train.fit", fit)
    return calls


def fails(monkeypatch, error):
    def fit(config, *, progress):
        raise error

    monkeypatch.setattr("hypersphere.train.fit", fit)


def python(code, **options):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, **options)


def printed(argv, capsys):
    """The config that --print_config prints."""
    assert main(["train", *argv, "--print_config"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    Path("printed.yaml").write_text(out)
    from hypersphere.train.config import load_file

    return load_file("printed.yaml")


# -------------------------------------------------------------------------------------------- train: the config


def test_print_config(capsys):
    assert printed([], capsys) == Config()
    assert printed(["opt"], capsys) == recipes.load("opt")
    config = printed(
        ["mhe", "--optimizer.lr=1e-3", "--model.widths", "8,8,8", "--energy.half_space", "--seed=3"], capsys
    )
    assert (config.optimizer.lr, config.model.widths, config.energy.half_space, config.seed) == (
        1e-3,
        (8, 8, 8),
        True,
        3,
    )
    assert config.energy.s == recipes.load("mhe").energy.s
    assert printed(["mhe", "--energy", "off"], capsys).energy is None
    assert printed(["--rotation", "--energy.s=1"], capsys).rotation.method == "cayley"


def test_config_of_a_file(capsys):
    Path("c.yaml").write_text("optimizer: {lr: 0.5}\nseed: 2\n")
    config = printed(["--config=c.yaml", "--seed", "4"], capsys)
    assert (config.optimizer.lr, config.seed) == (0.5, 4)


def test_a_switch_takes_the_next_word_only_if_it_is_its_value(capsys):
    config = printed(["--resume", "opt"], capsys)
    assert config.resume
    assert config.rotation is not None
    assert not printed(["--resume", "false", "opt"], capsys).resume
    assert printed(["--amp", "bfloat16", "opt"], capsys).amp == "bfloat16"
    assert printed(["--amp", "opt"], capsys).amp is True
    assert printed(["spherenet", "--model.scale", "2.5"], capsys).model.scale == 2.5
    assert printed(["--model.scale", "spherenet"], capsys).model.scale is True


def test_of_a_flag_given_twice_the_last_counts(capsys):
    Path("c.yaml").write_text("seed: 7\nenergy: {s: 1}\n")
    assert printed(["--seed", "1", "--seed=2"], capsys).seed == 2
    assert printed(["opt", "--seed=2", "--optimizer.lr", "1", "--seed", "1"], capsys).seed == 1
    assert printed(["--config", "none.yaml", "--config=c.yaml", "--seed=3", "--seed=5"], capsys).seed == 5
    assert not printed(["--resume", "--resume", "--resume=false"], capsys).resume
    assert printed(["--energy", "off", "--energy", "on"], capsys).energy is not None
    assert printed(["mhe", "--energy", "on", "--energy", "off"], capsys).energy is None
    assert printed(["--energy.s=3", "--energy=off"], capsys).energy is None
    assert printed(["--energy=off", "--energy.s=3"], capsys).energy.s == 3
    assert printed(["--config=c.yaml", "--energy"], capsys).energy.s == 1
    assert printed(["--energy.s=3", "--energy.s=4", "--rotation", "--rotation=off"], capsys).energy.s == 4


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        ("--optimizer.lrr=1", "unknown flag '--optimizer.lrr', did you mean '--optimizer.lr'?"),
        ("opt --scale=1", "unknown flag '--scale', did you mean '--model.scale' or '--loss.scale'?"),
        ("--optimizer sgd", "unknown flag '--optimizer', did you mean '--optimizer.name'?"),
        ("opt plain", "one RECIPE only, got opt and plain"),
        ("--learning-rate=1", "unknown flag '--learning-rate', did you mean '--optimizer.lr'?"),
        ("--batch 3", "unknown flag '--batch', did you mean '--data.batch_size'?"),
        ("--optimizer.foo 1", "unknown flag '--optimizer.foo', must be one of --optimizer.name, --optimizer.lr, "),
        ("opt --config c.yaml", "give RECIPE or --config, not both"),
        ("--out", "--out needs a value"),
        ("--foo.quux 3", "unknown flag '--foo.quux', see `hypersphere train --help`"),
        ("--energy.half_space --energy.hidden_weight 0", "energy.half_space applies to hidden layers"),
        ("optt", "unknown recipe 'optt', did you mean 'opt'? (`hypersphere list recipes`)"),
        ("opt --resume", "--resume needs --out, the folder of the run"),
        ("--data photos", "unknown flag '--data', did you mean '--data.name' or '--data.root'?"),
        ("--resume runs/c2", "--resume takes no folder; write --resume --out=runs/c2"),
        ("--resume=maybe", "resume must be true or false, got 'maybe'"),
    ],
)
def test_what_the_user_can_mend(argv, line, fitted, capsys):
    assert main(["train", *argv.split()]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"hypersphere train: {line}")
    assert err.count("\n") == 1
    assert not fitted
    assert not Path("runs").exists()


def test_help_tells_the_common_flags_and_help_all_every_one(capsys):
    assert main(["train", "--help-all"]) == 0
    text = capsys.readouterr().out
    assert all(f"  {flag.flag} " in text for flag in flags())
    assert "\nrotation - train rotations of fixed random neurons (OPT):\n" in text
    assert all(name in text for name in recipes.names())
    for command in ("train", "finetune"):
        assert main([command, "--help"]) == 0
        text = capsys.readouterr().out
        assert {flag.key for flag in flags() if f"  {flag.flag} " in text} == COMMON
        assert "\ngan" not in text  # no heading without a flag
        assert f"`hypersphere {command} --help-all`" in text


@pytest.mark.parametrize("examples", [train.EXAMPLES, finetune.EXAMPLES], ids=["train", "finetune"])
def test_the_examples_of_the_help_are_configs(examples, tmp_path, capsys):
    for name in ("resnet18.safetensors", "model.safetensors", "runs/opt/config.json"):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text("{}")
    for line in examples.splitlines():
        argv = shlex.split(line.strip().partition("   ")[0])
        assert main([*argv[1:], "--print_config"]) == 0, capsys.readouterr().err


# -------------------------------------------------------------------------------------------- train: the run


def test_the_folder_of_a_run(fitted, monkeypatch):
    Path("my.py").write_text("from hypersphere.train import Config\ndef f(): return Config()\n")
    for argv in (["opt"], ["opt"], ["opt"], [], ["my.py"], ["./my.py:f"], ["--out=x/y"], ["plain", "--out", "x"]):
        assert main(["train", *argv]) == 0
        Path(fitted[-1][0].out).mkdir(parents=True, exist_ok=True)
    names = ["opt", "opt-2", "opt-3", "cnn-digits", "my", "my-f"]
    assert [config.out for config, _ in fitted] == [*(f"runs/{name}" for name in names), "x/y", "x"]


def test_what_is_printed(fitted, monkeypatch, capsys):
    for argv, progress in (["--out=my run"], True), (["--quiet"], False), (["--json"], False):
        assert main(["train", "plain", "--steps", "7", *argv]) == 0
        config, shown = fitted[-1]
        assert (config.steps, config.epochs, shown) == (7, None, progress)
        out, err = capsys.readouterr()
        assert err == ""
        if progress:
            assert out == (
                "test accuracy    loss  energy (sum of layers)  parameters trained  seconds\n"
                "       96.33%  0.1200                  2.5000              48,042      3.2\n"
                "run: 'my run'\nnext: hypersphere predict 'my run' FILE...\n"
                "compare: hypersphere train plain --steps=7 '--out=my run-energy' --energy=on && "
                "hypersphere report 'my run' 'my run-energy'\n"
            )
    assert json.loads(out) == json.loads(json.dumps(SUMMARY.to_dict())) | {"path": "runs/plain"}
    assert main(["train", "--data.name=cora", "--model.name=gcn", "--data.root=."]) == 0
    assert "\nnext: hypersphere evaluate runs/gcn-cora\ncompare: " in capsys.readouterr().out
    for argv in (["mhe"], ["opt"], ["--loss.name=arcface"], ["--out=x", "--resume"]):
        assert main(["train", *argv]) == 0
        assert "compare: " not in capsys.readouterr().out
    summary = replace(SUMMARY, accuracy=None, loss=1.0, energy=None)
    monkeypatch.setattr(
        "hypersphere.train.fit", lambda c, progress: Result(summary, lines, nn.Identity(), Path(c.out), c)
    )
    lines: list[MetricsLine] = []
    assert main(["train"]) == 0
    assert capsys.readouterr().out.splitlines()[1].split() == ["–", "1.0000", "–", "48,042", "3.2"]
    lines = [MetricsLine(step, "validation", values={"accuracy": 0.6 + step % 3 / 10}) for step in (1, 2, 3)]
    summary = replace(SUMMARY, split="validation", best_step=2, accuracy=0.8)
    assert main(["train"]) == 0
    line = "accuracy: best of 3 evaluations, step 2; last 60.00%; selected on the same data"
    assert capsys.readouterr().out.splitlines()[2] == line


def test_what_a_recipe_prints_is_not_in_the_json(fitted, capsys):
    Path("my.py").write_text("from hypersphere.train import Config\nprint('said')\ndef f(): return Config()\n")
    assert main(["train", "my.py", "--json"]) == 0
    out, err = capsys.readouterr()
    assert (json.loads(out)["path"], err) == ("runs/my", "said\n")


def test_resume_begins_with_the_config_of_the_run(fitted, capsys):
    Path("run").mkdir()
    started = from_tree({"seed": 5, "rotation": {}, "out": "elsewhere"})
    Path("run/config.json").write_text(to_json(started))
    assert main(["train", "--out=run", "--resume", "--keep=3"]) == 0
    config = fitted[-1][0]
    assert (config.seed, config.out, config.resume, config.keep) == (5, "run", True, 3)
    assert config.rotation is not None
    assert main(["train", "plain", "--out=run", "--resume"]) == 0  # a recipe is a recipe
    assert fitted[-1][0].rotation is None
    assert main(["train", "--out=run"]) == 0
    assert fitted[-1][0].rotation is None
    assert main(["train", "--out=new", "--resume"]) == 0
    assert fitted[-1][0].seed == 0
    Path("run/config.json").write_text("{")
    assert main(["train", "--out=run", "--resume"]) == 2
    assert "hypersphere train: run/config.json: " in capsys.readouterr().err


class Odd(RuntimeError):
    pass


def test_what_goes_wrong_in_a_training(monkeypatch, capsys):
    from hypersphere.train import TrainingError

    for error in (ValueError("no\nsuch data"), FileNotFoundError(2, "gone", "x"), TrainingError("step 3: loss is nan")):
        fails(monkeypatch, error)
        assert main(["train"]) == 2
        out, err = capsys.readouterr()
        assert (out, err) == ("", f"hypersphere train: {' '.join(str(error).split())}\n")
    for error in (Odd("a mistake in the program"), TypeError("so is this")):
        fails(monkeypatch, error)
        with pytest.raises(type(error)):
            main(["train"])


def test_a_type_error_of_ours_is_a_line(monkeypatch, capsys):
    from hypersphere._internal import checks

    monkeypatch.setattr("hypersphere.train.fit", lambda config, progress: checks.integer("step", "x"))
    assert main(["train"]) == 2
    assert capsys.readouterr().err == "hypersphere train: step must be an int, got 'x'\n"


def test_a_missing_package_is_a_line(tmp_path, monkeypatch, capsys):
    """Pillow, which [cli] installs, on the way to one's own images; an ImportError of others keeps its traceback."""
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "1.png").write_bytes(b"")
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "PIL.Image", None)
        assert main(["train", "--data.name=image_folder", f"--data.root={tmp_path}", "--data.validation=1"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert re.fullmatch(r"hypersphere train: reading images needs Pillow: pip install .*\n", err)
    fails(monkeypatch, ImportError("a mistake in the program"))
    with pytest.raises(ImportError):
        main(["train"])


@pytest.mark.parametrize(("stop", "code"), [(KeyboardInterrupt(), 130), (SystemExit(143), 143)])
def test_interrupted(stop, code, monkeypatch, capsys):
    fails(monkeypatch, stop)
    assert main(["train", "opt", "--seed", "3", "--data.name=mnist", "--data.root=a b"]) == code
    line = "hypersphere train opt --seed=3 --data.name=mnist '--data.root=a b' --out=runs/opt --resume=true"
    assert capsys.readouterr() == ("", f"hypersphere train: to resume: {line}\n")
    Path("c.yaml").write_text("seed: 1\n")
    assert main(["train", "--config", "c.yaml", "--out", "x", "--resume"]) == code
    assert capsys.readouterr().err.endswith(": hypersphere train --config c.yaml --out=x --resume=true\n")


def test_under_torchrun(fitted, monkeypatch, capsys):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    assert main(["train", "opt", "--out=x"]) == 0
    assert main(["train", "opt", "--print_config"]) == 0
    assert main(["train", "opt"]) == 2  # the first process says why
    assert capsys.readouterr() == ("", "")
    fails(monkeypatch, OSError("my disk is full"))
    assert main(["train", "opt", "--out=x"]) == 2
    assert capsys.readouterr().err == "hypersphere train: my disk is full (process 1)\n"
    fails(monkeypatch, KeyboardInterrupt())
    assert main(["train", "opt", "--out=x"]) == 130
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("RANK", "0")
    assert main(["train", "opt"]) == 2
    line = "give --out, so that all processes and restarts share a folder"
    assert capsys.readouterr().err == f"hypersphere train: {line}\n"
    assert main(["train", "opt", "--out=x"]) == 130
    assert capsys.readouterr().err == "hypersphere train: to resume, repeat the command with --resume\n"


TINY = ["plain", "--model.widths=4,4,4", "--quiet"]


@pytest.mark.slow
def test_a_real_run_is_whole(capsys):
    assert main(["train", *TINY, "--steps=3", "--eval_every=2", "--json", "--out=run"]) == 0
    out, err = capsys.readouterr()
    summary = json.loads(out)
    assert err == ""
    assert (summary["path"], summary["step"], summary["parameters"]["trained"] > 300) == ("run", 3, True)
    assert main(["train", *TINY, "--steps=3", "--out=run"]) == 2
    assert capsys.readouterr().err.startswith("hypersphere train: out=run already holds a run")
    assert main(["verify", "run", "--json"]) == 0
    verified = json.loads(capsys.readouterr().out)
    assert verified["ok"]
    names = ["checkpoints/2", "checkpoints/3", "config.json", "metrics.jsonl", "result.json"]
    names += ["final/model.json", "final/model.safetensors", "predictions/test.json"]
    assert [part["path"] for part in verified["parts"]] == [f"run/{name}" for name in names]


@pytest.mark.slow
def test_sigterm_leaves_a_checkpoint_and_says_how_to_go_on():
    """The command that is printed goes on."""
    command = [sys.executable, "-m", "hypersphere", "train", *TINY, "--steps=100000", "--checkpoint_every=5"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        end = time.monotonic() + 60
        while not Path("runs/plain/checkpoints/5").exists() and time.monotonic() < end and process.poll() is None:
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (process.returncode, out) == (143, "")
    told = err.splitlines()[-1]
    words = f"{' '.join(TINY[:2])} --steps=100000 --checkpoint_every=5 --out=runs/plain --resume=true"
    assert told == f"hypersphere train: to resume: hypersphere train {words}"
    assert main(["verify", "runs/plain"]) == 0


# -------------------------------------------------------------------------------------------- a config runs no code

WAYS = [
    "model: {class_path: leaves_a_mark.Thing, init_args: {}}",
    "class_path: leaves_a_mark.Thing",
    "model: {name: leaves_a_mark.Thing}",
    "model: {name: 'leaves_a_mark:Thing'}",
    "model: leaves_a_mark.Thing",
    "model: {similarity: leaves_a_mark.thing(1)}",
    "amp: leaves_a_mark.thing",
    "device: leaves_a_mark",
    "recipe: leaves_a_mark.py",
    "import: leaves_a_mark",
    "seed: !!python/module:leaves_a_mark",
    "seed: !!python/object/new:leaves_a_mark.Thing []",
    "seed: !!python/object/apply:leaves_a_mark.thing []",
    "!!python/object/apply:leaves_a_mark.thing []",
    "? !!python/object/apply:leaves_a_mark.thing []\n: 1",
    "seed: !leaves_a_mark.Thing {}",
    "%TAG ! tag:yaml.org,2002:python/\n---\nseed: !module:leaves_a_mark",
]


@pytest.mark.slow
def test_a_config_imports_nothing(fitted, monkeypatch, capsys, tmp_path):
    """Named in every way, in files and in flags, the module that would leave a mark is never imported."""
    (tmp_path / "leaves_a_mark.py").write_text("open('mark', 'w').close()\nclass Thing: pass\nthing = Thing\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    names = [flag.flag for flag in flags() if "names" in flag.field.metadata and "others" not in flag.field.metadata]
    argvs = [[f"{flag}={text}"] for flag in names for text in ("leaves_a_mark.Thing", "leaves_a_mark", "__import__")]
    argvs += [["leaves_a_mark"], ["leaves_a_mark.Thing"], ["leaves_a_mark:Thing"]]
    argvs += [["--class_path=leaves_a_mark.Thing"], ["--model.class_path", "leaves_a_mark.Thing"]]
    for i, text in enumerate(WAYS):
        Path(f"{i}.yaml").write_text(text)
        argvs.append(["--config", f"{i}.yaml"])
    for argv in argvs:
        assert main(["train", *argv]) == 2, argv
        assert main(["train", *argv, "--print_config"]) == 2, argv
        assert "leaves_a_mark" not in sys.modules, argv
        assert not Path("mark").exists(), argv
    assert not fitted
    assert main(["train", "--rotation.layers=leaves_a_mark.Thing", "--print_config"]) == 0  # a layer may be called so
    assert "leaves_a_mark" not in sys.modules
    assert main(["train", "leaves_a_mark.py"]) == 2  # the file itself is named: that runs it
    assert Path("mark").exists()


# -------------------------------------------------------------------------------------------- list


def test_list_of_all(capsys):
    assert main(["list"]) == 0
    out = capsys.readouterr().out
    for kind, (names, flag, _) in listing.KINDS.items():
        assert f"{kind} ({flag})\n" in out
        assert all(name in out for name in names)
    assert max(map(len, out.splitlines())) <= 80


def test_list_of_a_kind(capsys):
    for kind, (table, *_) in listing.KINDS.items():
        names = [*table]
        assert main(["list", kind]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert [line.split()[0] for line in lines[-len(names) :]] == names
        assert main(["list", kind, "--json"]) == 0
        assert [*json.loads(capsys.readouterr().out)] == names


def test_list_says_more(capsys):
    main(["list", "recipes"])
    assert f"opt                {recipes.describe('opt')}\n" in capsys.readouterr().out
    main(["list", "recipes", "--json"])
    assert json.loads(capsys.readouterr().out)["mhe"] == recipes.describe("mhe")
    main(["list", "losses"])
    assert re.search(r"^am_softmax +margin, scale(, bias)?$", capsys.readouterr().out, re.MULTILINE)
    main(["list", "--json"])
    assert [*json.loads(capsys.readouterr().out)] == [*listing.KINDS]


# -------------------------------------------------------------------------------------------- verify


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    from hypersphere.train import fit
    from hypersphere.train.config import derive

    path = tmp_path_factory.mktemp("trained") / "run"
    tiny = {"model.widths": (4, 4, 4), "steps": 2, "eval_every": 1, "out": str(path)}
    fit(derive(recipes.load("sphereface_plus"), tiny), progress=False)
    return path


@pytest.fixture
def copy(trained):
    return Path(shutil.copytree(trained, "run"))


def lines(argv, capsys, code):
    assert main(["verify", *argv]) == code
    out, err = capsys.readouterr()
    assert err == ""
    return out.splitlines()


def test_verify_a_run(copy, capsys):
    printed_lines = lines(["run"], capsys, 0)
    assert all(line.startswith("ok       run/") for line in printed_lines)
    assert "ok       run/final/head.safetensors" in printed_lines
    assert lines(["run/checkpoints"], capsys, 0) == ["ok       run/checkpoints/1", "ok       run/checkpoints/2"]
    assert lines(["run/checkpoints/2"], capsys, 0) == ["ok       run/checkpoints/2"]


def test_verify_names_what_is_damaged(copy, capsys):
    saved = copy / "checkpoints/2/tensors.safetensors"
    data = bytearray(saved.read_bytes())
    data[-1] ^= 1
    saved.write_bytes(data)
    (copy / "checkpoints/1/state.json").unlink()
    run_id = json.loads((copy / "config.json").read_text())["run_id"]
    (copy / "config.json").write_text(json.dumps({"run_id": run_id, "seed": 1, "sed": 2}))
    (copy / "result.json").write_text("[]")
    (copy / "metrics.jsonl").write_text(f'{{"step": 0, "split": "train", "run_id": "{run_id}"}}\n{{"step"\n{{}}\n')
    (copy / "final/model.safetensors").write_bytes(data[:100])
    head = bytearray((copy / "final/head.safetensors").read_bytes())
    head[-1] ^= 1
    (copy / "final/head.safetensors").write_bytes(head)
    printed_lines = [line for line in lines(["run"], capsys, 1) if line.startswith("damaged")]
    begins = [
        "checkpoints/1: state.json is missing",
        "checkpoints/2: tensors.safetensors is damaged: the checksum of ",
        "config.json: unknown setting 'sed', did you mean 'seed'?",
        "metrics.jsonl: line 2 is not a JSON object",
        "result.json: cannot be read: it must be an object, got list",
        "final/model.safetensors: cannot be read: ",
        "final/head.safetensors: the checksum of ",
    ]
    assert len(printed_lines) == len(begins)
    for line, words in zip(printed_lines, begins, strict=True):
        assert line.startswith(f"damaged  run/{words}")
    assert main(["verify", "run", "--json"]) == 1
    parts = json.loads(capsys.readouterr().out)["parts"]
    assert [part["ok"] for part in parts].count(False) == 7
    (copy / "final/model.json").write_text("{")  # which has the checksums of the others: one line is enough
    printed_lines = [line for line in lines(["run"], capsys, 1) if "final" in line]
    assert len(printed_lines) == 1
    assert printed_lines[0].startswith("damaged  run/final/model.json: cannot be read: Expecting property name")
    assert lines(["run/checkpoints/2"], capsys, 1)[0].startswith("damaged  run/checkpoints/2: tensors")
    assert lines(["run/checkpoints/1"], capsys, 1)[0].startswith("damaged  run/checkpoints/1: state.json is missing")


def test_verify_misses_what_must_be_there(copy, capsys):
    (copy / "final/head.safetensors").unlink()
    assert "damaged  run/final/head.safetensors: is missing" in lines(["run"], capsys, 1)
    shutil.rmtree(copy / "final")
    assert "damaged  run/final/model.json: is missing" in lines(["run"], capsys, 1)
    (copy / "config.json").unlink()
    (copy / "config.json").symlink_to("config.json")
    assert "damaged  run/config.json: is not a plain file, but a link, a folder or a pipe" in lines(["run"], capsys, 1)


def test_verify_knows_that_names_may_be_the_user_s_own(copy, capsys):
    rewritten(copy / "config.json", ('"name": "cnn', '"name": "a network of mine'))
    (copy / "result.json").unlink()
    with open(copy / "metrics.jsonl", "a") as file:
        file.write('{"st')  # being written
    lines(["run"], capsys, 0)


def test_verify_what_is_no_run(capsys):
    Path("file").touch()
    Path("empty").mkdir()
    for line in (
        "nowhere does not exist",
        "file is a file, not a run folder",
        "empty is not a run folder or a checkpoint",
    ):
        assert main(["verify", line.partition(" ")[0]]) == 2
        assert capsys.readouterr() == ("", f"hypersphere verify: {line}\n")


# -------------------------------------------------------------------------------------------- completion

LINES = [
    ("", set(COMMANDS), {"plain"}),
    ("train s", {"spherenet", "s_opt", "sphereface_plus"}, {"plain"}),
    ("train --model.n", {"--model.name"}, {"--model.fc"}),
    ("train --model.name cnn9.", {"cnn9.mhe", "cnn9.opt"}, {"cnn6.mhe", "my.py"}),
    ("train opt --resume --energy.measure o", {"orthoreg", "orthonormal"}, {"opt"}),
    ("train --config m", {"my.py"}, {"mhe"}),
    ("verify m", {"my.py"}, {"mhe"}),
]
BASH = """COMP_WORDS=("${@}"); COMP_CWORD=$(($# - 1)); _hypersphere; printf '%s\\n' "${COMPREPLY[@]}\""""


def offered(shell, line, script):
    """What the shell itself offers after `hypersphere <line>`."""
    if shell == "bash":
        words = [*line.replace("=", " = ").split(), *([""] if line[-1:] in ("", " ") else [])]
        command = ["bash", "--norc", "-c", f"source {script}; {BASH}", "bash", "hypersphere", *words]
    else:
        command = ["fish", "--no-config", "-c", f"source {script}; complete -C 'hypersphere {line}'"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return {word.partition("\t")[0].rpartition("=")[2] for word in done.stdout.splitlines()}


@pytest.mark.parametrize("shell", ["bash", "fish"])
def test_completion(shell, capsys):
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell}")
    Path("my.py").touch()
    main(["completion", shell])
    Path("script").write_text(capsys.readouterr().out)
    for line, wanted, other in [
        *LINES,
        ("train --model.name=cnn9.", {"cnn9.mhe", "cnn9.opt"}, {"cnn6.mhe"}),
        ("train --resume=", {"true", "false"}, {"plain"}),
        ("train --resume ", {"true", "false"}, set()),
    ]:
        completed = offered(shell, line, "./script")
        assert wanted <= completed, line
        assert not other & completed, line
    assert offered(shell, "train --seed ", "./script") <= {""}


def test_completion_knows_every_flag(capsys):
    for shell in completion.SHELLS:
        assert main(["completion", shell]) == 0
        script = capsys.readouterr().out
        for flag in flags():
            assert (f"-l {flag.flag[2:]} " if shell == "fish" else flag.flag) in script
        assert all(name in script for name in (*COMMANDS, *catalog.LOSSES, *catalog.RECIPES))
        assert shell != "zsh" or '"--model.name=[' in script  # --flag=value, too


def test_completion_without_shtab(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert main(["completion", "bash"]) == 2
    assert capsys.readouterr().err == f"hypersphere completion: completion needs shtab: {install_command('cli')}\n"


# -------------------------------------------------------------------------------------------- tables


def test_tables_with_rich(monkeypatch, capsys):
    table = TextTable(["N", "energy"], [["12", "49.165253058"], ["[red]\x1b", "1"]], title="sums")
    monkeypatch.setenv("COLUMNS", "80")
    assert _output.print_rich(table)
    out = capsys.readouterr().out
    assert "sums" in out
    assert any("12" in line and "49.165253058" in line for line in out.splitlines())
    assert "[red]\\x1b" in out
    monkeypatch.setenv("COLUMNS", "20")
    assert not _output.print_rich(table)
    monkeypatch.setitem(sys.modules, "rich.console", None)
    monkeypatch.setenv("COLUMNS", "80")
    assert not _output.print_rich(table)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("folders", "message"),
    [
        (["cat", "dog"], "set data.name=image_folder for your own images"),
        (["MNIST/raw"], "set data.name to what the folder contains: mnist"),
        (
            ["cifar-10-batches-py", "FashionMNIST"],
            "set data.name to what the folder contains: cifar10 or fashion_mnist",
        ),
    ],
)
def test_a_root_without_a_name_does_not_train_on_the_digits(folders, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for folder in folders:
        Path("files", folder).mkdir(parents=True)
    Path("c.yaml").write_text("data: {root: files}\n")
    line = f"data.name=digits reads no files, but data.root is given: {message}"
    for argv in (["--data.root", "files"], ["opt", "--data.root=files"], ["--config", "c.yaml"]):
        assert main(["train", "--quiet", *argv]) == 2
        out, err = capsys.readouterr()
        assert (out, err.count("\n")) == ("", 1)
        assert err.endswith(f"{line}\n")
    assert not Path("runs").exists()
    with pytest.raises(ValueError, match=r"data\.name=digits reads no files"):
        Config(data=Data(root="files"))
