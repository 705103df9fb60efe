"""Import timm without torchvision, which is not installed: its mere presence breaks lightning, torchmetrics and peft.

timm takes names from torchvision when it is imported (image transforms, one norm) that no network here uses.
While timm is imported they are empty classes; afterwards torchvision is absent again for everybody else.
"""

import importlib.abc
import importlib.machinery
import sys
from types import ModuleType


class _Empty(type):
    """A class whose attributes, members of an enum say, are their own names."""

    def __getattr__(cls, name: str) -> str:
        if name.startswith("__"):
            raise AttributeError(name)
        return name


class _Torchvision(ModuleType):
    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Empty(name, (), {})


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, fullname, path=None, target=None):
        if fullname.partition(".")[0] == "torchvision":
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec):
        return _Torchvision(spec.name)

    def exec_module(self, module):
        pass


_finder = _Finder()
sys.meta_path.insert(0, _finder)
try:
    import timm as timm
finally:
    sys.meta_path.remove(_finder)
    for _name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        del sys.modules[_name]
