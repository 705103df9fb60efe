"""Build the papers' full-size rows and run one step of each: `python -m tools.full_size [TABLE ...] [--memory]`.

The data are random numbers of the true shape and number of classes, two samples a batch. With --memory the memory of
a training step at the row's own batch size is counted: weights, gradients, the optimizer's state, and what the
forward pass keeps for the backward pass, which grows linearly with the batch and is counted at two sizes.
"""

import argparse
import gc
import sys
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hypersphere.data import Graph
from hypersphere.data.augment import resolve
from hypersphere.papers import gan as gan  # registers it
from hypersphere.papers import tables
from hypersphere.papers.table import TableRow
from hypersphere.train import tasks
from hypersphere.train.config import Config, derive
from hypersphere.train.distributed import World
from hypersphere.train.splits import Batch, DataSpec, Splits

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


@dataclass(frozen=True)
class Step:
    """One step of a row: what it cost, in bytes and seconds."""

    loss: float
    seconds: float
    weights: int
    gradients: int
    state: int
    kept: int


def shape_of(config: Config) -> tuple[tuple[int, ...], int]:
    """Return the shape of a sample and the number of classes."""
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


def step(config: Config, batch_size: int) -> Step:
    """Run one step at a batch size."""
    torch.manual_seed(0)
    config = derive(config, {"data.batch_size": batch_size, "device": "cpu", "init_from": None})
    splits = splits_of(config)
    shape, classes = shape_of(config)
    task = tasks.make(config, splits, World(torch.device("cpu")))
    if isinstance(splits.train, Graph):
        batch = Batch(splits.train.features, splits.train.labels, total=len(splits.train.labels))
    else:
        labels = torch.arange(batch_size) % classes
        batch = Batch(torch.randn(batch_size, *shape), labels, total=batch_size)
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        for part in (tensor._indices(), tensor._values()) if tensor.is_sparse else (tensor,):
            storage = part.untyped_storage()
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    begin, loss = time.perf_counter(), 0.0
    weights = {p.untyped_storage().data_ptr() for module in task.modules.values() for p in module.parameters()}
    for phase in task.phases:
        phase.optimizer.zero_grad()
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            part = phase.loss(batch) + sum((term() for term in phase.terms), torch.zeros(()))
        part.backward()
        loss += float(part.detach())
        phase.optimizer.step()
    parameters = [p for module in task.modules.values() for p in module.parameters()]
    states = [value for phase in task.phases for slots in phase.optimizer.state.values() for value in slots.values()]
    return Step(
        loss,
        time.perf_counter() - begin,
        sum(p.nbytes for p in parameters),
        sum(p.grad.nbytes for p in parameters if p.grad is not None),
        sum(value.nbytes for value in states if isinstance(value, Tensor)),
        sum(size for pointer, size in kept.items() if pointer not in weights),
    )


def memory(config: Config) -> dict[str, float]:
    """Count the bytes of a step at the config's own batch size; a graph is one batch."""
    two = step(config, 2)
    per_sample = 0.0 if config.data.name in GRAPHS else (step(config, 4).kept - two.kept) / 2
    kept = two.kept + per_sample * (config.data.batch_size - 2)
    return {"weights": two.weights, "gradients": two.gradients, "state": two.state, "kept": kept}


def rows(names: list[str]) -> list[tuple[str, TableRow]]:
    return [(name, row) for name in names for row in tables.load(name).rows if row.full is not None]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", metavar="TABLE", nargs="*", default=[*tables.TABLES])
    parser.add_argument("--memory", action="store_true", help="count the memory at the true batch size")
    options = parser.parse_args()
    failed = 0
    done: dict[Any, str] = {}  # rows of different tables are often the same training
    for name, row in rows(options.tables):
        assert row.full is not None
        if row.full not in done:
            try:
                done[row.full] = _line(row.full, options.memory)
            except Exception as error:
                failed += 1
                done[row.full] = f"FAILED: {type(error).__name__}: {' '.join(str(error).split())[:200]}"
            gc.collect()
        print(f"{name}/{row.name}: {done[row.full]}", flush=True)
    return int(failed > 0)


def _line(config: Config, count_memory: bool) -> str:
    if not count_memory:
        one = step(config, 2)
        return f"loss {one.loss:.3f}, {one.weights / 1e6:.1f} MB of weights, {one.seconds:.1f} s"
    parts, batch = memory(config), GRAPHS.get(config.data.name, (config.data.batch_size,))[0]
    shown = ", ".join(f"{name} {size / 1e9:.2f}" for name, size in parts.items())
    return f"{sum(parts.values()) / 1e9:.2f} GB at batch {batch} ({shown})"


if __name__ == "__main__":
    sys.exit(main())
