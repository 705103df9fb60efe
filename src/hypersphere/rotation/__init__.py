"""Orthogonal over-parameterized training (OPT): fixed neurons, learned rotations, merged for inference.

- :func:`rotate` and :func:`merge`, :func:`merge_state_dict` without a model
- :class:`Resampler`: stochastic OPT
- :func:`add_task`, :func:`use_task`, :func:`combine_tasks`: several sets of rotations over one set of neurons
- :func:`extract_rotations`: the rotations between a network and a fine-tuned copy
- :func:`save_rotations`, :func:`load_rotations`
- :func:`count_parameters`, :func:`rotation_penalty`
- :mod:`.quantize`: rotations of vectors, for few bits a number

A config reads :mod:`hypersphere.rotation.rules` without torch; everything else is imported when it is first used.
"""

from typing import TYPE_CHECKING

from .._internal.lazy import lazy

if TYPE_CHECKING:
    from . import quantize as quantize
    from .counting import count_parameters as count_parameters
    from .extraction import ExtractedRotations as ExtractedRotations
    from .extraction import extract_rotations as extract_rotations
    from .merging import merge as merge
    from .merging import merge_state_dict as merge_state_dict
    from .penalty import rotation_penalty as rotation_penalty
    from .rotating import rotate as rotate
    from .saving import load_rotations as load_rotations
    from .saving import save_rotations as save_rotations
    from .stochastic import Resampler as Resampler
    from .tasks import add_task as add_task
    from .tasks import combine_tasks as combine_tasks
    from .tasks import use_task as use_task
else:
    _NAMES = {
        "counting": ["count_parameters"],
        "extraction": ["ExtractedRotations", "extract_rotations"],
        "merging": ["merge", "merge_state_dict"],
        "penalty": ["rotation_penalty"],
        "rotating": ["rotate"],
        "saving": ["load_rotations", "save_rotations"],
        "stochastic": ["Resampler"],
        "tasks": ["add_task", "combine_tasks", "use_task"],
    }
    _HOMES = {name: home for home, names in _NAMES.items() for name in names} | {"quantize": ""}
    __all__ = list(_HOMES)
    __getattr__, __dir__ = lazy(__name__, _HOMES)
