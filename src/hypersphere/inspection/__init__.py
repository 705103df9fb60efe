"""Inspect model files from anywhere: which layers waste neurons, and what changed between two files."""

from .comparing import Change as Change
from .comparing import Comparison as Comparison
from .comparing import compare as compare
from .diagnosis import Diagnosis as Diagnosis
from .diagnosis import diagnose as diagnose
from .inspecting import inspect as inspect
from .result import Inspection as Inspection
from .rows import Layer as Layer
from .rows import Verdict as Verdict
