"""FlexVolume without attach: `mount` is stage and publish, `unmount` is unpublish and, for the last user, unstage.

Owns: that composition as seen from outside, and the recovery after a start. Defaults: no volume_stage means no staging,
no volume_publish a bind mount of the staging path, and whatever a plugin's own unpublish or unstage leaves mounted is
unmounted by the host.
Refuses: to leave a mount behind a failure. Kubelet takes any mount point at the target for success and does not call
again (flexvolume/mounter.go), so a failed mount is undone before it is answered; a mount that mounted nothing fails.

Every intent is on disk before its side effect, mountinfo is the truth, and each step may be repeated: SIGKILL between
any two of them is mended by the repeated call or by `recover`.
"""

import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from nodeplug.contract.errors import PluginError
from nodeplug.contract.journal import Journal
from nodeplug.contract.mounts import mounted_at
from nodeplug.hosting.call import Call
from nodeplug.hosting.registry import Registry
from nodeplug.hosting.runner import Runner
from nodeplug.hosting.slot import Route
from nodeplug.volumes import ledger as led
from nodeplug.volumes.ledger import Ledger, Target, Volume
from nodeplug.volumes.masking import Known, redact
from nodeplug.volumes.records import Records
from nodeplug.volumes.steps import Steps
from nodeplug.volumes.work import Work, Workshop

LOG: Final = logging.getLogger(__name__)


@dataclass(slots=True)
class Staging:
    """Mounts and unmounts volumes for pods. Used from the event loop alone.

    Attributes:
        ledger: the records and the staging folder.
        records: writes those records.
        workshop: the work in progress.
    """

    ledger: Ledger
    records: Records
    workshop: Workshop

    @classmethod
    def at(cls, runner: Runner, journal: Journal, folder: Path) -> "Staging":
        """Build one.

        Args:
            runner: calls the hooks.
            journal: for these records alone.
            folder: where volumes are staged; made when needed.
        """
        ledger = Ledger(journal, folder.resolve())
        return cls(ledger, Records(ledger), Workshop(runner))

    @property
    def known(self) -> Known:
        """The secrets of what is mounted."""
        return self.workshop.known

    async def run(self, route: Route, call: Call, steps: Callable[[Steps], Coroutine[Any, Any, None]]) -> None:
        """Run the steps of one request as work that outlives its answer.

        Raises:
            DeadlineExceeded: a step is overdue; the work is completed or rolled back when that step ends.
            PluginError: what the steps raised.
        """

        def begin(work: Work) -> Coroutine[Any, Any, None]:
            return steps(Steps(self.ledger, self.records, self.workshop, work))

        await self.workshop.run(route, call, begin)

    async def recover(self, registry: Registry) -> None:
        """Bring records and mounts together after a start: the predecessor may have been killed at any step.

        A mount at a target is kept, for kubelet takes it for success already; one that should be read-only and is not
        goes. What no pod uses is unstaged. Problems are logged and left to the next call or start.
        """
        try:
            for target in await self.workshop.host(_settle, self.ledger):
                LOG.warning("%s was half mounted or unmounted for %s at the end", target.path, target.volume.driver)
                await self._undo(registry, target)
            for volume in await self.workshop.host(_volumes, self.ledger):
                await self._undo(registry, volume)
        except PluginError as error:
            LOG.error("volumes stay as they are, for their records cannot be used: %s", error.message)

    async def undo_left(self, registry: Registry, driver: str) -> None:
        """Undo what was left while the driver's plugin did not run. A restarted daemon finds it in `recover`.

        Problems are logged and left to the next start.
        """
        for remainder in self.workshop.left.pop(driver, ()):
            await self._undo(registry, remainder)

    async def _undo(self, registry: Registry, remainder: Target | Volume) -> None:
        """Unmount a target, or unstage a volume that no pod uses; without the plugin it is left again."""
        volume = remainder.volume if isinstance(remainder, Target) else remainder
        steps = _unmounting(remainder) if isinstance(remainder, Target) else _unstaging(remainder)
        try:
            route = registry.route("volume", volume.driver)
        except PluginError as error:
            LOG.warning("volume %s of %s stays as it is for now: %s", volume.volume_id, volume.driver, error.message)
            self.workshop.leave(remainder)
            return
        try:
            await self.run(route, Call("recover", f"volume:{volume.driver}", volume.staging_path), steps)
        except PluginError as error:
            text = redact(error.message, self.known.of(volume.driver))
            LOG.warning("volume %s of %s stays as it is: %s", volume.volume_id, volume.driver, text)


def _settle(ledger: Ledger) -> list[Target]:
    """Compare the records with mountinfo; correct those that need no hook, and return those that do."""
    halfway = []
    ledger.forget_other_boots()
    for target in ledger.targets():
        mount = mounted_at(target.path)
        if mount is None and target.phase == led.UNPUBLISHING:  # the plugin may have more to release
            halfway.append(target)
        elif mount is None:
            ledger.forget_target(target.path)
        elif target.phase == led.PUBLISHING and target.read_only and not mount.read_only:
            halfway.append(target)
        elif target.phase == led.PUBLISHING:
            ledger.write_target(led.with_phase(target, led.PUBLISHED))
    return halfway


def _volumes(ledger: Ledger) -> list[Volume]:
    """Return all that is staged, with or without a record."""
    return [staged.volume for staged in ledger.all_staged()] + ledger.stray_volumes()


def _unmounting(target: Target) -> Callable[[Steps], Coroutine[Any, Any, None]]:
    return lambda steps: steps.unmount(target.path)


def _unstaging(volume: Volume) -> Callable[[Steps], Coroutine[Any, Any, None]]:
    return lambda steps: steps.unstage_unused(volume)
