"""The running containers that a plugin serves: as their ADDs left them, what differs from that, and the ADDs again.

Owns: who is attached and has not been detached, in memory, and when a container is compared: when the kernel told of
something in its namespace, as long as it differs, and now and then, when the daemon asks by itself.
Refuses: to know what is compared, which the plugin's CHECK does, too; containers whose namespace has ended, whose DEL
comes later; and files: the daemon records each ADD, and tells a plugin that starts (`Host.attachments`).
"""

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Final

from nodeplug import CniAdd, CniCheck, CniGc, CniInterface, CniRecord, CniResult, Netns, PluginError
from nodeplug_net.attachment import OURS, Attachment, network_label
from nodeplug_net.level.events import ANYWHERE, Interest, Place
from nodeplug_net.netlink.links import links_in
from nodeplug_net.netlink.namespaces import number_of
from nodeplug_net.netlink.policy import routes_by_link
from nodeplug_net.nftables.sockets import Identity

ANEW: Final = "delete its pod, or set 'repair_containers'"
GRACE: Final = 0.3
"""Seconds after an ADD in which the kernel tells of what it did, and of what the next plugins of its list do."""
QUIET: Final = 0.5
"""Seconds between two looks at a container in whose namespace something happens all the time."""
SHARES: Final = 3
"""Slow looks after which each container has been compared, where the kernel tells of what happens to it meanwhile."""
_PATIENCE: Final = 10.0
"""Seconds that checking a container, or attaching it again, may take when no runtime waits for it."""
_LATELY: Final = 256
"""As many containers may end between two readings of what the kernel tells."""
_CLOSED: Final = Netns.unopened("")


@dataclass(frozen=True, slots=True)
class Container:
    """One container's interface.

    Attributes:
        attachment: whose it is.
        path: of the container's namespace.
        namespace: its identity, as another one may come to the same path.
        request: the ADD; its namespaces are closed.
        result: what it returned.
        since: when it ended, as of time.monotonic(3); 0.0 before the daemon started.
    """

    attachment: Attachment
    path: str
    namespace: Identity
    request: CniAdd
    result: CniResult
    since: float = 0.0

    @property
    def is_running(self) -> bool:
        """Whether the namespace that was attached is still there."""
        try:
            found = os.stat(self.path)  # noqa: PTH116  a magic link of /proc, perhaps
        except OSError:
            return False
        return (found.st_dev, found.st_ino) == self.namespace


@dataclass(slots=True)
class Containers:
    """The containers of one plugin by label. Any thread may call it, where nothing else is said.

    Attributes:
        differences: names what is not as the ADD left it, as CHECK does. PluginError counts as one difference.
        chained: whether the plugin needs the previous result.
        every: whether each look is at all of them, as what the kernel tells on the host may be about any.
        home: the daemon's own namespace, whose containers these are; None for any.
        differing: the labels of those that differed at the last look.
    """

    differences: Callable[[CniCheck], Iterable[str]] = lambda _: ()
    chained: bool = False
    every: bool = False
    home: Identity | None = None
    differing: frozenset[str] = frozenset()
    _known: dict[str, Container] = field(default_factory=dict)
    _places: dict[str, Place] = field(default_factory=dict)
    _forgotten: set[str] | None = field(default_factory=set)
    _ended: deque[str] = field(default_factory=lambda: deque(maxlen=_LATELY))
    _dirty: set[str] = field(default_factory=set)
    _noticed: dict[str, float] = field(default_factory=dict)
    _later: set[str] = field(default_factory=set)
    _due: bool = True
    _turn: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def recover(self, records: Iterable[CniRecord], *, last: bool = False) -> None:
        """Take over what an earlier daemon, or an earlier instance of the plugin, attached.

        Args:
            records: what the daemon has recorded.
            last: whether it is not called again: what ends until then does not come back.
        """
        found = [_recorded(one, chained=self.chained) for one in records if one.host == self.home]
        with self._lock:
            ended = self._forgotten or ()
            for one in found:
                if one.attachment.label not in ended:
                    self._known.setdefault(one.attachment.label, one)
            if last:
                self._forgotten = None

    def keep(self, request: CniAdd, result: CniResult, place: Place | None = None) -> None:
        """Note the container that an ADD has attached.

        Args:
            request: the ADD.
            result: its own.
            place: where the kernel has the interface, if that is known.
        """
        if self.home not in {None, request.host_netns.identity}:
            return
        attachment, netns = Attachment.of(request), request.netns
        one = Container(attachment, netns.path, netns.identity, request, result, time.monotonic())
        label = attachment.label
        with self._lock:
            self._known.pop(label, None)  # the newest comes last
            self._known[label] = one
            if place is None:
                self._places.pop(label, None)
            else:
                self._places[label] = place
            if self._forgotten is not None:
                self._forgotten.discard(label)

    def forget(self, label: str) -> None:
        """Forget a container, before anything of it is removed."""
        with self._lock:
            self._drop(label)

    def _drop(self, label: str) -> None:
        for one in (self._known, self._places, self._noticed):
            one.pop(label, None)
        self._ended.append(label)
        if self._forgotten is not None:
            self._forgotten.add(label)

    def forget_others(self, network: str, valid: Collection[str]) -> None:
        """Forget the containers of a network that belong to no valid attachment, by label."""
        with self._lock:
            for label in [one for one in self._known if one.startswith(network_label(network)) and one not in valid]:
                self._drop(label)

    def forget_invalid(self, request: CniGc) -> None:
        """Forget those that a GC has declared invalid."""
        if request.valid is not None:
            attachments = (Attachment(request.network, one.container_id, one.ifname) for one in request.valid)
            self.forget_others(request.network, frozenset(one.label for one in attachments))

    def labels(self) -> frozenset[str]:
        """Return the labels of all that should be there."""
        with self._lock:
            return frozenset(self._known)

    def ended(self) -> frozenset[str]:
        """Return the labels of those that have ended lately: what the kernel tells of their interfaces is no news."""
        with self._lock:
            return frozenset(self._ended).difference(self._known)

    def running(self) -> dict[str, Container]:
        """Return those whose namespace is still there, by label, oldest first, and forget all others."""
        with self._lock:
            known = dict(self._known)
        ended = {label for label, one in known.items() if not one.is_running}
        with self._lock:
            for label in ended:
                if self._known.get(label) is known[label]:
                    self._drop(label)
        return {label: one for label, one in known.items() if label not in ended}

    def concerned(self, places: Collection[Place]) -> bool:
        """Whether the kernel told of something that may be a container's, which then is compared at the next look.

        What an ADD and the rest of its list do is no news. Called by the observer, in the daemon's own namespace.

        Args:
            places: where.
        """
        until = time.monotonic() - GRACE
        with self._lock:
            known = [one for one in self._known.items() if one[1].since < until]
        if ANYWHERE in places:
            return self._due_of([label for label, _ in known])
        numbers, told = {number for number, _ in places}, frozenset(places)
        return self._due_of([label for label, one in known if _is_told(self._place(label, one), numbers, told)])

    def _due_of(self, noticed: Collection[str]) -> bool:
        """Have containers compared at the next look, or later those that were just now; whether there are others."""
        now = time.monotonic()
        with self._lock:
            due = {label for label in noticed if now - self._noticed.get(label, 0.0) >= QUIET}
            self._later = {label for label in (*self._later, *noticed) if label not in due and label in self._known}
            self._noticed.update(dict.fromkeys(due, now))
            self._dirty |= due
        return bool(due)

    def asked(self) -> Callable[[], bool] | None:
        """Return what says whether a look that was put off is due; None if there is none."""
        return (lambda: self._due_of(self._later)) if self._later else None

    def interest(self) -> Interest:
        """Return which events are about the containers."""
        return Interest(containers=self.concerned, changed=self.asked())

    def mark(self, labels: Collection[str]) -> None:
        """Have containers compared at the next look."""
        with self._lock:
            self._dirty.update(labels)

    def mark_some(self) -> None:
        """Have a share of them compared at the next look, each time the next ones."""
        with self._lock:
            labels = list(self._known)
            if labels:
                start, count = self._turn % len(labels), -(-len(labels) // SHARES)
                self._dirty.update((labels * 2)[start : start + count])
                self._turn = start + count

    def mark_all(self) -> None:
        """Have all of them compared at the next look."""
        self._due = True

    def _place(self, label: str, one: Container) -> Place | None:
        if label not in self._places and (number := number_of(one.path, one.namespace)) is not None:
            self._places[label] = number, 0
        return self._places.get(label)

    def look(self) -> dict[str, list[str]]:
        """Name what running containers that are due lost, by label.

        One thread at a time, in the daemon's own namespace.

        Raises:
            OSError: the kernel refuses.
        """
        return self._look(self.running())

    def _look(self, known: dict[str, Container]) -> dict[str, list[str]]:
        with self._lock:
            every, dirty, self._due, self._dirty = self.every or self._due, self._dirty, False, set()
        chosen = known if every else {*dirty, *self.differing} & known.keys()
        for label in chosen:
            self._place(label, known[label])  # from now on the kernel tells of what happens there
        found = {label: texts for label in chosen if (texts := self._compared(known[label]))}
        self.differing = frozenset(found)
        return {label: [_sentence(known[label], texts)] for label, texts in found.items()}

    def _compared(self, one: Container) -> list[str]:
        try:
            with self.checked(one) as request:
                asked = _without_mac(request)
                found = list(self.differences(asked))
                return list(self.differences(led)) if found and (led := _led_elsewhere(asked)) is not None else found
        except (OSError, PluginError) as error:
            return [error.message if isinstance(error, PluginError) else str(error)] if one.is_running else []

    @contextmanager
    def checked(self, one: Container) -> Iterator[CniCheck]:
        """Compose the CHECK of a container; the calling thread is in the daemon's own namespace.

        Raises:
            PluginError: the container has ended.
        """
        with self._opened(one) as (host, netns):
            yield _check(one, host, netns)

    @contextmanager
    def _opened(self, one: Container) -> Iterator[tuple[Netns, Netns]]:
        host, netns = Netns.current(), None
        try:
            netns = Netns.open(one.path)
            yield host, netns
        finally:
            host.close()
            if netns is not None:
                netns.close()

    @contextmanager
    def repeated(self, label: str) -> Iterator[CniAdd]:
        """Compose the ADD of a container again; the calling thread is in the daemon's own namespace.

        Raises:
            PluginError: the container has ended.
        """
        found = self.known(label)
        with self._opened(found) as (host, netns):
            again = self._again(found)
            yield replace(again, host_netns=host, netns=netns, deadline=time.monotonic() + _PATIENCE)

    def known(self, label: str) -> Container:
        """Return a container.

        Raises:
            PluginError: it has ended.
        """
        found = self._known.get(label)
        if found is None:
            raise PluginError(f"the ADD of {label.removeprefix(OURS)} is not known any more; {ANEW}")
        return found

    def _again(self, one: Container) -> CniAdd:
        """Return the ADD as it is repeated: what makes an interface gives it the MAC that its neighbours know."""
        mac = next((own.mac for own in one.result.interfaces if own.sandbox and own.name == one.request.ifname), "")
        if self.chained or not mac:
            return one.request
        runtime = {**(one.request.config.get("runtimeConfig") or {}), "mac": mac}
        return replace(one.request, config={**one.request.config, "runtimeConfig": runtime})


def _is_told(place: Place | None, numbers: Collection[int], told: Collection[Place]) -> bool:
    if place is None or place[0] not in numbers:
        return False
    return not place[1] or place in told or (place[0], 0) in told


def _without_mac(request: CniCheck) -> CniCheck:
    """Leave out what plugins after this one in the list may have changed."""

    def without(interface: CniInterface) -> CniInterface:
        own = interface.sandbox and interface.name == request.ifname
        return replace(interface, mac="") if own else interface

    result = request.prev_result
    return replace(request, prev_result=replace(result, interfaces=tuple(map(without, result.interfaces))))


def _led_elsewhere(request: CniCheck) -> CniCheck | None:
    """Leave out default routes whose place one of another interface has taken; None if that is the case for none.

    A pod may have its default route through another of its networks, and whoever attaches them then removes the
    others: `nodeplug-networks` and multus do.

    Raises:
        PluginError: the namespace is gone.
    """
    result = request.prev_result
    if all(route.dst.prefixlen for route in result.routes):
        return None
    with links_in(request.netns) as inner:
        inside = inner.get(request.ifname)
        own = inside.index if inside is not None else 0
        led = {net.version for index, net in routes_by_link(inner.netlink) if not net.prefixlen and index != own}
    kept = tuple(one for one in result.routes if one.dst.prefixlen or one.dst.version not in led)
    return replace(request, prev_result=replace(result, routes=kept)) if len(kept) < len(result.routes) else None


def _check(one: Container, host: Netns, netns: Netns) -> CniCheck:
    asked = one.request
    return CniCheck(
        deadline=time.monotonic() + _PATIENCE,
        claim=asked.claim,
        network=asked.network,
        version=asked.version,
        config=asked.config,
        path=asked.path,
        host_netns=host,
        container_id=asked.container_id,
        ifname=asked.ifname,
        args=asked.args,
        args_text=asked.args_text,
        prev_result=one.result,
        netns=netns,
    )


def _recorded(one: CniRecord, *, chained: bool) -> Container:
    request = CniAdd(
        claim=one.claim,
        network=one.network,
        version=one.version,
        config=one.config,
        path=one.path,
        host_netns=_CLOSED,
        container_id=one.container_id,
        ifname=one.ifname,
        args=one.args,
        prev_result=one.result if chained else None,
        netns=_CLOSED,
    )
    return Container(Attachment.of(request), one.netns, one.namespace, request, one.result)


def _sentence(one: Container, texts: list[str]) -> str:
    whose = one.attachment
    return f"interface {whose.ifname} of container {whose.container_id}: {'; '.join(texts)}: {ANEW}"
