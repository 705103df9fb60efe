"""Reuse memory from step to step on a CPU."""

from __future__ import annotations

import ctypes
import os
import re
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of mallopt, in glibc's malloc.h
_NEVER = -1
_SIZES = (2**31 - 1, 2**25)  # the largest that mallopt takes; before glibc 2.35 that was 32 MB
_OF_THE_USER = re.compile(r"(mmap_threshold|mmap_max|trim_threshold|top_pad)", re.IGNORECASE)


def keep_memory() -> bool:
    """Keep freed memory in the process instead of giving it back to the system; for training on a CPU.

    By default glibc gives large blocks back when they are freed, so every step pays for its memory again, in page
    faults. Call this once, before or after torch is imported; `hypersphere train` does. From then on the whole
    process keeps its peak memory.

    Nothing is changed, and False returned, on systems without glibc, under another allocator (LD_PRELOAD), and where
    the environment configures glibc (MALLOC_TRIM_THRESHOLD_, GLIBC_TUNABLES and the like).

    Example:
        >>> keep_memory() in (True, False)
        True
    """
    if not sys.platform.startswith("linux") or _allocator_is_configured():
        return False
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "gnu_get_libc_version"):
        return False
    keeps = any(libc.mallopt(_MMAP_THRESHOLD, size) for size in _SIZES)
    return bool(libc.mallopt(_TRIM_THRESHOLD, _NEVER)) and keeps


def _allocator_is_configured() -> bool:
    """Return whether the environment selects another allocator, or configures glibc's."""
    if re.search(r"malloc|hoard", os.environ.get("LD_PRELOAD", "")):  # jemalloc, tcmalloc, mimalloc
        return True
    own = [name for name in os.environ if name.startswith("MALLOC_")]
    return any(_OF_THE_USER.search(text) for text in (*own, os.environ.get("GLIBC_TUNABLES", "")))
