"""Fine-tune a trained network by rotations."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from ..train.config import Config, ConfigError, Data, Model, Optimizer, Rotation, derive, load_file, to_tree
from ..train.config.convert import OFF, flags, flatten
from ..train.config.files import format_scalar
from ..train.storage.layout import CONFIG
from ._settings import expand_switches, started_config
from .train import add_train_arguments, train

__all__ = ["add_arguments", "expand_switches", "run"]

#: learning rates of Adam: of the output layer, of scaled rotations, and of all weights with --rotation=off
RATE, ROTATION_RATE, FULL_RATE = 3e-3, 1e-2, 1e-3
DEFAULTS = Config(
    data=Data("image_folder"),
    rotation=Rotation(block_size=32, scaled=True, freeze=True),
    optimizer=Optimizer("adam", lr=RATE, rotation_lr=ROTATION_RATE, weight_decay=0.0),
)
#: what `--help` says of defaults that depend on MODEL or on other flags
_VARYING = {
    "init_from": "MODEL",
    "data.size": "that of a run, else auto",
    "data.channels": "those of a run",
    "optimizer.lr": f"{RATE:g}, with --rotation=off {FULL_RATE:g}",
}
EXAMPLES = """\
  hypersphere finetune runs/opt --data.root=pets                  the network of a run, on a folder of images
  hypersphere finetune resnet18 --weights=resnet18.safetensors --data.root=pets
  hypersphere finetune timm/resnet18.a1_in1k --weights=model.safetensors --data.root=pets --rotation.block_size=16
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "%(prog)s MODEL [--weights FILE] [--data.root DIR] [--a.b=value ...]"
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="what to fine-tune: the folder of a run; or, with --weights, a network of `hypersphere list models`, or "
        "timm/NAME, a network of timm",
    )
    parser.add_argument("--weights", metavar="FILE", help="weights of the network, .safetensors; nothing is fetched")
    add_train_arguments(parser, EXAMPLES, _defaults())
    parser.set_defaults(recipe=None, config=None)


def _defaults() -> dict[str, str]:
    """Return the defaults that are not those of `hypersphere train`, as the help prints them."""
    usual, own = flatten(to_tree(Config())), flatten(to_tree(DEFAULTS))
    changed = {key: format_scalar(value) for key, value in own.items() if usual.get(key) != value}
    of_model = {flag.key: "that of MODEL" for flag in flags() if flag.key.startswith("model.")}
    return {"rotation": "on", **changed, **of_model, **_VARYING}


def run(options: argparse.Namespace) -> int:
    return train(options, finetune_config)


def finetune_config(options: argparse.Namespace) -> Config:
    """Return the config that the flags change: rotate the given network, train the rotations and the output layer.

    With `data.root` the dataset is image_folder unless it is named. To resume, the config is that of the run in `out`.
    """
    changes = options.changes
    for key in ("init_from", "model.name"):
        if key in changes:
            raise ConfigError(f"--{key} is given by MODEL and --weights: remove it")
    start, model, data = _trained(options)
    if (started := started_config(options)) is not None:
        is_same = started.init_from is not None and Path(started.init_from).resolve() == start.resolve()
        return started if is_same else replace(started, init_from=str(start))
    if not {"data.root", "data.name"} & {*changes}:
        raise ConfigError("finetune needs --data.root, a folder of images by class, or --data.name")
    data = replace(data, name=changes.get("data.name", DEFAULTS.data.name))
    config = replace(DEFAULTS, model=model, data=data, init_from=str(start))
    if changes.get("rotation") in OFF:
        return derive(config, rotation=None, optimizer={"lr": FULL_RATE, "rotation_lr": None})
    if changes.get("rotation.method") == "none":  # the output layer alone
        return derive(config, rotation=Rotation("none", freeze=True), optimizer={"rotation_lr": None})
    return config


def _trained(options: argparse.Namespace) -> tuple[Path, Model, Data]:
    """Return where the weights are, their network, and the settings of the images that it takes."""
    folder = Path(options.model).expanduser()
    if folder.is_dir():
        if options.weights is not None:
            raise ConfigError(f"{folder} is a run folder, which has weights: remove --weights")
        if not (folder / CONFIG).is_file():
            raise ConfigError(f"{folder} is not a run folder: it has no {CONFIG}")
        trained = load_file(folder / CONFIG)
        return folder, trained.model, _images_of(folder, trained)
    if options.weights is None:
        raise ConfigError(
            f"MODEL {options.model!r} is not a run folder: give a network's name, and its .safetensors by --weights"
        )
    start = Path(options.weights).expanduser()
    if not start.is_file():
        raise ConfigError(f"--weights: {start} does not exist")
    return start, derive(Config(), {"model.name": options.model}).model, Data()


def _images_of(folder: Path, trained: Config) -> Data:
    """Return the size and the channels of the images that the network of a run was trained with."""
    from ..train.inference.run import load_run

    try:
        spec = load_run(folder).spec
    except (ValueError, OSError):  # the training says what is wrong with the weights
        return Data(size=trained.data.size, channels=trained.data.channels)
    if spec.kind != "images" or spec.dtype != "uint8":
        return Data(size=None)
    channels, height, width = spec.shape
    return Data(size=height if height == width else None, channels=channels if channels in (1, 3) else None)
