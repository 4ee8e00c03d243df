"""The metrics that plugins give, as Prometheus reads them.

Owns: which names and labels are exported, and the last numbers of each plugin.
Refuses: to ask plugins (a scrape must never wait for one), and a name of ours, or one that two plugins describe
differently: what one plugin gives must not take another's numbers from the page.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from nodeplug.values import Metric

PREFIX: Final = "nodeplug_"
OWN_LABEL: Final = "plugin"
SAMPLE_LIMIT: Final = 5000
"""Samples of one metric: a label that holds a container id makes Prometheus, and this page, grow without end."""
_NAME: Final = re.compile(r"[a-z][a-z0-9_]*")
_LABEL: Final = re.compile(r"(?!__)[a-z_][a-z0-9_]*")


def fault(metric: Metric) -> str:
    """Return why a metric cannot be exported, or an empty string."""
    if not _NAME.fullmatch(metric.name) or metric.name.endswith(("_total", "_created", "_info", "_bucket")):
        return f"{metric.name!r} is no name for a metric; write lower case with underscores, without _total at its end"
    if len(metric.samples) > SAMPLE_LIMIT:
        return f"{metric.name} has {len(metric.samples)} samples, at most {SAMPLE_LIMIT} are exported"
    shapes = {tuple(sorted(sample.labels)) for sample in metric.samples}
    if len(shapes) > 1:
        return f"the samples of {metric.name} have different labels: {sorted(shapes)}"
    for label in shapes.pop() if shapes else ():
        if not _LABEL.fullmatch(label) or label == OWN_LABEL:
            return f"{metric.name} has the label {label!r}; write lower case with underscores, other than {OWN_LABEL!r}"
    keys = [tuple(sorted(sample.labels.items())) for sample in metric.samples]
    if len(set(keys)) != len(keys):
        return f"{metric.name} has two samples with the same labels"
    if metric.kind == "counter" and any(sample.value < 0 or math.isnan(sample.value) for sample in metric.samples):
        return f"{metric.name} is a counter and has a sample that is negative or no number"
    return ""


class PluginMetrics(Collector):
    """The last metrics of every plugin. `take` is for the event loop; reading is safe from any thread."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._own = {family.name for family in registry.collect()}
        self._given: Mapping[str, Sequence[Metric]] = {}
        registry.register(self)

    def take(self, given: Mapping[str, Sequence[Metric]]) -> list[str]:
        """Make these the metrics of the plugins, by section name; others are forgotten.

        Returns:
            One sentence per metric that is left out.
        """
        faults: list[str] = []
        kept: dict[str, list[Metric]] = {}
        described: dict[str, tuple[str, tuple[str, ...]]] = {}
        for plugin, metrics in given.items():
            for metric in metrics:
                reason = fault(metric) or self._clash(metric, described, kept.get(plugin, ()))
                if reason:
                    faults.append(f"plugin {plugin}: {reason}")
                else:
                    kept.setdefault(plugin, []).append(metric)
        self._given = kept
        return faults

    def _clash(
        self, metric: Metric, described: dict[str, tuple[str, tuple[str, ...]]], before: Iterable[Metric]
    ) -> str:
        name = PREFIX + metric.name
        if name in self._own:
            return f"{name} is a metric of the daemon; choose another name"
        if any(other.name == metric.name for other in before):
            return f"{metric.name} is given twice"
        shape = (metric.kind, tuple(sorted(metric.samples[0].labels)) if metric.samples else ())
        if metric.samples and described.setdefault(name, shape) != shape:
            return f"{name} is given by another plugin with another kind or other labels"
        return ""

    def collect(self) -> Iterator[Family]:
        """Answer a scrape."""
        families: dict[str, Family] = {}
        for plugin, metrics in self._given.items():
            for metric in metrics:
                labels = [OWN_LABEL, *sorted(metric.samples[0].labels)] if metric.samples else [OWN_LABEL]
                family = families.get(metric.name)
                if family is None:
                    kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
                    family = families[metric.name] = kind(PREFIX + metric.name, metric.help, labels=labels)
                for sample in metric.samples:
                    values = [plugin, *(str(value) for _, value in sorted(sample.labels.items()))]
                    family.add_metric(values, float(sample.value))  # type: ignore[attr-defined] # of both families
        return iter(families.values())

    def describe(self) -> Iterator[Family]:
        """Name nothing ahead: what plugins give changes while they run."""
        return iter(())
