"""The tables of the docs pages, written between their markers: python docs/make_tables.py."""

import re
from pathlib import Path

from hypersphere._internal.safe_files import write_text
from hypersphere.models import _table

MODELS = Path(__file__).parent / "models.md"


def with_table(page: str, table: str) -> str:
    """The page with this table between its markers."""
    return re.sub(r"(?<=<!-- networks -->\n).*?(?=<!-- end -->)", lambda _: table, page, flags=re.DOTALL)


if __name__ == "__main__":
    write_text(MODELS, with_table(MODELS.read_text(encoding="utf-8"), _table.markdown()))
