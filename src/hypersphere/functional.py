"""All pure functions, like torch.nn.functional."""

from .cosine import unit as unit
from .energy import orthonormal as orthonormal
from .energy.hyperspherical import class_energy as class_energy
from .energy.hyperspherical import hyperspherical_energy as hyperspherical_energy
from .layers import sphere_conv1d as sphere_conv1d
from .layers import sphere_conv2d as sphere_conv2d
from .layers import sphere_conv3d as sphere_conv3d
from .layers import sphere_linear as sphere_linear
from .losses.margins import additive_angle as additive_angle
from .losses.margins import additive_cosine as additive_cosine
from .losses.margins import multiplicative as multiplicative
from .similarity import angle as angle
from .similarity import cosine as cosine
from .similarity import linear as linear
from .similarity import sigmoid as sigmoid
