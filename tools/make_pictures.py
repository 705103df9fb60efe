"""Draw the pictures of the docs pages: `make tables` runs `python -m tools.make_pictures`.

docs/pictures/NAME.svg is `hypersphere figure NAME`, for every figure that takes no input.
"""

import sys
from pathlib import Path

import torch

from hypersphere._internal.safe_files import write_text
from hypersphere.papers.figures import FIGURES

NAMES = [name for name, figure in FIGURES.items() if figure.inputs[0] == 0]


def main(folder: Path) -> None:
    for name in NAMES:
        write_text(folder / f"{name}.svg", FIGURES[name].draw([]).svg)


if __name__ == "__main__":
    torch.set_num_threads(1)  # many small steps: more threads only wait for each other
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[1] / "docs" / "pictures")
