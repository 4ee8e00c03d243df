"""The volumes of this node, for any front: each request as a composition, and recovery after a killed daemon.

Owns: what all requests share, the thread of each request, recovery at the start, and what waits for a plugin that does
not run.
Refuses: to know which protocol asks (`compose` has the steps, the fronts have verbs and replies), and to decide whether
a claim may be served: a route without callers is one whose hooks cannot be called.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from nodeplug.contract.errors import PluginError, TryAgain
from nodeplug.contract.journal import Journal
from nodeplug.contract.mounts import mounted_at
from nodeplug.hosting.call import Call
from nodeplug.hosting.composition import Composition
from nodeplug.hosting.registry import Registry
from nodeplug.hosting.runner import Runner
from nodeplug.hosting.slot import Route
from nodeplug.process.aside import aside
from nodeplug.volumes import ledger as led
from nodeplug.volumes.compose import Steps
from nodeplug.volumes.ledger import Ledger, Target, Volume
from nodeplug.volumes.locks import Locks
from nodeplug.volumes.masking import Known
from nodeplug.volumes.records import Records

LOG: Final = logging.getLogger(__name__)
LOCK_PATIENCE: Final = 300.0
"""Seconds that a request waits for an earlier one about the same target or volume, unless its caller waits less."""
_MOMENT: Final = 2.0
"""Seconds that a call waits for what others have left; it goes on behind the call."""
_T = TypeVar("_T")


class Volumes:
    """Volumes, staged in a folder that is made when needed. Event loop only, except `leave`."""

    def __init__(self, runner: Runner, journal: Journal, folder: Path) -> None:
        self.ledger = Ledger(journal, folder.resolve())
        self.known = Known()
        self._runner = runner
        self._records = Records(self.ledger)
        self._locks = Locks()
        self._left: dict[str, set[Target | Volume]] = {}
        self._leaving = threading.Lock()
        self._undoing: set[asyncio.Task[None]] = set()
        self._inside: dict[int, Call] = {}
        self._held = False

    @property
    def inside(self) -> Sequence[Call]:
        """The requests whose work has not really ended, answered or not."""
        return tuple(self._inside.values())

    def hold(self) -> None:
        """Let no request in: another daemon is about to have the records."""
        self._held = True

    def release(self) -> None:
        """Let requests in again."""
        self._held = False

    async def run(
        self, route: Route, call: Call, work: Callable[[Steps], _T], *, patience: float = LOCK_PATIENCE
    ) -> _T:
        """Run the steps of one request in one thread; an overdue step goes on after the reply.

        Args:
            route: to the driver's plugin.
            call: the request.
            work: does the steps.
            patience: seconds to wait for an earlier request about the same target or volume.

        Raises:
            TryAgain: another daemon is about to take over.
            InProgress: the earlier request took longer.
            DeadlineExceeded: a step is overdue; the work is completed or rolled back when that step ends.
            PluginError: what the steps raised.
        """
        if self._held:
            raise TryAgain("another daemon takes over this node just now; ask again")
        composition = Composition(self._runner, route, call)
        steps = Steps(self.ledger, self._records, self._locks, self.leave, composition, route.claim.name, patience)
        self._inside[id(steps)], begun = call, threading.Event()

        def to_the_end(_: Composition) -> _T:
            begun.set()
            try:
                return work(steps)
            finally:
                self._inside.pop(id(steps), None)

        try:
            return await composition.run(to_the_end)
        except BaseException:
            if not begun.is_set():  # no thread could be started for it
                self._inside.pop(id(steps), None)
            raise

    async def recover(self, registry: Registry) -> None:
        """Reconcile records and mounts at the start: the last daemon may have been killed at any step.

        A mount at a target is kept, because kubelet already counts it as success, unless it should be read-only and is
        not. Unused volumes are unstaged. Problems are logged and left to the next call or start.
        """
        try:
            for target in await aside(self._settle, "volumes: recover"):
                LOG.warning("%s was half mounted or unmounted for %s at the end", target.path, target.volume.driver)
                await self._undo(registry, target)
            for volume in await aside(self.ledger.all_volumes, "volumes: recover"):
                await self._undo(registry, volume)
        except (PluginError, OSError) as error:
            LOG.error("volumes stay as they are, for their records cannot be used: %s", error)

    async def undo_left(self, registry: Registry, driver: str) -> None:
        """Undo what was left while the driver's plugin did not run; after a restart, `recover` finds it instead.

        Whoever calls waits for that for a moment. Problems are logged and left to the next start; what may be asked
        again stays for the next call.
        """
        with self._leaving:
            remainders = self._left.pop(driver, set())
        if remainders:
            work = asyncio.create_task(self._undo_all(registry, remainders))
            self._undoing.add(work)
            work.add_done_callback(self._undoing.discard)
            await asyncio.wait({work}, timeout=_MOMENT)

    async def _undo_all(self, registry: Registry, remainders: Iterable[Target | Volume]) -> None:
        for remainder in remainders:
            await self._undo(registry, remainder)

    def leave(self, remainder: Target | Volume) -> None:
        """Keep a volume without pods, or a target without a mount, until its driver's plugin runs."""
        volume = remainder.volume if isinstance(remainder, Target) else remainder
        with self._leaving:
            self._left.setdefault(volume.driver, set()).add(remainder)

    async def _undo(self, registry: Registry, remainder: Target | Volume) -> None:
        """Unmount a target, or unstage a volume that no pod uses; without the plugin, or too early, it is kept."""
        volume = remainder.volume if isinstance(remainder, Target) else remainder
        try:
            route = registry.route("volume", volume.driver)
        except PluginError as error:
            LOG.warning("volume %s of %s stays as it is for now: %s", volume.volume_id, volume.driver, error.message)
            self.leave(remainder)
            return
        mask = self.known.mask(volume.driver)
        try:
            call = Call("recover", f"volume:{volume.driver}", volume.staging_path, mask=mask)
            await self.run(route, call, lambda steps: _undo(steps, remainder))
        except PluginError as error:
            if isinstance(error, TryAgain):  # another daemon takes over, and may give up; or the plugin is busy
                self.leave(remainder)
            text = await aside(partial(mask, error.message), "volumes: mask")
            LOG.warning("volume %s of %s stays as it is: %s", volume.volume_id, volume.driver, text)

    def _settle(self) -> list[Target]:
        """Compare the records with mountinfo; correct those that need no hook, and return the others."""
        halfway = []
        self.ledger.forget_other_boots()
        for target in self.ledger.targets():
            mount = mounted_at(target.path)
            if mount is None and target.phase == led.UNPUBLISHING:  # the plugin may have more to release
                halfway.append(target)
            elif mount is None:
                self._records.forget(target)
            elif target.phase == led.PUBLISHING and target.read_only and not mount.read_only:
                halfway.append(target)
            elif target.phase == led.PUBLISHING:
                self._records.note(replace(target, phase=led.PUBLISHED))
        return halfway


def _undo(steps: Steps, remainder: Target | Volume) -> None:
    if isinstance(remainder, Target):
        steps.unpublish(remainder.path)
    else:
        steps.unstage_unused(remainder)
