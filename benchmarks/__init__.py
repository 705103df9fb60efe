"""Measure time and memory against torch, pytorch-metric-learning and geotorch.

python -m benchmarks [name ...] [--json FOLDER] [--quick]; the names are the keys of BENCHMARKS in __main__.py
"""

import os

# Kineto (torch.profiler) prints every start and stop on stderr; it reads this when torch is imported.
os.environ.setdefault("KINETO_LOG_LEVEL", "99")
