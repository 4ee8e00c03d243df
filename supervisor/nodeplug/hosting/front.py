"""The path of one request through a front: its work, its end, and the one log line of a failure.

Owns: the request id in every error, turning unexpected exceptions into errors, and reporting the end.
Refuses: wire formats (a front decodes before and encodes after), plugin code (the runner's).
"""

import asyncio
import logging
import time
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeVar

from nodeplug.contract.errors import PluginError, clip
from nodeplug.hosting.call import Call
from nodeplug.process.aside import aside
from nodeplug.process.turns import on_the_loop, stepping

LOG: Final = logging.getLogger(__name__)
_Answer = TypeVar("_Answer")


class Reporting(Protocol):
    """What a front needs of the runner: no plugin is called here."""

    @property
    def finished(self) -> Callable[[Call, PluginError | None], None]:
        """Is called once per request, with its error if any."""


@dataclass(slots=True)
class Front:
    """Serves the requests of one protocol. Used only from the event loop.

    Attributes:
        runner: its `finished` is called once per request.
        quiet: errors that are not failures in this protocol.
        repeated: verbs that callers retry every few seconds: the same reason is logged once, under its first request.
    """

    runner: Reporting
    quiet: tuple[type[PluginError], ...] = ()
    repeated: frozenset[str] = frozenset()
    _reasons: dict[tuple[str, str], tuple[str, str]] = field(default_factory=dict)

    async def serve(self, call: Call, work: Awaitable[_Answer]) -> _Answer:
        """Wait for the answer of a request.

        Raises:
            PluginError: what the work raised, masked by the call, with the id of the request in the log.
        """
        call.whole = True
        try:
            answer = await work
        except PluginError as error:
            failure = error
            await on_the_loop()
            await _hide(call, failure)
            failure.request = self._log(call, failure)
        except Exception as error:
            failure = _stray(call, error)
        else:
            self._reasons.pop((call.verb, call.claim), None)
            call.ended = time.monotonic()
            task = stepping()  # the caller's answer goes first
            then = asyncio.get_running_loop().call_soon if task is None else task.loop.leave
            then(self.runner.finished, call, None)
            return answer
        self.runner.finished(call, failure)
        raise failure

    def _log(self, call: Call, error: PluginError) -> str:
        """Log a failure; return the request id under which it is in the log."""
        text = str(error)
        if call.verb in self.repeated:
            reason, first = self._reasons.get((call.verb, call.claim), ("", ""))
            if reason == text:
                return first
            self._reasons[call.verb, call.claim] = text, call.id
        level = logging.DEBUG if isinstance(error, self.quiet) else logging.WARNING
        LOG.log(level, "%s of %s failed (request %s): %s", call.verb, call.claim, call.id, text)
        return call.id


async def _hide(call: Call, error: PluginError) -> None:
    """Mask the texts of an error, in a thread if there is something to mask: a driver may have many secrets."""
    texts = error.message, error.details
    if call.mask is not str:
        mask = call.mask
        texts = await aside(lambda: (mask(error.message), mask(error.details)), f"mask:{call.id}")
    error.message, error.details = (clip(text) for text in texts)


def _stray(call: Call, error: Exception) -> PluginError:
    """Log where the daemon failed, but not the text, which may contain secrets of the request."""
    kind, where = type(error).__name__, "".join(traceback.format_tb(error.__traceback__))
    LOG.error("%s of %s failed (request %s): %s\n%s", call.verb, call.claim, call.id, kind, where)
    failure = PluginError(f"{call.verb} failed in the daemon: {kind}; its log has the traceback")
    failure.request = call.id
    return failure
