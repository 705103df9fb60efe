"""Points on spheres: separation and covering, minimal energies, bounds and expected values.

`dim` is the dimension of the neurons; the sphere is S^(dim−1). Angles are in radians.
"""

from .bounds import covering_lower_bound as covering_lower_bound
from .bounds import energy_integral as energy_integral
from .bounds import energy_lower_bound as energy_lower_bound
from .bounds import excess_energy as excess_energy
from .bounds import expected_energy as expected_energy
from .bounds import expected_holes as expected_holes
from .covering import covering_bounds as covering_bounds
from .covering import covering_radius as covering_radius
from .covering import hole_radii as hole_radii
from .minima import known_minimum as known_minimum
from .minimize import minimize_energy as minimize_energy
from .points import closest_pair as closest_pair
from .points import fibonacci_points as fibonacci_points
from .points import random_points as random_points
from .points import separation as separation
