"""What crosses the contract: one frozen, slotted value per verb.

Owns: the vocabulary between the host and plugins, a module per style.
Refuses: wire formats (the codecs know those), I/O, defaults that hide a missing answer. One type per verb, because an
optional field that "is always set for ADD" makes every author's code unsound.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nodeplug.contract.values.claims import *
    from nodeplug.contract.values.cluster import *
    from nodeplug.contract.values.cni import *
    from nodeplug.contract.values.devices import *
    from nodeplug.contract.values.extenders import *
    from nodeplug.contract.values.provisioning import *
    from nodeplug.contract.values.reports import *
    from nodeplug.contract.values.requests import *
    from nodeplug.contract.values.volumes import *
else:
    from nodeplug.contract.late import late

    _MODULES = ("claims", "cluster", "cni", "devices", "extenders", "provisioning", "reports", "requests", "volumes")
    __getattr__ = late(globals(), [f"nodeplug.contract.values.{one}" for one in _MODULES])

    def __dir__() -> list[str]:
        return sorted({*globals(), *__getattr__("__all__")})
