"""The graph convolutional network of OPT (App. D): Â·relu(Â X W₀)·W₁ with Â = D^(−½)(A + I)D^(−½)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import ref

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .._internal import checks
from ..layers.sphere import Scale, SimilarityLike
from ._parts import Network, Style, check_ints
from ._registry import register


def normalize_adjacency(adjacency: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Compute D^(−½)(A + I)D^(−½) of an adjacency (N, N), sparse or dense; D has the row sums of A + I.

    Example:
        >>> normalize_adjacency(torch.tensor([[0.0, 1.0], [1.0, 0.0]])).to_dense()
        tensor([[0.5000, 0.5000],
                [0.5000, 0.5000]])
    """
    sparse = adjacency.detach().to(dtype or torch.get_default_dtype()).to_sparse_coo().coalesce()
    nodes = torch.arange(len(sparse), device=sparse.device)
    rows, columns = places = torch.cat([sparse.indices(), torch.stack([nodes, nodes])], 1)
    values = torch.cat([sparse.values(), sparse.values().new_ones(len(nodes))])
    scale = values.new_zeros(len(nodes)).index_add(0, rows, values).rsqrt()
    values = values * scale[rows] * scale[columns]
    return torch.sparse_coo_tensor(places, values, sparse.shape, check_invariants=False).coalesce()


class GCN(Network):
    """forward(features, adjacency): node features (N, F), the graph's adjacency (N, N) → logits (N, classes).

    The normalized adjacency is cached until another tensor is passed or the tensor changes. Since Â(H W) = (Â H) W,
    ``forward_features`` returns the last Â·H, ready for a classifier or a loss head.
    """

    data_kind = "graph"

    def __init__(
        self,
        num_classes: int = 7,
        *,
        in_features: int = 1433,
        widths: Sequence[int] = (16,),
        dropout: float = 0.5,
        similarity: SimilarityLike | None = None,
        scale: Scale = None,
        relu: bool = True,
        init: str = "xavier",
    ) -> None:
        super().__init__()
        style = Style(similarity, scale)
        self.relu = relu
        self.dropout = checks.number("dropout", dropout, low=0.0, high=1.0)
        layers: list[nn.Module] = []
        features = self.in_features = checks.integer("in_features", in_features, low=1)
        for width in check_ints("widths", widths, least=0):
            layers.append(style.linear(features, width))
            features = width
        self.layers = nn.ModuleList(layers)
        self.set_classifier(features, num_classes, bias=False)
        self._initialize(init)
        self._cache_key: Any = None  # a weak reference to the adjacency, its version and the dtype
        self._cached: Tensor | None = None

    def forward_features(self, x: Tensor, adjacency: Tensor | None = None) -> Tensor:
        edges = self._normalized_adjacency(x, adjacency)
        for layer in self.layers:
            x = edges @ layer(F.dropout(x, self.dropout, self.training))
            x = x.relu() if self.relu else x
        return edges @ F.dropout(x, self.dropout, self.training)

    def forward(self, x: Tensor, adjacency: Tensor | None = None) -> Tensor:
        return self.forward_head(self.forward_features(x, adjacency))

    def _normalized_adjacency(self, x: Tensor, adjacency: Any) -> Tensor:
        if not isinstance(adjacency, Tensor):
            got = type(adjacency).__name__
            raise TypeError(f"adjacency must be a Tensor, got {got}")
        if x.dim() != 2 or x.shape[1] != self.in_features or adjacency.shape != (len(x), len(x)):
            got = f"{tuple(x.shape)} and {tuple(adjacency.shape)}"
            raise ValueError(f"features must be (N, {self.in_features}) and adjacency (N, N), got {got}")
        state = (x.dtype, -1 if adjacency.is_inference() else adjacency._version)
        if self._cached is None or self._cache_key[0]() is not adjacency or self._cache_key[1:] != state:
            self._cache_key, self._cached = (ref(adjacency), *state), normalize_adjacency(adjacency, x.dtype)
        return self._cached

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_cache_key": None, "_cached": None}  # a weak reference cannot be pickled


register("gcn", GCN)
register("gcn.opt", GCN, paper="OPT", table="App. D")
