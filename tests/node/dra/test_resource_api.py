"""The stand-in of an API server for DRA: what it stores, drops, refuses and tells, seen by nodeplug's own client."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from tests.node.dra.objects import DRIVER, NODE, REFUSED, card, slice_of, wants_part

from nodeplug import InvalidRequest, NotFound, PluginError
from nodeplug.kubeapi.client import Bounds, Client, Listed
from nodeplug.kubeapi.credentials import Credentials, find
from nodeplug.kubeapi.refusals import Conflict, Unreachable
from nodeplug.kubeapi.resources import NODES, Resource
from nodeplug.kubeapi.watch import Changed, Watch
from nodeplug.testing.dra import ResourceApi

pytestmark = pytest.mark.unprivileged
SLICES = Resource("resource.k8s.io", "v1", "resourceslices", "ResourceSlice")
CLAIMS = Resource("resource.k8s.io", "v1", "resourceclaims", "ResourceClaim", namespaced=True)
Run = Callable[[Callable[[Client], Awaitable[Any]]], Any]


@pytest.fixture
def run(api: ResourceApi, tmp_path: Path) -> Run:
    (tmp_path / "kubeconfig").write_text(api.kubeconfig)

    def do(work: Callable[[Client], Awaitable[Any]]) -> Any:
        async def go() -> Any:
            credentials = Credentials(find(tmp_path / "kubeconfig"))
            async with Client(credentials, Bounds(request=5, pause=0.02)) as client, asyncio.timeout(60):
                return await work(client)

        return asyncio.run(go())

    return do


def test_a_slice_is_created_read_listed_replaced_and_deleted(api: ResourceApi, run: Run) -> None:
    async def work(client: Client) -> None:
        made = await client.create(SLICES, slice_of(card("one")))
        assert made["metadata"]["uid"]
        assert [one["metadata"]["name"] for one in await client.list(SLICES)] == ["acme-0"]
        made["spec"]["devices"].append(card("two"))
        changed = await client.replace(SLICES, made)
        assert changed["metadata"]["generation"] == 2
        assert (await client.get(SLICES, "acme-0")) == changed
        await client.delete(SLICES, "acme-0")

    run(work)
    assert api.slices() == []


def test_a_node_is_read(run: Run) -> None:
    assert run(lambda client: client.get(NODES, NODE))["metadata"]["uid"]


def test_a_replacement_of_an_older_state_is_a_conflict(run: Run) -> None:
    async def work(client: Client) -> None:
        old = await client.create(SLICES, slice_of(card("one")))
        await client.patch(SLICES, "acme-0", {"metadata": {"labels": {"a": "b"}}})
        with pytest.raises(Conflict):
            await client.replace(SLICES, old)

    run(work)


def test_what_changes_nothing_is_no_change_for_those_who_watch(api: ResourceApi, run: Run) -> None:
    made = api.create("resourceslices", slice_of(card("one")))
    assert run(lambda client: client.replace(SLICES, made)) == made
    assert api.get("resourceslices", "acme-0") == made


def test_a_list_has_the_slices_of_one_node_and_driver(api: ResourceApi, run: Run) -> None:
    api.create("resourceslices", slice_of(card("one")))
    api.create("resourceslices", slice_of(card("one"), name="b", driver="other.example.com"))
    api.create("resourceslices", slice_of(card("one"), name="c", nodeName="node-2"))
    fields = f"spec.nodeName={NODE},spec.driver={DRIVER}"
    listed: Listed = run(lambda client: client.list(SLICES, fields=fields))
    assert [one["metadata"]["name"] for one in listed] == ["acme-0"]


def test_a_watch_tells_of_a_wipe_and_goes_on_after_it_was_cut_off(api: ResourceApi, run: Run) -> None:
    async def work(client: Client) -> list[str]:
        seen: list[str] = []
        watch = Watch(client, SLICES, fields=f"spec.driver={DRIVER}")
        async with aclosing(watch.changes()) as changes:
            async for one in changes:
                if isinstance(one, Changed):
                    seen.append(one.how)
                    if one.how == "ADDED":
                        api.cut()
                        api.wipe(DRIVER)
                    else:
                        return seen
                else:
                    api.create("resourceslices", slice_of(card("one")))
        return seen

    assert run(work) == ["ADDED", "DELETED"]


def test_a_quiet_client_asks_for_nothing_but_the_watch(api: ResourceApi, run: Run) -> None:
    async def work(client: Client) -> None:
        async with aclosing(Watch(client, SLICES).changes()) as changes:
            async for one in changes:
                if isinstance(one, Changed):
                    return
                api.create("resourceslices", slice_of(card("one")))

    run(work)
    assert api.asked == ["GET resourceslices /", "WATCH resourceslices /"]


def test_a_dry_run_tells_and_stores_nothing(api: ResourceApi) -> None:
    found = api.create("resourceslices", slice_of(card("one", size="1024Mi")), rehearsed=True)
    assert found["spec"]["devices"][0]["capacity"]["memory"]["value"] == "1Gi"
    assert api.slices() == []


def test_amounts_come_back_as_a_server_writes_them(api: ResourceApi) -> None:
    device = {
        "name": "one",
        "capacity": {"a": {"value": "8192Mi"}, "b": {"value": "2000"}, "c": {"value": "8589934592"}},
    }
    made = api.create("resourceslices", slice_of(device))
    amounts = made["spec"]["devices"][0]["capacity"]
    assert [amounts[name]["value"] for name in "abc"] == ["8Gi", "2k", "8589934592"]


def test_the_server_says_since_when_a_taint_is_there(api: ResourceApi) -> None:
    taint = {"key": "nodeplug.io/unhealthy", "value": "xid-79", "effect": "NoSchedule"}
    made = api.create("resourceslices", slice_of(card("one", taints=[taint])))
    assert made["spec"]["devices"][0]["taints"][0].keys() == {*taint, "timeAdded"}


def test_fields_of_gates_that_a_server_lacks_vanish_without_a_word() -> None:
    taint = {"key": "a", "effect": "NoSchedule"}
    with ResourceApi(NODE, lacks={"DRAConsumableCapacity", "DRADeviceTaints"}) as old:
        made = old.create("resourceslices", slice_of(card("one", taints=[taint])))
        claim = {"metadata": {"name": "one"}, "spec": {"devices": {"requests": [wants_part("5Gi")]}}}
        asked = old.create("resourceclaims", claim, "default")
    assert made["spec"]["devices"] == [{"name": "one", "capacity": {"memory": {"value": "8Gi"}}}]
    assert asked["spec"]["devices"]["requests"][0]["exactly"] == {"deviceClassName": "acme"}


@pytest.mark.parametrize(("refused", "words"), REFUSED, ids=[words for _, words in REFUSED])
def test_a_slice_is_refused_as_a_server_refuses_it(run: Run, refused: Any, words: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        run(lambda client: client.create(SLICES, refused))
    assert words in str(caught.value)


@pytest.mark.parametrize("change", [{"driver": "b.example.com"}, {"pool": {"name": "other"}}, {"nodeName": "node-2"}])
def test_driver_pool_and_node_of_a_slice_never_change(api: ResourceApi, run: Run, change: Any) -> None:
    api.create("resourceslices", slice_of(card("one")))
    with pytest.raises(InvalidRequest, match="immutable"):
        run(lambda client: client.patch(SLICES, "acme-0", {"spec": change}))


def test_a_default_above_the_value_is_taken(api: ResourceApi) -> None:
    device = card("one")
    device["capacity"]["memory"]["requestPolicy"]["default"] = "9Gi"
    assert api.create("resourceslices", slice_of(device))


def test_a_delete_of_another_object_of_the_name_is_a_conflict(api: ResourceApi, run: Run) -> None:
    api.create("resourceslices", slice_of(card("one")))
    with pytest.raises(Conflict):
        run(lambda client: client.delete(SLICES, "acme-0", uid="another"))


def test_a_claim_that_is_gone_is_not_found(run: Run) -> None:
    with pytest.raises(NotFound):
        run(lambda client: client.get(CLAIMS, "gone", "default"))


def test_a_server_that_is_away_is_unreachable_and_comes_back(api: ResourceApi, run: Run) -> None:
    with api.failing("away"), pytest.raises(Unreachable):
        run(lambda client: client.list(SLICES))
    assert list(run(lambda client: client.list(SLICES))) == []


def test_a_conflict_is_acted_out_for_chosen_requests(api: ResourceApi, run: Run) -> None:
    made = api.create("resourceslices", slice_of(card("one")))
    with api.failing("conflict", lambda method, _: method == "PUT"), pytest.raises(Conflict):
        run(lambda client: client.replace(SLICES, made))


def test_a_slow_server_answers_at_last(api: ResourceApi, run: Run) -> None:
    api.delay = 0.1
    with api.failing("slow"):
        assert list(run(lambda client: client.list(SLICES))) == []


def test_an_answer_that_is_lost_on_its_way_was_done(api: ResourceApi, run: Run) -> None:
    with api.failing("lost answer"), pytest.raises(PluginError):
        run(lambda client: client.create(SLICES, slice_of(card("one"))))
    assert len(api.slices()) == 1
