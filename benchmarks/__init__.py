"""How fast the package is and how much memory it takes, against torch, pytorch-metric-learning and geotorch.

python -m benchmarks [data] [layers] [losses] [memory] [energy] [rotation] [train] [--json FOLDER] [--quick]
"""

import os

# Kineto, under torch.profiler, reports every start and stop on stderr; it reads this when torch is imported.
os.environ.setdefault("KINETO_LOG_LEVEL", "99")
