"""A collection that is followed: all objects, changes, gaps."""

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from typing import Any

import pytest
from tests.unit.kubeapi.scripted import Answer, Scripted, event, listed, refuse, stream

from nodeplug.kubeapi.client import Listed
from nodeplug.kubeapi.resources import PERSISTENT_VOLUMES
from nodeplug.kubeapi.watch import Watch


def follow(count: int, *answers: Answer, look: Callable[[Watch], Any] = lambda _: None, **bounds: Any) -> Any:
    """Take so many news of a server with these answers; return them, what it was asked, and each look."""

    async def go() -> tuple[list[str], list[str], list[Any]]:
        async with Scripted(list(answers)) as server, server.client(**bounds) as client:
            watch = Watch(client, PERSISTENT_VOLUMES)
            news: list[str] = []
            looks: list[Any] = []
            async with aclosing(watch.changes()) as changes:
                async for one in changes:
                    if isinstance(one, Listed):
                        news.append("listed " + ",".join(found["metadata"]["name"] for found in one))
                    else:
                        news.append(f"{one.how} {one.object['metadata']['name']}")
                    looks.append(look(watch))
                    if len(news) == count:
                        break
            return news, [asked.line for asked in server.asked], looks

    return asyncio.run(go())


def version_in(line: str) -> str:
    return line.partition("resourceVersion=")[2].partition(" ")[0]


def test_all_objects_come_first_and_then_each_change() -> None:
    changes = event("ADDED", "b", 2), event("MODIFIED", "a", 3), event("DELETED", "b", 4)
    news, asked, _ = follow(4, listed("a", version=1), stream(*changes, end=False))
    assert news == ["listed a", "ADDED b", "MODIFIED a", "DELETED b"]
    assert "watch=1&allowWatchBookmarks=true" in asked[1]


def test_a_watch_that_ended_goes_on_where_it_was() -> None:
    answers = listed(version=1), stream(event("ADDED", "a", 5)), stream(event("ADDED", "b", 9), end=False)
    news, asked, _ = follow(3, *answers)
    assert news == ["listed ", "ADDED a", "ADDED b"]
    assert [version_in(line) for line in asked[1:]] == ["1", "5"]


def test_a_bookmark_moves_on_without_a_change() -> None:
    answers = listed(version=1), stream(event("BOOKMARK", "", 8)), stream(event("ADDED", "a", 9), end=False)
    news, asked, _ = follow(2, *answers)
    assert news == ["listed ", "ADDED a"]
    assert version_in(asked[2]) == "8"


@pytest.mark.parametrize(
    "forgotten",
    [
        refuse(410, "Expired"),
        stream({"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired"}}),
        stream(b"no json"),
        stream(["no", "change"]),
        stream({"type": "NEW", "object": {"metadata": {"resourceVersion": "3"}}}),
        stream({"type": "ADDED", "object": {"metadata": {}}}),
    ],
)
def test_what_was_missed_is_listed_again(forgotten: bytes) -> None:
    answers = listed("a", version=1), forgotten, listed("b", version=7), stream(event("ADDED", "c", 8), end=False)
    news, asked, _ = follow(3, *answers)
    assert news == ["listed a", "listed b", "ADDED c"]
    assert version_in(asked[3]) == "7"


def test_one_change_that_is_too_long_ends_in_a_list() -> None:
    long = event("ADDED", "x" * 5000, 2)
    answers = listed(version=1), stream(long, end=False), listed("x", version=3), stream(event("ADDED", "c", 8))
    assert follow(3, *answers, line=4096)[0] == ["listed ", "listed x", "ADDED c"]


def test_a_connection_that_breaks_loses_no_change() -> None:
    async def break_off(writer: asyncio.StreamWriter) -> None:
        writer.write(stream(event("ADDED", "a", 5), end=False) + b"400\r\n{")
        await writer.drain()
        writer.close()

    answers = listed(version=1), break_off, stream(event("ADDED", "b", 6), end=False)
    news, asked, _ = follow(3, *answers)
    assert news == ["listed ", "ADDED a", "ADDED b"]
    assert version_in(asked[2]) == "5"


def test_refusals_are_told_and_outlived() -> None:
    answers = listed("a"), refuse(403, "Forbidden"), listed("a"), stream(event("ADDED", "b", 2), end=False)
    news, _, looks = follow(3, *answers, look=lambda watch: watch.trouble)
    assert news == ["listed a", "listed a", "ADDED b"]
    assert looks[0] == looks[2] == ""
    assert 'verbs: ["watch"]' in looks[1]


def pauses_of(count: int, *answers: Answer) -> tuple[list[str], list[float]]:
    """Take so many news; return them and the seconds of each pause, which is not waited for. The first are 1, 2, 4."""
    slept: list[float] = []
    real = asyncio.sleep

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        await real(0)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("nodeplug.kubeapi.watch.asyncio.sleep", sleep)
        news, _, _ = follow(count, *answers, pause=1.0, longest_pause=8.0)
    return news, slept


def test_a_server_that_ends_each_watch_at_once_is_not_asked_without_a_pause() -> None:
    news, slept = pauses_of(2, listed("a"), *[stream()] * 5, stream(event("ADDED", "b", 2), end=False))
    assert news == ["listed a", "ADDED b"]
    assert len(slept) == 5
    assert all(low / 2 <= pause <= low * 1.5 for low, pause in zip([1, 2, 4, 8, 8], slept, strict=True))


def test_pauses_begin_with_the_shortest_again_after_a_change() -> None:
    more = stream(event("ADDED", "b", 2)), stream(), stream(event("ADDED", "c", 3), end=False)
    news, slept = pauses_of(3, listed("a"), stream(), stream(), *more)
    assert news == ["listed a", "ADDED b", "ADDED c"]
    assert all(low / 2 <= pause <= low * 1.5 for low, pause in zip([1, 2, 1], slept, strict=True))


def test_a_silent_watch_ends_and_goes_on() -> None:
    async def silent(writer: asyncio.StreamWriter) -> None:
        writer.write(stream(end=False))
        await asyncio.Event().wait()

    answers = listed("a"), silent, stream(event("ADDED", "b", 2), end=False)
    assert follow(2, *answers, watch=0.01, grace=0.0)[0] == ["listed a", "ADDED b"]


def test_whoever_follows_may_take_longer_than_a_watch_lasts() -> None:
    async def go() -> list[str]:
        answers: list[Answer] = [
            listed("a"),
            stream(event("ADDED", "b", 2), event("ADDED", "c", 3)),
            stream(event("ADDED", "d", 4), end=False),
        ]
        news = []
        async with (
            Scripted(answers) as server,
            server.client(watch=0.01, grace=0.0) as client,
            aclosing(Watch(client, PERSISTENT_VOLUMES).changes()) as changes,
        ):
            async for one in changes:
                await asyncio.sleep(0.05)
                news.append("listed" if isinstance(one, Listed) else one.object["metadata"]["name"])
                if len(news) == 4:
                    return news
        return news

    assert asyncio.run(go()) == ["listed", "b", "c", "d"]


@pytest.mark.parametrize("optional", [False, True])
def test_a_kind_that_is_missing_has_no_objects_only_where_it_may_be_missing(optional: bool) -> None:
    async def go() -> tuple[list[int], list[str], list[str]]:
        missing: list[Answer] = [refuse(404, "NotFound")] * 3
        answers = [*missing, listed("a"), stream(event("ADDED", "b", 2), end=False)]
        async with Scripted(answers) as server, server.client(pause=0.01) as client:
            watch = Watch(client, PERSISTENT_VOLUMES, optional=optional)
            counts, absent, trouble = [], [], []
            async with aclosing(watch.changes()) as changes:
                async for one in changes:
                    counts.append(len(one.objects) if isinstance(one, Listed) else -1)
                    absent.append(watch.absent)
                    trouble.append(watch.trouble)
                    if counts[-1] < 0:
                        return counts, absent, trouble
        raise AssertionError("a watch does not end")

    counts, absent, trouble = asyncio.run(go())
    assert counts == ([0, 1, -1] if optional else [1, -1])
    assert "does not have the kind PersistentVolume (v1)" in absent[0] if optional else not any(absent)
    assert (absent[-1], trouble[-1]) == ("", "")
