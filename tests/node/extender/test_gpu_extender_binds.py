"""The extender that knows the cards follows a cluster and binds pods: what counts as taken, and what may go wrong."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.node.acted_api import ActedApi, Fault
from tests.node.extender.conftest import asking
from tests.node.extender.test_gpu_extender import MEM, gpu_node, wanting
from tests.started import until_all_run

from nodeplug.testing import ExtenderFailure, Scheduler, ScratchNode
from nodeplug.testing.acted_api.store import Where
from nodeplug.testing.waiting import until
from nodeplug_gpu.free_memory import FreeCard, FreeMemory, PodName, encode

PLUGIN = '[plugins.gpu-extender]\nisolation = "{}"\n[plugins.gpu-extender.config]\nlook = "200ms"\n'
Make = Callable[..., ScratchNode]
pytestmark = pytest.mark.unprivileged


@pytest.fixture
def api() -> Iterator[ActedApi]:
    with ActedApi() as server:
        put_node(server, gpu_node("a", 10))
        yield server


@pytest.fixture
def daemon(make_node: Make, api: ActedApi) -> ScratchNode:
    return following(make_node, api)


@pytest.fixture
def scheduler(daemon: ScratchNode) -> Iterator[Scheduler]:
    with asking(daemon, "gpu-mem", managed_resources={MEM}) as scheduler:
        yield scheduler


def following(make_node: Make, api: ActedApi, isolation: str = "thread") -> ScratchNode:
    node = make_node(PLUGIN.format(isolation), api=api)
    until(lambda: all_followed(node), found=lambda: node.log)
    return node


def all_followed(node: ScratchNode) -> bool:
    return None not in (followed(node)["nodes"], followed(node)["pods_bound"])


def followed(node: ScratchNode) -> dict[str, Any]:
    return dict(node.status()["extender"]["cluster"])


def put_node(api: ActedApi, node: dict[str, Any]) -> None:
    api.put("v1", "nodes", node["metadata"]["name"], metadata=node["metadata"], status=node["status"])


def put_pod(api: ActedApi, pod: dict[str, Any], node: str = "", **metadata: Any) -> None:
    spec = {**pod["spec"], **({"nodeName": node} if node else {})}
    about = {**pod["metadata"], **metadata}
    api.put("v1", "pods", about["name"], "default", metadata=about, spec=spec, status=pod["status"])


def fits(scheduler: Scheduler, pod: dict[str, Any]) -> bool:
    return bool(scheduler.filter(pod, ["a"]).nodes)


def under_way(node: ScratchNode) -> int:
    return int(json.loads(node.run("inspect", "gpu-extender").stdout)["gpu-extender"]["pods_under_way"])


def bindings(method: str, where: Where) -> bool:
    return method == "POST"


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_a_scheduler_that_sends_names_alone_has_pods_placed_by_what_the_cluster_says(
    make_node: Make, api: ActedApi, isolation: str
) -> None:
    put_node(api, gpu_node("b", 4, 4))
    node = following(make_node, api, isolation)
    until(lambda: followed(node)["nodes"] == 2)
    with asking(node, "gpu-mem", managed_resources={MEM}) as scheduler:
        one = wanting("one", 8)
        put_pod(api, one)
        assert scheduler.schedule(one, ["a", "b"]) == "a"
        assert api.bound == ["one to a"]
        verdict = scheduler.filter(wanting("two", 4, 8), ["a", "b", "nobody"])
        assert verdict.failed == dict.fromkeys("ab", f"no single card has enough free {MEM}")
        assert verdict.unresolvable == {"nobody": f"it publishes no free {MEM} by card"}


def test_what_a_node_says_anew_counts_in_the_next_call(api: ActedApi, scheduler: Scheduler) -> None:
    assert not fits(scheduler, wanting("one", 12))
    put_node(api, gpu_node("a", 12))
    until(lambda: fits(scheduler, wanting("one", 12)))
    api.remove("nodes", "a")
    until(lambda: not fits(scheduler, wanting("one", 1)))


def test_a_binding_takes_units_at_once_and_a_pod_is_not_in_its_own_way(api: ActedApi, scheduler: Scheduler) -> None:
    one, two = wanting("one", 6), wanting("two", 6)
    put_pod(api, one)
    put_pod(api, two)
    assert fits(scheduler, one)
    assert fits(scheduler, two)
    scheduler.bind(one, "a")
    assert not fits(scheduler, two)
    assert fits(scheduler, one)
    with pytest.raises(ExtenderFailure, match="another pod has come first"):
        scheduler.bind(two, "a")
    assert api.bound == ["one to a"]


def test_a_binding_that_succeeded_may_be_asked_for_again(api: ActedApi, scheduler: Scheduler) -> None:
    one = wanting("one", 6)
    put_pod(api, one)
    scheduler.bind(one, "a")
    scheduler.bind(one, "a")
    assert api.bound == ["one to a"]


def test_a_binding_whose_answer_is_lost_has_succeeded(api: ActedApi, scheduler: Scheduler) -> None:
    one = wanting("one", 6)
    put_pod(api, one)
    with api.failing("lost answer", bindings):
        scheduler.bind(one, "a")
    assert api.bound == ["one to a"]
    assert not fits(scheduler, wanting("two", 6))


@pytest.mark.parametrize("other", ["bound elsewhere", "another of its name", "gone"])
def test_a_pod_that_is_not_bound_takes_nothing(api: ActedApi, scheduler: Scheduler, other: str) -> None:
    one = wanting("one", 6)
    if other == "bound elsewhere":
        put_pod(api, one, "elsewhere")
    elif other == "another of its name":
        put_pod(api, one, uid="another")
    assert fits(scheduler, one)
    with pytest.raises(ExtenderFailure, match=r"refused to create pods/binding default/one|is gone"):
        scheduler.bind(one, "a")
    assert fits(scheduler, wanting("two", 6))


@pytest.mark.parametrize("fault", ["broken", "conflict"])
def test_a_binding_that_the_server_refuses_takes_nothing_and_says_why(
    api: ActedApi, scheduler: Scheduler, fault: Fault
) -> None:
    one = wanting("one", 6)
    put_pod(api, one)
    assert fits(scheduler, one)
    with (
        api.failing(fault, bindings),
        pytest.raises(ExtenderFailure, match="the API server refused to create pods/binding default/one: acted out"),
    ):
        scheduler.bind(one, "a")
    assert fits(scheduler, wanting("two", 6))


@pytest.mark.whole
def test_while_nobody_knows_whether_a_pod_is_bound_its_units_are_taken(
    api: ActedApi, scheduler: Scheduler, daemon: ScratchNode
) -> None:
    one = wanting("one", 6)
    put_pod(api, one)
    assert fits(scheduler, one)
    with api.failing("away", lambda _, where: where.name == "one"):
        with pytest.raises(ExtenderFailure, match="nobody knows whether pod default/one is bound to a"):
            scheduler.bind(one, "a")
        assert not fits(scheduler, wanting("two", 6))
    until(lambda: fits(scheduler, wanting("two", 6)), found=lambda: daemon.log)  # it can be read again: not bound


def test_pods_that_others_have_bound_count_and_those_that_are_gone_do_not(
    api: ActedApi, scheduler: Scheduler, daemon: ScratchNode
) -> None:
    put_pod(api, wanting("strange", 6), "a")
    until(lambda: not fits(scheduler, wanting("two", 6)))
    assert under_way(daemon) == 1
    api.remove("pods", "strange", "default")
    until(lambda: fits(scheduler, wanting("two", 6)), found=lambda: daemon.log)


def test_a_pod_that_another_has_bound_counts_though_its_node_still_names_its_predecessor(
    api: ActedApi, scheduler: Scheduler
) -> None:
    put_node(api, gpu_node_that_names("web", 6))
    until(lambda: not fits(scheduler, wanting("seven", 7)))
    assert fits(scheduler, wanting("six", 6))
    put_pod(api, wanting("web", 6), "a", uid="successor")
    until(lambda: not fits(scheduler, wanting("six", 6)))


def test_a_daemon_that_is_killed_after_a_binding_knows_of_it_when_it_is_back(
    api: ActedApi, scheduler: Scheduler, daemon: ScratchNode
) -> None:
    one = wanting("one", 6)
    put_pod(api, one)
    scheduler.bind(one, "a")
    daemon.kill()
    daemon.start()
    with asking(daemon, "gpu-mem", managed_resources={MEM}) as another:
        until(lambda: all_followed(daemon))
        assert not fits(another, wanting("two", 6))
        put_node(api, gpu_node_that_names("one", 4))
        until(lambda: fits(another, wanting("four", 4)))
        assert not fits(another, wanting("five", 5))


def gpu_node_that_names(pod: str, free: int) -> dict[str, Any]:
    made = gpu_node("a", free)
    cards = (FreeCard("00000000", "GPU-0", 0, 24, free),)
    said = FreeMemory(MEM, 2, 1 << 30, "binpack", cards, (PodName("default", pod),), ({"00000000": 6},))
    made["metadata"]["annotations"] = {"nodeplug.io/gpu-mem": encode(said)}
    return made


def test_victims_of_which_the_scheduler_tells_the_uid_alone_are_found_at_the_api_server(
    api: ActedApi, scheduler: Scheduler
) -> None:
    low = wanting("low", 6)
    put_pod(api, {**low, "status": {"phase": "Running"}}, "a")
    put_node(api, gpu_node_that_names("low", 4))
    until(lambda: not fits(scheduler, wanting("five", 5)))
    assert scheduler.preempt(wanting("ten", 10), {"a": [low]}) == {"a": (low["metadata"]["uid"],)}
    assert scheduler.preempt(wanting("eleven", 11), {"a": [low]}) == {}


@pytest.mark.parametrize("fault", ["away", "silent", "busy", "broken", "gone", "half"])
def test_an_api_server_that_fails_leaves_what_is_known(
    api: ActedApi, scheduler: Scheduler, daemon: ScratchNode, fault: Fault
) -> None:
    with api.failing(fault):
        assert fits(scheduler, wanting("one", 10))
        assert not fits(scheduler, wanting("one", 11))
    put_node(api, gpu_node("a", 11))
    until(lambda: fits(scheduler, wanting("one", 11)), found=lambda: daemon.log)


def test_before_the_first_answer_of_the_api_server_the_scheduler_is_told_to_ask_again(
    make_node: Make, api: ActedApi
) -> None:
    with api.failing("broken"):
        node = make_node(PLUGIN.format("thread"), api=api)
        with asking(node, "gpu-mem") as scheduler:

            def refused() -> str:
                with pytest.raises(ExtenderFailure, match="the nodes are not known yet") as caught:
                    scheduler.filter(wanting("one", 1), ["a"])
                return str(caught.value)

            sentence = "the nodes are not known yet: the API server refused to list"
            until(lambda: sentence in refused(), found=refused)
            assert "the API server refused to list nodes" in node.status()["reasons"]["scheduler extenders"]
    with asking(node, "gpu-mem") as scheduler:
        until(lambda: all_followed(node), found=lambda: node.log)
        assert fits(scheduler, wanting("one", 1))


def test_a_plugin_that_claims_no_extender_may_not_ask_the_cluster(make_node: Make, api: ActedApi) -> None:
    node = make_node('[plugins.nosy]\nuses = "nosy:Nosy"\n', api=api)
    until_all_run(node)
    told = json.loads(node.run("inspect", "nosy").stdout)["nosy"]["told"]
    assert told == "section 'nosy' serves no scheduler extender, and only sections that do may ask for this"
