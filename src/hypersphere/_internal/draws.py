"""Draws that are the same in every process: seeds from names, by a hash that Python does not salt."""

from __future__ import annotations

import hashlib

import torch
from torch import Generator


def stable_hash(*parts: object) -> int:
    """64 bits that stand for these parts in this order."""
    digest = hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def unwrapped_name(name: str) -> str:
    """A layer's name without what torch.compile and DistributedDataParallel put before it: its draws stay the same."""
    return name.replace("_orig_mod.", "").removeprefix("module.")


@torch.compiler.disable
def generator(seed: int, name: str, draw: int) -> Generator:
    """Random numbers that depend on nothing but these three, in every process."""
    return Generator().manual_seed(stable_hash(seed, draw, name) & (2**63 - 1))
