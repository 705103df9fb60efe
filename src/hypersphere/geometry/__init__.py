"""The geometry behind the energy: separation and holes, minimal energies, and theory.

`dim` is the dimension of the neurons; the sphere is S^(dim−1). Angles are in radians.
"""

from .covering import covering_bounds as covering_bounds
from .covering import covering_radius as covering_radius
from .covering import hole_moment as hole_moment
from .covering import hole_radii as hole_radii
from .designs import design_error as design_error
from .designs import spherical_design as spherical_design
from .diversity import arc_cosine_kernel as arc_cosine_kernel
from .diversity import diversity_bound as diversity_bound
from .diversity import kernel_discrepancy as kernel_discrepancy
from .diversity import smallest_singular_value as smallest_singular_value
from .diversity import training_error_bound as training_error_bound
from .minima import known_minimum as known_minimum
from .minimize import minimize_energy as minimize_energy
from .points import closest_pair as closest_pair
from .points import fibonacci_points as fibonacci_points
from .points import random_points as random_points
from .points import separation as separation
from .theory import Growth as Growth
from .theory import cap_area as cap_area
from .theory import cap_constant as cap_constant
from .theory import circle_energy as circle_energy
from .theory import covering_lower_bound as covering_lower_bound
from .theory import energy_integral as energy_integral
from .theory import energy_lower_bound as energy_lower_bound
from .theory import excess_energy as excess_energy
from .theory import excess_over as excess_over
from .theory import expected_energy as expected_energy
from .theory import expected_hole_moment as expected_hole_moment
from .theory import expected_holes as expected_holes
from .theory import facet_constant as facet_constant
from .theory import growth_law as growth_law
from .theory import log_energy_bounds as log_energy_bounds
