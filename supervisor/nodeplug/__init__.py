"""nodeplug: one daemon per Kubernetes node for device plugins, CNI plugins and FlexVolume drivers written in Python.

Everything that a plugin author needs is importable from here: `hookimpl`, the values that hooks take and return, and
the errors that they raise. The contract itself is documented in `nodeplug.contract.hookspecs`.
"""

from typing import TYPE_CHECKING

from nodeplug.contract import before, errors, hookspecs, host, journal, netns, plugin_class, values
from nodeplug.contract import mounts as _mounts
from nodeplug.contract.errors import *
from nodeplug.contract.hookspecs import *
from nodeplug.contract.host import *
from nodeplug.contract.journal import *
from nodeplug.contract.mounts import *
from nodeplug.contract.netns import *
from nodeplug.contract.plugin_class import *
from nodeplug.contract.values import *

if not TYPE_CHECKING:  # a type checker takes what the stars bring, and knows no more names
    _MODULES = (errors, hookspecs, host, journal, _mounts, netns, plugin_class, values)
    __all__ = [name for module in _MODULES for name in module.__all__]

    def __getattr__(name: str) -> object:
        """Say what to write instead of a name that the contract had before version 1."""
        if gone := before.told(name):
            raise ImportError(gone)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
