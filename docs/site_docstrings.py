"""Read docstrings as they are written here: `Example:` is a section of doctests, and :func:`name` is a name in code.

The default of a config's field is the first argument of `setting(...)`.
"""

from __future__ import annotations

import re
from typing import Any

from griffe import Attribute, ExprCall, Extension, Object


class Docstrings(Extension):
    def on_object(self, *, obj: Object, **_: Any) -> None:
        if obj.docstring:
            text = re.sub(r"^( *)Example:$", r"\1Examples:", obj.docstring.value, flags=re.MULTILINE)
            obj.docstring.value = re.sub(r":(?:func|class|meth|mod|attr|data):(?=`)", "", text)

    def on_attribute_instance(self, *, attr: Attribute, **_: Any) -> None:
        if isinstance(attr.value, ExprCall) and str(attr.value.function) == "setting":
            attr.value = attr.value.arguments[0]
