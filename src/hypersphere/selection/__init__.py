"""Select the tensors of a model that hold neurons, and find its output layer."""

from .layouts import Layout, from_neuron_rows, is_transformers_conv1d, neuron_rows
from .neurons import Neurons
from .selecting import (
    Spec,
    Specs,
    as_list,
    is_loss_head,
    matches,
    no_layer_error,
    select,
    select_strictly,
    select_to_change,
    uncalled_linears,
    unwrapped,
)

__all__ = [
    "Layout",
    "Neurons",
    "Spec",
    "Specs",
    "as_list",
    "from_neuron_rows",
    "is_transformers_conv1d",
    "is_loss_head",
    "matches",
    "neuron_rows",
    "no_layer_error",
    "select",
    "select_strictly",
    "select_to_change",
    "uncalled_linears",
    "unwrapped",
]
