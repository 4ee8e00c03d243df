"""vrf that is killed before any step of an ADD or DEL: another call ends it, and the interface loses nothing."""

from typing import Any

from tests.node import killed
from tests.node.vrf.lab import ADDRESSES, Pod, conf, result
from tests.node.vrf.test_verbs import ROUTES

from nodeplug.cni import results


def every_step(pod: Pod, verb: str, least: int, **more: Any) -> Any:
    previous = results.encode(result("net1"), killed.VERSION)
    call = {"config": conf(), "ifname": "net1", "previous": previous, **more}
    return killed.every_step(pod.scratch, lambda: pod.netns, "vrf", verb, least=least, **call)


def begin_again(pod: Pod) -> None:
    """Make the interface anew, as another container's would be: what it lost in between is its own loss."""
    pod.run("link", "del", "net1")
    pod.make("net1")


def test_after_a_kill_within_an_add_another_add_completes_it_and_del_ends_it(vrf_pod: Pod) -> None:
    for _ in every_step(vrf_pod, "add", 4):
        vrf_pod.add()
        assert (vrf_pod.vrfs(), vrf_pod.inside(), vrf_pod.addresses()) == (
            {"blue": 1},
            ["net1"],
            sorted(ADDRESSES["net1"]),
        )
        assert "192.0.2.0/24 10.9.0.9" in {line.removesuffix(" 1300") for line in vrf_pod.routes("1")}
        vrf_pod.delete()
        assert vrf_pod.vrfs() == {}
        begin_again(vrf_pod)


def test_after_a_kill_within_an_add_del_leaves_no_vrf(vrf_pod: Pod) -> None:
    for _ in every_step(vrf_pod, "add", 4):
        vrf_pod.delete()
        assert vrf_pod.vrfs() == {}
        begin_again(vrf_pod)


def test_after_a_kill_within_a_del_another_del_leaves_no_vrf(vrf_pod: Pod) -> None:
    def prepare() -> None:
        begin_again(vrf_pod)
        vrf_pod.add()
        assert (vrf_pod.vrfs(), vrf_pod.routes("1")) == ({"blue": 1}, ROUTES)

    for _ in every_step(vrf_pod, "del", 3, prepare=prepare):
        vrf_pod.delete()
        assert vrf_pod.vrfs() == {}


def test_gc_has_no_step_but_its_end(vrf_pod: Pod) -> None:
    """A VRF ends with its container's namespace, which no GC names."""
    vrf_pod.add()
    assert list(every_step(vrf_pod, "gc", 1)) == [1]
    assert vrf_pod.vrfs() == {"blue": 1}
