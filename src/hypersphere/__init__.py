"""Neural networks that learn on hyperspheres: angles instead of inner products."""

from typing import TYPE_CHECKING

from ._internal.lazy import lazy
from .catalog import PUBLIC

__version__ = "0.1.0"

if TYPE_CHECKING:
    from . import cosine as cosine
    from . import data as data
    from . import diagnosis as diagnosis
    from . import energy as energy
    from . import estimators as estimators
    from . import functional as functional
    from . import fusion as fusion
    from . import geometry as geometry
    from . import inspection as inspection
    from . import integrations as integrations
    from . import layers as layers
    from . import losses as losses
    from . import models as models
    from . import openset as openset
    from . import optim as optim
    from . import orthogonal as orthogonal
    from . import pretrained as pretrained
    from . import recipes as recipes
    from . import recurrent as recurrent
    from . import report as report
    from . import rotation as rotation
    from . import selection as selection
    from . import similarity as similarity
    from . import train as train
    from .conversion import spherize as spherize
    from .diagnosis import Diagnosis as Diagnosis
    from .diagnosis import diagnose as diagnose
    from .energy import EnergyRegularizer as EnergyRegularizer
    from .energy import class_energy as class_energy
    from .energy import hyperspherical_energy as hyperspherical_energy
    from .energy import normalize_neurons as normalize_neurons
    from .energy import orthonormal_penalty as orthonormal_penalty
    from .energy import spread as spread
    from .fusion import fuse_bn as fuse_bn
    from .inspection import Inspection as Inspection
    from .inspection import inspect as inspect
    from .layers import SphereConv1d as SphereConv1d
    from .layers import SphereConv2d as SphereConv2d
    from .layers import SphereConv3d as SphereConv3d
    from .layers import SphereLinear as SphereLinear
    from .losses import AMSoftmaxLoss as AMSoftmaxLoss
    from .losses import AngularSoftmaxLoss as AngularSoftmaxLoss
    from .losses import ArcFaceLoss as ArcFaceLoss
    from .losses import ASoftmaxLoss as ASoftmaxLoss
    from .losses import CenterLoss as CenterLoss
    from .losses import GASoftmaxLoss as GASoftmaxLoss
    from .losses import SphereFacePlusLoss as SphereFacePlusLoss
    from .losses import SSoftmaxLoss as SSoftmaxLoss
    from .losses import WSoftmaxLoss as WSoftmaxLoss
    from .optim import OGD as OGD
    from .optim import param_groups as param_groups
    from .pretrained import from_pretrained as from_pretrained
    from .pretrained import save_pretrained as save_pretrained
    from .recurrent import SphereGRU as SphereGRU
    from .recurrent import SphereLSTM as SphereLSTM
    from .recurrent import SphereRNN as SphereRNN
    from .rotation import Resampler as Resampler
    from .rotation import add_task as add_task
    from .rotation import combine_tasks as combine_tasks
    from .rotation import count_parameters as count_parameters
    from .rotation import extract_rotations as extract_rotations
    from .rotation import load_rotations as load_rotations
    from .rotation import merge as merge
    from .rotation import merge_state_dict as merge_state_dict
    from .rotation import rotate as rotate
    from .rotation import rotation_penalty as rotation_penalty
    from .rotation import save_rotations as save_rotations
    from .rotation import use_task as use_task
    from .selection import Neurons as Neurons
    from .selection import select as select
    from .similarity import LearnableSigmoid as LearnableSigmoid
    from .train.inference.landscape import landscape as landscape
    from .train.inference.run import load_run as load_run
else:
    # Importing the package does not import torch. A type checker must not see this branch: with a module __getattr__
    # every misspelt name would pass. `make tables` reads the names from the branch above.
    __all__ = [name for name, home in PUBLIC.items() if home]
    __getattr__, __dir__ = lazy(__name__, PUBLIC)
