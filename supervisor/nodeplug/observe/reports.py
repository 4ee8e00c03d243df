"""What plugins report about themselves on request.

Owns: calls of `inspect` and `metrics` to running plugins, each with its own deadline, and handling unusable results.
Refuses: the daemon's own status, which must work while plugins hang; and to read a result before it is plain values: a
plugin's mapping is plugin code, which may run only in the thread of its call.
"""

import asyncio
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from nodeplug.contract.errors import NotFound, NotReady, NotSupported, PluginError
from nodeplug.contract.values import Metric
from nodeplug.hosting.call import Call
from nodeplug.hosting.runner import Hook, Runner
from nodeplug.hosting.slot import Instance, Slot
from nodeplug.observe.plugin_metrics import plain
from nodeplug.process.aside import aside

LOG: Final = logging.getLogger(__name__)
INSPECT_LIMIT: Final = 4 << 20
"""Bytes of JSON per inspection, which is meant for people and passed on in one piece."""
MEASURE_PATIENCE: Final = 1.0
"""Seconds after which metrics are exported without waiting for slow plugins."""
_Measured = tuple[Sequence[Metric], str]
"""The metrics of one plugin, or why there are none."""


@dataclass(slots=True)
class Reports:
    """Calls plugins, on the event loop only. `export` takes metrics and returns a message for each one it skipped."""

    slots: Mapping[str, Slot]
    runner: Runner
    export: Callable[[Mapping[str, Sequence[Metric]]], Sequence[str]]
    _faults: frozenset[str] = field(default_factory=frozenset)
    _asking: dict[str, "asyncio.Task[_Measured]"] = field(default_factory=dict)
    _answers: dict[str, _Measured] = field(default_factory=dict)

    async def inspect(self, wanted: str) -> dict[str, Any]:
        """Inspect a section, or every section that uses the plugin of that name; return the results by section name.

        Refused plugins are left out, unless all are refused.

        Raises:
            NotFound: no section has or uses the name.
            NotReady: one of them is not running.
            NotSupported: one of them has nothing to inspect.
            PluginError: one of them failed, or its result is too large or not JSON.
        """
        meant = [slot for name, slot in self.slots.items() if wanted in {name, slot.instance.uses}]
        slots = [slot for slot in meant if slot.state != "refused"] or meant
        if not slots:
            known = ", ".join(sorted(self.slots)) or "none"
            raise NotFound(f"no plugin {wanted!r} is enabled; there is a [plugins.…] section for: {known}")
        # In parallel: the caller waits for the slowest one, not for all in turn.
        answers = await asyncio.gather(*(self._inspect(slot) for slot in slots))
        return {slot.name: answer for slot, answer in zip(slots, answers, strict=True)}

    async def _inspect(self, slot: Slot) -> Any:
        instance = _running(slot)
        if "inspect" not in instance.hooks:
            raise NotSupported(f"plugin {slot.name!r} has nothing to inspect; `nodeplug status` shows its state")
        call = Call("inspect", f"plugin:{slot.name}", key=f"inspection of {slot.name}")
        return await self.runner.call(instance, "inspect", call, {}, around=lambda hook: _in_json(slot.name, hook))

    async def measure(self) -> None:
        """Call every running plugin that has metrics. One that fails has none, which is logged once.

        One that hangs does not delay the others: its last metrics stay until its deadline.
        """
        running = {name: slot for name, slot in self.slots.items() if slot.state == "running"}
        asked = {name: slot for name, slot in running.items() if "metrics" in slot.instance.hooks}
        for name in asked.keys() - self._asking.keys():
            self._asking[name] = asyncio.create_task(self._measure(asked[name]), name=f"metrics of {name}")
        if self._asking:
            await asyncio.wait(self._asking.values(), timeout=MEASURE_PATIENCE)
        for name in [name for name, asking in self._asking.items() if asking.done()]:
            self._answers[name] = self._asking.pop(name).result()
        self._answers = {name: answer for name, answer in self._answers.items() if name in asked}
        given = {name: metrics for name, (metrics, _) in self._answers.items()}
        # In a thread of its own: it checks thousands of samples, all plain values now.
        left_out = await aside(lambda: self.export(given), "export of metrics")
        faults = frozenset([*(text for _, text in self._answers.values() if text), *left_out])
        for text in sorted(faults - self._faults):
            LOG.warning("not exported: %s", text)
        self._faults = faults

    async def _measure(self, slot: Slot) -> _Measured:
        call = Call("metrics", f"plugin:{slot.name}", key=f"metrics of {slot.name}")
        try:
            return await self.runner.call(_running(slot), "metrics", call, {}, around=_in_plain_values), ""
        except PluginError as error:
            return (), f"plugin {slot.name}: {error.message}"


def _in_plain_values(hook: Hook) -> Hook:
    def metrics() -> Any:
        answer = hook()
        if not isinstance(answer, Sequence):
            return answer  # the runner reports the error
        return [plain(metric) if isinstance(metric, Metric) else metric for metric in answer]

    return metrics


def _in_json(plugin: str, hook: Hook) -> Hook:
    def inspect() -> Any:
        answer = hook()
        return json.loads(_written(plugin, answer)) if isinstance(answer, Mapping) else answer

    return inspect


def _written(plugin: str, answer: Mapping[str, Any]) -> str:
    """Write JSON in pieces, so that a large result is refused early and other threads can run."""
    pieces: list[str] = []
    size = 0
    try:
        for piece in json.JSONEncoder(allow_nan=False).iterencode(dict(answer)):
            pieces.append(piece)
            size += len(piece)
            if size > INSPECT_LIMIT:
                break
    except (TypeError, ValueError, RecursionError) as error:
        raise PluginError(f"what plugin {plugin!r} reports about itself is not JSON: {error}") from error
    if size > INSPECT_LIMIT:
        raise PluginError(f"what plugin {plugin!r} reports about itself has more than {INSPECT_LIMIT} bytes of JSON")
    return "".join(pieces)


def _running(slot: Slot) -> Instance:
    if slot.state != "running":
        raise NotReady(f"plugin {slot.name!r} is {slot.state}: {slot.reason or 'ask again in a moment'}")
    return slot.instance
