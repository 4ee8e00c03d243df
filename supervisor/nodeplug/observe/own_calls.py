"""The daemon's check of its own exec socket.

Owns: one VERSION a second through the exec socket, as an entrypoint would send it, and since when none was answered.
Refuses: to count a connect(2) that waits for the disk: a restart would not help.
"""

import json
import logging
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from nodeplug.contract.errors import PluginError, TryAgain, clip, wire
from nodeplug.exec.client import exchange
from nodeplug.exec.frame import Frame
from nodeplug.process.lane import Lane

LOG: Final = logging.getLogger(__name__)
INTERVAL: Final = 1.0
"""Seconds between two calls."""
SILENCE: Final = 10.0
"""Seconds of failures alone after which callers are said to get no answer."""
PATIENCE: Final = 4.0
"""Seconds for each step of one call."""
_VERSION: Final = Frame("cni", "nodeplug", env={"CNI_COMMAND": "VERSION"})

_BUSY: Final = wire(TryAgain("")).cni
"""The CNI code of "try again later". A busy daemon answers it, and so it counts as an answer."""


class OwnCalls:
    """Whether calls through a socket are answered. Event loop only, but `trouble`.

    Args:
        path: of the exec socket.
        clock: seconds that only grow.
        patience: seconds for each step of one call.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic, patience: float = PATIENCE) -> None:
        self._path = path
        self._clock = clock
        self._patience = patience
        self._lane = Lane(f"the exec socket {path}", 1.5 * patience)  # longer than the socket's: the disk comes before
        self._connecting = False
        self._failing: float | None = None
        self._why = self._told = ""

    async def ask(self) -> None:
        """Make one call, and note how it ended."""
        try:
            await self._lane.run(self._call)
        except Exception as error:  # of whatever a plugin has put in the place of what is used here
            if not self._connecting:
                self._failing = self._clock() if self._failing is None else self._failing
                self._why = str(error) or type(error).__name__
        else:
            self._failing = None
        self._log()

    def trouble(self) -> str:
        """Return since when and why calls have failed; empty if they have not failed for long."""
        since = self._failing
        seconds = 0.0 if since is None else self._clock() - since
        if seconds <= SILENCE:
            return ""
        return f"no call through {self._path} was answered for {seconds:.0f} s: {self._why}"

    def _log(self) -> None:
        """Log the trouble once, and once its end."""
        trouble = self.trouble()
        if trouble and not self._told:
            LOG.error("%s", trouble)
        elif self._told and not trouble:
            LOG.warning("calls through %s are answered again", self._path)
        self._told = trouble

    def _call(self) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
            peer.settimeout(self._patience)
            self._connecting = True
            try:
                peer.connect(str(self._path))
            finally:
                self._connecting = False
            answer = json.loads(exchange(peer, _VERSION).stdout)
        if "cniVersion" not in answer and answer.get("code") != _BUSY:
            raise PluginError(f"the answer to VERSION is {clip(str(answer), 200)!r}")
