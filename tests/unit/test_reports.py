"""What plugins tell: one whose answer is odd, huge or late harms neither the page nor its neighbours."""

import asyncio
import json
import threading
from collections import UserDict
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any

import pytest
from prometheus_client import generate_latest

from nodeplug import Metric, NotReady, PluginError, Sample, hookimpl
from nodeplug.config import PluginSection
from nodeplug.hosting.call import Call
from nodeplug.hosting.hook_call import HookCall
from nodeplug.hosting.overdue import LIMIT as OVERDUE_LIMIT
from nodeplug.hosting.registry import Registry
from nodeplug.hosting.runner import Runner
from nodeplug.hosting.slot import Slot
from nodeplug.hosting.strays import Strays
from nodeplug.observe import reports
from nodeplug.observe.metrics import Metrics
from nodeplug.observe.plugin_metrics import PLUGIN_LIMIT, SAMPLE_LIMIT, PluginMetrics
from nodeplug.observe.reports import INSPECT_LIMIT, Reports

WELL = Metric("cards", "Cards.", [Sample(2.0)])


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody hangs unless a test says so; on a loaded machine an answer may take long."""
    monkeypatch.setattr(reports, "MEASURE_PATIENCE", 60.0)


class Told:
    """Answers what a test says; a callable is called first."""

    def __init__(self, answer: Any) -> None:
        self._answer = answer

    def _said(self) -> Any:
        return self._answer() if callable(self._answer) else self._answer

    @hookimpl
    def claims(self) -> list[Any]:
        return []

    @hookimpl
    def metrics(self) -> Any:
        return self._said()

    @hookimpl
    def inspect(self) -> Any:
        return self._said()


class Page:
    """Running plugins by name, and what a scrape reads of them."""

    def __init__(self, **answers: Any) -> None:
        registry = Registry()
        for name, answer in answers.items():
            registry.load(name, Told(answer), "test")
        self.slots = registry.slots
        own = Metrics("1").registry
        self._own = own
        self.reports = Reports(self.slots, Runner(), PluginMetrics(own).take)

    def read(self) -> str:
        return generate_latest(self._own).decode()


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(20):
            await scenario()

    asyncio.run(main())


class Unsayable:
    def __str__(self) -> str:
        raise OSError("no")


class Watched(UserDict[str, Any]):
    """A mapping that notes which threads read it."""

    threads: set[str]

    def __getitem__(self, key: str) -> Any:
        self.threads.add(threading.current_thread().name)
        return super().__getitem__(key)


@pytest.mark.parametrize(
    "odd",
    [
        Metric("used", "", [Sample(1.0, {1: "x", "a": "y"})]),  # type: ignore[dict-item] # what a plugin can do
        Metric("used", "", [Sample(1.0, {"a": Unsayable()})]),  # type: ignore[dict-item] # the same
        Metric("used", "", [Sample("much", {})]),  # type: ignore[arg-type] # the same
        Metric("used", "", [Sample(10**400, {})]),
        Metric("used", "", [Sample(1.0, None)]),  # type: ignore[arg-type] # the same
        Metric("used", "", ["x"]),  # type: ignore[list-item] # the same
        Metric("used", "", None),  # type: ignore[arg-type] # the same
        Metric(5, "", [Sample(1.0)]),  # type: ignore[arg-type] # the same
        Metric("used", None, [Sample(1.0)]),  # type: ignore[arg-type] # the same
        Metric("used", "", [Sample(1.0)], kind="histogram"),  # type: ignore[arg-type] # the same
    ],
    ids=lambda metric: f"{metric.name} {metric.kind} {metric.help!r}"[:20],
)
def test_metrics_of_wrong_types_are_left_out_and_those_of_others_stay(odd: Metric) -> None:
    page = Page(odd=[odd], well=[WELL])
    run(page.reports.measure)
    assert 'nodeplug_cards{plugin="well"} 2.0' in page.read()
    assert "nodeplug_used" not in page.read()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e308, True], ids=str)
def test_any_float_is_exported(value: float) -> None:
    page = Page(odd=[Metric("used", "", [Sample(value)])])
    run(page.reports.measure)
    assert 'nodeplug_used{plugin="odd"}' in page.read()


def test_a_label_that_is_no_utf8_is_escaped() -> None:
    page = Page(odd=[Metric("used", "", [Sample(1.0, {"file": b"/dev/\xff".decode(errors="surrogateescape")})])])
    run(page.reports.measure)
    assert r"/dev/\\udcff" in page.read()


def test_a_plugin_with_too_many_samples_in_many_metrics_keeps_the_first_ones() -> None:
    samples = [Sample(1.0, {"id": str(number)}) for number in range(SAMPLE_LIMIT)]
    page = Page(odd=[Metric(f"used_{letter}", "", samples) for letter in "abcdef"])
    run(page.reports.measure)
    assert page.read().count("nodeplug_used_") - 2 * (PLUGIN_LIMIT // SAMPLE_LIMIT) == PLUGIN_LIMIT


def test_the_sum_of_a_histogram_of_the_daemon_is_refused_as_a_name() -> None:
    page = Page(odd=[Metric("call_seconds_sum", "", [Sample(1.0)])])
    run(page.reports.measure)
    assert 'nodeplug_call_seconds_sum{plugin="odd"}' not in page.read()


@pytest.fixture
def hanging(patience: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    monkeypatch.setattr(reports, "MEASURE_PATIENCE", 0.05)
    event = threading.Event()
    yield event
    event.set()


def test_metrics_that_hang_hold_up_no_others(hanging: threading.Event) -> None:
    page = Page(odd=lambda: [WELL] if hanging.wait(60) else [], well=[WELL])
    page.slots["odd"].deadlines = {"metrics": 60}

    async def scenario() -> None:
        while 'nodeplug_cards{plugin="well"} 2.0' not in page.read():
            await page.reports.measure()
        assert not hanging.is_set()  # and so the odd one still hangs
        assert 'plugin="odd"' not in page.read()
        hanging.set()
        while 'plugin="odd"' not in page.read():
            await page.reports.measure()

    run(scenario)


def test_metrics_and_inspections_that_hang_quarantine_nobody() -> None:
    async def scenario() -> None:
        slot = Slot("gpu")
        for number in range(OVERDUE_LIMIT):
            call = Call("metrics", "plugin:gpu", key=str(number))
            hook = ("metrics", "inspect")[number % 2]
            slot.overdue.add(HookCall("gpu", hook, call, 5, lambda: None, lambda: None, Strays()))
        assert not slot.quarantined

    run(scenario)


def test_what_a_plugin_tells_is_read_in_the_thread_of_its_call() -> None:
    told = Watched(cards=1)
    told.threads = set()
    page = Page(odd=told)

    async def scenario() -> None:
        assert await page.reports.inspect("odd") == {"odd": {"cards": 1}}

    run(scenario)
    assert told.threads == {"odd:inspect:inspection of odd"}


def test_an_inspection_that_is_too_large_is_refused() -> None:
    page = Page(odd={"cards": ["x" * 1000] * (INSPECT_LIMIT // 1000)})

    async def scenario() -> None:
        with pytest.raises(PluginError, match=f"more than {INSPECT_LIMIT} bytes"):
            await page.reports.inspect("odd")

    run(scenario)


def test_an_inspection_that_just_fits_is_passed_on() -> None:
    told: Mapping[str, Any] = {"cards": "x" * (INSPECT_LIMIT - len(json.dumps({"cards": ""})))}
    page = Page(odd=told)

    async def scenario() -> None:
        assert await page.reports.inspect("odd") == {"odd": told}

    run(scenario)


def test_a_section_that_is_refused_is_left_out_where_another_of_its_plugin_runs() -> None:
    page = Page(one={"cards": 1}, two={"cards": 2})
    for slot in page.slots.values():
        slot.instance.section = PluginSection(uses="told")
    page.slots["two"].enter("refused", "the cards are those of 'one'")

    async def scenario() -> None:
        assert await page.reports.inspect("told") == {"one": {"cards": 1}}
        with pytest.raises(NotReady, match="the cards are those of 'one'"):
            await page.reports.inspect("two")

    run(scenario)


def test_sections_of_one_plugin_are_inspected_side_by_side() -> None:
    both = threading.Barrier(2, timeout=60)
    page = Page(one=lambda: {"turn": both.wait() >= 0}, two=lambda: {"turn": both.wait() >= 0})
    for slot in page.slots.values():
        slot.instance.section = PluginSection(uses="told")

    async def scenario() -> None:
        assert await page.reports.inspect("told") == {"one": {"turn": True}, "two": {"turn": True}}

    run(scenario)
