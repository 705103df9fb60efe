"""Train from a config: ``fit(config)`` is ``hypersphere train``, ``load_run(path)`` loads what it trained.

A config needs no torch; everything else is imported when it is first used.
"""

from typing import TYPE_CHECKING

from .._internal.lazy import lazy
from .config import (
    Config,
    ConfigError,
    Data,
    Embedding,
    Energy,
    Gan,
    Loss,
    Model,
    Optimizer,
    Rotation,
    Schedule,
    derive,
    load_file,
)
from .memory import keep_memory

__all__ = ["Config", "ConfigError", "Data", "Embedding", "Energy", "Gan", "Landscape", "Loss", "Model", "Optimizer"]
__all__ += ["Result", "Rotation", "Run", "Schedule", "TrainingError", "TrainingTask", "derive", "fit", "keep_memory"]
__all__ += ["landscape", "load_file", "load_run", "register_task"]

if TYPE_CHECKING:
    from . import recipes as recipes
    from .engine import TrainingError, fit
    from .inference.landscape import Landscape, landscape
    from .inference.run import Run, load_run
    from .results import Result
    from .tasks import TrainingTask, register_task
else:
    _HOME = {"recipes": "", "Result": "results"} | dict.fromkeys(("TrainingTask", "register_task"), "tasks")
    _HOME |= dict.fromkeys(("TrainingError", "fit"), "engine") | dict.fromkeys(("Run", "load_run"), "inference.run")
    _HOME |= dict.fromkeys(("Landscape", "landscape"), "inference.landscape")
    __getattr__, __dir__ = lazy(__name__, _HOME)
