"""A task that a user registers: trained, resumed and loaded like those of the package."""

import subprocess
import sys

import pytest
import torch
from torch import nn

import hypersphere as hs
from hypersphere.train import TrainingTask, derive, fit, load_run, tasks
from hypersphere.train.splits import DataSpec
from tests import runs


class Reconstruction(TrainingTask):
    main, has_classes = "autoencoder", False

    def __init__(self, config, splits, world, start=None):
        super().__init__(config, splits, world, start)
        self.net = self.build(config, splits.spec)
        self.prepare(self.net, self.net)
        self.add_energy(self.net)
        self.modules = {self.main: self.net}
        self.phases = [self.phase("loss", self.net, self.loss, self.regularizer)]

    @classmethod
    def build(cls, config, spec):
        return hs.models.create(config.model.name)

    def loss(self, batch):
        images = batch.inputs.flatten(1)
        return nn.functional.mse_loss(self.net(images), images)

    def check_batch(self, batch):
        self.loss(batch)


@pytest.fixture
def registered(monkeypatch):
    monkeypatch.setattr("hypersphere.models._registry.PRESETS", dict(hs.models.PRESETS))
    monkeypatch.setattr(tasks, "TASKS", dict(tasks.TASKS))
    hs.models.register("autoencoder", lambda: nn.Sequential(nn.Linear(64, 8), nn.Tanh(), nn.Linear(8, 64)))
    hs.train.register_task("mine", Reconstruction, when=lambda config, spec: config.model.name == "autoencoder")


@pytest.mark.slow
def test_a_task_of_the_user_s_own(registered, tmp_path):
    config = runs.tiny(**{"model.name": "autoencoder", "energy.half_space": True, "rotation.method": "cayley"})
    result = fit(derive(config, out=str(tmp_path), steps=6, eval_every=3), progress=False)
    assert result.summary.accuracy is None
    tests = [line for line in result.metrics if line.split == "test"]
    assert len(tests) == 2
    assert tests[1].loss < tests[0].loss
    run = load_run(tmp_path)
    assert run.labels == []
    images = torch.randn(3, 64)
    assert torch.equal(run.model(images), result.model(images))
    resumed = fit(derive(config, out=str(tmp_path), steps=9, eval_every=3, resume=True), progress=False)
    assert resumed.summary.step == 9


def test_the_last_registered_task_is_taken(registered):
    spec = DataSpec("images", (1, 8, 8), "uint8", ["a", "b"])
    config = runs.tiny(**{"model.name": "autoencoder"})
    assert tasks.task_of(config, spec) is Reconstruction
    assert tasks.task_of(runs.tiny(), spec) is tasks.Classification
    assert tasks.task_of(runs.tiny(), DataSpec("graph", (8,), "float32", ["a", "b"])) is tasks.NodeClassification
    hs.train.register_task("all", TrainingTask, when=lambda config, spec: True)
    assert tasks.task_of(config, spec) is TrainingTask


@pytest.mark.slow
def test_without_the_papers_a_gan_is_refused_in_one_line():
    code = "import hypersphere.train as t; t.fit(t.derive(t.Config(), {'model.name': 'generator.mhe'}), progress=False)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    line = "ValueError: network 'generator.mhe' is registered by hypersphere.papers.gan: import that first"
    assert done.stderr.splitlines()[-1] == line


@pytest.mark.parametrize("measure", ["uniformity", "hug"])
def test_evenness_of_embeddings_is_trained_and_logged_beside_the_loss(measure):
    def train(weight):
        settings = {"embedding.measure": measure, "embedding.weight": weight, "loss.name": "s_softmax"}
        result = fit(runs.tiny(**settings, log_every=1), progress=False)
        return [line.values for line in result.metrics if line.split == "train" and line.step]

    with_it, without = train(5.0), train(0.0)
    assert with_it[0]["loss"] == without[0]["loss"]
    assert with_it[0]["evenness"] == without[0]["evenness"]
    assert with_it[-1]["evenness"] < without[-1]["evenness"] - 0.02
