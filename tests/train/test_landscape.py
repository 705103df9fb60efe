"""Loss and error around the weights of a run: `hypersphere landscape`."""

import json
import re
import shutil
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import hypersphere as hs
from hypersphere._internal.draws import generator
from hypersphere.cli import main
from hypersphere.models._registry import PRESETS
from hypersphere.orthogonal import ORTHOGONALIZERS
from hypersphere.report.contour import contour_plot
from hypersphere.report.landscape import surface_chart
from hypersphere.train import Rotation, derive, fit, load_run, networks, neurons
from hypersphere.train.inference import landscape as module
from hypersphere.train.inference.landscape import draw_direction
from hypersphere.train.inference.scores import scores
from hypersphere.train.storage import checkpoint, landscapes
from tests import reference
from tests.runs import rewritten, small_gan, tiny

pytestmark = pytest.mark.slow

ROTATIONS = {
    "plain": None,
    "cayley": Rotation("cayley"),
    "normal": Rotation("gram_schmidt", init="normal", blocks=2),
    "learned": Rotation("unconstrained", neurons="learned"),
    "none": Rotation("none"),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Name → the folder of a finished run of a network with BatchNorm."""
    made = {}

    def run(name):
        if name not in made:
            path = tmp_path_factory.mktemp("runs") / name
            changes = {"model.name": "cnn3", "model.widths": (2, 4, 4), "model.fc": 6, "model.batch_norm": True}
            fit(tiny(**changes, steps=8, rotation=ROTATIONS[name], out=str(path)), progress=False)
            made[name] = path
        return made[name]

    return run


@pytest.fixture
def copied(runs, tmp_path):
    """A copy of a run that a test may change."""
    return lambda name: Path(shutil.copytree(runs(name), tmp_path / name))


def test_directions_are_scaled_as_the_papers_say():
    weights = {
        (None, "filter_normalized"): torch.randn(3, 2, 5, 5),
        ("unconstrained", "column_normalized"): torch.randn(2, 4, 4),
        ("exponential", "triangle_normalized"): torch.randn(2, 6),
    }
    for (name, formula), weight in weights.items():
        method = None if name is None else ORTHOGONALIZERS[name]
        for direction, draw in (("normal", "normal_"), ("uniform", "uniform_")):
            noise = getattr(torch.empty_like(weight), draw)(generator=generator(3, "x", 1))
            wanted = getattr(reference, formula)(noise, weight)
            torch.testing.assert_close(draw_direction("x", weight, method, direction, 3, 1), wanted)
    zero = torch.randn(3, 4).index_fill(0, torch.tensor([1]), 0.0)
    assert not draw_direction("x", zero, None, "uniform", 0, 0)[1].any()


def rotated_classifier(path):
    """The network of a run as it was trained, from the last checkpoint."""
    run = load_run(path)
    model = networks.build_classifier(run.config, run.spec)
    neurons.prepare(model.network, model.head, run.config.rotation, run.config.seed)
    tensors, state = checkpoint.load(checkpoint.latest(path / "checkpoints"))
    model.load_state_dict(checkpoint.unflatten(tensors, state["tree"])["classifier"])
    return model.eval()


@pytest.mark.parametrize("name", ROTATIONS)
def test_it_is_the_loss_of_the_papers_formula(name, runs):
    """L(θ + αδ + βη), Eq. 38 to 41, with the network as it was trained, the whole split at once."""
    found = hs.train.landscape(runs(name), "uniform", size=3, span=0.5, seed=7)
    test = hs.data.load("few_digits", split="test")
    inputs = load_run(runs(name)).preprocess(test.inputs)
    moved = set()
    for i, j in ((0, 1), (2, 0), (1, 2)):
        model = rotated_classifier(runs(name))
        for key, p in model.named_parameters():
            if p.dim() < 2 or (key.endswith(".original") and name != "learned"):
                continue
            packed = key.endswith(("cayley", "exponential"))
            columns = key.endswith(("gram_schmidt", "unconstrained"))
            formula = "triangle" if packed else "column" if columns else "filter"
            moved.add(formula)
            noises = [torch.empty_like(p).uniform_(generator=generator(7, key, draw)) for draw in range(2)]
            d, e = (getattr(reference, f"{formula}_normalized")(noise, p.detach()).nan_to_num() for noise in noises)
            p.data += found.alpha[i].item() * d + found.beta[j].item() * e
        with torch.no_grad():
            logits = model(inputs)
        assert float(found.loss[i, j]) == pytest.approx(float(F.cross_entropy(logits, test.labels)), rel=1e-4)
        assert float(found.error[i, j]) == pytest.approx(float((logits.argmax(1) != test.labels).float().mean()))
    kinds = {"plain": {"filter"}, "none": {"filter"}, "cayley": {"triangle", "filter"}}
    assert moved == kinds.get(name, {"column", "filter"})
    assert found.settings.rotated == (name not in ("plain", "none"))


@pytest.mark.parametrize("name", ["plain", "cayley"])
def test_the_centre_is_the_run_s_own_evaluation(name, runs):
    run = load_run(runs(name))
    before = {key: value.clone() for key, value in run.model.state_dict().items()}
    found, own = hs.train.landscape(run, size=3), scores(run)
    assert found.alpha.tolist() == [-1.5, 0.0, 1.5] == found.beta.tolist()
    assert (float(found.loss[1, 1]), float(found.error[1, 1])) == (own.loss, 1 - own.accuracy)
    assert all(torch.equal(before[key], value) for key, value in run.model.state_dict().items())


def test_what_changes_it_and_what_does_not(runs):
    first = hs.train.landscape(runs("plain"), size=3, samples=20)
    assert first.settings.samples == 20
    assert torch.equal(first.loss, hs.train.landscape(runs("plain"), size=3, samples=20).loss)
    for other in ({"seed": 1}, {"direction": "uniform", "span": 1.5}, {"split": "train"}, {"span": 1.0}):
        given = {"direction": "normal", "size": 3, "samples": 20} | other
        assert not torch.equal(first.loss, hs.train.landscape(runs("plain"), **given).loss), other
    larger = hs.train.landscape(runs("plain"), size=5, span=3.0, samples=20)
    torch.testing.assert_close(larger.loss[1:4:2, 1:4:2], first.loss[::2, ::2])  # the corners at 1.5


def test_the_summary():
    axis = torch.tensor([-1.0, 0.0, 1.0], dtype=torch.float64)
    bowl = axis[:, None] ** 2 + axis**2
    error = torch.tensor([[0.5, 0.2, 0.2], [0.2, 0.2, 0.2], [0.2, 0.3, 0.31]], dtype=torch.float64)
    found = module.Landscape(axis, axis, bowl, error, {})
    assert found.summary() == pytest.approx({"loss": 0.0, "error": 0.2, "radius": 2**0.5, "flat": 7 / 9, "convex": 1.0})
    saddle = module.Landscape(axis, axis, axis[:, None] ** 2 - axis**2, error * 0, {})
    assert saddle.summary()["convex"] == 0
    assert saddle.summary()["radius"] is None
    twisted = module.Landscape(axis, axis, bowl + 3 * axis[:, None] * axis, error, {})
    assert twisted.summary()["convex"] == 0  # upwards along both axes, not along the diagonal


def test_a_stopped_one_continues_to_the_same_bits(copied, monkeypatch):
    path, calls = copied("cayley"), []
    whole = hs.train.landscape(path, size=3)

    def stopping(*arguments, evaluate=module.evaluate):
        calls.append(1)
        if len(calls) == 5:
            raise KeyboardInterrupt
        return evaluate(*arguments)

    monkeypatch.setattr(module, "evaluate", stopping)
    folder = path / "landscape"
    with pytest.raises(KeyboardInterrupt):
        hs.train.landscape(path, size=3, folder=folder)
    assert [file.name for file in folder.iterdir()] == ["normal-test.part.json"]
    assert len(landscapes.read(folder / "normal-test.part.json").loss) == 1
    assert landscapes.find(path) == []
    assert main(["verify", str(path)]) == 0
    calls.extend([1] * 10)
    before = len(calls)
    again = hs.train.landscape(path, size=3, folder=folder)
    assert len(calls) - before == 6  # two rows were left
    assert torch.equal(again.loss, whole.loss)
    assert torch.equal(again.error, whole.error)
    assert landscapes.find(path) == [folder / "normal-test.json"]
    assert [file.name for file in folder.iterdir()] == ["normal-test.json"]
    before = len(calls)
    assert torch.equal(hs.train.landscape(path, size=3, folder=folder).loss, whole.loss)  # read, not computed
    assert len(calls) == before
    assert not torch.equal(hs.train.landscape(path, size=3, seed=1, folder=folder).loss, whole.loss)
    assert landscapes.read(folder / "normal-test.json").seed == 1


def test_infinite_losses_are_null_in_the_file(copied, monkeypatch):
    path = copied("plain")
    found = hs.train.landscape(path, size=3, span=1e30, folder=path / "landscape")
    assert found.loss.isinf().any()
    stored = landscapes.read(path / "landscape" / "normal-test.json").loss
    assert [[loss is None for loss in row] for row in stored] == found.loss.isinf().tolist()
    assert torch.equal(hs.train.landscape(path, size=3, span=1e30, folder=path / "landscape").loss, found.loss)


# ------------------------------------------------------------------------------------------------------- the command


def run(capsys, *argv):
    code = main(["landscape", *map(str, argv)])
    return code, *capsys.readouterr()


def fails(capsys, *argv):
    code, out, err = run(capsys, *argv)
    assert (code, out, err.count("\n")) == (2, "", 1)
    return err.removeprefix("hypersphere landscape: ")[:-1]


def test_the_command_writes_and_prints(copied, capsys):
    path = copied("cayley")
    code, out, err = run(capsys, path, "--size", 3, "--direction", "uniform", "--samples", 50)
    assert (code, err) == (0, "")
    title, header, figures, *_ = out.splitlines()
    own = hs.train.landscape(path, "uniform", size=3, samples=50)
    assert title == "cnn3 on few_digits, uniform directions, test, step 8, perturbed rotations"
    assert header.split()[:3] == ["samples", "loss", "error"]
    assert figures.split()[:2] == ["50", f"{own.summary()['loss']:.4f}"]
    tenths = [[str(min(9, int(10 * error))) for error in row] for row in own.error.T.flip(0).tolist()]
    assert [" ".join(row) for row in tenths] == out.splitlines()[5:8]
    ET.parse(path / "landscape" / "uniform-test.svg")
    assert main(["verify", str(path)]) == 0
    assert "landscape/uniform-test.json" in capsys.readouterr().out
    load_run(path)
    code, out, _ = run(capsys, path, "--size", 3, "--direction", "uniform", "--samples", 50, "--json")
    printed = json.loads(out)
    assert (printed["loss"], printed["samples"], printed["rotated"]) == (own.summary()["loss"], 50, True)


def test_the_page(copied, tmp_path, capsys, monkeypatch):
    """Contours and surfaces with the grid's numbers; the run's name is text, whatever it is."""
    path = tmp_path / "<script>alert(1)"
    copied("plain").rename(path)
    out = tmp_path / "page.html"
    code, printed, err = run(capsys, path, "--size", 3, "--html", out)
    assert (code, err) == (0, "")
    assert printed.endswith(f"and {out}\n")
    text = out.read_text()
    assert "<script>alert" not in text
    charts = [json.loads(data) for data in re.findall(r'<script type="application/json">(.*?)</script>', text)]
    assert [list(data) for data in charts] == [["grids"], ["scene"], ["scene"]]
    computed = hs.train.landscape(path, size=3)
    np.testing.assert_allclose(charts[0]["grids"][0]["values"], computed.loss, rtol=1e-3)
    np.testing.assert_allclose(charts[0]["grids"][1]["values"], computed.error, rtol=1e-3)
    np.testing.assert_allclose(charts[2]["scene"]["surface"]["values"], computed.error, rtol=1e-3)
    heights = np.array(charts[2]["scene"]["surface"]["points"])[..., 2]
    np.testing.assert_allclose(heights, 0.42 * (2 * computed.error - 1), rtol=1e-2, atol=1e-3)
    assert "folder that exists" in fails(capsys, path, "--html", tmp_path / "no" / "x.html")


def test_a_damaged_file_is_found_and_computed_again(copied, capsys):
    path = copied("plain")
    file = path / "landscape" / "normal-test.json"
    run(capsys, path, "--size", 3)
    before = file.read_text()
    for change in (before.replace("0.", "1.", 1), before[:-9], "[]"):
        file.write_text(change)
        assert main(["verify", str(path)]) == 1
        code, _, err = run(capsys, path, "--size", 3)
        assert (code, err.count("\n")) == (0, 1), err
        assert "starting again" in err
        assert file.read_text() == before
    for key, wrong in (("size", 10**9), ("loss", [[1.0]]), ("error", None), ("alpha", ["a"] * 3), ("step", -1)):
        file.write_text(before)
        rewritten(file, lambda tree, key=key, wrong=wrong: tree | {key: wrong})
        with pytest.raises(ValueError, match=f"malformed: .*{key}"):
            landscapes.read(file)


def test_bad_input(runs, copied, tmp_path, capsys):
    plain = runs("plain")
    assert fails(capsys, "nothing") == "nothing does not exist"
    assert "is not a run folder" in fails(capsys, tmp_path)
    assert "--direction must be one of normal, uniform; got 'sideways'" in fails(
        capsys, plain, "--direction", "sideways"
    )
    for size in ("1", "2", "x", "1003"):
        assert "--size: must be an integer from 3 to 1,001" in fails(capsys, plain, "--size", size)
    assert "size must be an odd integer from 3 to 1001, got 4" in fails(capsys, plain, "--size", "4")
    for span in ("0", "-1", "nan", "inf", "x"):
        assert "--span: must be a number above 0" in fails(capsys, plain, f"--span={span}")
    assert "no validation split" in fails(capsys, plain, "--split", "validation")
    rotated = copied("cayley")
    shutil.rmtree(rotated / "checkpoints")
    assert "needs checkpoint" in fails(capsys, rotated)
    (copied("plain") / "landscape").symlink_to(tmp_path)
    assert "must be a folder itself, not a link" in fails(capsys, tmp_path / "plain", "--size", "3")
    for wrong in ({"direction": "up"}, {"size": 4}, {"size": 1}, {"span": 0}, {"samples": 0}, {"seed": -1}):
        with pytest.raises(ValueError, match=f"^{next(iter(wrong))} must be"):
            hs.train.landscape(plain, **wrong)


def test_a_graph_works_and_a_gan_is_refused(tmp_path, capsys, monkeypatch):
    graph = tiny(**{"model.name": "gcn", "model.widths": (4,), "data.name": "graph_of_test"}, steps=3)
    fit(derive(graph, out=str(tmp_path / "graph")), progress=False)
    found = hs.train.landscape(tmp_path / "graph", size=3)
    assert float(found.loss[1, 1]) == scores(load_run(tmp_path / "graph")).loss
    assert "evaluated together" in fails(capsys, tmp_path / "graph", "--samples", 2)
    for name in ("generator.mhe", "discriminator.mhe"):
        monkeypatch.setitem(PRESETS, name, PRESETS[name])
    small_gan()
    gan = derive(tiny(), steps=1, out=str(tmp_path / "gan"), **{"model.name": "generator.mhe", "model.widths": None})
    fit(gan, progress=False)
    assert "has no labels" in fails(capsys, tmp_path / "gan")


# ------------------------------------------------------------------------------------------------------- the picture


def test_contours_of_a_plane_are_straight_and_escaped():
    axis = [0.0, 0.5, 1.0]
    plane = [[x + 0 * y for y in axis] for x in axis]
    root = ET.fromstring(contour_plot([("<b>", plane, [0, 0.25, 1])], axis, axis, title="<&>", size=100).svg)
    paths = [path.get("d") for path in root.iter("{http://www.w3.org/2000/svg}path") if path.get("stroke") == "#fff"]
    (line,) = paths
    xs = {float(place.split()[0]) for piece in line.split("M")[1:] for place in piece.split("L")}
    assert len(xs) == 1
    left = float(root.findall("{http://www.w3.org/2000/svg}rect")[1].get("x"))
    assert xs.pop() == pytest.approx(left + 25, abs=0.1)
    with pytest.raises(ValueError, match="3 rows of 3"):
        contour_plot([("x", [[1.0]], None)], axis, axis)


@pytest.mark.parametrize("saddle", [[[1.0, 0.0], [0.0, 1.0]], [[0.0, 1.0], [1.0, 0.0]]])
def test_the_lines_of_a_saddle_cut_off_its_low_corners(saddle):
    svg = contour_plot([("", saddle, [0, 0.25, 1])], [0, 1], [0, 1], size=100).svg
    (line,) = [path.get("d") for path in ET.fromstring(svg).iter() if path.get("stroke") == "#fff"]
    pieces = [[tuple(map(float, place.split())) for place in piece.split("L")] for piece in line.split("M")[1:]]
    lengths = [((a[0] - b[0]) ** 2 + (a[1] - b[1]) ** 2) ** 0.5 for a, b in pieces]
    assert lengths == pytest.approx([25 * 2**0.5] * 2, abs=0.2)


@pytest.mark.parametrize(
    ("loss", "cells", "highest"),
    [
        ([[1e5] * 3] * 3, 4, -0.42),
        ([[None] * 3] * 3, 0, -0.42),
        ([[1.0, 2.0, None], [1.0, 1e4, 100.0], [1.0] * 3], 3, 0.42),
    ],
)
def test_flat_and_broken_surfaces(loss, cells, highest):
    """What is not finite is a hole; heights of a loss that spans much are logarithmic."""
    axis = [-1.0, 0.0, 1.0]
    chart = surface_chart(axis, axis, loss, None, "loss")
    points = chart.scene.surface.points
    assert chart.svg.count("<polygon") == cells
    assert max(z for row in points for *_, z in row) == pytest.approx(highest)
    if cells == 3:
        assert points[1][2][2] == pytest.approx(0, abs=1e-9)
