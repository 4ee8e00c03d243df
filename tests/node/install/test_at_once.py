"""Installations beside readers and beside each other: nobody sees half of anything."""

import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.node.install.conftest import Node

pytestmark = pytest.mark.unprivileged


@pytest.fixture
def repeating(node: "Node") -> Iterator["Node"]:
    """Install in turns with two texts, in a thread, until the test ends."""
    node.install()
    stop = threading.Event()

    def repeat() -> None:
        turn = 0
        while not stop.is_set():
            turn += 1
            node.install(text=("one", "two")[turn % 2])

    thread = threading.Thread(target=repeat)
    thread.start()
    yield node
    stop.set()
    thread.join()


def test_concurrent_reader_never_sees_a_missing_or_half_script(repeating: "Node") -> None:
    paths = [repeating.cni_bin / "nodeplug-bridge", repeating.flex / "nodeplug~loopfile/loopfile"]
    whole = {repeating.scripts("one").cni, repeating.scripts("two").cni}
    seen = [path.read_bytes() for _ in range(2000) for path in paths]
    assert set(seen) == whole


@pytest.mark.parametrize("times", [20, pytest.param(200, marks=pytest.mark.soak)])
def test_concurrent_reader_never_sees_a_driver_folder_without_its_files(node: "Node", times: int) -> None:
    partial = []
    stop = threading.Event()

    def look() -> None:
        while not stop.is_set():
            for folder in node.flex.glob("[!.]*"):
                found = node.names(folder)
                if found != ["capabilities.json", "driver"]:
                    partial.append(found)

    node.flex.mkdir(parents=True)
    thread = threading.Thread(target=look)
    thread.start()
    for number in range(times):
        node.install(cni=(), drivers=(f"vendor{number}/driver",), prune=False)
    stop.set()
    thread.join()
    assert partial == []


def test_two_installations_at_once_end_complete(node: "Node") -> None:
    errors: list[Exception] = []

    def work() -> None:
        try:
            node.install(cni=())
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert node.names(node.flex / "nodeplug~loopfile") == ["capabilities.json", "loopfile"]
