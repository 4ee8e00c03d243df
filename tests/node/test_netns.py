import ctypes
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodeplug import InvalidNetns, Netns, bind, unmount
from nodeplug.testing.sandbox import Sandbox
from nodeplug.testing.scratch_cni import new_netns, run_in

CLONE_NEWNET = 0x40000000


@pytest.fixture
def other() -> Iterator[Netns]:
    """A fresh namespace that lives as long as its descriptor."""
    made: list[Netns] = []

    def unshare() -> None:
        assert ctypes.CDLL(None).unshare(CLONE_NEWNET) == 0
        made.append(Netns.current())

    thread = threading.Thread(target=unshare)
    thread.start()
    thread.join()
    yield made[0]
    made[0].close()


@pytest.fixture
def third() -> Iterator[Netns]:
    made = new_netns()
    yield made
    made.close()


def here() -> tuple[int, int]:
    current = Netns.current()
    try:
        return current.identity
    finally:
        current.close()


def links() -> list[str]:
    return [line.split(":")[0].strip() for line in Path("/proc/thread-self/net/dev").read_text().splitlines()[2:]]


def test_entering_moves_the_thread_and_back(other: Netns) -> None:
    home = Netns.current()
    with other.entered():
        inside = Netns.current()
        assert inside.identity == other.identity
        assert links() == ["lo"]
    after = Netns.current()
    assert after.identity == home.identity
    for namespace in (home, inside, after):
        namespace.close()


def test_an_error_inside_still_leads_back(other: Netns) -> None:
    home = Netns.current()
    with pytest.raises(KeyError), other.entered():
        raise KeyError
    after = Netns.current()
    assert after.identity == home.identity
    home.close()
    after.close()


def test_entering_within_another_leads_back_one_by_one(other: Netns, third: Netns) -> None:
    def places() -> list[tuple[int, int]]:
        other.enter()
        found = []
        with third.entered():
            with other.entered():
                found.append(here())
            found.append(here())
        return [*found, here()]

    assert run_in(None, places) == [other.identity, third.identity, other.identity]


def test_entering_one_after_another_leads_back_home_each_time(other: Netns, third: Netns) -> None:
    def places() -> list[tuple[int, int]]:
        found = [here()]
        for one in (other, third):
            with one.entered():
                pass
            found.append(here())
        return found

    home, *later = run_in(None, places)
    assert later == [home, home]


def test_a_thread_finds_back_where_the_namespace_that_it_is_in_was_closed(other: Netns, third: Netns) -> None:
    def place() -> tuple[int, int]:
        copy = Netns(os.dup(other.fd), "copy")
        copy.enter()
        copy.close()
        in_its_place = Netns(os.dup(third.fd), "another one with its number")
        with third.entered():
            pass
        in_its_place.close()
        return here()

    assert run_in(None, place) == other.identity


def test_a_sibling_thread_stays_where_it_was(other: Netns) -> None:
    home = Netns.current()
    seen: list[tuple[int, int]] = []
    with other.entered():
        pass
    entered, leave = threading.Event(), threading.Event()

    def inside() -> None:
        with other.entered():
            entered.set()
            leave.wait(10)

    thread = threading.Thread(target=inside)
    thread.start()
    entered.wait(10)
    here = Netns.current()
    seen.append(here.identity)
    leave.set()
    thread.join()
    assert seen == [home.identity]
    home.close()
    here.close()


@pytest.mark.own_descriptors(closes_all=True)
@pytest.mark.parametrize("path", ["/dev/null", "/proc/self/ns/mnt", "/", "/no/such/path", "a\0b", ""])
def test_what_is_no_network_namespace_is_refused(path: str) -> None:
    with pytest.raises(InvalidNetns):
        Netns.open(path)


def test_a_bind_mounted_namespace_is_recognised(tmp_path: Path) -> None:
    with Sandbox(tmp_path / "sandbox") as sandbox:
        found = Netns.open(str(sandbox.path))
        assert found.identity == sandbox.netns.identity
        found.close()


def test_a_bind_mounted_namespace_of_another_kind_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "uts"
    path.touch()
    bind("/proc/self/ns/uts", str(path))
    try:
        with pytest.raises(InvalidNetns):
            Netns.open(str(path))
    finally:
        unmount(str(path))
