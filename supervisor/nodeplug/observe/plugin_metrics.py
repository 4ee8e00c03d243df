"""The metrics of plugins, as Prometheus reads them.

Owns: which names and labels are exported, and the latest values of each plugin.
Refuses: to call plugins (a scrape must never wait for one), to export the daemon's own names, and names that two
plugins describe differently: no plugin may remove another's values.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from nodeplug.contract.errors import PluginError
from nodeplug.contract.values import Metric, Sample

PREFIX: Final = "nodeplug_"
OWN_LABEL: Final = "plugin"
SAMPLE_LIMIT: Final = 5000
"""Samples of one metric: with a container id as label, Prometheus and this page would grow without end."""
_SUFFIXES: Final[Mapping[str, tuple[str, ...]]] = {"histogram": ("_sum", "_count"), "summary": ("_sum", "_count")}
"""Other names of a family that can clash; `fault` refuses all the rest."""
_NAME: Final = re.compile(r"[a-z][a-z0-9_]*")
_LABEL: Final = re.compile(r"(?!__)[a-z_][a-z0-9_]*")


PLUGIN_LIMIT: Final = 20_000
"""Samples of all metrics of one plugin: each scrape writes them."""


def plain(metric: Metric) -> Metric:
    """Return a metric made of plain Python values, with text that can be encoded as UTF-8.

    Call this in the thread of the plugin's call: a plugin can return any object, whose methods are the plugin's code.

    Raises:
        PluginError: a part has another type, which would make the whole scrape fail.
    """
    if not isinstance(metric.name, str) or not isinstance(metric.help, str):
        raise PluginError(f"the metric {metric.name!r} has a name or a help that is not text")
    if metric.kind not in ("gauge", "counter"):
        raise PluginError(f"{metric.name} is a {metric.kind!r}; a metric is a gauge or a counter")
    return Metric(
        _text(metric.name), _text(metric.help), [_plain(metric.name, one) for one in metric.samples], metric.kind
    )


def _plain(name: str, sample: Sample) -> Sample:
    labels = dict(sample.labels) if isinstance(sample, Sample) else {None: ""}
    if not all(isinstance(label, str) for label in labels):
        raise PluginError(f"{name} has the sample {sample!r}; expected a Sample with a mapping from text to text")
    try:
        value = float(sample.value)
    except (TypeError, ValueError, OverflowError) as error:
        raise PluginError(f"{name} has a {type(sample.value).__name__} as value, not a float: {error}") from error
    return Sample(value, {_text(label): _text(str(text)) for label, text in labels.items()})


def _text(text: str) -> str:
    """Escape what is not UTF-8, such as a file name, in a copy that is no subclass of str."""
    return text.encode(errors="backslashreplace").decode()


def fault(metric: Metric) -> str:
    """Return why a metric cannot be exported, or an empty string."""
    if not _NAME.fullmatch(metric.name) or metric.name.endswith(("_total", "_created", "_info", "_bucket")):
        return f"{metric.name!r} is not a valid name; write lower case with underscores, without _total at the end"
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
    """The latest metrics of every plugin. Call `take` from one thread at a time; reading is safe from any thread."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        own = list(registry.collect())
        self._own = {family.name + suffix for family in own for suffix in ("", *_SUFFIXES.get(family.type, ()))}
        self._given: Mapping[str, Sequence[Metric]] = {}
        registry.register(self)

    def take(self, given: Mapping[str, Sequence[Metric]]) -> list[str]:
        """Replace all metrics by these (results of `plain`, by section name); return a message per skipped metric."""
        faults: list[str] = []
        kept: dict[str, list[Metric]] = {}
        described: dict[str, tuple[str, tuple[str, ...]]] = {}
        for plugin, metrics in given.items():
            left = PLUGIN_LIMIT
            for metric in metrics:
                left -= len(metric.samples)
                reason = fault(metric) or self._clash(metric, described, kept.get(plugin, ()))
                if left < 0:
                    reason = f"{metric.name} exceeds the {PLUGIN_LIMIT} samples that one plugin may have"
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
        """Yield the metrics for a scrape."""
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
        """Yield nothing: the metrics of plugins change."""
        return iter(())
