"""Names of a package that are imported when the first of them is asked for (PEP 562).

Owns: the one way in which that is done. The road from the execution of the daemon to the first list of devices needs
few names of the contract, and imports would take half of its time.
Refuses: to import anything by itself.
"""

from collections.abc import Callable, Sequence
from importlib import import_module


def late(names: dict[str, object], modules: Sequence[str]) -> Callable[[str], object]:
    """Return what a package's `__getattr__` does: import its modules, once, and have their public names in it.

    Args:
        names: the package's `globals()`.
        modules: their whole names, each with `__all__`.
    """

    def load(name: str) -> object:
        if name == "__all__" or not name.startswith("_"):
            found = {}
            for module in map(import_module, modules):
                found.update({public: getattr(module, public) for public in module.__all__})
            names.update(found, __all__=list(found))
            if name in names:
                return names[name]
        raise AttributeError(f"module {names['__name__']!r} has no attribute {name!r}")

    return load
