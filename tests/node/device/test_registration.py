"""Every way in which a registration is made, lost and made again, against the kubelet stand-in."""

import asyncio
import gc
import logging
import socket
from collections.abc import Callable, Coroutine
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from nodeplug.device.kubelet import KubeletSocket
from nodeplug.testing.devices import serve_devices
from nodeplug.testing.kubelet import Kubelet

if TYPE_CHECKING:
    from tests.node.device.conftest import Full, Minimal

pytestmark = pytest.mark.unprivileged

Run = Callable[[Coroutine[Any, Any, None]], None]
RESOURCE = "example.com/thing"


def own_sockets(folder: Path) -> list[Path]:
    return sorted(folder.glob("nodeplug-*.sock"))


def test_kubelet_that_was_there_first_learns_every_device(minimal: "Minimal", root: Path, run: Run) -> None:
    async def story() -> None:
        async with Kubelet(root) as kubelet, serve_devices(minimal, kubelet, root) as host:
            await kubelet.until_allocatable(RESOURCE, 4)
            # Kubelet may list before it answers Register.
            await kubelet.until(lambda: host.tasks[RESOURCE].status().registered)
            status = host.tasks[RESOURCE].status()
            assert (status.streams, status.healthy, len(status.devices)) == (1, 4, 4)
            assert status.error == ""

    run(story())


def test_kubelet_that_comes_later_learns_every_device(minimal: "Minimal", root: Path, run: Run) -> None:
    async def story() -> None:
        kubelet = Kubelet(root)  # not started: not even its folder exists
        async with serve_devices(minimal, kubelet, root) as host:
            await kubelet.until(lambda: "waiting for kubelet" in host.tasks[RESOURCE].status().error)
            async with kubelet:
                await kubelet.until_allocatable(RESOURCE, 4)

    run(story())


def test_old_kubelet_reads_the_options_from_the_request(full: "Full", root: Path, run: Run) -> None:
    async def story() -> None:
        async with Kubelet(root, old_style=True) as kubelet, serve_devices(full, kubelet, root):
            await kubelet.until_allocatable(RESOURCE, 4)
            (request,) = kubelet.registrations
            assert request.options.pre_start_required
            assert request.options.get_preferred_allocation_available

    run(story())


def test_options_are_the_same_in_both_places(minimal: "Minimal", root: Path, run: Run) -> None:
    async def story() -> None:
        async with Kubelet(root) as kubelet, serve_devices(minimal, kubelet, root):
            await kubelet.until_allocatable(RESOURCE, 4)
            endpoint = kubelet.resources[RESOURCE].endpoint
            assert endpoint is not None
            assert endpoint.options == kubelet.registrations[0].options
            assert not endpoint.options.pre_start_required

    run(story())


def test_nothing_is_registered_before_the_first_list(minimal: "Minimal", root: Path, run: Run) -> None:
    async def story() -> None:
        minimal.failure = RuntimeError("no driver yet")
        async with Kubelet(root) as kubelet, serve_devices(minimal, kubelet, root) as host:
            await kubelet.until(lambda: minimal.listings >= 3)
            assert kubelet.registrations == []
            assert "no driver yet" in host.tasks[RESOURCE].status().error
            minimal.failure = None
            await kubelet.until_allocatable(RESOURCE, 4)

    run(story())


def test_restarted_kubelet_is_registered_with_again_on_a_fresh_socket(minimal: "Minimal", root: Path, run: Run) -> None:
    async def story() -> None:
        async with Kubelet(root) as kubelet, serve_devices(minimal, kubelet, root):
            await kubelet.until_allocatable(RESOURCE, 4)
            await kubelet.restart()
            assert kubelet.allocatable(RESOURCE) == 0
            await kubelet.until_allocatable(RESOURCE, 4)
            first, second = (request.endpoint for request in kubelet.registrations)
            assert first != second
            assert [path.name for path in own_sockets(kubelet.device_plugins)] == [second]

    run(story())


def test_restart_that_leaves_our_socket_alone_is_noticed(minimal: "Minimal", root: Path, run: Run) -> None:
    async def story() -> None:
        async with Kubelet(root) as kubelet, serve_devices(minimal, kubelet, root):
            await kubelet.until_allocatable(RESOURCE, 4)
            await kubelet.restart(wipe="nothing")
            await kubelet.until_allocatable(RESOURCE, 4)

    run(story())


def test_recreated_kubelet_socket_without_restart_is_registered_with(minimal: "Minimal", root: Path, run: Run) -> None:
    async def story() -> None:
        async with Kubelet(root) as kubelet, serve_devices(minimal, kubelet, root):
            await kubelet.until_allocatable(RESOURCE, 4)
            await kubelet.recreate_socket()
            await kubelet.until(lambda: len(kubelet.registrations) == 2 and kubelet.streams(RESOURCE) == 1)
            await kubelet.until_allocatable(RESOURCE, 4)

    run(story())


def test_removed_plugin_socket_is_replaced(minimal: "Minimal", root: Path, run: Run) -> None:
    async def story() -> None:
        async with Kubelet(root) as kubelet, serve_devices(minimal, kubelet, root):
            await kubelet.until_allocatable(RESOURCE, 4)
            own_sockets(kubelet.device_plugins)[0].unlink()
            await kubelet.until(lambda: len(kubelet.registrations) == 2)
            await kubelet.until_allocatable(RESOURCE, 4)

    run(story())


def test_registered_resource_without_a_stream_registers_again(minimal: "Minimal", root: Path, run: Run) -> None:
    async def story() -> None:
        async with Kubelet(root) as kubelet, serve_devices(minimal, kubelet, root, watchdog=0.3):
            await kubelet.until_allocatable(RESOURCE, 4)
            await kubelet.drop_streams(RESOURCE)  # kubelet never redials
            await kubelet.until_allocatable(RESOURCE, 0)
            await kubelet.until_allocatable(RESOURCE, 4)
            assert len(kubelet.registrations) == 2

    run(story())


def test_old_stream_ends_before_the_new_registration(minimal: "Minimal", root: Path, run: Run) -> None:
    """Kubelets that know plugins by resource take the late end of an old stream for the end of the new one."""

    async def story() -> None:
        async with Kubelet(root, keyed_by="resource") as kubelet, serve_devices(minimal, kubelet, root):
            await kubelet.until_allocatable(RESOURCE, 4)
            for count in range(2, 6):
                await kubelet.recreate_socket()
                await kubelet.until(lambda count=count: len(kubelet.registrations) == count)  # type: ignore[misc] # mypy cannot infer the default
                await kubelet.until_allocatable(RESOURCE, 4)
            await asyncio.sleep(0.2)
            assert kubelet.allocatable(RESOURCE) == 4

    run(story())


def test_dead_kubelet_socket_is_retried_and_logged_once(
    minimal: "Minimal", root: Path, run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        kubelet = Kubelet(root)
        async with kubelet:
            await kubelet.kill()
            async with serve_devices(minimal, kubelet, root) as host:
                await kubelet.until(lambda: "UNAVAILABLE" in host.tasks[RESOURCE].status().error)
                await asyncio.sleep(0.7)  # several tries
                assert len([record for record in caplog.records if "did not register" in record.getMessage()]) == 1
                await kubelet.start()
                await kubelet.until_allocatable(RESOURCE, 4)

    run(story())


def test_events_alone_are_enough(minimal: "Minimal", root: Path, run: Run) -> None:
    async def story() -> None:
        async with Kubelet(root) as kubelet, serve_devices(minimal, kubelet, root, poll=3600, watchdog=3600):
            await kubelet.until_allocatable(RESOURCE, 4)
            for wipe in ("sockets", "nothing"):
                await kubelet.restart(wipe=wipe)
                await kubelet.until_allocatable(RESOURCE, 4)

    run(story())


def test_new_socket_with_the_old_inode_number_is_told_by_its_change_time(root: Path) -> None:
    target = KubeletSocket(root)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(root / "kubelet.sock"))
        before, inode = target.identity(), (root / "kubelet.sock").stat().st_ino
        while target.identity() == before:  # the kernel's clock has ticks
            (root / "kubelet.sock").chmod(0o600)
        assert (root / "kubelet.sock").stat().st_ino == inode


def test_file_in_the_place_of_kubelet_socket_counts_as_absent(minimal: "Minimal", root: Path, run: Run) -> None:
    async def story() -> None:
        kubelet = Kubelet(root)
        kubelet.device_plugins.mkdir()
        kubelet.socket.write_text("no socket")
        async with serve_devices(minimal, kubelet, root) as host:
            await kubelet.until(lambda: "not there" in host.tasks[RESOURCE].status().error)
            async with kubelet:
                await kubelet.until_allocatable(RESOURCE, 4)

    run(story())


def test_refusal_of_kubelet_is_shown_and_retried(
    minimal: "Minimal", root: Path, run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        async with Kubelet(root) as kubelet:
            kubelet.refuse = "the kubelet has a headache"
            async with serve_devices(minimal, kubelet, root) as host:
                await kubelet.until(lambda: "a headache" in host.tasks[RESOURCE].status().error)
                await asyncio.sleep(0.3)
                assert len([record for record in caplog.records if "a headache" in record.getMessage()]) == 1
                kubelet.refuse = ""
                await kubelet.until_allocatable(RESOURCE, 4)
                await kubelet.until(lambda: host.tasks[RESOURCE].status().registered)
                assert host.tasks[RESOURCE].status().error == ""

    run(story())


def test_replaced_plugin_folder_is_found_again(minimal: "Minimal", root: Path, run: Run) -> None:
    async def story() -> None:
        kubelet = Kubelet(root)
        async with serve_devices(minimal, kubelet, root):
            async with kubelet:
                await kubelet.until_allocatable(RESOURCE, 4)
            kubelet.device_plugins.rename(root / "gone")
            async with kubelet:
                await kubelet.until_allocatable(RESOURCE, 4)

    run(story())


def test_fifty_restarts_in_any_order_of_events_end_with_every_device(minimal: "Minimal", root: Path, run: Run) -> None:
    random = Random(20)

    async def one(kubelet: Kubelet) -> None:
        what = random.choice(["restart", "keep", "recreate", "unlink", "gap", "kill", "drop"])
        if what in {"restart", "keep"}:
            await kubelet.restart(wipe="sockets" if what == "restart" else "nothing")
        elif what == "recreate":
            await kubelet.recreate_socket()
        elif what == "unlink":
            for path in own_sockets(kubelet.device_plugins):
                path.unlink(missing_ok=True)
        elif what in {"gap", "kill"}:
            await (kubelet.stop() if what == "gap" else kubelet.kill())
            await asyncio.sleep(random.random() * 0.1)
            await kubelet.start(wipe=random.choice(["sockets", "files", "nothing"]))
        else:
            await kubelet.drop_streams(RESOURCE)
        await asyncio.sleep(random.choice([0, 0, 0.01, 0.1]))

    async def story() -> None:
        async with Kubelet(root) as kubelet, serve_devices(minimal, kubelet, root, watchdog=0.3) as host:
            await kubelet.until_allocatable(RESOURCE, 4)
            for _ in range(50):
                await one(kubelet)
            await kubelet.until_allocatable(RESOURCE, 4)
            await kubelet.until(lambda: kubelet.streams(RESOURCE) == 1)
            await kubelet.until(lambda: len(own_sockets(kubelet.device_plugins)) == 1)
            await kubelet.until(lambda: host.tasks[RESOURCE].status().registered)

    run(story())


def test_cancelled_task_leaves_no_socket_and_no_stream(minimal: "Minimal", root: Path, run: Run) -> None:
    async def story() -> None:
        async with Kubelet(root) as kubelet:
            async with serve_devices(minimal, kubelet, root):
                await kubelet.until_allocatable(RESOURCE, 4)
            assert own_sockets(kubelet.device_plugins) == []
            await kubelet.until(lambda: kubelet.streams(RESOURCE) == 0)
            assert kubelet.resources[RESOURCE].reason == "the plugin ended the stream"

    run(story())


def test_task_cancelled_in_the_middle_of_a_registration_leaves_nothing(
    minimal: "Minimal", root: Path, run: Run
) -> None:
    async def story() -> None:
        async with Kubelet(root) as kubelet:
            for number in range(40):
                async with serve_devices(minimal, kubelet, root):
                    if number % 2:
                        await kubelet.until_allocatable(RESOURCE, 4)
                        await kubelet.recreate_socket()
                    for _ in range(number):
                        await asyncio.sleep(0)
                assert own_sockets(kubelet.device_plugins) == []
            await kubelet.until(lambda: kubelet.streams(RESOURCE) == 0)

    run(story())
    gc.collect()  # a server that was not stopped complains here


def test_socket_that_vanishes_during_register_is_not_waited_for(minimal: "Minimal", root: Path, run: Run) -> None:
    async def story() -> None:
        async with Kubelet(root, dial_timeout=3600) as kubelet, serve_devices(minimal, kubelet, root) as host:
            await kubelet.until(lambda: host.tasks[RESOURCE].status().registered)
            kubelet.hold_dial = True
            await kubelet.recreate_socket()
            await kubelet.until(lambda: len(kubelet.registrations) == 2)
            kubelet.hold_dial = False
            own_sockets(kubelet.device_plugins)[0].unlink()
            await kubelet.until(lambda: host.tasks[RESOURCE].status().registrations == 2)
            await kubelet.until_allocatable(RESOURCE, 4)

    run(story())


def test_registration_is_logged_once(
    minimal: "Minimal", root: Path, run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    async def story() -> None:
        async with Kubelet(root) as kubelet, serve_devices(minimal, kubelet, root) as host:
            await kubelet.until(lambda: host.tasks[RESOURCE].status().registered)
            await asyncio.sleep(0.2)

    run(story())
    assert len([record for record in caplog.records if "is registered" in record.getMessage()]) == 1
