"""Diagnose how redundant the neurons of a model are: one row per layer, as data and as a table."""

from .analysis import LISTED as LISTED
from .analysis import diagnose as diagnose
from .result import Diagnosis as Diagnosis
from .result import Row as Row
