"""The threads at the exec socket: whose each call is, and what happens without one."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from nodeplug import CniAdd, CniClaim, CniDel, CniResult, hookimpl
from nodeplug.exec.doorway import SPARE
from nodeplug.testing import ExecRoad
from nodeplug.testing.waiting import until

Env = Callable[..., dict[str, str]]
CONFIG = {"cniVersion": "1.0.0", "name": "net", "type": "test"}


class Plugin:
    """Remembers the thread of each ADD, and lets it wait."""

    def __init__(self, wait: Callable[[], object] = lambda: None) -> None:
        self.threads: list[threading.Thread] = []
        self.wait = wait

    @hookimpl
    def claims(self) -> list[CniClaim]:
        return [CniClaim("test")]

    @hookimpl
    def cni_add(self, request: CniAdd) -> CniResult:
        self.threads.append(threading.current_thread())
        self.wait()
        return CniResult()

    @hookimpl
    def cni_del(self, request: CniDel) -> None:
        """Nothing was made."""


def serve(road: ExecRoad, plugin: Plugin) -> Plugin:
    road.load("tested", plugin)
    road.start()
    return plugin


def add(road: ExecRoad, env: Env, number: int) -> int:
    return road.call("test", env("ADD", CNI_CONTAINERID=f"c{number}"), CONFIG).status


def test_no_thread_calls_a_plugin_twice(road: ExecRoad, env: Env) -> None:
    plugin = serve(road, Plugin())
    assert [add(road, env, number) for number in range(8)] == [0] * 8
    assert len({id(one) for one in plugin.threads}) == 8  # they are kept, so no id comes back


def test_more_callers_than_threads_in_the_line_are_served_beside_each_other(road: ExecRoad, env: Env) -> None:
    together = threading.Barrier(8)
    serve(road, Plugin(lambda: together.wait(30)))
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda number: add(road, env, number), range(8))) == [0] * 8


def test_a_call_without_a_hook_leaves_its_thread_in_the_line(road: ExecRoad, env: Env) -> None:
    serve(road, Plugin())
    until(lambda: len(standing()) == SPARE)
    before = standing()
    for _ in range(5):
        assert road.call("test", env("STATUS"), CONFIG | {"cniVersion": "1.1.0"}).status == 0
    assert standing() == before


def standing() -> set[threading.Thread]:
    return {one for one in threading.enumerate() if one.name == "exec:door"}


def test_without_threads_a_caller_is_told_so_and_is_served_when_there_are_some(
    road: ExecRoad, env: Env, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin, start, refused = Plugin(), threading.Thread.start, threading.Event()

    def cannot(thread: threading.Thread) -> None:
        if not refused.is_set() or not thread.name.startswith(("exec:door", "tested:")):
            start(thread)
            return
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", cannot)
    road.load("tested", plugin)
    refused.set()
    road.start()
    done = road.call("test", env("ADD"), CONFIG)
    assert done.status == 1
    assert "cannot start another thread" in done.document["msg"]
    refused.clear()
    assert add(road, env, 1) == 0


def test_a_loop_that_is_debugged_serves_calls(road: ExecRoad, env: Env) -> None:
    serve(road, Plugin())

    async def debug() -> None:
        asyncio.get_running_loop().set_debug(True)

    road.wait_for(debug())
    assert add(road, env, 1) == 0
