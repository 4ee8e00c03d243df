"""Attachments whose container is gone, and that never get a DEL.

Owns: finding them by their namespace, which the kernel has destroyed (`nsid`), and running the DEL of their plugin
without a namespace, as the specification allows. containerd 2.x leaves them: when one network of a pod fails, it
removes the namespace and retries with a new one, without a DEL for the networks that succeeded. So does a node on which
daemon and runtime are killed within an ADD.
Refuses: to touch what may be in use. A namespace exists unless the kernel says otherwise, whatever its path shows; an
attachment that is being recreated belongs to its ADD; a failing DEL is retried at growing intervals.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import Any, Final

from nodeplug.cni.admission import Admission
from nodeplug.cni.attachments import Asked, Attachment, Attachments, Begun, Key
from nodeplug.cni.namespaces import UNKNOWN, Identity, find_host, host_or_own
from nodeplug.cni.nsid import boot_id, gone, shows
from nodeplug.cni.records import Records
from nodeplug.contract.errors import InvalidNetns, PluginError
from nodeplug.contract.netns import Netns
from nodeplug.contract.values import CniDel
from nodeplug.hosting.call import Call
from nodeplug.hosting.registry import Registry
from nodeplug.hosting.runner import Hook, Runner, close_all
from nodeplug.process.lane import Lane, Unanswered

LOG: Final = logging.getLogger(__name__)
_LAST_RETRY: Final = 300.0
Orphan = Attachment | Begun
Composed = tuple[CniDel, tuple[Netns, ...]]
"""A DEL, and the namespaces that are closed after it: the host's first."""


@dataclass(slots=True)
class Orphans:
    """Runs the missing DELs; one that fails is retried after `retry` seconds, then after twice as long."""

    registry: Registry
    runner: Runner
    records: Records
    admission: Admission
    poll: float = 10.0
    retry: float = 10.0
    _failures: dict[Key, tuple[int, float]] = field(default_factory=dict)
    _lane: Lane = field(default_factory=lambda: Lane("the look for attachments without a namespace", 10.0))
    _lookups: Lane = field(default_factory=lambda: Lane("the lookup of a host's namespace", 10.0))

    async def run(self) -> None:
        """Check periodically until cancelled: a task of the daemon."""
        while True:
            try:
                await self.look()
            except Unanswered as error:
                LOG.debug("attachments without a namespace are not looked for: %s", error)
            except Exception:
                LOG.exception("the look for attachments without a namespace failed; it is repeated")
            await asyncio.sleep(self.poll)

    async def look(self) -> None:
        """Find orphans and run the DELs whose retry time has come, newest first, as DEL undoes a chain of plugins.

        Raises:
            Unanswered: the disk with the records does not respond.
        """
        attachments = self.records.attachments
        found = await self._lane.run(lambda: _look(attachments))
        keys = {orphan.key for orphan in found}
        self._failures = {key: failure for key, failure in self._failures.items() if key in keys}
        for orphan in found:
            if self._failures.get(orphan.key, (0, 0.0))[1] <= time.monotonic():
                await self.end(orphan, "its network namespace is gone")

    async def end(self, orphan: Orphan, why: str) -> bool:
        """Run the DEL of an attachment, unless an ADD replaces it meanwhile; return whether that was done.

        `why` is for the log. A failure is logged, and tried again later.
        """
        key, asked, attachments = orphan.key, orphan.asked, self.records.attachments
        if asked is None:
            return False
        call = call_of(key)

        def compose() -> Composed:
            host = host_or_own(UNKNOWN if _is_of_earlier_boot(orphan) else orphan.host)
            opened = host, *_inside(orphan)
            return _deletion(orphan, asked, *opened), opened

        def is_wanted() -> bool:
            return not self.records.is_unsettled(key) and attachments.is_known(orphan)

        try:
            ended = await self.delete(key, call, compose, is_wanted)
        except PluginError as error:
            self._postpone(key, call, error, why)
            return False
        self._failures.pop(key, None)
        if ended:
            LOG.info("ended attachment %s: %s, and no DEL came", key, why)
        return ended

    async def delete(
        self, key: Key, call: Call, compose: Callable[[], Composed], is_wanted: Callable[[], bool]
    ) -> bool:
        """Run a DEL that no runtime sends, and forget what is recorded of its key.

        Args:
            key: of the attachment.
            call: see `call_of`.
            compose: returns the request and the namespaces that it owns; may block.
            is_wanted: asked in the thread of the call, when no other call of the attachment can run.

        Returns:
            Whether it was still wanted.

        Raises:
            PluginError: the plugin failed.
        """
        try:
            ended = await self._delete(key, call, compose, is_wanted)
        except PluginError as error:
            self.runner.finished(call, error)
            raise
        if ended:
            self.runner.finished(call, None)
        return ended

    async def _delete(
        self, key: Key, call: Call, compose: Callable[[], Composed], is_wanted: Callable[[], bool]
    ) -> bool:
        route = self.registry.route("cni", key.claim)
        if "cni_del" not in route.hooks:
            await self.records.forget(key)
            return True
        ended: list[Key] = []

        def around(hook: Hook) -> Hook:
            def delete(**arguments: Any) -> None:
                if is_wanted():
                    hook(**arguments)
                    self.records.attachments.forget(key)
                    ended.append(key)

            return delete

        async with self.admission.enter(call.verb, key.network, key.claim):
            request, opened = await self._lookups.run(compose, late=lambda composed: close_all(composed[1]))
            done = partial(close_all, opened)
            await self.runner.call(
                route, "cni_del", call, {"request": request}, enter=opened[0], done=done, around=around
            )
        return bool(ended)

    def _postpone(self, key: Key, call: Call, error: PluginError, why: str) -> None:
        failures = self._failures.get(key, (0, 0.0))[0] + 1
        delay = min(self.retry * 2 ** (failures - 1), _LAST_RETRY)
        self._failures[key] = failures, time.monotonic() + delay
        LOG.warning(
            "cannot end attachment %s although %s (request %s): %s; next try in %g s",
            key,
            why,
            call.id,
            error,
            delay,
        )


def call_of(key: Key) -> Call:
    """Return the call of a DEL that no runtime sends."""
    return Call("DEL", f"cni:{key.claim}", key=str(key), whole=True)


def _look(attachments: Attachments) -> list[Orphan]:
    """Return the attachments whose namespace is gone, newest first; forget what was delegated for none that is known.

    Whoever delegated is asked to end its own attachment, and has what it delegated ended. What is still recorded of
    that afterwards, such as by a plugin that forgot to, is in nobody's way, and would stay until the next boot.
    """
    known: tuple[Orphan, ...] = (*attachments.list(), *attachments.begun())
    containers = {one.key.container_id for one in known}
    delegated = [one for one in attachments.delegated.list() if one.key.container_id not in containers]
    for one in _orphans(delegated):
        attachments.delegated.forget(one.key)
    return _orphans(known)


def _orphans(attachments: Iterable[Orphan]) -> list[Orphan]:
    """Return the attachments whose namespace is gone, newest first."""
    known = [one for one in attachments if one.sighting is not None and one.asked is not None]
    found = [one for one in known if _is_of_earlier_boot(one)]
    host_of = attrgetter("host")
    for host, group in groupby(sorted(known, key=host_of), key=host_of):
        found += _of_host(host, list(group))
    return sorted(found, key=lambda one: one.time, reverse=True)


def _is_of_earlier_boot(attachment: Orphan) -> bool:
    return attachment.sighting is not None and attachment.sighting.boot_id != boot_id()


def _of_host(identity: Identity, group: list[Orphan]) -> list[Orphan]:
    """Return the attachments of one host namespace whose own namespace is gone."""
    host = find_host(identity)
    if host is None:
        return []
    try:
        with host.entered():
            ended = gone(one.sighting for one in group if one.sighting is not None)
    except OSError as error:
        LOG.debug("the kernel does not say whether namespaces exist: %s", error)
        return []
    finally:
        host.close()
    return [one for one in group if one.sighting in ended]


def _inside(orphan: Orphan) -> tuple[Netns, ...]:
    """Open the namespace of an ADD that was cut off, if it lives and its path still leads to it."""
    if not isinstance(orphan, Begun) or orphan.sighting is None:
        return ()
    try:
        found = Netns.open(orphan.netns)
    except InvalidNetns:
        return ()
    if shows(orphan.sighting, found):
        return (found,)
    found.close()
    return ()


def _deletion(orphan: Orphan, asked: Asked, host: Netns, inside: Netns | None = None) -> CniDel:
    key = orphan.key
    return CniDel(
        claim=key.claim,
        network=key.network,
        version=asked.version,
        config=asked.config,
        path=asked.path,
        host_netns=host,
        container_id=key.container_id,
        ifname=key.ifname,
        args=asked.args,
        prev_result=orphan.result if isinstance(orphan, Attachment) else None,
        netns=inside,
    )
