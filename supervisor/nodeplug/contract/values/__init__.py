"""What crosses the contract: one frozen, slotted value per verb.

Owns: the vocabulary between the host and plugins, a module per style.
Refuses: wire formats (the codecs know those), I/O, defaults that hide a missing answer. One type per verb, because an
optional field that "is always set for ADD" makes every author's code unsound.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nodeplug.contract.values.claims import *
    from nodeplug.contract.values.cni import *
    from nodeplug.contract.values.devices import *
    from nodeplug.contract.values.extenders import *
    from nodeplug.contract.values.provisioning import *
    from nodeplug.contract.values.reports import *
    from nodeplug.contract.values.requests import *
    from nodeplug.contract.values.volumes import *
else:  # imported when the first name is asked for: the road to the first list of devices needs few of them
    _MODULES = ("claims", "cni", "devices", "extenders", "provisioning", "reports", "requests", "volumes")

    def __getattr__(name: str) -> object:
        """Import everything, once."""
        if name != "__all__" and name.startswith("_"):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        modules = [import_module(f"{__name__}.{one}") for one in _MODULES]
        found = {public: getattr(module, public) for module in modules for public in module.__all__}
        globals().update(found, __all__=list(found))
        if name in globals():
            return globals()[name]
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *__getattr__("__all__")})
