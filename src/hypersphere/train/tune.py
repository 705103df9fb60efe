"""Tune hyperparameters with Optuna: a space of settings, and trials with successive halving."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from math import prod
from pathlib import Path
from random import Random
from statistics import fmean, stdev
from typing import Any

from .. import __version__
from .._internal.checksummed_json import Tree
from .._internal.modules import import_extra
from .config import Config, ConfigError, derive, from_tree
from .config.convert import apply, read_changes
from .config.values import AUTO, kind_of_data, shown

FACTOR = 3  # each round: 3 times the steps, a third of the trials
MOST = 10_000  # combinations of values
_NUMBER = r"[-+]?[0-9]*\.?[0-9]+(?:[eE][-+]?[0-9]+)?"
_RANGE = re.compile(rf"({_NUMBER})\.\.({_NUMBER})")
_COMMA = re.compile(r",(?![^(\[]*[)\]])")  # outside of parentheses and brackets
# They change the length, the validation data, or no weights; the best seed says nothing about the next training.
_REFUSED = (
    "steps epochs seed patience out resume device keep log_every eval_every checkpoint_every compile "
    "data.name data.root data.labels data.imbalance data.validation data.fold data.workers"
)

Space = dict[str, list[str]]  # setting → values as texts of its flag; a text may contain a range LOW..HIGH


def read_space(base: Config, texts: Sequence[str]) -> Space:
    """Read ``KEY=A,B,...``; ConfigError for a setting that cannot be tuned or a combination no config can have."""
    space: Space = {}
    for text in texts:
        key, _, values = text.partition("=")
        key = key.strip().removeprefix("--")
        if not values.strip():
            raise ConfigError(f"--try needs KEY=A,B,... or KEY=LOW..HIGH, got {shown(text)}")
        if key in _REFUSED.split():
            raise ConfigError(f"--try {key}: it cannot be chosen by validation accuracy")
        if key in space:
            raise ConfigError(f"--try {key} is given twice")
        space[key] = [part.strip() for part in _COMMA.split(values)]
        for value in space[key]:
            match = _RANGE.search(value)
            if ".." in value and (match is None or not 0 < float(match[1]) < float(match[2])):
                raise ConfigError(f"--try {key}={value}: a range needs two numbers, LOW..HIGH with 0 < LOW < HIGH")
    if (combinations := prod(map(len, space.values()))) > MOST:
        raise ConfigError(f"--try has {combinations:,} combinations of values; at most {MOST:,} are possible")
    for key in space:  # a setting of a group turns the group on
        if key.partition(".")[0] in space and "." in key:
            raise ConfigError(f"--try {key}: give {key} or {key.partition('.')[0]}, not both")
    if combinations == 1 and not has_range(space):
        raise ConfigError("--try gives one point only: nothing to choose")
    for combination, end in product(product(*space.values()), (1, 2)):
        point = {key: _RANGE.sub(rf"\{end}", value) for key, value in zip(space, combination, strict=True)}
        try:
            apply(base, point)
        except ConfigError as error:
            raise ConfigError(f"--try {' '.join(map('='.join, point.items()))}: {error}") from None
    return space


def has_range(space: Space) -> bool:
    return any(".." in value for values in space.values() for value in values)


def default_space(config: Config) -> list[str]:
    """Return what to try by default: similarity and k (SphereNet, 2.4), S-Softmax's s (App. C), energy weight, rate."""
    from ..energy.measures import default_weights
    from .automatic import ADAM_RATE, learning_rate, may_use_adamw

    texts, around = [], {}
    if config.model.similarity is not None:
        texts.append("model.similarity=cosine,linear,sigmoid(0.1..1)")
    if config.loss.name == "s_softmax":
        texts.append("loss.scale=10..70")
    if config.loss.energy_weight or config.loss.name == "sphereface_plus":
        around["loss.energy_weight"] = config.loss.energy_weight or 1.0
    if (energy := config.energy) is not None:
        weights = default_weights(energy.measure, energy.half_space) or (1.0, 1.0)
        hidden = weights[0] if energy.hidden_weight is None else energy.hidden_weight
        output = weights[1] if energy.output_weight is None else energy.output_weight
        around["energy.hidden_weight" if hidden else "energy.output_weight"] = hidden or output or 1.0
    rate = config.optimizer.lr
    if may_use_adamw(config) and config.data.name != "digits" and kind_of_data(config.data.name) == "images":
        texts.append("optimizer.name=adamw")  # what a training chooses
        rate = ADAM_RATE
    around["optimizer.lr"] = learning_rate(config) if rate == AUTO else rate
    return texts + [f"{key}={value / 10:g}..{value * 10:g}" for key, value in around.items()]


def folds_of(config: Config, folds: int | None) -> list[str | None]:
    """Return the `data.fold` of every run of a trial; [None] for one held-out split, which the config or data has."""
    data, has_split = config.data, kind_of_data(config.data.name) == "graph"
    if config.model.is_generator:
        raise ConfigError(f"tune needs validation accuracy, and {config.model.name} has none")
    if config.patience is not None:
        raise ConfigError("tune compares trials at equal steps: remove patience (--patience=null)")
    if data.fold is not None:
        raise ConfigError("tune sets data.fold itself: use --folds")
    is_held_out = data.validation not in (None, AUTO)
    if folds is not None and (is_held_out or has_split):
        both = "give --folds or data.validation, not both (--data.validation=null)"
        raise ConfigError(f"--folds: {data.name} has a validation split of its own" if has_split else both)
    if is_held_out or has_split:
        return [None]
    return [f"{i}/{folds or 3}" for i in range(1, (folds or 3) + 1)]


@dataclass(frozen=True)
class Search:
    """What the processes of a search share, as JSON.

    Args:
        base: tree of the config that trials change.
        recipe: a recipe file, which every process executes; None: none.
    """

    folder: str
    base: Tree
    tries: list[str]
    folds: list[str | None]
    rounds: int
    trials: int
    recipe: str | None

    def study(self) -> Any:
        """Open the study in the folder's journal. Its name is a hash of all that decides a trial's results."""
        optuna = import_extra("optuna", "Optuna", "tuning", "tune")
        from .._internal.draws import stable_hash

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        warnings.filterwarnings("ignore", "The reported value is ignored")  # of a trial that continues
        code = "" if self.recipe is None else Path(self.recipe.partition(".py")[0] + ".py").expanduser().read_text()
        Path(self.folder).mkdir(parents=True, exist_ok=True)
        backend = optuna.storages.journal.JournalFileBackend(str(Path(self.folder, "journal.log")))
        return optuna.create_study(
            storage=optuna.storages.JournalStorage(backend),
            study_name=f"{stable_hash(__version__, self.base, self.tries, self.folds, self.rounds, code):016x}",
            direction="maximize",
            load_if_exists=True,
            pruner=optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=FACTOR),
        )

    def prepare(self) -> list[int | None]:
        """Queue the points of a grid in random order; return the trials to run.

        They are the numbers of those that a stopped process left, which continue from their checkpoints; None: a new
        one, from the queue or, with a range, drawn by the sampler.
        """
        study, base = self.study(), from_tree(self.base)
        space = read_space(base, self.tries)
        if not has_range(space):
            grid = list(product(*space.values()))
            Random(f"tune/{base.seed}").shuffle(grid)
            for values in grid[len(study.trials) : self.trials]:
                study.enqueue_trial(dict(zip(space, values, strict=True)))
        left = [trial.number for trial in study.trials if trial.state.name == "RUNNING"]
        missing = max(0, self.trials - len(self.ended()))
        return [*left, *([None] * missing)][:missing]

    def ranking(self) -> list[TrialResult]:
        """Return the trials that ended, the best first: by steps, accuracy, loss."""
        once = {str(result.settings): result for result in self.ended()}.values()
        return sorted(once, key=lambda r: (r.failed is not None, -(r.step or 0), -(r.accuracy or 0), r.loss or 0))

    def ended(self) -> list[TrialResult]:
        """Return the trials that were measured, in their order."""
        measured = [trial for trial in self.study().trials if trial.state.name in ("COMPLETE", "PRUNED")]
        return [TrialResult.of(trial.user_attrs) for trial in measured]


@dataclass(frozen=True)
class TrialResult:
    """How a trial ended: the means over its folds, or why it failed."""

    settings: dict[str, str]
    failed: str | None = None
    folds: tuple[float, ...] = ()  # accuracy of each
    accuracy: float | None = None
    deviation: float | None = None
    loss: float | None = None
    step: int | None = None
    total: int | None = None
    seconds: float | None = None

    @classmethod
    def of(cls, attributes: Mapping[str, Any]) -> TrialResult:
        """Sum up the attributes of a trial: its settings, and the folds of its last round or why it failed."""
        if "failed" in attributes:
            return cls(attributes["settings"], attributes["failed"])
        folds = attributes["rounds"][-1]
        accuracies = tuple(fold["accuracy"] for fold in folds)
        return cls(
            attributes["settings"],
            folds=accuracies,
            accuracy=fmean(accuracies),
            deviation=stdev(accuracies) if len(accuracies) > 1 else None,
            loss=fmean(fold["loss"] for fold in folds),
            step=folds[0]["step"],
            total=folds[0]["total"],
            seconds=round(sum(fold["seconds"] for fold in folds), 1),
        )


def run_trial(search: Search, number: int | None) -> TrialResult:
    """Run a new trial of the study, or continue the one with this number."""
    import optuna

    from .._internal.draws import stable_hash
    from .engine import TrainingError, fit_part

    base, study = from_tree(search.base), search.study()
    trial = study.ask() if number is None else optuna.trial.Trial(study, study.trials[number]._trial_id)
    study.sampler = optuna.samplers.TPESampler(seed=stable_hash(base.seed, trial.number) % 2**32)
    point = {key: _draw(trial, base, key, values) for key, values in read_space(base, search.tries).items()}
    trial.set_user_attr("settings", point)
    config = derive(apply(base, point), resume=True, keep=1)
    folder = Path(search.folder, "runs", study.study_name, str(trial.number))
    folds = [
        derive(config, {"out": str(folder / (fold or "validation").replace("/", "of")), "data.fold": fold})
        for fold in search.folds
    ]
    # The folds of each round so far: before a stop, or of another trial with the same settings.
    same = [t.user_attrs for t in study.trials if t.user_attrs.get("settings") == point]
    rounds = max((attributes.get("rounds", []) for attributes in same), key=len)
    value: float | None = None
    for round in range(search.rounds):
        part = FACTOR ** (search.rounds - 1 - round)
        if round == len(rounds):
            try:
                rounds = [*rounds, [asdict(fit_part(fold, part)) for fold in folds]]
            except TrainingError as error:
                trial.set_user_attr("failed", " ".join(str(error).split()))
                break
        trial.set_user_attr("rounds", rounds)
        accuracy = fmean(fold["accuracy"] for fold in rounds[round])
        trial.report(accuracy, FACTOR**round)
        if part == 1:
            value = accuracy
        elif trial.should_prune():
            break
    study.tell(trial, value, state=None if value is not None else optuna.trial.TrialState.PRUNED)
    return TrialResult.of(trial.user_attrs)


def _draw(trial: Any, base: Config, key: str, values: Sequence[str]) -> str:
    """Draw a value; a range's number on a logarithmic scale, to three digits."""
    value: str = trial.suggest_categorical(key, values)
    if (match := _RANGE.search(value)) is None:
        return value
    name, low, high = f"{key}={value}", match[1], match[2]
    if isinstance(read_changes(base, {key: _RANGE.sub(low, value)})[key], int):
        number = str(trial.suggest_int(name, int(low), int(high), log=True))
    else:
        number = f"{trial.suggest_float(name, float(low), float(high), log=True):.3g}"
    return _RANGE.sub(number, value)
