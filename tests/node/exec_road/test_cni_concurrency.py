"""CNI calls beside each other: deadlines, callers that block or die, crowds, and who waits for whom."""

import json
import signal
import subprocess
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest

from nodeplug import CniAdd, CniClaim, CniDel, CniResult, hookimpl
from nodeplug.cni.admission import Admission
from nodeplug.testing import ExecRoad

Env = Callable[..., dict[str, str]]
CONFIG = {"cniVersion": "1.0.0", "name": "net", "type": "test"}
RESULT = CniResult()


class Plugin:
    """Remembers what it is asked, and does what the test says at ADD."""

    def __init__(self, act: Callable[[Any], Any] = lambda _: RESULT, name: str = "test") -> None:
        self.requests: list[Any] = []
        self.act = act
        self.name = name

    @hookimpl
    def claims(self) -> list[CniClaim]:
        return [CniClaim(self.name)]

    @hookimpl
    def cni_add(self, request: CniAdd) -> CniResult:
        self.requests.append(request)
        return cast("CniResult", self.act(request))

    @hookimpl
    def cni_del(self, request: CniDel) -> None:
        self.requests.append(request)


def serve(road: ExecRoad, plugin: Plugin) -> Plugin:
    road.load("tested", plugin)
    road.start()
    return plugin


def test_a_plugin_that_sleeps_past_its_deadline_is_answered_without_it(road: ExecRoad, env: Env) -> None:
    release = threading.Event()

    def sleep(_: CniAdd) -> CniResult:
        release.wait(30)
        return RESULT

    serve(road, Plugin(sleep))
    road.registry.slots["tested"].deadlines = {"cni_add": 0.2}
    done = road.call("test", env("ADD"), CONFIG)
    release.set()
    assert (done.status, done.document["code"]) == (1, 11)
    assert "did not end within 0.2 s" in done.document["msg"]


def test_a_plugin_that_blocks_does_not_block_other_containers(road: ExecRoad, env: Env) -> None:
    release = threading.Event()

    def block(request: CniAdd) -> CniResult:
        if request.container_id == "slow":
            release.wait(30)
        return RESULT

    serve(road, Plugin(block))
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(road.call, "test", env("ADD", CNI_CONTAINERID="slow"), CONFIG)
        try:
            assert road.call("test", env("ADD", CNI_CONTAINERID="quick"), CONFIG).status == 0
            assert not slow.done()
        finally:
            release.set()
        assert slow.result().status == 0


@pytest.mark.whole
@pytest.mark.parametrize("road", ["compiled", "script"], indirect=True)
@pytest.mark.usefixtures("no_leak")
def test_two_hundred_calls_at_once_are_all_answered(road: ExecRoad, env: Env, impatient: Callable[..., None]) -> None:
    if not road.native:  # so many interpreters at once keep a loaded machine busy for longer than 10 s
        impatient(patience=100)
    plugin = serve(road, Plugin())
    with ThreadPoolExecutor(200) as pool:
        ends = list(pool.map(lambda i: road.call("test", env("ADD", CNI_CONTAINERID=f"c{i}"), CONFIG), range(200)))
    assert [end.status for end in ends] == [0] * 200
    assert len({request.container_id for request in plugin.requests}) == 200


def test_one_call_at_a_time_runs_for_one_attachment(road: ExecRoad, env: Env) -> None:
    inside = 0
    most = 0

    def count(_: CniAdd) -> CniResult:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        threading.Event().wait(0.01)
        inside -= 1
        return RESULT

    serve(road, Plugin(count))
    with ThreadPoolExecutor(10) as pool:
        list(pool.map(lambda _: road.call("test", env("ADD"), CONFIG), range(10)))
    assert most == 1


def test_a_crowd_is_told_to_try_again(road: ExecRoad, env: Env) -> None:
    release = threading.Event()
    entered = threading.Event()

    def block(_: CniAdd) -> CniResult:
        entered.set()
        release.wait(30)
        return RESULT

    road.admission.concurrency = 1
    road.admission.patience = 0.2
    serve(road, Plugin(block))
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(road.call, "test", env("ADD", CNI_CONTAINERID="a"), CONFIG)
        try:
            assert entered.wait(30)
            second = road.call("test", env("ADD", CNI_CONTAINERID="b"), CONFIG)
        finally:
            release.set()
        assert first.result().status == 0
    assert (second.status, second.document["code"]) == (1, 11)


def test_a_caller_killed_in_the_middle_costs_nothing(road: ExecRoad, env: Env) -> None:
    entered, release = threading.Event(), threading.Event()

    def block(_: CniAdd) -> CniResult:
        entered.set()
        release.wait(30)
        return RESULT

    serve(road, Plugin(block))
    process = subprocess.Popen([str(road.script("test"))], stdin=subprocess.PIPE, env=env("ADD"))
    assert process.stdin is not None
    process.stdin.write(json.dumps(CONFIG).encode())
    process.stdin.close()
    assert entered.wait(30)
    process.send_signal(signal.SIGKILL)
    process.wait()
    release.set()
    assert road.call("test", env("DEL"), CONFIG).status == 0


def test_a_plugin_whose_calls_all_hang_leaves_places_for_another_and_for_its_own_dels(road: ExecRoad, env: Env) -> None:
    entered, release = threading.Semaphore(0), threading.Event()

    def hang(_: CniAdd) -> CniResult:
        entered.release()
        release.wait(30)
        return RESULT

    road.admission.concurrency = 4
    road.load("well", Plugin(name="other"))
    serve(road, Plugin(hang))
    with ThreadPoolExecutor(8) as pool:
        hung = [pool.submit(road.call, "test", env("ADD", CNI_CONTAINERID=f"c{number}"), CONFIG) for number in range(8)]
        try:
            assert all(entered.acquire(timeout=30) for _ in range(2))
            assert road.call("other", env("ADD"), {**CONFIG, "type": "other"}).status == 0
            assert road.call("test", env("DEL", CNI_CONTAINERID="gone"), CONFIG).status == 0
        finally:
            release.set()
        assert [call.result().status for call in hung] == [0] * 8


def test_an_add_whose_caller_ended_while_it_waited_for_its_turn_is_not_begun(road: ExecRoad, env: Env) -> None:
    begun, release = threading.Event(), threading.Event()

    def hold(_: CniAdd) -> CniResult:
        begun.set()
        release.wait(30)
        return RESULT

    road.service.admission = admission = Admission(concurrency=1)
    plugin = serve(road, Plugin(hold))
    with ThreadPoolExecutor() as pool:
        first = pool.submit(road.call, "test", env("ADD"), CONFIG)
        assert begun.wait(30)
        variables = env("ADD", CNI_CONTAINERID="c2")
        with subprocess.Popen([road.script("test")], stdin=subprocess.PIPE, env=variables) as second:
            assert second.stdin is not None
            second.stdin.write(json.dumps(CONFIG).encode())
            second.stdin.close()
            wait_until(lambda: len(admission._queue) == 1)
            second.kill()
        third = pool.submit(road.call, "test", env("ADD", CNI_CONTAINERID="c3"), CONFIG)
        wait_until(lambda: len(admission._queue) == 2)
        release.set()
        assert (first.result().status, third.result().status) == (0, 0)
    assert [request.container_id for request in plugin.requests] == ["c1", "c3"]


def wait_until(is_so: Callable[[], bool]) -> None:
    for _ in range(3000):
        if is_so():
            return
        threading.Event().wait(0.01)
    raise AssertionError("it did not come to that within 30 s")
