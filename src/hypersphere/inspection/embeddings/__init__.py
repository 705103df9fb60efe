"""Questions about embeddings (N, d): one file for a question or two."""

from .answers import Answer as Answer
from .answers import EmbeddingInspection as EmbeddingInspection
from .comparing import compare_embeddings as compare_embeddings
from .inspecting import inspect_embeddings as inspect_embeddings
from .reading import holds_embeddings as holds_embeddings
from .transform import Transform as Transform
