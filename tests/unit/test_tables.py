"""What people see: plain data in, text out."""

from typing import Any

import pytest
from rich.console import Console, RenderableType

from nodeplug.cli import tables
from nodeplug.observe.status import drivers_of_claims

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


def test_status_says_what_is_not_known() -> None:
    unknown = {"attachments": "the folder /run/nodeplug/attachments does not answer (for 3 s)"}
    shown = text(tables.status({**ANSWER, "unknown": unknown}, 0))
    assert "attachments are not shown, for they are not known: the folder /run/nodeplug/attachments does not" in shown


def test_quarantine_shows_in_place_of_the_state() -> None:
    shown = text(tables.plugins([{**PLUGIN, "quarantined": True}]))
    assert "quarantined" in shown
    assert "running" not in shown


def test_a_process_is_shown_with_its_memory_and_its_processor_time() -> None:
    process = {"pid": 77, "uptime_seconds": 9.0, "memory_bytes": 35 << 20, "cpu_seconds": 84.2}
    shown = text(tables.plugins([{**PLUGIN, "process": process, "user": "root", "restarts": 0, "restarted": ""}]))
    assert "root, process 77, 35 MiB, CPU 1m 24s" in shown
    assert "restarts" not in shown


def test_restarts_of_a_process_are_counted_and_the_last_is_explained() -> None:
    killed = {"isolation": "process", "restarts": 3, "restarted": "it was killed by SIGSEGV"}
    assert "restarts: 3, last because it was killed by SIGSEGV" in text(tables.plugins([{**PLUGIN, **killed}]))


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


def test_a_claim_tells_which_containers_use_it() -> None:
    driver = {"driver": "gpu.nodeplug.io", "registered": True, "problem": "", "pools": []}
    claims = [{"claim": "shop/five", "phase": "prepared", "ids": ["a-0", "a-1"]}]
    users = {("shop", "five"): [("web-0", "main"), ("web-0", "side")]}
    (made,) = drivers_of_claims([{**driver, "claims": claims}], lambda *claim: users[claim])
    assert made["claims"][0]["containers"] == ["web-0/main", "web-0/side"]
    shown = text(tables.status({**ANSWER, "dra": [made]}, 0)).splitlines()
    place = next(number for number, line in enumerate(shown) if "shop/five (prepared)" in line)
    assert [line.strip() for line in shown[place + 1 : place + 3]] == ["web-0/main", "web-0/side"]


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
    shown = text(tables.status({**ANSWER, "recent": [{**row, "error": "no address", "at": 0.0}]}, 0))
    for part in ("cccc", "12ms", "Exhausted", "no address"):
        assert part in shown


def test_recent_calls_tell_when_they_ended_in_the_time_of_the_log() -> None:
    row = {"id": "cccc", "verb": "ADD", "claim": "cni:x", "key": "k", "seconds": 0.0123, "outcome": "ok"}
    shown = text(tables.recent([{**row, "error": "", "at": 1795325000.0}]))
    assert "11-22 05:23:20Z" in shown


def test_recent_calls_tell_what_they_were_about_and_no_id_twice() -> None:
    row = {"id": "cccc", "verb": "Allocate", "claim": "device:example.com/a", "key": "example.com/a:cccc"}
    shown = text(tables.recent([{**row, "about": "a0, a1", "seconds": 0.0, "outcome": "ok", "error": "", "at": 0.0}]))
    assert "a0, a1" in shown
    assert shown.count("cccc") == 1


def test_what_a_claim_says_already_is_not_said_again() -> None:
    row = {"id": "cccc", "verb": "ListDevices", "claim": "device:example.com/a", "key": "example.com/a"}
    shown = text(tables.recent([{**row, "seconds": 0.0, "outcome": "ok", "error": "", "at": 0.0}]))
    assert shown.count("example.com/a") == 1


def sick(count: int, reason: str) -> list[dict[str, Any]]:
    return [{"id": f"{CARD}-_-{n}", "healthy": False, "reason": reason, "holder": ""} for n in range(count)]


def resource(units: list[dict[str, Any]]) -> dict[str, Any]:
    row = {"resource": "aliyun.com/gpu-mem", "plugin": "gpu", "registered": True, "devices": 10424, "healthy": 9121}
    return {**row, "allocated": 27, "streams": 1, "socket": "", "error": "", "absent": "", "units": units}


def test_a_lost_card_is_one_line_with_count_reason_and_a_few_ids() -> None:
    shown = text(tables.resources([resource(sick(1303, "it has fallen off the bus"))]))
    assert "1303 unhealthy: it has fallen off the bus" in shown
    assert f"{CARD}-_-0, {CARD}-_-1, {CARD}-_-2 and 1300 more" in shown
    assert len(shown.splitlines()) < 10


def test_of_many_reasons_the_most_common_are_told_and_the_rest_is_counted() -> None:
    units = [*sick(3, "common"), *(sick(1, f"reason {n}")[0] for n in range(40))]
    shown = text(tables.resources([resource(units)]))
    assert shown.index("3 unhealthy: common") < shown.index("reason 0")
    assert "36 more unhealthy, for 36 other reasons: --json has each" in shown


CARD = "GPU-8f6d3c0a-51be-4c7e-9d2f-0123456789ab"
CONTAINER = "6c1d0b6fb0b6a8a1a5d3b1f4f55a4d0c1e0b2a3948576655443322110ffeeddc"
POD = "/var/lib/kubelet/pods/0f8fad5b-d9cb-469f-a165-70867728950e/volumes/example.com~fuse/data-of-the-third-quarter"
REAL: dict[str, Any] = {
    **ANSWER,
    "node": "ip-10-0-17-233.eu-central-1.compute.internal",
    "ready": False,
    "reasons": {
        "gpu": f"aliyun.com/gpu-mem: the card {CARD} (index 3) has fallen off the bus (Xid 79): reset the node"
    },
    "entrypoints": {"kind": "native", "reason": "compiled with cc (Debian 12.2.0-14) 12.2.0"},
    "plugins": [
        PLUGIN,
        {
            **PLUGIN,
            "name": "storage-of-the-machine-learning-team",
            "uses": "nodeplug_third_party_volumes.fuse:FuseVolume",
            "distribution": "nodeplug-fuse-volume 1.0.2.post3",
            "state": "failed",
            "claims": ["volume:machine-learning.example.com/fuse"],
            "reason": "FileNotFoundError: /usr/lib/x86_64-linux-gnu/libfuse3.so.3.12.0 is missing; install libfuse3-3",
        },
    ],
    "resources": [resource(sick(1303, "the card has fallen off the bus"))],
    "attachments": [
        {
            "network": "nodeplug-pods-of-the-second-interface",
            "container_id": CONTAINER,
            "ifname": "net1",
            "claim": "nodeplug-bridge",
            "addresses": ["10.244.17.23/24", "fd00:10:244:17::1f3/64"],
            "since": 0.0,
        }
    ],
    "volumes": [
        {
            "driver": "machine-learning.example.com/fuse",
            "volume_id": f"sha256:{CONTAINER}",
            "phase": "staged",
            "staging_path": "/s",
            "targets": [POD],
        }
    ],
    "calls": [
        {
            "id": "4f00aa01",
            "verb": "GetPreferredAllocation",
            "claim": "device:aliyun.com/gpu-mem-of-the-larger-cards",
            "key": "k",
            "about": "8 of 640 devices",
            "age_seconds": 12.0,
            "overdue": True,
        }
    ],
    "recent": [
        {
            "id": "4f00aa02",
            "verb": "ADD",
            "claim": "cni:nodeplug-bridge",
            "key": f"nodeplug-pods/{CONTAINER}/eth0",
            "seconds": 0.012,
            "outcome": "DeadlineExceeded",
            "error": "network nodeplug-pods has no free address: 254 of 254 addresses of 10.244.17.0/24 are in use",
            "at": 1795325000.0,
        },
    ],
    "spool": 3,
}


def rendered(renderable: RenderableType, width: int) -> str:
    console = Console(width=width, no_color=True)
    with console.capture() as capture:
        console.print(renderable)
    return capture.get()


def is_whole_or_marked(word: str, words: set[str]) -> bool:
    headings = {whole.lower() for whole in words}
    if word in words or "…" in word or not word.strip("─") or word.rstrip(":") in headings:
        return True
    return any(word in whole and (word.endswith("/") or whole.endswith(f"/{word}")) for whole in words)


@pytest.mark.parametrize("width", [40, 60, 80, 100, 132])
def test_every_word_of_the_status_is_whole_or_marked_as_cut(width: int) -> None:
    shown = rendered(tables.status(REAL, 4000.0), width)
    words = set(rendered(tables.status(REAL, 4000.0), 2000).split())
    assert [word for word in shown.split() if not is_whole_or_marked(word, words)] == []
    assert [line for line in shown.splitlines() if len(line) > width] == []


def test_at_80_columns_every_id_can_be_copied_whole() -> None:
    shown = rendered(tables.status(REAL, 4000.0), 80)
    for name in (CARD, CONTAINER[:13], "storage-of-the-machine-learning-team", "machine-learning.example.com/fuse"):
        assert name in shown
    assert "".join(shown.partition("published at: ")[2].split()).startswith(POD)


def test_report_at_80_columns_breaks_no_word() -> None:
    path = "/usr/libexec/kubernetes/kubelet-plugins/volume/exec/machine-learning.example.com~fuse/fuse"
    report = {"created": [path], "kept": [f"{path}: it belongs to somebody else"]}
    words = set(rendered(tables.report(report), 2000).split())
    shown = rendered(tables.report(report), 80)
    assert [word for word in shown.split() if not is_whole_or_marked(word, words)] == []


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
