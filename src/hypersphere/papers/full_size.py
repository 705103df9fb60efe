"""Count what the papers' full-size rows need, by a step on random numbers or, without computing, on the meta device.

The data are of the true shape and number of classes. Memory and multiplications of a step are counted at two small
batches and continued to the row's own: both grow linearly with the batch.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode
from torch.utils.module_tracker import ModuleTracker

from ..data import Graph
from ..data.augment import resolve
from ..train import tasks
from ..train.config import Config, derive
from ..train.distributed import World
from ..train.splits import Batch, DataSpec, Splits
from . import gan as gan  # registers it

#: dataset → shape of a sample and number of classes
SHAPES: dict[str, tuple[tuple[int, ...], int]] = {
    "mnist": ((1, 28, 28), 10),
    "cifar10": ((3, 32, 32), 10),
    "cifar100": ((3, 32, 32), 100),
    "cifar_fs": ((3, 32, 32), 64),
    "lfw": ((3, 64, 64), 4038),
    "modelnet40": ((1024, 3), 40),
    "cora": ((1433,), 7),
    "pubmed": ((500,), 3),
    "imagenet": ((3, 224, 224), 1000),
    "mini_imagenet": ((3, 84, 84), 64),
    "casia_webface": ((3, 112, 96), 10_572),
    "imdb_face": ((3, 112, 96), 56_000),
    "ms_celeb": ((3, 112, 96), 96_000),
}
#: graph → nodes and edges; the graph here is a ring with chords of the same size
GRAPHS = {"cora": (2708, 5278), "pubmed": (19_717, 44_324)}
#: dataset → training samples, where a row states epochs
SAMPLES = {"mnist": 55_000, "mini_imagenet": 38_400, "modelnet40": 9840}

GPU, PEAK, SHARE = "A100", 9.75e12, 0.4  # multiplications a second in float32, each with an addition; what is reached
HOW = (
    f"Hours: counted multiplications at {SHARE:.0%} of {PEAK / 1e12:g}·10¹² a second; small networks reach less. "
    "Memory: weights, gradients, the optimizer's state and what the forward pass keeps. Disk: checkpoints, "
    "not the data."
)
_CUBIC = {  # d³ multiplications of a factorization or solution of size d
    "geqrf": 2 / 3,
    "linalg_householder_product": 2 / 3,
    "linalg_qr": 4 / 3,
    "linalg_lu_factor_ex": 1 / 3,
    "linalg_lu_solve": 1.0,
    "linalg_solve_triangular": 1 / 2,
    "_linalg_solve_ex": 4 / 3,
    "linalg_inv_ex": 1.0,
    "_linalg_eigh": 9 / 2,
    "_linalg_svd": 10.0,
    "linalg_cholesky_ex": 1 / 6,
}


@dataclass(frozen=True)
class Step:
    """One step: its loss (NaN on the meta device) and cost, in bytes, seconds and multiplications."""

    loss: float
    seconds: float
    weights: int
    gradients: int
    state: int
    kept: float
    multiplications: float

    @property
    def memory(self) -> float:
        return self.weights + self.gradients + self.state + self.kept


@dataclass(frozen=True)
class Needs:
    """What a run at the row's own batch size and length needs.

    Attributes:
        batch: samples, of a graph its nodes.
        memory: bytes of a step: weights, gradients, the optimizer's state and what the forward pass keeps.
        multiplications: of a step.
        steps: of a run.
        hours: on a :data:`GPU` that reaches :data:`SHARE` of its peak.
        disk: bytes of a run's checkpoints and final weights.
    """

    batch: int
    memory: float
    multiplications: float
    steps: int
    hours: float
    disk: int


def shape_of(config: Config) -> tuple[tuple[int, ...], int]:
    """Return the shape of a sample and the number of classes. ValueError if the dataset is not one of the papers'."""
    if config.data.name not in SHAPES:
        raise ValueError(f"the shape of {config.data.name} is not known; it is of {', '.join(SHAPES)}")
    return SHAPES[config.data.name]


def splits_of(config: Config) -> Splits:
    """Return splits that know their shape; only a graph has samples."""
    shape, classes = shape_of(config)
    names = [str(i) for i in range(classes)]
    if config.data.name in GRAPHS:
        nodes, edges = GRAPHS[config.data.name]
        every, start = torch.ones(nodes, dtype=torch.bool), torch.arange(edges) % nodes
        ends = torch.stack([start, (start + 1 + torch.arange(edges) // nodes) % nodes])
        both = torch.cat([ends, ends.flip(0)], 1)
        adjacency = torch.sparse_coo_tensor(both, torch.ones(2 * edges), (nodes, nodes), check_invariants=True)
        labels = torch.arange(nodes) % classes
        graph = Graph(torch.rand(nodes, *shape), adjacency.coalesce(), labels, every, every, every, names)
        return Splits(DataSpec("graph", shape, "float32", names), graph, graph, graph, resolve(None), resolve(None))
    kind = "points" if config.data.name == "modelnet40" else "images"
    spec = DataSpec(kind, shape, "float32" if kind == "points" else "uint8", names)
    return Splits(spec, None, None, None, resolve(None), resolve(None))


def step(config: Config, batch_size: int, device: str = "cpu") -> Step:
    """Run one step at a batch size."""
    return steps(config, [batch_size], device)[0]


def steps(config: Config, batch_sizes: Sequence[int], device: str = "cpu") -> list[Step]:
    """Run a step at each of these batch sizes, of one network; a graph is its own batch."""
    torch.manual_seed(0)
    config = derive(config, {"data.batch_size": batch_sizes[0], "device": "cpu", "init_from": None})
    with torch.device(device):
        splits = splits_of(config)
        task = tasks.make(config, splits, World(torch.device(device)))
        return [_step(task, _batch(splits, config, size)) for size in batch_sizes]


def _batch(splits: Splits, config: Config, size: int) -> Batch:
    if isinstance(splits.train, Graph):
        return Batch(splits.train.features, splits.train.labels, total=len(splits.train.labels))
    shape, classes = shape_of(config)
    return Batch(torch.randn(size, *shape), torch.arange(size) % classes, total=size)


def _step(task: tasks.TrainingTask, batch: Batch) -> Step:
    kept: dict[tuple[str, int], int] = {}  # phase and storage, which a later phase may reuse, → bytes

    def pack(tensor: Tensor) -> Tensor:
        for part in (tensor._indices(), tensor._values()) if tensor.is_sparse else (tensor,):
            storage = part.untyped_storage()
            kept[phase.name, storage._cdata] = storage.nbytes()  # not data_ptr, which is 0 on the meta device
        return tensor

    begin, loss = time.perf_counter(), 0.0
    parameters = [p for module in task.modules.values() for p in module.parameters()]
    weights = {p.untyped_storage()._cdata for p in parameters}
    counter = FlopCounterMode(display=False, custom_mapping=_cubic_flops())
    counter.mod_tracker = _NoModules()  # its hooks do not bear a penalty of gradients
    with counter:
        for phase in task.phases:
            phase.optimizer.zero_grad()
            with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
                part = phase.loss(batch) + sum((term() for term in phase.terms), torch.zeros(()))
            part.backward()
            loss += math.nan if part.is_meta else float(part.detach())
            phase.optimizer.step()
    states = [value for phase in task.phases for slots in phase.optimizer.state.values() for value in slots.values()]
    return Step(
        loss,
        time.perf_counter() - begin,
        sum(p.nbytes for p in parameters),
        sum(p.grad.nbytes for p in parameters if p.grad is not None),
        sum(value.nbytes for value in states if isinstance(value, Tensor)),
        sum(size for (_, storage), size in kept.items() if storage not in weights),
        counter.get_total_flops() / 2,
    )


class _NoModules(ModuleTracker):
    """Count for the whole network only, not module by module."""

    def __enter__(self) -> _NoModules:
        return self

    def __exit__(self, *args: object) -> None:
        pass


def _cubic_flops() -> dict[Any, Callable[..., int]]:
    """Return what FlopCounterMode, which knows products and convolutions only, adds for factorizations."""

    def flops(factor: float) -> Callable[..., int]:
        return lambda shape, *others, **options: round(2 * factor * math.prod(shape) * shape[-1])

    return {getattr(torch.ops.aten, name): flops(factor) for name, factor in _CUBIC.items()}


def at_own_batch(config: Config) -> Step:
    """Count a step at the config's own batch size, on the meta device: nothing is computed, no data are read.

    Some rows need values, such as graphs, S-OPT and Householder reflections: they take small steps on the CPU.
    """
    try:
        return _continued(config, "meta")
    except (
        RuntimeError,
        TypeError,
        ValueError,
    ):  # what differs from one operation to the next; errors of the row recur
        return _continued(config, "cpu")


def _continued(config: Config, device: str) -> Step:
    """Count steps of 2 and 4 samples and continue them to the config's batch size; a graph is one batch."""
    if config.data.name in GRAPHS:
        return step(config, 2, device)
    two, four = steps(config, [2, 4], device)
    more = (config.data.batch_size - 2) / 2
    kept, counted = (
        one + more * (other - one)
        for one, other in ((two.kept, four.kept), (two.multiplications, four.multiplications))
    )
    return Step(two.loss, two.seconds, two.weights, two.gradients, two.state, kept, counted)


def needs(config: Config) -> Needs:
    """Count what a run of a config needs."""
    one, total = at_own_batch(config), config.steps
    if total is None:
        name = config.data.name
        total = (config.epochs or 0) * (-(-SAMPLES[name] // config.data.batch_size) if name in SAMPLES else 1)
    return Needs(
        batch=GRAPHS.get(config.data.name, (config.data.batch_size,))[0],
        memory=one.memory,
        multiplications=one.multiplications,
        steps=total,
        hours=one.multiplications * total / (PEAK * SHARE) / 3600,
        disk=(config.keep + 1) * (one.weights + one.state) + one.weights,  # the best checkpoint, too
    )
