"""What goes wrong between a container runtime and a plugin: each fault is one CNI error and one line of the log."""

import json
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests.node.faults.conftest import COMPILER

GOOD = {"cniVersion": "1.0.0", "name": "net", "type": "faulty"}


@pytest.fixture(scope="module")
def daemon(make_shared_node: Callable[..., Any], entrypoints: str) -> Iterator[Any]:
    shared = make_shared_node(supervisor=entrypoints, faulty={"deadline": {"cni_add": "2s"}}, other={})
    assert shared.cni(container="kept").status == 0
    yield shared
    shared.scratch.stop()


@pytest.fixture
def node(daemon: Any) -> Iterator[Any]:
    """The daemon of this module; after each test it serves, and an attachment made before is still known."""
    daemon.mark()
    yield daemon
    assert "kept" in daemon.attachments()
    assert daemon.cni(claim="other").status == 0


def refused(answer: Any) -> Any:
    """Check the form: one JSON document on stdout, nothing on stderr, and an exit status of 1."""
    assert (answer.status, answer.stderr) == (1, b""), answer
    assert answer.code
    assert answer.text
    return answer


BAD_INPUT = {
    "nothing": (b"", 6, "unmarshall"),
    "half a document": (b'{"name": "net"', 6, "unmarshall"),
    "NUL bytes": (b"\0" * 100, 6, "unmarshall"),
    "no UTF-8": (b"\xff\xfe\xfa", 6, "unmarshall"),
    "deep nesting": (b"[" * 200_000, 6, "unmarshall"),
    "a huge number": (b'{"name": ' + b"9" * 10_000 + b"}", 6, "unmarshall"),
    "a list": (b"[1]", 6, "not an object"),
    "a version that is no string": (b'{"name": "net", "cniVersion": 1}', 6, "cniVersion must be a string"),
    "an unknown version": (b'{"name": "net", "cniVersion": "9.9.9"}', 1, '"9.9.9"'),
    "no network name": (b"{}", 7, "missing network name"),
    "a newline in the network name": (b'{"name": "net\\n"}', 7, "invalid characters found in network name"),
    "a NUL in the network name": (b'{"name": "n\\u0000"}', 7, "invalid characters found in network name"),
    "a previous result that is none": (b'{"name": "net", "cniVersion": "1.0.0", "prevResult": 1}', 6, "prevResult"),
}


@pytest.mark.parametrize(("stdin", "code", "text"), BAD_INPUT.values(), ids=BAD_INPUT)
def test_bad_input_is_one_error_and_one_line_in_the_log(node: Any, stdin: bytes, code: int, text: str) -> None:
    answer = refused(node.cni(stdin=stdin))
    assert answer.code == code
    assert text in answer.text
    assert answer.document["msg"] in node.failure().replace("\\\\", "\\")


def test_five_megabytes_of_input_are_refused_where_they_arrive(node: Any) -> None:
    answer = refused(node.cni(stdin=json.dumps({**GOOD, "pad": "x" * (5 << 20)}).encode()))
    assert answer.code == 7
    assert "at most 4194304 bytes" in answer.text
    assert node.fresh == []


def test_four_megabytes_of_input_are_served(node: Any) -> None:
    assert node.cni(pad="x" * ((4 << 20) - 1000)).status == 0


BAD_VARIABLES: dict[str, tuple[dict[str, Any], int, str]] = {
    "no container id": ({"CNI_CONTAINERID": None}, 4, "[CNI_CONTAINERID] missing"),
    "an empty container id": ({"CNI_CONTAINERID": ""}, 4, "[CNI_CONTAINERID] missing"),
    "no namespace": ({"CNI_NETNS": None}, 4, "[CNI_NETNS] missing"),
    "no path": ({"CNI_PATH": None}, 4, "[CNI_PATH] missing"),
    "no interface and no path": ({"CNI_PATH": None, "CNI_IFNAME": None}, 4, "[CNI_IFNAME,CNI_PATH] missing"),
    "an unknown verb": ({"CNI_COMMAND": "FLY"}, 4, "unknown CNI_COMMAND: FLY"),
    "a verb in lower case": ({"CNI_COMMAND": "add"}, 4, "unknown CNI_COMMAND: add"),
    "a newline in the container id": ({"CNI_CONTAINERID": "c\nforged"}, 4, "invalid characters in containerID"),
    "a path as container id": ({"CNI_CONTAINERID": "../../etc"}, 4, "invalid characters in containerID"),
    "a container id of a thousand characters": ({"CNI_CONTAINERID": "c" * 1000}, 4, "container id is too long"),
    "a newline in the interface": ({"CNI_IFNAME": "eth\n0"}, 4, "whitespace"),
    "a slash in the interface": ({"CNI_IFNAME": "a/b"}, 4, "contains / or :"),
    "a long interface": ({"CNI_IFNAME": "x" * 16}, 4, "too long"),
    "a namespace that does not exist": ({"CNI_NETNS": "/run/netns/gone"}, 8, "/run/netns/gone"),
    "a file as namespace": ({"CNI_NETNS": "/etc/passwd"}, 8, "/etc/passwd"),
    "its own namespace": ({"CNI_NETNS": "/proc/self/ns/net"}, 8, "should not be the same"),
}


@pytest.mark.parametrize(("env", "code", "text"), BAD_VARIABLES.values(), ids=BAD_VARIABLES)
def test_a_bad_variable_is_one_error_that_names_it(node: Any, env: dict[str, Any], code: int, text: str) -> None:
    answer = refused(node.execute(node.scratch.paths.cni_bin / "faulty", env=node.env(**env), stdin=_good()))
    assert answer.code == code
    assert text in answer.text
    node.failure()


def _good() -> bytes:
    return json.dumps(GOOD).encode()


def test_a_del_of_a_container_id_of_a_thousand_characters_succeeds(node: Any) -> None:
    assert node.cni("DEL", container="c" * 1000).status == 0


def test_a_verb_that_the_version_lacks_is_code_1(node: Any) -> None:
    assert refused(node.cni("CHECK", cniVersion="0.3.1")).code == 1
    node.failure()


def test_a_script_under_a_name_that_nobody_serves_says_what_is_served(node: Any) -> None:
    stray = node.scratch.paths.cni_bin / "stray"
    stray.write_bytes((node.scratch.paths.cni_bin / "faulty").read_bytes())
    stray.chmod(0o755)
    answer = refused(node.cni(claim="stray"))
    assert answer.code == 999
    assert "no enabled plugin serves cni 'stray'; served: faulty, other" in answer.text
    node.failure()


def test_a_container_id_forges_no_line_of_the_log(node: Any) -> None:
    node.cni(container="c\n2026-01-01T00:00:00.000Z ERROR nodeplug.daemon forged")
    assert [line for line in node.fresh if line.startswith("2026-01-01")] == []


def test_an_interface_name_that_is_no_utf8_gets_no_network_and_is_ended(node: Any) -> None:
    env = {**node.env(container="bytes"), "CNI_IFNAME": "eth\udcff"}
    entrypoint = node.scratch.paths.cni_bin / "faulty"
    refused = node.execute(entrypoint, env=env, stdin=_good())
    assert (refused.status, refused.code) == (1, 4)
    assert node.execute(entrypoint, env=env | {"CNI_COMMAND": "DEL"}, stdin=_good()).status == 0
    for form in ([], ["--json"]):
        shown = node.scratch.run("status", *form)
        assert (shown.returncode, shown.stderr) == (0, "")


# --- a plugin that misbehaves -----------------------------------------------------------------------------------

FAULTS = {
    "raise": "OSError: no such card",
    "exit": "raised SystemExit: 3",
    "unprintable": "raised Unprintable",
    "wrong": "returned str from cni_add; expected CniResult",
    "none": "returned NoneType from cni_add; expected CniResult",
    "coroutine": "returned coroutine from cni_add; expected CniResult",
    "object": "a wrapped error",
    "mute": "no reason was given",
}


@pytest.mark.parametrize(("fault", "text"), FAULTS.items(), ids=FAULTS)
def test_a_plugin_that_fails_is_code_999_and_says_what_it_did(node: Any, fault: str, text: str) -> None:
    answer = refused(node.cni(do=fault))
    assert answer.code == 999
    assert text in answer.text
    lines = [line for line in node.fresh if "failed (request" in line]
    assert len(lines) == 1


def test_a_stray_exception_is_told_with_the_id_of_its_one_traceback(node: Any) -> None:
    answer = refused(node.cni(do="raise"))
    request = re.findall(r"request ([0-9a-f]{8})", answer.text)[0]
    assert "Traceback" not in answer.text
    node.until(lambda: sum("Traceback" in line for line in node.fresh) == 1)
    assert [line for line in node.fresh if f"[{request} " in line or f"request {request}" in line]


def test_a_stray_exception_forges_no_line_of_the_log(node: Any) -> None:
    node.cni(do="raise")
    node.until(lambda: any("forged" in line for line in node.fresh))
    assert [line for line in node.fresh if line.startswith("2026-01-01")] == []


def test_an_error_of_the_contract_keeps_its_code(node: Any) -> None:
    answer = refused(node.cni(do="full"))
    assert (answer.code, "254 of 254" in answer.text) == (11, True)
    node.failure()


def test_a_plugin_that_sleeps_past_its_deadline_is_code_11(node: Any) -> None:
    answer = refused(node.cni(container="late", do="hold"))
    assert answer.code == 11
    assert "did not end within 2 s" in answer.text
    (node.notes() / "go-late").touch()
    node.until(lambda: any("ended after" in line for line in node.fresh))
    assert node.cni("DEL", container="late").status == 0


def test_what_a_plugin_prints_does_not_reach_the_caller(node: Any) -> None:
    answer = node.cni(do="print")
    assert (answer.status, answer.stderr) == (0, b"")
    assert "cniVersion" in answer.document


def test_a_plugin_may_run_a_child_and_gets_its_status(node: Any) -> None:
    assert node.cni(do="child").status == 0


# --- a plugin that blocks for ever ------------------------------------------------------------------------------


@pytest.fixture
def blocked(make_node: Callable[..., Any]) -> Any:
    """A daemon with one plugin of which four calls hang, all of one network, so that it is quarantined for that."""
    node = make_node(faulty={"deadline": {"cni_add": "200ms", "cni_del": "200ms"}}, other={})
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda name: node.cni(container=name, do="block"), ("b1", "b2", "b3", "b4")))
    assert [refused(answer).code for answer in answers] == [11] * 4
    node.mark()
    return node


def test_a_network_that_blocks_is_quarantined_and_other_networks_and_plugins_serve(blocked: Any) -> None:
    answer = refused(blocked.cni(container="new", do="block"))
    assert (answer.code, "quarantined for network" in answer.text) == (11, True)
    blocked.failure()
    assert blocked.plugin("faulty")["quarantined"]
    assert "is quarantined for network" in blocked.plugin("faulty")["reason"]
    assert blocked.cni(container="new").status == 0
    assert sum(call["overdue"] for call in blocked.scratch.status()["calls"]) == 4
    assert blocked.cni(claim="other").status == 0


# --- many at once -----------------------------------------------------------------------------------------------


# On a busy machine 200 interpreters that start at once can starve the daemon for the 10 s that an entrypoint waits.
@pytest.mark.parametrize(
    ("entrypoints", "count"),
    [("script", 40), pytest.param("native", 200, marks=[pytest.mark.whole, pytest.mark.programs(*COMPILER)])],
    indirect=["entrypoints"],
)
def test_requests_at_once_are_all_served_though_there_are_more_than_places(node: Any, count: int) -> None:
    with ThreadPoolExecutor(count) as pool:
        answers = list(pool.map(lambda number: node.cni(container=f"many{number}", claim="other"), range(count)))
    assert [answer.stdout for answer in answers if answer.status] == []
    assert {f"many{number}" for number in range(count)} <= node.attachments()


def test_a_repeated_add_at_the_same_time_runs_after_the_first(make_node: Callable[..., Any]) -> None:
    node = make_node()
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(node.cni, do="hold")
        node.until((node.notes() / "held-c1").exists)
        before = node.opened(node.netns)
        second = pool.submit(node.cni)
        node.until(lambda: node.opened(node.netns) > before)
        assert not second.done()
        (node.notes() / "go-c1").touch()
        assert (first.result().status, second.result().status) == (0, 0)
    assert node.cni("DEL").status == 0
    assert (node.notes() / "deleted").read_text() == "c1 done\n"


def test_a_del_while_add_runs_undoes_what_add_did(make_node: Callable[..., Any]) -> None:
    node = make_node()
    with ThreadPoolExecutor(2) as pool:
        adding = pool.submit(node.cni, do="hold")
        node.until((node.notes() / "held-c1").exists)
        deleting = pool.submit(node.cni, "DEL")
        threading.Event().wait(0.2)  # long enough for an unordered DEL to come through
        assert not (node.notes() / "deleted").exists()
        (node.notes() / "go-c1").touch()
        assert (adding.result().status, deleting.result().status) == (0, 0)
    assert (node.notes() / "deleted").read_text() == "c1 done\n"
    assert node.attachments() == set()


def test_status_is_answered_while_every_place_for_calls_is_taken(make_node: Callable[..., Any]) -> None:
    # Each of a plugin of its own: one plugin never gets every place.
    names = [f"h{number}" for number in range(16)]
    node = make_node(**{name: {} for name in names})
    with ThreadPoolExecutor(16) as pool:
        calls = [pool.submit(node.cni, container=name, claim=name, do="hold") for name in names]
        node.until(lambda: all((node.notes(name) / f"held-{name}").exists() for name in names))
        try:
            assert len(node.scratch.status()["calls"]) == 16
            assert node.cni("STATUS", claim="h0", cniVersion="1.1.0").status == 0
        finally:
            for name in names:
                (node.notes(name) / f"go-{name}").touch()
        assert {call.result().status for call in calls} == {0}


def test_a_plugin_that_hangs_in_twenty_networks_stops_no_add_and_no_del_of_another(
    make_node: Callable[..., Any],
) -> None:
    node = make_node(faulty={}, other={})
    assert node.cni(container="before", claim="other").status == 0
    containers = [f"h{number}" for number in range(40)]
    with ThreadPoolExecutor(40) as pool:
        hung = [
            pool.submit(node.cni, container=name, do="hold", name=f"net-{number % 20}")
            for number, name in enumerate(containers)
        ]
        try:
            node.until(lambda: len(node.scratch.status()["calls"]) >= 13)  # as many as one plugin gets with its ADDs
            assert node.cni(container="during", claim="other").status == 0
            for container in ("before", "during"):
                assert node.cni("DEL", container, claim="other").status == 0
            assert sum((node.notes() / f"held-{name}").exists() for name in containers) == 13
        finally:
            for name in containers:
                (node.notes() / f"go-{name}").touch()
        assert {call.result().status for call in hung} <= {0, 1}  # who waited for long was told to try again
    assert node.attachments() & {"before", "during"} == set()


def test_a_del_after_the_daemon_was_killed_in_the_middle_of_add_undoes_it(make_node: Callable[..., Any]) -> None:
    node = make_node()
    with ThreadPoolExecutor(1) as pool:
        adding = pool.submit(node.cni, do="hold")
        node.until((node.notes() / "held-c1").exists)
        node.scratch.kill()
        assert refused(adding.result()).code == 11
    deleted = node.cni("DEL")
    assert (deleted.status, deleted.stdout) == (0, b"")
    assert b"kept in" in deleted.stderr
    node.start()
    node.until((node.notes() / "deleted").exists)
    assert (node.notes() / "deleted").read_text() == "c1 begun\n"
    node.until(lambda: node.scratch.status()["spool"] == 0)


def test_a_journal_file_cut_in_half_does_not_stop_a_del(make_node: Callable[..., Any]) -> None:
    node = make_node()
    assert node.cni().status == 0
    node.scratch.kill()
    files = [*(node.scratch.paths.journal / "faulty").iterdir(), *node.scratch.paths.attachments.iterdir()]
    assert len(files) == 2
    for file in files:
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    node.start()
    assert node.scratch.status()["ready"]
    assert node.cni("DEL").status == 0
    assert (node.notes() / "deleted").read_text() == "c1 unknown\n"
    assert files[0].with_suffix(".damaged").exists()
