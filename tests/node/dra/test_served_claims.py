"""The daemon with an acted-out cluster: what one step of the torture does, alone."""

import json
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.node.dra.cards_guest import HANG, SLOW
from tests.node.dra.cluster import CARDS, DRIVER, Served
from tests.node.dra.objects import wants_part

from nodeplug.testing.waiting import until

pytestmark = pytest.mark.unprivileged


def sockets(served: Served) -> list[str]:
    return [path.name for path in served.kubelet.plugins_registry.iterdir()]


def test_a_killed_daemon_leaves_no_dead_socket_to_the_next_one_also_without_claims(served: Served) -> None:
    before = sockets(served)
    served.node.kill()
    assert sockets(served) == before
    served.node.start()
    until(lambda: len(sockets(served)) == 1 and sockets(served) != before, found=lambda: str(sockets(served)))
    served.kubelet.until_registered(DRIVER)


@pytest.mark.whole
def test_every_pod_starts_at_once_while_daemons_follow_each_other_and_kubelet_always_has_one(served: Served) -> None:
    until(lambda: bool(served.api.slices()))
    over, tries = threading.Event(), 0

    def start_pods() -> None:
        nonlocal tries
        while not over.is_set():
            tries += 1
            served.scheduler.claim(f"c-{tries}", wants_part("1Gi"), pod="one")
            served.scheduler.place("one", [f"c-{tries}"])
            served.kubelet.admit("one", [f"c-{tries}"])
            served.kubelet.end("one")
            served.scheduler.free("one")

    with ThreadPoolExecutor(1) as beside:
        starting = beside.submit(start_pods)
        try:
            for _ in range(2):
                done = served.node.run("replace")
                assert done.returncode == 0, done.stderr
            until(lambda: starting.done() or tries > 5)
        finally:
            over.set()
        starting.result()
    assert served.kubelet.events == []


@pytest.mark.whole
def test_a_claim_that_comes_before_the_first_list_of_the_next_daemon_waits_for_it(served: Served) -> None:
    """Costs 5 s."""
    served.scheduler.claim("one", wants_part("1Gi"), pod="one")
    served.scheduler.place("one", ["one"])
    (served.folder / SLOW).touch()
    with ThreadPoolExecutor(1) as beside:
        replaced = beside.submit(served.node.run, "replace")
        while not replaced.done():
            served.kubelet.admit("one", ["one"])
            served.kubelet.end("one")
    assert replaced.result().returncode == 0, replaced.result().stderr
    assert served.kubelet.events == []


@pytest.mark.whole
def test_claims_of_a_section_that_serves_otherwise_end_while_daemons_follow_each_other(served: Served) -> None:
    served.scheduler.claim("one", wants_part("1Gi"), pod="one")
    served.scheduler.place("one", ["one"])
    served.kubelet.until_admitted("one", ["one"])
    served.node.configure(served.configuration.replace('serve = "dra"', 'serve = "device-plugin"'))
    os.kill(served.node.pid, signal.SIGHUP)
    until(lambda: not served.api.slices())
    over, least = threading.Event(), []

    def watch() -> None:
        while not over.is_set():
            least.append(len(served.kubelet.instances.of(DRIVER)))

    with ThreadPoolExecutor(1) as beside:
        watching = beside.submit(watch)
        try:
            assert served.node.run("replace").returncode == 0
            until(lambda: least[-1] == 1, found=lambda: str(least[-1]))
        finally:
            over.set()
        watching.result()
    assert min(least) == 1
    served.kubelet.end("one")


@pytest.mark.whole
def test_a_request_that_hangs_keeps_no_other_one_from_the_daemon_that_goes_on(served: Served) -> None:
    for name in ("slow", "quick"):
        served.scheduler.claim(name, wants_part("1Gi"), pod=name)
        served.scheduler.place(name, [name])
    served.kubelet.until_admitted("quick", ["quick"])
    (served.folder / HANG).touch()
    with ThreadPoolExecutor(2) as beside:
        slow = beside.submit(served.kubelet.until_admitted, "slow", ["slow"])
        try:
            until((served.folder / "in-allocate").exists)
            replaced = beside.submit(served.node.run, "replace")
            until(lambda: "is started to take over" in served.node.log)
            while not replaced.done():
                served.kubelet.new_sandbox("quick")
                assert len(served.kubelet.instances.of(DRIVER)) == 1
        finally:
            (served.folder / HANG).unlink()
        done = replaced.result()
        assert (done.returncode, "requests about claims did not end" in done.stderr) == (1, True), done.stderr
        slow.result()


def test_a_section_that_goes_takes_its_slices_and_its_socket_along(served: Served) -> None:
    until(lambda: bool(served.api.slices()))
    served.node.configure("")
    os.kill(served.node.pid, signal.SIGHUP)
    until(lambda: not served.api.slices() and not sockets(served), found=lambda: str(sockets(served)))


def test_a_quiet_node_asks_for_nothing_but_its_watch(served: Served) -> None:
    def listings() -> int:
        return (served.folder / "listings").stat().st_size

    until(lambda: bool(served.api.slices()))
    first = listings()
    until(lambda: listings() > first + 5)  # what it has written has come back in the watch by then
    asked, later = list(served.api.asked), listings()
    until(lambda: listings() > later + 10)
    assert served.api.asked == asked
    assert served.api.asked.count("WATCH resourceslices /") == 1


def test_two_pods_share_a_card_and_a_third_comes_when_one_has_ended(served: Served) -> None:
    (served.folder / "cards.json").write_text(json.dumps({"c0": CARDS["c0"]}))
    until(lambda: [len(one["spec"].get("devices") or ()) for one in served.api.slices()] == [1])
    for name, size in (("one", "5Gi"), ("two", "3Gi"), ("three", "2Gi")):
        served.scheduler.claim(name, wants_part(size), pod=name)
    for name in ("one", "two"):
        served.scheduler.place(name, [name])
    got = {name: served.kubelet.until_admitted(name, [name])["main"].env["IDS_gpu"].split() for name in ("one", "two")}
    assert [len(ids) for ids in got.values()] == [5, 3]
    assert not {*got["one"]} & {*got["two"]}
    served.kubelet.until_ended("two")
    served.scheduler.free("two")
    served.scheduler.place("three", ["three"])
    third = served.kubelet.until_admitted("three", ["three"])["main"].env["IDS_gpu"].split()
    assert {*third} <= {*got["two"]}


def test_a_pod_whose_claim_was_freed_by_force_keeps_its_parts_until_it_is_unprepared(served: Served) -> None:
    (served.folder / "cards.json").write_text(json.dumps({"c0": CARDS["c0"]}))
    until(lambda: [len(one["spec"].get("devices") or ()) for one in served.api.slices()] == [1])
    for name in ("old", "new"):
        served.scheduler.claim(name, wants_part("5Gi"), pod=name)
    served.scheduler.place("old", ["old"])
    served.kubelet.until_admitted("old", ["old"])
    served.scheduler.free("old")
    served.scheduler.place("new", ["new"])  # the API server has forgotten the old one
    with pytest.raises(Exception, match="3 free of 8 parts, 5 wanted; held by claim default/old"):
        served.kubelet.admit("new", ["new"])
    served.kubelet.end("old")
    assert len(served.kubelet.until_admitted("new", ["new"])["main"].env["IDS_gpu"].split()) == 5
