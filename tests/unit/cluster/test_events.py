"""Which failed requests become events, about whom, and how many."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from nodeplug import CniAdd, Exhausted, Netns, Pod, PodReport, PodWarning
from nodeplug.cluster import events as module
from nodeplug.cluster.event_objects import Happening, Subject, event
from nodeplug.cluster.events import AGAIN, FORGOTTEN, KEPT, Events
from nodeplug.cni.service import pod_of_add
from nodeplug.contract.errors import Ending
from nodeplug.hosting.call import Call
from nodeplug.volumes.callers import pod_of

POD = Pod("web", "default", "u-1")


def happenings(events: Events) -> list[tuple[str, str, str, int]]:
    return [
        (one.what.subject.kind, one.what.subject.name, one.what.reason, one.count) for one in events._series.values()
    ]


@pytest.mark.parametrize(
    ("verb", "pod", "told"),
    [
        ("ADD", POD, [("Pod", "web", "NetworkNotAdded", 1)]),
        ("mount", POD, [("Pod", "web", "VolumeNotMounted", 1)]),
        ("NodePublishVolume", POD, [("Pod", "web", "VolumeNotMounted", 1)]),
        ("Allocate", None, [("Node", "here", "DevicesNotAllocated", 1)]),
        ("ADD", None, []),
        ("DEL", POD, []),
        ("metrics", None, []),
    ],
)
def test_what_fails_for_a_pod_is_told_about_it(
    verb: str, pod: Pod | None, told: list[tuple[str, str, str, int]]
) -> None:
    events = Events("here")
    events.finished(Call(verb, "x:y", pod=pod), Exhausted("no room"))
    assert happenings(events) == told


def test_a_success_and_the_end_of_the_daemon_are_no_events() -> None:
    events = Events("here")
    events.finished(Call("ADD", "cni:x", pod=POD), None)
    events.finished(Call("ADD", "cni:x", pod=POD), Ending("the daemon stops"))
    assert happenings(events) == []


def test_the_same_again_is_counted_though_its_numbers_differ() -> None:
    events = Events("here")
    for left in (10, 7, 3):
        events.finished(Call("mount", "volume:a/b", pod=POD), Exhausted(f"{left} bytes are left"))
    assert happenings(events) == [("Pod", "web", "VolumeNotMounted", 3)]


def test_a_flood_is_bounded_and_what_is_lost_is_counted() -> None:
    events = Events("here")
    for number in range(KEPT + 50):
        events.add(Happening(Subject("Pod", f"p{number}", "default", "u"), "R", "a", "x"))
    assert (len(happenings(events)), events.lost) == (KEPT, 50)


def report(*warnings: PodWarning) -> list[PodReport]:
    return [PodReport(namespace="default", name="web", uid="u-1", warnings=warnings)]


def test_a_warning_that_lasts_is_counted_once_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    events, over = Events("here"), PodWarning("GpuMemoryOverused", "it uses 5 GiB and has 4")
    moment = datetime.now(UTC)

    class Clock(datetime):
        @classmethod
        def now(cls, tz: object = None) -> datetime:  # type: ignore[override] # of the base, which compares
            del tz
            return moment

    monkeypatch.setattr(module, "datetime", Clock)
    for _ in range(10):
        events.warn(report(over))
    assert [count for *_, count in happenings(events)] == [1]
    moment += timedelta(seconds=AGAIN + 1)
    events.warn(report(over))
    assert [count for *_, count in happenings(events)] == [2]
    events.warn(report())
    moment += timedelta(seconds=FORGOTTEN + 1)
    events.warn(report(over))
    assert [count for *_, count in happenings(events)] == [1]


def test_the_pod_of_an_add_is_the_one_that_kubelets_runtime_names() -> None:
    here = Netns.current()
    given: dict[str, Any] = {
        "claim": "bridge",
        "network": "n",
        "version": "1.0.0",
        "config": {},
        "container_id": "c",
        "ifname": "eth0",
    }
    try:
        names = {"K8S_POD_NAMESPACE": "default", "K8S_POD_NAME": "web", "K8S_POD_UID": "u-1", "IgnoreUnknown": "1"}
        add = CniAdd(**given, host_netns=here, netns=here, args=names)
        assert pod_of_add(add) == POD
        assert pod_of_add(CniAdd(**given, host_netns=here, netns=here)) is None
    finally:
        here.close()


def test_a_note_ends_within_its_limit_and_within_a_character() -> None:
    written = event(Happening(Subject("Node", "n"), "R", "a", "ü" * 1000), "n", datetime.now(UTC), "0")
    assert len(written["note"].encode()) <= 1024
    assert written["metadata"]["namespace"] == "default"


def test_a_volumes_author_cannot_make_events_about_other_pods() -> None:
    folder = "/var/lib/kubelet/pods/u-1/volumes/a~b/data"
    assert pod_of(POD, folder) is POD
    assert pod_of(Pod("other", "kube-system", "u-2"), folder) is None
    assert pod_of(Pod("other", "kube-system"), folder) is None
