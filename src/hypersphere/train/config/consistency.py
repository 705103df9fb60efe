"""Cross-field checks of a config: one line per error, naming the keys."""

from __future__ import annotations

import math
from dataclasses import fields
from itertools import pairwise
from pathlib import Path
from typing import Any

from ..._internal import catalog
from ...rotation.rules import RotationOptions
from .groups import Data, Embedding, Energy, Loss, Model, Optimizer, Rotation, Schedule
from .values import AUTO, MATRIX_OPTIMIZERS, ConfigError, kind_of_data, shown

_FACTOR = (1.0, math.inf, "a factor of the angle, >= 1")
_RADIANS = (0.0, math.nextafter(math.pi, 0), "radians, >= 0 and < pi")
_MARGINS = {
    "ga_softmax": _FACTOR,
    "a_softmax": _FACTOR,
    "sphereface_plus": _FACTOR,
    "am_softmax": (0.0, 1.0, "a cosine from 0 to 1"),
    **dict.fromkeys(("arcface", "curricularface", "elasticface"), _RADIANS),
    **dict.fromkeys(("adaface", "sphereface2", "uniface"), (0.0, 1.0, "a number from 0 to 1")),
    "sphereface_r": _FACTOR,
}
_BINARY = ("sphereface2", "uniface")
_KINDS = {"images": "an image", "points": "a point cloud", "text": "a text", "graph": "a graph"}


def check(config: Any) -> None:
    """Raise ConfigError where two fields of a :class:`Config`, which imports this module, contradict each other."""
    _top(config)
    _model(config.model)
    _data(config.data, config.model)
    _loss(config.loss)
    if config.energy is not None:
        _energy(config.energy)
    if config.embedding is not None:
        _embedding(config.embedding, config.loss)
    if config.rotation is not None:
        _rotation(config.rotation)
    if config.model.is_generator:
        _adversarial(config)
    else:
        _reject_if(config.gan is not None, f"gan needs model.name=generator.mhe, got {config.model.name}")
    _optimizer(config.optimizer, config.rotation)
    wrong = config.loss.sparse and config.optimizer.name != "row_sgd"
    _reject_if(wrong, f"loss.sparse needs optimizer.name=row_sgd, got {config.optimizer.name}")
    compiled = config.compile and (config.loss.sparse or config.loss.sample is not None)
    _reject_if(compiled, "loss.sample and loss.sparse need compile=false: the classes differ from step to step")
    _schedule(config.schedule, config.rotation)


def _reject_if(wrong: Any, message: str) -> None:
    if wrong:
        raise ConfigError(message)


def _reject_unused(group: Loss | Optimizer, taken: dict[str, tuple[str, ...]], allowed: tuple[str, ...]) -> None:
    """Raise for a field that is set, but belongs to other names of the group's table."""
    for field in fields(group):
        if field.name not in ("name", *allowed) and getattr(group, field.name) != field.default:
            fitting = ", ".join(name for name, options in taken.items() if field.name in options)
            key, name = group.prefix + field.name, group.prefix + "name"
            raise ConfigError(f"{key} needs {name} to be one of {fitting}; got {group.name}")


def _top(config: Any) -> None:
    both = config.steps is not None and config.epochs is not None
    _reject_if(both, f"give steps or epochs, not both; got steps={config.steps} and epochs={config.epochs}")
    kind = kind_of_data(config.data.name)
    is_folder = config.data.validation == AUTO and config.data.name == "image_folder"  # which may have no test
    holds_out = config.data.validation not in (None, AUTO) or config.data.fold is not None
    has_validation = holds_out or is_folder or kind == "graph"  # which has a validation split
    stops_by_test = config.patience is not None and not has_validation
    _reject_if(stops_by_test, "patience needs data.validation: early stopping must not use the test set")
    has_layout = kind in ("images", None) or not config.channels_last
    _reject_if(not has_layout, f"channels_last is for images, but data.name={config.data.name} is {kind}")


def _model(model: Model) -> None:
    _reject_if(model.scale is False, "model.scale must be true, a number, auto or null, got False")
    alone = model.scale not in (None, "auto") and model.similarity is None
    _reject_if(alone, "model.scale needs model.similarity")
    learned = (model.similarity or "").strip().startswith("learnable")
    _reject_if(model.k_per is not None and not learned, "model.k_per needs model.similarity=learnable")


def _data(data: Data, model: Model) -> None:
    if data.root is not None and data.name == "digits":
        raise ConfigError(f"data.name=digits reads no files, but data.root is given: {_name_for(data.root)}")
    kind, wanted = kind_of_data(data.name), catalog.MODELS.get(model.name)
    fitting = ", ".join(name for name, kind in catalog.DATA.items() if kind == wanted)
    _reject_if(
        kind is not None and wanted is not None and kind != wanted,
        f"model.name={model.name} needs {_KINDS.get(str(wanted))} dataset ({fitting}), but data.name={data.name} has "
        f"{'a graph' if kind == 'graph' else kind}",
    )
    if data.augment in catalog.AUGMENTATIONS and kind is not None:
        fits = "points" if data.augment.startswith("modelnet") else "images"
        _reject_if(kind in ("text", "graph"), f"data.augment: there is none for {kind}, got data.name={data.name}")
        _reject_if(fits != kind, f"data.augment={data.augment} is for {fits}, but data.name={data.name} is {kind}")
        crops = data.augment in ("cifar10+.spherenet", "cifar10+.spherenet.vertical", "cifar.mhe")
        too_small = crops and data.name == "digits" and data.size in (None, AUTO)
        message = f"data.augment={data.augment} crops to 32 pixels, and the images of data.name=digits have 8"
        _reject_if(too_small, message)
    sized = data.size not in (None, AUTO) and kind not in ("images", None)
    _reject_if(sized, f"data.size: only images have one, got {data.name}")
    _reject_if(data.channels == 2, "data.channels must be 1, 3 or null, got 2")
    coloured = data.channels is not None and kind not in ("images", None)
    _reject_if(coloured, f"data.channels: only images have them, got {data.name}")
    other = data.labels is not None and data.name != "cifar100"
    _reject_if(other, f"data.labels: only cifar100 has fine and coarse labels, got data.name={data.name}")
    too_large = isinstance(data.validation, float) and data.validation >= 1
    _reject_if(too_large, f"data.validation must be a share below 1 or an integer, got {shown(data.validation)}")
    if data.fold is not None:
        number, of = map(int, data.fold.split("/"))
        is_fold = 1 <= number <= of and of >= 2
        _reject_if(not is_fold, f"data.fold must be 1/K to K/K with K >= 2, got {shown(data.fold)}")
        _reject_if(data.validation not in (None, AUTO), "give data.validation or data.fold, not both")
    no_classes = data.images_per_class is not None and kind in ("graph", "text")
    _reject_if(no_classes, f"data.images_per_class: batches of {kind} are not by class, got data.name={data.name}")
    for key in ("imbalance", "validation", "fold"):
        splits = getattr(data, key) not in (None, AUTO) and kind == "graph"
        _reject_if(splits, f"data.{key}: the samples of a graph are split already, got data.name={data.name}")
    _reject_if(data.imbalance is not None and kind == "text", "data.imbalance: text has no classes, got data.name=text")


def _name_for(root: str) -> str:
    """Guess the data.name that was meant from what the folder `root` contains."""
    where = Path(root).expanduser()
    datasets = [name for name, names in catalog.FOLDERS.items() if any((where / name).is_dir() for name in names)]
    if datasets:
        named = [name for name in datasets if name != "modelnet"]  # which is modelnet40 or modelnet10
        return f"set data.name to what the folder contains: {' or '.join(named)}"
    return "set data.name=image_folder for your own images"


def _loss(loss: Loss) -> None:
    is_margin = loss.name not in catalog.LOSSES or loss.name in catalog.MARGINS
    has = catalog.LOSSES.get(loss.name, catalog.LOSSES[catalog.MARGINS[0]])
    _reject_if(is_margin and loss.margin is None, f"loss.name={loss.name} needs loss.margin")
    constants = ("annealing_base", "annealing_rate", "annealing_floor")
    of_angular = ("subcenters", "detach_margin", "stream", "sample", "sparse")
    of_every_head = ("label_smoothing", "energy_weight", "bias", *of_angular)
    _reject_unused(loss, catalog.LOSSES, (*has, *of_every_head, *constants))
    set_keys = [key for key in constants if getattr(loss, key) is not None]
    anneals = "annealing" in has and loss.annealing is not False
    fitting = ", ".join(name for name, options in catalog.LOSSES.items() if "annealing" in options)
    _reject_if(
        set_keys and not anneals,
        f"loss.{''.join(set_keys[:1])} needs annealing and loss.name to be one of {fitting}; got {loss.name}",
    )
    is_metric = loss.name.startswith("pml.")
    no_head = loss.bias is not None and (loss.name == "softmax" or is_metric)
    _reject_if(no_head, "loss.bias needs an angular loss; with softmax the network's last layer has its own")
    no_head = loss.energy_weight is not None and (loss.name in ("softmax", "center") or is_metric)
    _reject_if(no_head, f"loss.energy_weight needs an angular loss; with {loss.name} use energy.output_weight")
    for key in of_angular:
        no_head = getattr(loss, key) is not None and (loss.name in ("softmax", "center") or is_metric)
        _reject_if(no_head, f"loss.{key} needs an angular loss, got loss.name={loss.name}")
    smoothed = loss.label_smoothing and loss.name in _BINARY
    _reject_if(smoothed, f"loss.label_smoothing must be 0 with {loss.name}, whose classes share no probability")
    if loss.margin is not None and not is_margin and not is_metric:
        low, high, unit = _MARGINS["am_softmax" if loss.kind == "cos" else loss.name]
        fits = low <= loss.margin <= high
        _reject_if(not fits, f"loss.margin of {loss.name} must be {unit}, got {shown(loss.margin)}")


def _energy(energy: Energy) -> None:
    unused = energy.half_space and energy.hidden_weight == 0
    _reject_if(unused, "energy.half_space applies to hidden layers only, but energy.hidden_weight is 0")
    for key in ("half_space", "angular", "minibatch"):
        fitting = [name for name, options in catalog.MEASURES.items() if key in options]
        own = energy.measure not in catalog.MEASURES and key != "minibatch"  # the user's
        wrong = getattr(energy, key) and not own and energy.measure not in fitting
        _reject_if(wrong, f"energy.{key} needs energy.measure to be one of {', '.join(fitting)}; got {energy.measure}")


def _embedding(embedding: Embedding, loss: Loss) -> None:
    no_head = "embedding needs a loss whose network returns embeddings, such as s_softmax, arcface or pml.SupConLoss; "
    _reject_if(loss.name == "softmax", f"{no_head}got loss.name=softmax")
    has = catalog.EVENNESS[embedding.measure]
    for key in ("half_space", "angular"):
        wrong = getattr(embedding, key) and key not in has
        _reject_if(wrong, f"embedding.{key} needs embedding.measure=energy, got {embedding.measure}")
    no_classes = loss.name == "center" or loss.name.startswith("pml.") or loss.subcenters not in (None, 1)
    no_classes &= embedding.measure == "hug"
    _reject_if(no_classes, "embedding.measure=hug needs an angular loss with one weight vector of each class")


def _rotation(rotation: Rotation) -> None:
    try:
        RotationOptions.of(rotation).check("rotation.")
    except ValueError as error:
        raise ConfigError(str(error)) from None
    redrawn = rotation.sample is not None or rotation.shuffle
    _reject_if(rotation.every is not None and not redrawn, "rotation.every needs rotation.sample or rotation.shuffle")
    for key in ("spread_measure", "spread_half_space", "spread_steps"):
        is_set = getattr(rotation, key) is not None
        _reject_if(is_set and not rotation.spread, f"rotation.{key} needs rotation.spread")
    fitting = [name for name, options in catalog.MEASURES.items() if "half_space" in options]
    measure = rotation.spread_measure or "energy"
    _reject_if(
        rotation.spread_half_space and measure in catalog.MEASURES and measure not in fitting,
        f"rotation.spread_half_space needs rotation.spread_measure to be one of {', '.join(fitting)}; got {measure}",
    )
    fixed = rotation.renormalize and rotation.neurons == "fixed"
    _reject_if(
        fixed, "rotation.renormalize needs rotation.neurons=learned: fixed neurons keep the norm they start with"
    )
    for key, is_set in (("penalty", rotation.penalty is not None), ("penalty_squared", not rotation.penalty_squared)):
        wrong = is_set and rotation.method != "regularized"
        _reject_if(wrong, f"rotation.{key} needs rotation.method=regularized, got {rotation.method}")


def _adversarial(config: Any) -> None:
    name = config.model.name
    rotation, data = config.rotation, config.data
    of_classifiers = {
        "loss.name": config.loss.name != "softmax",
        "data.validation": data.validation not in (None, AUTO),
        "data.fold": data.fold is not None,
        "optimizer.decay_layers": config.optimizer.decay_layers,
        "rotation.freeze": rotation is not None and rotation.freeze,
        "rotation.exclude": rotation is not None and rotation.exclude,
    }
    for key, is_set in of_classifiers.items():
        _reject_if(is_set, f"{key} needs a classifier, but {name} is trained against another network")
    rotated = rotation is not None and rotation.layers != "hidden"
    _reject_if(rotated, f"rotation.layers must be hidden for {name}, which has no classes")
    if config.gan is not None:
        _gan(config)


def _gan(config: Any) -> None:
    norm, of_weights = config.gan.norm, config.gan.norm in ("weight", "spectral")
    of_batch = norm == "batch" or config.model.batch_norm
    _reject_if(
        config.gan.gradient_penalty and of_batch,
        "gan.gradient_penalty needs the gradient of single images, which batch normalization mixes: use gan.norm=layer"
        " and leave model.batch_norm out",
    )
    _reject_if(of_weights and config.rotation, f"gan.norm={norm} and rotation both change the weights: give one")
    _reject_if(
        config.gan.clip_weights is not None and (of_weights or config.rotation),
        f"gan.clip_weights needs plain weights, got {f'gan.norm={norm}' if of_weights else 'rotation'}",
    )


def _optimizer(optimizer: Optimizer, rotation: Rotation | None) -> None:
    name = "sgd" if optimizer.name == AUTO else optimizer.name  # auto becomes another one if no field is set
    method = "none at all" if rotation is None else rotation.method
    _reject_if(name == "ogd" and method != "ogd", f"optimizer.name=ogd needs rotation.method=ogd, got {method}")
    _reject_if(method == "ogd" and name != "ogd", f"rotation.method=ogd needs optimizer.name=ogd, got {optimizer.name}")
    has = catalog.OPTIMIZERS[name]
    _reject_unused(
        optimizer, catalog.OPTIMIZERS, (*has, "lr", "weight_decay", "rest_lr", "rotation_lr", "decay_layers")
    )
    whole = optimizer.rest_lr and name not in MATRIX_OPTIMIZERS
    _reject_if(whole, f"optimizer.rest_lr needs optimizer.name to be one of {', '.join(MATRIX_OPTIMIZERS)}, got {name}")
    decays = optimizer.weight_decay > 0 and "weight_decay" not in has
    _reject_if(decays, f"optimizer.weight_decay must be 0: {name} has no weight decay")
    sgd = name == "ogd" and optimizer.rest == "sgd"
    _reject_if(sgd and optimizer.betas, "optimizer.betas with optimizer.name=ogd needs optimizer.rest=adam")
    fixed = rotation is None or method == "none"
    _reject_if(optimizer.rotation_lr and fixed, "optimizer.rotation_lr needs rotations (rotation.method)")
    idle = optimizer.decay_layers and not optimizer.weight_decay
    _reject_if(idle, "optimizer.decay_layers needs optimizer.weight_decay > 0")


def _schedule(schedule: Schedule, rotation: Rotation | None) -> None:
    step, plateau = schedule.name == "step", schedule.name == "plateau"
    milestones = schedule.milestones
    _reject_if(milestones and not step, f"schedule.milestones needs schedule.name=step, got {schedule.name}")
    _reject_if(step and not milestones, "schedule.name=step needs schedule.milestones, the steps at which lr falls")
    for before, after in pairwise(milestones):
        _reject_if(after <= before, f"schedule.milestones must increase, got {after} after {before}")
    for key in ("rotation_gamma", "batch_norm"):
        is_set = getattr(schedule, key) is not None
        _reject_if(is_set and not step, f"schedule.{key} needs schedule.name=step, got {schedule.name}")
    fixed = rotation is None or rotation.method == "none"
    _reject_if(schedule.rotation_gamma and fixed, "schedule.rotation_gamma needs rotations (rotation.method)")
    waits = schedule.patience is not None and not plateau
    _reject_if(waits, f"schedule.patience needs schedule.name=plateau, got {schedule.name}")
