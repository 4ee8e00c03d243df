"""What Prometheus reads.

Owns: a registry of its own, the name and labels of every metric, and one method per event. Gauges are built from the
last status at each scrape, so that series disappear with their objects.
Refuses: to look at anything itself: services call it, on the event loop. Keys (container ids, paths) are not labels;
the flight recorder has them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Histogram, Info, ProcessCollector, disable_created_metrics
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from nodeplug.contract.errors import WIRES, PluginError
from nodeplug.hosting.call import Call

OK: Final = "ok"
_REGISTER: Final = "Register"
_VERB_LIMIT: Final = 24
BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
"""Seconds: from a STATUS to the deadlines of mounts."""

_Row = Mapping[str, Any]
_GAUGES: Final[tuple[tuple[str, str, Callable[[_Row], float]], ...]] = (
    ("calls_in_flight", "Hooks that run now.", lambda status: len(status["calls"])),
    (
        "calls_overdue",
        "Hooks that run beyond their deadline.",
        lambda status: sum(call["overdue"] for call in status["calls"]),
    ),
    ("spooled_deletes", "DELs that wait to be replayed.", lambda status: status["spool"]),
    (
        "spooled_deletes_stranded",
        "DELs that wait for a plugin that no enabled section serves.",
        lambda status: len(status["stranded"]),
    ),
)
_BY_PLUGIN: Final[tuple[tuple[str, str, Callable[[_Row], float]], ...]] = (
    ("plugin_running", "1 when the plugin serves.", lambda row: row["state"] == "running"),
    ("plugin_quarantined", "1 when too many of its calls hang.", lambda row: row["quarantined"]),
)
_BY_PROCESS: Final[tuple[tuple[str, str, Callable[[_Row], float]], ...]] = (
    ("plugin_process_restarts", "How often the plugin's process was started again.", lambda row: row["restarts"]),
    (
        "plugin_process_memory_bytes",
        "Memory of the plugin's process; of a shared page its part.",
        lambda row: row["process"]["memory_bytes"],
    ),
    (
        "plugin_process_cpu_seconds",
        "Processor time of the plugin's present process.",
        lambda row: row["process"]["cpu_seconds"],
    ),
)
_BY_DRA_DRIVER: Final[tuple[tuple[str, str, Callable[[_Row], float]], ...]] = (
    ("dra_registered", "Whether kubelet has accepted the DRA driver.", lambda row: float(row["registered"])),
    ("dra_devices", "Devices in the slices of a DRA driver.", lambda row: sum(one["devices"] for one in row["pools"])),
    (
        "dra_unhealthy_devices",
        "Devices in the slices of a DRA driver that cannot serve.",
        lambda row: sum(one["unhealthy"] for one in row["pools"]),
    ),
    (
        "dra_prepared_claims",
        "Claims that are prepared.",
        lambda row: sum(one["phase"] == "prepared" for one in row["claims"]),
    ),
)
_BY_RESOURCE: Final[tuple[tuple[str, str, Callable[[_Row], float]], ...]] = (
    ("devices", "Devices that the plugin lists.", lambda row: row["devices"]),
    ("devices_healthy", "Devices that the plugin lists as healthy.", lambda row: row["healthy"]),
    ("devices_allocated", "Devices that containers hold.", lambda row: row["allocated"]),
    ("resource_registered", "1 when kubelet knows the resource.", lambda row: row["registered"]),
)
_Kind = type[CounterMetricFamily] | type[GaugeMetricFamily]
_CLUSTER: Final[tuple[tuple[str, str, _Kind, str], ...]] = (
    ("cluster_requests", "Requests to the API server to publish something.", CounterMetricFamily, "requests"),
    ("cluster_refused", "Those that were refused or not answered.", CounterMetricFamily, "refused"),
    ("cluster_waiting", "What waits to be published.", GaugeMetricFamily, "waiting"),
)


_BY_EXTENDER: Final[tuple[tuple[str, str, Callable[[_Row], float | None]], ...]] = (
    ("extender_listens", "1 when scheduler extenders are served.", lambda row: row["listens"]),
    ("extender_connections", "Connections of kube-scheduler.", lambda row: row["connections"]),
    (
        "extender_certificate_expiry_timestamp_seconds",
        "When the certificate in force expires.",
        lambda row: row["certificate_expires"],
    ),
)


def outcome_of(error: PluginError | None) -> str:
    """Return "ok", or the error's class in the contract.

    A plugin's own subclass counts as that class, so that the label has few values.
    """
    if error is None:
        return OK
    return next(cls for cls in type(error).__mro__ if cls in WIRES).__name__


class Metrics(Collector):
    """Every metric of one daemon. Call its methods on the event loop; reading is safe from any thread."""

    def __init__(self, version: str = "") -> None:
        # Drops an extra series per counter and histogram that nobody uses.
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
        self._registrations = Counter(
            "nodeplug_registrations",
            "Attempts to register with kubelet, by outcome.",
            ("resource", "outcome"),
            registry=within,
        )
        self._reloads = Counter(
            "nodeplug_reloads",
            "Configurations read again: applied, refused, or partly refused (some plugins are not in force).",
            ("outcome",),
            registry=within,
        )
        self._status: _Row = {"calls": (), "spool": 0, "stranded": (), "plugins": (), "resources": ()}
        within.register(self)

    def finished(self, call: Call, outcome: str) -> None:
        """Count a finished call; its duration is its current age."""
        style, _, name = call.claim.partition(":")
        # A caller's unknown verb must not become a series.
        verb = call.verb if call.verb.isalpha() and len(call.verb) <= _VERB_LIMIT else "?"
        self._calls.labels(style, verb, call.claim, outcome).inc()
        self._seconds.labels(style, verb, call.claim).observe(call.age)
        if call.verb == _REGISTER:
            self._registrations.labels(name, outcome).inc()

    def reload(self, outcome: str) -> None:
        """Count one reading of the configuration."""
        self._reloads.labels(outcome).inc()

    def sample(self, status: Mapping[str, Any]) -> None:
        """Store the status for the gauges (see `nodeplug.observe.status` for its shape)."""
        self._status = status

    def collect(self) -> Iterator[Metric]:
        """Yield what the last status has."""
        status = self._status
        for name, text, value in _GAUGES:
            yield GaugeMetricFamily(f"nodeplug_{name}", text, value=value(status))
        plugins: Sequence[_Row] = status["plugins"]
        for rows, key, label, gauges in (
            (plugins, "name", "plugin", _BY_PLUGIN),
            ([row for row in plugins if row["process"]], "name", "plugin", _BY_PROCESS),
            (status["resources"], "resource", "resource", _BY_RESOURCE),
            (status.get("dra", ()), "driver", "driver", _BY_DRA_DRIVER),
        ):
            for name, text, value in gauges:
                family = GaugeMetricFamily(f"nodeplug_{name}", text, labels=[label])
                for row in rows:
                    family.add_metric([row[key]], value(row))
                yield family
        extender = status.get("extender")
        for name, text, known in _BY_EXTENDER:
            number = known(extender) if extender is not None else None
            yield GaugeMetricFamily(f"nodeplug_{name}", text, value=number)  # of None there is no sample
        cluster = status.get("cluster")
        for name, text, kind, key in _CLUSTER:
            yield kind(f"nodeplug_{name}", text, value=cluster[key] if cluster is not None else None)
