"""Small trainings, ways to stop them, and when two runs are the same; the tests of the engine share these."""

import json
import os
import signal
import sys
from contextlib import redirect_stdout
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from hypersphere import data, models
from hypersphere._internal import checksummed_json
from hypersphere.models.pointnet import PointNet
from hypersphere.models.transformer import Transformer
from hypersphere.papers import gan as gan  # registers it
from hypersphere.papers.gan_networks import Discriminator, Generator
from hypersphere.train import Config, Data, Model, Optimizer, Schedule, derive, fit, processes
from hypersphere.train.storage import checkpoint
from hypersphere.train.storage.reading import read

# ------------------------------------------------------------------------------------------------------- data


def few_digits(root, split):
    """Five batches of 32 and a rest of 3 to learn from, 70 to be tested on."""
    whole = data.load("digits", None, split)
    return whole.subset(range({"train": 163, "test": 70}[split]))


class Slow(torch.utils.data.Dataset):
    """The few digits one by one, as images in files come."""

    def __init__(self, split):
        self.whole = few_digits(None, split)
        self.labels, self.classes = self.whole.labels, self.whole.classes

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        return self.whole[i]


def points(root, split):
    g = torch.Generator().manual_seed({"train": 1, "test": 2}[split])
    labels = torch.arange({"train": 66, "test": 20}[split]) % 3
    shapes = torch.tensor([[1.0, 1.0, 1.0], [1.0, 1.0, 0.0], [1.0, 0.0, 0.0]])
    return data.ArrayDataset(
        torch.randn(len(labels), 12, 3, generator=g) * shapes[labels][:, None], labels, list("abc")
    )


def letters(root, split):
    """Windows of 8 of a text that repeats "abcde"; the label is the letter after."""
    count = {"train": 70, "test": 20}[split]
    text = torch.arange(count + 9) % 5
    windows = text.unfold(0, 9, 1)[:count]
    return data.ArrayDataset(windows[:, :8].contiguous(), windows[:, 8].contiguous(), list("abcde"))


def graph(root, split):
    """Three rings of ten; a node's features tell its ring, with noise."""
    g = torch.Generator().manual_seed(3)
    labels = torch.arange(30) // 10
    nodes = torch.arange(30)
    after = labels * 10 + (nodes + 1) % 10
    places = torch.cat([torch.stack([nodes, after]), torch.stack([after, nodes])], 1)
    edges = torch.sparse_coo_tensor(places, torch.ones(60), (30, 30), check_invariants=False).coalesce()
    features = torch.rand(30, 6, generator=g) + nn.functional.one_hot(labels, 6)
    part = nodes % 10
    return data.Graph(features, edges, labels, part < 4, (part >= 4) & (part < 7), part >= 7, list("xyz"))


class Own(nn.Module):
    """A user's own network, which knows nothing of ours, with dropout."""

    def __init__(self, num_classes=10):
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.ReLU(), nn.Dropout(0.3), nn.Linear(12, 12))
        self.last = nn.Linear(12, num_classes)

    def forward(self, x):
        return self.last(self.layers(x))


def small_transformer(num_classes=5, vocabulary=5, context=8):
    return Transformer(num_classes, vocabulary=vocabulary, context=context, width=8, depth=1, heads=2, dropout=0.1)


def small_pointnet(num_classes=3, in_channels=3, **options):
    return PointNet(num_classes, in_channels=in_channels, widths=(6, 8), fc=(8,), **options)


def register():
    data.register("few_digits", few_digits)
    data.register("slow_digits", lambda root, split: Slow(split))
    data.register("points_of_test", points)
    data.register("letters_of_test", letters)
    data.register("graph_of_test", graph)
    models.register("own_of_test", Own)
    models.register("transformer_of_test", small_transformer)
    models.register("pointnet_of_test", small_pointnet)


register()


def small_gan():
    """The paper's GAN with few filters: with its own a step takes too long for a test."""
    models.register("generator.mhe", Generator, latent=4, widths=(4, 4, 4, 4), init="kaiming")
    models.register("discriminator.mhe", Discriminator, widths=(4, 4, 4, 4), init="kaiming")


def tiny(**changes):
    """Two epochs and a bit of a small network on few digits, with lines and evaluations between."""
    base = Config(
        steps=12,
        eval_every=5,
        log_every=3,
        device="cpu",
        model=Model("mlp", widths=(8, 8)),
        data=Data("few_digits", batch_size=32),
        optimizer=Optimizer(lr=0.02),
        schedule=Schedule("constant", warmup=0),
    )
    return derive(base, changes)


# ------------------------------------------------------------------------------------------------------- stopping


def at_forward(number, which=signal.SIGINT, *, training=True):
    """A callback that sends this process a signal in the middle of forward pass `number` of the network."""
    seen = {"passes": 0, "model": None}

    def hook(module, inputs):
        if module.training is training:
            seen["passes"] += 1
            if seen["passes"] == number:
                os.kill(os.getpid(), which)

    def callback(model, step, metrics):
        if seen["model"] is not model:
            seen["model"] = model
            model.register_forward_pre_hook(hook)

    return callback


def at_line(step, which=signal.SIGINT, split="train"):
    """A callback that sends the signal when the line of this step and split is written."""

    def callback(model, now, metrics):
        if now == step and metrics["split"] == split:
            os.kill(os.getpid(), which)

    return callback


def stopped(config, callback, which=signal.SIGINT):
    """Runs until the signal, and says at which step the checkpoint was left."""
    with pytest.raises(KeyboardInterrupt if which == signal.SIGINT else SystemExit) as caught:
        fit(config, callbacks=[callback], progress=False)
    assert which == signal.SIGINT or caught.value.code == 143
    assert not (Path(config.out) / "result.json").exists()
    newest = checkpoint.latest(Path(config.out) / "checkpoints")
    return None if newest is None else int(newest.name)


# ------------------------------------------------------------------------------------------------------- files


def rewritten(file, change):
    """A JSON file of a run changed by someone who gets its checksum right; `change` has the tree, or text to text."""
    text = file.read_text()
    if isinstance(change, tuple):
        assert change[0] in text
        text = text.replace(*change)
        tree = json.loads(text)
    else:
        tree = json.loads(text)
        tree = change(tree) or tree
    tree.pop("checksum", None)
    file.write_text(checksummed_json.with_checksum(tree))


# ------------------------------------------------------------------------------------------------------- comparing

# differs from run to run: times, the checksums of files that hold times, the run's id
TIMES = ("seconds", "samples_per_second", "history", "checksum", "checksums", "run_id")


def without_times(tree):
    if isinstance(tree, dict):
        return {key: without_times(value) for key, value in tree.items() if key not in TIMES}
    return [without_times(item) for item in tree] if isinstance(tree, list) else tree


def lines(path):
    return [without_times(json.loads(line)) for line in (Path(path) / "metrics.jsonl").read_text().splitlines()]


def metrics_of(result):
    """The lines of metrics of a result as dicts, as they are in metrics.jsonl."""
    return [line.to_dict() for line in result.metrics]


def same_tensors(a, b):
    assert list(a) == list(b)
    for name in a:
        assert a[name].dtype == b[name].dtype, name
        assert a[name].shape == b[name].shape, name
        as_bytes = [tensors[name].contiguous().flatten().view(torch.uint8) for tensors in (a, b)]
        assert torch.equal(*as_bytes), f"{name} differs"


def final(path):
    """Every file of weights that a run ends with, as bytes."""
    files = {file.name: file.read_bytes() for file in sorted((Path(path) / "final").glob("*.safetensors"))}
    assert "model.safetensors" in files
    return files


def save_checkpoint(folder, step, tensors, state, **options):
    saver = checkpoint.Saver()
    saver.save(folder, step, tensors, state, **options)
    saver.wait()
    return Path(folder) / str(step)


def checkpoint_problems(path):
    try:
        read(Path(path))
    except ValueError as error:
        return [str(error)]
    return []


def same_final(a, b):
    """The final weights are equal to the bit, tensor by tensor and as files."""
    for file in final(a):
        same_tensors(load_file(Path(a) / "final" / file), load_file(Path(b) / "final" / file))
    assert final(a) == final(b)


def same_run(a, b):
    """Two runs left the same: weights, all of the last checkpoint, metrics and results, but for times."""
    a, b = Path(a), Path(b)
    same_final(a, b)
    last = [checkpoint.latest(run / "checkpoints") for run in (a, b)]
    assert last[0].name == last[1].name
    (tensors, state), (others, other) = map(checkpoint.load, last)
    same_tensors(tensors, others)
    assert without_times(state) == without_times(other)
    assert lines(a) == lines(b)
    results = [without_times(json.loads((run / "result.json").read_text())) for run in (a, b)]
    assert results[0] == results[1]


def quiet(config, *callbacks):
    return fit(config, callbacks=callbacks, progress=False)


def one_line(config):
    """The one line of a ValueError."""
    with pytest.raises(ValueError) as caught:
        quiet(config)
    text = str(caught.value)
    assert "\n" not in text
    return text


def workers_in_this_process(monkeypatch, run):
    """Let :func:`hypersphere.train.processes.run_all` call `run` here instead of starting workers."""

    class Done:
        def poll(self):
            return 0

    def start(worker, task, request, jobs):
        with redirect_stdout(sys.stderr):
            answers[id(task)] = run(json.loads(json.dumps({**request, "threads": 1})))
        return processes.Running(task, Done(), None)

    answers = {}
    monkeypatch.setattr(processes, "_start", start)
    monkeypatch.setattr(processes, "_answer", lambda worker: answers.pop(id(worker.task)))
    monkeypatch.setattr(processes, "POLL", 0.0)
