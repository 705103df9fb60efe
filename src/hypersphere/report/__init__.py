"""Charts of results."""

from .._internal.safe_files import write_text
from .dotplot import dot_plot
from .linechart import line_chart

__all__ = ["dot_plot", "line_chart", "write_text"]
