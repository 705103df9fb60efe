"""Loss and error of a run around its trained weights, on a plane of two random directions (OPT, 5.1, App. E and F).

The file that :func:`landscape` writes is described in :mod:`hypersphere.train.storage.landscapes`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ... import data as datasets
from ..._internal import checks, safe_files
from ..._internal.draws import generator, stable_hash
from ..._internal.progress import track
from ..._internal.tables import NOTHING, TableResult, TextTable, number, percent
from ..._internal.tensors import checksum_of
from ...data import Graph
from ...orthogonal import Orthogonalizer
from ...rotation.merging import holds_rotations, merge_state_dict, rotation_methods
from ..config import Config
from ..distributed import World, device_of
from ..evaluation import evaluate
from ..splits import Batch, Splits, evaluation
from ..storage import landscapes
from ..storage.landscapes import LandscapeSettings, StoredLandscape
from ..storage.layout import CHECKPOINTS, FINAL
from ..storage.layout import landscape as landscape_file
from ..storage.records import finite, own_folder
from .run import Run, load_run, read_checkpoint
from .scores import load_split

HIGHER = 0.1  # ten percentage points: how much more error counts as outside of the flat region
CACHE = 1 << 30  # bytes of samples that are kept in memory between the points of the grid


#: direction → how its numbers are drawn, and how far the grid reaches
DIRECTIONS: dict[str, tuple[Callable[[Tensor, torch.Generator], Tensor], float]] = {
    "normal": (lambda x, g: x.normal_(generator=g), 1.5),
    "uniform": (lambda x, g: x.uniform_(generator=g), 1.0),  # in [0, 1]: one-sided
}


@dataclass(frozen=True, eq=False, repr=False)
class Landscape(TableResult):
    """Loss and error on a grid, `size` points along each axis; prints as a table.

    Attributes:
        alpha, beta: coordinates (size,); (0, 0), in the middle of the grid, is the run itself.
        loss: (size, size), at (alpha[i], beta[j]); infinite where it is not finite.
        error: (size, size), the share of samples that are classified wrong.
        settings: what the numbers depend on: direction, split, samples, seed, step, ...
    """

    alpha: Tensor
    beta: Tensor
    loss: Tensor
    error: Tensor
    settings: LandscapeSettings

    def summary(self) -> dict[str, float | None]:
        """Return the values that `hypersphere landscape` prints.

        loss and error at the centre; radius: the least distance from it to a point of the grid whose error is more
        than ten percentage points higher, None if there is none; flat: share of grid points whose error rises by less
        than 10 points; convex: the share of the inner points where the loss curves upwards in all directions, by the
        second differences with the neighbours.
        """
        middle = len(self.alpha) // 2
        high = self.error > self.error[middle, middle] + HIGHER
        distance = torch.hypot(self.alpha[:, None], self.beta)
        return {
            "loss": float(self.loss[middle, middle]) if bool(self.loss[middle, middle].isfinite()) else None,
            "error": float(self.error[middle, middle]),
            "radius": float(distance[high].min()) if bool(high.any()) else None,
            "flat": 1 - float(high.double().mean()),
            "convex": float(_is_convex(self.loss).double().mean()),
        }

    @property
    def rows(self) -> list[tuple[float, float, float, float]]:
        """Alpha, beta, loss and error of every point."""
        grid = torch.cartesian_prod(self.alpha, self.beta)
        return list(zip(*grid.T.tolist(), self.loss.flatten().tolist(), self.error.flatten().tolist(), strict=True))

    def tables(self) -> list[TextTable]:
        values, settings = self.summary(), self.settings
        error = values["error"] or 0.0
        loss = NOTHING if values["loss"] is None else f"{values['loss']:.4f}"
        cells = [f"{settings.samples:,}", loss, percent(error), number(values["radius"], 3)]
        cells += [percent(values[key], 1) for key in ("flat", "convex")]
        header = ["samples", "loss", "error", f"error above {percent(error + HIGHER)} from", "flat", "convex"]
        what = "rotations" if settings.rotated else "weights"
        return [TextTable(header, [cells], left=0, title=f"{settings.title}, perturbed {what}")]

    def to_dict(self) -> dict[str, str | float | None]:
        """Return settings and summary."""
        return asdict(self.settings) | self.summary()


def _is_convex(z: Tensor) -> Tensor:
    """Return at which inner points (n-2, n-2) the matrix of second differences has no negative eigenvalue."""
    inner = z[1:-1, 1:-1]
    across, down = z[1:-1, 2:] + z[1:-1, :-2] - 2 * inner, z[2:, 1:-1] + z[:-2, 1:-1] - 2 * inner
    mixed = (z[2:, 2:] + z[:-2, :-2] - z[2:, :-2] - z[:-2, 2:]) / 4
    return (across >= 0) & (down >= 0) & (across * down >= mixed.square())


def landscape(
    run: Run | str | os.PathLike[str],
    direction: str = "normal",
    *,
    size: int = 21,
    span: float | None = None,
    samples: int | None = None,
    split: str | None = "test",
    seed: int = 0,
    config: Config | None = None,
    folder: str | os.PathLike[str] | None = None,
) -> Landscape:
    """Evaluate L(θ + αδ + βη) on a grid of α and β, θ being the weights of a run and δ and η random (OPT, Eq. 38-41).

    Every filter of δ and η has the norm of that filter of θ; the directions of biases, BatchNorm and all other vectors
    are 0. Where the run trained rotations, their parameters P are perturbed in place of the layer's neurons, which stay
    as they are; the columns of P are its filters. That needs the checkpoint of the run's weights, since `final` holds
    the merged network. All other layers, as the classifier, are perturbed as in a plain run.

    Args:
        run: a run or its folder.
        direction: "normal", N(0, 1), or "uniform", in [0, 1].
        size: points along each axis, odd, so that the run itself is one of them.
        span: the grid reaches from -span to span; None: 1.5 for normal, 1 for uniform directions, as in the paper.
        samples: how many samples of the split to evaluate, a random choice in proportion to the classes; None: all.
        split: train, validation or test; None: test, or validation where there is no test.
        seed: of the directions and of the samples.
        config: where the data are, how many are in a batch, and the device; None: as in the training.
        folder: where to write it as ``<direction>-<split>.json``, and to continue if it was stopped: after every row
            of the grid what is done is in ``<direction>-<split>.part.json``.

    Example:
        >>> import tempfile
        >>> from hypersphere.train import Config, fit
        >>> result = fit(Config(steps=2, out=tempfile.mkdtemp()), progress=False)
        >>> found = landscape(result.path, size=3, samples=50)
        >>> found.loss.shape, found.alpha.tolist()
        (torch.Size([3, 3]), [-1.5, 0.0, 1.5])
    """
    checks.choice("direction", direction, DIRECTIONS)
    if not 3 <= checks.integer("size", size) <= landscapes.LARGEST or size % 2 == 0:
        raise ValueError(f"size must be an odd integer from 3 to {landscapes.LARGEST}, got {size}")
    span = DIRECTIONS[direction][1] if span is None else checks.number("span", span, low=0, open_low=True)
    checks.integer("seed", seed, low=0)
    if samples is not None:
        checks.integer("samples", samples, low=1)
    run = run if isinstance(run, Run) else load_run(run)
    config = run.config if config is None else config
    splits, split = load_split(run, split, config)
    splits = _choose(run, splits, split, samples, seed)
    plane = _Plane(run, direction, seed, device_of(config.device))
    middle = size // 2
    axis = [span * (i - middle) / middle for i in range(size)]
    settings = LandscapeSettings(
        direction=direction,
        split=split,
        seed=seed,
        size=size,
        span=float(span),
        samples=splits.count(split),
        step=run.step,
        rotated=plane.rotated,
        batch_size=config.data.batch_size,
        device=plane.device.type,
        weights=plane.checksum(),
    )
    file = None if folder is None else Path(folder, landscape_file(direction, split))
    rows = _Rows(file, settings, axis)
    if not rows.is_complete:
        measure = _measure(plane, splits, split, config, len(run.labels))
        grid = [(alpha, beta) for alpha in axis[len(rows.loss) :] for beta in axis]
        points = (measure(alpha, beta) for alpha, beta in track(grid, "landscape"))
        while not rows.is_complete:
            rows.add(islice(points, size))
    loss, error = (torch.tensor(values, dtype=torch.float64) for values in (rows.loss, rows.error))
    along = torch.tensor(axis, dtype=torch.float64)
    return Landscape(along, along, loss, error, settings)


def _choose(run: Run, splits: Splits, split: str, samples: int | None, seed: int) -> Splits:
    """Return the splits with only `samples` of `split`."""
    whole = splits.split(split)
    if splits.is_open(split):
        raise ValueError(
            f"{run.path} was not trained on the classes of its {split} split, which has no loss: use train"
        )
    if samples is None or samples >= splits.count(split):
        return splits
    if isinstance(whole, Graph):
        raise ValueError(f"{run.path} is a graph's run, whose nodes are evaluated together: leave out samples")
    chosen: dict[str, Any] = {split: datasets.holdout(whole, samples, seed)[1]}
    return replace(splits, **chosen)


def _measure(
    plane: _Plane, splits: Splits, split: str, config: Config, classes: int
) -> Callable[[float, float], tuple[float, float]]:
    """Return a function that computes mean loss and error at a point, in the batches and the order of `evaluate`."""
    whole = splits.split(split)
    edges = whole.adjacency.to(plane.device) if isinstance(whole, Graph) else None

    def load() -> Iterable[Batch]:
        return (batch.to(plane.device) for batch in evaluation(splits, split, config.data, World(plane.device)))

    first = next(iter(load())).inputs
    fits = first.element_size() * first[0].numel() * splits.count(split) <= CACHE
    kept = list(load()) if fits else None

    def measure(alpha: float, beta: float) -> tuple[float, float]:
        plane.move(alpha, beta)
        totals = evaluate(plane.classifier, load() if kept is None else kept, classes, edges)
        assert totals is not None  # nothing interrupts it
        samples = int(totals.samples.sum())
        loss = totals.loss / samples
        return loss if math.isfinite(loss) else math.inf, 1 - int(totals.correct.sum()) / samples

    return measure


class _Plane:
    """A copy of a run's network that can be moved to any point of the plane through its weights."""

    def __init__(self, run: Run, direction: str, seed: int, device: torch.device) -> None:
        self.device = device
        self.classifier = deepcopy(run.classifier).to(device).eval()
        self.places = dict(self.classifier.named_parameters())
        state = _trained_state(run)
        methods = rotation_methods(state)
        self.rotated = bool(methods)
        self.layers = {key: value.to(device) for key, value in state.items() if ".parametrizations." in key}
        learns_neurons = run.config.rotation is not None and run.config.rotation.neurons == "learned"
        originals = [key for key in self.layers if learns_neurons and key.endswith(".original")]
        plain = [key for key, value in self.places.items() if value.dim() > 1 and key in state]
        moved = [*plain, *originals, *methods]
        self.weights = {key: state[key].detach().to(device).clone() for key in moved}
        self.directions = {
            key: [draw_direction(key, weight, methods.get(key), direction, seed, i) for i in range(2)]
            for key, weight in self.weights.items()
        }

    def checksum(self) -> str:
        sums = {key: checksum_of(value.cpu()) for key, value in self.weights.items()}
        return f"{stable_hash(*(f'{key} {sums[key]}' for key in sorted(sums))):016x}"

    @torch.no_grad()
    def move(self, alpha: float, beta: float) -> None:
        """Set the weights θ + αδ + βη; rotations are merged into theirs."""
        at = {key: self.weights[key] + alpha * d + beta * e for key, (d, e) in self.directions.items()}
        if self.layers:
            at |= merge_state_dict(self.layers | {key: at[key] for key in at if key in self.layers})
        for key, value in at.items():
            if key in self.places:
                self.places[key].copy_(value)


def _trained_state(run: Run) -> Mapping[str, Tensor]:
    """Return the state_dict of a run's classifier as it was trained, with rotations that are not merged."""
    if run.config.rotation is None:
        return run.classifier.state_dict()
    source = run.source
    if source == run.path / FINAL:
        source = run.path / CHECKPOINTS / str(run.step)
        if not safe_files.is_folder(source):
            raise ValueError(
                f"{run.path} trained rotations, which its final weights have merged: "
                f"the landscape needs checkpoint {source}, which is missing"
            )
    state = read_checkpoint(source, run.config)[0]
    return state if holds_rotations(state) else run.classifier.state_dict()


class _Rows:
    """The complete rows of the grid; with a file, after each row in FILE.part.json, and at the end in FILE."""

    def __init__(self, file: Path | None, settings: LandscapeSettings, axis: list[float]) -> None:
        self.file, self.settings, self.axis = file, settings, axis
        self.loss: list[list[float]] = []
        self.error: list[list[float]] = []
        self.part = None if file is None else file.with_name(file.name.removesuffix(".json") + landscapes.PART)
        if file is not None:
            own_folder(file.parent, make=True)
        for earlier in (file, self.part):
            if earlier is not None and os.path.lexists(earlier) and self._load(earlier):
                break

    @property
    def is_complete(self) -> bool:
        return len(self.loss) == self.settings.size

    def add(self, row: Iterable[tuple[float, float]]) -> None:
        """Add the loss and the error of the next row's points, and save it."""
        for rows, values in zip((self.loss, self.error), zip(*row, strict=True), strict=True):
            rows.append([*values])
        if self.file is not None and self.part is not None:
            lines = {"alpha": self.axis, "beta": self.axis, "loss": finite(self.loss), "error": self.error}
            stored = StoredLandscape(**vars(self.settings), **lines)
            landscapes.write(self.file if self.is_complete else self.part, stored)
            if self.is_complete:
                self.part.unlink(missing_ok=True)

    def _load(self, file: Path) -> bool:
        """Load the rows of a file with the same settings; a damaged one is computed again."""
        try:
            stored = landscapes.read(file)
        except ValueError as error:
            checks.warn(f"{error}; starting again")
            return False
        if any(getattr(stored, key) != value for key, value in vars(self.settings).items()):
            return False
        self.loss = [[math.inf if loss is None else loss for loss in row] for row in stored.loss]
        self.error = stored.error
        return True


# ------------------------------------------------------------------------------------------------------- directions


def draw_direction(
    name: str, weight: Tensor, method: Orthogonalizer | None, direction: str, seed: int, i: int
) -> Tensor:
    """Draw direction number `i` for a weight, every filter scaled to the norm of the weight's filter.

    Args:
        name: of the weight; the draw depends on it, on `seed` and on `i` only.
        method: of a rotation whose parameters P `weight` holds: the columns of P take the place of filters.
            None: rows of dimension 0 are filters.
    """
    noise = torch.empty(weight.shape, dtype=weight.dtype)
    DIRECTIONS[direction][0](noise, generator(seed, name, i))
    goal, drawn = filter_norms(weight.cpu().double(), method), filter_norms(noise.double(), method)
    return (noise * (goal / drawn.where(drawn > 0, 1.0)).to(noise.dtype)).to(weight.device)


def filter_norms(weight: Tensor, method: Orthogonalizer | None = None) -> Tensor:
    """Return the norm of the filter of every element, in a shape that multiplies `weight`."""
    if method is None:
        return weight.flatten(1).norm(dim=1).view(-1, *[1] * (weight.dim() - 1))
    if weight.dim() > 2:  # (blocks, ..., m, m)
        return weight.norm(dim=-2, keepdim=True)
    if tuple(method.shape(5)) != (10,):
        return weight.norm(dim=-1, keepdim=True)  # one vector a block
    m = (1 + math.isqrt(1 + 8 * weight.shape[1])) // 2  # P is a packed strict upper triangle
    columns = torch.triu_indices(m, m, 1)[1]
    squares = weight.new_zeros(len(weight), m).index_add(1, columns, weight.square())
    return squares.sqrt()[:, columns]
