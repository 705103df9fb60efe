"""Half precision on CPUs that report AMX but trap when it runs, as some virtual machines do."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from pathlib import Path

VARIABLE = "ONEDNN_MAX_CPU_ISA"
LIMITS = ("AVX512_CORE_FP16", "AVX512_CORE_BF16")  # instruction sets below AMX, the largest first
_CPU_INFO = Path("/proc/cpuinfo")
# No core file: the process is expected to die. The sizes are large enough for oneDNN to choose AMX.
_TRIAL = """
import resource, torch
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
for dtype in (torch.bfloat16, torch.float16):
    rows = torch.ones(64, 64, dtype=dtype, requires_grad=True)
    images = torch.ones(2, 32, 8, 8, dtype=dtype, requires_grad=True)
    filters = torch.ones(32, 32, 3, 3, dtype=dtype, requires_grad=True)
    (rows @ rows).sum().backward()
    torch.nn.functional.conv2d(images, filters).sum().backward()
"""


@cache
def avoid_trapping_amx() -> str | None:
    """Keep oneDNN from AMX if it kills a process; return one line that says so, or None if nothing was changed.

    The kernel grants AMX on such machines, so only running it tells: products and convolutions in half precision run in
    a child process, only where the CPU reports AMX and the user has not limited oneDNN. Call it before the process
    first uses oneDNN, which reads the variable once.
    """
    if VARIABLE in os.environ or not _reports_amx() or not _dies({}):
        return None
    limit = next((name for name in LIMITS if not _dies({VARIABLE: name})), LIMITS[-1])
    os.environ[VARIABLE] = limit
    return f"this CPU reports AMX but bfloat16 products end in 'Illegal instruction': {VARIABLE}={limit} is set"


def _reports_amx() -> bool:
    try:
        return "amx_tile" in _CPU_INFO.read_text()
    except OSError:  # not Linux
        return False


def _dies(variables: dict[str, str]) -> bool:
    """Return whether a signal ends a process that uses half precision."""
    trial = subprocess.run([sys.executable, "-c", _TRIAL], env={**os.environ, **variables}, capture_output=True)
    return trial.returncode < 0
