"""Model files: one module per format. :func:`open_model` reads any of them, and folders of them."""

from .folders import open_model as open_model
from .stored_tensors import Opened as Opened
from .stored_tensors import StoredTensor as StoredTensor
from .stored_tensors import Tensors as Tensors
