"""Select the tensors of a model that hold neurons, and find its output layers.

- :mod:`hypersphere.neurons.selecting`: :func:`select`, and what verbs need of it
- :mod:`hypersphere.neurons.eligible`: which layers of a model hold neurons
- :mod:`hypersphere.neurons.stored`: which tensors of a state_dict or a file hold neurons
- :mod:`hypersphere.neurons.output`: which layers are the output
- :mod:`hypersphere.neurons.tracing`: what a forward pass tells
- :mod:`hypersphere.neurons.layouts`: how weights hold neurons
- :mod:`hypersphere.neurons.heads`: which of them are a head of attention
"""

from .eligible import is_loss_head, unknown_weights, unwrapped
from .heads import head_layouts
from .layouts import Layout, from_neuron_rows, is_transformers_conv1d, neuron_rows
from .matching import Spec, Specs, as_list, matches
from .neurons import Neurons
from .selecting import check_names, kept_output, no_layer_error, select, select_to_change
from .selection import Selection
from .stored import StoredNeurons, find_stored
from .tracing import arguments_of

__all__ = ["Layout", "Neurons", "Selection", "Spec", "Specs", "StoredNeurons", "arguments_of", "as_list", "check_names"]
__all__ += ["find_stored", "from_neuron_rows", "head_layouts", "is_loss_head", "is_transformers_conv1d", "kept_output"]
__all__ += ["matches", "neuron_rows", "no_layer_error", "select", "select_to_change", "unknown_weights", "unwrapped"]
