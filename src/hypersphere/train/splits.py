"""The data of a training: splits, batches per step, and the specification a network is built for."""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import data as datasets
from .._internal.checksummed_json import Tree
from .._internal.tensors import hash_of
from ..data import Graph, LazyDataset, Pairs
from ..data.augment import AUGMENTATIONS, Augmentation, Compose, Resize, resolve
from ..data.batching import bounds, num_batches
from ..data.channels import convert
from ..data.image_folder import ResizedOnce
from . import automatic
from .config import Config, Data
from .distributed import World
from .storage.records import Count

CONTEXT = 128  # characters of a window of text
WAYS = 5  # classes of a few-shot episode


@dataclass(frozen=True)
class DataSpec:
    """What a network must know of its data; stored with a run, so that loading it needs no dataset.

    Attributes:
        kind: images | points | text | graph | other.
        shape: of one sample, after augmentation.
        dtype: of the stored samples; uint8 images are normalized.
        classes: class names.
    """

    kind: str
    shape: tuple[Count, ...]
    dtype: str
    classes: list[str]

    @property
    def is_photo(self) -> bool:
        """Whether samples are images that training should augment, not tiny ones such as the digits."""
        return self.kind == "images" and min(self.shape[1:]) >= automatic.LEAST

    def to_tree(self) -> Tree:
        return {"kind": self.kind, "shape": list(self.shape), "dtype": self.dtype, "classes": self.classes}


@dataclass(frozen=True)
class Batch:
    """This process's part of a batch; `share` is the weight of its mean loss in the mean over all processes."""

    inputs: Tensor
    labels: Tensor
    share: float = 1.0
    number: int = 0  # of the batch, in its step or in an evaluation
    offset: int = 0  # where this part begins in the batch of all processes
    total: int = 0  # samples of that batch

    def __len__(self) -> int:
        return len(self.labels)

    def to(self, device: torch.device) -> Batch:
        """Move to the device, floats in torch's default dtype."""
        dtype = torch.get_default_dtype() if self.inputs.is_floating_point() else self.inputs.dtype
        inputs = self.inputs.to(device, dtype, non_blocking=True)
        return replace(self, inputs=inputs, labels=self.labels.to(device, torch.int64, non_blocking=True))

    def in_channels_last(self) -> Batch:
        """Convert inputs (B, C, H, W) to channels_last strides, for a single channel too."""
        inputs = self.inputs
        if inputs.dim() != 4:
            return self
        # not inputs.to(): with one channel both layouts are equal, and the strides would stay
        placed = torch.empty_like(inputs, memory_format=torch.channels_last)
        return replace(self, inputs=placed.copy_(inputs))


@dataclass(frozen=True)
class Splits:
    """The splits of a dataset; `validation` or `test` may be missing, but not both. A graph holds all its splits.

    `validation` and `test` may have other classes than `train` (an open set); `pairs` are those of `test`, if the
    dataset has a list for verification. `data` are the settings with nothing left to "auto".
    """

    spec: DataSpec
    train: Any
    validation: Any
    test: Any
    augment: Augmentation
    eval_augment: Augmentation
    pairs: Pairs | None = None
    data: Data = field(default_factory=Data)

    @property
    def eval_split(self) -> str:
        """The split that a training is evaluated on."""
        return "test" if self.validation is None else "validation"

    def _get(self, name: str) -> Any:
        return {"train": self.train, "validation": self.validation, "test": self.test}.get(name)

    def split(self, name: str) -> Any:
        if (split := self._get(name)) is None:
            others = " and ".join(other for other in ("train", "validation", "test") if self.count(other))
            why = " (data.validation was not set)" if name == "validation" else ""
            raise ValueError(f"this run has no {name} split{why}; it has {others}")
        return split

    def is_open(self, name: str) -> bool:
        """Return whether the classes of a split are not those of the training."""
        classes = getattr(self._get(name), "classes", None)
        return classes is not None and [*map(str, classes)] != self.spec.classes

    def count(self, name: str) -> int:
        """Return the number of samples of a split; 0 if it is missing."""
        split = self._get(name)
        if isinstance(split, Graph):
            return int(mask_of(split, name).sum())
        return 0 if split is None else len(split)

    def chance(self, name: str) -> float:
        """Return the accuracy of always predicting the most frequent class; 1 / classes if there are no labels.

        Of an open set, that of a guess: half of the pairs, or one of the classes of an episode.
        """
        if self.is_open(name):
            return 1 / WAYS if self.pairs is None else 0.5
        split = self._get(name)
        labels = getattr(split, "labels", None)
        if isinstance(split, Graph):
            labels = split.labels[mask_of(split, name) & (split.labels >= 0)]
        if not isinstance(labels, Tensor) or not len(labels):
            return 1 / len(self.spec.classes)
        return int(labels.bincount().max()) / len(labels)

    def hash(self) -> str:
        """Hash all samples and labels; of image folders, file names and labels."""
        digest = hashlib.sha256()
        for split in (self.train, self.validation, self.test):
            if isinstance(split, Graph):
                for part in (split.features, split.adjacency.coalesce().indices(), split.labels):
                    digest.update(hash_of(part).encode())
            elif split is not None:
                if isinstance(getattr(split, "inputs", None), Tensor):
                    digest.update(hash_of(split.inputs).encode())
                for path in getattr(split, "paths", ()):
                    digest.update("/".join(PurePath(path).parts[-2:]).encode() + b"\0")
                if isinstance(getattr(split, "labels", None), Tensor):
                    digest.update(hash_of(split.labels).encode())
        return digest.hexdigest()


def first_two(splits: Splits) -> tuple[Tensor, Tensor]:
    """Return two training samples to try a network with; of a graph all nodes."""
    if isinstance(splits.train, Graph):
        return splits.train.features, splits.train.labels
    return next(datasets.batches(splits.train, 2, shuffle=False, augment=splits.eval_augment))


def mask_of(graph: Graph, split: str) -> Tensor:
    """Return the mask of the nodes of a split."""
    return {"train": graph.train, "validation": graph.val, "test": graph.test}[split]


def load(data: Data, seed: int, *, with_test: bool = True) -> Splits:
    """Load the splits of a config's data. ValueError in one line if files are missing or wrong.

    Args:
        with_test: False: leave the test split out; of a graph, its labels.
    """
    options: dict[str, Any] = {"context": CONTEXT} if data.name == "text" else {}
    if data.labels is not None:
        options["labels"] = data.labels
    train = read_split(data, "train", options)
    if isinstance(train, Graph):
        return _graph(train, with_test, automatic.resolve_graph(data))
    data = automatic.resolve_samples(data, train, lambda: _test(data, options) is None)
    validation, test = None, _test(data, options) if with_test else None
    if data.imbalance is not None:
        train = datasets.imbalance(train, data.imbalance, seed)
    if data.validation is not None:
        try:
            train, validation = datasets.holdout(train, data.validation, seed)
        except ValueError as error:
            raise ValueError(_why_undivided(data.validation, len(train), error)) from None
    if data.fold is not None:
        number, folds = map(int, data.fold.split("/"))
        try:
            train, validation = datasets.fold(train, number, folds, seed)
        except ValueError as error:
            raise ValueError(f"data.fold={data.fold}: {error}") from None
    pairs = None
    if test is not None and _is_disjoint(train, test):
        if datasets.has_pairs(data.name):
            pairs = datasets.load_pairs(data.name, data.root)
        elif validation is None and data.name != "image_folder":  # whose val is taken for a missing test
            with suppress(ValueError):
                validation = read_split(data, "val", options)
    if test is None and validation is None and with_test:
        raise ValueError(
            f"data.name={data.name}: {data.root or 'the data'} has no split test; data.validation=0.2 holds out a fifth"
        )
    if data.size is not None:
        train, validation, test = _resized_once(data.size, train, validation, test)
    classes = _classes(data.name, train, test)
    augment, eval_augment = augmentations(data)
    probe, _ = next(datasets.batches(train, 1, augment=eval_augment, shuffle=False))
    stored = getattr(train, "inputs", None)
    dtype = str((train[0][0] if stored is None else stored).dtype).removeprefix("torch.")
    shape = tuple(probe.shape[1:])
    spec = DataSpec(_kind(probe), shape, dtype, classes)
    data = automatic.resolve_batch_size(data, len(train), spec.is_photo)
    return Splits(spec, train, validation, test, augment, eval_augment, pairs, data)


def _why_undivided(size: int | float, n: int, error: ValueError) -> str:
    """Say why `size` of n samples cannot be held out."""
    if size >= n:
        return f"data.validation must be below the {n} training samples, got {size}"
    problem = str(error)
    if n == 1 or (isinstance(size, float) and round(size * n) in (0, n)):
        numbers = {1: "", 2: ", or set data.validation to 1"}
        other = numbers.get(n, f", or set data.validation to a number from 1 to {n - 1}")
        problem = f"too few to divide; give more samples{other}"
    return f"data.validation={size} of {n} samples: {problem}"


def _resized_once(size: int, *parts: Any) -> list[Any]:
    """Return image folders with images that are resized and kept in memory."""
    return [
        LazyDataset(part.paths, part.labels, part.classes, ResizedOnce(part.decode, size))
        if isinstance(part, LazyDataset)
        else part
        for part in parts
    ]


def _is_disjoint(train: Any, test: Any) -> bool:
    """Return whether no class of `test` is one of `train`."""
    ours, theirs = (set(map(str, getattr(split, "classes", None) or ())) for split in (train, test))
    return bool(ours) and bool(theirs) and ours.isdisjoint(theirs)


def _test(data: Data, options: Mapping[str, Any]) -> Any:
    """Load the split test; of image folders val if there is no test, and None if there is neither."""
    if data.name != "image_folder":
        return read_split(data, "test", options)
    for split in ("test", "val"):
        with suppress(datasets.MissingSplit):
            return read_split(data, split, options)
    return None


def read_split(data: Data, split: str, options: Mapping[str, Any]) -> Any:
    """Load one split of a dataset, its images with as many channels as the settings say."""
    dataset = datasets.load(data.name, data.root, split, **options)
    return dataset if data.channels is None else convert(dataset, data.channels)


def _classes(name: str, train: Any, test: Any) -> list[str]:
    """Return the names of the classes, after checking that every label has one."""
    splits = {f"data.name={name}: split train": train, f"data.name={name}: split test": test}
    for what, split in splits.items():
        _check_labels(what, split)
    named = getattr(train, "classes", None)
    if named is None:
        if not isinstance(getattr(train, "labels", None), Tensor):
            raise ValueError(f"data.name={name}: the dataset must have .labels or .classes")
        named = [str(i) for i in range(int(train.labels.max()) + 1)]
    for what, split in splits.items():
        labels = getattr(split, "labels", None)
        if isinstance(labels, Tensor):
            check_range(what, labels, len(getattr(split, "classes", named)))
    of_test = getattr(test, "classes", named)
    if list(of_test) != list(named) and not _is_disjoint(train, test):
        odd = sorted(set(map(str, of_test)) ^ set(map(str, named)))[:3]
        only = f"only one has {', '.join(odd)}" if odd else "their order differs"
        raise ValueError(f"data.name={name}: train and test must have the same classes, or none in common; {only}")
    return [*map(str, named)]


def _check_labels(what: str, split: Any) -> None:
    if split is not None and not len(split):
        raise ValueError(f"{what} has no samples")
    labels = getattr(split, "labels", None)
    if isinstance(labels, Tensor) and (labels.dim() != 1 or labels.is_floating_point() or labels.is_complex()):
        raise ValueError(f"{what} must have one integer label per sample, got {tuple(labels.shape)} {labels.dtype}")


def check_range(what: str, labels: Tensor, classes: int) -> None:
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= classes:
        raise ValueError(f"{what} has label {low if low < 0 else high}, but there are {classes} classes")


def augmentations(data: Data) -> tuple[Augmentation, Augmentation]:
    """Return the augmentations for training and evaluation: NAME and NAME.eval, or none."""
    twin = f"{data.augment}.eval"
    both = resolve(data.augment), resolve(twin if twin in AUGMENTATIONS else None)
    if data.size is None:
        return both
    return Compose(Resize(data.size), both[0]), Compose(Resize(data.size), both[1])


def _kind(sample: Tensor) -> str:
    """Return the kind of data of a batch."""
    if sample.dim() == 4:
        return "images"
    if not sample.is_floating_point():
        return "text"
    return "points" if sample.dim() == 3 and sample.shape[2] == 3 else "other"


def _graph(graph: Graph, with_test: bool, data: Data) -> Splits:
    for split in ("train", "validation", "test"):
        mask = mask_of(graph, split)
        if not bool((mask & (graph.labels >= 0)).any()):
            raise ValueError(f"the graph has no labelled nodes in its split {split}")
    check_range("the graph", graph.labels.clamp(min=0), len(graph.classes))
    features = F.normalize(graph.features, p=1.0)  # every row sums to 1
    labels = graph.labels if with_test else graph.labels.where(graph.train | graph.val, -1)
    graph = Graph(features, graph.adjacency, labels, graph.train, graph.val, graph.test, graph.classes)
    spec = DataSpec("graph", (features.shape[1],), "float32", graph.classes)
    nothing = resolve(None)
    return Splits(spec, graph, graph, graph if with_test else None, nothing, nothing, data=data)


# ------------------------------------------------------------------------------------------------------- batches


def check_batch_size(train: Any, data: Data, processes: int) -> None:
    """Require that a batch can be divided among the processes, and among classes."""
    if data.batch_size % processes:
        raise ValueError(f"data.batch_size must be a multiple of the {processes} processes, got {data.batch_size}")
    if data.images_per_class is None:
        return
    unit = processes * data.images_per_class
    if data.batch_size % unit:
        by = f"{processes} processes × " if processes > 1 else ""
        raise ValueError(
            f"data.batch_size must be a multiple of {by}data.images_per_class = {data.images_per_class}, "
            f"got {data.batch_size}"
        )
    if not isinstance(labels := getattr(train, "labels", None), Tensor):
        raise ValueError(f"data.images_per_class needs labels, a tensor, and data.name={data.name} has none")
    classes = len(labels.unique())
    if data.batch_size // data.images_per_class > classes:
        raise ValueError(
            f"data.batch_size / data.images_per_class must be <= {classes}, the number of classes, got "
            f"{data.batch_size} / {data.images_per_class}"
        )


def steps_per_epoch(splits: Splits, data: Data, accumulate: int) -> int:
    """Return the updates per epoch; the last may have fewer batches, so that an epoch ends with an update."""
    if isinstance(splits.train, Graph):
        return 1
    return -(-num_batches(splits.train, data.batch_size, images_per_class=data.images_per_class) // accumulate)


def steps(splits: Splits, config: Config, start: int, world: World) -> Generator[list[Batch], None, None]:
    """Yield the batches of every step from `start` on, endlessly: a pure function of its arguments."""
    data, accumulate = config.data, config.accumulate
    if isinstance(splits.train, Graph):
        while True:
            yield [_nodes(splits.train, "train")]
    own, balanced = data.batch_size // world.size, data.images_per_class  # samples of this process in a batch
    count = num_batches(splits.train, own, world.size, balanced)
    length = len(splits.train) if balanced is None else count * data.batch_size  # samples of an epoch
    epoch, place = divmod(start, steps_per_epoch(splits, data, accumulate))
    options: dict[str, Any] = {"rank": world.rank, "world_size": world.size, "workers": data.workers}
    options |= {"seed": config.seed, "augment": splits.augment, "images_per_class": balanced}
    while True:
        first = place * accumulate
        source = datasets.batches(splits.train, own, epoch=epoch, start=first, **options)
        for begin in range(first, count, accumulate):
            numbers = range(begin, min(begin + accumulate, count))
            places = [bounds(length, data.batch_size, world.size, i) for i in numbers]
            total = sum(high - low for low, high in places)
            yield [_part(next(source), high - low, number, world, total) for number, (low, high) in enumerate(places)]
        epoch, place = epoch + 1, 0


def evaluation(splits: Splits, split: str, data: Data, world: World) -> Iterator[Batch]:
    """Yield this process's part of a split, in order, deterministic; a graph is one batch."""
    whole = splits.split(split)
    if isinstance(whole, Graph):
        yield _nodes(whole, split)
        return
    if len(whole) < world.size:  # too few to share: the main process takes all
        if world.rank:
            return
        world = replace(world, size=1)
    own = max(1, data.batch_size // world.size)
    options = {"rank": world.rank, "world_size": world.size, "workers": data.workers}
    source = datasets.batches(whole, own, shuffle=False, augment=splits.eval_augment, **options)
    for number, pair in enumerate(source):
        low, high = bounds(len(whole), own * world.size, world.size, number)
        yield _part(pair, high - low, number, world, high - low)


def _nodes(graph: Graph, split: str) -> Batch:
    """Return the graph as a batch; nodes without a label or outside the split have label -100."""
    labels = graph.labels.where(mask_of(graph, split) & (graph.labels >= 0), -100)
    return Batch(graph.features, labels, total=len(labels))


def _part(pair: tuple[Tensor, Tensor], length: int, number: int, world: World, total: int) -> Batch:
    """Return this process's part of a batch of `length` samples in a step of `total`."""
    own, more = divmod(length, world.size)
    inputs, labels = pair
    share = len(labels) * world.size / total
    return Batch(inputs, labels, share, number, world.rank * own + min(world.rank, more), length)
