"""A run folder and a rotation file written when the modules were not yet in packages load as they did then.

files_before_rooms.zip has both, and what the networks gave then: an MLP of six steps (S-OPT, energy, A-Softmax) on the
digits, and the rotation of one layer.
"""

from __future__ import annotations

import json
import shutil
import zipfile
from pathlib import Path

import pytest
import torch
from torch import nn

import hypersphere as hs
from hypersphere.cli import main

RUN_INPUTS = torch.linspace(-1, 1, 2 * 64).view(2, 1, 8, 8)
ROTATION_INPUTS = torch.linspace(-1, 1, 12).view(2, 6)


@pytest.fixture
def files(tmp_path):
    with zipfile.ZipFile(Path(__file__).with_name("files_before_rooms.zip")) as archive:
        archive.extractall(tmp_path)
    return tmp_path


def outputs(files, name):
    return torch.tensor(json.loads((files / "outputs.json").read_text())[name])


def test_the_run_loads(files, capsys):
    run = hs.train.load_run(files / "run")
    with torch.no_grad():
        torch.testing.assert_close(run.model(RUN_INPUTS), outputs(files, "run"))
    assert main(["verify", str(files / "run")]) == 0
    assert "not compared" not in capsys.readouterr().out


def test_the_run_loads_from_its_checkpoint(files):
    shutil.rmtree(files / "run" / "final")
    (files / "run" / "result.json").unlink()
    with torch.no_grad():
        torch.testing.assert_close(hs.train.load_run(files / "run").model(RUN_INPUTS), outputs(files, "run"))


def test_the_run_goes_on_from_an_earlier_checkpoint(files, capsys):
    """Steps 5 and 6 once more: optimizer, draws, schedule and data order come from the checkpoint of step 4."""
    shutil.rmtree(files / "run" / "checkpoints" / "6")
    shutil.rmtree(files / "run" / "final")
    (files / "run" / "result.json").unlink()
    assert main(["train", "--resume", "--out", str(files / "run"), "--quiet", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["step"] == 6
    with torch.no_grad():
        torch.testing.assert_close(hs.train.load_run(files / "run").model(RUN_INPUTS), outputs(files, "run"))


def test_the_rotations_load(files):
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    hs.rotation.load_rotations(model, files / "rotations.safetensors")
    with torch.no_grad():
        torch.testing.assert_close(model(ROTATION_INPUTS), outputs(files, "rotations"))
        torch.testing.assert_close(hs.merge(model)(ROTATION_INPUTS), outputs(files, "rotations"))
