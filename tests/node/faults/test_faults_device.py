"""What goes wrong between kubelet and a device plugin, with the whole daemon in between."""

import asyncio
import re
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from nodeplug.testing import AdmissionError, Kubelet

NAME = "example.com/board"
SUPERVISOR = (
    'listen = ""\ninstall = true\nnative_entrypoints = false\ndevice_poll = "300ms"\npodresources_poll = "300ms"'
)
Make = Callable[..., Any]


@pytest.fixture
def node(make_node: Make) -> Any:
    """A daemon with two devices that is not started yet, beside a CNI plugin."""
    return make_node(run=False, supervisor=SUPERVISOR, board={"kind": "device"}, faulty={})


def play(node: Any, story: Callable[[Kubelet], Awaitable[None]]) -> None:
    async def run() -> None:
        kubelet = Kubelet(node.scratch.root / "var/lib/kubelet")
        try:
            await story(kubelet)
        finally:
            await kubelet.stop()

    asyncio.run(run())


def resource(node: Any) -> dict[str, Any]:
    found: dict[str, Any] = node.scratch.status()["resources"][0]
    return found


def lines(node: Any) -> list[str]:
    return [line for line in node.scratch.log.splitlines() if NAME in line and re.search(" (WARNING|ERROR) ", line)]


def test_without_kubelet_the_daemon_serves_the_rest_and_registers_when_it_comes(node: Any) -> None:
    async def story(kubelet: Kubelet) -> None:
        await asyncio.to_thread(node.scratch.start)
        assert not resource(node)["registered"]
        assert node.cni().status == 0
        await kubelet.start()
        await kubelet.until_allocatable(NAME, 2)

    play(node, story)


def test_a_dead_kubelet_socket_is_told_once_and_outlived(node: Any) -> None:
    async def story(kubelet: Kubelet) -> None:
        kubelet.device_plugins.mkdir(parents=True)
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(kubelet.socket))
        await asyncio.to_thread(node.scratch.start)
        await kubelet.until(lambda: bool(lines(node)))
        await asyncio.sleep(1.5)  # several tries
        assert not resource(node)["registered"]
        assert len(lines(node)) == 1
        await kubelet.start()
        await kubelet.until_allocatable(NAME, 2)

    play(node, story)


def test_a_kubelet_that_refuses_is_told_once_with_its_words_and_asked_again(node: Any) -> None:
    async def story(kubelet: Kubelet) -> None:
        kubelet.refuse = "the endpoint is too ugly"
        await kubelet.start()
        await asyncio.to_thread(node.scratch.start)
        await kubelet.until(lambda: bool(lines(node)))
        await asyncio.sleep(1.5)  # several tries
        assert not resource(node)["registered"]
        assert [line for line in lines(node) if "too ugly" in line] == lines(node)
        assert len(lines(node)) == 1
        kubelet.refuse = ""
        await kubelet.until_allocatable(NAME, 2)

    play(node, story)


FAULTS = {
    "raise": "OSError: no such card",
    "unprintable": "Unprintable",
    "mute": "no reason was given",
    "full": "254 of 254",
    "hold": "did not end within 2 s",
}


def test_an_allocation_that_fails_is_refused_with_the_plugins_words(make_node: Make) -> None:
    boards = {fault: {"kind": "device", "allocate": fault, "deadline": {"device_allocate": "2s"}} for fault in FAULTS}
    node = make_node(run=False, supervisor=SUPERVISOR, **boards)

    async def refused(kubelet: Kubelet, fault: str) -> None:
        name = f"example.com/{fault}"
        await kubelet.until_allocatable(name, 2)
        node.mark()
        with pytest.raises(AdmissionError, match=FAULTS[fault]):
            await kubelet.admit("pod", {name: 1})
        told = [line for line in node.fresh if re.search(f"Allocate of device:{name} .*request [0-9a-f]{{8}}", line)]
        assert len(told) == 1, node.fresh
        assert kubelet.allocatable(name) == 2

    async def story(kubelet: Kubelet) -> None:
        await kubelet.start()
        await asyncio.to_thread(node.scratch.start)
        for fault in FAULTS:
            await refused(kubelet, fault)

    play(node, story)


def test_a_device_plugin_that_is_killed_and_started_keeps_its_devices(node: Any) -> None:
    async def story(kubelet: Kubelet) -> None:
        await kubelet.start()
        await asyncio.to_thread(node.scratch.start)
        await kubelet.until_allocatable(NAME, 2)
        await kubelet.admit("pod", {NAME: 1})
        node.scratch.kill()
        await kubelet.until(lambda: kubelet.streams(NAME) == 0)
        await asyncio.to_thread(node.scratch.start)
        await kubelet.until_allocatable(NAME, 2)
        await kubelet.admit("other", {NAME: 1})

    play(node, story)
