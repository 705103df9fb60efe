"""The result of select: a dict of layers, which prints as a table with the layers that were passed over."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from .._internal.tables import TableResult, TextTable
from .._internal.text import escaped
from .neurons import Neurons

_HEADER = ("layer", "type", "neurons × dim", "output", "")


@dataclass(frozen=True)
class SelectedLayer:
    """A layer in the table of a selection; sizes are None for layers that were passed over, and for lazy ones."""

    layer: str
    type: str
    groups: int | None = None
    neurons: int | None = None
    dimension: int | None = None
    output: bool = False
    passed_over: str | None = None
    """Why the layer is not selected."""
    note: str | None = None

    def cells(self) -> list[str]:
        """Return the cells of the table."""
        size = "" if self.passed_over else "?"
        if self.neurons:
            groups = f"{self.groups}·" if self.groups != 1 else ""
            size = f"{groups}{self.neurons} × {self.dimension}"
        remark = f"passed over: {self.passed_over}" if self.passed_over else self.note or ""
        return [escaped(self.layer) or "(root)", self.type, size, "yes" if self.output else "", remark]


class Selection(TableResult, dict[str, Neurons]):
    """The selected neurons by layer name; str() is a table of all layers, :meth:`to_dict` is for JSON.

    Args:
        selected: what was selected.
        everything: all layers with neurons.
        passed_over: reasons by the names of all other layers.
        remarks: on layers, by name.
        uncalled: layers whose weights are read without calling the layer.
        all_layers: select was called without `layers`, so verbs that change neurons skip the output.
    """

    def __init__(
        self,
        selected: Mapping[str, Neurons],
        everything: Mapping[str, Neurons],
        passed_over: Mapping[str, tuple[nn.Module, str]],
        remarks: Mapping[str, str],
        uncalled: Iterable[str],
        *,
        all_layers: bool,
    ) -> None:
        super().__init__(selected)
        self.everything, self.passed_over, self.remarks = everything, passed_over, remarks
        self.uncalled, self.all_layers = frozenset(uncalled), all_layers

    def keep(self, wanted: Callable[[str, Neurons], bool], reason: str) -> Selection:
        """Return the selection without the layers that `wanted` refuses, which are passed over for this reason."""
        dropped = {name: (n.module, reason) for name, n in self.items() if not wanted(name, n)}
        rest = {name: n for name, n in self.items() if name not in dropped}
        passed_over = {**self.passed_over, **dropped}
        return Selection(rest, self.everything, passed_over, self.remarks, self.uncalled, all_layers=self.all_layers)

    @property
    def rows(self) -> list[SelectedLayer]:
        """The selected layers, then those passed over."""
        selected = [
            SelectedLayer(name, _type(n.module), *_size(n), output=n.is_output, note=self.remarks.get(name))
            for name, n in self.items()
        ]
        passed_over = self.passed_over.items()
        return selected + [SelectedLayer(name, _type(m), passed_over=reason) for name, (m, reason) in passed_over]

    def to_dict(self) -> Mapping[str, Any]:
        return {"layers": [asdict(row) for row in self.rows]}

    def tables(self) -> list[TextTable]:
        cells = [row.cells() for row in self.rows]
        return [TextTable(_HEADER, cells, left=len(_HEADER))] if cells else []

    def notes(self) -> list[str]:
        return [] if self.rows else ["(no layers)"]


def _type(module: nn.Module) -> str:
    return type(module).__name__.removeprefix("Parametrized")


def _size(neurons: Neurons) -> tuple[int | None, int | None, int | None]:
    """Return groups, neurons in each and their dimension; None for a lazy layer."""
    parts = neurons.parametrizations
    tensor = getattr(parts, "original", None) if len(parts) else neurons.tensor
    if tensor is None:  # of several originals one has the size of the weight
        tensor = max(parts.parameters(), key=Tensor.numel)
    if is_lazy(tensor):
        return None, None, None
    layout, shape = neurons.layout, tensor.shape
    groups, d = layout.groups * layout.parts, layout.dimension(shape)
    return groups, shape.numel() // max(groups * d, 1), d
