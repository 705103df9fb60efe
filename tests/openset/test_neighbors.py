"""Nearest neighbours in blocks are those of the whole matrix of similarities."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from hypersphere import openset
from hypersphere.openset import _embeddings, neighbors


def literal(queries, database, k, metric, is_self=False):
    """Sort all similarities of a query; of equal ones the lower index is first."""
    queries, database = queries.double(), database.double()
    if metric == "cosine":
        queries, database = F.normalize(queries), F.normalize(database)
    scores = queries @ database.T
    if is_self:
        scores.fill_diagonal_(-torch.inf)
    values, places = scores.sort(dim=1, descending=True, stable=True)
    return values[:, :k], places[:, :k]


@pytest.fixture
def small_blocks(monkeypatch):
    for name, value in (("QUERIES", 5), ("DATABASE", 16)):
        monkeypatch.setattr(_embeddings, name, value)
    monkeypatch.setattr(neighbors, "GROUP", 2)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("metric", neighbors.METRICS)
@pytest.mark.parametrize("k", [1, 2, 7, 40])
def test_equals_sorting_all_pairs(metric, k):
    """k below and above the groups of a block, and above a block."""
    queries, database = torch.randn(13, 6), 3 * torch.randn(45, 6)
    result = openset.nearest(queries, database, k, metric=metric)
    values, places = literal(queries, database, k, metric)
    assert torch.equal(result.indices, places)
    torch.testing.assert_close(result.scores, values.float())
    alone = openset.nearest(database, k=k, metric=metric)
    values, places = literal(database, database, k, metric, is_self=True)
    assert torch.equal(alone.indices, places)
    torch.testing.assert_close(alone.scores, values.float())


@pytest.mark.usefixtures("small_blocks")
def test_duplicates_are_neighbours_and_a_row_is_not_its_own():
    rows = torch.eye(3).repeat(2, 1)
    result = openset.nearest(rows, k=2)
    assert result.indices[:, 0].tolist() == [3, 4, 5, 0, 1, 2]
    assert result.scores.tolist() == [[1, 0]] * 6
    few = openset.nearest(rows, torch.eye(3)[:1].repeat(40, 1), k=3)  # all equal: the first ones
    assert few.indices.sort(1).values.equal(few.indices)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("dtype", ["<f2", "<f4", ">f4", "<f8"])
def test_mapped_arrays(tmp_path, dtype):
    rows = np.random.default_rng(0).normal(size=(40, 6)).astype(dtype)
    np.save(tmp_path / "rows.npy", rows)
    mapped = np.load(tmp_path / "rows.npy", mmap_mode="r")
    result = openset.nearest(mapped[:7], mapped, 3)
    exact = torch.from_numpy(rows.astype(np.float64))
    assert torch.equal(result.indices, literal(exact[:7], exact, 3, "cosine")[1])
    assert result.scores.dtype is torch.float32


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_hard_rows(dtype):
    """Zero rows have cosine 0; the longest and shortest rows have directions; cosines are at most 1."""
    largest, least = torch.finfo(dtype).max, torch.finfo(dtype).tiny
    rows = torch.tensor([[0, 0], [largest, largest], [least, 0], [0, -1]], dtype=dtype).requires_grad_()
    result = openset.nearest(rows, rows, 4)
    torch.testing.assert_close(result.scores[0], torch.zeros(4))
    torch.testing.assert_close(result.scores[1], torch.tensor([1, 0.5**0.5, 0, -(0.5**0.5)]))
    assert result.indices[1].tolist() == [1, 2, 0, 3]
    assert result.scores.max() <= 1


def test_faiss_gives_the_same():
    pytest.importorskip("faiss")
    rows = torch.randn(300, 16)
    for metric in neighbors.METRICS:
        ours, theirs = (openset.nearest(rows, k=9, metric=metric, engine=engine) for engine in neighbors.ENGINES)
        assert torch.equal(ours.indices, theirs.indices)
        torch.testing.assert_close(ours.scores, theirs.scores)


def test_faiss_is_asked_for_by_name(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "faiss", None)
    with pytest.raises(ImportError, match="pip install faiss-cpu"):
        openset.nearest(torch.eye(3), k=1, engine="faiss")


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda x: openset.nearest(x, k=4), ValueError, "k must be <= 3, the number of rows to choose from, got 4"),
        (lambda x: openset.nearest(x, x[:0]), ValueError, "k must be <= 0"),
        (lambda x: openset.nearest(x, x[:, :2], 1), ValueError, r"database must be \(N, 3\) as queries are"),
        (lambda x: openset.nearest(x[0], x, 1), ValueError, r"queries must be \(n, d\), got \(3,\)"),
        (lambda x: openset.nearest(x, x / 0, 1), ValueError, "database must be finite, got NaN"),
        (lambda x: openset.nearest(1e39 * x.double(), x, 1, metric="inner_product"), ValueError, "in torch.float32"),
        (lambda x: openset.nearest(x.long(), x, 1), TypeError, "queries must have a floating point dtype"),
        (lambda x: openset.nearest(x.numpy().astype(int), x, 1), TypeError, "queries must have a floating"),
        (lambda x: openset.nearest(x, x.tolist(), 1), TypeError, "database must be a Tensor"),
        (lambda x: openset.nearest(x, x, 0), ValueError, "k must be >= 1"),
        (lambda x: openset.nearest(x, x, 1, metric="cosin"), ValueError, "did you mean 'cosine'"),
        (lambda x: openset.nearest(x, x, 1, engine="fais"), ValueError, "did you mean 'faiss'"),
    ],
)
def test_bad_input(call, error, message):
    with pytest.raises(error, match=message):
        call(torch.randn(4, 3))


def test_no_queries():
    assert openset.nearest(torch.randn(0, 3), torch.randn(5, 3), 2).indices.shape == (0, 2)
    assert not math.isnan(float(openset.nearest(torch.randn(0, 3), torch.randn(5, 3), 2).scores.sum()))
