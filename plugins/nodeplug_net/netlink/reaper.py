"""Deletes in the background what nobody should wait for: links, and whatever else a caller hands over.

Owns: the threads that send RTM_DELLINK. The kernel acknowledges only after rcu_barrier, about 18 ms after the link is
gone; a reaper waits for that while the call returns.
Refuses: to be trusted. The call queries the link again and goes on when it is gone: RTNL is held from the beginning of
the deletion until every end is unregistered, and the query needs RTNL too.

Reapers are started on demand, at most `LIMIT` (one alone would turn every DEL into 18 ms). One that has nothing to do
waits a moment for the next job, as DELs come in groups and a thread takes longer to start than to wake up. A reaper
works through a socket that the call opened, so the namespace it runs in does not matter; but it keeps that from ending.
"""

import errno
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Final

from nodeplug import TryAgain
from nodeplug_net.netlink import messages
from nodeplug_net.netlink.connection import ENODEV, Netlink, Request
from nodeplug_net.netlink.links import Link, Links
from nodeplug_net.netlink.messages import u32

LOG: Final = logging.getLogger(__name__)
LIMIT: Final = 32
IDLE: Final = 1.0
"""Seconds for which a reaper waits for work."""
_PATIENCE: Final = 5.0
_POLL: Final = 0.0001


@dataclass(slots=True)
class Deletion:
    """One link that is being deleted.

    Attributes:
        link: what is deleted.
        netlink: a socket of the link's namespace, now owned by the reaper.
        error: the kernel's refusal.
    """

    link: Link
    netlink: Netlink
    error: OSError | None = None

    def wait(self, links: Links) -> None:
        """Return when the link is gone.

        Args:
            links: of the link's namespace, over a socket of the caller's own.

        Raises:
            OSError: the kernel refused.
            TryAgain: the link still exists after seconds.
        """
        until = time.monotonic() + _PATIENCE
        while links.at(self.link.index) is not None:
            if self.error is not None:
                raise self.error
            if time.monotonic() > until:
                raise TryAgain(f"interface {self.link.name} was still there {_PATIENCE:.0f} s after its deletion")
            time.sleep(_POLL)


@dataclass(slots=True)
class Reaper:
    """The work in flight. Any thread may call it.

    Attributes:
        limit: how many threads work at once.
    """

    limit: int = LIMIT
    _queue: SimpleQueue[Callable[[], None]] = field(default_factory=SimpleQueue)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _due: int = 0
    _running: int = 0

    def delete(self, link: Link) -> Deletion:
        """Begin to delete a link of the calling thread's namespace; `Deletion.wait` returns when it is gone."""
        deletion = Deletion(link, Netlink())
        self.later(lambda: _delete(deletion))
        return deletion

    def close(self, netlink: Netlink) -> None:
        """Close an unused socket."""
        self.later(netlink.close)

    def later(self, job: Callable[[], None]) -> None:
        """Have something done that raises nothing."""
        with self._lock:
            self._due += 1
            start = self._running < min(self._due, self.limit)
            self._running += start
        self._queue.put(job)
        if not start:
            return
        try:
            threading.Thread(target=self._run, args=(IDLE,), name="link-reaper", daemon=True).start()
        except RuntimeError:  # the process has as many threads as it may: slow is better than never
            self._run(0.0)

    def _run(self, patience: float) -> None:
        while True:
            try:
                job = self._queue.get(timeout=patience)
            except Empty:
                with self._lock:
                    if self._due < self._running:  # else a job is on its way
                        self._running -= 1
                        return
                continue
            job()
            with self._lock:
                self._due -= 1


def _delete(deletion: Deletion) -> None:
    link = deletion.link
    request = Request(messages.delete_link().fill(index=u32(link.index)), f"delete interface {link.name}", ENODEV)
    try:
        with deletion.netlink as netlink:
            netlink.ask(request)
    except OSError as error:
        deletion.error = error
    except Exception as error:  # a reaper must survive any error, and its caller must learn of it
        LOG.exception("deleting interface %s failed", link.name)
        deletion.error = OSError(errno.EIO, f"deleting interface {link.name} failed: {error}")
