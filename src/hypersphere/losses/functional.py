"""All pure functions, like torch.nn.functional."""

from ..energy import orthonormal as orthonormal
from ..energy.hyperspherical import class_energy as class_energy
from ..energy.hyperspherical import hyperspherical_energy as hyperspherical_energy
from ..layers.cosine import unit as unit
from ..layers.similarity import angle as angle
from ..layers.similarity import cosine as cosine
from ..layers.similarity import linear as linear
from ..layers.similarity import sigmoid as sigmoid
from ..layers.sphere import sphere_conv1d as sphere_conv1d
from ..layers.sphere import sphere_conv2d as sphere_conv2d
from ..layers.sphere import sphere_conv3d as sphere_conv3d
from ..layers.sphere import sphere_linear as sphere_linear
from .evenness import alignment as alignment
from .evenness import gor as gor
from .evenness import hug as hug
from .evenness import koleo as koleo
from .evenness import uniformity as uniformity
from .margins import additive_angle as additive_angle
from .margins import additive_cosine as additive_cosine
from .margins import multiplicative as multiplicative
from .slices import sigreg as sigreg
from .slices import sphere_uniformity as sphere_uniformity
