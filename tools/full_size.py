"""Build the papers' full-size rows and run one step of each: `python -m tools.full_size [TABLE ...] [--memory]`.

The data are random numbers of the true shape and number of classes, two samples a batch. With --memory the memory of
a training step at the row's own batch size is counted instead, on the meta device: weights, gradients, the optimizer's
state, and what the forward pass keeps for the backward pass.
"""

import argparse
import gc
import sys
from typing import Any

from hypersphere.papers import full_size, tables
from hypersphere.papers.table import TableRow
from hypersphere.train.config import Config


def rows(names: list[str]) -> list[tuple[str, TableRow]]:
    return [(name, row) for name in names for row in tables.load(name).rows if row.full is not None]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", metavar="TABLE", nargs="*", default=[*tables.TABLES])
    parser.add_argument("--memory", action="store_true", help="count the memory at the true batch size")
    options = parser.parse_args()
    failed = 0
    done: dict[Any, str] = {}  # rows of different tables are often the same training
    for name, row in rows(options.tables):
        assert row.full is not None
        if row.full not in done:
            try:
                done[row.full] = _line(row.full, options.memory)
            except Exception as error:
                failed += 1
                done[row.full] = f"FAILED: {type(error).__name__}: {' '.join(str(error).split())[:200]}"
            gc.collect()
        print(f"{name}/{row.name}: {done[row.full]}", flush=True)
    return int(failed > 0)


def _line(config: Config, count_memory: bool) -> str:
    if not count_memory:
        one = full_size.step(config, 2)
        return f"loss {one.loss:.3f}, {one.weights / 1e6:.1f} MB of weights, {one.seconds:.1f} s"
    one = full_size.at_own_batch(config)
    batch = full_size.GRAPHS.get(config.data.name, (config.data.batch_size,))[0]
    shown = ", ".join(f"{name} {getattr(one, name) / 1e9:.2f}" for name in ("weights", "gradients", "state", "kept"))
    return f"{one.memory / 1e9:.2f} GB at batch {batch} ({shown})"


if __name__ == "__main__":
    sys.exit(main())
