"""Cora, Citeseer and Pubmed in the files of Planetoid (Yang et al. 2016), with its split."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from .._internal import checks
from . import _files, _pickles
from ._dataset import Graph
from ._registry import register

ORIGIN = "https://github.com/kimiyoung/planetoid (data)"
VAL = 500


@dataclass(frozen=True)
class GraphSpec:
    """The expected sizes and classes of a graph."""

    nodes: int
    features: int
    classes: list[str]


_CORA = (
    "Theory Reinforcement_Learning Genetic_Algorithms Neural_Networks Probabilistic_Methods Case_Based Rule_Learning"
)
GRAPHS = {
    "cora": GraphSpec(2708, 1433, _CORA.split()),
    "citeseer": GraphSpec(3327, 3703, ["AI", "ML", "IR", "DB", "Agents", "HCI"]),
    "pubmed": GraphSpec(19717, 500, ["Diabetes_Experimental", "Diabetes_Type_1", "Diabetes_Type_2"]),
}


def planetoid(name: str, root: Path | None, split: str = "train") -> Graph:
    """Load the graph `name`; its masks are the splits, so it is the same for each.

    The first nodes are those of allx, of which len(y) are train and the next 500 val; test.index has the node of each
    row of tx. Citeseer's indices have gaps: isolated nodes, without features or label.
    """
    checks.choice("split", split, ("train", "val", "test"))
    spec = GRAPHS[name]
    stem = f"ind.{name}."
    parts = ("allx", "ally", "tx", "ty", "y", "graph", "test.index")
    source = _files.Source(name, ("planetoid", name), ", ".join(stem + part for part in parts), ORIGIN)
    folder = source.find(root, *(stem + part for part in parts))
    paths = {part: source.file(folder, stem + part) for part in parts}
    test_nodes = _read_test_index(paths["test.index"], spec.nodes)
    known = spec.nodes - (int(test_nodes.max()) - int(test_nodes.min()) + 1)
    if int(test_nodes.max()) != spec.nodes - 1:
        raise ValueError(f"{paths['test.index']} must end at node {spec.nodes - 1}, got {int(test_nodes.max())}")

    features = np.zeros((spec.nodes, spec.features), np.float32)
    labels = np.full(spec.nodes, -1, np.int64)
    for x, y, rows in (("allx", "ally", np.arange(known)), ("tx", "ty", test_nodes)):
        _read_rows(paths[x], features, rows)
        labels[rows] = _read_labels(paths[y], len(rows), len(spec.classes))
    train = len(_read_labels(paths["y"], None, len(spec.classes)))
    if train + VAL > known:
        raise ValueError(f"{paths['y']} must leave {VAL} of {known} nodes for val, got {train}")
    if (labels[: train + VAL] < 0).any() or (labels[test_nodes] < 0).any():
        raise ValueError(f"{paths['ally']} and {paths['ty']} must have a class for every node of train, val and test")
    node = torch.arange(spec.nodes)
    test = torch.zeros(spec.nodes, dtype=torch.bool)
    test[torch.from_numpy(test_nodes)] = True
    return Graph(
        torch.from_numpy(features),
        _read_edges(paths["graph"], spec.nodes),
        torch.from_numpy(labels),
        node < train,
        (node >= train) & (node < train + VAL),
        test,
        list(spec.classes),
    )


def _read_test_index(path: Path, nodes: int) -> npt.NDArray[np.int64]:
    words = _files.read_text(path).split()
    test_nodes = np.array(_files.parse_integers(path, words, high=nodes - 1), np.int64)
    if not len(test_nodes) or len(np.unique(test_nodes)) != len(test_nodes):
        raise ValueError(f"{path} must list nodes without duplicates")
    return test_nodes


def _read_rows(path: Path, features: npt.NDArray[np.float32], rows: npt.NDArray[np.int64]) -> None:
    """Read the rows of a sparse matrix into these rows of `features`."""
    matrix = _pickles.load(path)
    parts = matrix.parts if type(matrix) is _pickles.Matrix else {}
    shape = parts.get(b"_shape")
    if shape != (len(rows), features.shape[1]):
        raise ValueError(f"{path} must be a sparse matrix ({len(rows)}, {features.shape[1]})")
    ends, columns, values = (_read_vector(path, parts.get(key), key) for key in (b"indptr", b"indices", b"data"))
    valid = ends.dtype.kind in "iu" and columns.dtype.kind in "iu" and len(ends) == len(rows) + 1
    if not valid or ends[0] != 0 or (ends[1:] < ends[:-1]).any():
        raise ValueError(f"{path}: indptr must have {len(rows) + 1} nondecreasing integers from 0 on")
    if not int(ends[-1]) == len(columns) == len(values):
        raise ValueError(f"{path} must have {int(ends[-1])} values, got {len(values)} in {len(columns)} columns")
    if len(columns) and not 0 <= int(columns.min()) <= int(columns.max()) < features.shape[1]:
        raise ValueError(f"{path}: columns must be 0 to {features.shape[1] - 1}")
    if not np.isfinite(values).all():
        raise ValueError(f"{path} must have finite values, got NaN or infinity")
    features[np.repeat(rows, np.diff(ends)), columns] = values


def _read_vector(path: Path, value: Any, key: bytes) -> npt.NDArray[Any]:
    if type(value) is not _pickles.Array or value.values.ndim != 1:
        raise ValueError(f"{path} must be a sparse matrix with a vector {key.decode()!r}")
    return value.values


def _read_labels(path: Path, count: int | None, classes: int) -> npt.NDArray[np.int64]:
    """Read one-hot rows as classes; −1 for a row of zeros."""
    value = _pickles.load(path)
    expected = f"an array ({'N' if count is None else count}, {classes}) of zeros with at most one 1 per row"
    rows = value.values if type(value) is _pickles.Array else np.empty(0)
    valid = rows.ndim == 2 and rows.shape[1] == classes and count in (None, len(rows))
    if not valid or not np.isin(rows, (0, 1)).all() or (rows.sum(1) > 1).any():
        raise ValueError(f"{path} must be {expected}")
    return np.where(rows.any(1), rows.argmax(1), -1)


def _read_edges(path: Path, nodes: int) -> torch.Tensor:
    """Read {node: [neighbours]} as a symmetric adjacency without duplicates and loops."""
    graph = _pickles.load(path)
    if type(graph) is not dict or not all(type(ends) is list for ends in graph.values()):
        raise ValueError(f"{path} must be a dict of lists, the neighbours of each node")
    counts = [len(ends) for ends in graph.values()]
    if not all(type(node) is int for node in chain(graph, *graph.values())):
        raise ValueError(f"{path} must have integers as nodes")
    start = np.repeat(np.fromiter(graph, np.int64, len(graph)), counts)
    end = np.fromiter(chain.from_iterable(graph.values()), np.int64, len(start))
    both = np.concatenate([start, end])
    if len(both) and not 0 <= int(both.min()) <= int(both.max()) < nodes:
        raise ValueError(f"{path}: nodes must be 0 to {nodes - 1}, got {int(both.min())} to {int(both.max())}")
    different = start != end
    start, end = start[different], end[different]
    pairs = np.unique(np.concatenate([start * nodes + end, end * nodes + start]))
    edges = torch.from_numpy(np.stack([pairs // nodes, pairs % nodes]))
    return torch.sparse_coo_tensor(
        edges, torch.ones(len(pairs)), (nodes, nodes), is_coalesced=True, check_invariants=True
    )


for _name in GRAPHS:
    register(_name, partial(planetoid, _name), kind="graph")
