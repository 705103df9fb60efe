"""The memory of a training on a CPU: what is freed stays, and how images lie, the same when it is resumed."""

import json
import platform
import subprocess
import sys

import pytest
import torch
from torch import nn

from hypersphere import data, models
from hypersphere.cli import main
from hypersphere.train import ConfigError, derive, fit, memory
from tests.runs import at_forward, same_run, stopped, tiny

pytestmark = pytest.mark.slow

IS_GLIBC = platform.libc_ver()[0] == "glibc"


class Small(nn.Module):
    """Two convolutions; with `view`, one that works in one layout only."""

    def __init__(self, num_classes=10, in_channels=1, view=False):
        super().__init__()
        self.first = nn.Conv2d(in_channels, 4, 3, padding=1)
        self.second = nn.Conv2d(4, 4, 3, stride=4)
        self.last = nn.Linear(64, num_classes)
        self.view, self.seen = view, []

    def forward(self, x):
        x = self.first(x).relu()
        self.seen.append(x.is_contiguous(memory_format=torch.channels_last))
        x = self.second(x).relu()
        return self.last(x.view(len(x), -1) if self.view else x.flatten(1))


def large_digits(root, split):
    """The few digits at 16 × 16, in one channel."""
    whole = data.load("few_digits", None, split)
    return data.ArrayDataset(
        whole.inputs.repeat_interleave(2, -1).repeat_interleave(2, -2), whole.labels, whole.classes
    )


data.register("large_digits", large_digits)
models.register("convolutions_of_test", Small)
models.register("view_of_test", Small, view=True)


def config(**changes):
    return tiny(**{"model.name": "convolutions_of_test", "model.widths": None, "data.name": "large_digits"} | changes)


@pytest.mark.parametrize(("asked", "last"), [(None, True), (True, True), (False, False)])
def test_images_lie_as_asked_and_the_config_says_how(asked, last, tmp_path):
    result = fit(config(channels_last=asked, out=str(tmp_path)), progress=False)
    assert result.config.channels_last is last
    assert json.loads((tmp_path / "config.json").read_text())["channels_last"] is last
    seen = result.model.seen
    assert set(seen) == {last}  # in training and in evaluation


def test_small_images_and_networks_without_convolutions_stay_as_they_are():
    small = fit(tiny(**{"model.name": "cnn3", "model.widths": (4, 4, 4), "steps": 1}), progress=False)
    plain = fit(config(**{"model.name": "mlp", "model.widths": (8,), "steps": 1}), progress=False)
    assert small.config.channels_last is False
    assert plain.config.channels_last is False


def test_a_network_that_cannot_take_it_gets_the_other_layout():
    assert fit(config(**{"model.name": "view_of_test", "steps": 1}), progress=False).config.channels_last is False
    with pytest.raises(ValueError, match="view"):
        fit(config(**{"model.name": "view_of_test", "channels_last": True}), progress=False)


@pytest.mark.parametrize("layout", [True, False])
def test_a_resumed_run_keeps_the_layout_it_began_with(layout, tmp_path):
    whole = fit(config(channels_last=layout, out=str(tmp_path / "whole")), progress=False)
    begun = config(channels_last=layout, out=str(tmp_path / "run"))
    stopped(begun, at_forward(7))
    result = fit(derive(begun, channels_last=None, resume=True), progress=False)
    assert result.config.channels_last is layout
    same_run(tmp_path / "whole", tmp_path / "run")
    assert whole.config.channels_last is layout


def test_another_layout_is_another_run(tmp_path):
    begun = config(channels_last=True, out=str(tmp_path))
    stopped(begun, at_forward(7))
    with pytest.raises(ValueError, match="channels_last is true, here it is false"):
        fit(derive(begun, channels_last=False, resume=True), progress=False)


def test_layouts_are_for_images():
    with pytest.raises(ConfigError, match=r"channels_last is for images, but data\.name=\w+ is text"):
        tiny(**{"model.name": "transformer", "data.name": "text", "channels_last": True})


# ------------------------------------------------------------------------------------------------------- memory

FAULTS = """
import resource, sys
from hypersphere.train import keep_memory
assert "torch" not in sys.modules
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for size in (40, 10, 40):
        bytearray(size * 2**20)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
faults(), faults()
without = faults()
kept = keep_memory()
faults()
print(without, kept, faults())
"""


def faults(**environment):
    found = subprocess.run(
        [sys.executable, "-c", FAULTS],
        env=environment | {"PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
    )
    assert found.returncode == 0, found.stderr
    without, kept, after = found.stdout.split()
    return int(without), kept == "True", int(after)


@pytest.mark.skipif(not IS_GLIBC, reason="glibc's malloc")
def test_freed_memory_stays_in_the_process():
    without, kept, after = faults()
    assert kept
    assert without > 10_000
    assert after < 100


@pytest.mark.skipif(not IS_GLIBC, reason="glibc's malloc")
@pytest.mark.parametrize(
    "environment", [{"MALLOC_TRIM_THRESHOLD_": "131072"}, {"GLIBC_TUNABLES": "glibc.malloc.mmap_threshold=131072"}]
)
def test_the_environment_of_the_user_counts(environment):
    _, kept, after = faults(**environment)
    assert not kept
    assert after > 10_000


def test_other_allocators_and_systems_are_left_alone(monkeypatch):
    monkeypatch.setattr(memory.ctypes, "CDLL", lambda name: pytest.fail("nothing is to be set"))
    monkeypatch.setenv("LD_PRELOAD", "/usr/lib/libjemalloc.so.2")
    assert not memory.keep_memory()
    monkeypatch.delenv("LD_PRELOAD")
    monkeypatch.setattr(sys, "platform", "darwin")
    assert not memory.keep_memory()


def test_the_command_keeps_memory_and_fit_does_not(monkeypatch, tmp_path, capsys):
    calls = []
    monkeypatch.setattr("hypersphere.train.keep_memory", lambda: calls.append(1))
    fit(tiny(steps=1), progress=False)
    assert not calls
    assert main(["train", "--steps=1", f"--out={tmp_path}/run", "--quiet"]) == 0
    assert calls == [1]
