"""nodeplug: one daemon per Kubernetes node for device plugins, CNI plugins and FlexVolume drivers written in Python.

Everything that a plugin author needs is importable from here: `hookimpl`, the values that hooks take and return, and
the errors that they raise. The contract itself is documented in `nodeplug.contract.hookspecs`.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nodeplug.contract.errors import *
    from nodeplug.contract.hookspecs import *
    from nodeplug.contract.host import *
    from nodeplug.contract.journal import *
    from nodeplug.contract.mounts import *
    from nodeplug.contract.netns import *
    from nodeplug.contract.plugin_class import *
    from nodeplug.contract.values import *
else:  # imported when the first name is asked for: the road to the first list of devices needs few of them
    _MODULES = ("errors", "hookspecs", "host", "journal", "mounts", "netns", "plugin_class", "values")

    def __getattr__(name: str) -> object:
        """Import the contract, once; say what to write instead of a name that it had before version 1."""
        if name != "__all__" and name.startswith("_"):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        modules = [import_module(f"{__name__}.contract.{one}") for one in _MODULES]
        found = {public: getattr(module, public) for module in modules for public in module.__all__}
        globals().update(found, __all__=list(found))
        if name in globals():
            return globals()[name]
        if gone := import_module(f"{__name__}.contract.before").told(name):
            raise ImportError(gone)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *__getattr__("__all__")})
