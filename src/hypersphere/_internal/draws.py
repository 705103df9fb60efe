"""Random draws that are the same in every process: seeds are hashed from names, without Python's salt."""

from __future__ import annotations

import hashlib

import torch
from torch import Generator


def stable_hash(*parts: object) -> int:
    """Hash the parts, in this order, to 64 bits."""
    digest = hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def unwrapped_name(name: str) -> str:
    """Strip the prefixes of torch.compile and DistributedDataParallel, so that draws do not depend on wrapping."""
    return name.replace("_orig_mod.", "").removeprefix("module.")


@torch.compiler.disable
def generator(seed: int, name: str, draw: int) -> Generator:
    """Make a generator that depends only on these three, in every process."""
    return Generator().manual_seed(stable_hash(seed, draw, name) & (2**63 - 1))
