"""The commands that use a run: evaluate, predict, export."""

import csv
import io
import json
import os
import shutil
import sys
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import hypersphere as hs
from hypersphere._internal import progress
from hypersphere._internal.modules import install_command
from hypersphere.cli import main
from hypersphere.cli.export import _compared
from hypersphere.train import Config, derive, fit
from hypersphere.train.inference.run import load_run
from hypersphere.train.inference.scores import ClassScore, Scores
from tests.runs import rewritten
from tests.train.test_run import SMALL

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder of a finished run, a line of text."""
    path = tmp_path_factory.mktemp("runs") / "run"
    fit(derive(Config(), SMALL | {"out": str(path)}), progress=False)
    return str(path)


@pytest.fixture(scope="module")
def digits():
    return hs.data.load("digits", split="test")


@pytest.fixture
def images(tmp_path, digits, monkeypatch):
    """The current folder holds the first three images: b.png, photos/a.png, photos/more/c.png."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos" / "more").mkdir(parents=True)
    for i, name in enumerate(("b.png", "photos/a.png", "photos/more/c.png")):
        Image.fromarray(digits.inputs[i, 0].numpy()).save(name)
    (tmp_path / "photos" / "notes.txt").write_text("no image")
    (tmp_path / "photos" / ".hidden.png").write_text("no image")
    return tmp_path


def run(capsys, *argv):
    """Exit code and what is printed."""
    code = main(list(map(str, argv)))
    return code, *capsys.readouterr()


def fails(capsys, *argv):
    """The one line that is printed."""
    code, out, err = run(capsys, *argv)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    return err.removeprefix(f"hypersphere {argv[0]}: ")[:-1]


@pytest.mark.parametrize("argv", [["evaluate"], ["predict", "b.png"], ["export"]], ids=lambda argv: argv[0])
def test_what_is_no_run(argv, capsys, images):
    name, *rest = argv
    assert fails(capsys, name, "nothing", *rest) == "nothing does not exist"
    assert fails(capsys, name, "photos", *rest) == "photos is not a run folder: it has no config.json"


@pytest.mark.parametrize(
    ("command", "line"),
    [
        (
            "evaluate RUN --split validation",
            "this run has no validation split (data.validation was not set); it has train",
        ),
        ("evaluate RUN --batch_size 0", "argument --batch_size: must be an integer from 1 to 10,000,000, got '0'"),
        ("evaluate RUN --data.root x", "this run uses digits, which needs no files: remove --data.root"),
        ("evaluate RUN --device gpu", "device must be auto, cpu, mps, cuda or cuda:N, got 'gpu'"),
        ("train --data.validation 2000", "data.validation must be below the 1280 training samples, got 2000"),
        ("train --init_from nowhere", "init_from: nowhere does not exist"),
        (
            "train --model.name cnn3 --model.widths 8",
            "model.name=cnn3: widths must have 3 numbers, one per stage, such as",
        ),
        ("predict RUN b.png --top 11", "argument --top: must be at most 10, the classes of the run"),
        ("predict RUN b.png --top 2 --embeddings", "argument --top: needs labels: remove --embeddings"),
        ("predict RUN b.png --top 2 --out x.npy", "argument --top: needs a table, .csv or --json; .npy has all"),
        ("predict RUN b.png --out x.txt", "argument --out: must end in .csv or .npy, got 'x.txt'"),
        ("predict RUN b.png --out no/x.csv", "argument --out: must be a file in a folder that exists, got 'no/x.csv'"),
        (
            "export RUN/checkpoints/10 --to safetensors",
            "--out is needed: the file to write, such as model.safetensors",
        ),
        ("export RUN/checkpoints/10", "--out is needed: the file to write, such as model.onnx"),
        (
            "export RUN --out a.bin",
            "the file must end in .onnx, .pt2, .safetensors, or give the format (to=, --to); got a.bin",
        ),
        ("export RUN --out a.safetensors --embeddings", "embeddings go with onnx and torch: a file of tensors has no"),
    ],
)
def test_user_errors_in_one_line(folder, capsys, images, command, line):
    assert fails(capsys, *command.replace("RUN", folder).split()).startswith(line)


# ------------------------------------------------------------------------------------------------------- evaluate


def test_evaluate_prints_tables(folder, capsys):
    code, out, err = run(capsys, "evaluate", folder)
    result = json.loads((load_run(folder).path / "result.json").read_text())
    title, header, values, empty, classes, *rest = out.splitlines()
    assert (code, err, empty) == (0, "", "")
    assert title == "mlp on digits, test, step 20"
    assert header.split() == ["samples", "accuracy", "loss", "energy"]
    assert values.split() == ["517", f"{result['accuracy']:.2%}", f"{result['loss']:.4f}", f"{result['energy']:.4f}"]
    assert classes.split() == ["class", "samples", "accuracy"]
    assert [line.split()[0] for line in rest[:10]] == list("0123456789")
    assert [line.split() for line in rest[11:]][1:] == [[k, f"{v:.4f}"] for k, v in result["energies"].items()]


def test_evaluate_prints_json(folder, capsys):
    code, out, _ = run(capsys, "evaluate", folder, "--json", "--split", "train", "--batch_size", "100")
    metrics = json.loads(out)
    assert code == 0
    assert (metrics["split"], metrics["samples"], metrics["path"]) == ("train", 1280, folder)
    assert sum(score["samples"] for score in metrics["classes"].values()) == 1280


def test_evaluate_lists_the_worst_of_many_classes():
    classes = {f"c{i}": ClassScore(i % 2, 1 - i / 100 if i % 2 else None) for i in range(60)}
    _, table = Scores("title", "test", 1, 9, 0.0, 1.0, classes | {"\n": ClassScore(1, 0.0)}, {}).tables()
    assert table.header[0] == "the worst 20 of 61 classes"
    assert [row[0] for row in table.rows] == [r"'\n'", *(f"c{i}" for i in range(59, 21, -2))]


def test_evaluate_takes_data_from_elsewhere(folder, capsys, monkeypatch, digits, tmp_path):
    seen = []

    def load(root, split):
        seen.append(str(root))
        return digits.subset(range(100))

    monkeypatch.setitem(hs.data.DATASETS, "scans", hs.data.RegisteredDataset(load))
    moved = shutil.copytree(folder, tmp_path / "run")
    rewritten(moved / "config.json", ('"digits"', '"scans"'))
    code, out, _ = run(capsys, "evaluate", str(moved), "--data.root", "elsewhere", "--json")
    assert (code, set(seen), json.loads(out)["samples"]) == (0, {"elsewhere"}, 100)


# ------------------------------------------------------------------------------------------------------- predict


def test_predict_prints_a_table(folder, capsys, images, digits):
    np.save("d.npy", digits.inputs[2:4, 0].numpy())
    code, out, err = run(capsys, "predict", folder, "photos", "b.png", "d.npy")
    assert (code, err) == (0, "")
    labels, probabilities = load_run(folder).predict(digits.inputs[[1, 2, 0, 2, 3]])
    names = ["photos/a.png", "photos/more/c.png", "b.png", "d.npy[0]", "d.npy[1]"]
    rows = zip(names, labels, probabilities.amax(1).tolist(), strict=True)
    expected = [["file", "label", "probability"], *([name, label, f"{p:.4f}"] for name, label, p in rows)]
    assert [line.split() for line in out.splitlines()] == expected


def test_predict_quietly(folder, capsys, images, monkeypatch):
    shown = []
    monkeypatch.setattr(progress, "track", lambda items, what: shown.append(what) or items)
    tables = [run(capsys, "predict", folder, "b.png", *flags)[1] for flags in ([], ["--quiet"])]
    assert (shown, tables[0]) == (["predict"], tables[1])


def test_predict_writes_csv(folder, capsys, images, digits):
    (images / "a,b.png").write_bytes((images / "b.png").read_bytes())
    assert run(capsys, "predict", folder, "a,b.png", "photos", "--out", "x.csv", "--top", 3) == (
        0,
        "wrote x.csv: 3 rows\n",
        "",
    )
    header, *rows = csv.reader((images / "x.csv").open())
    assert header == ["file", "label", "probability", "label2", "probability2", "label3", "probability3"]
    assert [row[0] for row in rows] == ["a,b.png", "photos/a.png", "photos/more/c.png"]
    values, places = load_run(folder).predict(digits.inputs[:3])[1].topk(3)
    assert [row[1::2] for row in rows] == [[digits.classes[i] for i in row] for row in places]
    np.testing.assert_allclose([[float(p) for p in row[2::2]] for row in rows], values, rtol=1e-6)


def test_predict_prints_json(folder, capsys, images):
    code, out, _ = run(capsys, "predict", folder, "b.png", "--json", "--top", 2)
    (row,) = json.loads(out)
    assert (code, list(row), len(row["top"])) == (0, ["file", "label", "probability", "top"], 2)
    assert row["top"][0] == {"label": row["label"], "probability": row["probability"]}
    (plain,) = json.loads(run(capsys, "predict", folder, "b.png", "--json")[1])
    assert plain == {key: row[key] for key in ("file", "label", "probability")}


def test_predict_gives_all_probabilities_of_arrays(folder, capsys, images, digits):
    """More than a batch of them, as pixels and as normalized numbers."""
    expected = load_run(folder).predict(digits.inputs[:150])[1]
    for inputs in (digits.inputs[:150], load_run(folder).preprocess(digits.inputs[:150])):
        np.save("d.npy", inputs.numpy())
        assert run(capsys, "predict", folder, "d.npy", "--out", "x.npy") == (0, "wrote x.npy: 150 rows\n", "")
        torch.testing.assert_close(torch.from_numpy(np.load("x.npy")), expected)


def test_predict_maps_one_batch_of_an_array_at_a_time(folder, capsys, images, digits, monkeypatch):
    """And writes the table batch by batch, as if it was written at once."""
    np.save("d.npy", digits.inputs[:150].numpy())
    code, printed, _ = run(capsys, "predict", folder, "d.npy", "--json")
    load, mapped, alive = np.load, [], []

    def mapping(*arguments, **options):
        alive.append(sum(array() is not None for array in mapped))
        array = load(*arguments, **options)
        mapped.append(weakref.ref(array))
        return array

    monkeypatch.setattr(np, "load", mapping)
    assert run(capsys, "predict", folder, "d.npy", "--out", "x.csv") == (0, "wrote x.csv: 150 rows\n", "")
    assert (code, alive) == (0, [0, 0, 1, 1])  # mapped for its shape, then for three batches; the last one is alive
    with open("x.csv") as file:
        rows = list(csv.DictReader(file))
    assert [(row["file"], row["label"]) for row in rows] == [(x["file"], x["label"]) for x in json.loads(printed)]


def test_predict_leaves_no_part_of_a_table(folder, capsys, images, digits):
    np.save("d.npy", digits.inputs[:150].float().sub_(127.5).div_(128).numpy())
    array = np.load("d.npy", mmap_mode="r+")
    array[140] = np.nan
    array.flush()
    before = sorted(os.listdir())
    assert "d.npy[128] and on: inputs must be finite" in fails(capsys, "predict", folder, "d.npy", "--out", "x.csv")
    assert sorted(os.listdir()) == before


def test_predict_gives_embeddings(folder, capsys, images, digits):
    expected = load_run(folder).embed(digits.inputs[:1])
    command = ["predict", folder, "b.png", "--embeddings"]
    assert run(capsys, *command, "--out", "x.npy") == (0, "wrote x.npy and x.csv: 1 rows\n", "")
    torch.testing.assert_close(torch.from_numpy(np.load("x.npy")), expected)
    header, row = csv.reader(io.StringIO(run(capsys, *command)[1]))
    assert header == ["file", *(f"e{i}" for i in range(16))]
    np.testing.assert_allclose([float(x) for x in row[1:]], expected[0], rtol=1e-6)
    (row,) = json.loads(run(capsys, *command, "--json")[1])
    np.testing.assert_allclose(row["embedding"], expected[0], rtol=1e-6)


def test_predict_names_the_rows_of_embeddings(folder, capsys, images, digits):
    """By file and class folder, in a table beside the array, which can be mapped."""
    np.save("d.npy", digits.inputs[:70].numpy())
    assert run(capsys, "predict", folder, "photos", "b.png", "d.npy", "--embeddings", "--out", "x.npy")[0] == 0
    with open("x.csv") as file:
        rows = list(csv.DictReader(file))
    named = [("photos/a.png", ""), ("photos/more/c.png", "more"), ("b.png", ""), ("d.npy[0]", "")]
    assert [(row["file"], row["label"]) for row in rows[:4]] == named
    mapped = np.load("x.npy", mmap_mode="r")
    assert (mapped.shape, mapped.dtype, len(rows)) == ((73, 16), np.float32, 73)
    np.testing.assert_allclose(mapped[3:], load_run(folder).embed(digits.inputs[:70]), rtol=1e-5, atol=1e-6)
    (images / "photos" / "test" / "cat").mkdir(parents=True)
    shutil.copy("b.png", "photos/test/cat/d.png")  # as in a dataset with splits
    assert run(capsys, "predict", folder, "photos", "--embeddings", "--out", "x.npy")[0] == 0
    assert Path("x.csv").read_text().splitlines()[-1] == "photos/test/cat/d.png,cat"
    labelled = run(capsys, "predict", folder, "photos/more", "--embeddings", "--out", "x.npy")
    assert (labelled[0], Path("x.csv").read_text()) == (0, "file,label\nphotos/more/c.png,\n")


def test_embeddings_and_their_names_are_of_one_command(folder, capsys, images, digits, monkeypatch):
    """After an error both are the old ones; after a kill between the renames there is no array."""
    command = ["predict", folder, "b.png", "--embeddings", "--out", "x.npy"]
    assert run(capsys, *command)[0] == 0
    before = {name: Path(name).read_bytes() for name in sorted(os.listdir()) if Path(name).is_file()}
    (images / "bad.png").write_bytes(b"junk")
    fails(capsys, "predict", folder, "b.png", "bad.png", "--embeddings", "--out", "x.npy")
    os.unlink("bad.png")
    assert {name: Path(name).read_bytes() for name in sorted(os.listdir()) if Path(name).is_file()} == before
    replace, seen = os.replace, []

    def killed(source, target):
        seen.append((Path(target).name, os.path.exists("x.npy")))
        if len(seen) == 2:
            raise KeyboardInterrupt
        replace(source, target)

    monkeypatch.setattr(os, "replace", killed)
    main(command)
    assert seen == [("x.csv", False), ("x.npy", False)]
    assert not os.path.exists("x.npy")
    os.mkdir("y.csv")
    assert "argument --out: y.csv is a folder" in fails(capsys, *command[:-1], "y.npy")


def archive():
    with open("bad.npy", "wb") as file:
        np.savez(file, a=np.zeros(1), b=np.zeros(1))


def array(shape, dtype=np.uint8):
    return lambda: np.save("bad.npy", np.zeros(shape, dtype))


@pytest.mark.parametrize(
    ("make", "file", "line"),
    [
        (lambda: None, "nothing.png", "no such file: 'nothing.png'"),
        (lambda: None, "photos/notes.txt", "photos/notes.txt is not a readable image: cannot identify"),
        (lambda: Path("bad.npy").write_text("junk"), "bad.npy", "bad.npy cannot be read as an array: "),
        (lambda: np.save("bad.npy", np.array([{}])), "bad.npy", "bad.npy cannot be read as an array: Array"),
        (archive, "bad.npy", "bad.npy cannot be read as an array: it is an archive"),
        (array((0, 1, 8, 8)), "bad.npy", "bad.npy must hold samples (N, 1, 8, 8), got (0, 1, 8, 8)"),
        (array((9, 8, 3)), "bad.npy", "bad.npy must hold samples (N, 1, 8, 8), got (9, 8, 3)"),
        (array((2, 8, 8), np.float32), "bad.npy", "bad.npy must hold samples (N, 1, 8, 8), got (2, 8, 8)"),
        (array((2, 1, 8, 8), np.int32), "bad.npy", "bad.npy[0] and on: inputs must be uint8 pixels or normalized"),
        (lambda: os.mkdir("void"), "void", "'void' contains no image ending in .jpg"),
    ],
)
def test_predict_of_what_cannot_be_read(folder, capsys, images, make, file, line):
    make()
    assert fails(capsys, "predict", folder, "b.png", file, "--out", "x.csv").startswith(line)
    assert not (images / "x.csv").exists()


def test_predict_of_other_kinds(capsys, images, monkeypatch, digits):
    data = hs.data.ArrayDataset(torch.rand(8, 5), torch.arange(8) % 2, ["a", "b"])
    monkeypatch.setitem(hs.data.DATASETS, "vectors", hs.data.RegisteredDataset(lambda root, split: data))
    fit(derive(Config(), SMALL | {"data.name": "vectors", "steps": 1, "out": "run"}), progress=False)
    np.save("d.npy", data.inputs.numpy())
    code, out, _ = run(capsys, "predict", "run", "d.npy", "--json")
    assert (code, [row["label"] for row in json.loads(out)]) == (0, load_run("run").predict(data.inputs)[0])
    assert fails(capsys, "predict", "run", "b.png") == "b.png: this run takes other: pass .npy arrays"


def test_a_generator_has_no_labels(capsys, images, monkeypatch, digits):
    monkeypatch.setitem(
        hs.data.DATASETS, "digits", hs.data.RegisteredDataset(lambda root, split: digits.subset(range(4)))
    )
    small = {"model.name": "generator.mhe", "model.widths": (4, 4, 4, 4), "steps": 1}
    fit(derive(Config(), SMALL | small | {"out": "run"}), progress=False)
    line = "run has no labels: its network, generator.mhe, is no classifier"
    assert fails(capsys, "predict", "run", "b.png") == line
    assert fails(capsys, "evaluate", "run") == line


def test_ink_on_paper_is_not_what_the_digits_look_like(folder, images, digits, capsys):
    assert run(capsys, "predict", folder, "b.png", "photos")[2] == ""
    for i in range(2):
        Image.fromarray(255 - digits.inputs[i, 0].numpy()).resize((90, 90)).save(f"paper{i}.png")
    line = "dark on light, but digits is light on dark: try inverting the images\n"
    code, out, err = run(capsys, "predict", folder, "b.png", "paper0.png", "--json")
    assert (code, err, len(json.loads(out))) == (0, f"hypersphere predict: paper0.png: {line}", 2)
    err = run(capsys, "predict", folder, "paper0.png", "b.png", "paper1.png")[2]
    assert err == f"hypersphere predict: paper0.png and 1 more: {line}"


# ------------------------------------------------------------------------------------------------------- export


TAKES = "inputs: float32 (B, 1, 8, 8): grey, (x - 127.5) / 128 of pixels x from 0 to 255"


def test_export_to_onnx_beside_the_run(folder, capsys, monkeypatch):
    pytest.importorskip("onnxscript")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    code, out, err = run(capsys, "export", folder)
    path = load_run(folder).path / "final" / "model.onnx"
    assert (code, err) == (0, "")
    assert out == f"wrote {path} (not compared with the network: needs onnxruntime)\n{TAKES}\n"
    assert path.exists()
    assert _compared("onnx", 2.3e-7) == " (differs from the network by 2.3e-07 at most)"


def test_export_by_the_ending(folder, capsys, tmp_path):
    assert run(capsys, "export", folder, "--out", tmp_path / "a.safetensors") == (
        0,
        f"wrote {tmp_path}/a.safetensors\n{TAKES}\n",
        "",
    )
    code, out, _ = run(capsys, "export", folder, "--out", tmp_path / "a.pt2", "--embeddings", "--json")
    assert (code, json.loads(out)) == (
        0,
        {
            "path": f"{tmp_path}/a.pt2",
            "format": "torch",
            "step": 20,
            "difference": 0.0,
            "inputs": TAKES.removeprefix("inputs: "),
        },
    )
    assert torch.export.load(tmp_path / "a.pt2").module()(torch.zeros(5, 1, 8, 8)).shape == (5, 16)


def test_exported_embeddings_do_not_replace_the_network(folder, capsys):
    path = load_run(folder).path / "final" / "embeddings.pt2"
    out = run(capsys, "export", folder, "--to", "torch", "--embeddings")[1]
    assert out.startswith(f"wrote {path} ")
    path.unlink()


def test_export_of_tensors_has_a_default_file(folder, capsys):
    path = load_run(folder).path / "final" / "exported.safetensors"
    assert run(capsys, "export", folder, "--to", "safetensors") == (0, f"wrote {path}\n{TAKES}\n", "")
    path.unlink()


def test_export_of_an_unfinished_run_says_so(folder, capsys, tmp_path):
    begun = shutil.copytree(folder, tmp_path / "begun", ignore=shutil.ignore_patterns("final", "result.json"))
    assert fails(capsys, "export", begun) == (
        f"{begun} is not finished: this is its step 20; --out is needed: the file to write, such as model.onnx"
    )
    _, out, _ = run(capsys, "export", begun, "--out", tmp_path / "a.safetensors")
    assert out.splitlines()[2:] == [f"{begun} is not finished: the weights are those of step 20"]


def test_export_names_the_package_that_is_missing(folder, capsys, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "onnx", None)
    line = fails(capsys, "export", folder, "--out", tmp_path / "a.onnx")
    assert line.startswith(f"exporting to ONNX needs onnx: {install_command('export')}, or export to torch")
    assert not list(tmp_path.iterdir())


def test_a_run_with_data_and_network_of_one_s_own_needs_the_file_that_registers_them(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(
        """
import torch, hypersphere as hs
from hypersphere.train import Config, derive
print("said by the file")
def coins(root, split):
    x = torch.linspace(-1, 1, 40)[:, None]
    return hs.data.ArrayDataset(x, (x[:, 0] > 0).long(), ["tail", "head"])
hs.data.register("own_coins", coins)
hs.models.register("own_network", lambda num_classes=2, input_size=(1, 1): torch.nn.Linear(input_size[1], num_classes))
def mine():
    return derive(Config(), {"model.name": "own_network", "data.name": "own_coins", "steps": 2})
"""
    )
    with monkeypatch.context() as patch:
        patch.setattr("hypersphere.models._registry.PRESETS", dict(hs.models.PRESETS))
        patch.setattr("hypersphere.data._registry.DATASETS", dict(hs.data.DATASETS))
        assert main(["train", "mine.py", "--out", "run", "--quiet"]) == 0
    capsys.readouterr()
    assert fails(capsys, "evaluate", "run").endswith(
        "unknown model.name 'own_network'; if it is your own, pass the recipe file with --recipe"
    )
    with monkeypatch.context() as patch:
        patch.setattr("hypersphere.models._registry.PRESETS", dict(hs.models.PRESETS))
        patch.setattr("hypersphere.data._registry.DATASETS", dict(hs.data.DATASETS))
        code, out, err = run(capsys, "evaluate", "run", "--recipe", "mine.py", "--json")
    assert (code, err) == (0, "said by the file\n")
    assert json.loads(out)["samples"] == 40
