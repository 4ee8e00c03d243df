"""What a plugin in a process of its own asks of its host, and what others wrap around it."""

import logging
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

import nodeplug as n
from nodeplug.cluster.reports import ClusterReports
from nodeplug.hosting.call import Call

if TYPE_CHECKING:
    from tests.node.workers.conftest import Guests

CNI: Any = {"claim": "net", "network": "n", "version": "1.0.0", "config": {"type": "net"}}
ATTACHMENT: Any = {"container_id": "c1", "ifname": "eth0", "args": {"K": "v"}}
Play = Callable[[Any], None]


@pytest.mark.unprivileged
@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_a_host_does_in_a_process_what_it_does_in_a_thread(
    isolation: str, play: Play, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(guests: "Guests") -> None:
        await guests.apply(guest=guests.section(uses="worker_guest:Asker", isolation=isolation))
        told = await guests.call("inspect")
        assert (told["plugin"], told["node"]) == ("guest", "node-1")
        taken: list[Any] = []
        for where in ("here", "beside"):
            asked = told[where]
            assert asked["written"] == where
            assert asked["read"]
            assert not asked["stale"]
            assert sorted(asked["entries"]) == sorted([where, "other"])
            name, namespace, address = asked["attachments"]
            assert (name, [*namespace], address) == ("n", [4, 1], "10.88.0.2/24")
            assert [[*one] for one in asked["holders"]] == [["ns", "pod", ["d0"]]]
            assert [(key, data) for key, data in asked["former"]] == [("left", {"by": "a former plugin"}), *taken]
            taken = [("taken", {})]
            assert asked["folder"] == str(guests.folder / "former" / "state")
            assert asked["left"] == []
            refused = "the name of a kept socket has 1 to 200 characters, found 0"
            assert asked["sockets"] == ["still open", [where], None, refused, []]
            assert asked["not ready"] == "kubelet does not say"
            assert "is too large for the journal" in asked["too large"]
            (record,) = [one for one in caplog.records if one.getMessage() == f"asking {where}"]
            assert record.plugin == "guest"  # type: ignore[attr-defined]
        assert guests.refreshed == ["example.com/thing", "example.com/thing"]
        assert guests.health_refreshed == guests.cluster_refreshed == ["guest", "guest"]

    play(story)


@pytest.mark.unprivileged
@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_what_the_cluster_is_told_is_the_same_from_a_process_as_from_a_thread(isolation: str, play: Play) -> None:
    async def story(guests: "Guests") -> None:
        await guests.apply(guest=guests.section(isolation=isolation))
        found = await ClusterReports(guests.lifecycle.registry, guests.lifecycle.runner).collect()
        report = found["guest"]
        warning = n.PodWarning("Worn", "it wears out")
        assert report == n.ClusterReport(
            labels={"example.com/a": "b"},
            annotations={"example.com/n": '{"c": 1}'},
            conditions=(n.NodeCondition(type="example.com/Worn", reason="Worn", message="it wears out"),),
            pods=(n.PodReport(namespace="ns", name="p", annotations={"d": "e"}, warnings=(warning,)),),
            config_maps=(n.NodeConfigMap(namespace="ns", name="m-node-1", data={"f": "g"}),),
        )

    play(story)


@pytest.mark.unprivileged
def test_a_record_of_a_process_has_the_id_of_the_call_in_which_it_is_written(
    play: Play, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(guests: "Guests") -> None:
        await guests.apply(guest=guests.section(at="health", how="logs"))
        instance, calls = guests.lifecycle.registry.slots["guest"].instance, [Call("health", "a:b", "k") for _ in "ab"]
        for call in calls:
            await guests.lifecycle.runner.call(instance, "health", call, {})

        def requests() -> list[str]:
            records: list[Any] = [one for one in caplog.records if one.getMessage() == "it is called"]
            return [one.request for one in records]

        await guests.until(lambda: len(requests()) == len(calls))  # a record comes beside the answer
        assert requests() == [call.id for call in calls]

    play(story)


@pytest.mark.unprivileged
def test_a_plugin_with_wrappers_is_a_thread_and_wraps_the_calls_of_processes(
    play: Play, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "nodeplug")

    async def story(guests: "Guests") -> None:
        policy = guests.section(uses="worker_guest:Policy", isolation=None)
        await guests.apply(policy=policy, guest=guests.section())
        assert "plugin policy runs as a thread of the daemon: it wraps hooks of other plugins" in caplog.text
        assert guests.lifecycle.registry.slots["policy"].instance.isolation == "thread"
        assert await guests.call("volume_expand") == 2 * 4096
        assert (guests.folder / "state" / "wrapped").read_text() == f"{os.getpid()} 4096"
        assert guests.pid() != os.getpid()
        await guests.apply(guest=guests.section())
        assert await guests.call("volume_expand") == 4096

    play(story)


@pytest.mark.unprivileged
def test_a_plugin_that_has_to_be_a_thread_is_refused_where_its_section_says_process(play: Play) -> None:
    async def story(guests: "Guests") -> None:
        await guests.apply(policy=guests.section(uses="worker_guest:Policy"))
        assert guests.state("policy") == "refused"
        reason = guests.lifecycle.registry.slots["policy"].reason
        assert "can only be a thread of the daemon (it wraps hooks of other plugins)" in reason
        assert 'write `isolation = "thread"`' in reason

    play(story)


@pytest.mark.unprivileged
def test_a_process_that_claims_what_no_plugin_may_claim_is_refused(play: Play) -> None:
    async def story(guests: "Guests") -> None:
        await guests.apply(guest=guests.section(at="claims", how="claims a path"))
        await guests.until(lambda: guests.state() in {"refused", "failed"})
        assert (
            "its claims are not those of a plugin that was examined" in guests.lifecycle.registry.slots["guest"].reason
        )

    play(story)


@pytest.mark.parametrize("called", ["thread", "process"])
def test_a_plugin_in_a_process_delegates_to_another_plugin(called: Any, play: Play) -> None:
    async def story(guests: "Guests") -> None:
        await guests.apply(guest=guests.section(), other=guests.section(name="b", isolation=called))
        request: Any = {**CNI, **ATTACHMENT, "host_netns": guests.own, "netns": guests.own}
        asked = n.CniAdd(**request | {"config": {"type": "net", "delegate": "b"}})
        result = await guests.call("cni_add", asked)
        assert result.dns.domain == guests.own.path
        assert result == await guests.call("cni_add", n.CniAdd(**request), name="other")
        with pytest.raises(n.NotFound, match="nowhere"):
            await guests.call("cni_add", n.CniAdd(**request | {"config": {"delegate": "nowhere"}}))

    play(story)
