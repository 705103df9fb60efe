"""The config of a training, from flags, YAML, JSON or Python. None of this imports torch."""

from .config import Config
from .convert import Flag, apply, derive, flags, from_tree, load_file, to_json, to_tree, to_yaml
from .groups import Data, Embedding, Energy, Gan, Loss, Model, Optimizer, Rotation, Schedule
from .values import ConfigError

__all__ = ["Config", "ConfigError", "Data", "Embedding", "Energy", "Flag", "Gan", "Loss", "Model", "Optimizer"]
__all__ += ["Rotation", "Schedule", "apply", "derive", "flags", "from_tree", "load_file", "to_json", "to_tree"]
__all__ += ["to_yaml"]
