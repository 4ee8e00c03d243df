"""Hooks that hand each verb to what does it.

Owns: which method serves which verb, and that the kernel's refusals become errors of the contract.
Refuses: work, claims, and STATUS, which each plugin serves in its own way.
"""

from typing import Generic, Protocol, TypeVar

from nodeplug import CniAdd, CniCheck, CniDel, CniGc, CniResult, CniStatus, hookimpl
from nodeplug_net.undo import kernel_errors


class Verbs(Protocol):
    """What a plugin does; each raises PluginError, or OSError when the kernel refuses."""

    def add(self, request: CniAdd) -> CniResult:
        """Serve ADD; a failure leaves everything as it was."""

    def delete(self, request: CniDel) -> None:
        """Serve DEL."""

    def check(self, request: CniCheck) -> None:
        """Serve CHECK: name every difference."""

    def collect(self, request: CniGc) -> None:
        """Serve GC."""

    def status(self, request: CniStatus) -> None:
        """Serve STATUS."""


_Verbs = TypeVar("_Verbs", bound=Verbs)


class VerbsPlugin(Generic[_Verbs]):
    """A plugin whose verbs are another object's.

    Args:
        verbs: what it does.
    """

    def __init__(self, verbs: _Verbs) -> None:
        self._verbs = verbs

    @hookimpl
    def cni_add(self, request: CniAdd) -> CniResult:
        """Attach a container, or change what the plugins before have made."""
        with kernel_errors():
            return self._verbs.add(request)

    @hookimpl
    def cni_del(self, request: CniDel) -> None:
        """Undo it."""
        with kernel_errors():
            self._verbs.delete(request)

    @hookimpl
    def cni_check(self, request: CniCheck) -> None:
        """Compare it with what is asked for."""
        with kernel_errors():
            self._verbs.check(request)

    @hookimpl
    def cni_gc(self, request: CniGc) -> None:
        """Forget and end what belongs to no valid attachment."""
        with kernel_errors():
            self._verbs.collect(request)
