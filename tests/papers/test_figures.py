"""Every figure is drawn and parsed as XML; what it shows is compared with the literal formulas."""

import base64
import io
import json
import math
import re
import shutil
import xml.etree.ElementTree as ElementTree
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch

from hypersphere import geometry
from hypersphere._internal import catalog
from hypersphere.cli import main
from hypersphere.papers.figures import FIGURES, Drawing, neurons, writing
from hypersphere.report import Chart
from tests import reference, reference_geometry

# The package has functions of the same names.
lemmas, growth, holes, phase = (
    import_module(f"hypersphere.papers.figures.{name}") for name in ("lemmas", "growth", "holes", "phase")
)
ROOT = Path(__file__).parents[2]
TEXT = "{http://www.w3.org/2000/svg}text"


# ------------------------------------------------------------------------------------------------ the command


def test_the_command_writes_the_picture_and_prints_its_path(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["figure", "operators"]) == 0
    assert capsys.readouterr() == ("operators.svg\n", "")
    assert Path("operators.svg").read_text() == FIGURES["operators"].draw([]).svg
    assert main(["figure", "margins", "--out", "m.svg", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"figure": "margins", "path": "m.svg", "rows": []}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.svg", "operators.svg"]


def test_a_page_instead_of_the_picture_or_beside_it(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["figure", "margins", "--html", "m.html", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"figure": "margins", "page": "m.html", "rows": []}
    assert main(["figure", "margins", "--html", "m.html", "--out", "m.svg"]) == 0
    assert capsys.readouterr().out == "m.svg\nm.html\n"
    assert Path("m.html").read_text().startswith("<!DOCTYPE html>")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.html", "m.svg"]


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("operatr", "unknown NAME 'operatr', did you mean 'operators'? (one of "),
        ("operators run", "operators takes no input: `hypersphere figure operators`; got 1"),
        ("operators --out x.pdf", "argument --out: must end in .svg or .png (a page: --html FILE), got 'x.pdf'"),
        ("operators --out folder.svg", "argument --out: must be a file in a folder that exists, got 'folder.svg'"),
        ("operators --html no/x.html", "argument --html: must be a file in a folder that exists, got 'no/x.html'"),
    ],
)
def test_bad_input_is_one_line(line, error, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("folder.svg").mkdir()
    assert main(["figure", *line.split()]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith(f"hypersphere figure: {error}")
    assert [path.name for path in tmp_path.iterdir()] == ["folder.svg"]


def test_png_without_a_browser_says_what_to_install(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(writing, "BROWSERS", ("no such browser",))
    assert main(["figure", "operators", "--out", str(tmp_path / "x.png")]) == 2
    assert "install one of them" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.skipif(not any(map(shutil.which, writing.BROWSERS)), reason="needs Chromium")
def test_png(tmp_path):
    path = tmp_path / "x.png"
    assert main(["figure", "operators", "--out", str(path)]) == 0
    data = path.read_bytes()
    size = [int.from_bytes(data[at : at + 4], "big") for at in (16, 20)]
    assert (data[:8], size) == (b"\x89PNG\r\n\x1a\n", [1440, 840])  # twice 720 × 420


def test_the_catalog_has_every_figure():
    assert {name: figure.summary for name, figure in FIGURES.items()} == catalog.FIGURES
    assert all(figure.about and figure.source for figure in FIGURES.values())


@pytest.mark.parametrize("name", [name for name, figure in FIGURES.items() if figure.inputs[0] == 0])
def test_pictures_of_the_docs_are_xml(name):
    """test_docs compares them with what the code draws."""
    svg = (ROOT / "docs" / "pictures" / f"{name}.svg").read_text(encoding="utf-8")
    assert ElementTree.fromstring(svg).tag == "{http://www.w3.org/2000/svg}svg"
    assert "nan" not in svg.lower()


# ------------------------------------------------------------------------------------------------ lemmas

U, V = lemmas.optimum(4, 3, 2)
F = U @ V.mT


@pytest.mark.slow
def test_hessians_are_the_literal_ones():
    far = F + 1  # away from the optimum too
    same = {"atol": 1e-12, "rtol": 0.0}
    torch.testing.assert_close(lemmas.hessian(lemmas.plain_loss(far), U, V), reference.plain_hessian(U, V, far), **same)
    torch.testing.assert_close(lemmas.plain_hessian(U, V), reference.plain_hessian(U, V, F), **same)
    torch.testing.assert_close(lemmas.hessian(lemmas.sphere_loss(F), U, V), reference.sphere_hessian(U, V), **same)
    torch.testing.assert_close(lemmas.printed_hessian(U, V), reference.printed_hessian(U, V), **same)


@pytest.mark.parametrize(("n", "m", "k"), [(6, 5, 3), (4, 2, 2)])
def test_lemma_1(n, m, k):
    u, v = lemmas.optimum(n, m, k)
    one, two = (lemmas.condition(reference.plain_hessian(c * u, v / c, u @ v.mT)) for c in (10, 20))
    assert two[0] / one[0] == pytest.approx(16, rel=0.02)  # c⁴
    assert (one[1], two[1]) == (k * k, k * k)


@pytest.mark.slow
def test_lemma_2_needs_the_renormalization():
    rows = [lemmas.measure(c) for c in (1.0, 10.0, 20.0)]
    assert rows[2]["κ of G_S"] / rows[1]["κ of G_S"] == pytest.approx(16, rel=0.02)
    assert rows[0]["κ of G_S"] == pytest.approx(rows[2]["renormalized"], rel=1e-9)
    assert rows[2]["κ of G"] == pytest.approx(rows[2]["closed form"], rel=1e-6)


def test_the_hessian_of_several_layers():
    """It is the literal one; each layer multiplies κ by c², beyond the paper's c; on the sphere nothing changes."""
    factors = lemmas.deep_optimum(3)
    *weights, v = factors
    f = weights[0] @ weights[1] @ weights[2] @ v.mT
    literal = reference.deep_hessian(*factors)
    torch.testing.assert_close(lemmas.hessian(lemmas.plain_loss(f), *factors), literal, atol=1e-12, rtol=0.0)
    two, three = (lemmas.measure_depth(n, 8.0) for n in (2, 3))
    assert three["κ of G"] / two["κ of G"] == pytest.approx(64, rel=0.02)
    assert three["κ of G"] > three["c^N·κ at c = 1"] > 8**3
    assert three["renormalized"] == pytest.approx(lemmas.measure_depth(3, 1.0)["κ of G_S"])


# ------------------------------------------------------------------------------------------------ growth, holes


@pytest.mark.parametrize(
    ("s", "law"),
    [
        (0.5, lambda n: 1.18034 * n**2),
        (1.0, lambda n: n**2 * math.log(n) / math.pi),
        (3.0, lambda n: 2 * 1.2020569 / (2 * math.pi) ** 3 * n**4),
    ],
)
def test_growth_on_the_circle(s, law):
    row = growth.measure(64, 2, s)
    corners = [(math.cos(t), math.sin(t)) for t in (2 * math.pi * k / 64 for k in range(64))]
    literal = sum(math.dist(a, b) ** -s for a in corners for b in corners if a != b)
    assert (row["energy"], row["ratio"]) == (pytest.approx(literal), pytest.approx(literal / law(64), rel=1e-4))


def test_growth_on_the_sphere():
    row = growth.measure(12, 3, 1.0)  # the icosahedron: Thomson's 49.165… counts each pair once
    assert (row["source"], row["energy"], row["ratio"]) == (
        "known",
        pytest.approx(98.330506116),
        pytest.approx(98.330506116 / 144),
    )
    row = growth.measure(12, 3, 3.0)
    assert (row["source"], row["limit"], row["ratio"]) == ("known", None, None)
    assert growth.minimal_energy(9, 3, 3.0)[1] == "minimized"
    assert growth.minimal_energy(9, 3, 2.0) == (2 * 19.252868783988, "known")


@pytest.mark.slow
def test_holes_and_what_is_expected(monkeypatch):
    monkeypatch.setattr(holes, "DRAWS", 2)
    row = holes.measure("random", 3, 12)
    radii = [reference_geometry.hole_radii(geometry.random_points(12, 3, seed)) for seed in (0, 1)]
    for p, name in enumerate(("holes", "Σρ", "Σρ²")):
        assert row[name] == pytest.approx(sum(radius**p for of_draw in radii for radius in of_draw) / 2), name
    row = holes.measure("Fibonacci", 3, 2000)  # OPT, Lemma 5 on S²
    expected = [row[f"{name} expected"] for name in ("holes", "Σρ", "Σρ²")]
    assert expected == pytest.approx([4000, 237.8, 16.0], rel=1e-3)
    assert row["at least"] < row["covering radius"]


# ------------------------------------------------------------------------------------------------ phase, neurons


def test_random_phases_and_magnitudes():
    """SphereNet, Sec. 1: the phase with any magnitudes is recognized, the magnitude with any phases is not."""
    rows = {row["image"]: [*row.values()][1:] for row in FIGURES["phase"].draw([]).rows}
    assert rows["phase of digit 6, random magnitude"][0] > 0.5
    assert rows["phase of digit 1, random magnitude"][1] > 0.5
    assert max(rows["random phase, magnitude of digit 6"][0], rows["random phase, magnitude of digit 1"][1]) < 0.5
    noise = phase._noise((6, 5))
    angles = torch.fft.fft2(phase.mix(noise, noise + 3)).angle()
    torch.testing.assert_close(angles, torch.fft.fft2(noise).angle())


def test_phase_and_magnitude():
    a, b = torch.rand(2, 6, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(phase.mix(a, b), reference.swapped_phase(a, b))
    torch.testing.assert_close(phase.mix(a, a), a)
    assert float(phase.correlation(a, b)) == pytest.approx(np.corrcoef(a.flatten(), b.flatten())[0, 1])


def test_phase_of_images_with_hostile_names(tmp_path):
    image = pytest.importorskip("PIL.Image")
    rng = np.random.default_rng(0)
    paths = [tmp_path / "<script>alert(1)<", tmp_path / "b&.png"]
    for path, size in zip(paths, ((30, 20, 3), (40, 50, 3)), strict=True):
        image.fromarray(rng.integers(0, 255, size, np.uint8)).save(path, "PNG")
    svg = FIGURES["phase"].draw(paths).svg
    assert "<script" not in svg
    assert "<script>alert(1)<" in [text.text for text in ElementTree.fromstring(svg).iter(TEXT)]
    encoded = re.search(r'href="data:image/png;base64,([^"]+)"', svg)[1]
    assert image.open(io.BytesIO(base64.b64decode(encoded))).size == (20, 30)


def test_phase_takes_two_images(tmp_path, capsys):
    for inputs, error in (([tmp_path], "phase takes two images"), ([tmp_path, tmp_path], "is not an image file")):
        assert main(["figure", "phase", *map(str, inputs)]) == 2
        assert error in capsys.readouterr().err


@pytest.mark.slow
def test_the_heavier_a_neuron_the_shorter_its_path(monkeypatch):
    monkeypatch.setattr(neurons, "BETAS", (1.0, 10.0))
    drawing = FIGURES["weighted"].draw([])
    ways = [row["path (radians)"] for row in drawing.rows]
    assert len(ways) == 4
    assert ways[1] < 0.1 * ways[0]
    assert ways[3] < ways[2]
    titles = [re.search("<title>(.*?)</title>", panel.svg)[1] for panel in drawing.panels]
    assert titles == ["β₁ = 1", "β₁ = 10", "β₁ = β₂ = 1", "β₁ = β₂ = 10"]
    page = writing.html(drawing, "<script>", "&")
    assert page.count('{"scene":') == 4
    assert "<title>&lt;script&gt;</title>" in page


def test_page_with_a_table():
    page = writing.html(Drawing(Chart("<svg></svg>"), [{"<b>": 1.5}], ["note & more"]), "T", "S")
    assert all(part in page for part in ('<div class="plot"><svg>', "&lt;b&gt;", "note &amp; more"))
