"""What people see: plain data in, text out."""

import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console, RenderableType

from nodeplug import tables

PLUGIN = {
    "name": "bridge",
    "uses": "bridge",
    "distribution": "nodeplug 0.1.0",
    "state": "running",
    "reason": "",
    "claims": ["cni:nodeplug-bridge"],
    "hooks": ["cni_add"],
    "quarantined": False,
}
ANSWER: dict[str, Any] = {
    "version": "0.1.0",
    "node": "worker-1",
    "pid": 42,
    "uptime_seconds": 7500.0,
    "ready": True,
    "reasons": {},
    "plugins": [PLUGIN],
    "resources": [],
    "attachments": [],
    "volumes": [],
    "calls": [],
    "recent": [],
    "spool": 0,
}


def text(renderable: RenderableType) -> str:
    console = Console(width=240, no_color=True)
    with console.capture() as capture:
        console.print(renderable)
    return capture.get()


def test_status_of_an_idle_daemon_is_its_plugins() -> None:
    shown = text(tables.status(ANSWER, 0))
    assert "nodeplug 0.1.0 on worker-1, process 42, up 2h 5m: ready" in shown
    assert "cni:nodeplug-bridge" in shown
    assert "Volumes" not in shown


def test_status_that_is_not_ready_says_why() -> None:
    shown = text(tables.status({**ANSWER, "ready": False, "reasons": {"gpu": "no driver"}, "spool": 3}, 0))
    assert "NOT READY" in shown
    assert "gpu: no driver" in shown
    assert "3 deferred DELs" in shown


def test_quarantine_shows_in_place_of_the_state() -> None:
    shown = text(tables.plugins([{**PLUGIN, "quarantined": True}]))
    assert "quarantined" in shown
    assert "running" not in shown


def test_no_plugin_says_how_to_enable_one() -> None:
    assert "[plugins.<name>]" in text(tables.plugins([]))


def test_text_with_markup_is_shown_as_it_is() -> None:
    assert "[red]x[/red] [bold" in text(tables.plugins([{**PLUGIN, "reason": "[red]x[/red] [bold"}]))


def test_resources_tell_health_registration_and_sick_devices() -> None:
    row = {
        "resource": "example.com/a",
        "plugin": "hostdev",
        "registered": False,
        "devices": 2,
        "healthy": 1,
        "allocated": 1,
        "streams": 0,
        "socket": "",
        "error": "kubelet.sock does not exist",
        "units": [
            {"id": "a0", "healthy": True, "reason": "", "holder": "default/pod/main"},
            {"id": "a1", "healthy": False, "reason": "gone", "holder": ""},
        ],
    }
    shown = text(tables.status({**ANSWER, "resources": [row]}, 0))
    assert "1 of 2" in shown
    assert "not registered" in shown
    assert "kubelet.sock does not exist" in shown
    assert "a1: gone" in shown


def test_attachments_tell_address_and_age() -> None:
    row = {
        "network": "pods",
        "container_id": "0123456789abcdef",
        "ifname": "eth0",
        "claim": "nodeplug-bridge",
        "addresses": ["10.0.0.2/24", "fd00::2/64"],
        "since": 1000.0,
    }
    shown = text(tables.status({**ANSWER, "attachments": [row]}, 1090.0))
    for part in ("pods", "0123456789abc", "eth0", "10.0.0.2/24", "fd00::2/64", "1m 30s"):
        assert part in shown


def test_volumes_tell_where_they_are_published() -> None:
    row = {"driver": "nodeplug/tmpfs", "volume_id": "v1", "phase": "staged", "staging_path": "/s", "targets": ["/t"]}
    assert "/t" in text(tables.status({**ANSWER, "volumes": [row]}, 0))


def test_oldest_call_in_flight_comes_first_and_overdue_shows() -> None:
    young = {"id": "aaaa", "verb": "ADD", "claim": "cni:x", "key": "k", "age_seconds": 0.5, "overdue": False}
    old = {**young, "id": "bbbb", "age_seconds": 90.0, "overdue": True}
    shown = text(tables.status({**ANSWER, "calls": [young, old]}, 0))
    assert shown.index("bbbb") < shown.index("aaaa")
    assert "overdue" in shown


def test_recent_calls_tell_how_they_ended() -> None:
    row = {"id": "cccc", "verb": "ADD", "claim": "cni:x", "key": "k", "seconds": 0.0123, "outcome": "Exhausted"}
    shown = text(tables.status({**ANSWER, "recent": [{**row, "error": "no address"}]}, 0))
    for part in ("cccc", "12ms", "Exhausted", "no address"):
        assert part in shown


def test_report_has_one_line_per_path() -> None:
    lists = {"created": ["/a"], "updated": [], "unchanged": ["/b"], "removed": [], "kept": ["/c: busy"]}
    assert text(tables.report(lists)).split("\n") == ["created    /a", "unchanged  /b", "kept       /c: busy", ""]


def test_report_of_nothing_says_so() -> None:
    assert text(tables.report({"created": []})) == "nothing to do\n"


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0, "0ms"), (0.25, "250ms"), (1, "1.0s"), (59.94, "59.9s"), (60, "1m 0s"), (3599, "59m 59s"), (90000, "1d 1h")],
)
def test_durations_are_short(seconds: float, words: str) -> None:
    assert tables.duration(seconds) == words


SCALARS = (
    st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False) | st.text()
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3)
)


@given(st.dictionaries(st.text(), VALUES, max_size=4))
def test_toml_reads_back_as_what_was_written(document: dict[str, Any]) -> None:
    assert tomllib.loads(tables.toml(document)) == document


def test_toml_leaves_none_out() -> None:
    assert tables.toml({"a": None, "b": {"c": None, "d": 1}}) == "[b]\nd = 1\n"
