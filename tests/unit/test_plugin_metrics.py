"""The metrics that plugins give, as a scrape reads them."""

from collections.abc import Sequence

import pytest
from prometheus_client import generate_latest

from nodeplug import Metric, Sample
from nodeplug.observe.metrics import Metrics
from nodeplug.observe.plugin_metrics import SAMPLE_LIMIT, PluginMetrics

USED = Metric("card_used_bytes", "Memory in use.", [Sample(4096.0, {"card": "a"}), Sample(0.0, {"card": "b"})])


def exporter() -> tuple[Metrics, PluginMetrics]:
    metrics = Metrics("1.2.3")
    return metrics, PluginMetrics(metrics.registry)


def refused(*given: Metric) -> Sequence[str]:
    return exporter()[1].take({"gpu": given})


def test_samples_are_exported_with_the_prefix_and_the_label_of_their_plugin() -> None:
    metrics, exported = exporter()
    assert exported.take({"gpu": [USED]}) == []
    labels = {"plugin": "gpu", "card": "a"}
    assert metrics.registry.get_sample_value("nodeplug_card_used_bytes", labels) == 4096


def test_a_counter_gets_its_suffix() -> None:
    metrics, exported = exporter()
    exported.take({"gpu": [Metric("resets", "Resets.", [Sample(3.0)], kind="counter")]})
    assert metrics.registry.get_sample_value("nodeplug_resets_total", {"plugin": "gpu"}) == 3


def test_two_sections_of_one_plugin_share_a_metric() -> None:
    metrics, exported = exporter()
    assert exported.take({"gpu-a": [USED], "gpu-b": [USED]}) == []
    page = generate_latest(metrics.registry).decode()
    assert page.count("# TYPE nodeplug_card_used_bytes gauge") == 1
    assert page.count("nodeplug_card_used_bytes{") == 4


def test_a_plugin_that_gives_no_more_metrics_is_forgotten() -> None:
    metrics, exported = exporter()
    exported.take({"gpu": [USED]})
    exported.take({})
    assert "card_used" not in generate_latest(metrics.registry).decode()


@pytest.mark.parametrize("name", ["", "Card", "card-used", "card_total", "1st", "a b", "é"])
def test_a_name_that_prometheus_would_not_read_is_refused(name: str) -> None:
    assert "is not a valid name;" in refused(Metric(name, "", [Sample(1.0)]))[0]


@pytest.mark.parametrize("label", ["plugin", "__name__", "Card", "a-b", ""])
def test_a_label_that_cannot_be_exported_is_refused(label: str) -> None:
    assert f"has the label {label!r}" in refused(Metric("used", "", [Sample(1.0, {label: "x"})]))[0]


def test_samples_with_different_labels_are_refused() -> None:
    assert "different labels" in refused(Metric("used", "", [Sample(1.0, {"a": "x"}), Sample(1.0, {"b": "x"})]))[0]


def test_two_samples_with_the_same_labels_are_refused() -> None:
    assert "the same labels" in refused(Metric("used", "", [Sample(1.0, {"a": "x"}), Sample(2.0, {"a": "x"})]))[0]


def test_a_counter_that_is_negative_is_refused() -> None:
    assert "negative" in refused(Metric("resets", "", [Sample(-1.0)], kind="counter"))[0]


def test_a_name_of_the_daemon_is_refused() -> None:
    assert "is a metric of the daemon" in refused(Metric("devices", "", [Sample(1.0, {"resource": "x"})]))[0]


def test_a_metric_given_twice_is_refused_once() -> None:
    assert len(refused(USED, USED)) == 1


def test_too_many_samples_are_refused() -> None:
    samples = [Sample(1.0, {"id": str(number)}) for number in range(SAMPLE_LIMIT + 1)]
    assert f"at most {SAMPLE_LIMIT}" in refused(Metric("used", "", samples))[0]


def test_another_plugin_with_other_labels_under_one_name_is_refused_and_the_first_stays() -> None:
    metrics, exported = exporter()
    other = Metric("card_used_bytes", "", [Sample(1.0, {"uuid": "a"})])
    assert "other labels" in exported.take({"gpu": [USED], "other": [other]})[0]
    assert "card_used_bytes" in generate_latest(metrics.registry).decode()


def test_a_metric_without_samples_is_no_fault() -> None:
    assert refused(Metric("used", "", [])) == []
