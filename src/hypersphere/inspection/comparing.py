"""Compare two model files layer by layer: how far the weights moved, and how much of that is a rotation."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, overload

import torch
from torch import Tensor

from .._internal.linalg import nearest_orthogonal
from .._internal.progress import track
from .._internal.text import printable
from ..energy.hyperspherical import group_energy, make_law
from ..layers.cosine import unit
from .diagnosis.result import format_angle, format_number
from .inspecting import layers_of
from .measuring import sample
from .opening import open_model
from .result import NOTHING, Table, short_names, short_number

SMALLEST = 1e-12  # relative change below which there is nothing to explain
_WRAPPERS = ("module.", "_orig_mod.", "model.")
_HEADER = (
    *("layer", "neurons", "dim", "changed", "rotation", "by chance", "mean turn", "largest turn"),
    *("longer", "energy before", "after"),
)


@dataclass(frozen=True)
class Change:
    """What changed in a layer, W₀ → W₁. Angles are in radians."""

    name: str
    neurons: int
    dimension: int
    changed: float
    """‖W₁ − W₀‖/‖W₀‖."""
    rotation: float | None
    """The share of ‖W₁ − W₀‖² that the best orthogonal matrix R explains, 1 − min ‖W₁ − W₀R‖²/‖W₁ − W₀‖²; None without
    a change."""
    rotation_by_chance: float
    """The expected share of a small random change: the dimensions that rotations reach, of all."""
    mean_turn: float | None
    """The mean angle between a neuron before and after."""
    largest_turn: float | None
    most_turned: int | None
    """The neuron that turned most."""
    length_ratio: float | None
    """‖W₁‖/‖W₀‖."""
    energy_before: float
    energy_after: float
    sampled: int | None = None
    """How many neurons were compared; None: all."""

    @property
    def is_rotation(self) -> bool:
        """Whether hardly anything of the change is left by the best rotation, and far less than by chance."""
        return self.rotation is not None and 1 - self.rotation < 0.01 * min(1.0, 10 * (1 - self.rotation_by_chance))


@dataclass(frozen=True, repr=False)
class Comparison(Sequence[Change]):
    """A sequence of changes; str() is a table, :meth:`to_dict` is for JSON."""

    before: str
    after: str
    changes: tuple[Change, ...]
    different: dict[str, str]
    """Layers that cannot be compared, and why."""

    def __len__(self) -> int:
        return len(self.changes)

    @overload
    def __getitem__(self, index: int) -> Change: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Change, ...]: ...
    def __getitem__(self, index: int | slice) -> Change | tuple[Change, ...]:
        return self.changes[index]

    @property
    def verdict(self) -> list[str]:
        """What changed in all: a line each."""
        moved = [each for each in self.changes if each.rotation is not None]
        same = len(self.changes) - len(moved)
        lines = [
            f"{len(moved)} of {len(self.changes)} layers changed" + (f", {same} did not" if same and moved else "")
        ]
        if moved:
            most = max(moved, key=lambda each: each.changed)
            lines.append(f"largest change: {short_names([most.name])[0]} by {100 * most.changed:.3g} % of its length")
            turned = [each for each in moved if each.is_rotation]
            if turned:
                names = ", ".join(short_names([each.name for each in turned[:3]]))
                more = f" and {len(turned) - 3} more" if len(turned) > 3 else ""
                lines.append(f"only rotated, angles between neurons as before: {names}{more}")
            worse = [each for each in moved if each.energy_after > 1.01 * each.energy_before]
            if worse:
                most = max(worse, key=lambda each: each.energy_after / each.energy_before)
                rise = 100 * (most.energy_after / most.energy_before - 1)
                lines.append(
                    f"more redundant than before: {len(worse)} of them, {short_names([most.name])[0]} most (energy up "
                    f"{rise:.3g} %): train with `hs.EnergyRegularizer(model)`; `hs.rotate(model)` keeps the energy"
                )
        if self.different:
            lines.append(f"not compared: {len(self.different)} layers, {short_names([*self.different])[0]} first")
        return lines

    def to_dict(self) -> dict[str, Any]:
        """Return everything for JSON; angles are in radians."""
        return {
            "before": self.before,
            "after": self.after,
            "angles": "radians",
            "verdict": self.verdict,
            "layers": [{key: _to_json(value) for key, value in asdict(each).items()} for each in self.changes],
            "different": self.different,
        }

    @property
    def title(self) -> str:
        return f"{self.before} → {self.after}"

    def tables(self) -> tuple[Table]:
        names = short_names([each.name for each in self.changes])
        return (Table(_HEADER, [[name, *_cells(each)] for name, each in zip(names, self.changes, strict=True)]),)

    def notes(self) -> list[str]:
        notes = [
            "changed: ‖W₁ − W₀‖/‖W₀‖; rotation: share of ‖W₁ − W₀‖² that the best rotation explains; "
            "by chance: of a small random change",
            "turn: angle of a neuron before and after; longer: ‖W₁‖/‖W₀‖",
        ]
        if sampled := next((each.sampled for each in self.changes if each.sampled), None):
            notes.append(f"~: of {sampled} neurons, drawn with a fixed seed")
        notes += [f"not compared: {short_names([name])[0]}: {why}" for name, why in list(self.different.items())[:8]]
        return notes

    def __str__(self) -> str:
        tables = [text for table in self.tables() for text in (str(table), "")]
        return printable("\n".join([self.title, *tables, *self.verdict, "", *self.notes()]))

    __repr__ = __str__


def _to_json(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _cells(each: Change) -> list[str]:
    def percent(share: float | None) -> str:
        return NOTHING if share is None else f"{100 * share:.1f} %"

    return [
        f"{'~' if each.sampled else ''}{each.neurons}",
        f"{each.dimension}",
        f"{100 * each.changed:.3g} %" if math.isfinite(each.changed) else "∞",
        percent(each.rotation),
        percent(each.rotation_by_chance),
        format_angle(each.mean_turn),
        NOTHING if each.largest_turn is None else f"{format_angle(each.largest_turn)} ({each.most_turned})",
        short_number(each.length_ratio),
        format_number(each.energy_before),
        format_number(each.energy_after),
    ]


def compare(before: str | os.PathLike[str], after: str | os.PathLike[str]) -> Comparison:
    """Report for every layer of two model files how far it moved and how much of that is a rotation.

    Layers are matched by name. Files are as for :func:`inspect`.

    Raises:
        ValueError: a file cannot be read, or no layer has the same name and shape in both.

    Example:
        >>> import tempfile
        >>> from safetensors.torch import save_file
        >>> folder = tempfile.mkdtemp()
        >>> weight = torch.tensor([[1.0, 0.0], [0.6, 0.8], [-1.0, 0.5]])
        >>> turn = torch.tensor([[0.8, 0.6], [-0.6, 0.8]])
        >>> save_file({"fc.weight": weight}, f"{folder}/before.safetensors")
        >>> save_file({"fc.weight": weight @ turn}, f"{folder}/after.safetensors")
        >>> (change,) = compare(f"{folder}/before.safetensors", f"{folder}/after.safetensors")
        >>> round(change.rotation, 6), round(math.degrees(change.mean_turn), 2)
        (1.0, 36.87)
    """
    paths = Path(before), Path(after)
    opened = [open_model(path) for path in paths]
    found = [
        {_plain_name(name): stored for name, stored in layers_of(path, each, {}).items()}
        for path, each in zip(paths, opened, strict=True)
    ]
    old, new = found
    different = {name: f"only in {before}" for name in old if name not in new}
    different |= {name: f"only in {after}" for name in new if name not in old}
    both = [name for name in old if name in new]
    for name in both:
        if old[name].shape != new[name].shape:
            shapes = " and ".join("×".join(map(str, each.shape)) for each in (old[name], new[name]))
            different[name] = f"shapes {shapes}"
    both = [name for name in both if name not in different]
    if not both:
        raise ValueError(f"{before} and {after} have no layer of the same name and shape")
    changes = []
    for name in track(both, "comparing layers"):
        tensors = [each.tensors.read(stored[name].key) for each, stored in zip(opened, found, strict=True)]
        change = _compare(name, *(old[name].matrix(tensor) for tensor in tensors))
        if isinstance(change, str):
            different[name] = change
        else:
            changes.append(change)
    return Comparison(str(before), str(after), tuple(changes), different)


def _plain_name(name: str) -> str:
    """Drop what wrappers of a model put before its names."""
    for wrapper in _WRAPPERS:
        name = name.removeprefix(wrapper)
    return name


@torch.no_grad()
def _compare(name: str, before: Tensor, after: Tensor) -> Change | str:
    """Compare the neurons (G, N, d) of a layer."""
    groups, num_neurons = before.shape[0], before.shape[0] * before.shape[1]
    before, after = before.flatten(0, 1), after.flatten(0, 1)
    index = sample(num_neurons)
    if index is not None:
        groups, before, after = 1, before[index], after[index]
    old, new = before.double(), after.double()
    size = float(torch.maximum(old.abs(), new.abs()).amax())  # NaN if there is one
    if not math.isfinite(size):
        return "NaN or infinity"
    if size > 1e100 or 0 < size < 1e-100:
        old, new = old / size, new / size
    n, d = old.shape
    moved, length = float((new - old).norm()), float(old.norm())
    changed = moved / length if length else math.inf if moved else 0.0
    alive = (old != 0).any(1) & (new != 0).any(1)
    turns = _angles(old, new) if alive.any() else None
    if turns is not None:
        turns = turns.where(alive, 0.0)
    law = make_law(2.0, False, False)
    energies = [float(group_energy(each.view(groups, -1, d), law).mean()) for each in (old, new)]
    rank = min(n, d)
    most = None if turns is None else int(turns.argmax())
    return Change(
        name=name,
        neurons=num_neurons,
        dimension=d,
        changed=changed,
        rotation=_explained(old, new, moved) if changed > SMALLEST else None,
        rotation_by_chance=(d * (d - 1) - (d - rank) * (d - rank - 1)) / 2 / (n * d),
        mean_turn=None if turns is None else float(turns.sum() / alive.sum()),
        largest_turn=None if turns is None or most is None else float(turns[most]),
        most_turned=most if most is None or index is None else int(index[most]),
        length_ratio=float(new.norm()) / length if length else None,
        energy_before=energies[0],
        energy_after=energies[1],
        sampled=None if index is None else len(index),
    )


def _angles(old: Tensor, new: Tensor) -> Tensor:
    """Compute the angle of each row before and after."""
    u, v = unit(old), unit(new)
    return 2 * torch.atan2((u - v).norm(dim=1), (u + v).norm(dim=1))


def _explained(old: Tensor, new: Tensor, moved: float) -> float:
    """Compute 1 − min_R ‖W₁ − W₀R‖²/‖W₁ − W₀‖² over orthogonal R (d, d): the orthogonal Procrustes problem.

    The minimum is ‖W₀‖² + ‖W₁‖² − 2·Σσ(W₀ᵀW₁). It is computed as ‖W₁ − W₀R‖², which keeps the digits of small changes.
    """
    if old.shape[1] > old.shape[0]:  # rotated into N dimensions, each its own way: the minimum is the same
        old, new = (torch.linalg.qr(each.mT, mode="r").R.mT for each in (old, new))
    return 1.0 - (float((new - old @ nearest_orthogonal(old.mT @ new)).norm()) / moved) ** 2
