"""Convert configs: to and from trees, files and flags. A config names entries of our tables and runs no code.

Values are checked when a group is made, cross-field rules when a :class:`Config` is: every Config instance is valid.
None of this imports torch.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from typing import Any, NamedTuple

from ..._internal import catalog
from ..._internal.checksummed_json import Tree
from ..._internal.nearest import nearest_keys, unknown_name
from . import files
from .config import Config, group_of
from .groups import Group, types_of
from .values import TABLES, ConfigError, parse, shown

ON, OFF = ("on", "true"), ("off", "false", "null", "none")  # texts that turn a group on or off


def from_tree(tree: Mapping[str, Any]) -> Config:
    """Build a config from plain dicts, lists and numbers, as YAML and JSON give them; missing keys are defaults.

    Example:
        >>> config = from_tree({"data": {"name": "mnist"}, "rotation": {}})
        >>> config.data.name, config.rotation.method, config.energy
        ('mnist', 'cayley', None)
        >>> from_tree({"model": {"nmae": "cnn9.mhe"}})
        Traceback (most recent call last):
        hypersphere.train.config.ConfigError: unknown setting 'model.nmae', did you mean 'model.name'?
    """
    values = _known_keys("", Config, tree)
    for name, value in values.items():
        kind, optional = group_of(name)
        if kind is not None and not isinstance(value, kind) and not (value is None and optional):
            values[name] = kind(**_known_keys(kind.prefix, kind, value))
    return Config(**values)


def _known_keys(prefix: str, kind: type[Group], tree: Any) -> Tree:
    if not isinstance(tree, Mapping):
        what = f"{prefix[:-1]} must be a group of settings" if prefix else "a config must be a mapping"
        raise ConfigError(f"{what}, got {shown(tree)}")
    names = [leaf.name for leaf in fields(kind)]
    for key in tree:
        if key not in names:
            raise _unknown(prefix, names, key)
    return dict(tree)


def _unknown(prefix: str, names: list[str], key: Any) -> ConfigError:
    name, settings = f"{prefix}{key}", [flag.key for flag in flags()]
    own = [prefix + name for name in names]
    if name in settings:  # with a dot in a single key
        group, _, leaf = name.partition(".")
        return ConfigError(unknown_name("setting", name, [], f"write it as {group}: {{{leaf}: ...}}"))
    near = nearest_keys(name, dict.fromkeys([*own, *settings]))
    return ConfigError(unknown_name("setting", name, near, f"must be one of {', '.join(own)}"))


def load_file(path: str | os.PathLike[str]) -> Config:
    """Read the config of a YAML file, or a JSON file by its ending; an error names the file and the key."""
    try:
        return from_tree(files.read_tree(path))
    except ConfigError as error:
        raise ConfigError(f"{os.fspath(path)}: {error.message}", error.hint) from None


class Flag(NamedTuple):
    """A flag of the command line and the field it sets."""

    flag: str
    field: dataclasses.Field[Any]
    kind: Any  # its type; None for a flag that turns a group on or off
    help: str

    @property
    def key(self) -> str:
        return self.flag.removeprefix("--")


@cache
def flags() -> tuple[Flag, ...]:
    """Return all leaf flags, and one that turns each optional group on or off."""
    flags: list[Flag] = []
    for field in fields(Config):
        kind, optional = group_of(field.name)
        if kind is None:
            flags.append(Flag(f"--{field.name}", field, types_of(Config)[field.name], _help(field)))
            continue
        if optional:
            help = f"{field.metadata['help'].partition(';')[0]}: on or off"
            flags.append(Flag(f"--{field.name}", field, None, help))
        types = types_of(kind)
        flags += [Flag(f"--{kind.prefix}{leaf.name}", leaf, types[leaf.name], _help(leaf)) for leaf in fields(kind)]
    return tuple(flags)


def names_of(leaf: dataclasses.Field[Any]) -> tuple[str, ...]:
    """The names that a field takes, without those that the user has registered."""
    names = leaf.metadata.get("names", ())
    return tuple(TABLES[names]) if isinstance(names, str) else names


def _help(leaf: dataclasses.Field[Any]) -> str:
    text: str = leaf.metadata["help"]
    names = names_of(leaf)
    if words := leaf.metadata.get("words") or (", ".join(names) if 1 < len(names) <= 13 else ""):
        text += f" ({words})"
    default = files.format_scalar(_plain(leaf.default))
    return text if leaf.default in (None, ()) else f"{text} (default: {default})"


def apply(config: Config, changes: Mapping[str, str]) -> Config:
    """Apply flags of a command line to a config: dotted keys, and text that is parsed by the field's type.

    A flag of a group that is off turns it on; ``{"energy": "off"}`` turns it off.
    """
    return derive(config, read_changes(config, changes))


def read_changes(config: Config, changes: Mapping[str, str]) -> dict[str, Any]:
    """Return the values of flags of a command line for :func:`derive`, read as :func:`apply` does."""
    known = {flag.key: flag for flag in flags()}
    values: dict[str, Any] = {}
    for key, text in changes.items():
        if key not in known:
            raise _unknown("", list(known), key)
        if (kind := known[key].kind) is not None:
            values[key] = parse(key, kind, known[key].field.metadata, text)
        elif text in ON:
            values[key] = {}
        elif text in OFF:
            values[key] = None
        else:
            raise ConfigError(f"{key} must be on or off, got {shown(text)}")
    if "model.name" in values and _family(values["model.name"]) != _family(config.model.name):
        values = {"model.widths": None, "model.fc": None} | values  # widths and fc of a recipe fit its network only
    if "weight_decay" not in catalog.OPTIMIZERS.get(values.get("optimizer.name", ""), ("weight_decay",)):
        values = {"optimizer.weight_decay": 0.0} | values  # the default and that of a recipe are for other optimizers
    return values


def _family(model: str) -> str:
    """Return the family of a network: cnn of cnn9.mhe."""
    return model.partition(".")[0].rstrip("0123456789")


def derive(config: Config, changes: Mapping[str, Any] | None = None, /, **more: Any) -> Config:
    """Return the config with some fields changed: how one recipe is made from another.

    Args:
        changes, more: ``{"optimizer.lr": 0.1}``, ``optimizer={"lr": 0.1}``, or a whole group such as
            ``energy=Energy()``; None turns an optional group off. Setting `steps` clears `epochs`, and vice versa.

    Example:
        >>> config = derive(Config(), steps=500, energy={"s": 1}, **{"optimizer.lr": 0.1})
        >>> config.steps, config.epochs, config.energy.s, config.optimizer.lr
        (500, None, 1.0, 0.1)
    """
    tree = to_tree(config)
    changed = {**(changes or {}), **more}
    for key in sorted(changed, key=lambda key: "." in key):  # whole groups before their fields
        value = changed[key]
        group, dot, name = key.partition(".")
        before = tree.get(group)
        before = before if isinstance(before, dict) else {}  # a group that was off has its defaults
        if isinstance(value, Group):
            value = to_tree(value)
        elif isinstance(value, Mapping) and not dot:
            value = {**before, **value}
        tree[group] = {**before, name: value} if dot else value
    for one, other in (("steps", "epochs"), ("epochs", "steps")):
        if one in changed and tree[one] is not None and other not in changed:
            tree[other] = None
    return from_tree(tree)


def to_tree(config: Group) -> Tree:
    """Return plain dicts, lists and numbers with every field, which :func:`from_tree` takes back."""
    return {field.name: _plain(getattr(config, field.name)) for field in fields(config)}


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the values of a tree by dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {prefix + key: value}
    return flat


def _plain(value: Any) -> Any:
    if isinstance(value, Group):
        return to_tree(value)
    return list(value) if isinstance(value, tuple) else value


def to_json(config: Config) -> str:
    """Return the whole config as JSON; floats round-trip exactly."""
    return json.dumps(to_tree(config), indent=2, allow_nan=False) + "\n"


def to_yaml(config: Config) -> str:
    """Return the whole config as YAML that :func:`load_file` reads, with each field's help as a comment."""
    lines: list[tuple[str, str]] = []
    for field in fields(Config):
        value = getattr(config, field.name)
        if isinstance(value, Group):
            lines += [("", ""), (f"{field.name}:", field.metadata["help"].partition(";")[0])]
            leaves = [(leaf, getattr(value, leaf.name), "  ") for leaf in fields(value)]
        else:
            leaves = [(field, value, "")]
            lines += [("", "")] if group_of(field.name)[0] is not None else []
        for leaf, setting, indent in leaves:
            lines.append((f"{indent}{leaf.name}: {files.format_scalar(_plain(setting))}", leaf.metadata["help"]))
    width = min(max(len(line) for line, _ in lines), 40)
    return "".join(f"{line:{width}}  # {help}\n" if help else "\n" for line, help in lines)
