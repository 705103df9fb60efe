"""The config of a training, from flags, YAML, JSON or Python. None of this imports torch."""

from .config import Config
from .convert import Flag, apply, derive, flags, from_tree, load_file, to_json, to_tree, to_yaml
from .groups import Data, Energy, Gan, Loss, Model, Optimizer, Rotation, Schedule
from .values import ConfigError

__all__ = ["Config", "ConfigError", "Data", "Energy", "Flag", "Gan", "Loss", "Model", "Optimizer", "Rotation"]
__all__ += ["Schedule", "apply", "derive", "flags", "from_tree", "load_file", "to_json", "to_tree"]
__all__ += ["to_yaml"]
