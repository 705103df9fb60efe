"""Select the tensors of a model that hold neurons, and find its output layers.

- :mod:`hypersphere.neurons.selecting`: :func:`select`, and what verbs need of it
- :mod:`hypersphere.neurons.rules`: what names, types and the model's own methods tell
- :mod:`hypersphere.neurons.tracing`: what a forward pass tells
- :mod:`hypersphere.neurons.layouts`: how weights hold neurons
"""

from .layouts import Layout, from_neuron_rows, is_transformers_conv1d, neuron_rows
from .matching import Spec, Specs, as_list, matches
from .neurons import Neurons
from .rules import is_loss_head, uncalled_linears, unknown_weights, unwrapped
from .selecting import check_names, kept_output, no_layer_error, select, select_to_change
from .table import Selection
from .tracing import arguments_of

__all__ = [
    "Layout",
    "Neurons",
    "Selection",
    "Spec",
    "Specs",
    "arguments_of",
    "as_list",
    "check_names",
    "from_neuron_rows",
    "is_loss_head",
    "is_transformers_conv1d",
    "kept_output",
    "matches",
    "neuron_rows",
    "no_layer_error",
    "select",
    "select_to_change",
    "uncalled_linears",
    "unknown_weights",
    "unwrapped",
]
