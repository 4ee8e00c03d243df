"""The verbs of the API, as bytes: what is asked, what an answer means, what is asked again and what never is."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from typing import Any

import pytest
from tests.unit.kubeapi.scripted import Answer, Scripted, listed, refuse, respond

from nodeplug import AlreadyExists, InvalidRequest, NotFound, PluginError
from nodeplug.contract.errors import DeadlineExceeded, TryAgain, Uncertain
from nodeplug.kubeapi.access import Access
from nodeplug.kubeapi.client import Client
from nodeplug.kubeapi.refusals import (
    Conflict,
    Expired,
    FieldConflict,
    Forbidden,
    TooManyRequests,
    Unauthorized,
    Unreachable,
)
from nodeplug.kubeapi.resources import (
    CSI_STORAGE_CAPACITIES,
    NODES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    PODS,
    SECRETS,
    Object,
)

Run = Callable[..., Any]


def run(work: Callable[[Client], Awaitable[Any]], *answers: Answer, **bounds: Any) -> tuple[Any, Scripted]:
    """Do something with a client of a server with these answers; an error is returned like a result."""

    async def go() -> tuple[Any, Scripted]:
        async with Scripted(list(answers)) as server, server.client(**bounds) as client:
            try:
                return await work(client), server
            except PluginError as error:
                return error, server

    return asyncio.run(go())


async def break_off(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{")
    await writer.drain()
    writer.close()


async def never(writer: asyncio.StreamWriter) -> None:
    await asyncio.Event().wait()


def lines(server: Scripted) -> list[str]:
    return [asked.line for asked in server.asked]


# --- what is asked


def test_paths_are_those_of_the_api() -> None:
    async def work(client: Client) -> None:
        await client.get(PERSISTENT_VOLUMES, "data")
        await client.get(CSI_STORAGE_CAPACITIES, "one", "storage")
        await client.patch(PERSISTENT_VOLUME_CLAIMS, "c", {"status": {}}, "default", "status")

    _, server = run(work, *[respond(200, {})] * 3)
    assert lines(server) == [
        "GET /api/v1/persistentvolumes/data HTTP/1.1",
        "GET /apis/storage.k8s.io/v1/namespaces/storage/csistoragecapacities/one HTTP/1.1",
        "PATCH /api/v1/namespaces/default/persistentvolumeclaims/c/status HTTP/1.1",
    ]


@pytest.mark.parametrize(("name", "namespace"), [("..", "default"), ("a/b", "default"), ("pod", ""), ("", "a/../b")])
def test_a_name_never_leads_elsewhere(name: str, namespace: str) -> None:
    error, server = run(lambda client: client.get(PODS, name, namespace))
    assert isinstance(error, InvalidRequest)
    assert lines(server) == []


def test_a_name_is_quoted_in_a_path() -> None:
    _, server = run(lambda client: client.get(PODS, "a?watch=1", "default"), respond(200, {}))
    assert lines(server) == ["GET /api/v1/namespaces/default/pods/a%3Fwatch%3D1 HTTP/1.1"]


def test_what_is_created_has_a_kind_and_a_version() -> None:
    _, server = run(lambda client: client.create(PERSISTENT_VOLUMES, {"metadata": {"name": "a"}}), respond(201, {}))
    assert server.asked[0].json == {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "a"}}
    assert server.asked[0].headers["content-type"] == "application/json"


@pytest.mark.parametrize(
    ("patch", "form"),
    [
        ({"metadata": {"finalizers": None}}, "application/merge-patch+json"),
        ([{"op": "remove", "path": "/metadata/finalizers"}], "application/json-patch+json"),
    ],
)
def test_a_patch_says_of_which_kind_it_is(patch: Any, form: str) -> None:
    _, server = run(lambda client: client.patch(PERSISTENT_VOLUMES, "a", patch), respond(200, {}))
    assert server.asked[0].headers["content-type"] == form
    assert server.asked[0].json == patch


def test_an_apply_says_who_applies_and_nothing_is_forced() -> None:
    _, server = run(lambda c: c.apply(NODES, {"metadata": {"name": "n"}}, "me", part="status"), respond(200, {}))
    assert lines(server) == ["PATCH /api/v1/nodes/n/status?fieldManager=me HTTP/1.1"]
    assert server.asked[0].headers["content-type"] == "application/apply-patch+yaml"
    assert server.asked[0].json == {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}}


def test_fields_of_others_are_told_by_path_and_manager() -> None:
    causes = [
        {
            "reason": "FieldManagerConflict",
            "message": 'conflict with "kubectl" using v1',
            "field": ".metadata.labels.a/b",
        },
        {"reason": "FieldManagerConflict", "message": "conflict", "field": ".spec.x"},
    ]
    body = {"kind": "Status", "reason": "Conflict", "message": "Apply failed", "details": {"causes": causes}}
    error, _ = run(lambda c: c.apply(NODES, {"metadata": {"name": "n"}}, "me"), respond(409, body))
    assert isinstance(error, FieldConflict)
    assert error.fields == {".metadata.labels.a/b": "kubectl", ".spec.x": "somebody else"}


def test_a_deletion_can_be_that_of_one_very_object() -> None:
    _, server = run(lambda client: client.delete(PERSISTENT_VOLUMES, "a", uid="u-1"), respond(200, {}))
    assert lines(server) == ["DELETE /api/v1/persistentvolumes/a HTTP/1.1"]
    assert server.asked[0].json["preconditions"] == {"uid": "u-1"}


def test_a_list_is_read_page_by_page() -> None:
    found, server = run(
        lambda client: client.list(PERSISTENT_VOLUMES, labels="a=b"),
        *(listed("one", further="t&1"), listed("two", version=7)),
        page=1,
    )
    assert [one["metadata"]["name"] for one in found] == ["one", "two"]
    assert found.version == "7"
    assert lines(server)[1] == "GET /api/v1/persistentvolumes?labelSelector=a%3Db&limit=1&continue=t%261 HTTP/1.1"


def test_objects_of_a_list_have_the_kind_that_the_server_leaves_out() -> None:
    found, _ = run(lambda client: client.list(PERSISTENT_VOLUMES), listed("one"))
    assert [(one["kind"], one["apiVersion"]) for one in found] == [("PersistentVolume", "v1")]


def test_a_list_whose_page_has_expired_is_read_again_in_one_piece() -> None:
    answers = listed("one", further="t"), refuse(410, "Expired"), listed("one", "two")
    found, server = run(lambda client: client.list(PERSISTENT_VOLUMES), *answers)
    assert len(found.objects) == 2
    assert lines(server)[2] == "GET /api/v1/persistentvolumes HTTP/1.1"


# --- what an answer means


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (refuse(404, "NotFound"), NotFound),
        (refuse(409, "AlreadyExists"), AlreadyExists),
        (refuse(409, "Conflict"), Conflict),
        (refuse(410, "Expired"), Expired),
        (refuse(422, "Invalid"), InvalidRequest),
        (refuse(400, "BadRequest"), InvalidRequest),
        (refuse(500, "InternalError"), TryAgain),
        (refuse(503, "ServiceUnavailable"), TryAgain),
        (refuse(504, "Timeout"), Uncertain),
        (refuse(599, "New"), TryAgain),
        (respond(502, b"<html>bad gateway</html>"), TryAgain),
        (respond(200, b"<html>log in</html>"), TryAgain),
        (respond(200, [1]), TryAgain),
        (b"SSH-2.0-OpenSSH\r\n\r\n", Uncertain),
    ],
)
def test_a_refusal_is_one_error_of_the_tree(answer: bytes, kind: type[PluginError]) -> None:
    error, _ = run(lambda client: client.create(PERSISTENT_VOLUMES, {"metadata": {"name": "a"}}), answer)
    assert type(error) is kind
    assert "create persistentvolumes" in str(error)


def test_what_is_forbidden_says_which_rule_is_missing() -> None:
    error, _ = run(lambda client: client.list(CSI_STORAGE_CAPACITIES, "storage"), refuse(403, "Forbidden", "may not"))
    assert type(error) is Forbidden
    rule = '{apiGroups: ["storage.k8s.io"], resources: ["csistoragecapacities"], verbs: ["list"]}'
    assert rule in str(error)
    assert "Role in namespace storage" in str(error)


def test_a_refusal_about_secrets_says_nothing_of_them() -> None:
    answer = refuse(422, "Invalid", 'Invalid value: "geheim"')
    error, _ = run(lambda client: client.create(SECRETS, {"metadata": {}}, "default"), answer)
    assert "geheim" not in str(error)
    assert "422" in str(error)


def test_a_long_refusal_is_cut() -> None:
    error, _ = run(lambda client: client.get(PODS, "a", "b"), refuse(404, "NotFound", "x" * 100_000))
    assert len(str(error)) < 2000


def test_an_answer_that_is_too_long_is_not_kept() -> None:
    error, _ = run(lambda client: client.get(PODS, "a", "b"), respond(200, {"a": "x" * 5000}), body=4096)
    assert isinstance(error, Unreachable)
    assert "more than" in str(error)


# --- connections


def test_a_connection_is_used_again() -> None:
    async def work(client: Client) -> list[Object]:
        return [await client.get(PODS, "a", "b") for _ in range(3)]

    _, server = run(work, *[respond(200, {})] * 3)
    assert server.connections == 1


def test_requests_at_once_are_few() -> None:
    async def slowly(writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.01)
        writer.write(respond(200, {}))

    async def work(client: Client) -> None:
        await asyncio.gather(*(client.get(PODS, str(number), "b") for number in range(12)))

    _, server = run(work, *[slowly] * 12, at_once=3)
    assert (server.most, len(server.asked)) == (3, 12)


def test_what_only_reads_is_asked_again_when_a_used_connection_breaks() -> None:
    async def work(client: Client) -> Object:
        await client.get(PODS, "a", "b")
        return await client.get(PODS, "a", "b")

    found, server = run(work, respond(200, {}), break_off, respond(200, {"found": 1}))
    assert found == {"found": 1}
    assert server.connections == 2


def test_a_change_is_never_sent_twice_when_its_connection_breaks() -> None:
    async def work(client: Client) -> Object:
        await client.get(PODS, "a", "b")
        return await client.create(PODS, {"metadata": {}}, "b")

    error, server = run(work, respond(200, {}), break_off, respond(201, {}))
    assert type(error) is Uncertain
    assert "may have done it: create pods b" in str(error)
    assert len(server.asked) == 2


def test_nobody_there_is_told_as_such() -> None:
    async def go() -> None:
        async with Scripted([]) as server:
            client = server.client()
        with pytest.raises(Unreachable, match=r"cannot reach the API server 127\.0\.0\.1:\d+: .*[Cc]onnect"):
            await client.create(PODS, {"metadata": {}}, "b")

    asyncio.run(go())


def test_a_server_that_does_not_answer_is_left_in_time() -> None:
    error, _ = run(lambda client: client.get(PODS, "a", "b"), never, request=0.05)
    assert type(error) is DeadlineExceeded
    error, _ = run(lambda client: client.delete(PODS, "a", "b"), never, request=0.05)
    assert type(error) is Uncertain


# --- a server that is busy


@pytest.mark.parametrize("code", [429, 503])
def test_a_busy_server_is_asked_again_when_it_wants_to_be(code: int) -> None:
    answers = refuse(code, "TooManyRequests", Retry_After="0"), respond(201, {"made": 1})
    found, server = run(lambda client: client.create(PODS, {"metadata": {}}, "b"), *answers)
    assert found == {"made": 1}
    assert len(server.asked) == 2


def test_a_server_that_is_busy_for_longer_than_anybody_waits_says_so() -> None:
    answer = refuse(429, "TooManyRequests", "busy", Retry_After="3600")
    error, server = run(lambda client: client.get(PODS, "a", "b"), answer)
    assert isinstance(error, TooManyRequests)
    assert error.retry_after == 3600
    assert len(server.asked) == 1


def test_a_server_that_failed_without_asking_for_more_is_not_asked_again() -> None:
    error, server = run(lambda client: client.get(PODS, "a", "b"), refuse(503, "ServiceUnavailable"))
    assert isinstance(error, TryAgain)
    assert len(server.asked) == 1


def test_who_is_not_known_twice_is_refused() -> None:
    error, server = run(lambda client: client.get(PODS, "a", "b"), *[refuse(401, "Unauthorized")] * 2)
    assert type(error) is Unauthorized
    assert len(server.asked) == 2


def test_an_address_that_drops_packets_leaves_time_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    silent, good = "127.0.0.2", "127.0.0.1"

    async def go() -> Object:
        async with Scripted([respond(200, {"kind": "Pod"})]) as server:
            with socket.create_server((silent, server.port), backlog=0) as full, ExitStack() as waiting:
                for _ in range(2):  # more than it queues: the kernel drops every other SYN
                    one = waiting.enter_context(socket.socket())
                    one.setblocking(False)
                    one.connect_ex(full.getsockname())
                found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (one, server.port)) for one in (silent, good)]
                monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
                access = Access(f"http://both.invalid:{server.port}", source="a test")
                async with server.client_of(access, connect=2.0) as client:
                    return await client.get(PODS, "a", "default")

    assert asyncio.run(go())["kind"] == "Pod"
