"""Compare two model files layer by layer: how far the weights moved, and how much of that is a rotation."""

from __future__ import annotations

import math
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, overload

import torch
from torch import Tensor

from .._internal.linalg import nearest_orthogonal
from .._internal.progress import track
from .._internal.tables import NOTHING, TextTable, degrees, number, percent
from ..energy.hyperspherical import group_energy, make_law
from ..geometry.points import angle_between
from ..layers.cosine import unit
from ..train.storage.records import finite
from .dead_neurons import neuron_lengths
from .embeddings import EmbeddingInspection, compare_embeddings, holds_embeddings
from .embeddings.vectors import Array
from .formats import open_model
from .measuring import sample
from .results import RowsResult, short_names
from .sources import LayerSource, layers_of_file
from .verdict import name_some, shorten

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
class Comparison(RowsResult[Change]):
    """A sequence of changes; str() is a table, :meth:`to_dict` is for JSON."""

    before: str
    after: str
    different: dict[str, str]
    """Layers that cannot be compared, and why."""

    @property
    def verdict(self) -> list[str]:
        """What changed in all: a line each."""
        moved = [change for change in self.rows if change.rotation is not None]
        same = len(self.rows) - len(moved)
        lines = [f"{len(moved)} of {len(self.rows)} layers changed" + (f", {same} did not" if same and moved else "")]
        if moved:
            most = max(moved, key=lambda change: change.changed)
            lines.append(f"largest change: {shorten(most.name)} by {100 * most.changed:.3g} % of its length")
        if turned := [change.name for change in moved if change.is_rotation]:
            lines.append(f"only rotated, angles between neurons as before: {name_some(turned)}")
        if worse := [change for change in moved if change.energy_after > 1.01 * change.energy_before]:
            most = max(worse, key=lambda change: change.energy_after / change.energy_before)
            rise = 100 * (most.energy_after / most.energy_before - 1)
            lines.append(
                f"more redundant than before: {len(worse)} of them, {shorten(most.name)} most (energy up {rise:.3g} "
                "%): train with `hs.EnergyRegularizer(model)`; `hs.rotate(model)` keeps the energy"
            )
        if self.different:
            lines.append(f"not compared: {len(self.different)} layers, {shorten(next(iter(self.different)))} first")
        return lines

    def to_dict(self) -> dict[str, Any]:
        """Return everything for JSON; angles are in radians."""
        return {
            "before": self.before,
            "after": self.after,
            "angles": "radians",
            "verdict": self.verdict,
            "layers": [finite(asdict(change)) for change in self.rows],
            "different": self.different,
        }

    def tables(self) -> list[TextTable]:
        """Return what changed in each layer."""
        named = zip(short_names([change.name for change in self.rows]), self.rows, strict=True)
        return [TextTable(_HEADER, [[name, *_cells(x)] for name, x in named], title=f"{self.before} → {self.after}")]

    def legend(self) -> list[str]:
        lines = [
            "changed: ‖W₁ − W₀‖/‖W₀‖; rotation: share of ‖W₁ − W₀‖² that the best rotation explains; "
            "by chance: of a small random change",
            "turn: angle of a neuron before and after; longer: ‖W₁‖/‖W₀‖",
        ]
        if sampled := next((change.sampled for change in self.rows if change.sampled), None):
            lines.append(f"~: of {sampled} neurons, drawn with a fixed seed")
        return lines + [f"not compared: {shorten(name)}: {why}" for name, why in list(self.different.items())[:8]]


def _cells(change: Change) -> list[str]:
    return [
        f"{'~' if change.sampled else ''}{change.neurons}",
        f"{change.dimension}",
        f"{100 * change.changed:.3g}%" if math.isfinite(change.changed) else "∞",
        percent(change.rotation, 1),
        percent(change.rotation_by_chance, 1),
        degrees(change.mean_turn),
        NOTHING if change.largest_turn is None else f"{degrees(change.largest_turn)} ({change.most_turned})",
        number(change.length_ratio, 3),
        number(change.energy_before),
        number(change.energy_after),
    ]


@overload
def compare(before: Array, after: Any, *, embeddings: bool | None = None) -> EmbeddingInspection: ...
@overload
def compare(before: str | os.PathLike[str], after: Any, *, embeddings: bool | None = None) -> Any: ...
def compare(before: Any, after: Any, *, embeddings: bool | None = None) -> Any:
    """Report for every layer of two model files how far it moved and how much of that is a rotation.

    Layers are matched by name. Files are as for :func:`inspect`. Two embeddings of the same rows, as arrays or files,
    are compared by :func:`compare_embeddings`.

    Args:
        before, after: models, or embeddings (N, d) and (N, d').
        embeddings: True: read files as embeddings, False: as models; None: as embeddings if one of them holds some.

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
    files = [Path(x) for x in (before, after) if isinstance(x, str | os.PathLike)]
    if len(files) < 2 or embeddings or (embeddings is None and any(map(holds_embeddings, files))):
        return compare_embeddings(before, after)
    old, new = ({_plain_name(source.name): source for source in _layers(Path(path))} for path in (before, after))
    different = {name: f"only in {before}" for name in old if name not in new}
    different |= {name: f"only in {after}" for name in new if name not in old}
    both = [name for name in old if name in new]
    for name in both:
        if old[name].shape != new[name].shape:
            shapes = " and ".join("×".join(map(str, source.shape)) for source in (old[name], new[name]))
            different[name] = f"shapes {shapes}"
    both = [name for name in both if name not in different]
    if not both:
        raise ValueError(f"{before} and {after} have no layer of the same name and shape")
    changes = []
    for name in track(both, "comparing layers"):
        change = _compare(name, old[name].matrix(), old[name].as_rows(new[name].read()))
        if isinstance(change, str):
            different[name] = change
        else:
            changes.append(change)
    return Comparison(tuple(changes), str(before), str(after), different)


def _layers(path: Path) -> list[LayerSource]:
    return layers_of_file(path, open_model(path))[0]


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
    alive = (neuron_lengths(torch.stack([old, new]), exact=True) > 0).all(0)
    turns = angle_between(unit(old), unit(new)).where(alive, 0.0) if alive.any() else None
    law = make_law(2.0, False, False)
    energies = [float(group_energy(rows.view(groups, -1, d), law).mean()) for rows in (old, new)]
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


def _explained(old: Tensor, new: Tensor, moved: float) -> float:
    """Compute 1 − min_R ‖W₁ − W₀R‖²/‖W₁ − W₀‖² over orthogonal R (d, d): the orthogonal Procrustes problem.

    The minimum is ‖W₀‖² + ‖W₁‖² − 2·Σσ(W₀ᵀW₁). It is computed as ‖W₁ − W₀R‖², which keeps the digits of small changes.
    """
    if old.shape[1] > old.shape[0]:  # rotated into N dimensions, each its own way: the minimum is the same
        old, new = (torch.linalg.qr(rows.mT, mode="r").R.mT for rows in (old, new))
    return 1.0 - (float((new - old @ nearest_orthogonal(old.mT @ new)).norm()) / moved) ** 2
