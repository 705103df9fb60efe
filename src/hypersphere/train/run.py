"""A run read back from its folder: the network, what it takes, and what its answers are called."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from .._tensors import checksum_of
from ..data import Graph
from ..data.augment import as_stored
from ..rotation.merging import holds_rotations, merge_state_dict
from . import building, checkpoint
from ._reading import STATE, STEP, TENSORS, line
from ._values import shown
from .config import Config, load_file
from .folder import CONFIG, FINAL, FORMAT, RESULT
from .inputs import DTYPES, KINDS, Preprocess
from .sets import Facts, augmentations

BATCH = 256  # samples that a network sees at once


@dataclass(frozen=True, eq=False, repr=False)
class Run:
    """A trained network with all that is needed to use it.

    Attributes:
        model: in eval mode, with plain layers; ``model(preprocess(inputs))`` are logits. With an angular loss it is the
            network with its head. A GAN's is the generator, which takes noise.
        preprocess: a :class:`~hypersphere.train.inputs.Preprocess`.
        labels: the names of the classes; none for a generator.
        config: of the training.
        path: the run's folder.
        source: the folder in it that the weights are from, ``final`` or a checkpoint.
        step: of the weights.
        facts: what the network was built for.
    """

    model: nn.Module
    preprocess: Preprocess
    labels: list[str]
    config: Config
    path: Path
    source: Path
    step: int
    facts: Facts

    @torch.no_grad()
    def predict(self, inputs: Any) -> tuple[list[str], Tensor]:
        """The likeliest label of each sample, and the probabilities of all classes, (B, C).

        Args:
            inputs: what `preprocess` takes; of text, the character that follows is predicted.
        """
        self.check_labels()
        logits = torch.cat([_last(self._logits(*part)) for part in self._parts(inputs)])
        return [self.labels[i] for i in logits.argmax(1).tolist()], logits.float().softmax(1)

    @torch.no_grad()
    def embed(self, inputs: Any) -> Tensor:
        """Embeddings of length 1, (B, d): what the classes are told from. `inputs` are what `preprocess` takes."""
        self.check_labels()
        return torch.cat([F.normalize(_last(self._features(*part)).float(), dim=1) for part in self._parts(inputs)])

    @property
    def classifier(self) -> building.Classifier:
        """The model as what was trained: ``classifier(inputs, labels)`` gives its loss too."""
        if isinstance(self.model, building.Classifier):
            return self.model
        return building.Classifier(self.model, None, self.config.loss.label_smoothing)

    def check_labels(self) -> None:
        if self.config.model.name in building.GENERATORS:
            raise ValueError(f"{self.path} is a generator's run: it makes images of noise and has no labels")

    def _parts(self, inputs: Any) -> Iterator[tuple[Tensor, ...]]:
        """What the network is called with, some samples at a time; a graph is one."""
        batch = self.preprocess(inputs)
        first = next(self.model.parameters(), None)
        device = batch.device if first is None else first.device
        if isinstance(inputs, Graph):
            yield batch.to(device), inputs.adjacency.to(device)
            return
        for part in batch.split(BATCH):
            yield (part.to(device),)

    def _logits(self, inputs: Tensor, *edges: Tensor) -> Tensor:
        return self.classifier(inputs, edges=edges[0] if edges else None)

    def _features(self, inputs: Tensor, *edges: Tensor) -> Tensor:
        if not edges:
            return self.classifier.embed(inputs)
        network = self.classifier.network
        features: Any = network if self.classifier.head is not None else network.forward_features
        return features(inputs, *edges)

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r}, {self.config.model.name}, {len(self.labels)} classes, step {self.step})"


def _last(rows: Tensor) -> Tensor:
    """Of text (B, T, d), what stands at its end."""
    return rows[:, -1] if rows.dim() == 3 else rows


def load_run(path: str | os.PathLike[str]) -> Run:
    """The network of a run with its preprocessing and the names of its classes; the data are not needed.

    Args:
        path: the run's folder, or one of its checkpoints, ``run/checkpoints/300``. Of a run that is not finished the
            best checkpoint is taken, or the latest if none was marked as the best. Rotations are merged.

    Example:
        >>> import tempfile
        >>> from hypersphere.train import Config, fit
        >>> folder = tempfile.mkdtemp()
        >>> fit(Config(steps=2, out=folder), progress=False).path == load_run(folder).path
        True
        >>> labels, probabilities = load_run(folder).predict(torch.zeros(5, 1, 8, 8))
        >>> probabilities.shape
        torch.Size([5, 10])
    """
    path = Path(path)
    if not path.is_dir():
        raise ValueError(f"{path} is no folder of a run")
    if (path / STATE).is_file() or (path.parent.name == "checkpoints" and STEP.fullmatch(path.name)):
        path = Path(os.path.abspath(path))
        return _from_checkpoint(path.parent.parent, path)
    if not (path / CONFIG).is_file():
        raise ValueError(f"{path} is no run: it has no {CONFIG}")
    if _is_finished(path):
        return _from_final(path)
    found = checkpoint.best_of(path / "checkpoints") or checkpoint.latest(path / "checkpoints")
    if found is not None:
        return _from_checkpoint(path, found)
    if (path / FINAL / "model.json").is_file():
        return _from_final(path)
    raise ValueError(f"{path} has no trained network yet: neither {FINAL}/model.json nor a whole checkpoint")


def _is_finished(path: Path) -> bool:
    """Whether final/ is the end of what the config asks for; a run that is made longer has one before its end."""
    if not (path / RESULT).is_file():
        return False
    result, config = _json(path / RESULT), _json(path / CONFIG)
    return result.get("length") in (None, [config.get("steps"), config.get("epochs")])


def _from_final(path: Path) -> Run:
    source = path / FINAL
    described = _json(source / "model.json")
    _check_format(source / "model.json", described)
    facts = _facts(source / "model.json", described.get("data"))
    config = load_file(path / CONFIG)
    model = _build(path, config, facts)
    if isinstance(model, building.Classifier):
        _fill(model.network, source / "model.safetensors", read_tensors(source / "model.safetensors"))
        if model.head is not None:
            _fill(model.head, source / "head.safetensors", read_tensors(source / "head.safetensors"))
    else:
        _fill(model, source / "model.safetensors", read_tensors(source / "model.safetensors"))
    return _run(path, source, config, facts, model, described.get("step"))


def _from_checkpoint(path: Path, source: Path) -> Run:
    tensors, state = checkpoint.load(source)
    facts = _facts(source / STATE, state.get("data"))
    config = load_file(path / CONFIG)
    model = _build(path, config, facts)
    name = "classifier" if isinstance(model, building.Classifier) else "generator"
    nested = checkpoint.unflatten(tensors, state.get("tree"))
    weights = nested.get(name) if isinstance(nested, Mapping) else None
    if not isinstance(weights, Mapping) or not all(isinstance(value, Tensor) for value in weights.values()):
        raise ValueError(f"{source / STATE} is malformed: it must have the tensors of {name!r}")
    if holds_rotations(weights):
        try:
            weights = merge_state_dict(weights)
        except ValueError as error:
            raise ValueError(f"{source / TENSORS} cannot be merged: {line(error)}") from None
    _fill(model, source / TENSORS, weights)
    return _run(path, source, config, facts, model, state.get("step"))


def _run(path: Path, source: Path, config: Config, facts: Facts, model: nn.Module, step: Any) -> Run:
    if type(step) is not int:
        raise ValueError(f"{source} is malformed: its step must be an integer, got {step!r}")
    model.eval()
    if not isinstance(model, building.Classifier):
        noise = Facts("other", (int(model.latent),), "float32", [])  # type: ignore[arg-type]
        return Run(model, Preprocess(noise, as_stored), [], config, path, source, step, facts)
    whole = model if model.head is not None else model.network
    preprocess = Preprocess(facts, augmentations(config.data)[1])
    return Run(whole, preprocess, list(facts.classes), config, path, source, step, facts)


# ------------------------------------------------------------------------------------------------------- parts


def _build(path: Path, config: Config, facts: Facts) -> nn.Module:
    """The network of the run with a start that is thrown away; torch's random state is left as it was."""
    try:
        with torch.random.fork_rng(devices=[]):
            if config.model.name in building.GENERATORS:
                return building.opponents(config, facts)[0]
            return building.classifier(config, facts)
    except (TypeError, ValueError, RuntimeError) as error:  # out of memory is a RuntimeError
        raise ValueError(f"{path / CONFIG}: its network cannot be built: {line(error)}") from None


def _fill(module: nn.Module, file: Path, tensors: Mapping[str, Tensor]) -> None:
    for name in module.state_dict():  # first: a layer may have a start for what is missing
        if name not in tensors:
            raise ValueError(f"{file} has no tensor {name!r}, which the network of {CONFIG} has")
    building.load_same(module, dict(tensors), str(file))


def read_tensors(file: Path) -> dict[str, Tensor]:
    """The tensors of a file in final/, each compared with its checksum in model.json."""
    if not file.is_file():
        raise ValueError(f"{file} is missing")
    sums = _json(file.with_name("model.json")).get("checksums")
    known = sums.get(file.stem) if isinstance(sums, Mapping) else None
    if not isinstance(known, Mapping):
        raise ValueError(f"{file.with_name('model.json')} is malformed: it has no checksums of {file.name}")
    try:
        with safe_open(os.fspath(file), framework="pt") as opened:
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118  # it is no dict
            aliases = json.loads((opened.metadata() or {}).get("aliases", "{}"))
        for name, value in tensors.items():
            if known.get(name) != checksum_of(value):
                raise ValueError(f"the checksum of {name!r} is wrong")
        return tensors | {alias: tensors[name] for alias, name in aliases.items()}
    except (SafetensorError, ValueError, RecursionError, OSError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{file} cannot be read: {line(error)}") from None


def _json(file: Path) -> dict[str, Any]:
    if not file.is_file():
        raise ValueError(f"{file} is missing")
    try:
        tree = json.loads(file.read_bytes())
        if not isinstance(tree, dict):
            raise ValueError(f"it must be an object, got {type(tree).__name__}")
    except (ValueError, RecursionError, OSError) as error:
        raise ValueError(f"{file} cannot be read: {line(error)}") from None
    return tree


def _check_format(file: Path, tree: Mapping[str, Any]) -> None:
    version = tree.get("format")
    if type(version) is not int or version != FORMAT:
        raise ValueError(f"{file} has format {version!r}; this version of hypersphere reads {FORMAT}")


def _facts(file: Path, tree: Any) -> Facts:
    try:
        facts = Facts.from_tree(tree)
        dims = KINDS.get(facts.kind, 0)
        if not facts.shape or min(facts.shape) < 1 or dims not in (None, len(facts.shape)):
            raise ValueError(f"data cannot be {shown(facts.kind)} of shape {facts.shape}")
        if facts.dtype not in DTYPES or not facts.classes:
            raise ValueError(f"data must have classes and a known dtype, got {shown(facts.dtype)}")
    except ValueError as error:
        raise ValueError(f"{file} is malformed: {line(error)}") from None
    return facts
