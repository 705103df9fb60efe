"""The energy of neurons on the sphere: the function, the regularizer, and better initial weights."""

from .hyperspherical import class_energy as class_energy
from .hyperspherical import group_energy as group_energy
from .hyperspherical import hyperspherical_energy as hyperspherical_energy
from .initialization import normalize_neurons as normalize_neurons
from .initialization import spread as spread
from .measures import REGULARIZERS as REGULARIZERS
from .measures import orthonormal as orthonormal
from .regularizer import EnergyRegularizer as EnergyRegularizer
