"""The file of :func:`save_rotations`: safetensors with a JSON header that describes the rotations."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

from safetensors.torch import save
from torch import Tensor

from .._internal.checksummed_json import parse
from .._internal.safe_files import write_bytes
from .._internal.tensor_files import TensorFile, add_aliases, check_sums
from .._internal.tensors import hash_of, unshared
from .._internal.text import one_line
from ..neurons import Layout
from ..orthogonal import INITS
from .parametrization import RotatedWeight, key_prefix, layer_label
from .plan import Plan
from .tasks import check_new_name

FORMAT = 1
HEADER = "hypersphere.rotations"
_FIRST = ("method", "dimension", "blocks", "shared", "sample", "init", "learned", "layout")  # of Plan, in every file
_NEW = [field for field in fields(Plan) if field.name not in _FIRST]


@dataclass(frozen=True)
class SavedRotation:
    """A rotated layer in the file."""

    name: str
    tensor: str
    task: str
    seed: int
    shape: list[int]
    hash: str | None  # of the neurons; None if the file holds them
    plan: Plan

    @classmethod
    def of(cls, weight: RotatedWeight, task: str | None = None, hash: str | None = None) -> Self:
        """Describe the rotation of a weight by a task, the active one by default."""
        rotation = weight.rotation
        shape, active = list(rotation.shape), task or rotation.active
        return cls(weight.name, weight.tensor_name, active, rotation.seed, shape, hash, rotation.plan)

    @property
    def where(self) -> tuple[str, str]:
        return self.name, self.tensor

    @property
    def layer(self) -> str:
        return f"layer {layer_label(self.name)!r}"

    @property
    def key(self) -> str:
        return key_prefix(*self.where)


@dataclass(frozen=True)
class RotationFile:
    """Content of a file: layers, tensors by key, and hashes of frozen parameters, which are not in it."""

    entries: list[SavedRotation]
    tensors: dict[str, Tensor]
    frozen: dict[str, str]


def describe(rotation: SavedRotation) -> dict[str, object]:
    """Return an entry for JSON; new fields of a plan only where they are needed, since older versions refuse them."""
    values = asdict(rotation)
    plan = values["plan"]
    layout = plan.pop("layout")
    for field in _NEW:
        if plan[field.name] == field.default:
            del plan[field.name]
    plan["transposed_groups"] = rotation.plan.layout.transposed_groups
    plan |= {"stacked": True} if layout["stacked"] else {}
    return values


def _parse_plan(described: Mapping[str, Any]) -> Plan:
    values = dict(described)
    if values.get("apply") == "input":  # the word of older files
        values["apply"] = "activation"
    groups, stacked = values.pop("transposed_groups", None), values.pop("stacked", False)
    if not isinstance(stacked, bool) or (groups is not None and (type(groups) is not int or groups < 1)):
        raise TypeError("transposed_groups must be a positive integer or null, stacked true or false")
    return Plan(**values, layout=Layout(groups=groups or 1, transposed=groups is not None, stacked=stacked))


def write(path: str | os.PathLike[str], file: RotationFile) -> None:
    """Write the tensors, shared ones once, and the header."""
    tensors, aliases = unshared(file.tensors)
    hashes = {key: hash_of(value) for key, value in tensors.items()}
    hashes |= {alias: hashes[key] for alias, key in aliases.items()}
    layers = [describe(rotation) for rotation in file.entries]
    header = {"format": FORMAT, "layers": layers, "aliases": aliases, "hashes": hashes, "frozen": file.frozen}
    write_bytes(path, save(tensors, metadata={HEADER: json.dumps(header)}))


def read(path: str | os.PathLike[str]) -> RotationFile:
    """Read and check a file; a one-line ValueError if it is damaged or another kind of file."""
    if not os.path.isfile(path):
        raise ValueError(f"path must be a file that save_rotations wrote, got {os.fspath(path)!r}")
    wrong = f"{path} is not a file that save_rotations wrote"
    file = TensorFile(path)
    try:
        header = parse(file.metadata.get(HEADER, "{}").encode())
    except ValueError as error:
        raise ValueError(f"{wrong}: {one_line(error)}") from None
    if not isinstance(header, dict) or "format" not in header:
        raise ValueError(f"{wrong}: the header is missing")
    if type(header["format"]) is not int or header["format"] != FORMAT:
        raise ValueError(f"{path} has format {header['format']!r}; this version reads {FORMAT}")
    try:
        entries = [parse_rotation(layer) for layer in header["layers"]]
        if not entries or len({entry.where for entry in entries}) < len(entries):
            raise ValueError("every layer must be listed once")
        hashes, aliases = dict(header["hashes"]), dict(header["aliases"])
        tensors = add_aliases(file.read_all(), aliases)
        frozen = {str(key): str(value) for key, value in header["frozen"].items()}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"{wrong}: its header is malformed ({type(error).__name__}: {error})") from None
    check_sums(path, tensors, hashes, hash_of)
    return RotationFile(entries, tensors, frozen)


def parse_rotation(described: Mapping[str, Any]) -> SavedRotation:
    """Invert :func:`describe`; TypeError or ValueError if a value cannot be."""
    plan = _parse_plan(described["plan"])
    entry = SavedRotation(**{**described, "plan": plan})
    numbers = (entry.seed, plan.dimension, plan.blocks, plan.sample or 2, *entry.shape)
    texts = (entry.name, entry.tensor, plan.method, entry.hash or "")
    flags = (plan.shared, plan.learned)
    if (
        not all(isinstance(text, str) for text in texts)
        or not all(type(number) is int and 0 <= number < 2**63 for number in numbers)
        or not all(isinstance(flag, bool) for flag in flags)
    ):
        raise TypeError("names must be strings, sizes integers, flags true or false")
    if plan.init not in INITS:
        raise ValueError(f"init must be one of {', '.join(INITS)}, got {plan.init!r}")
    if entry.task != "default":
        check_new_name(entry.task)
    whole = plan.sample is None and plan.blocks >= 1 and plan.dimension % plan.blocks == 0
    if not whole and not (plan.blocks == 1 and 2 <= (plan.sample or 0) <= plan.dimension):
        raise ValueError(f"inconsistent plan: {plan}")
    return entry
