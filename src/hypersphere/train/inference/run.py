"""Load a run from its folder: the network, its preprocessing and the class names."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..._internal.checksummed_json import RUN_ID
from ..._internal.safe_files import check_folder, check_plain, is_plain
from ..._internal.tables import NOTHING, TableResult, TextTable
from ..._internal.text import one_line
from ...data import Graph
from ...data.augment import as_stored
from ...rotation.merging import holds_rotations, merge_state_dict
from ..config import Config, load_file
from ..config.values import shown
from ..initial_weights import check_fits, load_fitting
from ..networks import Classifier
from ..splits import DataSpec, augmentations
from ..storage import checkpoint
from ..storage.layout import CHECKPOINTS, CONFIG, FINAL, MODEL, RESULT, STATE, STEP, TENSORS, weights
from ..storage.reading import find, read_state, warn_damaged
from ..storage.records import check_id, is_number, own_folder, to_record
from ..storage.summary import read_summary
from ..storage.weights import read_model, read_tensors, shapes_of
from ..tasks import task_of
from .inputs import DTYPES, KINDS, Preprocess

T = TypeVar("T")

BATCH = 256  # samples per forward pass


@dataclass(frozen=True, eq=False, repr=False)
class Run(TableResult):
    """A trained network with its preprocessing and class names; prints as a table.

    Attributes:
        model: in eval mode, with plain layers; ``model(preprocess(inputs))`` are logits. With an angular loss it is the
            network with its head. A GAN's is the generator, which takes noise.
        preprocess: a :class:`~hypersphere.train.inference.inputs.Preprocess`.
        labels: the names of the classes; none for other tasks than classification.
        config: of the training.
        path: the run's folder.
        source: the folder in it that the weights are from, ``final`` or a checkpoint.
        step: of the weights.
        spec: what the network was built for.
    """

    model: nn.Module
    preprocess: Preprocess
    labels: list[str]
    config: Config
    path: Path
    source: Path
    step: int
    spec: DataSpec

    @torch.no_grad()
    def predict(self, inputs: Any) -> tuple[list[str], Tensor]:
        """Return the most likely label of each sample, and the probabilities (B, C).

        Args:
            inputs: what `preprocess` takes; of text, the character that follows is predicted.
        """
        self.check_labels()
        logits = torch.cat([_last(self.classifier(x, edges=edges)) for x, edges in self._parts(inputs)])
        return [self.labels[i] for i in logits.argmax(1).tolist()], logits.float().softmax(1)

    @torch.no_grad()
    def embed(self, inputs: Any) -> Tensor:
        """Return embeddings of length 1, (B, d). `inputs` are what `preprocess` takes."""
        self.check_labels()
        embeddings = [_last(self.classifier.embed(*part)).float() for part in self._parts(inputs)]
        return torch.cat([F.normalize(part, dim=1) for part in embeddings])

    @property
    def classifier(self) -> Classifier:
        """The model as it was trained: ``classifier(inputs, labels)`` returns the loss too."""
        if isinstance(self.model, Classifier):
            return self.model
        return Classifier(self.model, None, self.config.loss.label_smoothing)

    def check_labels(self) -> None:
        if not self.labels:
            raise ValueError(f"{self.path} has no labels: its network, {self.config.model.name}, is no classifier")

    def _parts(self, inputs: Any) -> Iterator[tuple[Tensor, Tensor | None]]:
        """Yield the inputs in batches, and the edges of a graph, which is one batch."""
        batch = self.preprocess(inputs)
        first = next(self.model.parameters(), None)
        device = batch.device if first is None else first.device
        if isinstance(inputs, Graph):
            yield batch.to(device), inputs.adjacency.to(device)
            return
        for part in batch.split(BATCH):
            yield part.to(device), None

    @property
    def rows(self) -> list[tuple[str, str]]:
        """What the run is, by name."""
        classes = str(len(self.labels)) if self.labels else NOTHING
        shape = "×".join(map(str, self.spec.shape))
        return [
            ("network", self.config.model.name),
            ("data", f"{self.config.data.name}, {self.spec.kind} {shape}"),
            ("classes", classes),
            ("step", str(self.step)),
            ("weights", str(self.source)),
        ]

    def tables(self) -> list[TextTable]:
        return [TextTable(["run", str(self.path)], self.rows, left=2)]

    def to_dict(self) -> dict[str, str | int | list[str]]:
        """Return what the run is, for JSON."""
        return {**dict(self.rows), "path": str(self.path), "step": self.step, "labels": self.labels}


def _last(rows: Tensor) -> Tensor:
    """Return the last position of text (B, T, d)."""
    return rows[:, -1] if rows.dim() == 3 else rows


def load_run(path: str | os.PathLike[str]) -> Run:
    """Load the network of a run with its preprocessing and class names; the dataset is not needed.

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
    check_folder(path)
    if is_plain(path / STATE) or (path.parent.name == CHECKPOINTS and STEP.fullmatch(path.name)):
        path = Path(os.path.abspath(path))
        return _from_checkpoint(path.parent.parent, path)
    if not os.path.lexists(path / CONFIG):
        raise ValueError(f"{path} is not a run folder: it has no {CONFIG}")
    config = _config(path)
    # while a finished run is extended, result.json has another length
    if os.path.lexists(path / RESULT) and read_summary(path).length == (config.steps, config.epochs):
        return _from_final(path, config)
    found, damaged = find(own_folder(path / CHECKPOINTS), marked=True)
    if found is None:
        found, more = find(path / CHECKPOINTS, marked=False)
        damaged += more
    if found is not None or is_plain(path / FINAL / MODEL):
        warn_damaged(damaged)
        return _from_final(path, config) if found is None else _from_checkpoint(path, found)
    why = f"; {damaged[0]}" if damaged else ""
    raise ValueError(f"{path} has no trained network yet: neither {FINAL}/{MODEL} nor an intact checkpoint{why}")


def _config(path: Path) -> Config:
    check_plain(path / CONFIG)
    return load_file(path / CONFIG)


def _from_final(path: Path, config: Config) -> Run:
    source = own_folder(path / FINAL)
    described = read_model(source / MODEL)
    spec = read_spec(source / MODEL, described.data)

    def parts(model: nn.Module) -> Iterator[tuple[nn.Module, Path]]:
        network = model.network if isinstance(model, Classifier) else model
        yield network, source / weights("model")
        if isinstance(model, Classifier) and model.head is not None:
            yield model.head, source / weights("head")

    # On the meta device first: a config may ask for more memory than there is, where the files are small.
    if (outline := _outline(config, spec)) is not None:
        for module, file in parts(outline):
            _check_fit(module, file, shapes_of(file))
    model = _build(path, config, spec)
    for module, file in parts(model):
        _fill(module, file, read_tensors(file, described))
    return _run(path, source, config, spec, model, described.step)


def _from_checkpoint(path: Path, source: Path) -> Run:
    config = _config(path)
    weights, spec, step = read_checkpoint(source, config)
    outline = _outline(config, spec)
    if holds_rotations(weights):
        try:
            weights = merge_state_dict(weights)
        except (ValueError, TypeError, RuntimeError, IndexError) as error:
            raise ValueError(f"{source / TENSORS} cannot be merged: {one_line(error)}") from None
    if outline is not None:
        _check_fit(outline, source / TENSORS, {key: value.shape for key, value in weights.items()})
    model = _build(path, config, spec)
    _fill(model, source / TENSORS, weights)
    return _run(path, source, config, spec, model, step)


def read_checkpoint(source: Path, config: Config) -> tuple[Mapping[str, Tensor], DataSpec, Any]:
    """Read the state_dict of a checkpoint's network, its rotations not merged; the data specification; the step."""
    tensors, state = checkpoint.load(source)
    check_id(source.parent.parent, source, state.get(RUN_ID))
    spec = read_spec(source / STATE, state.get("data"))
    name = task_of(config, spec).main
    nested = checkpoint.unflatten(tensors, state.get("tree"))
    weights = nested.get(name) if isinstance(nested, Mapping) else None
    if not isinstance(weights, Mapping) or not all(
        isinstance(key, str) and isinstance(value, Tensor) for key, value in weights.items()
    ):
        raise ValueError(f"{source / STATE} is malformed: it must have the tensors of {name!r}")
    return weights, spec, state.get("step")


def _run(path: Path, source: Path, config: Config, spec: DataSpec, model: nn.Module, step: Any) -> Run:
    if type(step) is not int or not is_number(step) or step < 0:
        raise ValueError(f"{source} is malformed: its step must be an integer >= 0, got {shown(step)}")
    model.eval()
    task = task_of(config, spec)
    inputs = task.input_spec(model, spec)
    preprocess = Preprocess(inputs, augmentations(config.data)[1] if inputs is spec else as_stored)
    whole = model.network if isinstance(model, Classifier) and model.head is None else model
    return Run(whole, preprocess, list(spec.classes) if task.has_classes else [], config, path, source, step, spec)


# ------------------------------------------------------------------------------------------------------- parts


def _network(config: Config, spec: DataSpec) -> nn.Module:
    """Build the network of a run; torch's random state is restored."""
    with torch.random.fork_rng(devices=[]):
        return task_of(config, spec).build(config, spec)


def outlines(path: Path, source: Path) -> dict[str, nn.Module]:
    """Build the modules of a run on the meta device, by their names in checkpoints; none if that fails.

    Args:
        path: the run's folder.
        source: the folder in it that the weights are from, ``final`` or a checkpoint.
    """
    try:
        config, is_final = _config(path), source.name == FINAL
        file = source / (MODEL if is_final else STATE)
        spec = read_spec(file, read_model(file).data if is_final else read_state(source).get("data"))
    except (ValueError, OSError):
        return {}
    return _on_meta(lambda: task_of(config, spec).build_all(config, spec)) or {}


def _outline(config: Config, spec: DataSpec) -> nn.Module | None:
    """Build the network on the meta device, without memory; None if that fails."""
    return _on_meta(lambda: _network(config, spec))


def _on_meta(build: Callable[[], T]) -> T | None:
    try:
        with torch.device("meta"), torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return build()
    except Exception:  # a user's network may raise anything; _build reports errors of the config
        return None


def _build(path: Path, config: Config, spec: DataSpec) -> nn.Module:
    try:
        return _network(config, spec)
    except (TypeError, ValueError, ArithmeticError, RuntimeError, MemoryError) as error:  # Runtime: out of memory
        raise ValueError(f"{path / CONFIG}: its network cannot be built: {one_line(error)}") from None


def _check_fit(module: nn.Module, file: Path, shapes: Mapping[str, tuple[int, ...]]) -> None:
    for name in module.state_dict():  # before loading: a layer may fill in missing tensors
        if name not in shapes:
            raise ValueError(f"{file} has no tensor {name!r}, which the network of {CONFIG} has")
    check_fits(module, shapes, str(file))


def _fill(module: nn.Module, file: Path, tensors: Mapping[str, Tensor]) -> None:
    _check_fit(module, file, {name: value.shape for name, value in tensors.items()})
    load_fitting(module, dict(tensors), str(file))


def read_spec(file: Path, tree: Any) -> DataSpec:
    """Parse and check the data specification in `file`."""
    try:
        spec = to_record(DataSpec, tree)
        dims = KINDS.get(spec.kind, 0)
        if not spec.shape or min(spec.shape) < 1 or dims not in (None, len(spec.shape)):
            raise ValueError(f"inconsistent data: {shown(spec.kind)} of shape {spec.shape}")
        if spec.dtype not in DTYPES or not spec.classes:
            raise ValueError(f"data must have classes and a known dtype, got {shown(spec.dtype)}")
    except ValueError as error:
        raise ValueError(f"{file} is malformed: {one_line(error)}") from None
    return spec
