"""How redundant is a network: diagnose models and state_dicts, inspect and compare files of any format; embeddings."""

from .comparing import Change as Change
from .comparing import Comparison as Comparison
from .comparing import compare as compare
from .diagnosing import diagnose as diagnose
from .embeddings import EmbeddingInspection as EmbeddingInspection
from .embeddings import compare_embeddings as compare_embeddings
from .inspecting import inspect as inspect
from .layer_report import LayerReport as LayerReport
from .layer_report import Verdict as Verdict
from .results import Diagnosis as Diagnosis
from .results import Inspection as Inspection
