"""What nodes say of a resource, as it was last seen.

Owns: reading an annotation once for each change, and how many nodes are remembered. Any thread may ask.
Refuses: I/O, and pods under way (`assumptions`).
"""

from collections.abc import Mapping
from typing import Any, Final

from nodeplug_gpu.free_memory import FreeMemory, Unreadable, annotation_of, decode

_REMEMBERED: Final = 20_000
"""Nodes; Kubernetes supports 5,000."""


class Nodes:
    """The nodes that were seen.

    Args:
        resource: of which they speak.
    """

    def __init__(self, resource: str) -> None:
        self._annotation = annotation_of(resource)
        self._known: dict[str, tuple[str, FreeMemory | Unreadable]] = {}

    def read(self, name: str, node: Mapping[str, Any]) -> FreeMemory | None:
        """Return what a v1 Node says, and remember it; None if it says nothing.

        Raises:
            Unreadable: it says something else.
        """
        annotations = (node.get("metadata") or {}).get("annotations") or {}
        text = annotations.get(self._annotation)
        if not isinstance(text, str):
            self._known.pop(name, None)
            return None
        known = self._known.get(name)
        if known is None or known[0] != text:
            known = (text, _read(text))
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            self._known[name] = known
        if isinstance(known[1], Unreadable):
            raise known[1]
        return known[1]

    def last(self, name: str) -> FreeMemory | None:
        """Return what a node said last; None if it is not known."""
        found = self._known.get(name, ("", None))[1]
        return found if isinstance(found, FreeMemory) else None

    def __len__(self) -> int:
        """Return how many nodes have said something."""
        return len(self._known)


def _read(text: str) -> FreeMemory | Unreadable:
    try:
        return decode(text)
    except Unreadable as error:
        return error
