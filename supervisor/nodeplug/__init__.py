"""nodeplug: one daemon per Kubernetes node for device plugins, CNI plugins and FlexVolume drivers written in Python.

Everything that a plugin author needs is importable from here: `hookimpl`, the values that hooks take and return, and
the errors that they raise. The contract itself is documented in `nodeplug.contract.hookspecs`.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nodeplug.contract.bounded import *
    from nodeplug.contract.cgroups import *
    from nodeplug.contract.cluster import *
    from nodeplug.contract.errors import *
    from nodeplug.contract.hookspecs import *
    from nodeplug.contract.host import *
    from nodeplug.contract.inputs import *
    from nodeplug.contract.journal import *
    from nodeplug.contract.mounts import *
    from nodeplug.contract.netns import *
    from nodeplug.contract.plugin_class import *
    from nodeplug.contract.sockets import *
    from nodeplug.contract.values import *
else:
    from nodeplug.contract.late import late

    _MODULES = (
        "bounded",
        "cgroups",
        "cluster",
        "errors",
        "hookspecs",
        "host",
        "inputs",
        "journal",
        "mounts",
        "netns",
        "plugin_class",
        "sockets",
        "values",
    )
    _late = late(globals(), [f"nodeplug.contract.{one}" for one in _MODULES])

    def __getattr__(name: str) -> object:
        """Import the contract, once; say what to write instead of a name that it had before version 1."""
        if find_spec(f"{__name__}.{name}") is not None:  # `from nodeplug import MODULE` asks here first
            raise AttributeError(name)
        try:
            return _late(name)
        except AttributeError:
            if not name.startswith("_") and (gone := import_module("nodeplug.contract.before").told(name)):
                raise ImportError(gone) from None
            raise

    def __dir__() -> list[str]:
        return sorted({*globals(), *_late("__all__")})
