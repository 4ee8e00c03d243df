"""Feeding metrics and flight recorder from one place.

Owns: which finished calls are worth remembering, and the samples that are taken between scrapes.
Refuses: to ask plugins anything.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from nodeplug.contract.errors import PluginError
from nodeplug.hosting.call import Call
from nodeplug.observe.metrics import Metrics, outcome_of
from nodeplug.observe.recorder import Recorder

_ROUTINE: Final = frozenset({"health", "inspect", "metrics", "ListDevices"})
"""Verbs of our own timers: counted, and remembered only when they fail."""
_REGISTER: Final = "Register"


@dataclass(slots=True)
class Observer:
    """Metrics and flight recorder of one daemon. Used from the event loop alone."""

    metrics: Metrics
    recorder: Recorder = field(default_factory=Recorder)
    _plugins: frozenset[str] = frozenset()
    _resources: frozenset[str] = frozenset()

    def finished(self, call: Call, error: PluginError | None) -> None:
        """Take note of a finished call."""
        outcome = outcome_of(error)
        self.metrics.observe(call, outcome)
        if call.verb == _REGISTER:
            self.metrics.registration(call.claim.partition(":")[2], outcome)
        if error is not None or call.verb not in _ROUTINE:
            self.recorder.add(call, outcome, error.message if error is not None else "")

    def sample(self, status: Mapping[str, Any]) -> None:
        """Bring the gauges up to a status (see `nodeplug.observe.status` for its shape)."""
        calls = status["calls"]
        self.metrics.running(len(calls), sum(call["overdue"] for call in calls))
        self.metrics.spool(status["spool"])
        self.metrics.stranded(len(status["stranded"]))
        self._sample_plugins(status["plugins"])
        self._sample_resources(status["resources"])

    def _sample_plugins(self, plugins: Iterable[Mapping[str, Any]]) -> None:
        seen = set()
        for plugin in plugins:
            seen.add(plugin["name"])
            self.metrics.plugin(plugin["name"], running=plugin["state"] == "running", quarantined=plugin["quarantined"])
        for gone in self._plugins - seen:
            self.metrics.forget_plugin(gone)
        self._plugins = frozenset(seen)

    def _sample_resources(self, resources: Iterable[Mapping[str, Any]]) -> None:
        seen = set()
        for resource in resources:
            seen.add(resource["resource"])
            self.metrics.devices(
                resource["resource"],
                total=resource["devices"],
                healthy=resource["healthy"],
                allocated=resource["allocated"],
                registered=resource["registered"],
            )
        for gone in self._resources - seen:
            self.metrics.forget_resource(gone)
        self._resources = frozenset(seen)
