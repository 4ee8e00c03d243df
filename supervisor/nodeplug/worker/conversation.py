"""One call in a worker, from the request to the reply, as the daemon holds it.

Owns: the turns of the two ends on the channel of the call, and what either end's failure means for it.
Refuses: to answer what the plugin asks meanwhile, and to open channels: its worker's process does (`process`).
"""

from collections.abc import Sized
from dataclasses import fields, is_dataclass
from functools import cache, partial
from typing import Any, Final, Protocol, get_type_hints

from nodeplug.contract.errors import TryAgain
from nodeplug.worker.encoding import has_request, read_answer, read_error, write_request
from nodeplug.worker.wire import UNASKED, Broken, Channel, Closed, Message, NoDescriptorLeft

_REPLIES: Final = frozenset({"answer", "error", "stray"})
"""What ends a request; anything else is a request of the plugin's own."""
_SIMPLE: Final = {str, int, float, bool}
_FEW: Final = 64
"""Items of one field of a request that is written on the event loop."""


class Process(Protocol):
    """What a conversation needs of the process at the other end."""

    def leave(self, channel: Channel, *, usable: bool) -> None:
        """Take the channel back."""

    def answered(self, message: Message) -> Message:
        """Answer a request of the plugin, in this thread."""

    def left(self, what: str) -> TryAgain:
        """Return the error of a call whose channel is closed. May wait."""

    def given_up(self, why: str, what: str) -> TryAgain:
        """Kill the process, and return the error of the call that failed. May wait."""


class Conversation:
    """A call on a channel that nobody else uses meanwhile."""

    def __init__(self, process: Process, channel: Channel, what: str) -> None:
        self._process = process
        self._channel = channel
        self._what = what
        self._heard: Message | None = None
        self._failure: Exception | None = None
        self.said = False
        """The whole request is on its way; otherwise `answer` sees to that, which takes a thread."""

    def fileno(self) -> int:
        """Return what is readable when there is something to hear."""
        return self._channel.fileno()

    def say(self, message: Message) -> None:
        """Send the request; that the process has gone is told by `reply`."""
        try:
            self._channel.send(message, first=True)
            self.said = True
        except Closed as error:
            self._failure = error

    def say_at_once(self, message: Message) -> None:
        """Send the request as far as that does not wait; what failed is told by `reply`."""
        try:
            self.said = self._channel.send_at_once(message)
        except (Closed, Broken) as error:
            self._failure = error

    def has_reply(self) -> bool:
        """Hear what has arrived, without waiting; return whether `answer` need not wait either."""
        if self._failure is None:
            try:
                self._heard = self._channel.look()
            except (Closed, Broken) as error:
                self._failure = error
        return self._heard is not None and self._heard.op in _REPLIES

    def answer(self) -> Any:
        """Return what the hook returned; see `Worker.call`."""
        reply = self.reply()
        try:
            if reply.op != "answer":
                raise read_error(reply)
            if reply.descriptors:
                raise Broken(UNASKED)
            return read_answer(self._what, reply)
        except Broken as error:
            raise self._process.given_up(error.why, self._what) from None
        finally:
            reply.discard()

    def reply(self) -> Message:
        """Answer what the plugin asks meanwhile, in this thread, and return the reply.

        Raises:
            TryAgain: the process ended.
        """
        usable = False
        try:
            if self._failure is not None:
                raise self._failure
            self._channel.flush()
            while (message := self._heard or self._channel.receive()).op not in _REPLIES:
                self._heard = None
                answer = self._process.answered(message)
                try:
                    self._channel.send(answer)
                finally:
                    answer.close()
            usable = True
        except NoDescriptorLeft as error:
            why = f"the daemon could not receive its message: {error}; raise LimitNOFILE of the daemon's unit"
            failure = partial(self._process.given_up, why, self._what)
        except Closed:
            failure = partial(self._process.left, self._what)
        except Broken as error:
            failure = partial(self._process.given_up, error.why, self._what)
        finally:
            self._process.leave(self._channel, usable=usable)
        if not usable:
            raise failure() from None
        return message


def hook_call(hook: str, request: object, request_id: str, name: str) -> Message:
    """Return the message that calls a hook; see `Worker.call`."""
    descriptors: list[int] = []
    body = write_request(hook, request, descriptors) if has_request(hook) else b""
    return Message({"op": "hook", "hook": hook, "id": request_id, "name": name}, body, descriptors)


def is_long(request: object) -> bool:
    """Whether a request may take long to write as a message."""
    kind: Any = type(request)
    values = (getattr(request, name) for name in _larger_fields(kind))
    return any(isinstance(value, Sized) and len(value) > _FEW for value in values)


@cache
def _larger_fields(kind: Any) -> tuple[str, ...]:
    """Name the fields of a class that are neither texts nor numbers, so that they may hold many items."""
    hints = get_type_hints(kind)
    names = [one.name for one in fields(kind)] if is_dataclass(kind) else []
    return tuple(name for name in names if getattr(hints[name], "__supertype__", hints[name]) not in _SIMPLE)
