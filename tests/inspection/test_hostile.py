"""`hypersphere inspect` on files made to harm: no code runs, nothing is written, each ends in one line or a report."""

import io
import json
import math
import os
import pickle
import re
import struct
import time
import zipfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import save, save_file
from torch import nn

from hypersphere.cli import main
from hypersphere.inspection import compare, inspect

pytestmark = pytest.mark.slow

# Files that have something to show: a report is right, not an error.
REPORTED = {
    *("nan", "infinity", "largest", "subnormal", "zero", "long_name", "strange_names", "nameless"),
    *("pt_strange_keys", "pt_kinds", "linked_file", "wrong_ending", "many_rows", "pt_cycle"),
}


def header(described, data=b"", length=None):
    text = described if isinstance(described, bytes) else json.dumps(described).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def tensor(shape, begin, end, dtype="F32"):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def safetensors_files():
    """Bytes of files named .safetensors."""
    good = header({"a.weight": tensor([2, 3], 0, 24)}, bytes(range(24)))
    yield "empty", b""
    yield "short", b"\1\2\3"
    yield "header_beyond_the_file", header({}, length=10**6)
    yield "not_json", header(b"{not json at all")
    yield "deep_json", header(b'{"a":' + b"[" * 100_000)
    yield "overlap", header({"a": tensor([2, 3], 0, 24), "b": tensor([2, 3], 12, 36)}, bytes(36))
    yield "outside", header({"a": tensor([2, 3], 0, 24)}, bytes(8))
    yield "wrong_shape", header({"a": tensor([2, 4], 0, 24)}, bytes(24))
    yield "shape_of_2_to_62", header({"a": tensor([2**62, 4], 0, 0)})
    yield "thousand_dimensions", header({"a": tensor([1] * 999 + [6], 0, 24)}, bytes(24))
    yield "unknown_type", header({"a": tensor([2, 3], 0, 24, "F7")}, bytes(24))
    yield "trailing_bytes", good + b"more"
    yield "truncated", good[:-5]
    weight = torch.randn(6, 9)
    yield "nan", save({"a.weight": weight * math.nan})
    yield "infinity", save({"a.weight": weight / 0.0})
    yield "largest", save({"a.weight": torch.full((6, 9), torch.finfo(torch.float64).max, dtype=torch.float64)})
    yield "subnormal", save({"a.weight": weight * 1e-42})
    yield "zero", save({"a.weight": weight * 0})
    yield "many_rows", save({"a.weight": torch.randn(100_000, 2)})
    yield "long_name", save({"n" * 10_000 + ".weight": weight})
    yield "nameless", save({"": weight})
    yield "strange_names", save({name: weight.clone() for name in STRANGE})
    prefix = "a.parametrizations.weight."
    yield "wrong_rotation", save({f"{prefix}original": weight, f"{prefix}0.default.cayley": weight.clone()})


STRANGE = [
    "<script>alert(1)</script>",
    "</script><img src=x onerror=alert(1)>.weight",
    "\"'`$(touch x).weight",
    "\x1b]0;title\x07\x1b[2J\x1b[31mred.weight",
    "line\nend\r.weight",
    "\u202egnp.exe\u200b.weight",
    "🦔" * 200,
    "[bold]rich[/bold].weight",
    "../../etc/passwd",
]


class Gadget:
    """Pickled as a call."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def torch_zip(content, **more):
    """Bytes of a file of torch.save with this pickle, and `more` records (name → bytes)."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", more.pop("compression", zipfile.ZIP_STORED)) as archive:
        archive.writestr("archive/data.pkl", content)
        archive.writestr("archive/version", b"3\n")
        archive.writestr("archive/byteorder", b"little")
        for name, data in more.items():
            archive.writestr(f"archive/data/{name}", data)
    return out.getvalue()


def saved(value, **options):
    out = io.BytesIO()
    torch.save(value, out, **options)
    return out.getvalue()


def pickled_files(canary):
    """Bytes of files named .pt."""
    gadgets = {
        "system": Gadget(os.system, f"touch {canary}"),
        "eval": Gadget(eval, f"open({str(canary)!r}, 'w')"),
        "getattr": Gadget(getattr, "x", "upper"),
    }
    for name, gadget in gadgets.items():
        yield f"pt_{name}", torch_zip(pickle.dumps({"a.weight": gadget}, 2))
    yield "pt_system_legacy", pickle.dumps(gadgets["system"], 2)
    yield (
        "pt_system_after_magic",
        b"".join(
            pickle.dumps(part, 2) for part in (0x1950A86A20F9469CFC6C, 1001, {"little_endian": True}, gadgets["system"])
        ),
    )
    yield "pt_system_protocol_0", pickle.dumps(gadgets["system"], 0)
    yield "pt_module", saved(nn.Linear(3, 4))
    yield "pt_optimizer_alone", saved({"optimizer": {"state": {0: {"exp_avg": torch.ones(3, 4)}}}})
    yield "pt_no_tensor", saved({"a": 1})
    yield "pt_empty", b""
    yield "pt_text", b"a text and no model"
    good = saved({"a.weight": torch.randn(4, 5)})
    yield "pt_truncated", good[: len(good) // 2]
    yield "pt_legacy_truncated", saved({"a.weight": torch.randn(40, 50)}, _use_new_zipfile_serialization=False)[:-4000]
    yield "pt_bomb_of_zeros", torch_zip(bytes(1 << 24), compression=zipfile.ZIP_DEFLATED)
    weight = pickle_of_tensor(shape=(1 << 11, 1 << 11), stride=(1 << 11, 1), numel=1 << 22)
    yield "pt_bomb_of_a_tensor", torch_zip(weight, compression=zipfile.ZIP_DEFLATED, **{"0": bytes(1 << 24)})
    yield "pt_bytearray", torch_zip(pickle.dumps({"a": Gadget(bytearray, 10**13)}, 2))
    yield "pt_expanded", torch_zip(pickle_of_tensor((10**3, 10**3), (0, 0), 4), **{"0": bytes(16)})
    yield "pt_outside_of_its_storage", torch_zip(pickle_of_tensor((100, 100), (100, 1), 4), **{"0": bytes(16)})
    yield "pt_missing_storage", torch_zip(pickle_of_tensor((2, 2), (2, 1), 4))
    yield "pt_negative_size", torch_zip(pickle_of_tensor((-2, -2), (2, 1), 4), **{"0": bytes(16)})
    yield "pt_huge_storage", torch_zip(pickle_of_tensor((10**6, 10**6), (10**6, 1), 10**12), **{"0": bytes(16)})
    cycle = {"a.weight": torch.randn(4, 5)}
    cycle["again"] = [cycle, cycle]
    yield "pt_cycle", saved(cycle)
    shared = [torch.randn(4, 5)]
    for _ in range(60):
        shared = [shared] * 50
    yield "pt_deep_shared_lists", saved(shared)
    yield "pt_strange_keys", saved({name: torch.randn(4, 5) for name in STRANGE})
    kinds = {"sparse": torch.eye(3).to_sparse(), "meta": torch.empty(3, 3, device="meta"), "i": torch.ones(3, 3).int()}
    yield "pt_kinds", saved(kinds | {"complex": torch.ones(3, 3) * 1j, "a.weight": torch.randn(3, 4)})


def pickle_of_tensor(shape, stride, numel):
    """The pickle of {"a.weight": tensor} over the storage "0" with `numel` numbers, as torch writes it."""

    def number(n):
        return b"J" + struct.pack("<i", n) if -(2**31) <= n < 2**31 else b"\x8a\x08" + struct.pack("<q", n)

    def text(value):
        return b"X" + struct.pack("<I", len(value)) + value.encode()

    def sizes(values):
        return b"(" + b"".join(map(number, values)) + b"t"

    storage = b"(" + text("storage") + b"ctorch\nFloatStorage\n" + text("0") + text("cpu") + number(numel) + b"tQ"
    arguments = b"(" + storage + number(0) + sizes(shape) + sizes(stride) + b"\x89ccollections\nOrderedDict\n)Rt"
    return b"\x80\2}" + text("a.weight") + b"ctorch._utils\n_rebuild_tensor_v2\n" + arguments + b"Rs."


def onnx_files(folder):
    """Write ONNX files; yield their names."""
    onnx = pytest.importorskip("onnx")

    def model(change=None, **location):
        stored = onnx.numpy_helper.from_array(torch.randn(4, 5).numpy(), "a.weight")
        if location:
            stored.ClearField("raw_data")
            stored.data_location = 1
            for key, value in location.items():
                stored.external_data.add(key=key, value=value)
        if change is not None:
            change(stored)
        return onnx.helper.make_model(onnx.helper.make_graph([], "g", [], [], [stored])).SerializeToString()

    (folder / "beside.bin").write_bytes(bytes(80))
    (folder / "link.bin").symlink_to("/etc/passwd")
    yield "onnx_empty", b""
    yield "onnx_text", b"a text and no model"
    yield "onnx_truncated", model()[:-20]
    yield "onnx_no_weights", onnx.helper.make_model(onnx.helper.make_graph([], "g", [], [])).SerializeToString()
    yield "onnx_too_few_bytes", model(lambda stored: setattr(stored, "raw_data", bytes(8)))
    yield "onnx_huge_shape", model(lambda stored: stored.dims.extend([2**40]))
    yield "onnx_above_the_folder", model(location="../../../../etc/passwd")
    yield "onnx_absolute", model(location="/etc/passwd")
    yield "onnx_link", model(location="link.bin")
    yield "onnx_missing", model(location="not there.bin")
    yield "onnx_offset", model(location="beside.bin", offset="8")
    yield "onnx_length", model(location="beside.bin", length="79")


def folders(root):
    """Make folders, links and other things that are no files; yield name and path."""
    good = {"a.weight": torch.randn(4, 5)}

    def folder(name, **files):
        place = root / name
        place.mkdir()
        for file, content in files.items():
            target = place / file.replace("__", ".")
            target.write_bytes(content) if isinstance(content, bytes) else save_file(content, target)
        return name, place

    def index(name, value, **files):
        text = value if isinstance(value, bytes) else json.dumps({"weight_map": value}).encode()
        return folder(name, **files, model__safetensors__index__json=text)

    yield folder("no_files")
    yield folder("only_a_text", readme__md=b"hello")
    yield index("index_above", {"a.weight": "../linked_file.safetensors"})
    yield index("index_absolute", {"a.weight": "/etc/passwd"})
    yield index("index_missing", {"a.weight": "b.safetensors"})
    yield index("index_not_json", b"{")
    yield index("index_list", b"[]")
    yield folder("same_tensor_twice", a__safetensors=good, b__safetensors=good)
    yield folder("damaged_shard", a__safetensors=good, b__safetensors=b"\0" * 20)
    name, place = folder("run_without_weights", **{"metrics__jsonl": b""})
    yield name, place
    name, place = folder("run_with_garbage")
    (place / "final").mkdir()
    (place / "final" / "model.safetensors").write_bytes(b"garbage, and more of it")
    yield name, place
    name, place = folder("run_of_links")
    (place / "checkpoints").mkdir()
    (place / "checkpoints" / "5").symlink_to("/etc")
    yield name, place
    name, place = folder("folder_as_file.safetensors")
    yield name, place
    save_file(good, root / "target.safetensors")
    links = {
        "linked_file": "target.safetensors",
        "to_passwd": "/etc/passwd",
        "to_zero": "/dev/zero",
        "to_root": "/proc",
    }
    links |= {"loop": "loop.safetensors", "dangling": "nowhere"}
    for name, target in links.items():
        (root / f"{name}.safetensors").symlink_to(target)
        yield name, root / f"{name}.safetensors"
    os.mkfifo(root / "pipe.safetensors")
    yield "pipe", root / "pipe.safetensors"
    yield "device", Path("/dev/zero")
    yield "nul_in_path", Path("a\0b")
    yield "long_path", root / ("x" * 5000)
    (root / "wrong_ending.bin").write_bytes(save(good))
    yield "wrong_ending", root / "wrong_ending.bin"


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """All files, by name, and where nothing may appear."""
    root = tmp_path_factory.mktemp("corpus")
    canary = tmp_path_factory.mktemp("canary") / "ran"
    found = {}
    for ending, files in {
        "safetensors": safetensors_files(),
        "pt": pickled_files(canary),
        "onnx": onnx_files(root),
    }.items():
        for name, data in files:
            found[name] = root / f"{name}.{ending}"
            found[name].write_bytes(data)
    found |= dict(folders(root))
    return found, root, canary


def contents(root):
    return {path: os.lstat(path).st_mtime_ns for path in sorted(root.rglob("*"))}


def test_every_file_ends_in_one_line_or_a_report(corpus, capsys, monkeypatch, tmp_path):
    found, root, canary = corpus
    assert len(found) >= 60
    monkeypatch.chdir(tmp_path)
    before, wrong = contents(root), {}
    for name, path in found.items():
        start = time.process_time()
        code = main(["inspect", str(path)])
        out, err = capsys.readouterr()
        seconds = time.process_time() - start
        expected = (0, 0) if name in REPORTED else (2, 1)
        if (code, err.count("\n")) != expected or bool(out) != (code == 0) or seconds > 10 or len(err) > 10_000:
            wrong[name] = code, err[:300], seconds
        if re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e\u200b]", out + err):
            wrong[name] = "a control character is printed"
    assert not wrong
    assert not canary.exists()
    assert contents(root) == before
    assert not any(tmp_path.iterdir())


def test_refusals_say_why(corpus):
    for name, words in {
        "overlap": "cannot be read: .*invalid offset",
        "pt_system": r"it holds (posix|os)\.system beside tensors; nothing of it was run",
        "pt_module": r"it holds torch\.nn\.modules\.linear\.Linear beside tensors; nothing of it was run",
        "pt_bytearray": "too much memory",
        "pt_bomb_of_a_tensor": "its records are compressed",
        "pt_bomb_of_zeros": "its records are compressed",
        "pt_text": "it is not a file of torch.save",
        "pt_expanded": "none of its 1 tensors is a matrix",
        "wrong_rotation": r"wrong_rotation\.safetensors: .*does not fit",
        "index_above": "is not the name of a file in its folder",
        "onnx_link": "outside of the file's folder",
        "onnx_above_the_folder": "outside of the file's folder",
        "same_tensor_twice": "two files have a tensor",
        "to_zero": "is not a file",
    }.items():
        with pytest.raises(ValueError, match=words):
            inspect(corpus[0][name])


def test_strange_names_are_shown_in_every_form(corpus, capsys, tmp_path):
    path, page = corpus[0]["strange_names"], tmp_path / "page.html"
    found = inspect(path)
    assert {layer.tensor for layer in [*found, *found.others]} == {*STRANGE}
    assert "line\nend" not in str(found)
    assert "\x1b" not in str(found)
    assert main(["inspect", str(path), "--json", "--html", str(page)]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert {layer["tensor"] for layer in [*shown["layers"], *shown["others"]]} == {*STRANGE}
    text = page.read_text()
    body = re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL)
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in body
    assert "<script>alert" not in text
    assert "<img" not in text
    assert "\x1b" not in text
    assert "line\nend" not in body
    result = compare(path, path)
    assert len(result) == len(STRANGE)
    assert "\x1b" not in str(result)
    assert main(["inspect", str(corpus[0]["long_name"]), "--html", str(page)]) == 0
    assert "n" * 10_000 in page.read_text()
    assert max(map(len, capsys.readouterr().out.splitlines())) < 300
