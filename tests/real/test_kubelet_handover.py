"""A daemon takes the place of another one while a real kubelet runs pods: what it may allocate never drops."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import grpc
import pytest
from tests.real.consumers import Lab

from nodeplug.pb import podresources_v1_pb2 as pb
from nodeplug.pb import podresources_v1_pb2_grpc as pb_grpc
from nodeplug.testing.waiting import until

ONE = {"example.com/widget": 1}
PUBLISHED = Path(__file__).parents[2] / "configs" / "cni" / "10-nodeplug.conflist"
Difference = Callable[[], list[str]]


@contextmanager
def watched(lab: Lab) -> Iterator[list[int]]:
    """Ask kubelet again and again how many devices it may allocate; one of before 1.21 does not say."""
    over, counts = threading.Event(), list[int]()

    def ask() -> None:
        with grpc.insecure_channel(f"unix:{lab.daemon.paths.podresources_socket}") as channel:
            kubelet = pb_grpc.PodResourcesListerStub(channel)
            while not over.is_set():
                try:
                    answer = kubelet.GetAllocatableResources(pb.AllocatableResourcesRequest())
                except grpc.RpcError as error:
                    if error.code() == grpc.StatusCode.UNIMPLEMENTED:
                        return
                    raise
                counts.append(sum(len(one.device_ids) for one in answer.devices if one.resource_name == lab.name))
                time.sleep(0.02)  # kubelet answers a hundred times a second

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        yield counts
    finally:
        over.set()
        asking.join()


@pytest.fixture(scope="module", params=["register", "watcher"])
def lab(request: pytest.FixtureRequest, make_kubelet_lab: Callable[..., AbstractContextManager[Lab]]) -> Iterator[Lab]:
    """A kubelet that is told of the devices, and one whose plugin watcher finds them."""
    with make_kubelet_lab(PUBLISHED, registration=request.param) as lab:
        yield lab


def test_kubelet_may_allocate_the_same_while_daemons_follow_each_other(lab: Lab, difference: Difference) -> None:
    lab.run("before", limits=ONE)
    container, successor = lab.kubelet.container("before"), 0
    try:
        with watched(lab) as counts:
            for _ in range(3):
                done = lab.daemon.run("replace")
                assert done.returncode == 0, done.stderr + lab.daemon.log
                successor = lab.daemon.status()["pid"]
        sys.stdout.write(f"{len(counts)} answers: {sorted(set(counts))}\n")
        assert set(counts) <= {2}
        lab.run("after", limits=ONE)
        assert not set(lab.devices_of("after")) & set(lab.devices_of("before"))
        assert lab.kubelet.container("before") == container
        assert difference() == []
    finally:
        if successor:
            os.kill(successor, signal.SIGKILL)  # it is no child of this process
            until(lambda: not Path(f"/proc/{successor}/exe").exists() and not lab.daemon.running)
            lab.until_listed(lab.daemon.start)
