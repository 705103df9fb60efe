"""Neural networks that learn on hyperspheres: angles instead of inner products."""

from typing import TYPE_CHECKING

from ._internal.catalog import PUBLIC
from ._internal.lazy import lazy

__version__ = "0.1.0"

if TYPE_CHECKING:
    from . import data as data
    from . import energy as energy
    from . import geometry as geometry
    from . import inspection as inspection
    from . import integrations as integrations
    from . import layers as layers
    from . import losses as losses
    from . import models as models
    from . import neurons as neurons
    from . import openset as openset
    from . import optim as optim
    from . import orthogonal as orthogonal
    from . import report as report
    from . import rotation as rotation
    from . import train as train
    from .energy import EnergyRegularizer as EnergyRegularizer
    from .energy import class_energy as class_energy
    from .energy import hyperspherical_energy as hyperspherical_energy
    from .energy import normalize_neurons as normalize_neurons
    from .energy import spread as spread
    from .inspection import diagnose as diagnose
    from .inspection import inspect as inspect
    from .layers import LearnableSigmoid as LearnableSigmoid
    from .layers import SphereConv1d as SphereConv1d
    from .layers import SphereConv2d as SphereConv2d
    from .layers import SphereConv3d as SphereConv3d
    from .layers import SphereGRU as SphereGRU
    from .layers import SphereLinear as SphereLinear
    from .layers import SphereLSTM as SphereLSTM
    from .layers import SphereRNN as SphereRNN
    from .layers import fuse_bn as fuse_bn
    from .layers import similarity as similarity
    from .layers import spherize as spherize
    from .losses import AdaFaceLoss as AdaFaceLoss
    from .losses import AMSoftmaxLoss as AMSoftmaxLoss
    from .losses import ArcFaceLoss as ArcFaceLoss
    from .losses import ASoftmaxLoss as ASoftmaxLoss
    from .losses import CurricularFaceLoss as CurricularFaceLoss
    from .losses import ElasticFaceLoss as ElasticFaceLoss
    from .losses import EmbeddingRegularizer as EmbeddingRegularizer
    from .losses import GASoftmaxLoss as GASoftmaxLoss
    from .losses import MagFaceLoss as MagFaceLoss
    from .losses import SphereFace2Loss as SphereFace2Loss
    from .losses import SphereFacePlusLoss as SphereFacePlusLoss
    from .losses import SphereFaceRLoss as SphereFaceRLoss
    from .losses import SSoftmaxLoss as SSoftmaxLoss
    from .losses import UniFaceLoss as UniFaceLoss
    from .losses import WSoftmaxLoss as WSoftmaxLoss
    from .losses import functional as functional
    from .neurons import select as select
    from .optim import OGD as OGD
    from .optim import Hyperball as Hyperball
    from .optim import Pion as Pion
    from .optim import param_groups as param_groups
    from .rotation import Resampler as Resampler
    from .rotation import merge as merge
    from .rotation import quantize as quantize
    from .rotation import rotate as rotate
else:
    # Importing the package does not import torch. A type checker must not see this branch: with a module __getattr__
    # every misspelt name would pass. `make tables` reads the names from the branch above.
    __all__ = [name for name, home in PUBLIC.items() if home]
    __getattr__, __dir__ = lazy(__name__, PUBLIC)
