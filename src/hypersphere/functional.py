"""All pure functions, like torch.nn.functional."""

from .cosine import unit
from .energy import orthonormal
from .energy.hyperspherical import class_energy, hyperspherical_energy
from .layers import sphere_conv1d, sphere_conv2d, sphere_conv3d, sphere_linear
from .losses.margins import additive_angle, additive_cosine, multiplicative
from .similarity import angle, cosine, linear, sigmoid

__all__ = [
    "additive_angle",
    "additive_cosine",
    "angle",
    "class_energy",
    "cosine",
    "hyperspherical_energy",
    "linear",
    "multiplicative",
    "orthonormal",
    "sigmoid",
    "sphere_conv1d",
    "sphere_conv2d",
    "sphere_conv3d",
    "sphere_linear",
    "unit",
]
