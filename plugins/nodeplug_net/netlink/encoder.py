"""pyroute2's message classes, without the rest of the library.

Owns: when the body of the package `pyroute2` runs. It imports every socket, protocol and database that the library has,
about 150 modules and 7 MiB more than the classes of the messages that are sent here.
Refuses: to hide the library from others: any other name of the package imports all the rest, as an ordinary import
does.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, module_from_spec
from threading import RLock
from types import ModuleType
from typing import Any, Final

_PACKAGE: Final = "pyroute2"


def message_class(module: str, name: str) -> Any:
    """Return a class of a module of pyroute2.

    Args:
        module: below the package, such as `netlink.rtnl.rtmsg`.
        name: of the class.

    Raises:
        ImportError: pyroute2 is missing, or has no such module.
    """
    if _PACKAGE not in sys.modules:
        _POSTPONED.prepare()
    with _POSTPONED.kept():
        return getattr(import_module(f"{_PACKAGE}.{module}"), name)


class _Body:
    """The body of the package, which runs when a name is needed that only it defines."""

    def __init__(self) -> None:
        self._lock = RLock()
        self._busy = False

    def prepare(self) -> None:
        """Register the package without its body; its modules can still be imported."""
        with self._lock:
            spec = None if _PACKAGE in sys.modules else find_spec(_PACKAGE)
            if spec is not None:
                package = module_from_spec(spec)
                package.__dict__["__getattr__"] = partial(self._ask, package, spec)
                sys.modules[_PACKAGE] = package

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Import modules of the package without the body."""
        with self._lock:
            before, self._busy = self._busy, True
            try:
                yield
            finally:
                self._busy = before

    def _ask(self, package: ModuleType, spec: ModuleSpec, name: str) -> Any:
        """Resolve a name that the package does not have yet (PEP 562)."""
        missing = AttributeError(f"module {_PACKAGE!r} has no attribute {name!r}")
        if self._busy and find_spec(f"{_PACKAGE}.{name}") is not None:
            raise missing  # then `from pyroute2 import config` imports the module; no other lock is held
        with self._lock:
            if name not in package.__dict__ and not self._busy:
                with self.kept():
                    spec.loader.exec_module(package)  # type: ignore[union-attr] # it was found, so it has one
                package.__dict__.pop("__getattr__", None)
        if name not in package.__dict__:
            raise missing
        return package.__dict__[name]


_POSTPONED: Final = _Body()
