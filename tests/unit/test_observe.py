"""Metrics, the flight recorder, the log and sd_notify."""

import io
import json
import logging
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nodeplug import Exhausted, NotFound, PluginError, VolumeId
from nodeplug.hosting.call import CURRENT, Call
from nodeplug.observe.logs import configure
from nodeplug.observe.metrics import Metrics, outcome_of
from nodeplug.observe.recorder import Recorder
from nodeplug.observe.status import volumes
from nodeplug.process import notify
from nodeplug.volumes.ledger import Target, Volume
from nodeplug.worker.answering import write_record
from nodeplug.worker.log_allowance import LogAllowance

PROCESS = {"memory_bytes": 3 << 20, "cpu_seconds": 1.5}
PLUGIN = {"name": "gpu", "state": "running", "quarantined": False, "process": PROCESS, "restarts": 2}
RESOURCE = {"resource": "example.com/a", "devices": 4, "healthy": 3, "allocated": 2, "registered": True}


def call(**changes: Any) -> Call:
    return Call(**{"verb": "ADD", "claim": "cni:nodeplug-bridge", "key": "pods/c1/eth0", **changes})


def sample(metrics: Metrics, **changes: Any) -> None:
    metrics.sample({"calls": [], "spool": 0, "stranded": [], "plugins": [], "resources": [], **changes})


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(name, labels)


# --- metrics -----------------------------------------------------------------------------------------------------


def test_finished_calls_are_counted_by_style_verb_claim_and_outcome() -> None:
    metrics = Metrics()
    metrics.finished(call(), "ok")
    metrics.finished(call(), "ok")
    metrics.finished(call(), "TryAgain")
    labels = {"style": "cni", "verb": "ADD", "claim": "cni:nodeplug-bridge"}
    assert value(metrics, "nodeplug_calls_total", **labels, outcome="ok") == 2
    assert value(metrics, "nodeplug_calls_total", **labels, outcome="TryAgain") == 1


def test_duration_is_the_age_of_the_call() -> None:
    metrics = Metrics()
    finished = call()
    finished.started -= 3
    metrics.finished(finished, "ok")
    labels = {"style": "cni", "verb": "ADD", "claim": "cni:nodeplug-bridge"}
    assert value(metrics, "nodeplug_call_seconds_bucket", **labels, le="2.5") == 0
    assert value(metrics, "nodeplug_call_seconds_bucket", **labels, le="5.0") == 1


def test_state_of_plugins_and_resources_is_shown() -> None:
    metrics = Metrics("1.2.3")
    calls = [{"overdue": number == 0} for number in range(5)]
    sample(metrics, plugins=[PLUGIN], resources=[RESOURCE], calls=calls, spool=7, stranded=[{}])
    metrics.reload("ok")
    assert value(metrics, "nodeplug_plugin_running", plugin="gpu") == 1
    assert value(metrics, "nodeplug_plugin_quarantined", plugin="gpu") == 0
    assert value(metrics, "nodeplug_plugin_process_memory_bytes", plugin="gpu") == 3 << 20
    assert value(metrics, "nodeplug_plugin_process_cpu_seconds", plugin="gpu") == 1.5
    assert value(metrics, "nodeplug_plugin_process_restarts", plugin="gpu") == 2
    assert value(metrics, "nodeplug_devices", resource="example.com/a") == 4
    assert value(metrics, "nodeplug_devices_healthy", resource="example.com/a") == 3
    assert value(metrics, "nodeplug_devices_allocated", resource="example.com/a") == 2
    assert value(metrics, "nodeplug_resource_registered", resource="example.com/a") == 1
    assert (value(metrics, "nodeplug_calls_in_flight"), value(metrics, "nodeplug_calls_overdue")) == (5, 1)
    assert value(metrics, "nodeplug_spooled_deletes") == 7
    assert value(metrics, "nodeplug_spooled_deletes_stranded") == 1
    assert value(metrics, "nodeplug_reloads_total", outcome="ok") == 1
    assert value(metrics, "nodeplug_build_info", version="1.2.3") == 1


def test_what_is_gone_has_no_series() -> None:
    metrics = Metrics()
    sample(metrics, plugins=[PLUGIN], resources=[RESOURCE])
    sample(metrics)
    assert value(metrics, "nodeplug_plugin_running", plugin="gpu") is None
    assert value(metrics, "nodeplug_devices", resource="example.com/a") is None


def test_tries_to_register_are_counted_by_resource_and_outcome() -> None:
    metrics = Metrics()
    metrics.finished(call(verb="Register", claim="device:example.com/a"), "ok")
    metrics.finished(call(verb="Register", claim="device:example.com/a"), "TryAgain")
    for outcome in ("ok", "TryAgain"):
        labels = {"resource": "example.com/a", "outcome": outcome}
        assert value(metrics, "nodeplug_registrations_total", **labels) == 1


def test_targets_of_a_volume_are_those_of_its_driver() -> None:
    published = [Target(f"/pods/{driver}", Volume(f"acme/{driver}", VolumeId("data"))) for driver in ("a", "b")]
    shown = {entry["driver"]: entry["targets"] for entry in volumes((), published)}
    assert shown == {"acme/a": ["/pods/a"], "acme/b": ["/pods/b"]}


def test_two_daemons_in_one_process_do_not_share_metrics() -> None:
    one, other = Metrics(), Metrics()
    sample(one, spool=1)
    assert value(other, "nodeplug_spooled_deletes") == 0


def test_outcome_is_the_name_in_the_contract() -> None:
    class Mine(Exhausted):
        """A plugin's own."""

    assert [outcome_of(error) for error in (None, NotFound("x"), PluginError("x"), Mine("x"))] == [
        "ok",
        "NotFound",
        "PluginError",
        "Exhausted",
    ]


def test_a_scrape_has_no_series_of_when_others_were_created() -> None:
    metrics = Metrics()
    metrics.finished(call(), "ok")
    metrics.reload("applied")
    names = {sample.name for family in metrics.registry.collect() for sample in family.samples}
    assert {"nodeplug_calls_total", "nodeplug_build_info", "nodeplug_call_seconds_sum"} <= names
    assert [name for name in names if name.endswith("_created")] == []


# --- recorder ----------------------------------------------------------------------------------------------------


def test_recorder_keeps_the_newest_first() -> None:
    recorder = Recorder(2)
    for key in ("one", "two", "three"):
        recorder.add(call(key=key), "ok")
    assert [record["key"] for record in recorder.latest()] == ["three", "two"]


def test_record_names_the_call_and_how_it_ended() -> None:
    recorder = Recorder()
    finished = call(id="4f00aa01")
    recorder.add(finished, "Exhausted", "no address is left: 254 of 254 are in use")
    record = recorder.latest()[0]
    assert record.pop("seconds") >= 0
    assert record.pop("at") > 0
    assert record == {
        "id": "4f00aa01",
        "verb": "ADD",
        "claim": "cni:nodeplug-bridge",
        "key": "pods/c1/eth0",
        "about": "pods/c1/eth0",
        "outcome": "Exhausted",
        "error": "no address is left: 254 of 254 are in use",
    }


def test_long_error_is_cut() -> None:
    recorder = Recorder()
    recorder.add(call(), "PluginError", "x" * 5000)
    assert recorder.latest()[0]["error"] == "x" * 500 + " ...[4500 more characters]"


def test_what_our_own_timers_ask_is_remembered_only_when_it_fails() -> None:
    recorder = Recorder()
    recorder.add(call(verb="health"), "ok")
    recorder.add(call(verb="health"), "NotReady", "no driver")
    assert [record["outcome"] for record in recorder.latest()] == ["NotReady"]


# --- logs --------------------------------------------------------------------------------------------------------


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    before = root.handlers[:], root.level
    yield io.StringIO()
    root.handlers, root.level = before
    for name in ("nodeplug", "plugin"):
        logging.getLogger(name).setLevel(logging.NOTSET)


def test_text_record_has_time_level_request_and_plugin(stream: io.StringIO) -> None:
    configure("info", "text", stream)
    token = CURRENT.set(call(id="4f00aa01"))
    try:
        logging.LoggerAdapter(logging.getLogger("nodeplug.x"), {"plugin": "bridge"}).info("made %s", "a link")
    finally:
        CURRENT.reset(token)
    time, rest = stream.getvalue().split(" ", 1)
    assert time.endswith("Z")
    assert rest == "INFO nodeplug.x [4f00aa01 bridge] made a link\n"


def test_text_record_outside_a_call_has_no_brackets(stream: io.StringIO) -> None:
    configure("info", "text", stream)
    logging.getLogger("nodeplug.x").info("started")
    assert stream.getvalue().split(" ", 1)[1] == "INFO nodeplug.x started\n"


def test_message_cannot_forge_a_record(stream: io.StringIO) -> None:
    configure("info", "text", stream)
    logging.getLogger("nodeplug.x").info("one\n2026-01-01 INFO forged \x1b[31m")
    assert stream.getvalue().count("\n") == 1
    assert "\x1b" not in stream.getvalue()


def of_process(**more: Any) -> dict[str, Any]:
    told = {"logger": "acme", "text": "t", "trace": "", "request": "", "thread": "", "level": 30, "created": 0.0}
    return told | more


@pytest.mark.parametrize("key", ["logger", "text", "trace", "request", "thread"])
def test_no_text_of_a_plugins_process_can_forge_a_record_or_show_a_secret(stream: io.StringIO, key: str) -> None:
    handler = configure("info", "text", stream)
    handler.mask = lambda text: text.replace("hunter2", "***")
    forged = "hunter2\n2026-01-01T00:00:00.000Z ERROR nodeplug.daemon the node is lost\x1b[31m"
    write_record(of_process(**{key: forged}), "acme", LogAllowance("acme"))
    assert not any(line.startswith("2026-01-01") for line in stream.getvalue().splitlines())
    assert "hunter2" not in stream.getvalue()
    assert "\x1b" not in stream.getvalue()


@pytest.mark.parametrize("more", [{"created": float("nan")}, {"created": 1e300}, {"level": 10**4000}, {"level": -1}])
def test_odd_numbers_of_a_plugins_process_make_one_short_line(stream: io.StringIO, more: dict[str, Any]) -> None:
    configure("debug", "text", stream)
    write_record(of_process(**more), "acme", LogAllowance("acme"))
    assert stream.getvalue().count("\n") <= 1
    assert len(stream.getvalue()) < 200


def test_a_record_that_cannot_be_written_shows_nothing_of_its_text(stream: io.StringIO) -> None:
    configure("info", "text", stream)
    logging.getLogger("nodeplug.x").info("%d of hunter2", "hunter2")
    assert stream.getvalue().endswith("ERROR nodeplug.observe.logs a record is lost: TypeError\n")
    assert "hunter2" not in stream.getvalue()


def test_json_record_is_one_object_with_the_exception(stream: io.StringIO) -> None:
    configure("info", "json", stream)
    token = CURRENT.set(call(id="4f00aa01"))
    try:
        try:
            raise ValueError("grün")
        except ValueError:
            logging.getLogger("nodeplug.x").exception("it failed")
    finally:
        CURRENT.reset(token)
    (line,) = stream.getvalue().splitlines()
    record = json.loads(line)
    assert (record["level"], record["message"], record["request"]) == ("error", "it failed", "4f00aa01")
    assert "ValueError: grün" in record["exception"]


def test_json_record_leaves_empty_members_out(stream: io.StringIO) -> None:
    configure("info", "json", stream)
    logging.getLogger("nodeplug.x").info("started")
    assert json.loads(stream.getvalue()).keys() == {"time", "level", "logger", "message"}


def test_libraries_are_shown_from_warning_on(stream: io.StringIO) -> None:
    configure("info", "text", stream)
    logging.getLogger("library").info("chatter")
    logging.getLogger("library").warning("important")
    assert stream.getvalue().count("\n") == 1


def test_error_level_hides_warnings_of_all(stream: io.StringIO) -> None:
    configure("error", "text", stream)
    logging.getLogger("nodeplug.x").warning("hidden")
    logging.getLogger("library").warning("hidden")
    assert stream.getvalue() == ""


def test_configuring_again_replaces_the_handler(stream: io.StringIO) -> None:
    configure("info", "text", stream)
    configure("info", "json", stream)
    logging.getLogger("nodeplug.x").info("once")
    assert stream.getvalue().count("once") == 1


def test_default_stream_is_stderr(stream: io.StringIO) -> None:
    handler = configure("info", "text")
    assert isinstance(handler, logging.StreamHandler)
    assert handler.stream is sys.stderr


# --- notify ------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["path", "abstract"])
def systemd(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as peer:
        if request.param == "path":
            peer.bind(str(tmp_path / "notify"))
            monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        else:
            peer.bind("")  # the kernel draws an abstract name
            monkeypatch.setenv("NOTIFY_SOCKET", "@" + peer.getsockname()[1:].decode())
        peer.settimeout(5)
        yield peer


def test_ready_arrives(systemd: socket.socket) -> None:
    assert notify.ready()
    assert systemd.recv(1000) == b"READY=1"


def test_reloading_carries_the_clock(systemd: socket.socket) -> None:
    assert notify.reloading()
    first, second = systemd.recv(1000).split(b"\n")
    assert first == b"RELOADING=1"
    assert second.removeprefix(b"MONOTONIC_USEC=").isdigit()


def test_stopping_arrives(systemd: socket.socket) -> None:
    assert notify.stopping()
    assert systemd.recv(1000) == b"STOPPING=1"


@pytest.mark.parametrize("address", ["", "relative", "/nowhere/notify", "@nobody-listens-here"])
def test_without_a_listener_nothing_happens(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", address)
    assert not notify.ready()


def test_full_socket_does_not_block(systemd: socket.socket) -> None:
    sent = [notify.send("STATUS=" + "x" * 1000) for _ in range(2000)]
    assert sent[0]
    assert not sent[-1]


@pytest.mark.parametrize(
    ("microseconds", "pid", "seconds"),
    [("20000000", "", 5.0), ("20000000", str(os.getpid()), 5.0), ("20000000", "1", 0.0), ("", "", 0.0), ("x", "", 0.0)],
    ids=["anybody", "ours", "another's", "unset", "no number"],
)
def test_signs_of_life_are_due_four_times_in_the_time_of_the_watchdog(
    monkeypatch: pytest.MonkeyPatch, microseconds: str, pid: str, seconds: float
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", microseconds)
    monkeypatch.setenv("WATCHDOG_PID", pid)
    assert notify.watchdog_interval() == seconds
