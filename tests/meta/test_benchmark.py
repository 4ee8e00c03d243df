"""What is published about speed: picture and tables agree with the results, and every figure is explained."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from bench import measures
from bench.figures import GATES
from nodeplug.install.native import SOURCE

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "performance.md"
DETAILS = re.compile(
    r"_(p50|p90|p99)_(ms|ratio)$|_(throughput_ratio|per_s|ms)$|(?<=_cpu)_ratio$|^(reference|script|native)_|_masq"
)
PARTS = (
    "in_plugin",
    "in_netlink",
    "in_files",
    "netlink_requests",
    "on_the_road",
    "daemon_user",
    "daemon_system",
    "cpu",
)
GATED = [gate.key for gate in GATES]
PROMISED = (
    *GATED,
    "shim_p50_ms",
    "allocate_p99_ms",
    "preferred_allocation_p50_ms",
    "register_to_first_list_p50_ms",
    "health_to_stream_p50_ms",
    "daemon_rss_mib",
    "daemon_idle_cpu_percent",
    "registered_after_start_s",
    "date",
    "machine",
)


@pytest.fixture(scope="module")
def figures() -> Mapping[str, Any]:
    results: dict[str, Any] = json.loads((ROOT / "bench" / "results" / "latest.json").read_text())
    return results


def explained() -> set[str]:
    rows = re.findall(r"^\| (`.*?) \|", PAGE.read_text(), re.MULTILINE)
    return {name for row in rows for name in re.findall(r"`(\w+)`", row)}


def plain(key: str) -> str:
    """Return the name under which the page explains a figure."""
    name = key
    while (shorter := DETAILS.sub("", name)) != name:
        name = shorter
    return next((part for part in PARTS if name.endswith(part)), name)


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the page and the picture as they are made of the results."""
    folder = tmp_path_factory.mktemp("generated")
    shutil.copy(PAGE, folder)
    subprocess.run([sys.executable, "-m", "bench", "--page", str(folder)], cwd=ROOT, check=True)
    return folder


@pytest.mark.parametrize("name", ["performance.md", "performance.svg"])
def test_page_and_picture_are_those_of_the_results(name: str, generated: Path) -> None:
    assert (generated / name).read_text() == (PAGE.parent / name).read_text(), "run: python -m bench --page"


def test_the_picture_is_shown_and_says_where_and_when(figures: Mapping[str, Any]) -> None:
    document = ET.parse(ROOT / "docs" / "performance.svg")
    words = " ".join(document.getroot().itertext())
    assert figures["date"] in words
    assert figures["machine"] in words
    assert "(performance.svg)" in PAGE.read_text()


def test_every_figure_of_the_benchmark_is_explained(figures: Mapping[str, Any]) -> None:
    known = explained()
    assert sorted(key for key in figures if key not in known and plain(key) not in known) == []


def test_every_figure_on_the_page_is_one_of_the_benchmark(figures: Mapping[str, Any]) -> None:
    measured = {plain(key) for key in figures} | set(figures)
    measured |= {plain(key) for key in measures.VOLUMES} | set(measures.VOLUMES)  # the next whole run has them
    measured |= {plain(key) for key in (*measures.CHAIN.values(), *measures.GROWTH)}
    measured |= {plain(key) for key in (*measures.PROCESSES, *measures.DAEMON)} | {
        *measures.PROCESSES,
        *measures.DAEMON,
    }
    measured |= {"in_netlink", "in_files", "netlink_requests"}  # where strace may trace
    measured |= {"masq", "ratio", "reference", "script", "native", "entrypoints", "throughput_ratio", "per_s"}
    assert explained() - measured == set()


def test_published_results_are_those_of_a_whole_run_with_the_reference(figures: Mapping[str, Any]) -> None:
    assert figures["quick"] is False
    assert [key for key in PROMISED if key not in figures] == []


def test_published_results_are_flat(figures: Mapping[str, Any]) -> None:
    assert [key for key, value in figures.items() if not isinstance(value, str | int | float)] == []


def test_each_gate_is_judged_on_the_page(figures: Mapping[str, Any]) -> None:
    rows = re.findall(
        r"^\| .* \| at (most|least) ([\d.]+) of the reference \| ([\d.]+) \| (.*) \|$", PAGE.read_text(), re.MULTILINE
    )
    assert len(rows) == len(GATED)
    for (side, limit, value, verdict), key in zip(rows, GATED, strict=True):
        met = figures[key] <= float(limit) if side == "most" else figures[key] >= float(limit)
        assert (value, verdict) == (f"{figures[key]:.2f}", "met" if met else "NOT met")


def test_the_decision_about_entrypoints_names_their_source() -> None:
    assert f"bin/{SOURCE}" in (ROOT / "docs" / "decisions" / "0005-entrypoints.md").read_text()
