"""Train a part of one trial: ``python -m hypersphere.tune.worker``, which :mod:`..train.processes` starts."""

from __future__ import annotations

import sys
from typing import Any

from .. import recipes
from ..train.config import from_tree
from ..train.processes import serve, when_free


def run(request: dict[str, Any]) -> dict[str, Any]:
    """Train or resume what the request names and return its figures, or `failed`, why the training broke off."""
    from ..train.engine import TrainingError, fit_part

    if request["recipe"] is not None:
        recipes.load(request["recipe"])  # its file may register data or a network
    try:
        return when_free(lambda: fit_part(from_tree(request["config"]), request["part"]))
    except TrainingError as error:
        return {"failed": " ".join(str(error).split())}


if __name__ == "__main__":
    sys.exit(serve(run))
