"""Weights and rotations written when the modules were not yet in packages load as they did then.

files_before_rooms.zip has a run folder, a rotation file and what the networks gave then: an MLP of six steps (S-OPT,
energy, A-Softmax) on the digits, and the rotation of one layer. The run's config has fields of other names today.
"""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
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


def test_the_run_folder_is_refused_in_one_line(files, capsys):
    renamed = r"config\.json: unknown setting 'energy\.weight_decay'"
    with pytest.raises(ValueError, match=renamed) as error:
        hs.train.load_run(files / "run")
    assert "\n" not in str(error.value)
    assert main(["train", "--resume", "--out", str(files / "run"), "--quiet"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_the_final_weights_load(files):
    network = hs.models.create("mlp", num_classes=0, in_channels=1, input_size=8, widths=(6,))
    network.load_state_dict(load_file(files / "run" / "final" / "model.safetensors"))
    head = hs.ASoftmaxLoss(10, 6)
    head.load_state_dict(load_file(files / "run" / "final" / "head.safetensors"))
    with torch.no_grad():
        torch.testing.assert_close(head.logits(network(RUN_INPUTS)), outputs(files, "run"))


def test_a_training_starts_from_the_final_weights(files):
    start = files / "run" / "final" / "model.safetensors"
    config = hs.train.Config(
        steps=1, init_from=str(start), model=hs.train.Model("mlp", widths=(6,)), loss=hs.train.Loss("a_softmax")
    )
    result = hs.train.fit(hs.train.derive(config, {"optimizer.lr": 1e-30}), progress=False)
    for name, value in load_file(start).items():
        torch.testing.assert_close(result.model.network.state_dict()[name], value)


def test_the_rotations_load(files):
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    hs.rotation.load_rotations(model, files / "rotations.safetensors")
    with torch.no_grad():
        torch.testing.assert_close(model(ROTATION_INPUTS), outputs(files, "rotations"))
        torch.testing.assert_close(hs.merge(model)(ROTATION_INPUTS), outputs(files, "rotations"))
