"""Write rotations as an adapter of PEFT: OFT in its exact form, x (I − Q)(I + Q)⁻¹ with Q = −A."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from pathlib import Path

from safetensors.torch import save
from torch import Tensor, nn

from .._internal import checks
from .._internal.hashed_folder import checksums
from .._internal.safe_files import write_bytes, write_text
from .._internal.tensors import unshared
from .adapter_files import CONFIG, PEFT_PREFIX, TENSORS
from .parametrization import RotatedWeight, layer_label, scale_numbers
from .rotated_class import plain_class

_LISTS = (nn.ModuleDict, nn.ModuleList, nn.ParameterDict, nn.ParameterList)


def write_peft(
    folder: str | os.PathLike[str],
    model: nn.Module,
    rotated: list[RotatedWeight],
    task: str | None,
    state: dict[str, Tensor],
    saved: set[str],
) -> None:
    """Write a folder that PEFT (0.18 or newer) loads: rotations in its exact form, tensors of `state`.

    Args:
        state: the model's state_dict; the rotated neurons are not needed.
        saved: the keys to save.
    """
    for weight in rotated:
        _check_for_peft(weight)
    plans = [weight.rotation.plan for weight in rotated]
    sizes, counts = {plan.size for plan in plans}, {plan.blocks for plan in plans}
    if len(sizes) > 1 and len(counts) > 1:
        raise ValueError(
            f"format='peft' needs blocks of one size, or one number of blocks, in all layers; got sizes {sorted(sizes)}"
        )
    shared = {plan.shared for plan in plans if plan.blocks > 1} or {False}
    if len(shared) > 1:
        raise ValueError("format='peft' needs blocks that are shared in all layers or in none")
    if os.path.lexists(folder) and not os.path.isdir(folder):
        raise ValueError(f"path must be a folder with format='peft', got the file {os.fspath(folder)!r}")
    tensors = {}
    for weight, plan in zip(rotated, plans, strict=True):
        rotation = weight.rotation
        numbers = state[f"{weight.key}0.{task or rotation.active}.cayley"]
        tensors[f"{PEFT_PREFIX}{weight.name}.oft_R.weight"] = -scale_numbers(numbers, plan.size, plan.scaled)
    names = {weight.name for weight in rotated}
    others = {key: state[key] for key in state if key in saved and not key.startswith(tuple(w.key for w in rotated))}
    of_rotated = {key for key in others if key.rpartition(".")[0] in names}
    modules = _modules_to_save(model, names, others.keys() - of_rotated)
    # PEFT requires all tensors of these modules, frozen ones too
    others |= {key: value for key, value in state.items() if key.startswith(tuple(f"{m}." for m in modules))}
    for key, value in others.items():
        layer, _, last = key.rpartition(".")
        tensors[f"{PEFT_PREFIX}{layer}.base_layer.{last}" if key in of_rotated else PEFT_PREFIX + key] = value
    tensors, aliases = unshared(tensors)
    tensors |= {alias: tensors[key].clone() for alias, key in aliases.items()}  # PEFT looks for every name
    source = getattr(getattr(model, "config", None), "_name_or_path", None)
    config = {
        "peft_type": "OFT",
        "peft_version": "0.18.0",
        "base_model_name_or_path": source if isinstance(source, str) and source else None,
        "task_type": None,
        "inference_mode": True,
        "r": 0 if len(sizes) == 1 else counts.pop(),
        "oft_block_size": sizes.pop() if len(sizes) == 1 else 0,
        "block_share": shared.pop(),
        "use_cayley_neumann": False,
        "coft": False,
        "module_dropout": plans[0].dropout,
        "target_modules": "|".join(re.escape(name) for name in sorted(names)),
        "bias": "oft_only" if of_rotated else "none",
        "modules_to_save": modules or None,
    }
    os.makedirs(folder, exist_ok=True)
    text = json.dumps(config, indent=2) + "\n"
    sums = checksums(tensors, {CONFIG: text.encode()})
    write_bytes(Path(folder) / TENSORS, save(tensors, metadata={"format": "pt"} | sums))
    write_text(Path(folder) / CONFIG, text)


def _modules_to_save(model: nn.Module, rotated: set[str], keys: Iterable[str]) -> list[str]:
    """Return the modules that hold these tensors by names for PEFT, which saves them again after it loaded them.

    PEFT compares the ends of names, and does not take the root, lists, or modules around a rotated layer: their tensors
    are left out with a warning. It loads them, but does not save them again.
    """
    everything = dict(model.named_modules(remove_duplicate=False))
    owners: set[str] = set()
    for key in keys:
        owner = key.rpartition(".")[0].partition(".parametrizations.")[0]
        while isinstance(everything[owner], _LISTS):
            owner = owner.rpartition(".")[0]
        owners.add(owner)
    owners -= {name for name in owners if any(name.startswith(f"{other}.") for other in owners)}
    unfit = {name for name in owners if not name or any(layer.startswith(f"{name}.") for layer in rotated)}
    for name in owners - unfit:
        alike = [other for other in everything if other.endswith(name)]
        nested = any(other.startswith(f"{outer}.") for other in alike for outer in alike)
        if nested or any(re.match(rf"(.*\.)?{name}($|\.)", layer) or layer.endswith(name) for layer in rotated):
            unfit.add(name)
    if unfit:
        checks.warn(
            f"format='peft': PEFT loads the tensors of {', '.join(map(layer_label, sorted(unfit)))}, but does not save "
            "them again: they cannot be named in modules_to_save"
        )
    return [name for name in everything if any(name.endswith(owner) for owner in owners - unfit)]


def _check_for_peft(weight: RotatedWeight) -> None:
    """Raise unless PEFT's OFT can express the rotation."""
    plan, layer = weight.rotation.plan, f"layer {layer_label(weight.name)!r}"
    plain = plain_class(weight.module, weight.tensor_name)
    if plain is not nn.Linear or weight.tensor_name != "weight" or not weight.name:
        raise ValueError(f"format='peft' holds Linear layers inside a model, got {layer} [{plain.__name__}]")
    if plan.method != "cayley":
        raise ValueError(f"format='peft' holds method 'cayley', got {plan.method!r} of {layer}")
    if plan.side != "input":
        raise ValueError(f"format='peft' holds side='input', got {plan.side!r} of {layer}")
    for name in ("sample", "shuffle", "magnitude"):
        if getattr(plan, name):
            raise ValueError(f"format='peft' cannot hold {name}, got {layer} with it")
    if plan.learned:
        raise ValueError(f"format='peft' cannot hold learned neurons, got {layer} with neurons='learned'")
