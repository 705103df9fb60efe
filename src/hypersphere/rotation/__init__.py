"""Orthogonal over-parameterized training (OPT): fixed neurons, learned rotations, merged for inference.

- :func:`rotate` and :func:`merge`, :func:`merge_state_dict` without a model
- :class:`Resampler`: stochastic OPT
- :func:`add_task`, :func:`use_task`: several sets of rotations over one set of neurons
- :func:`save_rotations`, :func:`load_rotations`
- :func:`count_parameters`, :func:`rotation_penalty`
"""

from .measuring import count_parameters, rotation_penalty
from .merging import merge_state_dict
from .saving import load_rotations, save_rotations
from .stochastic import Resampler
from .tasks import add_task, use_task
from .verbs import merge, rotate

__all__ = [
    "Resampler",
    "add_task",
    "count_parameters",
    "load_rotations",
    "merge",
    "merge_state_dict",
    "rotate",
    "rotation_penalty",
    "save_rotations",
    "use_task",
]
