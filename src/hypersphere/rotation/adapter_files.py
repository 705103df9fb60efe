"""Read adapters of other tools: orthogonal fine-tuning (OFT) in the files of PEFT, OneTrainer, LyCORIS and kohya.

All use Cayley transforms of skew-symmetric matrices Q in blocks. With our W = V Rᵀ, R = (I + A)(I − A)⁻¹:

- PEFT, ``use_cayley_neumann=False``: x (I − Q)(I + Q)⁻¹, so A = −Q. ``True``, its default: a series for
  x (I + Q)(I − Q)⁻¹ with few terms, so A = Q up to what the series leaves out.
- OneTrainer and kohya's OFT v2: the same series. With a tensor ``scaled_oft`` Q is divided by 2√(m−1), as by our
  ``scaled``. Convolutions compute V R instead of V Rᵀ, so A = −Q.
- LyCORIS and kohya, ``oft_blocks`` B: Q = B − Bᵀ, at most as long as ``alpha`` times the number of outputs, and
  W = Rᵀ V with R = (I + Q)(I − Q)⁻¹ over the outputs, so A = −Q. ``rescale`` is our ``magnitude``.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .._internal import checks
from .._internal.hashed_folder import check, read_config
from .._internal.tensor_files import TensorFile
from .._internal.tensors import hash_of
from ..neurons import Neurons
from ..orthogonal import matrix_size, pack_difference
from ._file import HEADER, RotationFile, SavedRotation
from .cheapest_path import planned_path
from .parametrization import RotatedWeight, key_prefix, layer_label, layout_buffers
from .plan import OUTPUT, Plan
from .quantized_or_tied import FrozenNeurons

Target = RotatedWeight | Neurons
Saved = tuple[SavedRotation, dict[str, Tensor]]
CONFIG, TENSORS, PICKLED = "adapter_config.json", "adapter_model.safetensors", "adapter_model.bin"
PEFT_PREFIX = "base_model.model."
_FLOATING = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_READS = "load_rotations reads OFT of PEFT, OneTrainer, LyCORIS and kohya, and its own files"
_PART = re.compile(r"(?P<layer>.+)\.(?P<part>oft_R\.weight|oft_R\.scaled_oft|oft_blocks|alpha|rescale)")
# What the names of tensors contain in other kinds of adapters; the first that is found is named.
_OTHERS = {
    "boft_": "BOFT",
    "oft_embedding_R": "OFT of embeddings",
    "oft_r.": "OFT of PEFT before 0.14",
    "dora_": "DoRA",
    "lora_magnitude_vector": "DoRA",
    "lora_": "LoRA",
    "hada_": "LoHa",
    "lokr_": "LoKr",
    "vera_lambda": "VeRA",
    "ia3_": "IA³",
}
# What other tools put before the names of layers, whose dots some of them replace.
_NETWORKS = (
    *("lora_unet_", "lora_te_", "lora_te1_", "lora_te2_", "lora_transformer_", "oft_unet_", "lycoris_"),
    *("transformer_", "unet_", "diffusion_model_", "text_encoder_"),
)


def is_adapter(path: str | os.PathLike[str]) -> bool:
    """Return whether `path` looks like an adapter of another tool: a folder, or safetensors with names of one."""
    if not os.path.isfile(path):
        return os.path.isdir(path)
    try:
        file = TensorFile(path)
    except ValueError:
        return False
    return HEADER not in file.metadata and any(map(_is_adapter_key, file.infos))


def _is_adapter_key(key: str) -> bool:
    return _PART.fullmatch(key) is not None or _other_kind(key) is not None


def read_adapter(path: str | os.PathLike[str], targets: Mapping[str, Target]) -> RotationFile:
    """Read an adapter of another tool for a model with these layers; a one-line ValueError if that cannot be."""
    folder = Path(path) if os.path.isdir(path) else Path(path).parent
    tensors = _read_tensors(folder / TENSORS if os.path.isdir(path) else Path(path))
    if os.path.isdir(path) or any(key.startswith(PEFT_PREFIX) for key in tensors):
        return _read_peft(path, _read_config(folder / CONFIG), tensors, targets)
    _refuse_others(path, tensors)
    layers: dict[str, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        match = _PART.fullmatch(key)
        if match is None:
            raise ValueError(f"{path}: unknown tensor {key!r}; {_READS}")
        name = _find_layer(path, match["layer"], targets)
        of_layer = layers.setdefault(name, {})
        if match["part"] in of_layer:
            raise ValueError(f"{path}: {key!r} is a second rotation of layer {name!r}: of another network?")
        of_layer[match["part"]] = value
    read = [_read_blocks(path, name, of_layer, targets[name]) for name, of_layer in layers.items()]
    if any("oft_R.weight" in of_layer for of_layer in layers.values()):
        _warn_of_series(path, "OneTrainer's")
    return RotationFile(
        [entry for entry, _ in read], {key: value for _, part in read for key, value in part.items()}, {}
    )


def _read_peft(
    path: Any, config: dict[str, Any], tensors: dict[str, Tensor], targets: Mapping[str, Target]
) -> RotationFile:
    kind, series = config.get("peft_type"), config.get("use_cayley_neumann")
    if kind != "OFT":
        raise ValueError(f"{path}: an adapter of the type {kind!r} of PEFT; {_READS}")
    _refuse_others(path, tensors)
    if not isinstance(series, bool):
        raise ValueError(f"{path}: use_cayley_neumann in {CONFIG} must be true or false, got {series!r}")
    if config.get("coft", False) is not False:
        raise ValueError(f"{path}: constrained OFT (coft in {CONFIG}) cannot be loaded")
    entries: list[SavedRotation] = []
    by_key: dict[str, Tensor] = {}
    for key, value in tensors.items():
        plain = key.removeprefix(PEFT_PREFIX)
        name = plain.removesuffix(".oft_R.weight")
        if name == plain:
            by_key[plain.replace(".base_layer.", ".")] = value
            continue
        if name not in targets:
            raise ValueError(f"{path}: the model has no layer {name!r} with neurons in weight")
        shape = _weight_of(targets[name]).shape
        if math.prod(shape[2:]) > 1 or getattr(targets[name].module, "groups", 1) > 1:
            raise ValueError(
                f"{path}: layer {name!r} is a convolution {tuple(shape)}: PEFT's OFT of it does not rotate its filters"
            )
        numbers, plan = _packed(path, key, value, name, targets[name], 1 if series else -1)
        entry, held = _make_entry(name, targets[name], plan, {"cayley": numbers})
        entries.append(entry)
        by_key |= held
    if not entries:
        raise ValueError(f"{path}: no tensor ends with .oft_R.weight")
    if series:
        _warn_of_series(path, "PEFT's")
    return RotationFile(entries, by_key, {})


def _warn_of_series(path: Any, whose: str) -> None:
    checks.warn_once(
        f"{os.fspath(path)}: trained with {whose} series for the Cayley transform (use_cayley_neumann), which is not "
        "quite orthogonal; loaded as the exact transform, so outputs differ by what the series leaves out"
    )


def _read_blocks(path: Any, name: str, tensors: dict[str, Tensor], target: Target) -> Saved:
    """Return the rotation of one layer of OneTrainer, LyCORIS or kohya."""
    weight = _weight_of(target)
    if "oft_R.weight" in tensors:
        extra = set(tensors) - {"oft_R.weight", "oft_R.scaled_oft"}
        if extra:
            raise ValueError(f"{path}: unknown tensor {extra.pop()!r} of layer {name!r}")
        sign = -1 if weight.dim() > 2 else 1
        numbers, plan = _packed(path, f"{name}.oft_R.weight", tensors["oft_R.weight"], name, target, sign)
        return _make_entry(name, target, replace(plan, scaled="oft_R.scaled_oft" in tensors), {"cayley": numbers})
    blocks = tensors.get("oft_blocks")
    if blocks is None:
        raise ValueError(f"{path}: layer {name!r} has neither oft_R.weight nor oft_blocks")
    if blocks.dim() == 4:
        raise ValueError(f"{path}: oft_blocks of layer {name!r} have 4 dimensions: BOFT; {_READS}")
    plan = _start_plan(target)
    outputs = weight.numel() // plan.dimension
    count, size, width = blocks.shape if blocks.dim() == 3 and blocks.dtype in _FLOATING else (0, 0, 0)
    if size != width or count * size != outputs:
        raise ValueError(
            f"{path}: oft_blocks {tuple(blocks.shape)} do not fit the {outputs} outputs of layer {name!r} "
            f"{tuple(weight.shape)}"
        )
    if size < 2:
        raise ValueError(f"{path}: oft_blocks of layer {name!r} must be of at least 2 outputs, got {size}")
    if getattr(target.module, "groups", 1) > 1 or plan.layout.stacked:
        raise ValueError(f"{path}: the rotation of the outputs of layer {name!r} would mix its groups")
    if isinstance(target, FrozenNeurons) or (isinstance(target, RotatedWeight) and target.is_frozen):
        raise ValueError(
            f"{path}: layer {name!r} is quantized or tied: only its inputs can be rotated, not its outputs"
        )
    numbers = -pack_difference(blocks.double())
    alpha = tensors.get("alpha", torch.zeros(()))
    limit = float(alpha) * outputs if alpha.numel() == 1 and not alpha.is_complex() else math.nan
    if not math.isfinite(limit) or limit < 0:
        raise ValueError(f"{path}: alpha of layer {name!r} must be one number >= 0")
    length = math.sqrt(2) * float(numbers.norm())  # of all blocks of Q together
    if 0 < limit < length:
        numbers = numbers * (limit / length)
    held = {OUTPUT + "cayley": numbers}
    plan = replace(plan, side="output", blocks=1, shared=False, outputs=outputs, output_blocks=count)
    if "rescale" in tensors:
        if tensors["rescale"].numel() != outputs:
            shape = tuple(tensors["rescale"].shape)
            raise ValueError(f"{path}: rescale of layer {name!r} must have {outputs} numbers, got {shape}")
        held["magnitude"] = tensors["rescale"].flatten()
        plan = replace(plan, magnitude=True)
    return _make_entry(name, target, plan, held)


def _packed(path: Any, key: str, numbers: Tensor, name: str, target: Target, sign: int) -> tuple[Tensor, Plan]:
    """Return packed triangles (blocks, m(m−1)/2) of A = ±Q of the inputs of a layer, and their plan, if they fit."""
    plan = _start_plan(target)
    size = matrix_size(numbers) if numbers.dim() == 2 and numbers.dtype in _FLOATING else 0
    fits = size > 1 and size * (size - 1) // 2 == numbers.shape[1] and plan.dimension % size == 0
    blocks = plan.dimension // size if fits else 0
    if not fits or len(numbers) not in (1, blocks):
        raise ValueError(
            f"{path}: {key!r} {tuple(numbers.shape)} does not fit the {plan.dimension} inputs of layer "
            f"{layer_label(name)!r} {tuple(_weight_of(target).shape)}"
        )
    return sign * numbers, replace(plan, blocks=blocks, shared=blocks > len(numbers))


def _start_plan(target: Target) -> Plan:
    """Return a plan with one block: where a rotated layer applies R, and its dropout, stay."""
    if isinstance(target, RotatedWeight):
        plan = target.rotation.plan
        start = Plan("cayley", plan.dimension, layout=plan.layout, apply=plan.apply, dropout=plan.dropout)
        return replace(start, frozen=plan.frozen)
    return Plan("cayley", target.dimension, layout=target.layout.for_rotation)


def _make_entry(name: str, target: Target, plan: Plan, numbers: dict[str, Tensor]) -> Saved:
    """Return the entry of a layer, and its tensors by their keys in the state_dict of the rotated model."""
    weight = _weight_of(target)
    if isinstance(target, Neurons):
        apply = planned_path(plan, target, "auto", name)
        # frozen: whether the weight is quantized or tied is seen when the layer is checked
        plan = replace(plan, apply=apply, frozen=apply != "weight" and plan.side == "input")
    buffers = layout_buffers(plan.layout, weight.shape) | ({"scaled": 1} if plan.scaled else {})
    held = numbers | {key: torch.tensor(value) for key, value in buffers.items()}
    hashed = None if plan.frozen else hash_of(weight)
    entry = SavedRotation(name, "weight", "default", 0, list(weight.shape), hashed, plan)
    return entry, {f"{key_prefix(name, 'weight')}0.default.{key}": value for key, value in held.items()}


def _weight_of(target: Target) -> Tensor:
    """Return the neurons, or what has their shape if they are quantized or tied."""
    if not isinstance(target, RotatedWeight):
        return target.stored
    return target.rotation.stand_in if target.is_frozen else target.neurons


def _find_layer(path: Any, stem: str, targets: Mapping[str, Target]) -> str:
    """Return the layer that another tool calls `stem`."""
    if stem in targets:
        return stem
    flat = stem.replace(".", "_")
    wanted = {flat, *(flat.removeprefix(prefix) for prefix in _NETWORKS)}
    same = [name for name in targets if name.replace(".", "_") in wanted]
    if len(same) == 1:
        return same[0]
    several = f": {', '.join(same)} are all called so" if same else ""
    raise ValueError(f"{path}: the model has no layer {stem!r} with neurons in weight{several}")


def _refuse_others(path: Any, tensors: Mapping[str, Tensor]) -> None:
    for key in tensors:
        kind = None if _PART.fullmatch(key) else _other_kind(key)
        if kind is not None:
            raise ValueError(f"{path} holds {kind} ({key!r}); {_READS}")


def _other_kind(key: str) -> str | None:
    """Return which other kind of adapter a tensor of this name belongs to."""
    name = next((key.removeprefix(prefix) for prefix in _NETWORKS if key.startswith(prefix)), key)
    return next((kind for part, kind in _OTHERS.items() if name.startswith(part) or f".{part}" in name), None)


def _read_tensors(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        pickled = path.with_name(PICKLED)
        if pickled.exists():
            raise ValueError(f"{pickled} is a pickle, which can run code: save the adapter as safetensors")
        raise ValueError(
            f"path must be a file that save_rotations wrote, or a folder with {TENSORS}, got {str(path)!r}"
        )
    file = TensorFile(path)
    tensors = file.read_all()
    check(file, tensors)
    return tensors


def _read_config(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise ValueError(f"{path} is missing: it tells how PEFT computes the rotations")
    try:
        config = json.loads(read_config(path))
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError, OSError) as error:
        raise ValueError(f"{path} is not JSON: {type(error).__name__}") from None
    if not isinstance(config, dict):
        raise ValueError(f"{path} must hold a JSON object, got {type(config).__name__}")
    return config
