"""What plugins report for the cluster, asked for side by side.

Owns: calls of `cluster_report`, and which report is in force: the last one of a section that is still there.
Refuses: to wait for a plugin that hangs: its last report stays, and those of the others go on.
"""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from nodeplug.contract.errors import NotReady, PluginError
from nodeplug.contract.values import ClusterReport
from nodeplug.hosting.call import Call
from nodeplug.hosting.registry import Registry
from nodeplug.hosting.runner import Hook, Runner
from nodeplug.hosting.slot import Slot
from nodeplug.worker.encoding import read_answer, write_answer
from nodeplug.worker.wire import Message

LOG: Final = logging.getLogger(__name__)
HOOK: Final = "cluster_report"
PATIENCE: Final = 1.0
"""Seconds after which the other reports are used without waiting for slow plugins."""


@dataclass(slots=True)
class ClusterReports:
    """Asks plugins. Event loop only."""

    registry: Registry
    runner: Runner
    _asking: "dict[str, asyncio.Task[ClusterReport | None]]" = field(default_factory=dict)
    _reports: dict[str, ClusterReport] = field(default_factory=dict)
    _faults: dict[str, str] = field(default_factory=dict)

    @property
    def settled(self) -> bool:
        """Whether no section is at its first start, and each plugin that has the hook has reported once."""
        slots = self.registry.slots.items()
        starting = any(slot.state == "starting" for _, slot in slots)
        silent = any(
            slot.state == "running" and HOOK in slot.instance.hooks and name not in self._reports
            for name, slot in slots
        )
        return not starting and not silent

    async def collect(self) -> Mapping[str, ClusterReport]:
        """Return the reports in force, by section, in the order of the configuration."""
        slots = self.registry.slots
        asked = {name: slot for name, slot in slots.items() if slot.state == "running" and HOOK in slot.instance.hooks}
        for name in asked.keys() - self._asking.keys():
            self._asking[name] = asyncio.create_task(self._ask(asked[name]), name=f"cluster report of {name}")
        if self._asking:
            await asyncio.wait(self._asking.values(), timeout=PATIENCE)
        for name in [name for name, asking in self._asking.items() if asking.done()]:
            report = self._asking.pop(name).result()
            if report is not None:
                self._reports[name] = report
        there = {name for name, slot in slots.items() if slot.state != "refused"}
        order = {name: rank for rank, name in enumerate(self.registry.order)}
        names = sorted(there & self._reports.keys(), key=lambda name: order.get(name, len(order)))
        self._reports = {name: self._reports[name] for name in names}
        return dict(self._reports)

    async def _ask(self, slot: Slot) -> ClusterReport | None:
        call = Call(HOOK, f"plugin:{slot.name}", key=f"cluster report of {slot.name}")
        try:
            if slot.state != "running":
                raise NotReady(f"plugin {slot.name!r} is {slot.state}")
            report: ClusterReport = await self.runner.call(slot.instance, HOOK, call, {}, around=_in_plain_values)
        except PluginError as error:
            if self._faults.get(slot.name) != error.message:
                LOG.warning("plugin %s has no new report for the cluster: %s", slot.name, error.message)
            self._faults[slot.name] = error.message
            return None
        self._faults.pop(slot.name, None)
        return report


def _in_plain_values(hook: Hook) -> Hook:
    """Check and copy a report in the thread of its call, by the way that it takes from another process.

    A plugin's mapping is code of the plugin's, and its text may be none.
    """

    def cluster_report() -> Any:
        answer = hook()
        if not isinstance(answer, ClusterReport):
            return answer  # the runner reports the error
        return read_answer(HOOK, Message({}, write_answer(HOOK, answer)))

    return cluster_report
