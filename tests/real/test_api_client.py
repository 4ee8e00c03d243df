"""Our client and the real API server: objects, pages, changes, rights, and a server that is killed."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.real.consumers import ControlPlane

from nodeplug import AlreadyExists, InvalidRequest, NotFound
from nodeplug.kubeapi.access import Access, Material
from nodeplug.kubeapi.client import Bounds, Client, Listed
from nodeplug.kubeapi.credentials import Credentials, find
from nodeplug.kubeapi.refusals import Conflict, Expired, Forbidden, Unauthorized
from nodeplug.kubeapi.resources import CSI_DRIVERS, PERSISTENT_VOLUMES, Object, Resource
from nodeplug.kubeapi.watch import Changed, Watch

ROLES = Resource("rbac.authorization.k8s.io", "v1", "clusterroles", "ClusterRole")
BINDINGS = Resource("rbac.authorization.k8s.io", "v1", "clusterrolebindings", "ClusterRoleBinding")
ACCOUNTS = "/api/v1/namespaces/default/serviceaccounts"
Work = Callable[[Client], Awaitable[Any]]


@pytest.fixture
def run(cluster: ControlPlane) -> Callable[..., Any]:
    """Do something with a client inside of the node; by default it is the admin."""

    def do(work: Work, access: Access | None = None, **bounds: Any) -> Any:
        async def go() -> Any:
            credentials = Credentials(access or find(cluster.folder / "kubeconfig"))
            async with Client(credentials, Bounds(**bounds)) as client:
                return await work(client)

        with cluster.node.netns.entered():
            return asyncio.run(go())

    return do


def volume(name: str, **metadata: Any) -> Object:
    spec = {
        "capacity": {"storage": "1Mi"},
        "accessModes": ["ReadWriteOnce"],
        "hostPath": {"path": "/x"},
        "persistentVolumeReclaimPolicy": "Retain",
    }
    return {"metadata": {"name": name, **metadata}, "spec": spec}


async def take(changes: AsyncIterator[Listed | Changed], name: str) -> Changed:
    """Return the next change of an object."""
    async for one in changes:
        if isinstance(one, Changed) and one.object["metadata"]["name"] == name:
            return one
    raise AssertionError("a watch never ends")


def test_an_object_is_created_read_changed_and_deleted(run: Callable[..., Any]) -> None:
    async def work(client: Client) -> None:
        made = await client.create(PERSISTENT_VOLUMES, volume("life"))
        assert made["metadata"]["uid"]
        with pytest.raises(AlreadyExists, match="life"):
            await client.create(PERSISTENT_VOLUMES, volume("life"))
        found = await client.get(PERSISTENT_VOLUMES, "life")
        found["metadata"]["labels"] = {"a": "b"}
        replaced = await client.replace(PERSISTENT_VOLUMES, found)
        with pytest.raises(Conflict, match="modified"):
            await client.replace(
                PERSISTENT_VOLUMES, {**found, "metadata": {**found["metadata"], "resourceVersion": "1"}}
            )
        merged = await client.patch(PERSISTENT_VOLUMES, "life", {"metadata": {"labels": {"a": None, "c": "d"}}})
        assert merged["metadata"]["labels"] == {"c": "d"}
        stale = {"resourceVersion": replaced["metadata"]["resourceVersion"], "labels": {"e": "f"}}
        with pytest.raises(Conflict):
            await client.patch(PERSISTENT_VOLUMES, "life", {"metadata": stale})
        with pytest.raises(InvalidRequest):
            await client.patch(PERSISTENT_VOLUMES, "life", [{"op": "test", "path": "/metadata/labels/c", "value": "x"}])
        with pytest.raises(Conflict):
            await client.delete(PERSISTENT_VOLUMES, "life", uid="11111111-2222-3333-4444-555555555555")
        await client.delete(PERSISTENT_VOLUMES, "life", uid=made["metadata"]["uid"])
        await client.patch(PERSISTENT_VOLUMES, "life", {"metadata": {"finalizers": None}})
        with pytest.raises(NotFound, match="life"):
            await client.get(PERSISTENT_VOLUMES, "life")

    run(work)


def test_what_the_server_finds_wrong_is_told_in_its_words(run: Callable[..., Any]) -> None:
    async def work(client: Client) -> None:
        with pytest.raises(InvalidRequest, match=r"metadata\.name"):
            await client.create(CSI_DRIVERS, {"metadata": {"name": "UPPER"}, "spec": {}})

    run(work)


def test_a_list_in_pages_is_the_whole_list(run: Callable[..., Any]) -> None:
    names = [f"page-{number}" for number in range(7)]

    async def work(client: Client) -> None:
        for name in names:
            await client.create(PERSISTENT_VOLUMES, volume(name, labels={"of": "pages"}))
        found = await client.list(PERSISTENT_VOLUMES, labels="of=pages")
        assert [one["metadata"]["name"] for one in found] == names
        assert {one["kind"] for one in found} == {"PersistentVolume"}

    run(work, page=3)


def test_a_watch_goes_on_when_the_server_was_killed(run: Callable[..., Any], cluster: ControlPlane) -> None:
    async def work(client: Client) -> None:
        loop = asyncio.get_running_loop()
        watch = Watch(client, PERSISTENT_VOLUMES)
        async with aclosing(watch.changes()) as changes:
            assert isinstance(await anext(changes), Listed)
            await client.create(PERSISTENT_VOLUMES, volume("before"))
            assert (await take(changes, "before")).how == "ADDED"
            await loop.run_in_executor(None, cluster.kill_api)
            waiting = loop.create_task(take(changes, "after"))
            while not watch.trouble:
                await asyncio.sleep(0.05)
            assert "cannot reach the API server" in watch.trouble or "broke" in watch.trouble
            await loop.run_in_executor(None, cluster.start_api)
            await client.create(PERSISTENT_VOLUMES, volume("after"))
            assert (await waiting).how in {"ADDED", "MODIFIED"}
            assert watch.trouble == ""

    run(work, pause=0.1)


def test_changes_since_a_version_that_is_forgotten_are_not_to_be_had(run: Callable[..., Any]) -> None:
    async def work(client: Client) -> None:
        with pytest.raises(Expired):
            async with aclosing(Watch(client, PERSISTENT_VOLUMES)._follow("1")) as changes:
                await anext(changes)

    run(work)


def test_a_right_that_is_missing_is_told_so_that_it_can_be_given(
    run: Callable[..., Any], cluster: ControlPlane, tmp_path: Path
) -> None:
    cluster.call("POST", ACCOUNTS, {"metadata": {"name": "storage"}})
    asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}}
    answer = cluster.call("POST", f"{ACCOUNTS}/storage/token", asked)
    (tmp_path / "token").write_text(answer["status"]["token"])
    # Its certificate is its own authority, so it is checked here.
    account = Access(
        cluster.server, authority=Material(file=cluster.authority), token_file=tmp_path / "token", source="a pod"
    )

    async def refused(client: Client) -> str:
        with pytest.raises(Forbidden) as caught:
            await client.list(PERSISTENT_VOLUMES)
        return str(caught.value)

    said = run(refused, account)
    assert "system:serviceaccount:default:storage" in said
    found = re.search(r"\{apiGroups.*\}", said)
    assert found is not None
    rule = yaml.safe_load(found[0])

    async def allow(client: Client) -> None:
        await client.create(ROLES, {"metadata": {"name": "storage"}, "rules": [rule]})
        role = {"apiGroup": ROLES.group, "kind": "ClusterRole", "name": "storage"}
        whom = [{"kind": "ServiceAccount", "name": "storage", "namespace": "default"}]
        await client.create(BINDINGS, {"metadata": {"name": "storage"}, "roleRef": role, "subjects": whom})

    run(allow)

    async def listed(client: Client) -> Listed:
        async with asyncio.timeout(20):
            while True:  # the server learns of roles by a watch of its own
                try:
                    return await client.list(PERSISTENT_VOLUMES)
                except Forbidden:
                    await asyncio.sleep(0.05)

    assert isinstance(run(listed, account), Listed)


def test_a_token_of_nobody_is_refused(run: Callable[..., Any], cluster: ControlPlane, tmp_path: Path) -> None:
    document = json.loads(cluster.kubeconfig)
    document["users"][0]["user"]["token"] = "geheim"
    (tmp_path / "config").write_text(json.dumps(document))

    async def work(client: Client) -> None:
        with pytest.raises(Unauthorized) as caught:
            await client.list(PERSISTENT_VOLUMES)
        assert "geheim" not in str(caught.value)

    run(work, find(tmp_path / "config"))


def test_a_token_that_ends_is_read_anew_and_nobody_notices(
    run: Callable[..., Any], cluster: ControlPlane, tmp_path: Path
) -> None:
    """Of another secret, so that the server ends it: the shortest token lives for ten minutes."""
    secrets, file, old = "/api/v1/namespaces/default/secrets", tmp_path / "token", tmp_path / "old"

    def token(secret: str) -> str:
        bound = cluster.call("POST", secrets, {"metadata": {"name": secret}})["metadata"]
        reference = {"apiVersion": "v1", "kind": "Secret", "name": secret, "uid": bound["uid"]}
        spec = {"expirationSeconds": 3600, "boundObjectRef": reference}
        asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        return str(cluster.call("POST", f"{ACCOUNTS}/renewed/token", asked)["status"]["token"])

    cluster.call("POST", ACCOUNTS, {"metadata": {"name": "renewed"}})
    old.write_text(token("first"))
    file.write_text(old.read_text())
    account = Access(cluster.server, authority=Material(file=cluster.authority), token_file=file, source="a pod")

    async def known(client: Client) -> bool:
        """Whether the server knows who asks, whatever it lets him do."""
        try:
            await client.list(PERSISTENT_VOLUMES)
        except Forbidden:
            return True
        except Unauthorized:
            return False
        raise AssertionError("nobody has given it a right")

    async def work(client: Client) -> None:
        assert await known(client)
        file.write_text(token("second"))
        cluster.call("DELETE", f"{secrets}/first")
        async with Client(Credentials(replace(account, token_file=old)), Bounds()) as stale, asyncio.timeout(60):
            while await known(stale):  # the server remembers whom it has known for some seconds
                assert await known(client)
                await asyncio.sleep(0.1)
        for _ in range(20):
            assert await known(client)

    run(work, account)


def test_a_kind_that_comes_later_is_noticed_and_is_no_trouble_before(run: Callable[..., Any]) -> None:
    definitions = Resource("apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition")
    late = Resource("tests.nodeplug.io", "v1", "latecomers", "Latecomer")
    schema = {"openAPIV3Schema": {"type": "object"}}
    version = {"name": late.version, "served": True, "storage": True, "schema": schema}
    names = {"plural": late.plural, "singular": "latecomer", "kind": late.kind}
    spec = {"group": late.group, "scope": "Cluster", "names": names, "versions": [version]}

    async def work(client: Client) -> None:
        watch = Watch(client, late, optional=True)
        async with aclosing(watch.changes()) as changes:
            assert await anext(changes) == Listed((), "")
            assert (watch.trouble, "does not have the kind Latecomer" in watch.absent) == ("", True)
            made = {"metadata": {"name": f"{late.plural}.{late.group}"}, "spec": spec}
            await client.create(definitions, made)
            listed = await anext(changes)
            assert isinstance(listed, Listed)
            assert (listed.objects, watch.absent) == ((), "")
            # A moment after a kind has come, the server may refuse to create one.
            while True:
                with suppress(NotFound):
                    await client.create(late, {"metadata": {"name": "first"}})
                    break
            assert (await take(changes, "first")).how == "ADDED"

    run(work, pause=0.1)
