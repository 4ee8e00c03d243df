"""The call in flight, as seen from anywhere inside it.

Owns: the request id that ties a request's log lines, error texts and metrics together, the stderr that a foreign CNI
delegate wrote during it, and whether its caller is still waiting.
Refuses: global state: the current call and its caller are context variables.
"""

import secrets
import select
import socket
import time
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from nodeplug.contract.values.requests import Request

if TYPE_CHECKING:
    from nodeplug.contract.values import Pod


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
        whole: the front reports how the request ended, decoding and refusals included; the runner does not.
        about: the key in words, where it is not fit to show.
        started: `time.monotonic()` at arrival.
        mask: hides secrets in any text about the request.
        stderr: what foreign programs wrote, to be passed on to the caller of an exec protocol.
        ended: `time.monotonic()` when it was answered; 0 before.
        pod: for whom, where its caller has said so and nobody else could have.
    """

    verb: str
    claim: str
    key: str = ""
    whole: bool = False
    about: str = ""
    id: str = field(default_factory=new_request_id)
    started: float = field(default_factory=time.monotonic)
    mask: Callable[[str], str] = str
    stderr: bytearray = field(default_factory=bytearray)
    pod: "Pod | None" = None
    ended: float = 0.0

    @property
    def age(self) -> float:
        """Seconds since arrival, until its end."""
        return (self.ended or time.monotonic()) - self.started

    @property
    def ended_ago(self) -> float:
        """Seconds since it was answered; 0 before."""
        return time.monotonic() - self.ended if self.ended else 0.0


CURRENT: Final[ContextVar[Call | None]] = ContextVar("nodeplug_call", default=None)
_CALLER: Final[ContextVar[socket.socket | None]] = ContextVar("nodeplug_caller", default=None)


def has_hung_up(peer: socket.socket) -> bool:
    """Whether the other end is closed; one that only shut down its writing side still reads (poll(2))."""
    look = select.poll()
    look.register(peer, 0)
    return bool(look.poll(0))


def set_caller(peer: socket.socket) -> None:
    """Note the connection on which the caller of this task's request waits for the answer."""
    _CALLER.set(peer)


def caller_is_gone() -> bool:
    """Whether the caller has stopped waiting; False if there never was one, as for a replayed DEL."""
    peer = _CALLER.get()
    return peer is not None and has_hung_up(peer)


def addressed(arguments: Mapping[str, Any], call: Call, seconds: float) -> Mapping[str, Any]:
    """Return the arguments of a hook that begins now; its request gets the call's id and the deadline."""
    request = arguments.get("request")
    if not isinstance(request, Request):
        return arguments
    return {**arguments, "request": replace(request, id=call.id, deadline=time.monotonic() + seconds)}
