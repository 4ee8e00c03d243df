"""The benchmark: what a measure that fails takes with it, and what is read while it is written."""

import asyncio
import itertools
import json
import operator
import re
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock
from xml.etree import ElementTree as ET

import pytest
from rich.console import Console

from bench import guest, loop, measures, page, processes, report
from bench.__main__ import conclude
from bench.attempts import Attempts
from bench.figures import of_cni
from bench.measure import Summary
from nodeplug import Host
from nodeplug.testing.waiting import until

ROOT = Path(__file__).parents[2]
ABOUT = {"quick": False, "entrypoints": "native", "reference_version": "1", "date": "2026-01-01", "machine": "one"}
ABOUT |= {"reference_iptables_version": "1", "load_average": 0.1}
FAMILIES = ["cni_", "reference_cni", "script_", "gpu_", "daemon_", "entrypoint_", "shim_", "allocate", "registered"]


def whole_run() -> dict[str, Any]:
    figures: dict[str, Any] = json.loads((ROOT / "bench" / "results" / "latest.json").read_text())
    return figures


def quiet() -> Console:
    return Console(quiet=True)


def test_a_measure_that_fails_is_told_and_the_others_are_kept() -> None:
    attempts = Attempts(tell=lambda _: None)
    with attempts.measuring("first") as figures:
        figures["a"] = 1.0
    with attempts.measuring("second") as figures:
        figures["half"] = float("")
    with attempts.measuring("third") as figures:
        figures["b"] = 2.0
    assert attempts.figures == {"a": 1.0, "b": 2.0}
    assert attempts.reasons() == "second: ValueError: could not convert string to float: ''"


def test_a_measure_that_fails_half_way_leaves_no_figure() -> None:
    attempts = Attempts(tell=lambda _: None)
    with attempts.measuring("first") as figures:
        figures["half"] = 1.0
        figures["other half"] = float("")
    assert attempts.figures == {}


def test_an_interruption_ends_the_run() -> None:
    attempts = Attempts(tell=lambda _: None)
    with pytest.raises(KeyboardInterrupt), attempts.measuring("first"):
        raise KeyboardInterrupt


def test_a_run_without_a_measure_ends_with_one_and_keeps_what_it_has(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    attempts = Attempts(lambda _: None, {"daemon_rss_mib": 70.0}, {"cards": "ValueError: empty"})
    assert conclude(attempts, ABOUT, quiet(), tmp_path, None) == 1
    written = json.loads((tmp_path / "latest.json").read_text())
    assert written["daemon_rss_mib"] == 70.0
    assert written["failed"] == "cards: ValueError: empty"
    assert "NOT MEASURED: cards: ValueError: empty" in capsys.readouterr().err


def test_a_run_in_which_everything_was_measured_ends_with_zero(tmp_path: Path) -> None:
    attempts = Attempts(lambda _: None, {"daemon_rss_mib": 70.0})
    assert conclude(attempts, ABOUT, quiet(), tmp_path, None) == 0
    assert "failed" not in json.loads((tmp_path / "latest.json").read_text())


@pytest.mark.parametrize("family", FAMILIES)
def test_the_page_of_a_run_without_a_measure_is_written_and_says_so(family: str, tmp_path: Path) -> None:
    shutil.copy(page.DOCS / "performance.md", tmp_path)
    figures = {key: value for key, value in whole_run().items() if not key.startswith(family)}
    assert len(figures) < len(whole_run())
    page.write({**figures, "failed": f"{family}: it is broken"}, tmp_path)
    assert f"**Not everything was measured.** {family}: it is broken." in (tmp_path / "performance.md").read_text()
    ET.parse(tmp_path / "performance.svg")


def test_the_page_has_volumes_over_both_fronts_once_a_run_has_measured_them(tmp_path: Path) -> None:
    shutil.copy(page.DOCS / "performance.md", tmp_path)
    page.write({**whole_run(), **dict.fromkeys(measures.VOLUMES, 4.0), "csi_publish_p50_ms": 11.0}, tmp_path)
    text = (tmp_path / "performance.md").read_text()
    assert "| publish over CSI, p50 | at most 10 | 11.00 | NOT met |" in text
    assert "| the same volume mounted over FlexVolume, p50 |  | 4.00 |  |" in text


def test_the_page_has_the_figures_of_claims_with_their_limits(tmp_path: Path) -> None:
    shutil.copy(page.DOCS / "performance.md", tmp_path)
    slow = {**ABOUT, **dict.fromkeys(measures.CLAIMS, 0.5), "claim_to_bound_s": 1.5}
    page.write_table("claims", report.claims(slow), tmp_path)
    text = (tmp_path / "performance.md").read_text()
    assert "Measured on 2026-01-01 (one, load average 0.1)." in text.partition("<!-- claims -->")[2]
    assert "to Bound, s | at most 1 | 1.50 | NOT met |" in text
    assert "| at most 150 | 0.50 | met |" in text
    assert "<!-- end claims -->" in text


def test_the_terminal_shows_every_figure_of_a_whole_run() -> None:
    figures = whole_run()
    console = Console(width=200)
    with console.capture() as shown:
        console.print(report.everything(figures))
    rows = {line.split("│")[1].strip() for line in shown.get().splitlines() if line.startswith("│")}
    numbers = {key for key, value in figures.items() if isinstance(value, float)}
    missing = {key for key in numbers if key not in rows and re.sub("_p(50|90|99)_ms$", "", key) not in rows}
    assert missing == set()


def test_figures_of_cni_are_named_where_nothing_of_it_was_measured() -> None:
    engine = Mock(kind="native", masq="", name="native")
    assert of_cni([engine], {}, {}, {}) == {}


@pytest.fixture
def counting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(asyncio.events.Handle, "_run", asyncio.events.Handle._run)  # what start() replaces comes back
    plugin = loop.Loop({}, Mock(spec=Host, run_dir=tmp_path))
    plugin.start()
    until((tmp_path / loop.LONGEST).exists)
    yield tmp_path
    plugin.stop()
    for thread in threading.enumerate():
        if thread.name == "bench:loop":
            thread.join()


def test_the_longest_step_is_never_seen_half_written(counting: Path) -> None:
    file = counting / loop.LONGEST
    with file.open() as held:
        first = file.stat().st_ino
        until(lambda: file.stat().st_ino != first)
        assert re.fullmatch(r"[\d.e-]+", held.read())


def test_the_longest_step_is_the_one_since_the_reset(counting: Path) -> None:
    async def step(blocking: Callable[[float], None]) -> None:
        blocking(1.0)  # longer than a busy machine makes any other

    asyncio.run(step(time.sleep))
    assert loop.longest(counting) >= 1.0
    loop.reset(counting)
    asyncio.run(step(lambda _: None))
    assert 0 < loop.longest(counting) < 1.0


def test_the_page_has_the_whole_chain_once_a_run_has_measured_it(tmp_path: Path) -> None:
    shutil.copy(page.DOCS / "performance.md", tmp_path)
    chain = {f"{prefix}{key}": 12.0 for prefix in ("", "reference_", "script_") for key in measures.CHAIN.values()}
    page.write({**whole_run(), **chain, **dict.fromkeys(measures.GROWTH, 4.5), "attachments_growth": 1.2}, tmp_path)
    text = (tmp_path / "performance.md").read_text()
    assert "| ADD, 16 at once, chains per second | 12.0 | 12.0 | 12.0 |" in text
    assert "| ADD where 10,000 addresses are held, p50 | at most 4 | 4.50 | NOT met |" in text
    assert "| the last hundred by the first | at most 1.3 | 1.20 | met |" in text


def test_the_reference_is_named_whichever_it_was() -> None:
    assert report.reference({"reference_version": "1.1.1+ds1"}) == "Debian's containernetworking-plugins 1.1.1+ds1"
    built = "containernetworking/plugins 1.9.1, built here"
    assert report.reference({"reference_version": built}) == built


@pytest.mark.parametrize(("seconds", "verdict"), [(0.3, "met"), (0.31, "NOT met")])
def test_the_page_judges_the_first_list_after_a_crash_and_the_default_installation(
    seconds: float, verdict: str, tmp_path: Path
) -> None:
    shutil.copy(page.DOCS / "performance.md", tmp_path)
    page.write({**whole_run(), "listed_after_crash_s": seconds, "default_memory_mib": seconds + 79.695}, tmp_path)
    text = (tmp_path / "performance.md").read_text()
    assert f"until kubelet has the last list, s | at most 0.3 | {seconds:.2f} | {verdict} |" in text
    assert re.search(rf"default installation .*, MiB \| at most 80 \| \S+ \| {verdict} \|", text)


def test_a_turn_in_which_the_machine_was_busy_does_not_count_for_a_neighbour() -> None:
    turns = {"program": [10.0, 10.0, 500.0], "process": [11.0, 900.0, 11.0], "thread": [40.0, 40.0, 40.0]}
    series = {who: [Summary(300, p99 / 10, p99 / 2, p99) for p99 in percentiles] for who, percentiles in turns.items()}
    figures = processes.neighbours(series)
    assert figures["neighbour_process_p99_ratio"] == pytest.approx(1.1)
    assert figures["neighbour_thread_p99_ratio"] == pytest.approx(4.0)
    assert figures["neighbour_process_p50_ms"] == pytest.approx(1.1)


def test_who_burns_a_core_gives_the_interpreters_lock_to_nobody_meanwhile() -> None:
    counter, told, over, interval = itertools.count(), [0], threading.Event(), sys.getswitchinterval()

    def count() -> None:
        while not over.is_set():
            told[0] = next(counter)

    other = threading.Thread(target=count)
    other.start()
    sys.setswitchinterval(1e-6)  # who gives it up at all gives it up now
    try:
        until(lambda: told[0] > 0)
        steps: tuple[Callable[[], Any], ...] = (told.copy, guest.HOLD, told.copy)
        # All in one call of C, so that only what is tested can let the other thread in.
        before, _, after = list(map(operator.call, steps))
    finally:
        sys.setswitchinterval(interval)
        over.set()
        other.join()
    assert before == after
