"""Linear models that compare by angle, as scikit-learn estimators: logistic regression and SVM (SphereNet, 2.4).

The score of class c for an input x is

    f_c(x) = ‖w_c‖·g(θ(w_c, x)) + b_c,

where g is a similarity of the angle (Eq. 2 to 4) and w_c a row of ``coef_``. For the cosine it is ⟨w_c, x/‖x‖⟩ + b_c,
the linear model on inputs of unit length.

Shapes: n samples, d features, K class weights.
"""

from __future__ import annotations

import math
import warnings
from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .._internal import checks
from .._internal.modules import install_command
from ..layers.cosine import project, unit
from ..layers.similarity import angle, resolve
from ..layers.sphere import SimilarityLike
from ..losses.margins import MARGINS

try:
    from scipy.optimize import minimize  # type: ignore[import-untyped]
    from sklearn.base import BaseEstimator, ClassifierMixin  # type: ignore[import-untyped]
    from sklearn.exceptions import ConvergenceWarning  # type: ignore[import-untyped]
    from sklearn.utils.class_weight import compute_class_weight  # type: ignore[import-untyped]
    from sklearn.utils.multiclass import check_classification_targets  # type: ignore[import-untyped]
    from sklearn.utils.validation import (  # type: ignore[import-untyped]
        _check_sample_weight,
        check_is_fitted,
        validate_data,
    )
except ImportError as error:
    raise ImportError(
        f"hypersphere.integrations.sklearn needs scikit-learn >= 1.6: {install_command('sklearn')} ({error})"
    ) from error

__all__ = ["SphereClassifier", "SphereSVC"]
Similarity = Callable[[Tensor], Tensor]
_ROUNDING = 1e-7  # a line search compares values, whose rounding (1e-16) hides gradients of about its root


class _SphereLinearModel(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """What both estimators share; a subclass has the loss and the number of class weights."""

    similarity: SimilarityLike
    k: float
    margin: float
    scale: float | None
    C: float
    fit_intercept: bool
    class_weight: Mapping[Any, float] | str | None
    max_iter: int
    tol: float

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Fit to X (n, d) and labels y (n,), with weights of the samples (n,)."""
        g = self._check_parameters()
        X, y = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(y)
        self.classes_, labels = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"y must have at least two classes, got one class: {self.classes_[0]!r}")
        weight = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        weight = weight * self._class_weights(y, labels, weight)[labels]
        if not weight.sum() > 0:
            raise ValueError("sample_weight and class_weight leave no sample: all weights are 0")
        x, target = unit(torch.tensor(X)), torch.from_numpy(labels)  # X may be read-only
        share = torch.from_numpy(weight / weight.sum())
        start = self._start(x, target, share)
        decay = 0.0 if self.scale is not None else 1 / (self.C * weight.sum())

        def objective(numbers: Any) -> tuple[float, Any]:
            flat = torch.from_numpy(numbers).requires_grad_()
            coef, intercept = self._unflatten(flat, *start.shape)
            losses = self._losses(x, target, coef, intercept, g)
            value = share @ losses + decay / 2 * coef.square().sum()
            (gradient,) = torch.autograd.grad(value, flat)
            return value.item(), gradient.numpy()

        first = np.concatenate([start.numpy().ravel(), np.zeros(len(start) * self.fit_intercept)])
        options = {"maxiter": self.max_iter, "maxfun": 20 * self.max_iter, "gtol": self.tol, "ftol": 0.0, "maxls": 50}
        result = minimize(objective, first, jac=True, method="L-BFGS-B", options=options)
        largest = np.abs(result.jac).max()
        if largest > max(self.tol, _ROUNDING):
            reason = "raise max_iter"
            if result.nit < self.max_iter:
                reason = "no lower point was found nearby: g has a kink where a class weight points at a sample or is 0"
            warnings.warn(
                f"{type(self).__name__} stopped after {result.nit} iterations with a gradient of {largest:.1e} > "
                f"tol={self.tol:g}: {reason}",
                ConvergenceWarning,
                stacklevel=2,
            )
        coef, intercept = self._unflatten(torch.from_numpy(result.x), *start.shape)
        if self.scale is not None:
            coef = self.scale * unit(coef)
        self.coef_, self.intercept_ = coef.numpy().copy(), intercept.numpy().copy()
        self.similarity_, self.n_iter_ = g, result.nit
        return self

    def decision_function(self, X: Any) -> Any:
        """Return the scores f (n, K); of two classes (n,), positive for ``classes_[1]``."""
        scores = self._scores(X)
        if len(self.classes_) > 2:
            return scores.numpy()
        return (scores[:, -1] if scores.shape[1] == 1 else scores[:, 1] - scores[:, 0]).numpy()

    def predict(self, X: Any) -> Any:
        """Return the class of the largest score, (n,)."""
        scores = self.decision_function(X)
        return self.classes_[(scores > 0).astype(int) if scores.ndim == 1 else scores.argmax(1)]

    def _scores(self, X: Any) -> Tensor:
        check_is_fitted(self)
        x = unit(torch.tensor(validate_data(self, X, dtype=np.float64, reset=False)))
        coef, intercept = torch.tensor(self.coef_), torch.tensor(self.intercept_)
        return coef.norm(dim=1) * self.similarity_(project(x, coef)[0]) + intercept

    @abstractmethod
    def _losses(self, x: Tensor, target: Tensor, coef: Tensor, intercept: Tensor, g: Similarity) -> Tensor:
        """Return the loss (n,) of every sample; x (n, d) has unit rows."""

    def _lengths(self, coef: Tensor) -> Tensor:
        """Return the lengths of class weights in a score, (K,)."""
        return coef.norm(dim=1) if self.scale is None else coef.new_full((len(coef),), self.scale)

    def _unflatten(self, flat: Tensor, count: int, features: int) -> tuple[Tensor, Tensor]:
        coef = flat[: count * features].view(count, features)
        return coef, flat[count * features :] if self.fit_intercept else flat.new_zeros(count)

    def _start(self, x: Tensor, target: Tensor, share: Tensor) -> Tensor:
        """Return the first class weights: from the mean direction of all samples to that of the class, length 1."""
        members = F.one_hot(target).to(x.dtype) * share.unsqueeze(1)
        means = members.T @ x / members.sum(0).clamp_min(1e-300).unsqueeze(1)
        start = means - share @ x
        # A class in the middle has no direction, and a zero weight no gradient: any direction will do.
        for row in (start.norm(dim=1) < 1e-8).nonzero():
            start[row, row % start.shape[1]] = 1.0
        return unit(start)

    def _class_weights(self, y: Any, labels: Any, weight: Any) -> Any:
        if isinstance(self.class_weight, str) and self.class_weight == "balanced":
            totals = np.bincount(labels, weight)  # compute_class_weight would count samples of weight 0
            return weight.sum() / (len(totals) * np.where(totals > 0, totals, np.inf))
        return compute_class_weight(self.class_weight, classes=self.classes_, y=y)

    def _check_parameters(self) -> Similarity:
        """Check the parameters, which constructors only store, and return g."""
        checks.integer("max_iter", self.max_iter, low=1)
        checks.number("tol", self.tol, low=0.0)
        checks.number("C", self.C, low=0.0, open_low=True)
        if self.scale is not None:
            checks.number("scale", self.scale, low=0.0, open_low=True)
        k = checks.number("k", self.k, low=0.0, open_low=True)
        g = resolve(f"sigmoid({k!r})" if self.similarity == "sigmoid" else self.similarity, 1)
        if isinstance(g, nn.Module) and any(True for _ in g.parameters()):
            raise ValueError(f"similarity must not have parameters to learn, got {self.similarity!r}: choose k instead")
        return g


class SphereClassifier(_SphereLinearModel):
    """Logistic regression on angles: a softmax of f_c(x) = ‖w_c‖·g(θ_c) + b_c, optionally with a margin at the label.

    The cross-entropy is minimized by L-BFGS from a start that the data decide, so that a second fit gives the same.
    With scale=None the lengths of class weights are learned, and C·Σ loss + ½·Σ‖w_c‖² is minimized, as by
    LogisticRegression, which it is for the cosine on inputs of unit length. With a number as scale all class weights
    have that length, as in S-Softmax (SphereNet, App. C), and C has no effect.

    Args:
        similarity: g: "cosine", "linear", "sigmoid", or any callable of the cosine.
        k: of the sigmoid similarity.
        margin: 0 for none. At the label, margin(θ) takes the place of g(θ), as in the heads of `hypersphere.losses`.
            Give a scale with it: learned lengths can shrink to evade a margin.
        margin_kind: a key of `hypersphere.losses.MARGINS`: "additive_cosine" (g(θ) − m, CosFace), "additive_angle"
            (g(θ + m), m in radians, ArcFace) or "multiplicative" (A-Softmax and GA-Softmax, m >= 1).
        scale: None, or the length of all class weights; 10 to 70 work.
        C: inverse strength of the regularization of the lengths.
        fit_intercept: learn b.
        class_weight: None, {label: weight} or "balanced".
        max_iter, tol: stop after this many iterations, or when no component of the gradient (of the objective divided
            by C and the sum of weights) exceeds tol.

    Attributes:
        coef_: the class weights w (K, d), also for two classes.
        intercept_: b (K,).
        classes_: the labels (K,).
        n_iter_: iterations made.

    Example:
        >>> from sklearn.datasets import load_iris
        >>> model = SphereClassifier(similarity="sigmoid", k=0.5).fit(*load_iris(return_X_y=True))
        >>> model.predict_proba(load_iris().data[:2]).argmax(1)
        array([0, 0])
    """

    def __init__(
        self,
        similarity: SimilarityLike = "cosine",
        *,
        k: float = 0.3,
        margin: float = 0.0,
        margin_kind: str = "additive_cosine",
        scale: float | None = None,
        C: float = 1.0,
        fit_intercept: bool = True,
        class_weight: Mapping[Any, float] | str | None = None,
        max_iter: int = 1000,
        tol: float = 1e-6,
    ) -> None:
        self.similarity = similarity
        self.k = k
        self.margin = margin
        self.margin_kind = margin_kind
        self.scale = scale
        self.C = C
        self.fit_intercept = fit_intercept
        self.class_weight = class_weight
        self.max_iter = max_iter
        self.tol = tol

    def predict_proba(self, X: Any) -> Any:
        """Return the probabilities of the classes (n, K), the softmax of the scores."""
        return self._scores(X).softmax(1).numpy()

    def predict_log_proba(self, X: Any) -> Any:
        """Return the logarithms of the probabilities, (n, K)."""
        return self._scores(X).log_softmax(1).numpy()

    def _check_parameters(self) -> Similarity:
        checks.choice("margin_kind", self.margin_kind, MARGINS)
        margin = checks.number("margin", self.margin, low=0.0)
        if margin and self.margin_kind == "multiplicative":
            checks.number("margin", margin, low=1.0, hint=" (a factor of the angle; 0 for none)")
        if self.margin_kind == "additive_angle" and margin >= math.pi:
            raise ValueError(f"margin must be an angle in radians in [0, π), got {margin!r}")
        return super()._check_parameters()

    def _losses(self, x: Tensor, target: Tensor, coef: Tensor, intercept: Tensor, g: Similarity) -> Tensor:
        cosines, lengths = project(x, coef)[0], self._lengths(coef)
        scores = lengths * g(cosines) + intercept
        if self.margin:

            def at_angle(theta: Tensor) -> Tensor:
                exact = getattr(g, "at_angle", None)
                return exact(theta, target) if exact else g(theta.cos().unsqueeze(1)).squeeze(1)

            theta = angle(cosines.gather(1, target.unsqueeze(1)).squeeze(1))
            gain = MARGINS[self.margin_kind](theta, self.margin, at_angle) - at_angle(theta)
            scores = scores.scatter_add(1, target.unsqueeze(1), (lengths[target] * gain).unsqueeze(1))
        return F.cross_entropy(scores, target, reduction="none")


class SphereSVC(_SphereLinearModel):
    """Linear SVM on angles: the squared hinge loss max(0, margin − y·f(x))² of f(x) = ‖w‖·g(θ) + b.

    One class weight for each class against the others, one for two classes, as in LinearSVC, which it is for the cosine
    on inputs of unit length (but that LinearSVC regularizes the intercept too). The squared hinge is smooth, and is
    minimized by L-BFGS from a start that the data decide. With scale=None the objective is C·Σ loss + ½·Σ‖w_c‖²; with a
    number all class weights have that length, C has no effect, and the margin is compared with that length.

    Args:
        similarity, k: g, as in :class:`SphereClassifier`.
        margin: > 0.
        scale, C, fit_intercept, class_weight, max_iter, tol: as in :class:`SphereClassifier`.

    Attributes:
        coef_: the class weights w (K, d), K = 1 for two classes.
        intercept_: b (K,).
        classes_: the labels.
        n_iter_: iterations made.

    Example:
        >>> from sklearn.datasets import load_iris
        >>> X, y = load_iris(return_X_y=True)
        >>> round(SphereSVC(similarity="sigmoid", k=1.0).fit(X, y).score(X, y), 2)
        0.95
    """

    def __init__(
        self,
        similarity: SimilarityLike = "cosine",
        *,
        k: float = 0.3,
        margin: float = 1.0,
        scale: float | None = None,
        C: float = 1.0,
        fit_intercept: bool = True,
        class_weight: Mapping[Any, float] | str | None = None,
        max_iter: int = 1000,
        tol: float = 1e-6,
    ) -> None:
        self.similarity = similarity
        self.k = k
        self.margin = margin
        self.scale = scale
        self.C = C
        self.fit_intercept = fit_intercept
        self.class_weight = class_weight
        self.max_iter = max_iter
        self.tol = tol

    def _check_parameters(self) -> Similarity:
        checks.number("margin", self.margin, low=0.0, open_low=True)
        return super()._check_parameters()

    def _start(self, x: Tensor, target: Tensor, share: Tensor) -> Tensor:
        start = super()._start(x, target, share)
        return start[1:] if len(start) == 2 else start

    def _losses(self, x: Tensor, target: Tensor, coef: Tensor, intercept: Tensor, g: Similarity) -> Tensor:
        scores = self._lengths(coef) * g(project(x, coef)[0]) + intercept
        classes = torch.arange(len(self.classes_))[-scores.shape[1] :]
        signs = torch.where(target.unsqueeze(1) == classes, 1.0, -1.0)
        return (self.margin - signs * scores).relu().square().sum(1)
