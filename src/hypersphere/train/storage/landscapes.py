"""The files of `hypersphere landscape`: ``landscape/<direction>-<split>.json`` in a run folder."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from ..._internal import safe_files
from .layout import FORMAT, LANDSCAPE, LANDSCAPES
from .records import Count, Finite, Positive, Share, finite, read_record, write_tree

PART = ".part.json"  # the end of a name until all rows are there
LARGEST = 1001  # points along an axis


@dataclass(frozen=True)
class LandscapeSettings:
    """What the numbers of a landscape depend on.

    Attributes:
        direction, split, seed: normal or uniform; the split of the data; the seed of directions and samples.
        size, span: of the grid: `size` points from -span to span along each axis.
        samples, step: evaluated samples; step of the weights.
        rotated: whether rotations were perturbed (OPT).
        batch_size, device, weights: what else the bits depend on; `weights` is a checksum of the perturbed tensors.
    """

    direction: str
    split: str
    seed: int
    size: Count
    span: Positive
    samples: Count
    step: Count
    rotated: bool
    batch_size: Count
    device: str
    weights: str

    @property
    def title(self) -> str:
        return f"{self.direction} directions, {self.split}, step {self.step}"


@dataclass(frozen=True)
class StoredLandscape(LandscapeSettings):
    """A landscape's file.

    Attributes:
        alpha, beta: the coordinates of the grid, `size` numbers each; (0, 0) is the run itself.
        loss, error: rows of the grid: ``loss[i][j]`` is at (alpha[i], beta[j]), None where it is not finite; error is
            a share. A ``.part.json`` has fewer than `size` rows.
    """

    alpha: list[Finite]
    beta: list[Finite]
    loss: list[list[Finite | None]]
    error: list[list[Share]]

    def __post_init__(self) -> None:
        if not 3 <= self.size <= LARGEST:
            raise ValueError(f"size must be an integer from 3 to {LARGEST}")
        rows = [len(row) for row in self.loss] + [len(row) for row in self.error]
        if {len(self.alpha), len(self.beta), *rows} != {self.size}:
            raise ValueError(f"alpha, beta and every row of loss and error must be {self.size} numbers")
        if len(self.loss) != len(self.error) or len(self.loss) > self.size:
            raise ValueError(f"loss and error must have the same rows, up to {self.size}")


def find(run: Path) -> list[Path]:
    """Return the complete landscapes of a run folder, by name."""
    folder = run / LANDSCAPES
    if not safe_files.is_folder(folder):
        return []
    names = (file.name for file in folder.iterdir())
    return [folder / name for name in sorted(names) if LANDSCAPE.fullmatch(name) and not name.endswith(PART)]


def read(file: Path) -> StoredLandscape:
    """Read a landscape and check every field; ValueError in one line."""
    stored = read_record(StoredLandscape, file, FORMAT)
    if len(stored.loss) < stored.size and not file.name.endswith(PART):
        raise ValueError(f"{file} is malformed: loss must have {stored.size} rows, got {len(stored.loss)}")
    return stored


def write(file: Path, stored: StoredLandscape) -> None:
    """Write a landscape, atomically, with its checksum."""
    write_tree(file, FORMAT, finite(asdict(stored)))
