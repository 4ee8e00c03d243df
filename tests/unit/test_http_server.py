"""The room for HTTP, where it serves larger bodies than those of probes."""

import asyncio
from collections.abc import Awaitable, Callable
from http import HTTPStatus

from nodeplug.http.server import Bounds, HttpServer, Request, Response, listen


def serving(bounds: Bounds, story: Callable[[int, asyncio.Event], Awaitable[None]]) -> None:
    """Serve an application that answers with the body, once an event is set."""

    async def whole() -> None:
        listener, go = listen("127.0.0.1", 0), asyncio.Event()

        async def application(request: Request) -> Response:
            await go.wait()
            return Response(HTTPStatus.OK, request.body)

        server = HttpServer(listener, application, bounds)
        port = listener.getsockname()[1]
        await server.start()
        try:
            await story(port, go)
        finally:
            await server.stop()

    asyncio.run(whole())


async def post(port: int, body: bytes) -> tuple[int, bytes]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST / HTTP/1.1\r\nHost: here\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    answer = await reader.read()
    writer.close()
    return int(answer.split()[1]), answer.partition(b"\r\n\r\n")[2]


def test_bodies_of_all_connections_together_are_limited_until_they_are_answered() -> None:
    async def story(port: int, go: asyncio.Event) -> None:
        asked = [asyncio.create_task(post(port, letter * 60)) for letter in (b"x", b"y")]
        done, held = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
        assert [one.result() for one in done] == [(503, b"Service Unavailable: too many bodies at once; ask again\n")]
        go.set()
        assert [(await one)[0] for one in held] == [200]
        assert await post(port, b"z" * 60) == (200, b"z" * 60)

    serving(Bounds(body=100, bodies=100), story)


def test_a_body_that_was_not_sent_whole_is_held_no_longer_than_its_connection() -> None:
    async def story(port: int, go: asyncio.Event) -> None:
        go.set()
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST / HTTP/1.1\r\nHost: here\r\nContent-Length: 90\r\n\r\n" + b"x" * 80)
        await writer.drain()
        writer.transport.abort()
        while (await post(port, b"z" * 60))[0] == 503:
            await asyncio.sleep(0)
        assert await post(port, b"z" * 60) == (200, b"z" * 60)

    serving(Bounds(body=100, bodies=100), story)


def test_whoever_sends_bodies_slowly_keeps_nobody_out() -> None:
    async def story(port: int, go: asyncio.Event) -> None:
        go.set()
        slow = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        for _, writer in slow:
            writer.write(b"POST / HTTP/1.1\r\nHost: here\r\nContent-Length: 60\r\n\r\n" + b"x" * 50)
            await writer.drain()
        assert await post(port, b"z" * 60) == (200, b"z" * 60)
        slow[1][1].write(b"x" * 10)
        assert b"200" in await slow[1][0].readuntil(b"\r\n")  # one was enough
        for _, writer in slow:
            writer.transport.abort()

    serving(Bounds(body=100, bodies=150), story)
