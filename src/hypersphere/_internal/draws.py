"""Random draws that are the same in every process: seeds are hashed from names, without Python's salt."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, TypeVar

from torch import Generator

F = TypeVar("F", bound=Callable[..., Any])


def stable_hash(*parts: object) -> int:
    """Hash the parts, in this order, to 64 bits."""
    digest = hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def unwrapped_name(name: str) -> str:
    """Strip the prefixes of torch.compile and DistributedDataParallel, so that draws do not depend on wrapping."""
    return name.replace("_orig_mod.", "").removeprefix("module.")


def not_traced(function: F) -> F:
    """Keep torch.compile from tracing a function.

    As torch.compiler.disable does, which imports the compiler: more than a second at every start.
    """
    function._torchdynamo_disable = True  # type: ignore[attr-defined]
    return function


@not_traced
def generator(seed: int, name: str, draw: int) -> Generator:
    """Make a generator that depends only on these three, in every process."""
    return Generator().manual_seed(stable_hash(seed, draw, name) & (2**63 - 1))
