"""Diagnose how redundant the neurons of a model are: one row per layer, as data and as a table."""

from .analysis import diagnose as diagnose
from .pairs import LISTED as LISTED
from .result import Diagnosis as Diagnosis
from .result import Row as Row
