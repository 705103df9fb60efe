"""Every figure is drawn and parsed as XML; what it shows is compared with the literal formulas."""

import json
import shutil
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from hypersphere import catalog
from hypersphere.cli import main
from hypersphere.figures import FIGURES, writing

TEXT = "{http://www.w3.org/2000/svg}text"


def drawn(name, *inputs):
    """Draw a figure; its rows, and the texts of the picture."""
    drawing = FIGURES[name].draw([Path(each) for each in inputs])
    return drawing.rows, [each.text for each in ElementTree.fromstring(drawing.svg).iter(TEXT)]


# ------------------------------------------------------------------------------------------------ the command


def test_the_command_writes_the_picture_and_prints_its_path(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["figure", "operators"]) == 0
    assert capsys.readouterr() == ("operators.svg\n", "")
    assert Path("operators.svg").read_text() == FIGURES["operators"].draw([]).svg
    assert main(["figure", "margins", "--out", "m.svg", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"figure": "margins", "path": "m.svg", "rows": []}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.svg", "operators.svg"]


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("operatr", "unknown NAME 'operatr', did you mean 'operators'? (NAME must be one of "),
        ("operators run", "operators takes no input: `hypersphere figure operators`; got 1"),
        ("operators --out x.pdf", "--out must end in .svg, .png, .html, got 'x.pdf'"),
        ("operators --out no/x.svg", "--out must be in a folder that exists, got 'no/x.svg'"),
        ("operators --out folder.svg", "--out must be a file, got the folder 'folder.svg'"),
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


def test_an_unknown_figure_lists_all(capsys):
    assert main(["figure", "zzz"]) == 2
    error = capsys.readouterr().err
    assert all(name in error for name in FIGURES)


def test_png_without_a_browser_says_what_to_install(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(writing, "BROWSERS", ("no such browser",))
    assert main(["figure", "operators", "--out", str(tmp_path / "x.png")]) == 2
    assert "install one of them" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


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
