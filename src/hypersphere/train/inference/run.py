"""A run read back from its folder: the network, what it takes, and what its answers are called."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from ..._internal.safe_files import check_plain, is_folder, is_plain
from ..._internal.tensors import checksum_of
from ...data import Graph
from ...data.augment import as_stored
from ...losses import AngularSoftmaxLoss
from ...rotation.merging import holds_rotations, merge_state_dict
from .. import building
from ..config import Config, load_file
from ..config.values import shown
from ..splits import DataSpec, augmentations
from ..storage import checkpoint, signed
from ..storage.folder import CONFIG, FINAL
from ..storage.reading import STATE, STEP, TENSORS, find, one_line, warn_of
from ..storage.summary import FORMATS, RESULT, is_count, read_summary
from .inputs import DTYPES, KINDS, Preprocess

BATCH = 256  # samples that a network sees at once


@dataclass(frozen=True, eq=False, repr=False)
class Run:
    """A trained network with all that is needed to use it.

    Attributes:
        model: in eval mode, with plain layers; ``model(preprocess(inputs))`` are logits. With an angular loss it is the
            network with its head. A GAN's is the generator, which takes noise.
        preprocess: a :class:`~hypersphere.train.inference.inputs.Preprocess`.
        labels: the names of the classes; none for a generator.
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

    @property
    def facts(self) -> DataSpec:
        """Return `spec` by its old name."""
        return self.spec

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
    if is_plain(path / STATE) or (path.parent.name == "checkpoints" and STEP.fullmatch(path.name)):
        path = Path(os.path.abspath(path))
        return _from_checkpoint(path.parent.parent, path)
    if not os.path.lexists(path / CONFIG):
        raise ValueError(f"{path} is no run: it has no {CONFIG}")
    config = _config(path)
    if _is_finished(path, config):
        return _from_final(path, config)
    found, damaged = find(_folder(path / "checkpoints"), marked=True)
    if found is None:
        found, more = find(path / "checkpoints", marked=False)
        damaged += more
    if found is not None or is_plain(path / FINAL / "model.json"):
        warn_of(damaged)
        return _from_final(path, config) if found is None else _from_checkpoint(path, found)
    why = f"; {damaged[0]}" if damaged else ""
    raise ValueError(f"{path} has no trained network yet: neither {FINAL}/model.json nor a whole checkpoint{why}")


def _config(path: Path) -> Config:
    check_plain(path / CONFIG)
    return load_file(path / CONFIG)


def _folder(path: Path) -> Path:
    if os.path.lexists(path) and not is_folder(path):
        raise ValueError(f"{path} must be a folder itself, not a link to one")
    return path


def _is_finished(path: Path, config: Config) -> bool:
    """Whether final/ is the end of what the config asks for; a run that is made longer has one before its end."""
    if not os.path.lexists(path / RESULT):
        return False
    summary, _ = read_summary(path)
    return bool(summary["length"] == [config.steps, config.epochs])


def _from_final(path: Path, config: Config) -> Run:
    source = _folder(path / FINAL)
    described = read_model(source / "model.json")
    spec = read_spec(source / "model.json", described.get("data"))

    def parts(model: nn.Module) -> Iterator[tuple[nn.Module, Path]]:
        network = model.network if isinstance(model, building.Classifier) else model
        yield network, source / "model.safetensors"
        if isinstance(model, building.Classifier) and model.head is not None:
            yield model.head, source / "head.safetensors"

    # On the meta device first: a config may ask for more memory than there is, where the files are small.
    if (outline := _outline(config, spec)) is not None:
        for module, file in parts(outline):
            _check_fit(module, file, shapes_of(file))
    model = _build(path, config, spec)
    for module, file in parts(model):
        _fill(module, file, read_tensors(file, described))
    return _run(path, source, config, spec, model, described.get("step"))


def _from_checkpoint(path: Path, source: Path) -> Run:
    tensors, state = checkpoint.load(source)
    spec = read_spec(source / STATE, state.get("data"))
    config = _config(path)
    outline = _outline(config, spec)
    classifies = config.model.name not in building.GENERATORS
    name = "classifier" if classifies else "generator"
    nested = checkpoint.unflatten(tensors, state.get("tree"))
    weights = nested.get(name) if isinstance(nested, Mapping) else None
    if not isinstance(weights, Mapping) or not all(
        isinstance(key, str) and isinstance(value, Tensor) for key, value in weights.items()
    ):
        raise ValueError(f"{source / STATE} is malformed: it must have the tensors of {name!r}")
    if holds_rotations(weights):
        try:
            weights = merge_state_dict(weights)
        except (ValueError, TypeError, RuntimeError, IndexError) as error:
            raise ValueError(f"{source / TENSORS} cannot be merged: {one_line(error)}") from None
    if outline is not None:
        _check_fit(outline, source / TENSORS, {key: value.shape for key, value in weights.items()})
    model = _build(path, config, spec)
    _fill(model, source / TENSORS, weights)
    return _run(path, source, config, spec, model, state.get("step"))


def _run(path: Path, source: Path, config: Config, spec: DataSpec, model: nn.Module, step: Any) -> Run:
    if not is_count(step):
        raise ValueError(f"{source} is malformed: its step must be an integer >= 0, got {shown(step)}")
    model.eval()
    if not isinstance(model, building.Classifier):
        noise = DataSpec("other", (int(model.latent),), "float32", [])  # type: ignore[arg-type]
        return Run(model, Preprocess(noise, as_stored), [], config, path, source, step, spec)
    whole = model if model.head is not None else model.network
    preprocess = Preprocess(spec, augmentations(config.data)[1])
    return Run(whole, preprocess, list(spec.classes), config, path, source, step, spec)


# ------------------------------------------------------------------------------------------------------- parts


def _network(config: Config, spec: DataSpec) -> nn.Module:
    """The network of a run with a start that is thrown away; torch's random state is left as it was."""
    with torch.random.fork_rng(devices=[]):
        if config.model.name in building.GENERATORS:
            return building.opponents(config, spec)[0]
        return building.classifier(config, spec)


def _outline(config: Config, spec: DataSpec) -> nn.Module | None:
    """The network without memory, which takes no time however large it is; None if it cannot be had so."""
    try:
        with torch.device("meta"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _network(config, spec)
    except Exception:  # of a network of the user's own anything; what is wrong with the config is said by _build
        return None


def _build(path: Path, config: Config, spec: DataSpec) -> nn.Module:
    try:
        return _network(config, spec)
    except (TypeError, ValueError, ArithmeticError, RuntimeError, MemoryError) as error:  # no memory may be either
        raise ValueError(f"{path / CONFIG}: its network cannot be built: {one_line(error)}") from None


def _check_fit(module: nn.Module, file: Path, shapes: Mapping[str, tuple[int, ...]]) -> None:
    # Heads whose annealing is off had no step once, and it means nothing to them.
    heads = ((name, each) for name, each in module.named_modules() if isinstance(each, AngularSoftmaxLoss))
    unused = {f"{name}.step".lstrip(".") for name, head in heads if head.annealing is None}
    for name in module.state_dict():  # first: a layer may have a start for what is missing
        if name not in shapes and name not in unused:
            raise ValueError(f"{file} has no tensor {name!r}, which the network of {CONFIG} has")
    building.check_same(module, shapes, str(file))


def _fill(module: nn.Module, file: Path, tensors: Mapping[str, Tensor]) -> None:
    _check_fit(module, file, {name: value.shape for name, value in tensors.items()})
    building.load_same(module, dict(tensors), str(file))


def read_model(file: Path) -> dict[str, Any]:
    """final/model.json: what the network was built for, and checksums of its tensors."""
    described, _ = signed.read(file, FORMATS)
    sums = described.get("checksums")
    if not isinstance(sums, Mapping) or not all(isinstance(each, Mapping) for each in sums.values()):
        raise ValueError(f"{file} is malformed: it has no checksums of tensors")
    return described


def shapes_of(file: Path) -> dict[str, tuple[int, ...]]:
    """The shapes of the tensors in a file of final/, from its header alone."""
    with _opened(file) as opened:
        shapes = {name: tuple(opened.get_slice(name).get_shape()) for name in opened.keys()}  # noqa: SIM118
        return shapes | {alias: shapes[name] for alias, name in _aliases(opened, shapes).items()}


def read_tensors(file: Path, described: Mapping[str, Any] | None = None) -> dict[str, Tensor]:
    """The tensors of a file in final/, each compared with its checksum in model.json: all of those and no others."""
    described = read_model(file.with_name("model.json")) if described is None else described
    known = described["checksums"].get(file.stem)
    if known is None:
        raise ValueError(f"{file.with_name('model.json')} is malformed: it has no checksums of {file.name}")
    with _opened(file) as opened:
        tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118  # it is no dict
        aliases = _aliases(opened, tensors)
        tensors |= {alias: tensors[name] for alias, name in aliases.items()}
        for name, value in tensors.items():
            if described["format"] == 1 and name in aliases:  # which had none
                continue
            if known.get(name) != checksum_of(value):
                raise ValueError(f"the checksum of {name!r} is wrong")
        for name in known:
            if name not in tensors:
                raise ValueError(f"it has no tensor {name!r}, of which there is a checksum")
        return tensors


@contextmanager
def _opened(file: Path) -> Iterator[Any]:
    """A file of tensors; all that is wrong with it, and that is said of it within, is a ValueError in one line."""
    check_plain(file)
    try:
        with safe_open(os.fspath(file), framework="pt") as opened:
            yield opened
    except (SafetensorError, ValueError, RuntimeError, OSError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{file} cannot be read: {one_line(error)}") from None


def _aliases(opened: Any, tensors: Mapping[str, Any]) -> dict[str, str]:
    """Names that stand for another tensor of the file; they never replace one that is there."""
    aliases = signed.parse((opened.metadata() or {}).get("aliases", "{}").encode())
    for alias, name in aliases.items():
        if alias in tensors or not isinstance(name, str) or name not in tensors:
            raise ValueError(f"its alias {shown(alias)} must be a new name for a tensor that is there")
    return dict(aliases)


def read_spec(file: Path, tree: Any) -> DataSpec:
    """What the network was built for, as `file` has it."""
    try:
        spec = DataSpec.from_tree(tree)
        dims = KINDS.get(spec.kind, 0)
        if not spec.shape or min(spec.shape) < 1 or dims not in (None, len(spec.shape)):
            raise ValueError(f"data cannot be {shown(spec.kind)} of shape {spec.shape}")
        if spec.dtype not in DTYPES or not spec.classes:
            raise ValueError(f"data must have classes and a known dtype, got {shown(spec.dtype)}")
    except ValueError as error:
        raise ValueError(f"{file} is malformed: {one_line(error)}") from None
    return spec
