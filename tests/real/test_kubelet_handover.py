"""A daemon takes the place of another one while a real kubelet runs pods: what it may allocate never drops."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import pytest
from tests.real.consumers import Lab

from nodeplug.pb import podresources_v1_pb2 as pb
from nodeplug.pb import podresources_v1_pb2_grpc as pb_grpc

ONE = {"example.com/widget": 1}
PUBLISHED = Path(__file__).parents[2] / "configs" / "cni" / "10-nodeplug.conflist"
Difference = Callable[[], list[str]]


@dataclass
class Watch:
    """What kubelet said in a time.

    Attributes:
        answers: how many devices it may allocate, each time that it was asked; before 1.21 it cannot be asked.
        reports: the same, in what it reports of its node.
        losses: how often it took all devices for unhealthy, by its log, which misses none.
    """

    answers: set[int] = field(default_factory=set)
    reports: set[int] = field(default_factory=set)
    losses: int = 0


@contextmanager
def watched(lab: Lab) -> Iterator[Watch]:
    """Collect what kubelet says until the end of the block."""
    watch, over = Watch(), threading.Event()
    earlier, lost = len(reported(lab)), losses(lab)

    def ask() -> None:
        with grpc.insecure_channel(f"unix:{lab.daemon.paths.podresources_socket}") as channel:
            kubelet = pb_grpc.PodResourcesListerStub(channel)
            while not over.is_set():
                answer = kubelet.GetAllocatableResources(pb.AllocatableResourcesRequest())
                watch.answers.add(sum(len(one.device_ids) for one in answer.devices if one.resource_name == lab.name))
                time.sleep(0.02)  # kubelet answers a hundred times a second

    with ThreadPoolExecutor(1) as asking:
        asked = None if lab.kubelet.old else asking.submit(ask)
        try:
            yield watch
            seen = len(reported(lab))
            lab.kubelet.wait_for("a report that began after the block", lambda: len(reported(lab)) > seen + 1)
        finally:
            over.set()
        if asked is not None:
            asked.result()
    watch.reports, watch.losses = set(reported(lab)[earlier:]), losses(lab) - lost


def reported(lab: Lab) -> list[int]:
    """Return how many devices each report of kubelet's on its node says that it may allocate; it sends one a second."""
    assert lab.api is not None
    nodes = [node for _, (kind, *_), node in list(lab.api.store.changes) if kind == "nodes"]
    return [int(node["status"]["allocatable"][lab.name]) for node in nodes if lab.name in node["status"]["allocatable"]]


def losses(lab: Lab) -> int:
    return lab.kubelet.log.count("Mark all resources Unhealthy for resource")


@pytest.fixture(scope="module", params=["register", pytest.param("watcher", marks=pytest.mark.soak)])
def lab(request: pytest.FixtureRequest, make_kubelet_lab: Callable[..., AbstractContextManager[Lab]]) -> Iterator[Lab]:
    """A kubelet that is told of the devices, and one whose plugin watcher finds them."""
    with make_kubelet_lab(PUBLISHED, registration=request.param, with_api=True) as lab:
        yield lab


def test_kubelet_may_allocate_the_same_while_daemons_follow_each_other(lab: Lab, difference: Difference) -> None:
    lab.run("before", limits=ONE)
    container, lists = lab.kubelet.container("before"), lab.lists_taken()
    with lab.successors() as replace:
        with watched(lab) as watch:
            for _ in range(3):
                replace()
        assert watch == Watch(answers=set() if lab.kubelet.old else {2}, reports={2}, losses=0)
        assert lab.lists_taken() >= lists + 3  # each successor has told it anew
        lab.run("after", limits=ONE)
        assert not set(lab.devices_of("after")) & set(lab.devices_of("before"))
        assert lab.kubelet.container("before") == container
        assert difference() == []


def test_a_daemon_that_is_killed_is_missed_by_the_same_measure(lab: Lab) -> None:
    with watched(lab) as watch:
        lab.daemon.kill()
        lab.kubelet.wait_for("nothing to allocate", lambda: reported(lab)[-1] == 0)
        lab.until_listed(lab.daemon.start)
        lab.kubelet.wait_for("all devices", lambda: reported(lab)[-1] == 2)
    assert watch == Watch(answers=set() if lab.kubelet.old else {0, 2}, reports={0, 2}, losses=1)
