"""The heads: softmax losses on angles with different margins (SphereNet, 3 and App. C).

Every head has class weights `weight` (C, d), computes the angles θ_j between an embedding x and the class weights, and
takes the softmax of

    f_j = s·g(θ_j) + b_j            for the other classes,
    f_y = s·margin(θ_y) + b_y       for the label y,

where s is the norm ‖x‖ of the embedding (``scale=None``) or a number.

================  ================================  =============================================  =============
head              g                                 margin(θ)                                      s
================  ================================  =============================================  =============
WSoftmaxLoss      any                               g(θ)                         (Eq. 10)          ‖x‖
GASoftmaxLoss     any                               (λ·g(θ) + ψ(θ)) / (1 + λ)    (Eq. 11)          ‖x‖ or s
ASoftmaxLoss      cosine                            the same                     (Eq. 11)          ‖x‖ or s
SSoftmaxLoss      any                               g(θ)                         (App. C)          s
AMSoftmaxLoss     cosine                            cos θ − m                                      s
ArcFaceLoss       cosine                            cos(θ + m)                                     s
================  ================================  =============================================  =============

SphereFacePlusLoss is ASoftmaxLoss plus the energy of the classes (MHE, Eq. 8); every head can add it. Heads whose
margin depends on the sample are in :mod:`.sample_margins`, those that change the other classes' logits in
:mod:`.other_logits`, those without a softmax in :mod:`.binary`.

ψ(θ) = g(mθ − kπ) − k·(g(0) − g(π)) with k = ⌊mθ/π⌋ continues g(mθ) so that it decreases up to θ = π. For the
cosine this is A-Softmax, for the linear g it is 1 − 2mθ/π.

At θ = 0 and θ = π the gradient is finite: dθ/dc is bounded (see :mod:`..layers.similarity`) and the cosine itself is
flat there. A zero embedding or class weight has cosine 0 with everything, and its angles get gradient 0; a cosine
logit with s = ‖x‖ is the inner product of x with a unit weight, whose gradient needs no angle.

Shapes: B batch, C classes, d embedding size. Angles and margins of angles are in radians.
"""

from __future__ import annotations

from typing import Any, Unpack

from torch import nn

from .._internal import checks
from .._internal.nearest import explain_keywords
from ..layers.sphere import SimilarityLike
from .binary import SphereFace2Loss, UniFaceLoss
from .embedding import CenterLoss
from .head_inputs import Annealing, HeadOptions, angular_margin
from .margins import MARGINS as MARGINS
from .margins import sphereface_annealing as sphereface_annealing
from .other_logits import CurricularFaceLoss, SphereFaceRLoss
from .sample_margins import AdaFaceLoss, ElasticFaceLoss, MagFaceLoss
from .softmax import AngularSoftmaxLoss as AngularSoftmaxLoss


class WSoftmaxLoss(AngularSoftmaxLoss):
    """Weight-normalized softmax (Eq. 10): f_j = ‖x‖·g(θ_j).

    Example:
        >>> import torch
        >>> loss = WSoftmaxLoss(10, 64, similarity="linear")
        >>> loss(torch.randn(32, 64), torch.randint(10, (32,))).shape
        torch.Size([])
    """

    @explain_keywords
    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        similarity: SimilarityLike = "cosine",
        **options: Unpack[HeadOptions],
    ) -> None:
        super().__init__(num_classes, embedding_size, similarity, annealing=None, **options)


class SSoftmaxLoss(AngularSoftmaxLoss):
    """Sphere-normalized softmax (App. C): f_j = s·g(θ_j); s from 10 to 70 works.

    Example:
        >>> import torch
        >>> loss = SSoftmaxLoss(10, 64, scale=30.0)
        >>> bool((loss.logits(torch.randn(32, 64)).abs() <= 30.001).all())
        True
    """

    @explain_keywords
    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        similarity: SimilarityLike = "cosine",
        scale: float = 30.0,
        **options: Unpack[HeadOptions],
    ) -> None:
        scale = checks.number("scale", scale)
        super().__init__(num_classes, embedding_size, similarity, None, scale, annealing=None, **options)


class GASoftmaxLoss(AngularSoftmaxLoss):
    """Generalized angular softmax (Eq. 11): the target's angle is multiplied by m, for any g.

    Args:
        margin: m, a real factor >= 1.
        scale: None for the norm of the embedding, or the length to which embeddings are scaled.
        annealing: see :class:`AngularSoftmaxLoss`.

    Example:
        >>> import torch
        >>> loss = GASoftmaxLoss(10, 64, similarity="linear", margin=4)
        >>> loss(torch.randn(32, 64), torch.randint(10, (32,))).isfinite(), loss.step
        (tensor(True), tensor(1))
    """

    @explain_keywords
    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        similarity: SimilarityLike = "linear",
        margin: float = 4,
        scale: float | None = None,
        annealing: Annealing = True,
        **options: Unpack[HeadOptions],
    ) -> None:
        m = checks.number("margin", margin, low=1.0, hint=" (a factor of the angle)")
        if m >= 4 and annealing is False:
            checks.warn_once(
                f"{type(self).__name__} with margin >= 4 and annealing=False rarely starts to learn: "
                "use annealing=True or a smaller margin"
            )
        super().__init__(num_classes, embedding_size, similarity, ("multiplicative", m), scale, annealing, **options)


class ASoftmaxLoss(GASoftmaxLoss):
    """Angular softmax, SphereFace: the cosine GA-Softmax (Eq. 11), annealing included.

    Example:
        >>> import torch
        >>> loss = ASoftmaxLoss(10, 64, margin=4)
        >>> loss(torch.randn(32, 64), torch.randint(10, (32,))).backward()
    """

    @explain_keywords
    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        margin: float = 4,
        scale: float | None = None,
        annealing: Annealing = True,
        **options: Unpack[HeadOptions],
    ) -> None:
        super().__init__(num_classes, embedding_size, "cosine", margin, scale, annealing, **options)


class SphereFacePlusLoss(ASoftmaxLoss):
    """SphereFace+ (MHE, Eq. 8): A-Softmax pulls samples to their class, the energy pushes the classes apart.

    It is :class:`ASoftmaxLoss` with ``energy_weight=1.0``; every other head takes ``energy_weight`` too.

    Example:
        >>> import torch
        >>> loss = SphereFacePlusLoss(10, 64)
        >>> loss(torch.randn(32, 64), torch.randint(10, (32,))).backward()
    """

    @explain_keywords
    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        margin: float = 4,
        scale: float | None = None,
        annealing: Annealing = True,
        **options: Unpack[HeadOptions],
    ) -> None:
        options.setdefault("energy_weight", 1.0)
        super().__init__(num_classes, embedding_size, margin, scale, annealing, **options)


class AMSoftmaxLoss(AngularSoftmaxLoss):
    """Additive margin softmax, CosFace: f_y = s·(cos θ_y − m), m a cosine in [0, 1].

    Example:
        >>> import torch
        >>> loss = AMSoftmaxLoss(10, 64)
        >>> loss(torch.randn(32, 64), torch.randint(10, (32,))).backward()
    """

    @explain_keywords
    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        margin: float = 0.35,
        scale: float = 30.0,
        **options: Unpack[HeadOptions],
    ) -> None:
        m = checks.number("margin", margin, low=0.0, high=1.0, hint=" (a difference of cosines)")
        scale = checks.number("scale", scale)
        super().__init__(num_classes, embedding_size, "cosine", ("additive_cosine", m), scale, None, **options)


class ArcFaceLoss(AngularSoftmaxLoss):
    """Additive angular margin: f_y = s·cos(θ_y + m), m in radians in [0, π).

    Example:
        >>> import torch
        >>> loss = ArcFaceLoss(10, 64)
        >>> loss(torch.randn(32, 64), torch.randint(10, (32,))).backward()
    """

    @explain_keywords
    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        margin: float = 0.5,
        scale: float = 64.0,
        **options: Unpack[HeadOptions],
    ) -> None:
        m = angular_margin(margin)
        scale = checks.number("scale", scale)
        super().__init__(num_classes, embedding_size, "cosine", ("additive_angle", m), scale, None, **options)


#: the name of a head in a config → the head
HEADS: dict[str, type[AngularSoftmaxLoss]] = {
    "w_softmax": WSoftmaxLoss,
    "ga_softmax": GASoftmaxLoss,
    "a_softmax": ASoftmaxLoss,
    "s_softmax": SSoftmaxLoss,
    "am_softmax": AMSoftmaxLoss,
    "arcface": ArcFaceLoss,
    "sphereface_plus": SphereFacePlusLoss,
    "adaface": AdaFaceLoss,
    "magface": MagFaceLoss,
    "curricularface": CurricularFaceLoss,
    "elasticface": ElasticFaceLoss,
    "sphereface_r": SphereFaceRLoss,
    "sphereface2": SphereFace2Loss,
    "uniface": UniFaceLoss,
}


def create(name: str, num_classes: int, embedding_size: int, **options: Any) -> nn.Module:
    """Make a head by name: one of :data:`HEADS`, a margin of :data:`MARGINS` with any similarity, or "center".

    Example:
        >>> create("arcface", 10, 64, margin=0.3)
        ArcFaceLoss(num_classes=10, embedding_size=64, margin=0.3, scale=64.0)
        >>> create("additive_angle", 10, 64, margin=0.3, similarity="linear", scale=30.0)
        AngularSoftmaxLoss(num_classes=10, embedding_size=64, margin=0.3, scale=30.0)
    """
    if name == "center":
        return CenterLoss(num_classes, embedding_size, **options)
    if name in HEADS:
        return HEADS[name](num_classes, embedding_size, **options)
    return AngularSoftmaxLoss(num_classes, embedding_size, margin=(name, options.pop("margin")), **options)
