"""What a plugin made on the host, kept as it was recorded.

The one idea: an attachment is recorded (its ADD, and what that returned); the plugin says what the kernel is to have
for it; what differs is told, and what may be restored is.

Owns: when the plugin looks, whether what is missing is restored, how often at most, and what is told of it.
Refuses: to know what is compared and how it is restored: the plugin says so, by the same functions as for CHECK, STATUS
and ADD.

Whoever removes a thing again and again wants it gone: after `LIMIT` restorations within `WINDOW` it is left as it is
for a while, each time for longer, and the reason says so. Two programs that undo each other's work help nobody.
"""

import math
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pydantic import Field

from nodeplug import Host, LimitedConnectivity, Metric, Netns, NotReady, PluginError, Sample
from nodeplug_net.attachment import OURS
from nodeplug_net.level.containers import Containers
from nodeplug_net.level.events import Interest
from nodeplug_net.level.observer import Observation, observe
from nodeplug_net.nftables.sockets import Identity

LIMIT: Final = 5
WINDOW: Final = 60.0
FIRST_REST: Final = 30.0
LONGEST_REST: Final = 600.0
SETTLING: Final = 0.05
"""Seconds."""

REPAIR: Final[Any] = Field(
    True,
    description="restore at once what somebody removed that containers need; else when a runtime asks (ADD, STATUS)",
)
"""The configuration key of every plugin that does so."""
REPAIR_CONTAINERS: Final[Any] = Field(
    False,
    description="repeat the ADD of a running container whose interface somebody deleted; else it is only told",
)
IN_STATUS: Final[Any] = Field(
    True,
    description="let STATUS fail with code 51 while a running container lacks something of its own; else /readyz, the "
    "log and metrics alone say so",
)
_LATE: Final = 5.0
"""Seconds after a start in which ADDs that an earlier instance served are recorded at the latest."""
Found = Mapping[str, Sequence[str]]
"""What is missing, in sentences, by the thing that is restored as a whole: a network, a table."""


def is_container(thing: str) -> bool:
    """Whether it is an attachment's label; no name of a network has a space, nor has a table."""
    return thing.startswith(OURS)


@dataclass(slots=True)
class Patience:
    """How often one thing was restored lately, and for how long it is left alone. Times are time.monotonic(3)'s.

    Attributes:
        failure: why the last restoration came to nothing; empty if it did not.
    """

    failure: str = ""
    _times: deque[float] = field(default_factory=lambda: deque(maxlen=LIMIT))
    _rest: float = 0.0
    _until: float = 0.0

    def left(self, now: float) -> float:
        """Return the seconds until it may be restored; 0.0 if it may."""
        return max(self._until - now, 0.0)

    def count(self, now: float) -> None:
        """Count a restoration that begins."""
        if self._rest and now - self._until > WINDOW + self._rest:  # it held: whoever it was has stopped
            self._rest = 0.0
        self._times.append(now)
        if self._rest or (len(self._times) == LIMIT and now - self._times[0] <= WINDOW):
            self._rest = min(self._rest * 2, LONGEST_REST) if self._rest else FIRST_REST
            self._until = now + self._rest

    def reason(self, now: float) -> str:
        """Say why it is not there, and what to do."""
        left = self.left(now)
        if self.failure:
            return f"it cannot be restored: {self.failure}" + (f"; it is tried again in {left:.0f} s" if left else "")
        return (
            f"somebody else removes it again ({LIMIT} times within {WINDOW:.0f} s or after a pause), so it is left "
            f"as it is for {left:.0f} s; `ip monitor` and `nft monitor` show who does, and an ADD restores it"
        )


@dataclass(slots=True)
class Reconciler:
    """One plugin's part in it. Any thread may call it.

    Attributes:
        host: of the plugin.
        repair: whether what is missing is restored without being asked for.
        look: compares; in the daemon's own namespace.
        restore: restores one thing, in the same namespace. May raise OSError or PluginError.
        interest: which events are about what was made.
        repair_containers: whether what is missing of a container is restored, too.
        containers: those of the plugin, if it has records of them by the daemon alone.
        in_status: whether STATUS fails for what a container lacks.
    """

    host: Host
    repair: bool
    look: Callable[[], Found]
    restore: Callable[[str], None]
    interest: Callable[[], Interest]
    repair_containers: bool = False
    containers: Containers | None = None
    in_status: bool = True
    restored: Counter[str] = field(default_factory=Counter)
    missing: dict[str, int] = field(default_factory=dict)
    _patience: dict[str, Patience] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _home: Identity = (0, 0)
    _observation: Observation | None = None
    _noticed: bool = False
    _recovers_at: float = math.inf
    _found: frozenset[str] = frozenset()

    def start(self) -> None:
        """Take over what is recorded, and observe the namespace that the calling thread is in, and no other."""
        self.stop()
        current = Netns.current()
        self._home = current.identity
        current.close()
        if self.containers is not None:
            self.containers.home = self._home
            self.containers.recover(self.host.attachments())
            self._recovers_at = time.monotonic() + _LATE
        try:
            self._observation = observe(self.interest, self._notice)
        except OSError as error:
            self.host.log.warning("changes of the network are noticed within ten seconds, not at once: %s", error)

    def _notice(self) -> None:
        """Look soon, at what the kernel told of."""
        self._noticed = True
        self.host.refresh_health()

    def stop(self) -> None:
        """Stop to observe."""
        observation, self._observation = self._observation, None
        if observation is not None:
            observation.close()

    def attend(self) -> None:
        """Look, restore what may be restored, and report what is still missing.

        Raises:
            NotReady: something is missing; the message has everything, and why it was not restored.
            OSError: the kernel refuses.
        """
        with self._lock:
            if self.containers is not None:
                self._choose(self.containers)
            found = self._confirmed()
            if self._hears_more():
                found = self._confirmed()  # the kernel has not told of what has changed since the first look
            if found:
                found = self._restored(found)
            self._found = frozenset(found)
            known = self.containers.labels() if self.containers is not None else ()
            for ended in [one for one in self._patience if is_container(one) and one not in known]:
                del self._patience[ended]
            self.missing = dict(sum((Counter({_of(thing): len(texts)}) for thing, texts in found.items()), Counter()))
        if found:
            raise NotReady("; ".join(self._told(thing, texts) for thing, texts in found.items()))

    def _hears_more(self) -> bool:
        """Have the kernel tell of ports that lose flags if any is to have some; whether it did not until now."""
        wanted = any(map(any, self.interest().ports_by_index.values()))
        return self._observation is not None and self._observation.hear_of_flags(wanted)

    def _choose(self, containers: Containers) -> None:
        """Say which containers are compared, besides those that the kernel told of."""
        if time.monotonic() >= self._recovers_at:
            self._recovers_at = math.inf
            containers.recover(self.host.attachments(), last=True)
        if not self._noticed:  # the slow look
            told = self._observation is not None and self._observation.observer.hears_elsewhere
            (containers.mark_some if told else containers.mark_all)()
        self._noticed = False

    def _confirmed(self) -> Found:
        """Look; and look again if something is missing, as a DEL that is under way takes away what is found next."""
        found = self.look()
        if found:
            time.sleep(SETTLING)
            again = self.look()
            found = {thing: texts for thing, texts in again.items() if thing in found}
        return found

    def _restored(self, before: Found) -> Found:
        """Restore what may be restored; return what is missing then."""
        now = time.monotonic()
        wanted = [one for one in before if (self.repair_containers if is_container(one) else self.repair)]
        begun = [thing for thing in wanted if not self._patience.setdefault(thing, Patience()).left(now)]
        for thing in begun:
            patience = self._patience[thing]
            patience.count(now)
            patience.failure = ""
            try:
                self.restore(thing)
            except (OSError, PluginError) as error:
                patience.failure = str(error)
        after = self.look() if begun else before
        for thing in begun:
            if after.get(thing) != before[thing]:
                self.restored[_of(thing)] += 1
                self.host.log.warning("%s; restored", "; ".join(before[thing]))
            elif not self._patience[thing].failure and not self._patience[thing].left(now):
                self._patience[thing].failure = "it was missing again at once"
        return after

    def _told(self, thing: str, texts: Sequence[str]) -> str:
        patience, now = self._patience.get(thing), time.monotonic()
        told = patience is not None and (patience.failure or patience.left(now))
        return "; ".join([*texts, *([patience.reason(now)] if patience is not None and told else [])])

    def refuse_fight(self, thing: str, host: Netns) -> None:
        """Refuse to restore a thing on request while it is left alone, if it is missing.

        Args:
            thing: what the request is about.
            host: the namespace that the calling thread is in.

        Raises:
            LimitedConnectivity: it is; the message says why nothing is done.
        """
        patience = self._patience.get(thing)
        if patience is not None and patience.left(time.monotonic()) and host.identity == self._home:
            texts = self.look().get(thing, ())
            if texts:
                raise LimitedConnectivity(self._told(thing, texts))

    def refuse_losses(self, network: str, host: Netns) -> None:
        """Say to a runtime that asks for STATUS what running containers of a network lack of their own.

        Args:
            network: what is asked about.
            host: the namespace that the calling thread is in.

        Raises:
            LimitedConnectivity: they lack something.
            OSError: the kernel refuses.
        """
        if host.identity == self._home and self._found:
            self.host.refresh_health()  # as STATUS may have restored it, or a DEL ended it
        if not self.in_status or host.identity != self._home:
            return
        if any(is_container(one) and _of(one) == network for one in self._found):
            with self._lock:
                found = {thing: texts for thing, texts in self.look().items() if is_container(thing)}
            told = [self._told(thing, texts) for thing, texts in found.items() if _of(thing) == network]
            if told:
                raise LimitedConnectivity("; ".join(told))

    def metrics(self) -> list[Metric]:
        """Return how much is missing, and how often things were restored."""
        missing = [Sample(float(count), {"of": thing}) for thing, count in self.missing.items()]
        restored = [Sample(float(count), {"of": thing}) for thing, count in self.restored.items()]
        return [
            Metric("net_missing", "Differences between what containers need on the node and what is there.", missing),
            Metric("net_restored", "Restorations of what somebody removed from the node.", restored, "counter"),
        ]


def _of(thing: str) -> str:
    """Return the network of a container, or the thing itself: a metric's labels are to be few."""
    return thing.split(" ")[1] if is_container(thing) else thing
