"""What people are told while kubelet is away, has just come back, or leaves somebody out."""

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from nodeplug import ResourceName
from nodeplug.device import registration
from nodeplug.observe import status as told
from nodeplug.testing import Kubelet, serve_devices

if TYPE_CHECKING:
    from tests.node.device.conftest import Full, Minimal

pytestmark = pytest.mark.unprivileged

Run = Callable[[Coroutine[Any, Any, None]], None]
RESOURCE = "example.com/thing"


def shown(host: Any) -> dict[str, Any]:
    statuses = [task.status() for task in host.tasks.values()]
    (row,) = told.resources(statuses, host.podresources.holders(), host.podresources.unconfirmed())
    return row


def test_a_resource_is_not_registered_with_a_kubelet_that_has_gone(minimal: "Minimal", root: Path, run: Run) -> None:
    async def story() -> None:
        async with Kubelet(root) as kubelet, serve_devices(minimal, kubelet, root) as host:
            await kubelet.until_allocatable(RESOURCE, 4)
            await kubelet.until(lambda: (shown(host)["registered"], shown(host)["error"]) == (True, ""))
            await kubelet.stop()
            await kubelet.until(lambda: shown(host)["error"].startswith("kubelet has been away since "))
            assert not shown(host)["registered"]
            await kubelet.start()
            await kubelet.until_allocatable(RESOURCE, 4)
            await kubelet.until(lambda: bool(shown(host)["registered"]))
            assert shown(host)["error"] == ""

    run(story())


def test_a_resource_is_not_registered_with_a_kubelet_that_was_killed(minimal: "Minimal", root: Path, run: Run) -> None:
    async def story() -> None:
        async with Kubelet(root) as kubelet, serve_devices(minimal, kubelet, root, watchdog=3600) as host:
            await kubelet.until(lambda: bool(shown(host)["registered"]))
            await kubelet.kill()
            await kubelet.until(lambda: shown(host)["error"].startswith("kubelet has been away since "))
            assert not shown(host)["registered"]
            await kubelet.start()
            await kubelet.until(lambda: bool(shown(host)["registered"]))

    run(story())


def test_kubelet_is_away_although_the_end_of_its_stream_is_noticed_after_that_of_its_socket(
    minimal: "Minimal", root: Path, run: Run
) -> None:
    async def story() -> None:
        async with Kubelet(root) as kubelet, serve_devices(minimal, kubelet, root) as host:
            await kubelet.until_allocatable(RESOURCE, 4)
            await kubelet.until(lambda: bool(shown(host)["registered"]))
            kubelet.socket.unlink()
            kubelet.folders.leave_dead_socket()
            assert kubelet.streams(RESOURCE) == 1
            await kubelet.until(lambda: shown(host)["error"].startswith("kubelet has been away since "))

    run(story())


def test_kubelet_is_not_away_because_its_stream_was_ended_here(minimal: "Minimal", root: Path, run: Run) -> None:
    async def story() -> None:
        async with Kubelet(root) as kubelet, serve_devices(minimal, kubelet, root) as host:
            await kubelet.until_allocatable(RESOURCE, 4)
            await kubelet.until(lambda: bool(shown(host)["registered"]))
            kubelet.refuse, kubelet.hold_streams = "not now", True
            (ours,) = kubelet.device_plugins.glob("nodeplug-*.sock")
            ours.unlink()  # somebody tidied up, and the registration is given up
            await kubelet.until(lambda: "not now" in shown(host)["error"])
            await asyncio.sleep(1.5)  # longer than a second without a stream, from which on kubelet counts as away
            kubelet.refuse = ""
            await kubelet.until(lambda: bool(shown(host)["registered"]))

    run(story())


def test_what_was_held_stays_allocated_until_a_restarted_kubelet_knows_its_pods(
    minimal: "Minimal", root: Path, run: Run
) -> None:
    async def story() -> None:
        async with Kubelet(root) as kubelet, serve_devices(minimal, kubelet, root) as host:
            await kubelet.until_allocatable(RESOURCE, 4)
            await kubelet.admit("pod", {RESOURCE: 3})
            await kubelet.until(lambda: bool(host.podresources.present))
            assert (shown(host)["allocated"], shown(host)["unconfirmed"]) == (3, 0)
            kubelet.pods_known = False
            await kubelet.restart()
            await kubelet.until(lambda: not host.podresources.present)
            assert (shown(host)["allocated"], shown(host)["unconfirmed"]) == (3, 3)
            assert sum(len(one.ids) for one in host.podresources.holdings(ResourceName(RESOURCE))) == 3
            kubelet.pods_known = True
            await kubelet.until(lambda: bool(host.podresources.present))
            assert (shown(host)["allocated"], shown(host)["unconfirmed"]) == (3, 0)

    run(story())


def test_what_was_held_before_a_restart_of_the_daemon_is_shown_before_the_first_answer(
    minimal: "Minimal", root: Path, run: Run
) -> None:
    async def story() -> None:
        async with Kubelet(root) as kubelet:
            async with serve_devices(minimal, kubelet, root) as host:
                await kubelet.until_allocatable(RESOURCE, 4)
                await kubelet.admit("pod", {RESOURCE: 3})
                await kubelet.until(lambda: bool(host.podresources.present))  # not from kubelet's checkpoint alone
                assert shown(host)["allocated"] == 3
            await kubelet.stop()
            async with serve_devices(minimal, kubelet, root) as host:
                await kubelet.until(lambda: shown(host)["devices"] == 4 and bool(shown(host)["allocated"]))
                assert (shown(host)["allocated"], shown(host)["unconfirmed"]) == (3, 3)

    run(story())


def held_by_container(host: Any) -> dict[str, tuple[str, int]]:
    return {one.container: (one.pod, len(one.ids)) for one in host.podresources.holdings(ResourceName(RESOURCE))}


def test_devices_of_an_init_container_are_held_though_kubelet_does_not_list_it(
    full: "Full", root: Path, run: Run
) -> None:
    async def story() -> None:
        async with Kubelet(root) as kubelet, serve_devices(full, kubelet, root) as host:
            await kubelet.until_allocatable(RESOURCE, 4)
            await kubelet.admit("pod", {RESOURCE: 3}, container="warm", init=True)
            await kubelet.until(lambda: shown(host)["allocated"] == 3)
            (holding,) = host.podresources.holdings(ResourceName(RESOURCE))
            assert (holding.container, len(holding.ids)) == ("warm", 3)
            await kubelet.admit("pod", {RESOURCE: 1}, container="work")
            # The checkpoint may be read before kubelet is asked: it has the UID alone, and what both hold twice.
            await kubelet.until(lambda: held_by_container(host) == {"work": ("pod", 1), "warm": ("pod", 2)})
            kubelet.remove_pod("pod")
            await kubelet.admit("other", {RESOURCE: 1})
            await kubelet.until(lambda: shown(host)["allocated"] == 1)

    run(story())


def test_the_end_of_a_pod_frees_its_devices_although_the_checkpoint_is_older(
    full: "Full", root: Path, run: Run
) -> None:
    async def story() -> None:
        async with Kubelet(root) as kubelet, serve_devices(full, kubelet, root) as host:
            await kubelet.until_allocatable(RESOURCE, 4)
            await kubelet.admit("other", {})
            await kubelet.admit("pod", {RESOURCE: 3})
            await kubelet.until(lambda: bool(host.podresources.present))  # the checkpoint alone names no container
            written = (kubelet.device_plugins / "kubelet_internal_checkpoint").read_bytes()
            kubelet.remove_pod("pod")
            await kubelet.until(lambda: bool(full.releases()))
            (kubelet.device_plugins / "kubelet_internal_checkpoint").write_bytes(written)
            await asyncio.sleep(0.3)
            await kubelet.until(lambda: shown(host)["allocated"] == 0)

    run(story())


def test_a_kubelet_that_disconnects_a_new_registration_at_the_end_of_the_old_stream_gets_another_one(
    minimal: "Minimal", root: Path, run: Run
) -> None:
    async def story() -> None:
        async with Kubelet(root) as kubelet, serve_devices(minimal, kubelet, root, watchdog=3600) as host:
            await kubelet.until(lambda: bool(shown(host)["registered"]))
            kubelet.hold_streams = True  # it has disconnected the new one before it listened
            host.tasks[RESOURCE].register_again("another daemon has registered it")
            await kubelet.until(lambda: host.tasks[RESOURCE].status().registrations == 2)
            await kubelet.until(lambda: not kubelet.streams(RESOURCE))
            kubelet.hold_streams = False
            await kubelet.until(lambda: len(kubelet.registrations) == 3)
            await kubelet.until(lambda: kubelet.streams(RESOURCE) == 1)

    run(story())


def test_a_kubelet_that_ends_a_new_stream_at_the_end_of_the_old_one_gets_another_registration(
    minimal: "Minimal", root: Path, run: Run
) -> None:
    async def story() -> None:
        async with Kubelet(root) as kubelet, serve_devices(minimal, kubelet, root, watchdog=3600) as host:
            await kubelet.until(lambda: bool(shown(host)["registered"]))
            host.tasks[RESOURCE].register_again("another daemon has registered it")
            await kubelet.until(lambda: len(kubelet.registrations) == 2 and kubelet.streams(RESOURCE) == 1)
            await kubelet.until(lambda: bool(shown(host)["registered"]))
            await kubelet.drop_streams(RESOURCE)
            await kubelet.until(lambda: len(kubelet.registrations) == 3 and kubelet.streams(RESOURCE) == 1)

    run(story())


def test_a_kubelet_that_ends_one_stream_after_the_other_does_not_get_registrations_for_ever(
    minimal: "Minimal", root: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registration, "_MOST_DISCONNECTIONS", 2)

    async def story() -> None:
        async with Kubelet(root) as kubelet, serve_devices(minimal, kubelet, root, watchdog=3600) as host:
            await kubelet.until(lambda: bool(shown(host)["registered"]))
            host.tasks[RESOURCE].register_again("another daemon has registered it")

            def is_registered(times: int) -> bool:
                ends = kubelet.streams(RESOURCE), host.tasks[RESOURCE].status().streams  # the other end may be late
                return (len(kubelet.registrations), ends, shown(host)["registered"]) == (times, (1, 1), True)

            for times in (2, 3, 4):
                await kubelet.until(partial(is_registered, times))
                await kubelet.drop_streams(RESOURCE)
            await kubelet.until(lambda: shown(host)["error"].startswith("kubelet has been away since "))
            assert len(kubelet.registrations) == 4

    run(story())


def test_streams_that_open_and_end_between_two_looks_are_disconnections(
    minimal: "Minimal", root: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    see = registration.Registration._see

    async def story() -> None:
        async with Kubelet(root) as kubelet, serve_devices(minimal, kubelet, root, watchdog=3600) as host:

            def ends() -> tuple[int, int]:
                return kubelet.streams(RESOURCE), host.tasks[RESOURCE].status().streams

            async def after_the_stream(*arguments: Any) -> Any:
                await kubelet.until(lambda: len(kubelet.registrations) == 1 or not any(ends()))
                return await see(*arguments)

            def is_registered(times: int) -> bool:
                return (len(kubelet.registrations), ends()) == (times, (1, 1))

            await kubelet.until(lambda: bool(shown(host)["registered"]))
            monkeypatch.setattr(registration.Registration, "_see", after_the_stream)
            host.tasks[RESOURCE].register_again("another daemon has registered it")
            for times in (2, 3, 4):
                await kubelet.until(partial(is_registered, times))
                await kubelet.drop_streams(RESOURCE)
            await kubelet.until(lambda: len(kubelet.registrations) == 5)

    run(story())


def test_a_kubelet_that_stops_after_a_registration_has_not_disconnected_it(
    minimal: "Minimal", root: Path, run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        async with Kubelet(root) as kubelet, serve_devices(minimal, kubelet, root, watchdog=3600) as host:
            await kubelet.until(lambda: bool(shown(host)["registered"]))
            host.tasks[RESOURCE].register_again("another daemon has registered it")
            await kubelet.until(lambda: len(kubelet.registrations) == 2 and kubelet.streams(RESOURCE) == 1)
            await kubelet.until(lambda: bool(shown(host)["registered"]))
            await kubelet.stop()
            await kubelet.until(lambda: shown(host)["error"].startswith("kubelet has been away since "))
            assert "kubelet disconnected" not in caplog.text

    run(story())
