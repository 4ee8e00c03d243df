"""The requests that plugins are serving now, by section and request id.

What a plugin asks of the daemon on behalf of a request refers to that request by its id. The daemon then compares with
what it sent to the plugin, since a plugin may send anything.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from nodeplug.contract.values.requests import Request


class InFlight:
    """Requests in flight. Any thread may use it: each change is one operation of a dict."""

    def __init__(self) -> None:
        self._requests: dict[tuple[str, str, int], Request] = {}

    def enter(self, section: str, request_id: str, request: Any) -> None:
        """Add a request until `leave`; a hook without a request adds nothing."""
        if isinstance(request, Request):
            self._requests[section, request_id, id(request)] = request

    def leave(self, section: str, request_id: str, request: Any) -> None:
        """Remove a request; succeed if it is not there."""
        self._requests.pop((section, request_id, id(request)), None)

    @contextmanager
    def entered(self, section: str, request: Request) -> Iterator[None]:
        """Keep a request in flight for a `with` block."""
        self.enter(section, request.id, request)
        try:
            yield
        finally:
            self.leave(section, request.id, request)

    def of(self, section: str, request_id: str | None = None) -> Sequence[Request]:
        """Return the requests that a section is serving; of one id, there may be one for each hook inside another.

        Args:
            section: its name.
            request_id: of the requests that are meant; None for all.
        """
        found = list(self._requests.items())
        return [request for (serving, known, _), request in found if serving == section and request_id in {known, None}]

    def depth(self, request_id: str) -> int:
        """Return how many hooks of all plugins run for a request. With delegation, one runs inside another."""
        return sum(known == request_id for _, known, _ in list(self._requests))
