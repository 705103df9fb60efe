"""What `inspect` returns for embeddings: an answer to each question, as data, a table and words."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ..._internal.tables import NOTHING, TextTable
from ...train.storage.records import finite
from ..results import RowsResult
from .transform import Transform

_SHOWN = 6  # indices of a row of the table
VERDICTS = ("question", "answer")
FIGURES = ("question", "measured", "uniform", "rows")


@dataclass(frozen=True)
class Answer:
    """The answer to one question about embeddings.

    Attributes:
        question: such as "duplicates?".
        verdict: in words, with what to do.
        is_fine: whether there is nothing to do.
        figure: the number behind the verdict, with its name.
        uniform: the same of uniform points of the same dimension, if it can be compared.
        indices: rows of the file to act on.
        details: everything that was measured.
    """

    question: str
    verdict: str
    is_fine: bool
    figure: str
    uniform: str = NOTHING
    indices: tuple[int, ...] = ()
    details: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return everything for JSON."""
        return finite(
            {
                **{"question": self.question, "verdict": self.verdict, "is_fine": self.is_fine},
                **{"figure": self.figure, "uniform": self.uniform, "indices": list(self.indices)},
                **self.details,
            }
        )


@dataclass(frozen=True, repr=False)
class EmbeddingInspection(RowsResult[Answer]):
    """A sequence of answers; str() is a table, :meth:`to_dict` is for JSON."""

    path: str = ""
    shape: tuple[int, int] = (0, 0)
    dtype: str = ""
    transform: Transform | None = None
    """The best map of the last question; None if there is none."""
    pictures: dict[str, Any] = field(default_factory=dict)
    """What the page draws."""

    @property
    def verdict(self) -> list[str]:
        """The verdict of each question, a line each."""
        return [f"{row.question} {row.verdict}" for row in self.rows]

    def __getitem__(self, index: Any) -> Any:
        """Return an answer by its place, or by its question: ``result["hubs?"]``."""
        if not isinstance(index, str):
            return super().__getitem__(index)
        for row in self.rows:
            if row.question.rstrip("?") == index.rstrip("?"):
                return row
        raise KeyError(f"{index!r}: the questions are {', '.join(row.question for row in self.rows)}")

    def to_dict(self) -> dict[str, Any]:
        """Return everything for JSON."""
        return {
            **{"path": self.path, "shape": list(self.shape), "dtype": self.dtype},
            "verdict": self.verdict,
            "questions": [row.to_dict() for row in self.rows],
        }

    def tables(self, listed: int = _SHOWN) -> list[TextTable]:
        """Return the verdicts, then the figures with the first rows to act on."""
        verdicts = [[x.question, x.verdict] for x in self.rows]
        figures = [[x.question, x.figure, x.uniform, _some(x.indices, listed)] for x in self.rows]
        shown = [i for i, name in enumerate(FIGURES) if self._has_uniform or name != "uniform"]
        figures = [[line[i] for i in shown] for line in figures]
        return [
            TextTable(VERDICTS, verdicts, len(VERDICTS), self.title),
            TextTable([FIGURES[i] for i in shown], figures, len(shown)),
        ]

    @property
    def _has_uniform(self) -> bool:
        return any(row.uniform != NOTHING for row in self.rows)

    @property
    def title(self) -> str:
        return f"{self.path or 'embeddings'} ({self.shape[0]:,} × {self.shape[1]}, {self.dtype})"

    def notes(self) -> list[str]:
        """Return the legend; the verdicts are a table."""
        return self.legend()

    def legend(self) -> list[str]:
        if not self._has_uniform:
            return []
        return [
            "uniform: the same figure of uniform points of the sphere of this dimension",
            "recall@10: share of the 10 nearest by cosine that stay among the 10 nearest; ~: of a sample of the rows, "
            "drawn with a fixed seed",
        ]


def count(number: int, what: str) -> str:
    """Return such as "1 row", "2 rows"."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def _some(indices: tuple[int, ...], listed: int) -> str:
    more = f" +{len(indices) - listed}" if len(indices) > listed else ""
    return " ".join(map(str, indices[:listed])) + more
