"""Figures of runs, drawn from small trainings; the numbers are those of the runs' own files."""

import json
import math
import re
import xml.etree.ElementTree as ElementTree
from importlib import import_module
from pathlib import Path

import pytest
import torch
from PIL import Image

from hypersphere import models
from hypersphere.cli import main
from hypersphere.data import read_pairs
from hypersphere.papers import tables
from hypersphere.papers.figures import FIGURES, writing
from hypersphere.papers.reproduce import results
from hypersphere.report.run_files import read_runs
from hypersphere.train import fit, load_run
from hypersphere.train.inference.scores import open_scores
from tests.runs import small_gan, tiny
from tests.train.test_openset import SMALL, faces, write_pairs  # noqa: F401

generated = import_module("hypersphere.papers.figures.generated")  # the package has a function of this name
SVG = "{http://www.w3.org/2000/svg}"
OF_RUNS = [name for name, figure in FIGURES.items() if figure.inputs[0]]
HOSTILE = "<script>alert('1')<script> & \"run\""


def trained(folder, **changes):
    fit(tiny(**changes | {"out": str(folder)}), progress=False)
    return folder


def draw(name, *paths):
    drawing = FIGURES[name].draw([*map(Path, paths)])
    ElementTree.fromstring(drawing.svg)
    return drawing


def texts(drawing):
    return [text.text for text in ElementTree.fromstring(drawing.svg).iter(f"{SVG}text")]


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """Two seeds of one config, below a folder with a hostile name."""
    folder = tmp_path_factory.mktemp("runs") / HOSTILE.replace("/", "")
    return [trained(folder / f"seed{seed}", seed=seed) for seed in (0, 1)]


@pytest.fixture(scope="module")
def rotated(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("runs") / "rotated", **{"rotation.method": "cayley"})


# ------------------------------------------------------------------------------------------------ bad input


@pytest.mark.parametrize("name", OF_RUNS)
def test_no_run_and_a_missing_run_are_one_line(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for argv in ([], ["no such run"], [str(tmp_path)]):
        assert main(["figure", name, *argv]) == 2
        out, error = capsys.readouterr()
        assert (out, error.count("\n")) == ("", 1)
        assert error.startswith("hypersphere figure: ")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("k", "has no learned k: it was not trained with --model.similarity learnable"),
        ("lambda", "none of the runs has an energy with a weight above 0"),
        ("imbalance", "needs features of 2 dimensions, as with --model.fc 2; it has 8 dimensions"),
        ("features3d", "needs features of 3 dimensions, as with --model.fc 3; it has 8 dimensions"),
        ("generated", "is not a GAN's run: its network is mlp"),
        ("roc", "has no list of pairs: give the file of one"),
        ("identification", "no distractors"),
    ],
)
def test_a_run_of_another_kind(name, error, rotated):
    with pytest.raises(ValueError, match=re.escape(error)):
        FIGURES[name].draw([rotated])


def test_the_same_run_twice(plain):
    with pytest.raises(ValueError, match="the same run was given twice"):
        FIGURES["identification"].draw([plain[0], plain[0]])


# ------------------------------------------------------------------------------------------------ curves


def test_convergence(plain, rotated):
    drawing = draw("convergence", *plain, rotated)
    lines = [[line for line in run.lines if line.split == "test"] for run in read_runs([*plain, rotated])]
    for name, last in {
        "accuracy, %": [100 * run[-1].accuracy for run in lines],
        "error, %": [100 - 100 * run[-1].accuracy for run in lines],
        "loss": [run[-1].loss for run in lines],
    }.items():
        shown = [row[f"test {name}"] for row in drawing.rows]
        assert shown == pytest.approx([(last[0] + last[1]) / 2, last[2]]), name
    assert [row["seeds"] for row in drawing.rows] == [2, 1]
    assert drawing.svg.count("<polygon") == 3  # the bands over two seeds
    drawn = [line.get("points").split() for line in ElementTree.fromstring(drawing.svg).iter(f"{SVG}polyline")]
    assert [len(points) for points in drawn] == 3 * [len(lines[0]), len(lines[2])]
    titles = [f"{part}test {name} over the steps" for part, name in (("Convergence: ", "accuracy"), ("", "error"))]
    assert {*titles, "test loss over the steps"} <= {*texts(drawing)}
    assert any(HOSTILE in str(text) for text in texts(drawing))
    assert "<script" not in drawing.svg


def literal_energy(weight):
    """OPT, App. K: E = Σ_i Σ_{j≠i} ‖v̂_i − v̂_j‖⁻¹."""
    unit = weight.detach().double().flatten(1)
    unit = unit / unit.norm(dim=1, keepdim=True)
    return sum(float(1 / (a - b).norm()) for i, a in enumerate(unit) for j, b in enumerate(unit) if i != j)


@pytest.mark.slow
def test_energy_of_layers(plain, rotated, tmp_path):
    """Baseline, HS-MHE and OPT together: one energy for all, whatever each of them minimizes."""
    half = trained(tmp_path / "half", **{"energy.half_space": True, "energy.output_weight": 1.0})
    drawing = draw("energy", *plain, rotated, half)
    hidden = ["layers.0", "layers.2"]
    for path, name in ((rotated, "rotated"), (half, "half")):
        found = {row["layer"]: row for row in drawing.rows if row["run"].endswith(name)}
        assert list(found) == ["all", *hidden]  # without the classifier
        network = load_run(path).classifier.network
        energies = {layer: literal_energy(network.get_submodule(layer).weight) for layer in hidden}
        assert [found[layer]["last"] for layer in hidden] == pytest.approx(list(energies.values()), rel=1e-4)
        assert found["all"]["last"] == pytest.approx(sum(energies.values()), rel=1e-4)
    found = {row["layer"]: row for row in drawing.rows if row["run"].endswith("rotated")}
    assert found["all"]["last"] == pytest.approx(found["all"]["first"], rel=1e-4)  # OPT keeps it
    assert {"Hyperspherical energy of all layers", "Test error", *hidden} <= {*texts(drawing)}
    assert "s = 1, full space" in drawing.notes[0]


def test_only_regularized_or_rotated_layers_are_in_the_energy(tmp_path):
    for name, changes in (
        ("half", {"energy.exclude": "layers.0"}),
        ("opt", {"rotation.method": "cayley", "rotation.layers": "layers.2"}),
    ):
        run = read_runs([trained(tmp_path / name, steps=1, **changes)])[0]
        assert list(run.energies("pair_energies")) == ["layers.2"], name


def test_learned_k(tmp_path):
    run = trained(tmp_path / "run", **{"model.similarity": "learnable"})
    drawing = draw("k", run)
    layers = {name: k for name, k in load_run(run).model.state_dict().items() if name.endswith("log_k")}
    assert [row["layer"] for row in drawing.rows] == [name.removesuffix(".similarity.log_k") for name in layers]
    for row, log_k in zip(drawing.rows, layers.values(), strict=True):
        k = log_k.exp()
        assert (row["filters"], row["mean"]) == (k.numel(), pytest.approx(float(k.mean())))
        assert row["highest"] == pytest.approx(float(k.max()))


@pytest.mark.slow
def test_sweep_of_lambda(plain, tmp_path):
    paths = []
    for weight in (0.1, 10.0):
        for name, half in (("full", False), ("half", True)):
            energy = {"energy.hidden_weight": weight, "energy.output_weight": 0.0, "energy.half_space": half}
            paths.append(trained(tmp_path / f"{name}{weight}", steps=3, **energy))
    drawing = draw("lambda", *paths, *plain)
    errors = {path.name: 100 - 100 * json.loads((path / "result.json").read_text())["accuracy"] for path in paths}
    found = {(row["energy"], row["λ"]): row["error (%)"] for row in drawing.rows}
    assert found[("MHE (H)", 10.0)] == pytest.approx(errors["full10.0"])
    assert found[("HS-MHE (H)", 0.1)] == pytest.approx(errors["half0.1"])
    assert ("none", 0.0) in found
    default = trained(tmp_path / "default", steps=2, **{"energy.hidden_weight": 0.0})  # of the output layer: 1
    assert [(row["energy"], row["λ"]) for row in draw("lambda", default).rows] == [("MHE (O)", 1.0)]


def test_sweep_from_a_results_file(tmp_path):
    table = tables.load("mhe.4")
    for row, error in zip(table.rows[:4], (30.0, 28.0, 27.0, 26.0), strict=True):
        results.add(tmp_path, "mhe.4", results.RunResult(row.name, 0, results.FULL, "", {"error": error}))
    drawing = draw("lambda", tmp_path / "mhe.4.json")
    assert {row["error (%)"] for row in drawing.rows} == {30.0, 28.0, 27.0, 26.0}
    (tmp_path / "opt.99.json").write_text("{}")
    with pytest.raises(ValueError, match=r"unknown table 'opt\.99'"):
        FIGURES["lambda"].draw([tmp_path / "opt.99.json"])


# ------------------------------------------------------------------------------------------------ features, images


@pytest.mark.parametrize(("name", "size"), [("imbalance", 2), ("features3d", 3)])
def test_features(name, size, tmp_path):
    run = trained(tmp_path / HOSTILE.replace("/", ""), **{"model.widths": (8, size), "steps": 3})
    drawing = draw(name, run)
    assert any(HOSTILE in str(text) for text in texts(drawing))
    weight = torch.nn.functional.normalize(load_run(run).model.state_dict()["classifier.weight"], dim=1)
    if name == "imbalance":
        angles = torch.acos((weight @ weight.T).clamp(-1, 1)) + math.pi * torch.eye(10)
        assert [row["degrees"] for row in drawing.rows] == pytest.approx(angles.amin(1).rad2deg().tolist(), abs=1e-2)
    else:
        (panel,) = drawing.panels
        assert len(panel.scene.series) == 20  # dots and an arrow of each class
        page = writing.html(drawing, "t", "s")
        assert "<script>alert" not in page


def test_images_of_a_generator(tmp_path, monkeypatch):
    for name in ("generator.mhe", "discriminator.mhe"):
        monkeypatch.setitem(models.PRESETS, name, models.PRESETS[name])
    small_gan()
    run = trained(tmp_path / "gan", **{"model.name": "generator.mhe", "model.widths": (4, 4, 4, 4), "steps": 2})
    drawing = draw("generated", run)
    assert drawing.svg.count("<image ") == 2
    assert {"data", "gan"} <= {*texts(drawing)}


@pytest.mark.slow
def test_real_images_have_the_size_of_the_generated_ones(tmp_path, monkeypatch):
    """Files of any size, and networks of data.size."""
    for name in ("generator.mhe", "discriminator.mhe"):
        monkeypatch.setitem(models.PRESETS, name, models.PRESETS[name])
    small_gan()
    for i in range(80):
        folder = tmp_path / "images" / ("train", "test")[i // 40] / "ab"[i % 2]
        folder.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (40 + i, 50), (3 * i, 0, 255)).save(folder / f"{i}.png")
    options = {"data.name": "image_folder", "data.root": str(tmp_path / "images"), "data.size": 32, "steps": 1}
    options |= {"model.name": "generator.mhe", "model.widths": (4, 4, 4, 4)}
    run = load_run(trained(tmp_path / "gan", **options))
    real = generated._real(run)
    assert (real.shape, real.dtype) == (generated._generate(run).shape, torch.uint8) == ((36, 3, 32, 32), torch.uint8)
    assert bool((real[:, 2] == 255).all() and (real[:, 1] == 0).all())
    assert draw("generated", run.path).svg.count("<image ") == 2


def test_tiles():
    images = torch.arange(36, dtype=torch.uint8).view(36, 1, 1, 1).expand(36, 3, 2, 4)
    whole = generated.tiled(images)
    assert whole.shape == (3, 6 * 3 - 1, 6 * 5 - 1)
    assert whole[0, ::3, ::5].flatten().tolist() == list(range(36))
    assert (whole[:, 2] == 255).all()
    assert generated.tiled(images[:, :1]).shape == (17, 29)


# ------------------------------------------------------------------------------------------------ faces


@pytest.mark.slow
def test_roc_and_identification(faces, tmp_path):  # noqa: F811
    run = trained(tmp_path / "run", **SMALL | {"data.name": "lfw", "data.root": str(faces)})
    loaded = load_run(run)
    expected = open_scores(loaded).to_dict()
    (row,) = draw("roc", run).rows
    assert (row["accuracy"], row["AUC"], row["EER"]) == (expected["accuracy"], expected["auc"], expected["eer"])
    other = write_pairs(tmp_path / "pairs.txt", ["Di\t1\tEd\t1"] * 6)
    assert draw("roc", run, other).rows[0]["AUC"] == open_scores(loaded, pairs=read_pairs(other)).result.roc.auc
    rows = draw("identification", run).rows
    assert [row["distractors"] for row in rows] == [1, 2]
    for row in rows:
        rates = open_scores(loaded, measure="identification", distractors=row["distractors"]).result.rates
        assert (row["rank 1"], row["rank 10"]) == (rates["1"], rates["10"])
