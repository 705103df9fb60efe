"""Suggest the nearest name for an unknown one, the same way for Python, configs and flags. Needs no torch."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from difflib import SequenceMatcher
from functools import wraps
from typing import Any, TypeVar, get_args, get_type_hints

F = TypeVar("F", bound=Callable[..., Any])

_CLOSE = 0.6  # smallest likeness of two names
_LONGEST = 100  # number of characters compared

#: what other programs call a setting, and difflib would not find → the first of these that there is
ALIASES = {
    "learning_rate": "optimizer.lr",
    "wd": "optimizer.weight_decay",
    "optim": "optimizer.name",
    "batch": "data.batch_size",
    "bs": "data.batch_size",
    "dataset": "data.name",
    "image_size": "data.size",
    "num_workers": "data.workers",
    "arch": "model.name",
    "network": "model.name",
    **dict.fromkeys(("o", "out", "outfile", "output", "output_dir", "save_dir"), "out html"),
    "gpu": "device",
    "fp16": "amp",
    "bf16": "amp",
}

#: class here → what papers and other packages call it, without "Loss"
OTHER_CLASSES = {
    "AMSoftmaxLoss": "CosFace LMCL",
    "ASoftmaxLoss": "SphereFace",
    "Hyperball": "AdamH MuonSphere",
    "SSoftmaxLoss": "NormFace NormalizedSoftmax",
    "optim.MuonAdamW": "Muon MuonAdamW",
    "optim.RowSGD": "RowSGD",
}

#: an argument here → what other packages call it; "": what has no counterpart here, although a name is similar
OTHER_NAMES = {
    "": "easy_margin",
    "block_size": "oft_block_size",
    "blocks": "r",
    "class_weight": "weight weights",
    "context": "block_size context_length max_length max_seq_len seq_len",
    "depth": "n_layer n_layers num_hidden_layers num_layers",
    "dropout": "module_dropout",
    "embedding_size": "dim emb_size embedding_dim feat_dim feature_dim in_dim in_features input_size num_features",
    "exclude": "exclude_modules",
    "heads": "n_head n_heads num_attention_heads num_heads",
    "hidden_weight": "lam lambda_ weight",
    "in_channels": "channels in_features input_channels",
    "in_features": "in_channels in_dim input_size",
    "input_size": "image_size img_size in_features",
    "layers": "modules target_modules",
    "lr": "learning_rate",
    "margin": "m",
    "num_classes": "class_num classes classnum n_classes nb_classes nclasses num_class out_dim out_features",
    "out_channels": "filters out_features",
    "out_features": "n_classes num_classes out_channels out_dim",
    "scale": "gamma s",
    "similarity": "operator sim",
    "subcenters": "num_subcenters sub_centers",
    "weight_decay": "wd",
    "width": "d_model dim embed_dim hidden_size n_embd",
}


def nearest_few(name: str, among: Iterable[str], n: int = 3) -> list[str]:
    """Return at most `n` names similar to `name`, the nearest first, ignoring case."""
    likeness = {candidate: _likeness(candidate.lower(), name[:_LONGEST].lower()) for candidate in among}
    ranked = sorted(likeness, key=lambda candidate: -likeness[candidate])
    return [candidate for candidate in ranked if likeness[candidate] >= _CLOSE][:n]


def _likeness(one: str, other: str) -> float:
    """Return difflib's similarity, and a little more for the same letters and for every letter of a common prefix."""
    same = 0.2 if sorted(one) == sorted(other) else 0.0
    prefix = sum(other.startswith(one[: i + 1]) for i in range(len(one)))
    return SequenceMatcher(None, one, other).ratio() + same + 0.03 * prefix


def nearest_argument(name: str, allowed: Iterable[str]) -> list[str]:
    """Return the argument that `name` may mean, in a list; empty if none is near."""
    meant = [ours for ours, others in OTHER_NAMES.items() if name in others.split()]
    return [argument for argument in allowed if argument in meant] if meant else nearest_few(name, allowed, 1)


def public_name_hint(name: str, names: Iterable[str]) -> str:
    """Return how the error for an unknown public name ends: with the name that it may mean, if there is one."""
    other = name.removesuffix("Loss")
    names = list(names)
    for ours, others in OTHER_CLASSES.items():
        if other in others.split() and ours.partition(".")[0] in names:
            return f"; {other} is {ours} here"
    near = nearest_few(name, names, 1)
    return f", did you mean {near[0]!r}?" if near else ""


def explain_keywords(function: F) -> F:
    """Decorate a function or constructor: TypeError for an unknown keyword, with the nearest one or all there are."""

    @wraps(function)
    def call(*args: Any, **keywords: Any) -> Any:
        try:
            return function(*args, **keywords)
        except TypeError:
            allowed = _keywords(function)
            for name in keywords:
                if name not in allowed:
                    near = nearest_argument(name, allowed)
                    hint = f"did you mean {' or '.join(map(repr, near))}?" if near else f"it takes {', '.join(allowed)}"
                    called = type(args[0]).__name__ if function.__name__ == "__init__" else function.__name__
                    raise TypeError(f"{called}() got an unexpected keyword argument {name!r}; {hint}") from None
            raise

    return call  # type: ignore[return-value]


def _keywords(function: Callable[..., Any]) -> list[str]:
    """Return the keywords that a function takes, with those of a TypedDict in `**options: Unpack[...]`."""
    names: list[str] = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            names += get_args(get_type_hints(function)[parameter.name])[0].__annotations__
        elif parameter.name != "self":
            names.append(parameter.name)
    return names


def unknown_name(what: str, value: str, near: list[str], otherwise: str) -> str:
    """Return the error message for an unknown name: the near ones as a question, or `otherwise` if there are none."""
    return f"unknown {what} {value!r}, " + (f"did you mean {' or '.join(map(repr, near))}?" if near else otherwise)


def unknown(what: str, value: Any, allowed: Iterable[Any], also: str = "") -> str:
    """Return the error message for a value that is not allowed, with the nearest name if one is near.

    Args:
        what: the argument.
        also: what else is allowed, such as " or a callable".
    """
    names = list(map(str, allowed))
    near = nearest_argument(value, names) if isinstance(value, str) and value not in names else []
    listed = f"one of {', '.join(names)}{also}"
    return f"{unknown_name(what, value, near, '')} ({listed})" if near else f"{what} must be {listed}; got {value!r}"


def check_options(what: str, options: Iterable[str], accepted: Iterable[inspect.Parameter]) -> None:
    """Require options that a registered function takes: all of them if it has ``**options``."""
    known = {parameter.name: parameter.kind for parameter in accepted}
    for option in () if inspect.Parameter.VAR_KEYWORD in known.values() else options:
        if option not in known:
            none = f"{what} has no options, got {option!r}"
            raise ValueError(unknown(f"{what} option", option, known) if known else none)


def nearest_keys(key: str, known: Iterable[str]) -> list[str]:
    """Return the settings that `key` may mean, dotted as in ``optimizer.lr``; empty if none is near."""
    known = list(known)
    key = key[:_LONGEST].lower().replace("-", "_")
    group, _, name = key.rpartition(".")
    if aliases := [alias for alias in ALIASES.get(name, "").split() if alias in known]:
        return aliases[:1]
    if others := [setting for setting in known if setting.endswith(f".{name}")]:  # in another group
        return [f"{near}.{name}" for near in nearest_few(group, [e.rpartition(".")[0] for e in others], 1)] or others
    settings = [setting for setting in known if setting.startswith(f"{name}.")]
    if not group and settings:  # the name of a group
        return [setting for setting in settings if setting.endswith((".name", ".root"))] or settings[:1]
    of_group = [setting for setting in known if group and setting.startswith(f"{group}.")]
    if of_group:
        return [f"{group}.{near}" for near in nearest_few(name, [e.rpartition(".")[2] for e in of_group], 1)]

    def likeness(setting: str) -> float:
        """Compare whole keys and last parts; the better one counts."""
        return max(_likeness(setting, key), _likeness(setting.rpartition(".")[2], name))

    best = max(known, key=likeness, default=None)
    return [] if best is None or likeness(best) < _CLOSE else [best]
