"""Charts and pages of results."""

from typing import TYPE_CHECKING

from .._internal.lazy import lazy
from .._internal.safe_files import write_text
from .chart import Chart
from .linechart import line_chart
from .page import Page
from .rows import bar_chart, dot_plot

if TYPE_CHECKING:
    from .run_page import report_runs as report_runs
else:
    __getattr__, __dir__ = lazy(__name__, {"report_runs": "run_page"})  # needs torch

__all__ = ["Chart", "Page", "bar_chart", "dot_plot", "line_chart", "report_runs", "write_text"]
