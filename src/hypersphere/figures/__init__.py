"""The figures of the three papers and of their theory: ``hypersphere figure NAME``.

>>> FIGURES["operators"].draw([]).svg[:4]
'<svg'
"""

from .curves import margins, operators, pair_energy
from .drawing import Drawing as Drawing
from .drawing import Figure as Figure
from .drawing import plain
from .growth import growth
from .holes import holes
from .ideas import ideas
from .lemmas import lemmas
from .neurons import regularized, weighted
from .phase import phase
from .rotation import rotation

#: name → figure; the catalog and docs/figures.md are made from it
FIGURES: dict[str, Figure] = {
    "ideas": Figure(plain(ideas), "the ideas of the three papers on a sphere", "SphereNet, MHE, OPT"),
    "operators": Figure(plain(operators), "what a neuron answers to an angle", "SphereNet, Fig. 2"),
    "margins": Figure(plain(margins), "what the angular losses make of the label's angle", "SphereNet, Eq. 11"),
    "pair_energy": Figure(plain(pair_energy), "the energy of a pair of neurons", "MHE, Eq. 1"),
    "sphere": Figure(regularized, "ten neurons moved by orthonormality, energy, half-space energy", "MHE, Fig. 1"),
    "weighted": Figure(weighted, "paths of neurons that weigh more than the others", "MHE, Fig. 5, 6"),
    "phase": Figure(phase, "two images with their phases swapped", "SphereNet, poster", "[IMAGE IMAGE]", (0, 2)),
    "rotation": Figure(plain(rotation), "what OPT keeps: angles between neurons, energy", "OPT, Fig. 1, 6"),
    "lemmas": Figure(lemmas, "condition numbers over a scale c, by automatic differentiation", "SphereNet, Lemma 1, 2"),
    "growth": Figure(growth, "the least energy of N neurons against its growth law", "MHE, Theorem 2"),
    "holes": Figure(holes, "holes between neurons against their expected size", "OPT, App. L"),
}
