"""The call in flight, as seen from anywhere inside it.

Owns: the request id that ties log lines, error texts and metrics of one request together, and the stderr that a
foreign CNI delegate wrote during it.
Refuses: global state: the current call is a context variable, set by the runner in the call's own thread.
"""

import secrets
import time
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Final


def new_request_id() -> str:
    """Return eight hexadecimal digits: enough to find one call in a day's log."""
    return secrets.token_hex(4)


@dataclass(slots=True)
class Call:
    """One request from its arrival to its answer.

    Attributes:
        verb: as the caller names it, such as "ADD", "mount" or "Allocate".
        claim: `kind:name` of what was asked.
        key: what the call is about; one call per key runs at a time.
        id: the request id.
        started: `time.monotonic()` at arrival.
        whole: the front tells how the whole request ended, decoding and refusals included; the runner then does not.
        stderr: what foreign programs wrote to stderr, to be passed on to the caller of an exec protocol.
    """

    verb: str
    claim: str
    key: str = ""
    whole: bool = False
    id: str = field(default_factory=new_request_id)
    started: float = field(default_factory=time.monotonic)
    stderr: bytearray = field(default_factory=bytearray)

    @property
    def age(self) -> float:
        """Seconds since arrival."""
        return time.monotonic() - self.started


CURRENT: Final[ContextVar[Call | None]] = ContextVar("nodeplug_call", default=None)
