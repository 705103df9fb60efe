"""Checkpoints: what comes back bit for bit, what stays after a kill or a full disk, and what is found damaged."""

import concurrent.futures
import json
import os
import subprocess
import sys
import threading
from collections import OrderedDict

import numpy as np
import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

import hypersphere as hs
from hypersphere.train.optimizers import OPTIMIZERS
from hypersphere.train.storage import checkpoint, reading
from hypersphere.train.storage.checkpoint import Saver, flatten, latest, load, unflatten
from hypersphere.train.storage.reading import checksum
from tests.runs import checkpoint_problems as verify
from tests.runs import save_checkpoint as save


def bits(tensor):
    return tensor.contiguous().flatten().view(torch.uint8).tolist()


def same(a, b, where="state"):
    """Equal in types, order and every bit."""
    assert type(a) is type(b), where
    if isinstance(a, torch.Tensor):
        assert (a.dtype, a.shape, bits(a)) == (b.dtype, b.shape, bits(b)), where
    elif isinstance(a, np.ndarray):
        assert (a.dtype, a.tolist()) == (b.dtype, b.tolist()), where
    elif isinstance(a, dict):
        assert [(type(k), k) for k in a] == [(type(k), k) for k in b], where
        for key in a:
            same(a[key], b[key], f"{where}.{key}")
    elif isinstance(a, list | tuple):
        assert len(a) == len(b), where
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            same(x, y, f"{where}.{i}")
    else:
        assert repr(a) == repr(b), where


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def one(folder, step=1, value=1.0, **options):
    return save(folder, step, {"w": torch.full((3,), value), "b": torch.tensor(value)}, {"value": value}, **options)


def reloaded(tensors, tree, folder):
    loaded, state = load(save(folder, 0, tensors, {"tree": tree}))
    return unflatten(loaded, state["tree"])


# --------------------------------------------------------------------------------------------------- round trips


def test_tensors_of_every_kind(tmp_path):
    base = torch.randn(4, 6)
    tensors = {
        "float": base,
        "transposed": base.mT,
        "row of it": base[1],
        "nan": torch.tensor([float("nan"), float("inf"), -0.0]),
        "empty": torch.empty(0, 3),
        "scalar": torch.tensor(3, dtype=torch.int64),
        "parameter": nn.Parameter(torch.ones(2)),
        "conj": torch.randn(3, dtype=torch.complex64).conj(),
        "ключ/\n": torch.tensor([True, False]),
    }
    dtypes = (torch.bfloat16, torch.float16, torch.float64, torch.uint8, torch.int16, torch.uint32, torch.float8_e5m2)
    tensors |= {str(dtype): torch.tensor([0.0, 1.0, 3.0]).to(dtype) for dtype in dtypes}
    state = {"a": [1, 2.5, None, True, "ü"], "big": 2**127, "tiny": 5e-324, "empty": {}}
    loaded, got = load(save(tmp_path, 7, tensors, state))
    same(got, state)
    assert set(loaded) == set(tensors)
    for key, value in tensors.items():
        same(loaded[key], value.detach().resolve_conj(), key)
        assert not loaded[key].requires_grad
    assert load(save(tmp_path, 8, {}, {})) == ({}, {})


def test_shared_tensors_are_stored_once_and_shared_again(tmp_path):
    net = nn.Sequential(nn.Linear(50, 50), nn.Linear(50, 50))
    net[1].weight = net[0].weight
    path = save(tmp_path, 1, dict(net.state_dict()), {})
    assert set(load_file(path / "tensors.safetensors")) == {"0.weight", "0.bias", "1.bias"}
    loaded, _ = load(path)
    assert loaded["0.weight"] is loaded["1.weight"]
    for key, value in net.state_dict().items():
        same(loaded[key], value)


def test_conjugates_and_empties_are_not_taken_for_the_same(tmp_path):
    z = torch.randn(3, dtype=torch.complex64)
    loaded, _ = load(save(tmp_path, 1, {"z": z, "conj": z.conj(), "neg": torch._neg_view(z)}, {}))
    assert torch.equal(loaded["conj"], z.conj().resolve_conj())
    assert torch.equal(loaded["neg"], -z)


def make(name, net):
    if name == "ogd":
        hs.rotate(net, "ogd")
        return hs.OGD(hs.param_groups(net, ogd=True), lr=0.02)
    options = {"sgd": {"lr": 0.1, "momentum": 0.9, "nesterov": True}, "adam": {"lr": 0.01, "amsgrad": True}}
    options |= {"lbfgs": {"lr": 0.5, "max_iter": 2}, "adamw": {"lr": torch.tensor(0.01)}}
    kinds = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "lbfgs": torch.optim.LBFGS, "adamw": torch.optim.AdamW}
    return (OPTIMIZERS | kinds)[name](net.parameters(), **options.get(name, {"lr": 0.01}))


@pytest.mark.slow
@pytest.mark.parametrize("name", [*OPTIMIZERS, "lbfgs"])
def test_optimizers_go_on_as_if_nothing_had_been(name, tmp_path):
    def build():
        torch.manual_seed(1)
        net = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4))
        return net, make(name, net)

    def train(net, optimizer, steps):
        for _ in range(steps):
            x = torch.randn(8, 6)

            def closure(x=x):
                optimizer.zero_grad()
                loss = net(x).square().mean()
                loss.backward()
                return loss

            optimizer.step(closure)

    net, optimizer = build()
    train(net, optimizer, 3)
    state = {
        "model": dict(net.state_dict()),
        "optimizer": optimizer.state_dict(),
        "random": torch.get_rng_state(),
    }
    loaded = reloaded(*flatten(state), tmp_path)
    same(loaded, {k: dict(v) if k == "model" else v for k, v in state.items()})
    train(net, optimizer, 3)
    again, other = build()
    again.load_state_dict(loaded["model"])
    other.load_state_dict(loaded["optimizer"])
    torch.set_rng_state(loaded["random"])
    train(again, other, 3)
    same(dict(again.state_dict()), dict(net.state_dict()))
    same(other.state_dict(), optimizer.state_dict())


def test_nested_values_come_back_in_type(tmp_path):
    state = {
        "keys": {0: 1, "0": 2, None: 3, True + 1: 4, (1, "a"): 5, 2.5: 6},
        "tensors": {0: torch.ones(1), "0": torch.zeros(1), "a.b": torch.ones(2)},
        "a": {"b": torch.zeros(3)},
        "a.b": torch.ones(4),
        "$": "tuple",
        "kinds": [(), (1, (2, [3])), [], {}, OrderedDict(b=1, a=2), None, True, 1, 1.0, -0.0],
        "floats": [float("inf"), -float("inf"), float("nan"), 1e-310],
        "text": {"$": {"$": "tensor", "name": "a"}},
    }
    loaded = reloaded(*flatten(state), tmp_path)
    same(loaded, state)
    same(reloaded(*flatten(torch.ones(2)), tmp_path), torch.ones(2))


def test_what_flatten_refuses():
    class Mine(dict):
        pass

    for value in (object(), {1}, b"x", 1j, Mine(), torch.float32, len, torch.Size([1])):
        with pytest.raises(TypeError, match=r"^state\['a'\]\[1\] must be what flatten can store, got "):
            flatten({"a": [0, value]})
    itself: list = []
    itself.append(itself)
    with pytest.raises(ValueError, match="holds itself"):
        flatten(itself)


deep: list = []
for _ in range(100_000):
    deep = [deep]

TREES = {
    "no kind": {"$": "os.system", "items": ["true"]},
    "no tensor": {"$": "tensor", "name": "other"},
    "items": {"$": "tuple", "items": 3},
    "pairs": {"$": "dict", "items": [[1, 2, 3]]},
    "key": {"$": "dict", "items": [[[1], 2]]},
    "bfloat16 array": {"$": "array", "name": "w"},
    "deep": deep,
}


@pytest.mark.parametrize("name", TREES)
def test_what_unflatten_refuses(name):
    with pytest.raises(ValueError, match=r"^tree must be one that flatten made") as caught:
        unflatten({"w": torch.ones(1, dtype=torch.bfloat16)}, TREES[name])
    assert "\n" not in str(caught.value)


# --------------------------------------------------------------------------------------------- which are there


def test_keep_and_best(tmp_path):
    folder = tmp_path / "run" / "checkpoints"
    assert latest(folder) is None
    assert latest(folder, best=True) is None
    for step in (1, 2, 9, 10, 11):
        path = one(folder, step, keep=2, best=step == 2)
        assert path == folder / str(step) == latest(folder)
    assert names(folder) == ["10", "11", "2"]
    assert latest(folder, best=True) == folder / "2"
    one(folder, 12, keep=2, best=True)
    assert names(folder) == ["11", "12"]
    assert latest(folder, best=True) == folder / "12"
    one(folder, 12, 5.0, keep=2)  # once more when the run ends: still the best
    assert latest(folder, best=True) == folder / "12"
    assert load(folder / "12")[1] == {"value": 5.0}
    one(folder, 5, keep=1)  # a run begun anew from an early one: what was just written stays
    assert names(folder) == ["11", "12", "5"]


def test_foreign_files_stay(tmp_path):
    for name in ("notes", "007", "3.bak", ".git", "-1", "٣"):
        (tmp_path / name).mkdir()
    (tmp_path / "6").write_text("a file")
    for step in (1, 2):
        one(tmp_path, step, keep=1)
    assert names(tmp_path) == sorted(["notes", "007", "3.bak", ".git", "-1", "٣", "6", "2"])
    assert latest(tmp_path) == tmp_path / "2"


def test_what_a_killed_process_left_is_put_right(tmp_path):
    one(tmp_path, 1)
    (tmp_path / ".2.0123abcd.tmp").mkdir()
    os.rename(tmp_path / "1", tmp_path / "1.old")  # killed between the two renames
    assert load(tmp_path / "1")[1] == {"value": 1.0}
    assert latest(tmp_path) == tmp_path / "1.old"
    one(tmp_path, 3)
    assert names(tmp_path) == ["1", "3"]
    os.rename(one(tmp_path, 4, 8.0), tmp_path / "3.old")  # killed before the old one was removed
    assert load(latest(tmp_path))[1] == {"value": 1.0}
    one(tmp_path, 5)
    assert names(tmp_path) == ["1", "3", "5"]


# ------------------------------------------------------------------------------------------------------ full disk


def failing(original, error, nth):
    """`original`, but the nth call raises."""
    calls = [0]

    def call(*args, **options):
        calls[0] += 1
        if calls[0] == nth:
            raise error
        return original(*args, **options)

    return call


FAILURES = {
    "tensors": (checkpoint, "save_file", SafetensorError("I/O error:\nNo space left"), 1),
    "first flush": (os, "fsync", OSError(28, "No space left"), 1),
    "flush of all": (os, "fsync", OSError(28, "No space left"), 4),
    "state": (checkpoint, "checksum", OSError(28, "No space left"), 1),
    "second rename": (os, "rename", OSError(28, "No space left"), 2),
    "interrupt": (os, "rename", KeyboardInterrupt(), 2),
}


@pytest.mark.parametrize("name", FAILURES)
def test_a_save_that_fails_leaves_all_as_it_was(name, tmp_path, monkeypatch):
    one(tmp_path, 1)
    one(tmp_path, 2)
    module, function, error, nth = FAILURES[name]
    with monkeypatch.context() as patch:
        patch.setattr(module, function, failing(getattr(module, function), error, nth))
        with pytest.raises(KeyboardInterrupt if name == "interrupt" else OSError) as caught:
            one(tmp_path, 2, 9.0, keep=1)
    if name != "interrupt":
        assert str(tmp_path / "2") in str(caught.value)
        assert "No space left" in str(caught.value)
        assert "\n" not in str(caught.value)
    assert names(tmp_path) == ["1", "2"]
    assert load(latest(tmp_path))[1] == {"value": 1.0}
    one(tmp_path, 2, 9.0, keep=1)
    assert load(latest(tmp_path))[1] == {"value": 9.0}


def test_what_cannot_be_removed_is_a_warning(tmp_path, monkeypatch):
    one(tmp_path, 1)
    monkeypatch.setattr(checkpoint.shutil, "rmtree", failing(checkpoint.shutil.rmtree, OSError("busy"), 1))
    with pytest.warns(UserWarning, match=r"1 could not be removed: busy"):
        one(tmp_path, 2, keep=1)
    assert latest(tmp_path) == tmp_path / "2"


# --------------------------------------------------------------------------------------------------------- damage


def damaged(path, said):
    """One line that names the file; `latest` goes past it with a warning that says the same."""
    with pytest.raises(ValueError) as caught:
        load(path)
    text = str(caught.value)
    assert text.startswith(str(path))
    assert said in text
    assert "\n" not in text
    assert verify(path)[0] == text
    one(path.parent, 0)
    with pytest.warns(UserWarning, match="skipping damaged") as warned:
        assert latest(path.parent) == path.parent / "0"
    assert text in str(warned[0].message)


@pytest.mark.slow
@pytest.mark.parametrize("file", ["tensors.safetensors", "state.json"])
def test_every_flipped_bit_and_every_truncation_is_found(file, tmp_path):
    path = one(tmp_path)
    content = (path / file).read_bytes()
    for place in range(len(content)):
        flipped = bytearray(content)
        flipped[place] ^= 1 << place % 8
        for damage in (flipped, content[:place]):
            (path / file).write_bytes(damage)
            assert verify(path), place
    damaged(path, file)
    (path / file).write_bytes(content)
    assert verify(path) == []


@pytest.mark.parametrize("file", ["tensors.safetensors", "state.json"])
def test_a_missing_file(file, tmp_path):
    path = one(tmp_path)
    (path / file).unlink()
    damaged(path, f"{file} is missing")
    (path / file).mkdir()
    damaged(path, f"{file} is not a plain file")


def test_no_checkpoint(tmp_path):
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(ValueError, match=r"state.json is missing|is not a checkpoint folder"):
            load(path)
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="must be a folder of checkpoints"):
        latest(tmp_path / "file")
    assert latest(tmp_path) is None


def test_every_wrong_tensor_is_named(tmp_path):
    path = one(tmp_path)
    file = path / "tensors.safetensors"
    save_file({"w": torch.zeros(3), "b": torch.ones(1), "c": torch.ones(1)}, file)  # b: same bytes, other shape
    damaged(path, "has a tensor 'c' that was not saved")
    save_file({"w": torch.ones(3), "b": torch.ones(1)}, file)
    damaged(path, "the checksum of 'b' does not match")
    save_file({"w": torch.full((3,), 1.0)}, file)
    damaged(path, "has no tensor 'b'")


def rewritten(path, change):
    """state.json changed by someone who gets its checksum right."""
    header = json.loads((path / "state.json").read_text())
    change(header)
    body = {key: value for key, value in header.items() if key not in ("format", "checksum")}
    (path / "state.json").write_text(json.dumps(header | {"checksum": checksum(body)}))


CHANGES = {
    "newer": (lambda h: h.update(format=3), "has schema version 3; this version of hypersphere reads 2"),
    "none": (lambda h: h.pop("format"), "it has no schema version"),
    "no state": (lambda h: h.pop("state"), "is malformed"),
    "checksums": (lambda h: h.update(checksums=["w", "b"]), "is malformed"),
    "values": (lambda h: h.update(checksums={"w": 1, "b": []}), "'w'"),
    "aliases": (lambda h: h.update(aliases={"a": "other"}), "is malformed"),
    "alias of both": (lambda h: h.update(aliases={"w": "b"}), "is malformed"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_hostile_headers(name, tmp_path):
    path = one(tmp_path)
    change, said = CHANGES[name]
    rewritten(path, change)
    damaged(path, said)


def test_latest_passes_over_all_that_are_damaged(tmp_path):
    for step in (1, 2, 3):
        one(tmp_path, step, best=True)
    (tmp_path / "3" / "state.json").write_text("{")
    (tmp_path / "2" / "tensors.safetensors").write_bytes(b"")
    with pytest.warns(UserWarning, match=r"skipping damaged checkpoints: .*3/state.json .*2/tensors.safetensors"):
        assert latest(tmp_path) == tmp_path / "1"
    with pytest.warns(UserWarning, match=r"2/tensors.safetensors"):
        assert latest(tmp_path, best=True) == tmp_path / "1"
    (tmp_path / "1" / "state.json").unlink()
    with pytest.warns(UserWarning, match="skipping damaged"):
        assert latest(tmp_path) is None


BAD = {
    "step": ({"step": -1}, "step must be >= 0"),
    "keep": ({"keep": 0}, "keep must be >= 1"),
    "tensors": ({"tensors": []}, "tensors must be a dict"),
    "name": ({"tensors": {"__metadata__": torch.ones(1)}}, "__metadata__"),
    "sparse": ({"tensors": {"a": torch.eye(2).to_sparse()}}, r"tensors\['a'\] must be dense"),
    "complex128": ({"tensors": {"a": torch.ones(1, dtype=torch.complex128)}}, "complex128"),
    "tuple": ({"state": {"a": (1,)}}, "state must (be|survive)"),
    "tensor": ({"state": {"a": torch.ones(1)}}, "state must (be|survive)"),
}


@pytest.mark.parametrize("name", BAD)
def test_wrong_arguments(name, tmp_path):
    change, said = BAD[name]
    options = {"step": 1, "tensors": {"w": torch.ones(1)}, "state": {}, "keep": 3} | change
    with pytest.raises((TypeError, ValueError), match=said):
        Saver().save(tmp_path, **options)
    assert names(tmp_path) == []


# -------------------------------------------------------------------------------------------- threads and readers


def test_a_saver_keeps_what_was_when_it_was_called(tmp_path, monkeypatch):
    go = threading.Event()
    monkeypatch.setattr(checkpoint, "save_file", lambda *args: (go.wait(10), save_file(*args)))
    saver, w, state = Saver(), torch.ones(3), {"list": [1]}
    saver.save(tmp_path, 1, {"w": w, "tied": w, "view": w[1:]}, state)
    assert latest(tmp_path) is None  # still being written
    w.zero_()
    state["list"].append(2)
    go.set()
    saver.wait()
    tensors, got = load(tmp_path / "1")
    assert tensors["w"] is tensors["tied"]
    assert [tensors[key].tolist() for key in ("w", "view")] == [[1.0] * 3, [1.0] * 2]
    assert got == {"list": [1]}
    saver.wait()


def test_errors_of_a_saver_surface_at_the_next_call(tmp_path, monkeypatch):
    saver = Saver()
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", failing(os.fsync, OSError(28, "No space left"), 1))
        saver.save(tmp_path, 1, {"w": torch.ones(1)}, {})
        concurrent.futures.wait([saver._job])
    with pytest.raises(OSError, match="No space left"):
        saver.save(tmp_path, 2, {"w": torch.ones(1)}, {})
    assert names(tmp_path) == []  # the second was not begun
    saver.save(tmp_path, 2, {"w": torch.ones(1)}, {})
    saver.wait()
    assert names(tmp_path) == ["2"]


@pytest.mark.slow
def test_a_saver_ends_its_work_when_the_program_ends(tmp_path):
    code = (
        "import sys, torch; from hypersphere.train.storage.checkpoint import Saver; "
        "Saver().save(sys.argv[1], 1, {'w': torch.ones(1_000_000)}, {})"
    )
    subprocess.run([sys.executable, "-c", code, tmp_path], check=True)
    assert latest(tmp_path) == tmp_path / "1"
    assert names(tmp_path) == ["1"]


def test_a_reader_that_comes_while_a_checkpoint_is_aside(tmp_path, monkeypatch):
    one(tmp_path, 0, 1.0, keep=2)
    identity, moved = reading._identity, []

    def move_first(path):
        if not moved:  # the writer is between its two renames
            moved.append(os.rename(path, f"{path}{reading.REPLACED}"))
        return identity(path)

    monkeypatch.setattr(reading, "_identity", move_first)
    assert load(tmp_path / "0")[1]["value"] == 1.0
    assert moved
    with pytest.raises(ValueError, match="9 is not a checkpoint folder"):
        load(tmp_path / "9")


def test_a_checkpoint_below_a_file_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match=r"could not be written: Not a directory$"):
        save(tmp_path / "file" / "checkpoints", 1, {}, {})
