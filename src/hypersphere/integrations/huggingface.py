"""Save and load converted networks of Hugging Face: the conversion stands in the folder's config.json.

A folder of :func:`save_pretrained` is one of two kinds:

- a plain network, its rotations merged: the folder of the model's own ``save_pretrained``, for any ``from_pretrained``;
- with sphere layers or kept rotations: ``config.json`` has a key ``hypersphere`` that describes them, and the weights
  are in ``hypersphere.safetensors``. A plain ``from_pretrained`` does not find weights and raises.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from .._internal import checks
from .._internal.adapters import refuse_adapters
from .._internal.hashed_folder import LARGEST, add_checksums, check, check_folder, checksums, json_files
from .._internal.safe_files import check_plain, read_plain, temporary_name, write_text
from .._internal.sharding import refuse_sharded
from .._internal.tensor_files import TensorFile, add_aliases
from .._internal.tensors import unshared
from ..layers.conversion import SPHERE_CLASS
from ..layers.fusion import FoldedBatchNorm
from ..layers.similarity import LearnableSigmoid, Similarity, resolve
from ..layers.sphere import SphereOptions
from ..rotation.merging import merge_state_dict
from ..rotation.parametrization import find_rotated
from ..rotation.saving import describe_rotations, rotate_as_described
from ..rotation.tasks import scaled_by_strength

FORMAT = 1
KEY = "hypersphere"  # in config.json
WEIGHTS = "hypersphere.safetensors"
_PLAIN_WEIGHTS = re.compile(r"(pytorch_)?model(-\d{5}-of-\d{5})?\.(safetensors|bin)(\.index\.json)?")


@dataclass(frozen=True)
class SphereLayer:
    """A sphere layer in the config."""

    name: str
    similarity: str | Mapping[str, Any]
    """The name, or for a learned k: {"learnable": filters or None, "of": the first layer that has it}."""
    scale: float | str | None
    """A number, "learned" or None."""


@dataclass(frozen=True)
class Conversion:
    """What the config says of the conversion."""

    sphere: list[SphereLayer]
    rotated: Sequence[Mapping[str, Any]]
    format: int = FORMAT


def save_pretrained(model: nn.Module, folder: str | os.PathLike[str], *, rotations: str = "keep") -> None:
    """Save a Hugging Face model with sphere or rotated layers, so that :func:`from_pretrained` gives it back exactly.

    The model's own ``save_pretrained`` loses both without an error. The folder gets ``config.json``,
    ``generation_config.json`` if the model has one, and the weights as safetensors, each written under a temporary name
    and renamed. Checksums of tensors and JSON files stand in the metadata of the weights: damage is an error on
    loading. A tokenizer is saved with its own ``save_pretrained``.

    Args:
        model: with ``save_pretrained`` and a ``config``, as of transformers. It does not change.
        folder: is created. Weights of a plain network that the new ones would not replace are an error, because a plain
            ``from_pretrained`` would load them.
        rotations: "keep" saves neurons, rotations and tasks, to continue training. "merge" saves the merged weights of
            the active task; if there are no sphere layers, any ``from_pretrained`` loads the folder.
    """
    checks.module("model", model)
    checks.choice("rotations", rotations, ("keep", "merge"))
    config = getattr(model, "config", None)
    if not callable(getattr(model, "save_pretrained", None)) or not callable(getattr(config, "save_pretrained", None)):
        raise TypeError(
            "model must have save_pretrained and a config with save_pretrained, as models of transformers do, got "
            f"{type(model).__name__}; for others use state_dict() or hypersphere.rotation.save_rotations"
        )
    refuse_adapters("save_pretrained", model)
    refuse_sharded("save_pretrained", model, "save from an unsharded model")
    if folded := [name for name, module in model.named_modules() if isinstance(module, FoldedBatchNorm)]:
        raise ValueError(f"save_pretrained: BatchNorm {folded[0]!r} was folded: save before fuse_bn")
    state, rotated = model.state_dict(), describe_rotations(model)
    if rotated and rotations == "merge":
        state |= scaled_by_strength(model)
        state, rotated = merge_state_dict(state, task=_active_task(model)), []
    elif scaled_by_strength(model):
        checks.warn("save_pretrained writes rotations at strength 1: combine_tasks makes a strength a task of its own")
    conversion = Conversion(_describe_sphere_layers(model), rotated)
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    with _temporary_folder(target) as temporary:
        if conversion.sphere or rotated:
            _save_converted(model, temporary, state, conversion)
        else:
            model.save_pretrained(temporary, state_dict=state)  # type: ignore[operator]
            add_checksums(temporary)
        _move(temporary, target)


def from_pretrained(cls: Any, folder: str | os.PathLike[str]) -> Any:
    """Load a model that :func:`save_pretrained` saved: sphere layers, rotations and tasks as they were, bit for bit.

    The model is in eval mode, as from ``cls.from_pretrained``, which loads folders without a conversion. Nothing is
    fetched: `folder` must be a local one.

    Args:
        cls: the model's class, or an auto class of transformers.
        folder: the folder.

    Example:
        >>> import hypersphere as hs
        >>> hs.integrations.huggingface.from_pretrained(int, "folder")
        Traceback (most recent call last):
        TypeError: cls must be a class with from_pretrained, as models of transformers are, got <class 'int'>
    """
    if not callable(getattr(cls, "from_pretrained", None)):
        raise TypeError(f"cls must be a class with from_pretrained, as models of transformers are, got {cls!r}")
    source = Path(folder)
    if not source.is_dir():
        raise ValueError(f"folder must be one that save_pretrained wrote, got {os.fspath(folder)!r}")
    conversion = _read_conversion(source)
    if conversion is None:
        check_folder(source)
        return cls.from_pretrained(source)
    state = _read_weights(source / WEIGHTS)
    with torch.random.fork_rng(devices=[]):  # the random start is overwritten
        model = _build(cls, source)
    try:
        _convert_as_described(model, conversion.sphere)
        rotate_as_described(model, conversion.rotated)
        _load_exactly(model, state)
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise ValueError(f"{folder} does not fit {type(model).__name__}: {error}") from None
    return model.eval()


def _active_task(model: nn.Module) -> str:
    active = sorted({weight.rotation.active for weight in find_rotated(model)})
    if len(active) > 1:
        raise ValueError(f"save_pretrained: layers have different active tasks ({', '.join(active)}): call use_task")
    return active[0]


def _save_converted(model: Any, folder: Path, state: Mapping[str, Any], conversion: Conversion) -> None:
    """Write the config with the conversion, and the weights under a name that no plain from_pretrained finds."""
    others = [key for key, value in state.items() if not isinstance(value, Tensor)]
    if others:
        raise ValueError(f"save_pretrained: {others[0]!r} of the state_dict is not a tensor")
    model.config.save_pretrained(folder)
    if callable(getattr(getattr(model, "generation_config", None), "save_pretrained", None)):
        model.generation_config.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    if hasattr(model.config, "architectures"):  # what save_pretrained of transformers adds
        config |= {"architectures": [type(model).__name__], "dtype": str(model.dtype).removeprefix("torch.")}
    write_text(folder / "config.json", json.dumps(config | {KEY: asdict(conversion)}, indent=2) + "\n")
    tensors, aliases = unshared(state)
    everything = tensors | {alias: tensors[key] for alias, key in aliases.items()}
    sums = checksums(everything, json_files(folder))
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt", "aliases": json.dumps(aliases)} | sums)


@contextmanager
def _temporary_folder(target: Path) -> Iterator[Path]:
    temporary = temporary_name(target / KEY)
    temporary.mkdir()
    try:
        yield temporary
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _move(source: Path, target: Path) -> None:
    """Flush and move all files, the config last; refuse if weights would stay that a plain from_pretrained finds."""
    new = sorted((path for path in source.iterdir() if path.is_file()), key=lambda path: path.name == "config.json")
    names = {path.name for path in new}
    stale = sorted(path.name for path in target.iterdir() if _PLAIN_WEIGHTS.fullmatch(path.name))
    if left := [name for name in stale if name not in names]:
        raise ValueError(f"folder {str(target)!r} holds other weights ({left[0]}): remove them, or use another folder")
    for path in new:
        with open(path, "rb") as file:
            os.fsync(file.fileno())
        os.replace(path, target / path.name)
    if WEIGHTS not in names:
        (target / WEIGHTS).unlink(missing_ok=True)


def _read_conversion(folder: Path) -> Conversion | None:
    """Return the conversion that config.json describes; None if the folder holds a plain network."""
    path = folder / "config.json"
    try:
        described = json.loads(read_plain(path, LARGEST)).get(KEY)
    except (ValueError, RecursionError, AttributeError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from None
    if described is None:
        if (folder / WEIGHTS).exists():
            raise ValueError(f"{path} does not describe the network whose weights are in {WEIGHTS}")
        return None
    version = described.get("format") if isinstance(described, dict) else described
    if version != FORMAT:
        raise ValueError(f"{path} has hypersphere format {version!r}; this version reads {FORMAT}")
    sphere, rotated = described.get("sphere"), described.get("rotated")
    if not isinstance(sphere, list) or not isinstance(rotated, list):
        raise ValueError(f"{path}: {KEY} must have the lists sphere and rotated")
    try:
        return Conversion([SphereLayer(**layer) for layer in sphere], rotated)
    except TypeError as error:
        raise ValueError(f"{path}: {KEY} has a malformed sphere layer: {error}") from None


def _read_weights(path: Path) -> dict[str, Tensor]:
    check_plain(path)
    file = TensorFile(path)
    tensors = add_aliases(file.read_all(), file.aliases)
    check(file, tensors)
    return tensors


def _build(cls: Any, folder: Path) -> nn.Module:
    """Make a plain model of the folder's config, with random weights."""
    config_class: Any = getattr(cls, "config_class", None)
    if config_class is None:  # an auto class of transformers
        config_class = getattr(sys.modules.get("transformers"), "AutoConfig", None)
    if config_class is None:
        raise TypeError(f"cls must be a model class with config_class, or an auto class of transformers, got {cls!r}")
    config = config_class.from_pretrained(folder)
    if hasattr(config, KEY):  # else the model's own save_pretrained would write it
        delattr(config, KEY)
    build = getattr(cls, "from_config", None) or getattr(cls, "_from_config", None) or cls
    model = build(config)
    checks.module("model", model)
    if os.path.isfile(folder / "generation_config.json") and hasattr(model, "generation_config"):
        model.generation_config = type(model.generation_config).from_pretrained(folder)
    return cast(nn.Module, model)


def _load_exactly(model: nn.Module, state: dict[str, Tensor]) -> None:
    """Load a state_dict strictly, with its dtypes."""
    for key, value in model.state_dict(keep_vars=True).items():
        if key in state and value.dtype is not state[key].dtype:
            value.data = value.data.to(state[key].dtype)
    model.load_state_dict(state)


def _describe_sphere_layers(model: nn.Module) -> list[SphereLayer]:
    """Return the sphere layers in the model's order."""
    holders: dict[nn.Module, str] = {}
    return [_describe(name, m, holders) for name, m in model.named_modules() if isinstance(m, SphereOptions)]


def _describe(name: str, layer: SphereOptions, holders: dict[nn.Module, str]) -> SphereLayer:
    g: Any = layer.similarity
    if isinstance(g, LearnableSigmoid):
        similarity: Any = {"learnable": g.num_filters, "of": holders.setdefault(g, name)}
    elif isinstance(g, Similarity):
        similarity = str(g)
    else:
        raise ValueError(
            f"save_pretrained: the similarity of layer {name!r} must have a name to stand in the config, got {g!r}"
        )
    return SphereLayer(name, similarity, "learned" if isinstance(layer.scale, Tensor) else layer.scale)


def _convert_as_described(model: nn.Module, layers: list[SphereLayer]) -> None:
    """Turn plain layers into the described sphere layers; a class that has them already is only compared."""
    shared: dict[str, LearnableSigmoid] = {}
    own = {layer.name: layer for layer in _describe_sphere_layers(model)}
    for entry in layers:
        name, similarity, scale = entry.name, entry.similarity, entry.scale
        layer: Any = model.get_submodule(name)
        if name in own:
            if own.pop(name) != entry:
                raise ValueError(f"layer {name!r} is a sphere layer with other options than {entry}")
            continue
        if type(layer) not in SPHERE_CLASS:
            raise ValueError(f"layer {name!r} must be one of nn.Linear, nn.Conv1d to 3d, got {type(layer).__name__}")
        like = {"device": layer.weight.device, "dtype": layer.weight.dtype}
        filters = len(layer.weight)
        if isinstance(similarity, str):
            g: Any = resolve(similarity, filters, **like)
        elif similarity["of"] in shared:
            g = resolve(shared[similarity["of"]], filters)
        else:
            g = resolve(LearnableSigmoid(similarity["learnable"], **like), filters)
            shared[similarity["of"]] = g
        layer.__class__ = SPHERE_CLASS[type(layer)]
        layer._set_sphere(g, True if scale == "learned" else scale, filters)
    if own:
        raise ValueError(f"layer {next(iter(own))!r} is a sphere layer, but not in the folder")
