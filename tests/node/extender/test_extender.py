"""A scheduler asks a daemon: a whole cycle, both ways to send nodes, and what goes wrong."""

import http.client
import json
import os
import signal
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from tests.node.extender.conftest import PROBE, RACKS, address, asking

from nodeplug.contract.inputs import EXTENDER_BODY
from nodeplug.testing import ExtenderFailure, ScratchNode, Unschedulable
from nodeplug.testing.scheduler import node as v1_node
from nodeplug.testing.scheduler import pod as v1_pod
from nodeplug.testing.waiting import until

Make = Callable[..., ScratchNode]
pytestmark = pytest.mark.unprivileged


@pytest.mark.parametrize(
    ("cached", "isolation"),
    [
        (True, "process"),
        (False, "thread"),
        pytest.param(True, "thread", marks=pytest.mark.whole),
        pytest.param(False, "process", marks=pytest.mark.whole),
    ],
)
def test_a_pod_goes_where_the_plugin_wants_it(make_node: Make, isolation: Any, cached: bool) -> None:
    node = make_node(isolation=isolation)
    with asking(node, node_cache_capable=cached, verbs=("filter", "prioritize")) as scheduler:
        assert scheduler.schedule(v1_pod("web", labels={"rack": "r2"}), ["x", "a", "b"]) == "b"
        with pytest.raises(Unschedulable, match=r"^0/1 nodes are available: 1 its rack is being repaired\.$"):
            scheduler.schedule(v1_pod("web"), ["a"])


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_every_verb_reaches_its_hook(make_node: Make, isolation: Any) -> None:
    node = make_node(PROBE, isolation=isolation)
    for cached in (True, False):
        with asking(node, "deep/probe", node_cache_capable=cached) as scheduler:
            pod = v1_pod(f"web-{cached}".lower(), labels={})
            chosen = scheduler.schedule(pod, {name: v1_node(name) for name in ("a", "b", "c")})
            assert chosen == "a"
            (bound,) = node.root.rglob(pod["metadata"]["uid"])
            assert bound.read_text() == f"default/{pod['metadata']['name']} a"
            victims = {"a": [v1_pod("one"), v1_pod("two")], "b": [v1_pod("three")]}
            ((name, uids),) = scheduler.preempt(pod, victims).items()
            assert (name, len(uids)) == ("a", 1)


def test_the_reason_of_a_refused_binding_is_told_and_so_is_that_of_a_filter(make_node: Make) -> None:
    with asking(make_node(PROBE), "deep/probe") as scheduler:
        with pytest.raises(ExtenderFailure, match=r"node full has no card that is free \(request [0-9a-f]{8}\)"):
            scheduler.bind(v1_pod("web"), "full")
        with pytest.raises(ExtenderFailure, match="every slot is taken"):
            scheduler.filter(v1_pod("web", labels={"raise": "every slot is taken"}), ["a"])
        with pytest.raises(ExtenderFailure, match=r"failed: ValueError: oh \(request|ValueError: oh"):
            scheduler.filter(v1_pod("web", labels={"stray": "oh"}), ["a"])
        with pytest.raises(ExtenderFailure, match="the scheduler did not ask about 'nowhere'"):
            scheduler.filter(v1_pod("web", labels={"invent": ""}), ["a"])


def test_scores_that_are_too_high_are_no_opinion_and_the_status_says_why(make_node: Make) -> None:
    node = make_node(PROBE)
    with asking(node, "deep/probe") as scheduler:
        assert scheduler.prioritize(v1_pod("web", labels={"high": ""}), ["a"]) == {}
        assert scheduler.prioritize(v1_pod("web"), ["a"]) == {"a": 10}
    (failed,) = [one for one in node.status()["recent"] if one["outcome"] != "ok"]
    assert (failed["verb"], failed["claim"], failed["about"]) == ("prioritize", "extender:deep/probe", "default/web")
    assert "returned 11 for 'a'; return whole numbers from 0 to 10" in failed["error"]


def test_a_call_that_hangs_is_answered_before_the_scheduler_gives_up(make_node: Make) -> None:
    plugins = f'{PROBE}deadline = {{ extender_filter = "1s" }}\n'
    with asking(make_node(plugins), "deep/probe") as scheduler:
        with pytest.raises(ExtenderFailure, match=r"extender_filter of plugin 'probe' did not end within 1 s"):
            scheduler.filter(v1_pod("web", labels={"sleep": "4"}), ["a"])
        assert scheduler.filter(v1_pod("other"), ["a"]).nodes == ("a",)


def test_a_verb_without_a_hook_says_what_to_leave_out(make_node: Make) -> None:
    with asking(make_node()) as scheduler:
        with pytest.raises(ExtenderFailure, match="plugin 'racks' has no extender_bind; leave bindVerb out of"):
            scheduler.bind(v1_pod("web"), "a")
        with pytest.raises(ExtenderFailure, match="code 501"):
            scheduler.preempt(v1_pod("web"), {"a": [v1_pod("one")]})


def test_an_extender_that_nobody_claims_is_told_with_those_that_there_are(make_node: Make) -> None:
    node = make_node()
    with asking(node, "cards") as scheduler, pytest.raises(ExtenderFailure, match="serves extender 'cards'; served: r"):
        scheduler.filter(v1_pod("web"), ["a"])
    assert all(one["claim"] != "extender:cards" for one in node.status()["recent"])


def ask(node: ScratchNode, method: str, path: str, body: bytes = b"{}") -> tuple[int, str]:
    connection = http.client.HTTPConnection(urlsplit(address(node)).netloc, timeout=60)
    try:
        connection.request(method, path, body)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def test_what_is_no_call_of_a_scheduler_is_refused(make_node: Make) -> None:
    node = make_node(keys='max_body = "64Ki"')
    assert ask(node, "POST", "/racks/predicates") == (
        404,
        "there is no verb 'predicates'; there are filter, prioritize, preempt, bind; POST /EXTENDER/VERB\n",
    )
    assert ask(node, "POST", "/filter")[0] == 404
    assert ask(node, "GET", "/racks/filter")[0] == 405
    status, told = ask(node, "POST", "/racks/filter", b"{")
    assert (status, "the body is no JSON object" in json.loads(told)["Error"]) == (200, True)
    assert ask(node, "POST", "/racks/filter", b" " * (65 << 10))[0] == 413


def test_five_hundred_whole_nodes_come_back_as_they_were_sent(make_node: Make) -> None:
    node = make_node(PROBE, keys='max_body = "32Mi"')
    filler = {"annotations": {str(number): "x" * 1000 for number in range(20)}}
    whole = {name: v1_node(name) for name in (f"node-{number:03}" for number in range(500))}
    for one in whole.values():
        one["metadata"] |= filler
    with asking(node, "deep/probe", node_cache_capable=False, timeout=60) as scheduler:
        left = scheduler.filter(v1_pod("web", labels={}), whole)  # which compares them
        assert left.nodes == tuple(list(whole)[::2])
        assert set(left.failed.values()) == {"the extender deep/probe gave no reason"}


def test_a_body_of_empty_lists_is_refused_and_takes_no_memory(make_node: Make) -> None:
    """Some seconds: eight bodies at once, as large as they may be."""
    node = make_node(PROBE)
    body = b'{"Pod":{"metadata":{}},"NodeNames":[' + b"[]," * ((EXTENDER_BODY.size - 100) // 3) + b"[]]}"
    before = memory(node)

    def post(_: int) -> tuple[int, str]:
        with closing(http.client.HTTPConnection(address(node).removeprefix("http://"), timeout=60)) as peer:
            with suppress(
                ConnectionError
            ):  # it is refused before it has sent all, and may read the answer all the same
                peer.request("POST", "/deep/probe/filter", body)
            try:
                with peer.getresponse() as answer:
                    return answer.status, answer.read().decode()
            except (ConnectionError, http.client.HTTPException):
                return 503, "too many bodies at once"

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(post, range(8)))
    assert any("values, and" in text for _, text in answers), answers
    assert all("values, and" in text or "too many bodies" in text for _, text in answers), answers
    assert memory(node) < before + 8 * (EXTENDER_BODY.size >> 10)
    with asking(node, "deep/probe") as scheduler:
        scheduler.filter(v1_pod("web", labels={}), ["a"])


def memory(node: ScratchNode) -> int:
    """Return the most memory that the daemon has had, in KiB."""
    status = Path(f"/proc/{node.pid}/status").read_text(encoding="ascii")
    return int(status.partition("VmHWM:")[2].split()[0])


def test_a_connection_stays_open_for_the_next_call(make_node: Make) -> None:
    node = make_node()
    with asking(node) as scheduler:
        for _ in range(3):
            scheduler.filter(v1_pod("web"), ["b"])
        assert node.status()["extender"]["connections"] == 1


def test_another_daemon_takes_over_and_the_port_refuses_nobody(make_node: Make) -> None:
    node = make_node()
    before = address(node)
    with asking(node) as scheduler:
        scheduler.filter(v1_pod("web"), ["b"])
    done = node.run("replace")
    assert done.returncode == 0, done.stderr
    with asking(node) as scheduler:
        assert scheduler.url_prefix == f"{before}/racks"
        assert scheduler.filter(v1_pod("web"), ["b"]).nodes == ("b",)


def test_a_port_that_is_taken_costs_the_node_nothing_else_and_is_told(make_node: Make) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        node = make_node(keys=f'listen = "127.0.0.1:{port}"')
        until(lambda: "cannot listen" in node.status()["reasons"].get("scheduler extenders", ""))
        told = node.status()["reasons"]["scheduler extenders"]
        assert f"cannot listen on 127.0.0.1:{port}: another process listens there" in told
        assert node.status()["extender"]["problem"].startswith("cannot listen on")
    with asking(node) as scheduler:
        assert scheduler.filter(v1_pod("web"), ["b"]).nodes == ("b",)
    assert node.status()["ready"]


def test_a_plugin_that_nobody_can_ask_is_told(make_node: Make) -> None:
    node = make_node(RACKS, keys="enabled = false")
    assert node.status()["extender"] is None
    assert "nobody can ask racks: add an [extender] table" in node.status()["reasons"]["scheduler extenders"]


def test_the_status_names_the_extenders_and_their_verbs(make_node: Make) -> None:
    node = make_node(RACKS + PROBE)
    assert address(node).startswith("http://127.0.0.1:")
    assert node.status()["extender"]["extenders"] == [
        {"name": "racks", "plugin": "racks", "verbs": ["filter", "prioritize"]},
        {"name": "deep/probe", "plugin": "probe", "verbs": ["filter", "prioritize", "preempt", "bind"]},
    ]
    shown = node.run("status").stdout
    assert f"{address(node)}/deep/probe" in shown
    assert "filter, prioritize, preempt, bind" in shown


def test_a_process_that_is_killed_in_a_call_costs_that_call_alone(make_node: Make) -> None:
    node = make_node(PROBE, isolation="process")
    (row,) = node.status()["plugins"]
    with asking(node, "deep/probe", timeout=60) as scheduler:
        asked = threading.Thread(target=_killed_in_a_call, args=(node, row["process"]["pid"]))
        asked.start()
        with pytest.raises(ExtenderFailure, match="the process of plugin 'probe' ended during extender_filter"):
            scheduler.filter(v1_pod("web", labels={"sleep": "3"}), ["a"])
        asked.join()
        assert scheduler.filter(v1_pod("web"), ["a"]).nodes == ("a",)  # waits for the process to be there again


def _killed_in_a_call(node: ScratchNode, pid: int) -> None:
    until(lambda: node.status()["calls"])
    os.kill(pid, signal.SIGKILL)
