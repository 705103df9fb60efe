"""Charts of results."""

from .._internal.safe_files import write_text
from .linechart import line_chart

__all__ = ["line_chart", "write_text"]
