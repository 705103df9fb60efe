"""Read docstrings as they are written here: `Example:` is a section of doctests, and :func:`name` is a name in code."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object


class Docstrings(Extension):
    def on_object(self, *, obj: Object, **_: Any) -> None:
        if obj.docstring:
            text = re.sub(r"^( *)Example:$", r"\1Examples:", obj.docstring.value, flags=re.MULTILINE)
            obj.docstring.value = re.sub(r":(?:func|class|meth|mod|attr|data):(?=`)", "", text)
