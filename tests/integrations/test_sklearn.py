"""The scikit-learn estimators: scikit-learn's own checks, literal formulas, its linear models as special cases."""

import importlib
import math
import re
import sys
from pathlib import Path

import joblib
import numpy as np
import pytest
import scipy.optimize
import torch
from scipy import sparse
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_iris, make_blobs
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler, normalize
from sklearn.svm import LinearSVC
from sklearn.utils.estimator_checks import check_estimator

import hypersphere as hs
from hypersphere._internal.modules import install_command
from hypersphere.integrations.sklearn import SphereClassifier, SphereSVC
from tests import reference

pytestmark = pytest.mark.slow

EXACT = {"tol": 1e-9, "max_iter": 5000}
G = {"cosine": reference.cosine, "linear": reference.linear, "sigmoid": lambda theta: reference.sigmoid(theta, 0.7)}
MARGINS = {
    "additive_cosine": reference.am_softmax,
    "additive_angle": reference.arcface,
    "multiplicative": reference.psi,
}


def blobs(classes=3, features=5, samples=40, seed=0):
    X, y = make_blobs(samples, features, centers=classes, cluster_std=4.0, random_state=seed)
    return X, y


@pytest.mark.parametrize("estimator", [SphereClassifier(), SphereSVC()], ids=lambda check: type(check).__name__)
def test_scikit_learn_s_own_checks(estimator):
    """All of them: none is declared to fail. Skipped are those that need pandas or SCIPY_ARRAY_API."""
    results = check_estimator(estimator, on_skip=None)
    assert {check["status"] for check in results} <= {"passed", "skipped"}
    assert sum(check["status"] == "passed" for check in results) > 50


def literal_scores(X, coef, intercept, g):
    theta = torch.stack([torch.stack([reference.angle(x, w) for w in coef]) for x in X])
    return coef.norm(dim=1) * g(theta) + intercept, theta


@pytest.mark.parametrize("similarity", G)
@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("kind", [SphereClassifier, SphereSVC])
def test_decision_function_is_the_literal_score(kind, classes, similarity):
    X, y = blobs(classes)
    X[0] = 0.0
    model = kind(similarity, k=0.7).fit(X, y)
    coef, intercept = torch.from_numpy(model.coef_), torch.from_numpy(model.intercept_)
    scores, _ = literal_scores(torch.from_numpy(X), coef, intercept, G[similarity])
    assert scores.shape[1] == (1 if kind is SphereSVC and classes == 2 else classes)
    one = scores[:, 0] if scores.shape[1] == 1 else scores[:, 1] - scores[:, 0]
    np.testing.assert_allclose(model.decision_function(X), one if classes == 2 else scores, atol=1e-12)
    np.testing.assert_array_equal(model.predict(X), one.numpy() > 0 if classes == 2 else scores.argmax(1))
    if kind is SphereClassifier:
        np.testing.assert_allclose(model.predict_proba(X), scores.softmax(1), atol=1e-12)
        np.testing.assert_allclose(model.predict_log_proba(X), scores.log_softmax(1), atol=1e-12)


def literal_objective(model, X, y, weight, coef, intercept):
    """C·Σ weight·loss + ½·Σ‖w‖², sample by sample; without the second term if lengths are fixed."""
    if model.scale is not None:
        coef = model.scale * coef / coef.norm(dim=1, keepdim=True)
    g = G[model.similarity]
    scores, theta = literal_scores(X, coef, intercept, g)
    total = 0.0
    for f, angles, label, w in zip(scores, theta, y, weight, strict=True):
        if isinstance(model, SphereSVC):
            signs = [1.0 if label == c else -1.0 for c in range(len(f))] if len(f) > 1 else [2.0 * label - 1.0]
            total += w * sum(max(model.margin - s * score, score * 0) ** 2 for s, score in zip(signs, f, strict=True))
            continue
        logits = list(f)
        if model.margin:
            changed = MARGINS[model.margin_kind](angles[label], model.margin, g)
            logits[label] = coef[label].norm() * changed + intercept[label]
        total += w * (torch.logsumexp(torch.stack(logits), 0) - logits[label])
    return model.C * total + (coef.square().sum() / 2 if model.scale is None else 0.0)


MODELS = [
    SphereClassifier("cosine", C=3.0),
    SphereClassifier("linear", C=3.0),
    SphereClassifier("sigmoid", k=0.7),
    SphereClassifier("cosine", margin=0.3, scale=6.0),
    SphereClassifier("linear", margin=0.3, margin_kind="additive_angle", scale=4.0),
    SphereClassifier("cosine", margin=2.0, margin_kind="multiplicative", scale=3.0),
    SphereClassifier("sigmoid", k=0.7, scale=5.0, fit_intercept=False),
    SphereSVC("cosine"),
    SphereSVC("linear", margin=0.5, scale=1.5),
    SphereSVC("sigmoid", k=0.7, margin=2.0, fit_intercept=False),
]


@pytest.mark.parametrize("model", MODELS, ids=repr)
@pytest.mark.parametrize("classes", [2, 3])
def test_the_solution_is_a_minimum_of_the_literal_objective(model, classes):
    """Its gradient vanishes there, and scipy's BFGS on the literal formula, started beside it, ends there."""
    X, y = blobs(classes, features=4, samples=16, seed=3)
    weight = np.linspace(0.5, 2, len(y))
    model = clone(model).set_params(**EXACT).fit(X, y, weight)
    shape = model.coef_.shape

    def objective(numbers):
        flat = torch.from_numpy(numbers).requires_grad_()
        coef = flat[: math.prod(shape)].view(shape)
        intercept = flat[coef.numel() :] if model.fit_intercept else torch.zeros(shape[0], dtype=torch.float64)
        value = literal_objective(model, torch.from_numpy(X), y, weight, coef, intercept)
        (gradient,) = torch.autograd.grad(value, flat)
        return value.item(), gradient.numpy()

    minimum = np.concatenate([model.coef_.ravel(), model.intercept_[: shape[0] * model.fit_intercept]])
    value, gradient = objective(minimum)
    assert np.abs(gradient).max() < 1e-6
    beside = minimum + 0.05 * np.random.default_rng(0).normal(size=minimum.shape)
    assert objective(beside)[0] > value
    again = scipy.optimize.minimize(objective, beside, jac=True, method="BFGS", options={"gtol": 1e-8})
    assert again.fun == pytest.approx(value, rel=1e-9)


@pytest.mark.parametrize("classes", [2, 4])
def test_with_the_cosine_it_is_logistic_regression_on_unit_inputs(classes):
    X, y = blobs(classes)
    unit = normalize(X)
    theirs = LogisticRegression(C=2.0, tol=1e-10, max_iter=10000).fit(unit, y)
    # Of two classes, two weights ±w/2 have half the penalty of LogisticRegression's one w.
    ours = SphereClassifier(C=1.0 if classes == 2 else 2.0, **EXACT).fit(X, y)
    np.testing.assert_allclose(ours.predict_proba(X), theirs.predict_proba(unit), atol=1e-6)
    if classes > 2:
        np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-5)


@pytest.mark.parametrize("classes", [2, 4])
def test_with_the_cosine_it_is_linear_svc_on_unit_inputs(classes):
    X, y = blobs(classes)
    unit = normalize(X)
    theirs = LinearSVC(C=2.0, fit_intercept=False, tol=1e-10, max_iter=100000).fit(unit, y)
    ours = SphereSVC(C=2.0, fit_intercept=False, **EXACT).fit(X, y)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-5)
    np.testing.assert_allclose(ours.decision_function(X), theirs.decision_function(unit), atol=1e-5)


@pytest.mark.parametrize(
    ("head", "options"),
    [
        (hs.SSoftmaxLoss(3, 5, scale=8.0, bias=True), {}),
        (hs.AMSoftmaxLoss(3, 5, margin=0.2, scale=8.0, bias=True), {"margin": 0.2}),
        (hs.ArcFaceLoss(3, 5, margin=0.2, scale=8.0, bias=True), {"margin": 0.2, "margin_kind": "additive_angle"}),
        (
            hs.ASoftmaxLoss(3, 5, margin=2, scale=8.0, annealing=False, bias=True),
            {"margin": 2.0, "margin_kind": "multiplicative"},
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_with_a_scale_it_is_the_head_at_its_minimum(head, options):
    X, y = blobs()
    model = SphereClassifier(scale=8.0, **options, **EXACT).fit(X, y)
    np.testing.assert_allclose(np.linalg.norm(model.coef_, axis=1), 8.0)
    head.double()
    head.weight.data, head.bias.data = torch.from_numpy(model.coef_), torch.from_numpy(model.intercept_)
    gradients = torch.autograd.grad(head(torch.from_numpy(X), torch.from_numpy(y)), [head.weight, head.bias])
    assert max(gradient.abs().max() for gradient in gradients) < 1e-7  # rounding of the loss hides smaller ones
    np.testing.assert_allclose(model.decision_function(X), head.logits(torch.from_numpy(X)).detach(), atol=1e-12)


@pytest.mark.parametrize("kind", [SphereClassifier, SphereSVC])
def test_weights_repeat_samples_and_classes(kind):
    X, y = blobs()
    counts = np.arange(len(y)) % 3
    weighted = kind(**EXACT).fit(X, y, counts)
    repeated = kind(**EXACT).fit(np.repeat(X, counts, 0), np.repeat(y, counts))
    np.testing.assert_allclose(weighted.coef_, repeated.coef_, atol=1e-7)
    by_class = kind(class_weight={0: 2.0, 1: 1.0, 2: 0.5}, **EXACT).fit(X, y)
    by_sample = kind(**EXACT).fit(X, y, np.array([2.0, 1.0, 0.5])[y])
    np.testing.assert_allclose(by_class.coef_, by_sample.coef_, atol=1e-7)
    balanced = kind(class_weight="balanced", **EXACT).fit(X, y, counts)
    totals = np.bincount(y, counts)
    by_hand = kind(**EXACT).fit(X, y, counts * (totals.sum() / (3 * totals))[y])
    np.testing.assert_allclose(balanced.coef_, by_hand.coef_, atol=1e-7)


@pytest.mark.parametrize("kind", [SphereClassifier, SphereSVC])
def test_pipelines_grids_strings_and_files(kind, tmp_path):
    data = load_breast_cancer()
    X, y = data.data, data.target_names[data.target]
    grid = {"model__similarity": ["cosine", "sigmoid"], "model__k": [0.5, 1.0]}
    pipeline = make_pipeline(StandardScaler(), kind(C=0.5)).set_params()
    pipeline.steps[-1] = ("model", pipeline.steps[-1][1])
    search = GridSearchCV(pipeline, grid, cv=2).fit(X[:300], y[:300])
    assert search.score(X[300:], y[300:]) > 0.93
    joblib.dump(search, tmp_path / "search.joblib")
    loaded = joblib.load(tmp_path / "search.joblib", mmap_mode="r")  # read-only, as joblib's workers have them
    np.testing.assert_array_equal(loaded.decision_function(X), search.decision_function(X))
    assert set(loaded.predict(X)) == {"benign", "malignant"}
    fitted = search.best_estimator_[-1]
    before = fitted.decision_function(X)
    fitted.set_params(similarity="linear", k=9.0)  # counts at the next fit
    np.testing.assert_array_equal(fitted.decision_function(X), before)


def test_a_second_fit_gives_the_same_and_the_length_of_inputs_does_not_matter():
    X, y = load_iris(return_X_y=True)
    first, second = (SphereClassifier("sigmoid").fit(X, y) for _ in range(2))
    np.testing.assert_array_equal(first.coef_, second.coef_)
    scaled = SphereClassifier("sigmoid").fit(X * np.arange(1, len(X) + 1)[:, None], y)
    np.testing.assert_allclose(scaled.coef_, first.coef_, rtol=1e-4)


@pytest.mark.parametrize("kind", [SphereClassifier, SphereSVC])
def test_classes_without_a_direction_start_somewhere(kind):
    """Both classes have the same mean direction; an angle from w, with the intercept, tells them apart."""
    X = np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]] * 5)
    y = np.array([0, 0, 1, 1] * 5)
    model = kind(lambda c: c * c, C=100.0).fit(X, y)
    assert model.score(X, y) == 1.0


def test_a_callable_similarity():
    X, y = blobs()
    ours = SphereClassifier(lambda c: c, margin=0.2, margin_kind="additive_angle", scale=4.0, **EXACT).fit(X, y)
    named = SphereClassifier("cosine", margin=0.2, margin_kind="additive_angle", scale=4.0, **EXACT).fit(X, y)
    np.testing.assert_allclose(ours.coef_, named.coef_, atol=1e-6)


def test_too_few_iterations_warn():
    X, y = blobs()
    with pytest.warns(ConvergenceWarning, match="stopped after 2 iterations.*raise max_iter"):
        model = SphereClassifier(max_iter=2).fit(X, y)
    assert model.n_iter_ == 2


def test_a_minimum_where_g_has_a_kink_warns():
    X, y = make_blobs(30, 2, centers=3, cluster_std=3, random_state=3)
    with pytest.warns(ConvergenceWarning, match="points at a sample"):
        SphereClassifier("linear").fit(X, y)


@pytest.mark.parametrize(
    ("kind", "options", "error", "message"),
    [
        (SphereClassifier, {"similarity": "cos"}, ValueError, "unknown similarity 'cos', did you mean 'cosine'"),
        (SphereClassifier, {"similarity": "learnable"}, ValueError, "must not have parameters.*choose k"),
        (SphereClassifier, {"margin": 0.5, "margin_kind": "multiplicative"}, ValueError, "factor of the angle"),
        (SphereClassifier, {"margin": 30, "margin_kind": "additive_angle"}, ValueError, "radians"),
        (SphereClassifier, {"margin_kind": "arcface"}, ValueError, "margin_kind must be one of .*got 'arcface'"),
        (SphereSVC, {"margin": 0.0}, ValueError, "margin must be finite and > 0"),
        (SphereSVC, {"C": -1.0}, ValueError, "C must be finite and > 0"),
        (SphereSVC, {"class_weight": {0: 0.0, 1: 0.0, 2: 0.0}}, ValueError, "all weights are 0"),
    ],
)
def test_bad_parameters_are_refused_by_fit(kind, options, error, message):
    model = kind(**options)  # constructors only store
    assert all(model.get_params()[name] is value for name, value in options.items())
    with pytest.raises(error, match=message):
        model.fit(*blobs())


def test_bad_data():
    X, y = blobs()
    with pytest.raises(TypeError, match="Sparse"):
        SphereSVC().fit(sparse.csr_array(X), y)
    with pytest.raises(ValueError, match="one class"):
        SphereSVC().fit(X, np.zeros(len(y)))
    with pytest.raises(ValueError, match="Negative"):
        SphereSVC().fit(X, y, -np.ones(len(y)))


def test_without_scikit_learn(monkeypatch):
    monkeypatch.delitem(sys.modules, "hypersphere.integrations.sklearn")
    monkeypatch.setitem(sys.modules, "sklearn.base", None)
    with pytest.raises(ImportError, match=re.escape(install_command("sklearn"))):
        import hypersphere.integrations.sklearn  # noqa: F401


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_the_comparison_of_the_docs_runs(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "examples")
    comparison = importlib.import_module("estimators")
    assert comparison.accuracies("SphereClassifier cosine", "iris", folds=2).mean() > 75
    assert comparison.accuracies("SphereClassifier cosine + 1", "iris", folds=2).mean() > 90
    assert all(model.__class__.__name__ == name.split()[0] for name, (model, *_) in comparison.MODELS.items())
