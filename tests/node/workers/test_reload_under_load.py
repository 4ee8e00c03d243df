"""A plugin that is reloaded by name while it is called: no call is refused, and kubelet notices nothing."""

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path

import pytest
from tests.node.workers.test_absence import watch
from tests.node.workers.test_on_a_node import RESOURCE, pid

from nodeplug import mounts, unmount
from nodeplug.exec.frame import Frame, Reply
from nodeplug.testing import BlockingKubelet, ScratchNode
from nodeplug.testing.waiting import until

RELEASES = ["ii", "iii", "iiii", "iiiii"]
"""Of other lengths: Python may take a file that was changed within a second for the same, if it is as long."""
CODE = """
import os
from pathlib import Path
from pydantic import BaseModel
from nodeplug import Device, DeviceClaim, DeviceId, Grant, VolumeClaim, hookimpl, mount

class Edited:
    class Config(BaseModel):
        pass

    def __init__(self, config, host):
        del config, host

    @hookimpl
    def claims(self):
        return [DeviceClaim("example.com/thing"), VolumeClaim("example/thing")]

    @hookimpl
    def device_list(self):
        return [Device(DeviceId("d0")), Device(DeviceId("d1"))]

    @hookimpl
    def device_allocate(self, request):
        return Grant(env={"RELEASE": "release i", "PID": str(os.getpid())})

    @hookimpl
    def volume_stage(self, request):
        mount("tmpfs", request.staging_path, "tmpfs")
        (Path(request.staging_path) / "release i").touch()
"""


@dataclass
class Callers:
    """Who calls a plugin all the time, each in a thread of its own; the first error of each ends it."""

    errors: list[str] = field(default_factory=list)
    turns: list[int] = field(default_factory=list)
    _end: threading.Event = field(default_factory=threading.Event)

    def _call(self, number: int, once: Callable[[int], str]) -> None:
        for turn in count():
            if self._end.is_set():
                return
            if error := once(turn):
                self.errors.append(error)
                return
            self.turns[number] += 1

    @contextmanager
    def running(self, *calls: Callable[[int], str]) -> Iterator[None]:
        self.turns = [0] * len(calls)
        threads = [threading.Thread(target=self._call, args=(number, once)) for number, once in enumerate(calls)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._end.set()
            for thread in threads:
                thread.join()

    def each_calls_again(self) -> None:
        """Wait until each has finished two more calls: the second began after this one was asked for."""
        before = list(self.turns)
        until(lambda: self.errors or all(now >= then + 2 for now, then in zip(self.turns, before, strict=True)))
        assert self.errors == []


@pytest.fixture
def code(tmp_path: Path) -> Path:
    file = tmp_path / "edited.py"
    file.write_text(CODE)
    return file


@pytest.fixture
def node(short_path: Path, code: Path) -> Iterator[ScratchNode]:
    section = '[plugins.guest]\nuses = "edited:Edited"\nisolation = "process"\n'
    env = {"PYTHONPATH": str(code.parent)}
    one = ScratchNode(short_path, section, supervisor='listen = ""\n', env=env, fork=True)
    try:
        yield one
    finally:
        one.kill()
        for target in reversed([one.target for one in mounts() if Path(one.target).is_relative_to(short_path)]):
            unmount(target, lazy=True)


def flex(node: ScratchNode, verb: str, target: Path, *more: str) -> dict[str, str]:
    with socket.socket(socket.AF_UNIX) as peer:
        peer.connect(str(node.paths.exec_socket))
        peer.sendall(Frame("flex", "/x/example~thing/thing", (verb, str(target), *more)).encode())
        reply = Reply.decode(b"".join(iter(partial(peer.recv, 1 << 16), b"")))
    answer: dict[str, str] = json.loads(reply.stdout)
    return answer


def mounts_and_unmounts(node: ScratchNode, who: str, turn: int) -> str:
    name = f"{who}-{turn}"
    target = node.root / name
    target.mkdir()
    for verb, more in (("mount", (json.dumps({"name": name}),)), ("unmount", ())):
        answer = flex(node, verb, target, *more)
        if answer != {"status": "Success"}:
            return f"{verb} of {name}: {answer}"
    return ""


def allocates(kubelet: BlockingKubelet, turn: int) -> str:
    pod = f"pod-{turn}"
    try:
        kubelet.admit(pod, {RESOURCE: 1})
    except Exception as error:
        return f"{pod}: {error!r}"
    kubelet.remove_pod(pod)
    return ""


def release(kubelet: BlockingKubelet, pod: str) -> tuple[str, int]:
    envs = kubelet.admit(pod, {RESOURCE: 1})[RESOURCE].envs
    kubelet.remove_pod(pod)
    return envs["RELEASE"], int(envs["PID"])


@pytest.mark.whole
@pytest.mark.parametrize("reloads", [2, len(RELEASES)])
def test_reloads_by_name_refuse_no_call_and_bring_the_edited_code(reloads: int, node: ScratchNode, code: Path) -> None:
    with BlockingKubelet(node.root / "var" / "lib" / "kubelet") as kubelet:
        node.start()
        kubelet.until_allocatable(RESOURCE, 2)
        endpoint, seen, callers = kubelet.stand_in.resources[RESOURCE].endpoint, watch(kubelet), Callers()
        flows = [partial(mounts_and_unmounts, node, who) for who in ("a", "b")]
        with callers.running(partial(allocates, kubelet), *flows):
            callers.each_calls_again()
            for number in RELEASES[:reloads]:
                first = pid(node)
                code.write_text(CODE.replace("release i", f"release {number}"))
                done = node.run("reload", "guest")
                assert done.returncode == 0, done.stderr
                callers.each_calls_again()
                assert pid(node) != first
                assert release(kubelet, f"asks-{number}") == (f"release {number}", pid(node))
        assert callers.errors == []
        assert len(kubelet.registrations) == 1
        assert kubelet.stand_in.resources[RESOURCE].endpoint is endpoint
        assert set(seen) <= {2}
        target = node.root / "last"
        target.mkdir()
        assert flex(node, "mount", target, json.dumps({"name": "last"})) == {"status": "Success"}
        assert (target / f"release {RELEASES[reloads - 1]}").exists()
        assert flex(node, "unmount", target) == {"status": "Success"}
