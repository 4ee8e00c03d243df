"""Devices and cards that pods got from an earlier version: they stay theirs, and nobody else's."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.node.state.conftest import a_kubelet

from nodeplug.exec.client import ask
from nodeplug.testing.waiting import until

MEMORY, REPLICA, NULL = "aliyun.com/gpu-mem", "example.com/gpu-replica", "example.com/null"
HELD = {MEMORY: 5, REPLICA: 1, NULL: 2}
OFFERED = {MEMORY: 8, REPLICA: 4, NULL: 4}


def counted(left: Any, what: str) -> dict[str, int]:
    return {one["resource"]: one[what] for one in left.told()["resources"] if one["resource"] in OFFERED}


def holders(left: Any, resource: str) -> dict[str, str]:
    """Return the pods by the devices that they hold, as `nodeplug status` tells."""
    (found,) = [one for one in left.told()["resources"] if one["resource"] == resource]
    return {unit["id"]: unit["holder"].split("/")[1] for unit in found["units"] if unit["holder"]}


def recorded(left: Any, resource: str) -> dict[str, str]:
    return {name: one["pod"] for one in left.kernel["held"] if one["resource"] == resource for name in one["ids"]}


def cards(left: Any) -> Any:
    return ask(left.node.paths.exec_socket, "inspect", "gpu")["gpu"]["cards"]


def test_holders_are_shown_as_not_confirmed_before_kubelet_answers(devices: Any) -> None:
    devices.node.start()
    until(lambda: counted(devices, "allocated") == HELD, found=lambda: counted(devices, "allocated"))
    assert counted(devices, "unconfirmed") == HELD
    for resource in HELD:
        assert holders(devices, resource) == recorded(devices, resource)


def test_holders_are_confirmed_when_kubelet_is_there(devices: Any) -> None:
    devices.node.start()
    with a_kubelet(devices) as kubelet:
        for resource, count in OFFERED.items():
            kubelet.until_allocatable(resource, count)
        until(lambda: counted(devices, "unconfirmed") == dict.fromkeys(HELD, 0))
        assert counted(devices, "allocated") == HELD


@pytest.mark.whole
def test_what_ended_during_the_pause_is_released(devices: Any) -> None:
    devices.node.start()
    with a_kubelet(devices, "reader", "server") as kubelet:
        kubelet.until_allocatable(NULL, 4)
        until(lambda: counted(devices, "allocated") == {MEMORY: 3, REPLICA: 1, NULL: 0})
        until(lambda: b"reader" not in (devices.node.paths.state / "holders.json").read_bytes())


@pytest.mark.whole
def test_the_cards_know_what_is_held_of_them(devices: Any) -> None:
    devices.node.start()
    with a_kubelet(devices) as kubelet:
        kubelet.until_allocatable(MEMORY, 8)

        def held() -> dict[str, tuple[int, list[str]]]:
            return {
                one["resource"]: (one["allocated_units"], sorted(use["pod"] for use in one["containers"]))
                for one in cards(devices)
            }

        wanted = {MEMORY: (5, ["server", "trainer"]), REPLICA: (1, ["notebook"])}
        until(lambda: held() == wanted, found=lambda: cards(devices))


def test_new_pods_get_what_is_left(devices: Any) -> None:
    devices.node.start()
    with a_kubelet(devices) as kubelet:
        kubelet.until_allocatable(MEMORY, 8)
        kubelet.admit("last", {MEMORY: 3})
        until(lambda: counted(devices, "allocated")[MEMORY] == 8)
        mine = [name for name, pod in holders(devices, MEMORY).items() if pod == "last"]
        assert set(mine).isdisjoint(recorded(devices, MEMORY))


def test_the_mps_daemon_of_running_clients_goes_on(devices: Any) -> None:
    (file,) = devices.node.paths.run.glob("plugins/gpu/mps/*/daemon.json")
    before, mounted = file.read_bytes(), devices.mounted()
    devices.node.start()
    with a_kubelet(devices) as kubelet:
        kubelet.until_allocatable(MEMORY, 8)
        granted = kubelet.admit("client", {MEMORY: 1})[MEMORY]
        assert "/dev/shm" in [one.container_path for one in granted.mounts]
    assert devices.mps.poll() is None
    assert json.loads(before)["pid"] == devices.mps.pid
    assert (file.read_bytes(), devices.mounted()) == (before, mounted)


@pytest.mark.whole
def test_what_a_container_was_given_is_still_there_when_it_starts_anew(devices: Any) -> None:
    given = {path for one in devices.kernel["held"] for path in one["mounts"]}
    assert len(given) == 2
    devices.node.start()
    with a_kubelet(devices) as kubelet:
        kubelet.until_allocatable(MEMORY, 8)
        for path in given:
            assert Path(path).exists()
        new = kubelet.admit("client", {MEMORY: 1})[MEMORY]
        assert {one.host_path for one in new.mounts} == given


def test_a_card_that_is_sold_otherwise_now_waits_for_those_who_hold_it(devices: Any) -> None:
    text = devices.node.config_path.read_text()
    by_memory = 'sharing = "memory"\ncards = { index = [0] }\nmps = {}\n'
    assert by_memory in text
    whole = 'resource = "example.com/whole"\nsharing = "exclusive"\ncards = { index = [0] }\n'
    devices.node.config_path.write_text(text.replace(by_memory, whole))
    devices.node.start()
    with a_kubelet(devices) as kubelet:
        kubelet.until_allocatable(REPLICA, 4)
        kubelet.until(lambda: kubelet.capacity("example.com/whole") == 1)
        until(
            lambda: any("allocated to default/" in one["reason"] for one in cards(devices)),
            found=lambda: cards(devices),
        )
        assert kubelet.allocatable("example.com/whole") == 0
    assert devices.mps.poll() is None


def rename_section(left: Any, *changes: tuple[str, str]) -> str:
    """Give the cards to a section of another name; return the configuration before."""
    before: str = left.node.config_path.read_text()
    head = '[plugins.cards]\nuses = "gpu"\n[plugins.cards.config]'
    text = before.replace("[plugins.gpu.config]", head).replace("[plugins.gpu.", "[plugins.cards.")
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    left.node.config_path.write_text(text)
    return before


def test_a_section_of_another_name_goes_on_with_cards_and_mps_daemon(devices: Any) -> None:
    given = {path for one in devices.kernel["held"] for path in one["mounts"]}
    mounted = devices.mounted()
    rename_section(devices)
    devices.node.start()
    with a_kubelet(devices) as kubelet:
        kubelet.until_allocatable(MEMORY, 8)
        kubelet.until_allocatable(REPLICA, 4)
        assert {one.host_path for one in kubelet.admit("client", {MEMORY: 1})[MEMORY].mounts} == given
    assert (devices.mps.poll(), devices.mounted()) == (None, mounted)
    assert (devices.records("gpu"), len(devices.records("cards"))) == ([], 5)


@pytest.mark.whole
def test_a_section_of_another_name_gives_no_card_otherwise_while_it_is_held(devices: Any) -> None:
    by_memory = 'sharing = "memory"\ncards = { index = [0] }\nmps = {}\n'
    whole = 'resource = "example.com/whole"\nsharing = "exclusive"\ncards = { index = [0] }\n'
    rename_section(devices, (by_memory, whole))
    devices.node.start()
    with a_kubelet(devices) as kubelet:
        kubelet.until_allocatable(REPLICA, 4)
        kubelet.until(lambda: kubelet.capacity("example.com/whole") == 1)
        assert kubelet.allocatable("example.com/whole") == 0
    assert devices.mps.poll() is None


def test_sockets_of_the_killed_daemon_go(devices: Any) -> None:
    folder = devices.node.paths.device_plugins
    dead = {path.name: path.stat().st_ino for path in folder.glob("nodeplug-*.sock")}
    assert len(dead) == 4
    devices.node.start()
    with a_kubelet(devices) as kubelet:
        for resource, count in OFFERED.items():
            kubelet.until_allocatable(resource, count)
        left = {path.name: path.stat().st_ino for path in folder.glob("nodeplug-*.sock")}
        assert len(left) == 4
        assert left.keys().isdisjoint(dead)


@pytest.mark.whole
def test_after_a_reboot_all_is_offered_again(after_a_reboot: Callable[[str], Any]) -> None:
    with after_a_reboot("devices") as left:
        left.kernel["held"].clear()
        left.node.start()
        with a_kubelet(left) as kubelet:
            for resource, count in OFFERED.items():
                kubelet.until_allocatable(resource, count)
