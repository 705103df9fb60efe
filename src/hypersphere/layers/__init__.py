"""Layers that compare by angle instead of inner product (SphereNet)."""

from . import similarity as similarity
from .conversion import spherize as spherize
from .fusion import fuse_bn as fuse_bn
from .recurrent import SphereGRU as SphereGRU
from .recurrent import SphereLSTM as SphereLSTM
from .recurrent import SphereRNN as SphereRNN
from .similarity import LearnableSigmoid as LearnableSigmoid
from .sphere import SphereConv1d as SphereConv1d
from .sphere import SphereConv2d as SphereConv2d
from .sphere import SphereConv3d as SphereConv3d
from .sphere import SphereLinear as SphereLinear
from .sphere import SphereOptions as SphereOptions
from .sphere import sphere_conv1d as sphere_conv1d
from .sphere import sphere_conv2d as sphere_conv2d
from .sphere import sphere_conv3d as sphere_conv3d
from .sphere import sphere_linear as sphere_linear
