"""Conditions of the Node for what of the daemon is not ready, each with the daemon's sentence.

Owns: their types, and how long something must last before the cluster is told: a plugin that is exchanged is away for a
second, and a sentence may count tries.
Refuses: conditions that plugins report themselves, and the clock: it is told the time.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from nodeplug.cluster.desired import MESSAGE
from nodeplug.cluster.names import label_value
from nodeplug.contract.errors import clip
from nodeplug.contract.values import NodeCondition

LASTING: Final = 10.0
"""Seconds that something is not ready before it is a condition."""
UNCHANGED: Final = 60.0
"""Seconds that a sentence stays while another one is due."""
DOMAIN: Final = "nodeplug.io"


@dataclass(slots=True)
class _Trouble:
    since: float
    said: str = ""
    at: float = 0.0


@dataclass(slots=True)
class NotReadyConditions:
    """Remembers what is not ready, and since when."""

    _troubles: dict[str, _Trouble] = field(default_factory=dict)

    def now(self, reasons: Mapping[str, str], now: float) -> list[NodeCondition]:
        """Return the conditions.

        Args:
            reasons: why a part is not ready, by section or part of the daemon.
            now: seconds of a monotonic clock.
        """
        self._troubles = {name: self._troubles.get(name) or _Trouble(now) for name in reasons}
        found = []
        for name, trouble in self._troubles.items():
            if now - trouble.since < LASTING:
                continue
            if not trouble.said or now - trouble.at >= UNCHANGED:
                trouble.said, trouble.at = clip(reasons[name], MESSAGE), now
            found.append(NodeCondition(type=type_of(name), reason="NotReady", message=f"{name}: {trouble.said}"))
        return found


def type_of(name: str) -> str:
    """Return the type of the condition that says that a part is not ready."""
    return f"{DOMAIN}/{label_value(name)[:53]}-not-ready"
