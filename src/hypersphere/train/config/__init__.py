"""The config of a training, from flags, YAML, JSON or Python. None of this imports torch."""

from .config import Config as Config
from .convert import Flag as Flag
from .convert import apply as apply
from .convert import derive as derive
from .convert import flags as flags
from .convert import from_tree as from_tree
from .convert import load_file as load_file
from .convert import print_config as print_config
from .convert import to_json as to_json
from .convert import to_tree as to_tree
from .convert import to_yaml as to_yaml
from .groups import Data as Data
from .groups import Energy as Energy
from .groups import Gan as Gan
from .groups import Loss as Loss
from .groups import Model as Model
from .groups import Optimizer as Optimizer
from .groups import Rotation as Rotation
from .groups import Schedule as Schedule
from .values import ConfigError as ConfigError
