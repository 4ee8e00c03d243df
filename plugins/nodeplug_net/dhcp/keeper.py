"""The keeper of all leases: one thread that prolongs each before it ends.

Owns: when which lease is prolonged, the conversations in progress, and what happens to one that ends: its interface is
set down, as the reference does, since another may get the address.
Refuses: the lease of an ADD that is still running. One silent server keeps no other lease waiting: the thread waits for
all sockets at once, and each attempt ends after seconds.

From T1 a lease's server is asked; from T2 every server, and every other time as if anew, for the same address: a server
that lost its memory does not know whom it would prolong (RFC 2131, section 4.4.5). A namespace is opened by its path
when it is needed, and nothing keeps it alive in between.
"""

import logging
import os
import secrets
import selectors
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Final

from nodeplug import PluginError
from nodeplug_net.dhcp.exchange import Aim, Exchange
from nodeplug_net.dhcp.lease import Lease
from nodeplug_net.dhcp.leases import BOUND, EXPIRED, Holding, Leases, now
from nodeplug_net.dhcp.wire import Wire, bring_down

_AT_ONCE: Final = 256
"""Conversations at a time: each has a socket."""
_ATTEMPT: Final = 12.0
"""Seconds until an attempt is given up, and the next one waits."""
_FIRST_REST: Final = 4.0
_LOOK: Final = 60.0
_AFTER_A_FAULT: Final = 1.0
_STOPPING: Final = 5.0
_DICE: Final = secrets.SystemRandom()


@dataclass(slots=True)
class _Attempt:
    """A conversation about a lease."""

    holding: Holding
    wire: Wire
    exchange: Exchange
    until: float


@dataclass(slots=True)
class _Trouble:
    """What went wrong with a lease since it was prolonged last."""

    holding: Holding
    failures: int = 0
    again: float = 0.0
    refused: bool = False
    asked_all: int = 0


@dataclass(slots=True)
class Keeper:
    """The thread. `start`, `stop` and `wake` may be called from any other.

    Attributes:
        leases: what is to be kept.
        log: of the plugin.
        longest_wait: between two attempts, in seconds.
    """

    leases: Leases
    log: logging.LoggerAdapter[logging.Logger]
    longest_wait: float
    _attempts: dict[str, _Attempt] = field(default_factory=dict)
    _troubles: dict[str, _Trouble] = field(default_factory=dict)
    _selector: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)
    _alarm: int = -1
    _alarming: threading.Lock = field(default_factory=threading.Lock)
    _stopping: bool = False
    _thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to keep what is known."""
        self._alarm = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._selector.register(self._alarm, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name="dhcp-keeper", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread; the leases stay."""
        thread = self._thread
        if thread is not None:
            self._stopping = True
            self.wake()
            thread.join(_STOPPING)

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread is not None and self._thread.is_alive()

    def wake(self) -> None:
        """Let the thread look again: a lease was added or ended."""
        with self._alarming:
            if self._alarm >= 0:
                os.eventfd_write(self._alarm, 1)

    def _run(self) -> None:
        try:
            while not self._stopping:
                try:
                    self._hear(self._turn(now()))
                except Exception:
                    self.log.exception("keeping the leases failed; going on")
                    threading.Event().wait(_AFTER_A_FAULT)
        finally:
            for key in list(self._attempts):
                self._close(key)
            self._selector.close()
            with self._alarming:  # nobody writes to a descriptor that is somebody else's by then
                os.close(self._alarm)
                self._alarm = -1

    def _turn(self, at: float) -> float:
        """Do all that is due; return how many seconds nothing will be."""
        known = {one.key: one for one in self.leases.all() if one.phase == BOUND}
        for key in [key for key, attempt in self._attempts.items() if known.get(key) != attempt.holding]:
            self._close(key)  # ended, or prolonged
        self._troubles = {key: one for key, one in self._troubles.items() if known.get(key) == one.holding}
        for key, holding in known.items():
            with self._survived(holding):
                if at >= holding.lease.expires:
                    self._end(holding)
                elif key not in self._attempts and at >= self._due(holding) and len(self._attempts) < _AT_ONCE:
                    self._begin(holding, at)
        for attempt in list(self._attempts.values()):
            with self._survived(attempt.holding):
                self._speak(attempt, at)
        return max(0.0, min(self._moments(known, at)) - at)

    def _moments(self, known: dict[str, Holding], at: float) -> Iterator[float]:
        yield at + _LOOK
        for key, holding in known.items():
            attempt = self._attempts.get(key)
            if attempt is not None:
                yield min(attempt.exchange.due, attempt.until)
            elif holding.lease.expires > at:
                due = self._due(holding)
                yield due if due > at else at + _AFTER_A_FAULT  # it waits for a place

    def _due(self, holding: Holding) -> float:
        trouble = self._troubles.get(holding.key)
        moment = holding.lease.renew_at if trouble is None else max(trouble.again, holding.lease.renew_at)
        return min(moment, holding.lease.expires)

    def _survived(self, holding: Holding) -> "_Survived":
        return _Survived(self, holding)

    def _begin(self, holding: Holding, at: float) -> None:
        netns = holding.open()
        if netns is None:
            raise OSError(f"its namespace {holding.path} is gone")
        try:
            with netns.entered():
                wire = Wire(holding.attachment.ifname)
        finally:
            netns.close()
        aim, until = self._aim(holding, at)
        client = replace(holding.client, mac=wire.mac)  # another plugin may have changed it
        exchange = Exchange(client, at, aim, holding.lease, self.longest_wait)
        self._attempts[holding.key] = _Attempt(holding, wire, exchange, until)
        self._selector.register(wire, selectors.EVENT_READ, holding.key)

    def _aim(self, holding: Holding, at: float) -> tuple[Aim, float]:
        """Say whom to ask, and until when."""
        lease, trouble = holding.lease, self._troubles.setdefault(holding.key, _Trouble(holding))
        if at < lease.rebind_at and not trouble.refused:
            return Aim.RENEW, min(at + _ATTEMPT, lease.rebind_at)
        trouble.asked_all += 1
        aim = Aim.SELECT if trouble.refused or trouble.asked_all % 2 == 0 else Aim.REBIND
        return aim, at + min(_ATTEMPT, (lease.expires - at) / 2)

    def _speak(self, attempt: _Attempt, at: float) -> None:
        if at >= attempt.until:
            raise OSError(f"no server answers ({attempt.exchange.aim.value})")
        if at >= attempt.exchange.due:
            with self.leases.lock:  # nothing is asked for a lease that DEL gives back at this moment
                if self.leases.get(attempt.holding.key) == attempt.holding:
                    attempt.wire.send(attempt.exchange.next(at))

    def _hear(self, timeout: float) -> None:
        for selected, _ in self._selector.select(timeout):
            if selected.data is None:
                os.eventfd_read(self._alarm)
                continue
            attempt = self._attempts.get(selected.data)
            if attempt is not None:
                with self._survived(attempt.holding):
                    self._listen(attempt)

    def _listen(self, attempt: _Attempt) -> None:
        exchange = attempt.exchange
        for message, mac in attempt.wire.received():
            lease = exchange.hear(message, mac, now())
            if lease is not None:
                self._prolonged(attempt, lease)
                return
            if exchange.refusals:
                self._fail(attempt.holding, f"refused by {exchange.refusals[-1]}", refused=True)
                return

    def _prolonged(self, attempt: _Attempt, lease: Lease) -> None:
        former = attempt.holding
        changed = replace(former, client=attempt.exchange.client, lease=lease)
        self._close(former.key)
        self._troubles.pop(former.key, None)
        if self.leases.change(former, changed):
            seconds = lease.expires - now()
            self.log.info("%s: lease of %s prolonged, for %.0f s", former.key, lease.address.ip, seconds)

    def _fail(self, holding: Holding, reason: str, *, refused: bool = False) -> None:
        """End an attempt, and say when the next one begins: at the next moment of the lease at the latest."""
        at, lease = now(), holding.lease
        self._close(holding.key)
        trouble = self._troubles.setdefault(holding.key, _Trouble(holding))
        wait = min(_FIRST_REST * 2 ** min(trouble.failures, 8), self.longest_wait) + _DICE.uniform(-1, 1)
        if refused and not trouble.refused:
            wait = 0.0
        trouble.failures, trouble.refused = trouble.failures + 1, trouble.refused or refused
        trouble.again = min(at + wait, lease.rebind_at if at < lease.rebind_at else lease.expires)
        left = lease.expires - at
        self.log.warning(
            "%s: lease of %s is not prolonged: %s; %.0f s are left", holding.key, lease.address.ip, reason, left
        )

    def _end(self, holding: Holding) -> None:
        """Let nobody use an address that may be another's by now."""
        self._close(holding.key)
        what = f"{holding.key}: lease of {holding.lease.address.ip} has ended"
        if not self.leases.change(holding, replace(holding, phase=EXPIRED)):
            return
        netns = holding.open()
        if netns is None:
            self.log.warning("%s, and so has its namespace", what)
            return
        try:
            with netns.entered():
                bring_down(holding.attachment.ifname)
        finally:
            netns.close()
        self.log.warning("%s: interface %s is set down; recreate its container", what, holding.attachment.ifname)

    def _close(self, key: str) -> None:
        attempt = self._attempts.pop(key, None)
        if attempt is not None:
            self._selector.unregister(attempt.wire)
            attempt.wire.close()


@dataclass(slots=True)
class _Survived:
    """A block whose failure is the trouble of one lease."""

    keeper: Keeper
    holding: Holding

    def __enter__(self) -> None:
        """Begin."""

    def __exit__(self, _: object, error: BaseException | None, _trace: object) -> bool:
        if not isinstance(error, OSError | PluginError):
            return False
        self.keeper._fail(self.holding, str(error))  # noqa: SLF001 - a part of it
        return True
