"""Compare SphereClassifier and SphereSVC with LogisticRegression and LinearSVC: python examples/estimators.py

Accuracy on three datasets that come with scikit-learn, 5-fold cross-validation on standardized features. C, scale and k
are chosen in each training part, on 30 % of it. "+ 1": a constant feature is added, so that the angle depends on the
length of an input too. A line is printed when it is done.
"""

from __future__ import annotations

import sys
import warnings
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_digits, load_iris
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, StratifiedKFold, StratifiedShuffleSplit, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler, add_dummy_feature
from sklearn.svm import LinearSVC

from hypersphere.integrations.sklearn import SphereClassifier, SphereSVC

DATASETS = {"iris": load_iris, "breast cancer": load_breast_cancer, "digits": load_digits}
C, SCALE, K, TOL = [0.1, 1.0, 10.0], [4.0, 8.0, 16.0], [0.3, 1.0], 1e-4
#: name → (estimator, values to choose from, whether a constant feature is added)
MODELS: dict[str, tuple[Any, dict[str, list[float]], bool]] = {
    "LogisticRegression": (LogisticRegression(max_iter=5000), {"C": C}, False),
    "SphereClassifier cosine": (SphereClassifier("cosine"), {"C": C}, False),
    "SphereClassifier linear": (SphereClassifier("linear"), {"C": C}, False),
    "SphereClassifier sigmoid": (SphereClassifier("sigmoid"), {"C": C, "k": K}, False),
    "SphereClassifier cosine, scale": (SphereClassifier("cosine"), {"scale": SCALE}, False),
    "SphereClassifier cosine, scale, margin 0.1": (SphereClassifier("cosine", margin=0.1), {"scale": SCALE}, False),
    "SphereClassifier cosine + 1": (SphereClassifier("cosine"), {"C": C}, True),
    "SphereClassifier sigmoid + 1": (SphereClassifier("sigmoid"), {"C": C, "k": K}, True),
    "LinearSVC": (LinearSVC(max_iter=20000), {"C": C}, False),
    "SphereSVC cosine": (SphereSVC("cosine"), {"C": C}, False),
    "SphereSVC linear": (SphereSVC("linear"), {"C": C}, False),
    "SphereSVC sigmoid": (SphereSVC("sigmoid"), {"C": C, "k": K}, False),
    "SphereSVC sigmoid + 1": (SphereSVC("sigmoid"), {"C": C, "k": K}, True),
}


def accuracies(name: str, dataset: str, folds: int = 5) -> Any:
    """Return the accuracy in percent of a model in each fold."""
    model, grid, lifted = MODELS[name]
    X, y = DATASETS[dataset](return_X_y=True)
    lift = [FunctionTransformer(add_dummy_feature)] if lifted else []
    part = StratifiedShuffleSplit(1, test_size=0.3, random_state=0)
    search = GridSearchCV(clone(model).set_params(tol=TOL), grid, cv=part)
    pipeline = make_pipeline(StandardScaler(), *lift, search)
    return 100 * cross_val_score(pipeline, X, y, cv=StratifiedKFold(folds, shuffle=True, random_state=0))


def main(datasets: list[str]) -> None:
    warnings.simplefilter("ignore", ConvergenceWarning)
    print("| model |", " | ".join(datasets), "|")
    print("|---" * (len(datasets) + 1) + "|")
    for name in MODELS:
        results = [accuracies(name, dataset) for dataset in datasets]
        print(
            f"| {name} |",
            " | ".join(f"{np.mean(values):.1f} ± {np.std(values):.1f}" for values in results),
            "|",
            flush=True,
        )


if __name__ == "__main__":
    main(sys.argv[1:] or list(DATASETS))
