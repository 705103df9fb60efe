"""The settings to try: lists and ranges as text, and the points that are drawn from them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import ceil, exp, log, prod, sqrt
from random import Random

from ..train.config import Config, ConfigError
from ..train.config.convert import apply, read_changes
from ..train.config.values import AUTO, kind_of_data, shown

DRAWS = 16  # points of a space with a range, if their number is not given
MOST = 100_000  # combinations of values
PRIMES = (2, 3, 5, 7, 11, 13)
_NUMBER = r"[-+]?(?:[0-9]+(?:\.[0-9]+)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?"
_RANGE = re.compile(rf"(?P<before>\w+\()?(?P<low>{_NUMBER})\.\.(?P<high>{_NUMBER})(?P<after>\))?")
_COMMA = re.compile(r",(?![^(\[]*[)\]])")  # outside of parentheses and brackets
_REFUSED = {
    "a longer training is better at a price of its own": ("steps", "epochs"),
    "it would change what accuracies are measured on": (
        *("data.name", "data.root", "data.labels", "data.imbalance", "data.validation", "data.fold"),
    ),
    "the best seed says nothing about the next training": ("seed",),
    "it does not change the weights": (
        *("out", "resume", "device", "keep", "log_every", "eval_every", "checkpoint_every", "data.workers", "compile"),
    ),
    "trials are compared at equal steps": ("patience",),
}

Point = dict[str, str]  # setting → its value as the text of a flag


@dataclass(frozen=True)
class Value:
    """A value, or a range: `text` has {} where its number goes, from `low` to `high` on a logarithmic scale."""

    text: str
    low: float = 0.0
    high: float = 0.0
    whole: bool = False

    @property
    def is_range(self) -> bool:
        return self.high > 0

    def at(self, share: float) -> str:
        """Return the value at a share of the range, to three digits."""
        if not self.is_range:
            return self.text
        drawn = exp(log(self.low) + share * (log(self.high) - log(self.low)))
        number = min(max(float(f"{drawn:.3g}"), self.low), self.high)
        return self.text.format(round(number) if self.whole else f"{number:g}")


Space = dict[str, tuple[Value, ...]]


def read_space(base: Config, texts: Sequence[str]) -> Space:
    """Read ``KEY=A,B,...``, where a value may be a range: ``0.01..0.3`` or ``sigmoid(0.1..1)``.

    Example:
        >>> space = read_space(Config(), ["model.similarity=cosine,sigmoid(0.1..1)", "optimizer.lr=0.01..1"])
        >>> [value.at(0.5) for values in space.values() for value in values]
        ['cosine', 'sigmoid(0.316)', '0.1']
    """
    space: Space = {}
    for text in texts:
        key, _, values = text.partition("=")
        key = key.strip().removeprefix("--")
        if not values.strip():
            raise ConfigError(f"--try needs KEY=A,B,... or KEY=LOW..HIGH, got {shown(text)}")
        for why, keys in _REFUSED.items():
            if key in keys:
                raise ConfigError(f"--try {key}: {why}")
        if key in space:
            raise ConfigError(f"--try {key} is given twice")
        space[key] = tuple(_value(base, key, part.strip()) for part in _COMMA.split(values))
        if len({*space[key]}) < len(space[key]):
            raise ConfigError(f"--try {key} has a value twice: {values}")
    for key in space:
        if "." in key and key.partition(".")[0] in space:
            raise ConfigError(f"--try {key}: give {key} or {key.partition('.')[0]}, not both")
    if all(len(values) == 1 and not values[0].is_range for values in space.values()):
        raise ConfigError("--try gives one point only: nothing to choose")
    return space


def _value(base: Config, key: str, text: str) -> Value:
    where = f"--try {key}={text}"
    if not text:
        raise ConfigError(f"--try {key} has an empty value")
    if ".." not in text:
        read_changes(base, {key: text})  # raises ConfigError for what the setting cannot be
        return Value(text)
    found = _RANGE.fullmatch(text)
    if found is None or (found["before"] is None) != (found["after"] is None):
        raise ConfigError(f"{where}: a range needs two numbers, LOW..HIGH")
    before, after = found["before"] or "", found["after"] or ""
    ends = [read_changes(base, {key: before + found[end] + after})[key] for end in ("low", "high")]
    low, high = float(found["low"]), float(found["high"])
    if low >= high:
        raise ConfigError(f"{where}: LOW must be below HIGH")
    if low <= 0:
        raise ConfigError(f"{where}: LOW must be above 0, since ranges are logarithmic; 0 may stand in a list")
    return Value(f"{before}{{}}{after}", low, high, all(isinstance(end, int) for end in ends))


def points(space: Space, seed: int, trials: int | None = None) -> list[Point]:
    """Draw distinct points; more `trials` add to those of fewer.

    A space without a range is taken whole, in random order, unless `trials` is smaller. In others the combinations of
    the lists take turns, and the numbers of each combination are spread evenly over their ranges.
    """
    combinations = prod(map(len, space.values()))
    if combinations > MOST:
        raise ConfigError(f"--try has {combinations:,} combinations of values; at most {MOST:,} are possible")
    grid = [*product(*space.values())]
    Random(f"tune/{seed}").shuffle(grid)
    is_finite = not any(value.is_range for values in grid for value in values)
    wanted = trials or (len(grid) if is_finite else DRAWS)
    rounds = 1 if is_finite else 20 * ceil(wanted / len(grid))
    found: dict[tuple[str, ...], None] = {}
    for each in _draws(grid, rounds, seed):
        found[each] = None
        if len(found) == wanted:
            break
    if len(found) < (trials or 2) and not is_finite:
        raise ConfigError(f"--try has {len(found)} different points only, to three digits; --trials asks for {wanted}")
    return [dict(zip(space, each, strict=True)) for each in found]


def _draws(grid: Sequence[tuple[Value, ...]], rounds: int, seed: int) -> Iterator[tuple[str, ...]]:
    """Yield points round by round; shares are those of additive sequences, which fill a cube evenly.

    From round to round the steps are powers of 1/x with x^(d+1) = x + 1 for d ranges, the golden ratio for one; from
    combination to combination they are roots of primes.
    """
    ranges = [j for j in range(len(grid[0])) if any(values[j].is_range for values in grid)]
    x = 2.0
    for _ in range(60):
        x = (1 + x) ** (1 / (len(ranges) + 1))
    start = [Random(f"tune/{seed}/{j}").random() for j in range(len(grid[0]))]
    for n in range(rounds):
        for c, values in enumerate(grid):
            shares = [*start]
            for i, j in enumerate(ranges):
                shares[j] = (start[j] + n * x ** -(i + 1) + c * sqrt(PRIMES[i % len(PRIMES)])) % 1
            yield tuple(value.at(share) for value, share in zip(values, shares, strict=True))


def default_space(config: Config) -> list[str]:
    """Return what to try where nothing is given, as texts for :func:`read_space`.

    The similarity and k of a network that has one, S-Softmax's s, the weight of the energy, the learning rate.
    """
    from ..energy.measures import default_weights
    from ..train.automatic import learning_rate

    def around(key: str, value: float) -> str:
        return f"{key}={value / 10:g}..{value * 10:g}"

    texts = []
    if config.model.similarity is not None:
        texts.append("model.similarity=cosine,linear,sigmoid(0.1..1)")
    if config.loss.name == "s_softmax":
        texts.append("loss.scale=10..70")  # App. C
    if config.loss.energy_weight or config.loss.name == "sphereface_plus":
        texts.append(around("loss.energy_weight", config.loss.energy_weight or 1.0))
    if (energy := config.energy) is not None:
        weights = default_weights(energy.measure, energy.half_space) or (1.0, 1.0)
        hidden = weights[0] if energy.hidden_weight is None else energy.hidden_weight
        output = weights[1] if energy.output_weight is None else energy.output_weight
        texts.append(
            around("energy.hidden_weight", hidden) if hidden else around("energy.output_weight", output or 1.0)
        )
    rate = config.optimizer.lr
    return [*texts, around("optimizer.lr", learning_rate(config) if rate == AUTO else rate)]


def configs(base: Config, drawn: Sequence[Point]) -> list[Config]:
    """Return the config of every point. ConfigError, with the point, for one that contradicts itself."""
    made = []
    for point in drawn:
        try:
            made.append(apply(base, point))
        except ConfigError as error:
            raise ConfigError(f"{named(point)}: {error}") from None
    return made


def short_names(keys: Sequence[str]) -> list[str]:
    """Return the last parts of the keys, and whole keys where these are not unique.

    Example:
        >>> short_names(["optimizer.lr", "model.scale", "loss.scale"])
        ['lr', 'model.scale', 'loss.scale']
    """
    last = [key.rpartition(".")[2] for key in keys]
    return [name if last.count(name) == 1 else key for key, name in zip(keys, last, strict=True)]


def named(point: Mapping[str, str]) -> str:
    """Return a point as text.

    Example:
        >>> named({"model.similarity": "linear", "optimizer.lr": "0.1"})
        'similarity=linear lr=0.1'
    """
    names = short_names([*point])
    return " ".join(f"{name}={text}" for name, text in zip(names, point.values(), strict=True))


def folds_of(config: Config, folds: int | None) -> list[str | None]:
    """Return the `data.fold` of every run of a trial; [None] for one held-out split.

    Args:
        folds: None: the config's own validation split, or 3 without one.
    """
    data, has_split = config.data, kind_of_data(config.data.name) == "graph"
    if config.model.is_generator:
        raise ConfigError(f"tune needs validation accuracy, and {config.model.name} has none")
    if config.patience is not None:
        raise ConfigError("tune compares trials at equal steps: remove patience (--patience=null)")
    if data.fold is not None:
        raise ConfigError("tune sets data.fold itself: use --folds")
    held_out = data.validation not in (None, AUTO)
    if folds is not None and (held_out or has_split):
        both = "give --folds or data.validation, not both (--data.validation=null)"
        raise ConfigError(f"--folds: {data.name} has a validation split of its own" if has_split else both)
    if held_out or has_split:
        return [None]
    return [f"{i}/{folds or 3}" for i in range(1, (folds or 3) + 1)]
