"""kube-scheduler's stand-in takes answers as kube-scheduler 1.36 does (pkg/scheduler/extender.go, schedule_one.go)."""

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from nodeplug.testing import ExtenderFailure, Scheduler, Unschedulable
from nodeplug.testing.scheduler import node, pod

Answers = dict[str, Any]


class Extender:
    """Answers each verb as it was told, and keeps what it was asked."""

    def __init__(self) -> None:
        self.answers: Answers = {}
        self.status = 200
        self.asked: list[tuple[str, Any]] = []
        extender = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                verb = self.path.rpartition("/")[2]
                extender.asked.append((verb, json.loads(self.rfile.read(int(self.headers["Content-Length"])))))
                body = json.dumps(extender.answers.get(verb, {})).encode()
                self.send_response(extender.status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)

    @property
    def verbs(self) -> list[str]:
        return [verb for verb, _ in self.asked]


@pytest.fixture
def extender() -> Iterator[Extender]:
    made = Extender()
    made.server.daemon_threads = True
    thread = threading.Thread(target=made.server.serve_forever, args=(0.02,))
    thread.start()
    yield made
    made.server.shutdown()
    thread.join()
    made.server.server_close()


@pytest.fixture
def asking(extender: Extender) -> Iterator[Callable[..., Scheduler]]:
    made: list[Scheduler] = []

    def make(**options: Any) -> Scheduler:
        made.append(Scheduler(f"http://127.0.0.1:{extender.server.server_port}/x", **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_a_cycle_asks_in_the_order_of_the_scheduler(extender: Extender, asking: Callable[..., Scheduler]) -> None:
    extender.answers["filter"] = {"NodeNames": ["a", "b"]}
    extender.answers["prioritize"] = [{"Host": "b", "Score": 3}, {"Host": "unknown", "Score": 10}]
    assert asking().schedule(pod("web"), ["a", "b", "c"]) == "b"
    assert extender.verbs == ["filter", "prioritize", "bind"]
    assert extender.asked[1][1]["NodeNames"] == ["a", "b"]
    assert extender.asked[2][1]["Node"] == "b"


def test_null_for_names_is_no_node_at_all(extender: Extender, asking: Callable[..., Scheduler]) -> None:
    extender.answers["filter"] = {"NodeNames": None, "FailedNodes": {}}
    with pytest.raises(Unschedulable):
        asking().schedule(pod("web"), ["a"])


def test_without_names_whole_nodes_are_read_in_either_way(extender: Extender, asking: Callable[..., Scheduler]) -> None:
    extender.answers["filter"] = {"Nodes": {"items": [node("b")]}}
    for cached in (True, False):
        assert asking(node_cache_capable=cached).filter(pod("web"), {"a": node("a"), "b": node("b")}).nodes == ("b",)


def test_a_node_that_comes_back_changed_is_noticed(extender: Extender, asking: Callable[..., Scheduler]) -> None:
    extender.answers["filter"] = {"Nodes": {"items": [{"metadata": {"name": "a"}}]}}
    with pytest.raises(ExtenderFailure, match="node a comes back changed"):
        asking(node_cache_capable=False).filter(pod("web"), {"a": node("a")})


@pytest.mark.parametrize(
    ("answer", "status", "told"),
    [
        ({"NodeNames": ["z"]}, 200, "claims a filtered node 'z' which is not found"),
        ({"NodeNames": ["a"], "Error": "no"}, 200, "^no$"),
        ({"NodeNames": ["a"], "Error": "no"}, 500, "code 500"),
    ],
)
def test_what_fails_a_filter_ends_the_cycle_unless_it_may_be_ignored(
    answer: Any, status: int, told: str, extender: Extender, asking: Callable[..., Scheduler]
) -> None:
    extender.answers["filter"], extender.status = answer, status
    with pytest.raises(ExtenderFailure, match=told):
        asking().schedule(pod("web"), ["a"])
    assert asking(ignorable=True, verbs=("filter",)).schedule(pod("web"), ["a"]) == "a"


def test_scores_that_fail_are_no_opinion(extender: Extender, asking: Callable[..., Scheduler]) -> None:
    extender.status = 500
    assert asking(verbs=("prioritize",)).schedule(pod("web"), ["a", "b"]) == "a"


def test_one_node_is_not_scored_and_none_is_not_asked_about(
    extender: Extender, asking: Callable[..., Scheduler]
) -> None:
    assert asking(verbs=("prioritize",)).schedule(pod("web"), ["a"]) == "a"
    with pytest.raises(Unschedulable):
        asking().schedule(pod("web"), [])
    assert extender.verbs == []


def test_scores_are_weighed(extender: Extender, asking: Callable[..., Scheduler]) -> None:
    extender.answers["prioritize"] = [{"Host": "a", "Score": 7}]
    assert asking(weight=3).prioritize(pod("web"), ["a"]) == {"a": 210}


@pytest.mark.parametrize(
    ("containers", "inits", "asked"),
    [
        ([{"resources": {"limits": {"a/b": 1}}}], [], True),
        ([{}], [{"resources": {"requests": {"a/b": 1}}}], True),
        ([{"resources": {"limits": {"cpu": 1}}}], [], False),
    ],
)
def test_only_pods_with_a_managed_resource_are_shown(
    containers: Any, inits: Any, asked: bool, extender: Extender, asking: Callable[..., Scheduler]
) -> None:
    extender.answers["filter"] = {"NodeNames": ["a"]}
    wanted = pod("web", containers=containers, initContainers=inits)
    asking(managed_resources=["a/b"]).schedule(wanted, ["a"])
    assert bool(extender.asked) is asked


def test_a_victim_of_another_node_fails_the_preemption(extender: Extender, asking: Callable[..., Scheduler]) -> None:
    one, other = pod("one"), pod("other")
    victims = {"a": [one], "b": [other]}
    extender.answers["preempt"] = {"NodeNameToMetaVictims": {"a": {"Pods": [{"UID": one["metadata"]["uid"]}]}}}
    assert asking().preempt(pod("web"), victims) == {"a": (one["metadata"]["uid"],)}
    extender.answers["preempt"] = {"NodeNameToMetaVictims": {"a": {"Pods": [{"UID": other["metadata"]["uid"]}]}}}
    with pytest.raises(ExtenderFailure, match="claims to preempt pod"):
        asking(node_cache_capable=False).preempt(pod("web"), victims)


def test_the_event_counts_nodes_by_reason_as_a_real_one_does(
    extender: Extender, asking: Callable[..., Scheduler]
) -> None:
    extender.answers["filter"] = {
        "NodeNames": [],
        "FailedNodes": {"a": "its slots are taken", "b": "its slots are taken"},
        "FailedAndUnresolvableNodes": {"c": "its slots are too small"},
    }
    with pytest.raises(Unschedulable) as caught:
        asking().schedule(pod("web"), ["a", "b", "c"])
    # tests/real/test_scheduler_extender.py has this text from the scheduler itself
    assert str(caught.value) == "0/3 nodes are available: 1 its slots are too small, 2 its slots are taken."
