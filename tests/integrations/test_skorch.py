"""skorch and joblib: rotated networks are cloned, searched over, pickled and sent to workers."""

import pickle
from pathlib import Path

import joblib
import numpy as np
import pytest
import torch
from sklearn.datasets import load_wine
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from skorch import NeuralNetClassifier
from torch import nn
from torch.nn.utils import parametrize

import hypersphere as hs


def make_net(similarity: str = "cosine") -> nn.Module:
    """Spherized and rotated; at module level, so that workers find it."""
    net = nn.Sequential(nn.Linear(13, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 3))
    return hs.rotate(hs.spherize(net, similarity))


@pytest.fixture
def wine() -> tuple[np.ndarray, np.ndarray]:
    x, y = load_wine(return_X_y=True)
    return StandardScaler().fit_transform(x).astype(np.float32), y.astype(np.int64)


def classifier(module) -> NeuralNetClassifier:
    settings = {"criterion": nn.CrossEntropyLoss, "optimizer": torch.optim.Adam, "lr": 0.02, "max_epochs": 5}
    batches = {"batch_size": 16, "iterator_train__shuffle": True, "train_split": None}
    return NeuralNetClassifier(module, **settings, **batches, verbose=0)


def rotations(net: nn.Module) -> list[torch.Tensor]:
    (group,) = [group for group in hs.param_groups(net) if group["name"] == "rotations"]
    return group["params"]


def neurons(net: nn.Module) -> list[torch.Tensor]:
    return [module.parametrizations.weight.original for module in net if parametrize.is_parametrized(module)]


@pytest.mark.parametrize("kind", ["a factory", "a network"])
def test_it_learns_by_rotating_and_its_pickle_is_the_same(kind, wine, tmp_path: Path):
    x, y = wine
    module = make_net if kind == "a factory" else make_net()
    fitted = classifier(module).fit(x, y)
    assert len(rotations(fitted.module_)) == 2
    assert all(
        bool(rotation.count_nonzero()) for rotation in rotations(fitted.module_)
    )  # they started at 0, the identity
    assert fitted.score(x, y) > 0.9
    proba = fitted.predict_proba(x)
    joblib.dump(fitted, tmp_path / "net.joblib")
    fitted.save_params(f_params=tmp_path / "params.pt")
    fresh = classifier(make_net).initialize()
    fresh.load_params(f_params=tmp_path / "params.pt")
    for other in (pickle.loads(pickle.dumps(fitted)), joblib.load(tmp_path / "net.joblib"), fresh):
        assert np.array_equal(other.predict_proba(x), proba)
        assert len(rotations(other.module_)) == 2
    hs.merge(fitted.module_)
    assert np.array_equal(fitted.predict_proba(x), proba)


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_grid_search_over_rotated_networks(jobs, wine):
    x, y = wine
    net = make_net()
    start = [rotation.detach().clone() for rotation in rotations(net)]
    search = GridSearchCV(classifier(net), {"lr": [0.0, 0.02]}, cv=3, n_jobs=jobs, error_score="raise").fit(x, y)
    assert search.best_params_ == {"lr": 0.02}
    assert search.best_score_ > 0.9
    assert all(torch.equal(a, b) for a, b in zip(rotations(net), start, strict=True))  # a copy was trained
    best = search.best_estimator_.module_
    assert best is not net
    assert all(torch.equal(a, b) for a, b in zip(neurons(best), neurons(net), strict=True))  # fixed neurons


def test_a_grid_search_over_similarities_in_a_pipeline(wine):
    x, y = wine
    pipeline = make_pipeline(StandardScaler(), classifier(make_net))
    grid = {"neuralnetclassifier__module__similarity": ["cosine", "sigmoid(0.3)"]}
    search = GridSearchCV(pipeline, grid, cv=3, error_score="raise").fit(x, y)
    assert search.cv_results_["mean_test_score"].min() > 0.8
    assert np.array_equal(pickle.loads(pickle.dumps(search)).predict(x), search.predict(x))


def _weights(net: nn.Module) -> list[np.ndarray]:
    """In a worker."""
    return [module.weight.detach().numpy() for module in net if isinstance(module, nn.Linear)]


@pytest.mark.parametrize("backend", ["loky", "multiprocessing"])
def test_joblib_workers_get_the_same_weights(backend):
    net = make_net()
    with torch.no_grad():
        for rotation in rotations(net):
            rotation.normal_()
    (sent,) = joblib.Parallel(n_jobs=2, backend=backend)([joblib.delayed(_weights)(net)])
    assert all(np.array_equal(a, b) for a, b in zip(sent, _weights(net), strict=True))
