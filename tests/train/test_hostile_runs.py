"""Run folders that were damaged, crafted or put together by somebody else: one line each, and nothing outside them."""

import json
import os
import re
import shutil
import signal
import stat
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import hypersphere as hs
from hypersphere._internal import checksummed_json, safe_files
from hypersphere._internal.catalog import MODELS
from hypersphere._internal.tensor_files import TensorFile
from hypersphere.cli import main
from hypersphere.train import fit, load_run
from hypersphere.train.inference import run as run_files
from hypersphere.train.storage import checkpoint, weights
from hypersphere.train.storage.reading import checksum
from tests.runs import at_forward, lines, rewritten, same_run, save_checkpoint, stopped, tiny

pytestmark = pytest.mark.slow

HELD = {"data.validation": 30, "loss.name": "am_softmax", "steps": 6, "eval_every": 2, "log_every": 2, "keep": 1}


@pytest.fixture(autouse=True)
def _no_hang():
    """A pipe that is waited for is a failure, not the end of all tests."""

    def give_up(*_):
        pytest.fail("it hangs")  # not TimeoutError: that is an OSError, which the code under test may catch

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(120)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    path = tmp_path_factory.mktemp("finished") / "run"
    fit(tiny(out=str(path), **HELD), progress=False)
    return path


@pytest.fixture(scope="module")
def unfinished(tmp_path_factory):
    path = tmp_path_factory.mktemp("unfinished") / "run"
    assert stopped(tiny(out=str(path), **HELD), at_forward(5)) == 5
    return path


@pytest.fixture
def copy(finished, tmp_path):
    return Path(shutil.copytree(finished, tmp_path / "run"))


@pytest.fixture
def begun(unfinished, tmp_path):
    return Path(shutil.copytree(unfinished, tmp_path / "run"))


def resumed(path, **changes):
    return fit(tiny(out=str(path), resume=True, **HELD | changes), progress=False)


def fails(capsys, *argv):
    """The one line of a command that ends with exit code 2."""
    code = main(list(map(str, argv)))
    out, err = capsys.readouterr()
    assert (code, out) == (2, "")
    assert err.count("\n") == 1, err
    return err


# ------------------------------------------------------------------------------------------------------- result.json

RESULTS = {
    "text": {"accuracy": "x"},
    "too large": {"accuracy": 1.5},
    "new": {"more": [[[[1]]]]},
}


@pytest.mark.parametrize("name", RESULTS)
def test_a_result_that_cannot_be_true_is_made_anew(copy, finished, name):
    """Also if its checksum is right."""
    rewritten(copy / "result.json", lambda tree: tree | RESULTS[name])
    with pytest.warns(UserWarning, match=r"result\.json is malformed: .*finishing again") as warned:
        result = resumed(copy)
    assert len(warned) == 1
    assert "\n" not in str(warned[0].message)
    assert result.summary.accuracy == json.loads((finished / "result.json").read_text())["accuracy"]
    same_run(finished, copy)
    assert main(["verify", str(copy)]) == 0


def test_a_result_without_checkpoints_is_not_trained_anew(copy):
    """Weights that are there are worth more than a new training nobody asked for."""
    shutil.rmtree(copy / "checkpoints")
    resumed(copy)
    (copy / "result.json").write_text("{")
    with pytest.raises(ValueError, match="there is no checkpoint to finish from again"):
        resumed(copy)
    assert (copy / "final" / "model.safetensors").exists()


def test_damaged_final_weights_are_made_anew(copy, finished):
    file = copy / "final" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-4] + b"\0\1\2\3")
    with pytest.warns(UserWarning, match=r"model\.safetensors is damaged: the checksum .*finishing again"):
        resumed(copy)
    same_run(finished, copy)


# ------------------------------------------------------------------------------------------------------- verify


@pytest.mark.parametrize(
    ("name", "is_finished"),
    [(name, True) for name in ("config.json", "metrics.jsonl", "result.json", "final/model.json")]
    + [(name, False) for name in ("config.json", "metrics.jsonl")],
)
def test_verify_finds_damage_to_any_byte(finished, unfinished, tmp_path, capsys, name, is_finished):
    run = shutil.copytree(finished if is_finished else unfinished, tmp_path / "run")
    file = run / name
    data = file.read_bytes()
    for place in range(0, len(data), max(1, len(data) // 15)):
        file.write_bytes(data[:place] + bytes([data[place] ^ 1 << place % 8]) + data[place + 1 :])
        assert main(["verify", str(run)]) == 1, place
        assert f"damaged  {file}: " in capsys.readouterr().out
    file.write_bytes(data[:-1])
    assert main(["verify", str(run)]) == 1
    file.write_bytes(data)
    assert main(["verify", str(run)]) == 0


def test_half_a_line_is_excused_while_it_is_written(copy, unfinished, tmp_path):
    path = Path(shutil.copytree(unfinished, tmp_path / "other"))
    for each, code in ((path, 0), (copy, 1)):
        with open(each / "metrics.jsonl", "a") as file:
            file.write('{"step": 6, "sp')
        assert main(["verify", str(each)]) == code


def test_a_history_that_was_changed_is_said_when_it_goes_on(begun):
    file = begun / "metrics.jsonl"
    file.write_text(file.read_text().replace('"split": "train"', '"split": "brain"', 1))
    with pytest.warns(UserWarning, match=r"metrics\.jsonl is damaged: the checksum does not match"):
        resumed(begun)


@pytest.mark.parametrize("value", ['"x"', "1" * 400])
def test_a_history_with_values_that_are_no_numbers_goes_on_without_them(begun, value):
    """The line and those after it are left out; whoever reads the lines needs no doubts."""
    file = begun / "metrics.jsonl"
    file.write_text(re.sub(r'"loss": [0-9.]+', f'"loss": {value}', file.read_text()))
    with pytest.warns(UserWarning, match=r"metrics\.jsonl is damaged: 1 of \d lines are intact"):
        result = resumed(begun)
    assert result.summary.step == 6


@pytest.mark.parametrize("drop", ["a tensor", "a file"])
def test_names_in_checksums_that_are_absent(copy, capsys, drop):
    file = copy / "final" / "head.safetensors"
    if drop == "a file":
        file.unlink()
    else:
        rewritten(copy / "final" / "model.json", lambda tree: tree["checksums"]["head"].update(more="01234567"))
        said = "has no tensor 'more'"
        with pytest.raises(ValueError, match=said):
            load_run(copy)
        (copy / "result.json").unlink()  # which has a checksum of model.json
    assert main(["verify", str(copy)]) == 1
    assert f"damaged  {file}: " in capsys.readouterr().out


# ------------------------------------------------------------------------------------------------ pipes and links

FILES = ("config.json", "metrics.jsonl", "result.json", "final/model.json", "final/model.safetensors")
FILES += ("final/head.safetensors", "checkpoints/6/state.json", "checkpoints/6/tensors.safetensors", ".lock")
COMMANDS = (["train", "--resume", "--quiet", "--out"], ["evaluate"], ["export", "--out=o.pt2"], ["verify"])


def replaced(file, kind):
    aside = file.with_name("aside")
    if file.exists():
        file.rename(aside)
    else:
        aside.write_text("")
    if kind == "pipe":
        os.mkfifo(file)
    elif kind == "link":
        file.symlink_to(aside)
    elif kind == "folder":
        file.mkdir()
    else:
        file.symlink_to("/dev/zero")


@pytest.mark.parametrize(
    ("name", "kind"),
    [(name, kind) for name in FILES for kind in ("pipe", "link")] + [("metrics.jsonl", "folder"), (".lock", "endless")],
)
def test_what_is_no_plain_file_is_neither_waited_for_nor_followed(copy, capsys, name, kind, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    if name == ".lock":  # taken by a training alone, and not by one that is finished already
        (copy / "result.json").unlink()
    if name.startswith("checkpoints"):
        (copy / "result.json").unlink()
        shutil.rmtree(copy / "final")
    replaced(copy / name, kind)
    train, *readers, verify = COMMANDS
    for argv in {".lock": [train], "metrics.jsonl": [train, verify]}.get(name, [*readers, verify]):
        assert main([*argv, str(copy)]) == (1 if argv[0] == "verify" else 2)
        out, err = capsys.readouterr()
        lines = [line for line in (out if argv[0] == "verify" else err).splitlines() if not line.startswith("ok ")]
        assert len(lines) == 1
        assert "is not a plain file, but a link, a folder or a pipe" in lines[0]
    assert stat.S_IFMT(os.lstat(copy / name).st_mode) != stat.S_IFREG


@pytest.mark.parametrize("name", ["final", "checkpoints"])
def test_a_folder_outside_is_not_written_to(begun, tmp_path, name, capsys):
    outside = tmp_path / "outside"
    if (begun / name).exists():
        (begun / name).rename(outside)
    else:
        outside.mkdir()
    before = sorted(outside.rglob("*"))
    (begun / name).symlink_to(outside)
    for argv in (["train", "--resume", "--quiet", "--out"], ["evaluate"]):
        if name == "final" and argv[0] == "evaluate":  # there is a checkpoint
            continue
        assert f"{begun / name} must be a folder itself" in fails(capsys, *argv, begun)
    assert sorted(outside.rglob("*")) == before


def test_verify_finds_a_link_in_place_of_a_checkpoint(copy, capsys, tmp_path):
    (copy / "checkpoints" / "6").rename(tmp_path / "6")
    (copy / "checkpoints" / "6").symlink_to(tmp_path / "6")
    assert main(["verify", str(copy)]) == 1
    assert f"damaged  {copy}/checkpoints/6: it must be a folder, not a file or a link" in capsys.readouterr().out


def test_the_folder_of_a_run_may_be_a_link_itself(copy, tmp_path):
    (tmp_path / "link").symlink_to(copy)
    assert load_run(tmp_path / "link").step == load_run(copy).step


# ------------------------------------------------------------------------------------------------------- memory


@pytest.mark.parametrize("place", ["final", "checkpoint"])
def test_a_network_that_is_too_large_is_not_built(copy, monkeypatch, place):
    """The files are small, whatever the config says: their shapes are compared first."""
    rewritten(copy / "config.json", lambda tree: tree["model"].update(widths=[60_000, 60_000]))
    monkeypatch.setattr(run_files, "_build", None)
    path = copy if place == "final" else copy / "checkpoints" / "6"
    with pytest.raises(
        ValueError, match=r"does not fit: \S*layers\.0\.weight is \(8, 64\) there and \(60000, 64\) here"
    ):
        load_run(path)


def test_every_network_of_ours_can_be_outlined():
    """Otherwise it would be built whole before it is compared."""
    from hypersphere import models

    with torch.device("meta"):
        for name in MODELS:  # not models.names(): other tests may have registered theirs
            for parameter in models.create(name).parameters():
                assert parameter.is_meta, name


def header(file, shape, dtype="|u1"):
    """An .npy file that takes no room on the disk."""
    with open(file, "wb") as opened:
        np.lib.format.write_array_header_1_0(opened, {"descr": dtype, "fortran_order": False, "shape": shape})
        opened.truncate(opened.tell() + int(np.prod(shape, dtype=object)) * np.dtype(dtype).itemsize)


@pytest.mark.parametrize(
    ("shape", "said"),
    [
        ((1, 30_000, 30_000), "samples of at most 134217728 numbers, got (1, 30000, 30000)"),
        ((1, 8_000, 8_000), "an image must have at most 33554432 pixels, got 8000×8000"),
    ],
)
def test_arrays_are_images_too(copy, capsys, tmp_path, shape, said):
    header(tmp_path / "large.npy", shape)
    assert said in fails(capsys, "predict", copy, tmp_path / "large.npy")


def test_a_damaged_header_of_an_array(copy, capsys, tmp_path):
    header(tmp_path / "a.npy", (1, 8, 8))
    data = (tmp_path / "a.npy").read_bytes()
    for old, new in ((b"}", b" "), (b"(1, 8, 8)", b"(1, 8, -8"), (b"|u1", b"|O8"), (b"'shape'", b"'shope'")):
        (tmp_path / "a.npy").write_bytes(data.replace(old, new))
        assert "cannot be read as an array: " in fails(capsys, "predict", copy, tmp_path / "a.npy")


def test_large_images_of_an_array_are_taken_one_by_one(copy, capsys, tmp_path, monkeypatch):
    seen = []
    predict = run_files.Run.predict
    monkeypatch.setattr(run_files.Run, "predict", lambda run, rows: (seen.append(len(rows)), predict(run, rows))[1])
    header(tmp_path / "large.npy", (3, 4_500, 4_500))
    assert main(["predict", str(copy), str(tmp_path / "large.npy")]) == 0
    assert seen == [1, 1, 1]


# ------------------------------------------------------------------------------------------------------- crafted


def deep(levels):
    tree = {}
    for _ in range(levels):
        tree = {"a": tree}
    return tree


PROGRESS, GROUP = ("state", "tree", "progress"), ("state", "tree", "optimizers", 0, "param_groups", 0)
CRAFTED = {
    "loss": ((*PROGRESS, "loss"), []),
    "best": ((*PROGRESS, "best"), "x"),
    "metrics": ((*PROGRESS, "metrics"), {"loss": []}),
    "seconds": ((*PROGRESS, "seconds"), 10**400),
    "more": ((*PROGRESS, "more"), 1),
    "rate": ((*GROUP, "lr"), "x"),
    "groups": (GROUP[:-1], "x"),
    "buffer": (("state", "tree", "optimizers", 0, "state", "items", 0, 1), {"momentum_buffer": "x"}),
    "buffer of another": (
        ("state", "tree", "optimizers", 0, "state", "items", 0, 1, "momentum_buffer", "name"),
        "optimizers.0.state.1.momentum_buffer",
    ),
    "state": (("state", "tree", "optimizers", 0, "state"), {"x": {}}),
    "schedule": (("state", "tree", "schedule"), {"best": "x", "waited": 0, "factor": 1.0}),
    "tree": (("state", "tree"), None),
    "deep": (("state", "tree", "schedule", "best"), deep(900)),
    "deep extra": (("state", "more"), deep(300)),
    "classifier": (("state", "tree", "classifier"), {}),
    "key": (("state", "tree", "classifier", "items", 0, 0), 10**30),
}


@pytest.mark.parametrize("name", [name for name in CRAFTED if name != "deep extra"])
def test_crafted_checkpoints_of_the_right_checksum(begun, capsys, name):
    place, value = CRAFTED[name]
    for folder in (begun / "checkpoints").iterdir():
        crafted(folder / "state.json", place, value)
    said = fails(capsys, "train", "--resume", "--quiet", "--out", begun)
    assert str(begun / "checkpoints") in said


def crafted(file, place, value):
    header = json.loads(file.read_text())
    tree = header
    for key in place[:-1]:
        tree = tree[key]
    tree[place[-1]] = value
    body = {key: each for key, each in header.items() if key not in ("format", "checksum")}
    file.write_text(json.dumps(header | {"checksum": checksum(body)}))


def test_indices_that_lead_nowhere(tmp_path, capsys):
    """Of stochastic OPT's dimensions, in a checkpoint whose checksums are right."""
    changes = {"rotation.sample": 4, "rotation.every": 4}
    assert stopped(tiny(out=str(tmp_path), **changes), at_forward(2)) == 2
    folder = tmp_path / "checkpoints" / "2"
    tensors, state = checkpoint.load(folder)
    name = next(name for name in tensors if name.endswith("dims"))
    save_checkpoint(folder.parent, 2, tensors | {name: tensors[name] + 2**40}, state)
    assert "does not match the config" in fails(capsys, "train", "--resume", "--quiet", "--out", tmp_path)


def test_aliases_replace_no_tensor(copy):
    file = copy / "final" / "model.safetensors"
    tensors = load_file(file)
    names = [name for name in tensors if tensors[name].shape == (8,)]
    for alias, name in ((names[0], names[1]), ("new", "nothing"), ("new", 3)):
        save_file(tensors, file, {"aliases": json.dumps({alias: name})})
        with pytest.raises(ValueError, match=rf"its alias {alias!r} must be a new name for an existing tensor"):
            load_run(copy)
    save_file(tensors, file, {"aliases": json.dumps({"new": names[0]})})
    with pytest.raises(ValueError, match="does not fit: unexpected tensor new"):
        load_run(copy)


def test_tied_tensors_have_their_own_checksums(tmp_path):
    """An alias that is damaged could name another tensor of the same shape."""
    file = tmp_path / "model.safetensors"
    a, b = torch.zeros(2), torch.ones(2)
    sums = {key: weights.checksum_of(value) for key, value in {"a": a, "b": b, "tied": a}.items()}
    (tmp_path / "model.json").write_text(checksummed_json.with_checksum({"format": 2, "checksums": {"model": sums}}))
    save_file({"a": a, "b": b}, file, {"aliases": json.dumps({"tied": "a"})})
    assert weights.read_tensors(file)["tied"].tolist() == [0.0, 0.0]
    save_file({"a": a, "b": b}, file, {"aliases": json.dumps({"tied": "b"})})
    with pytest.raises(ValueError, match="the checksum of 'tied' does not match"):
        weights.read_tensors(file)


def test_aliases_in_rotations_replace_no_tensor(tmp_path):
    torch.manual_seed(0)
    file = tmp_path / "rotations.safetensors"
    net = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 2))
    hs.rotation.save_rotations(hs.rotate(net), file)
    tensors = load_file(file)
    ((key, text),) = TensorFile(file).metadata.items()
    header = json.loads(text)
    same = [name for name in tensors if name.endswith("cayley")]
    for changes, words in (
        ({"aliases": {same[0]: same[1]}}, "must be a new name"),
        ({"hashes": header["hashes"] | {"more": "x"}}, "has no tensor 'more'"),
    ):
        save_file(tensors, file, {key: json.dumps(header | changes)})
        with pytest.raises(ValueError, match=words):
            hs.rotation.load_rotations(net, file)


# ------------------------------------------------------------------------------------------------------- disks


def test_a_disk_that_fails_says_its_own_error(begun, monkeypatch):
    """Whatever fails while it is tidied up after."""

    def gone(*_, **__):
        raise OSError(5, "Input/output error of unlink")

    def full(*_):
        monkeypatch.setattr(Path, "unlink", gone)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left on device"):
        resumed(begun)


def test_what_kills_left_is_removed(begun, finished):
    (begun / "final").mkdir()
    left = [".config.json.0123abcd.tmp", ".metrics.jsonl.0123abcd.tmp", "final/.model.safetensors.0123abcd.tmp"]
    others = [".notes.0123abcd.tmp", "final/.model.safetensors.tmp", "final/.mine.json.0123abcd.tmp"]
    for name in (*left, *others):
        (begun / name).write_text("")
    resumed(begun)
    assert [name for name in (*left, *others) if (begun / name).exists()] == others
    assert lines(begun) == lines(finished)


def test_a_failed_write_names_the_file_that_was_asked_for(tmp_path):
    (tmp_path / "a").mkdir()
    with pytest.raises(OSError, match="Is a directory") as caught:
        safe_files.write_text(tmp_path / "a", "text")
    assert caught.value.filename == str(tmp_path / "a")
    assert [each.name for each in tmp_path.iterdir()] == ["a"]


def test_a_run_that_cannot_be_loaded_says_so_once(begun, capsys):
    for folder in (begun / "checkpoints").iterdir():
        (folder / "state.json").write_text("{")
    assert "nor an intact checkpoint; " in fails(capsys, "evaluate", begun)
    assert "none of the checkpoints can be read" in fails(capsys, "train", "--resume", "--quiet", "--out", begun)


def test_a_damaged_checkpoint_is_said_once(begun):
    """It is the best and the newest."""
    folder = begun / "checkpoints"
    save_checkpoint(folder, 6, *checkpoint.load(folder / "5"), keep=9, best=True)
    shutil.rmtree(folder / "4")
    (folder / "6" / "tensors.safetensors").write_bytes(b"")
    with pytest.warns(UserWarning, match="skipping damaged") as warned:
        assert load_run(begun).step == 5
    assert [str(each.message).count("tensors.safetensors") for each in warned] == [1]
