"""The figures of the three papers and of their theory: ``hypersphere figure NAME``.

>>> FIGURES["operators"].draw([]).svg[:4]
'<svg'
"""

from .curves import heads, margins, operators, pair_energy
from .drawing import Drawing as Drawing
from .drawing import Figure as Figure
from .drawing import plain
from .faces import identification, roc
from .features import features3d, imbalance
from .generated import generated
from .growth import growth
from .holes import holes
from .ideas import ideas
from .lemmas import depth, lemmas
from .neurons import regularized, weighted
from .phase import phase
from .rotation import rotation
from .runs import convergence, energy, learned_k, sweep

#: name → figure; the catalog and docs/figures.md are made from it
FIGURES: dict[str, Figure] = {
    "ideas": Figure(plain(ideas), "the ideas of the three papers on a sphere", "SphereNet, MHE, OPT"),
    "operators": Figure(plain(operators), "similarity functions g(θ)", "SphereNet, Fig. 2"),
    "margins": Figure(plain(margins), "target logit of each margin", "SphereNet, Eq. 11"),
    "heads": Figure(plain(heads), "target logit of the heads since 2020", "docs/losses.md"),
    "pair_energy": Figure(plain(pair_energy), "the energy of a pair of neurons", "MHE, Eq. 1"),
    "sphere": Figure(regularized, "ten neurons moved by orthonormality, energy, half-space energy", "MHE, Fig. 1"),
    "weighted": Figure(weighted, "paths of neurons that weigh more than the others", "MHE, Fig. 5, 6"),
    "phase": Figure(
        phase, "two images with phases or magnitudes swapped or random", "SphereNet, 1, poster", "[IMAGE IMAGE]", (0, 2)
    ),
    "rotation": Figure(plain(rotation), "what OPT keeps: angles between neurons, energy", "OPT, Fig. 1, 6"),
    "lemmas": Figure(lemmas, "condition numbers over a scale c, by automatic differentiation", "SphereNet, Lemma 1, 2"),
    "depth": Figure(depth, "condition numbers of N layers whose weights are scaled by c", "SphereNet, 2.3"),
    "growth": Figure(growth, "the least energy of N neurons against its growth law", "MHE, Theorem 2"),
    "holes": Figure(holes, "holes between neurons against their expected size", "OPT, App. L"),
    "convergence": Figure(
        convergence,
        "accuracy, error and loss of runs over the steps",
        "SphereNet, Fig. 3, 5",
        "RUN [RUN ...]",
        (1, None),
    ),
    "k": Figure(learned_k, "histograms of the learned k of each layer", "SphereNet, Fig. 4", "RUN", (1, 1)),
    "lambda": Figure(
        sweep, "error over the weight of the energy", "MHE, Fig. 3", "RUN|results/TABLE.json ...", (1, None)
    ),
    "energy": Figure(
        energy,
        "energy (s = 1) and error of runs over the steps",
        "OPT, Fig. 6, 23",
        "RUN [RUN ...]",
        (1, None),
    ),
    "imbalance": Figure(
        imbalance, "2-D features and classifier neurons of runs", "MHE, Fig. 4, 8", "RUN [RUN ...]", (1, None)
    ),
    "features3d": Figure(
        features3d, "3-D features and classifier neurons of runs", "OPT, Fig. 7", "RUN [RUN ...]", (1, None)
    ),
    "generated": Figure(generated, "images that generators make", "MHE, Fig. 7", "RUN [RUN ...]", (1, None)),
    "identification": Figure(
        identification, "identification rates of runs over distractors", "MHE, Fig. 9", "RUN [RUN ...]", (1, None)
    ),
    "roc": Figure(roc, "ROC curves of runs on pairs", "MHE, Fig. 10", "RUN [RUN ...] [PAIRS.txt]", (1, None)),
}
