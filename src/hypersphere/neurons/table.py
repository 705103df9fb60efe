"""The result of select: a dict of layers, which prints as a table with the layers that were passed over."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import nn
from torch.nn.parameter import is_lazy

from .._internal.text import escaped
from .neurons import Neurons


class Selection(dict[str, Neurons]):
    """The selected neurons by layer name; str() is a table, :meth:`rows` is for JSON.

    Args:
        found: what was selected.
        everything: all layers with neurons.
        passed_over: reasons by the names of all other layers.
        notes: remarks on layers, by name.
        uncalled: layers whose weights are read without calling the layer.
    """

    def __init__(
        self,
        found: Mapping[str, Neurons],
        everything: Mapping[str, Neurons],
        passed_over: Mapping[str, tuple[nn.Module, str]],
        notes: Mapping[str, str],
        uncalled: Iterable[str],
    ) -> None:
        super().__init__(found)
        self.everything, self.passed_over, self.notes = everything, passed_over, notes
        self.uncalled = frozenset(uncalled)

    def keep(self, wanted: Callable[[str, Neurons], bool], reason: str) -> Selection:
        """Return the selection without the layers that `wanted` refuses, which are passed over for this reason."""
        dropped = {name: (n.module, reason) for name, n in self.items() if not wanted(name, n)}
        kept = {name: n for name, n in self.items() if name not in dropped}
        return Selection(kept, self.everything, {**self.passed_over, **dropped}, self.notes, self.uncalled)

    def rows(self) -> list[dict[str, Any]]:
        """Return one dict per layer, ready for JSON: the selected layers, then those passed over."""
        rows: list[dict[str, Any]] = []
        for name, neurons in self.items():
            groups, n, d = _size(neurons)
            row = {"layer": name, "type": _type(neurons.module), "groups": groups, "neurons": n, "dimension": d}
            note = self.notes.get(name)
            rows.append(row | {"output": neurons.is_output, "passed_over": None, "note": note})
        for name, (module, reason) in self.passed_over.items():
            row = {"layer": name, "type": _type(module), "groups": None, "neurons": None, "dimension": None}
            rows.append(row | {"output": False, "passed_over": reason, "note": None})
        return rows

    def __repr__(self) -> str:
        header = ("layer", "type", "neurons × dim", "output", "")
        lines = [header]
        for row in self.rows():
            size = "" if row["passed_over"] else "?"
            if row["neurons"]:
                groups = f"{row['groups']}·" if row["groups"] > 1 else ""
                size = f"{groups}{row['neurons']} × {row['dimension']}"
            remark = f"passed over: {row['passed_over']}" if row["passed_over"] else row["note"] or ""
            lines.append((escaped(row["layer"]) or "(root)", row["type"], size, "yes" if row["output"] else "", remark))
        if len(lines) == 1:
            return "(no layers)"
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        return "\n".join(
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
        )

    __str__ = __repr__


def _type(module: nn.Module) -> str:
    return type(module).__name__.removeprefix("Parametrized")


def _size(neurons: Neurons) -> tuple[int | None, int | None, int | None]:
    """Return groups, neurons in each and their dimension; None for a lazy layer."""
    parts = neurons.parametrizations
    tensor = getattr(parts, "original", None) if len(parts) else neurons.tensor
    if tensor is None:  # of several originals one has the size of the weight
        tensor = max(parts.parameters(), key=lambda each: each.numel())
    if is_lazy(tensor):
        return None, None, None
    layout, shape = neurons.layout, tensor.shape
    groups, d = layout.groups * layout.parts, layout.dimension(shape)
    return groups, shape.numel() // max(groups * d, 1), d
