"""Train from a config: ``fit(config)`` is ``hypersphere train``, ``load_run(path)`` loads what it trained.

A config needs no torch; everything else is imported when it is first used.
"""

from typing import TYPE_CHECKING

from .._internal.lazy import lazy
from .config import Config as Config
from .config import ConfigError as ConfigError
from .config import Data as Data
from .config import Energy as Energy
from .config import Gan as Gan
from .config import Loss as Loss
from .config import Model as Model
from .config import Optimizer as Optimizer
from .config import Rotation as Rotation
from .config import Schedule as Schedule
from .config import derive as derive
from .config import load_file as load_file
from .memory import keep_memory as keep_memory

if TYPE_CHECKING:
    from .engine import TrainingError as TrainingError
    from .engine import fit as fit
    from .inference.landscape import Landscape as Landscape
    from .inference.landscape import landscape as landscape
    from .inference.run import Run as Run
    from .inference.run import load_run as load_run
    from .results import Result as Result
else:
    _HOME = {
        "TrainingError": "engine",
        "fit": "engine",
        "Result": "results",
        "Landscape": "inference.landscape",
        "Run": "inference.run",
        "landscape": "inference.landscape",
        "load_run": "inference.run",
    }
    __all__ = [
        *("Config", "ConfigError", "Data", "Energy", "Gan", "Loss", "Model", "Optimizer", "Rotation", "Schedule"),
        *("derive", "keep_memory", "load_file", *_HOME),
    ]
    __getattr__, __dir__ = lazy(__name__, _HOME)
