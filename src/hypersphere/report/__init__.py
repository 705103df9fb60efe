"""Pictures and pages made from results."""

from .linechart import line_chart

__all__ = ["line_chart"]
