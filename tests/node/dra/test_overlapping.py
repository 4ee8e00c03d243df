"""A card that is given away whole or by its instances, with an acted-out cluster: never both."""

import os
import signal

import pytest
from tests.node.dra.cluster import DRIVER, Served
from tests.node.dra.objects import NODE, wants

from nodeplug.testing.dra import Pending
from nodeplug.testing.dra.pools import seen_in
from nodeplug.testing.waiting import until

pytestmark = pytest.mark.unprivileged


@pytest.fixture
def cut(served: Served) -> Served:
    """A node with one card of seven instances."""
    served.node.configure(served.configuration.replace("cards_guest:Cards", "cards_guest:Cut"))
    os.kill(served.node.pid, signal.SIGHUP)
    until(lambda: len(seen_in(served.api.slices(), NODE).candidates) == 9)
    for kind in ("card", "mig"):
        expression = f"device.attributes['{DRIVER}'].type == '{kind}'"
        for name in ("one", "two"):
            exactly = wants(selectors=[{"cel": {"expression": expression}}])
            served.scheduler.claim(f"{kind}-{name}", exactly, pod=f"{kind}-{name}")
    return served


def place(served: Served, name: str) -> None:
    served.scheduler.place(name, [name])


def run(served: Served, name: str) -> str:
    """Run a pod that is placed, and return the device that it has."""
    return served.kubelet.until_admitted(name, [name])["main"].env["IDS_gpu"]


def end(served: Served, name: str) -> None:
    served.kubelet.until_ended(name)
    served.scheduler.free(name)


def test_a_whole_card_waits_while_instances_are_held(cut: Served) -> None:
    for name in ("mig-one", "mig-two"):
        place(cut, name)
    assert [run(cut, name) for name in ("mig-one", "mig-two")] == ["card-0", "card-1"]
    with pytest.raises(Pending, match="others have it"):
        place(cut, "card-one")
    end(cut, "mig-one")
    assert cut.scheduler.retry() == []
    end(cut, "mig-two")
    assert cut.scheduler.retry() == ["card-one"]
    assert run(cut, "card-one") == "card"


def test_instances_wait_while_the_whole_card_is_held(cut: Served) -> None:
    place(cut, "card-one")
    assert run(cut, "card-one") == "card"
    for name in ("mig-one", "mig-two"):
        with pytest.raises(Pending, match="others have it"):
            place(cut, name)
    end(cut, "card-one")
    assert cut.scheduler.retry() == ["mig-one", "mig-two"]
    assert {run(cut, name) for name in ("mig-one", "mig-two")} == {"card-0", "card-1"}


@pytest.mark.whole
def test_a_card_whose_instance_was_freed_by_force_is_given_when_the_instance_is_unprepared(cut: Served) -> None:
    place(cut, "mig-one")
    assert run(cut, "mig-one") == "card-0"
    cut.scheduler.free("mig-one")
    place(cut, "card-one")  # the API server has forgotten the instance's claim
    with pytest.raises(Exception, match=r"of 'card', \d+ wanted; held by claim default/mig-one; it is tried again"):
        cut.kubelet.admit("card-one", ["card-one"])
    cut.node.kill()
    cut.node.start()  # and the next daemon knows it, too
    cut.kubelet.until_registered(DRIVER)
    with pytest.raises(Exception, match="held by claim default/mig-one; it is tried again"):
        cut.kubelet.admit("card-one", ["card-one"])
    cut.kubelet.end("mig-one")
    assert run(cut, "card-one") == "card"
