"""What Prometheus reads.

Owns: a registry of its own, the name and labels of every metric, and one method per thing that happens.
Refuses: to look at anything itself: services tell it, on the event loop. Keys (container ids, paths) are no labels; the
flight recorder has them.
"""

from typing import Final

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    ProcessCollector,
    disable_created_metrics,
)

from nodeplug.contract.errors import WIRES, PluginError
from nodeplug.hosting.call import Call

OK: Final = "ok"
_VERB_LIMIT: Final = 24
BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
"""Seconds: from a STATUS to the deadlines of mounts."""


def outcome_of(error: PluginError | None) -> str:
    """Return the word for how a call ended: "ok" or the error's class in the contract.

    A plugin's own subclass counts as its ancestor, so that the label has few values.
    """
    if error is None:
        return OK
    return next(cls for cls in type(error).__mro__ if cls in WIRES).__name__


class Metrics:
    """Every metric of one daemon. Methods are for the event loop; reading is safe from any thread."""

    def __init__(self, version: str = "") -> None:
        # A series beside each counter and histogram that nobody asks for.
        disable_created_metrics()  # type: ignore[no-untyped-call] # the library gives this one function no types
        self.registry: Final = CollectorRegistry()
        within = self.registry
        ProcessCollector(registry=within)
        Info("nodeplug_build", "The running version, as a label.", registry=within).info({"version": version})
        self._calls = Counter(
            "nodeplug_calls",
            "Finished calls, by outcome: ok or the error's name.",
            ("style", "verb", "claim", "outcome"),
            registry=within,
        )
        self._seconds = Histogram(
            "nodeplug_call_seconds",
            "From a call's arrival to its answer.",
            ("style", "verb", "claim"),
            buckets=BUCKETS,
            registry=within,
        )
        self._in_flight = Gauge("nodeplug_calls_in_flight", "Hooks that run now.", registry=within)
        self._overdue = Gauge("nodeplug_calls_overdue", "Hooks that run beyond their deadline.", registry=within)
        self._plugins = Gauge("nodeplug_plugin_running", "1 when the plugin serves.", ("plugin",), registry=within)
        self._quarantined = Gauge(
            "nodeplug_plugin_quarantined", "1 when too many of its calls hang.", ("plugin",), registry=within
        )
        self._devices = Gauge("nodeplug_devices", "Devices that the plugin lists.", ("resource",), registry=within)
        self._healthy = Gauge(
            "nodeplug_devices_healthy", "Devices that the plugin lists as healthy.", ("resource",), registry=within
        )
        self._allocated = Gauge(
            "nodeplug_devices_allocated", "Devices that containers hold.", ("resource",), registry=within
        )
        self._registered = Gauge(
            "nodeplug_resource_registered", "1 when kubelet knows the resource.", ("resource",), registry=within
        )
        self._registrations = Counter(
            "nodeplug_registrations",
            "Attempts to register with kubelet, by outcome.",
            ("resource", "outcome"),
            registry=within,
        )
        self._spool = Gauge("nodeplug_spooled_deletes", "DELs that wait to be replayed.", registry=within)
        self._stranded = Gauge(
            "nodeplug_spooled_deletes_stranded",
            "DELs that wait for a plugin that no enabled section serves.",
            registry=within,
        )
        self._reloads = Counter(
            "nodeplug_reloads",
            "Configurations read again: applied, refused, or partly refused (some plugins are not in force).",
            ("outcome",),
            registry=within,
        )

    def observe(self, call: Call, outcome: str) -> None:
        """Count a finished call; its duration is its age now."""
        style = call.claim.partition(":")[0]
        # Whatever a caller sends as a verb must not become a series of its own.
        verb = call.verb if call.verb.isalpha() and len(call.verb) <= _VERB_LIMIT else "?"
        self._calls.labels(style, verb, call.claim, outcome).inc()
        self._seconds.labels(style, verb, call.claim).observe(call.age)

    def running(self, in_flight: int, overdue: int) -> None:
        """Tell how many hooks run, and how many of them beyond their deadline."""
        self._in_flight.set(in_flight)
        self._overdue.set(overdue)

    def plugin(self, name: str, *, running: bool, quarantined: bool) -> None:
        """Tell where a plugin stands."""
        self._plugins.labels(name).set(running)
        self._quarantined.labels(name).set(quarantined)

    def forget_plugin(self, name: str) -> None:
        """Drop the series of a plugin that is no longer configured."""
        for gauge in (self._plugins, self._quarantined):
            gauge.remove_by_labels({"plugin": name})

    def devices(self, resource: str, *, total: int, healthy: int, allocated: int, registered: bool) -> None:
        """Tell how a resource stands."""
        self._devices.labels(resource).set(total)
        self._healthy.labels(resource).set(healthy)
        self._allocated.labels(resource).set(allocated)
        self._registered.labels(resource).set(registered)

    def forget_resource(self, resource: str) -> None:
        """Drop the series of a resource that nobody claims any more."""
        for gauge in (self._devices, self._healthy, self._allocated, self._registered):
            gauge.remove_by_labels({"resource": resource})

    def registration(self, resource: str, outcome: str) -> None:
        """Count one try to register a resource."""
        self._registrations.labels(resource, outcome).inc()

    def spool(self, size: int) -> None:
        """Tell how many DELs are spooled."""
        self._spool.set(size)

    def stranded(self, size: int) -> None:
        """Tell how many spooled DELs wait for a plugin that is gone."""
        self._stranded.set(size)

    def reload(self, outcome: str) -> None:
        """Count one reading of the configuration."""
        self._reloads.labels(outcome).inc()
