"""What newcomers met in their first hour: mistakes that are said, and defaults that do what one expects."""

import json
import math
import re
import shutil
from pathlib import Path

import pytest
import torch
from PIL import Image

import hypersphere as hs
from hypersphere.cli import main
from hypersphere.data._dataset import ArrayDataset
from hypersphere.train import Config, Data, derive, fit, precision
from hypersphere.train.storage import checkpoint
from tests.runs import tiny


def refused(config):
    """The one line of a ValueError."""
    with pytest.raises(ValueError) as caught:
        fit(config, progress=False)
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_few_steps_are_pointed_out_once(tmp_path, capsys):
    config = derive(tiny(), epochs=1, out=str(tmp_path / "run"))
    fit(config)
    assert "only 6 steps in all" in capsys.readouterr().err
    fit(derive(config, epochs=2, resume=True))
    shown = capsys.readouterr().err
    assert "resumed at step 6 of 12" in shown
    assert "only" not in shown


@pytest.mark.parametrize(
    ("folders", "message"),
    [
        (["cat", "dog"], "set data.name=image_folder for your own images"),
        (["MNIST/raw"], "set data.name to what is there, mnist"),
        (["cifar-10-batches-py", "FashionMNIST"], "set data.name to what is there, cifar10 or fashion_mnist"),
    ],
)
def test_a_root_without_a_name_does_not_train_on_the_digits(folders, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for each in folders:
        Path("files", each).mkdir(parents=True)
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


def test_folders_of_the_official_files_are_those_of_the_loaders():
    from hypersphere.catalog import FOLDERS
    from hypersphere.data import cifar, idx, modelnet

    sources = (idx.MNIST, idx.FASHION, cifar.CIFAR10.source, cifar.CIFAR100.source, modelnet.SOURCE)
    assert {source.name: source.folders for source in sources} == FOLDERS


def test_one_class_is_nothing_to_tell_apart(tmp_path, monkeypatch):
    message = "a classifier needs at least two classes, got 1, 'cat'"
    one = ArrayDataset(torch.randn(8, 3), torch.zeros(8, dtype=torch.long), ["cat"])
    monkeypatch.setitem(hs.data.LOADERS, "one", lambda root, split: one)
    assert message in refused(derive(Config(steps=1), {"data.name": "one", "model.name": "mlp"}))
    (tmp_path / "cat").mkdir()
    for i in range(4):
        Image.new("RGB", (8, 8), (i, i, i)).save(tmp_path / "cat" / f"{i}.png")
    changes = {"data.name": "image_folder", "data.root": str(tmp_path), "data.validation": 1}
    assert message in refused(tiny(**changes))
    generator = {"model.name": "generator.mhe", "data.size": 32, "data.validation": None}
    for split in ("train", "test"):  # a GAN has no use for a second one
        (tmp_path / split).mkdir()
    (tmp_path / "cat").rename(tmp_path / "train" / "cat")
    shutil.copytree(tmp_path / "train" / "cat", tmp_path / "test" / "cat")
    assert fit(derive(Config(), changes | generator | {"steps": 1}), progress=False).summary["step"] == 1


def test_what_an_image_folder_should_hold_is_said_for_all_endings(tmp_path):
    with pytest.raises(ValueError, match=r"has no folders; expected .*<class>/\*\{\.jpg,\.jpeg,\.png,"):
        hs.data.load("image_folder", tmp_path)


def test_errors_of_writing_name_the_file_that_was_asked_for(tmp_path):
    from hypersphere._internal.safe_files import write_bytes

    (tmp_path / "taken").mkdir()
    with pytest.raises(IsADirectoryError) as caught:
        write_bytes(tmp_path / "taken", b"x")
    assert caught.value.filename == str(tmp_path / "taken")
    assert ".tmp" not in str(caught.value)
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match=r"could not be written: Not a directory$"):
        checkpoint.save(tmp_path / "file" / "checkpoints", 1, {}, {})


# ---------------------------------------------------------------------------------------------------- slow, diverged


@pytest.mark.parametrize(("factor", "warns"), [(9.34, True), (1.2, False)])
def test_mixed_precision_that_is_slow_here_is_pointed_out(factor, warns, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    measured = []
    monkeypatch.setattr(precision, "slowdown", lambda dtype: measured.append(dtype) or factor)
    flags = ["train", "--quiet", "--steps=2", "--model.widths=4,4,4", "--model.fc=8", "--device=cpu"]
    assert main([*flags, "--amp"]) == 0
    line = (
        "hypersphere: amp: bfloat16 takes 9.3 times as long as float32 on this CPU (a convolution, measured now); "
        "amp=false is faster here\n"
    )
    assert capsys.readouterr().err == (line if warns else "")
    assert main(flags) == 0
    assert capsys.readouterr().err == ""
    assert measured == [torch.bfloat16]  # not without amp


def test_the_measurement_leaves_the_training_as_it_is():
    state = torch.random.get_rng_state()
    assert 0 < precision.slowdown(torch.bfloat16) < math.inf
    assert torch.equal(torch.random.get_rng_state(), state)


TOO_FAST = {"model.name": "mlp", "optimizer.lr": 5, "steps": 40, "seed": 1, "log_every": 5}


def flags(changes):
    return [f"--{key}={value}" for key, value in changes.items()]


def test_a_training_that_diverged_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["train", "--quiet", "--out=run", *flags(TOO_FAST)]) == 0
    said = capsys.readouterr().err
    assert re.fullmatch(
        r"hypersphere: the training diverged: its loss rose from [2-9]\.\d+ to \d\S+, and it ends with the accuracy "
        r"of a guess, \d+\.\d\d%; try optimizer\.lr below 5 or clip=1\n",
        said,
    )
    assert json.loads(Path("run/result.json").read_text())["diverged"] is True
    # also one that went on: the loss of the first step is not forgotten
    assert main(["train", "--quiet", "--out=parts", *flags(TOO_FAST | {"steps": 15})]) == 0
    assert capsys.readouterr().err == ""  # too early to tell
    assert main(["train", "--quiet", "--out=parts", "--resume", *flags(TOO_FAST)]) == 0
    assert capsys.readouterr().err == said


def test_what_is_learned_by_heart_has_not_diverged(monkeypatch):
    random = torch.Generator().manual_seed(0)

    def noise(root, split):
        labels = torch.randint(4, (64,), generator=random)
        return ArrayDataset(torch.randn(64, 8, generator=random), labels, list("abcd"))

    monkeypatch.setitem(hs.data.LOADERS, "noise", noise)
    changes = {"data.name": "noise", "model.name": "mlp", "optimizer.lr": 0.1, "steps": 60}
    summary = fit(derive(Config(), changes), progress=False).summary
    assert summary["accuracy"] < 0.5
    assert summary["loss"] > 2 * math.log(4)
    assert summary["diverged"] is False


def test_compiling_is_said(monkeypatch, capsys):
    monkeypatch.setattr(torch, "compile", lambda module: module)
    for compiles in (True, False):
        fit(derive(tiny(), steps=1, compile=compiles))
        assert ("compiling the network: the first steps take longer" in capsys.readouterr().err) is compiles


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            "--model.similarity cosine --model.scale big",
            "model.scale must be true or false or a number or auto or null",
        ),
        ("--amp bfloat", "amp"),
        ("--energy bogus", "energy must be on or off, got 'bogus'"),
    ],
)
def test_a_wrong_value_after_a_switch_names_the_switch(words, message, capsys):
    assert main(["train", "plain", *words.split()]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert "unrecognized" not in said
