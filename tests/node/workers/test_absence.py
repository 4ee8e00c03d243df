"""What kubelet sees of a plugin whose process goes: nothing of one end, unhealthy devices of a long absence."""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.node.workers.test_on_a_node import RESOURCE, SECTION, pid

from nodeplug.hosting import lifecycle
from nodeplug.hosting.served_devices import ServedDevices
from nodeplug.hosting.slot import Restarts
from nodeplug.testing import BlockingKubelet, ScratchNode
from nodeplug.testing.waiting import until

if TYPE_CHECKING:
    from tests.node.workers.conftest import Guests

Play = Callable[[Any], None]
pytestmark = pytest.mark.unprivileged


class Program:
    """A Python of the plugin's own, which a test takes away."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "python"
        guests = Path(__file__).parent
        self.path.write_text(f'#!/bin/sh\nPYTHONPATH={guests} exec {sys.executable} "$@"\n')
        self.path.chmod(0o755)

    def take_away(self) -> None:
        self.path.rename(self.path.with_suffix(".away"))

    def put_back(self) -> None:
        self.path.with_suffix(".away").rename(self.path)


@pytest.fixture
def program(tmp_path: Path) -> Program:
    return Program(tmp_path)


@pytest.fixture
def node(short_path: Path) -> Iterator[ScratchNode]:
    supervisor, env = 'listen = ""\ndevice_poll = 0.2\n', {"PYTHONPATH": str(Path(__file__).parent)}
    one = ScratchNode(short_path, SECTION, supervisor=supervisor, env=env, fork=True)
    try:
        yield one
    finally:
        one.kill()


@pytest.fixture
def kubelet(node: ScratchNode) -> Iterator[BlockingKubelet]:
    with BlockingKubelet(node.root / "var" / "lib" / "kubelet") as one:
        yield one


def guest(node: ScratchNode) -> dict[str, Any]:
    (row,) = node.status()["plugins"]
    return dict(row)


def watch(kubelet: BlockingKubelet) -> list[int]:
    """Return a list that gets the healthy devices with each change of kubelet's table, from now on."""
    plugins, seen = kubelet.stand_in._plugins, list[int]()
    save = plugins.changed

    def changed() -> None:
        save()
        seen.append(len(plugins.healthy().get(RESOURCE, ())))

    plugins.changed = changed
    return seen


def test_kubelet_never_sees_a_device_less_while_a_process_is_killed_once(
    node: ScratchNode, kubelet: BlockingKubelet
) -> None:
    node.start()
    kubelet.until_allocatable(RESOURCE, 2)
    first, seen = pid(node), watch(kubelet)
    os.kill(first, signal.SIGKILL)
    until(lambda: pid(node) not in {0, first})
    granted = kubelet.admit("pod", {RESOURCE: 2})[RESOURCE]  # waits until the new one has listed
    assert granted.envs["PID"] == str(pid(node))
    assert set(seen) <= {2}
    assert kubelet.call(lambda: _streams(kubelet)) == 1


async def _streams(kubelet: BlockingKubelet) -> int:
    return kubelet.stand_in.streams(RESOURCE)


@pytest.mark.whole  # half a minute goes by
def test_devices_stay_during_short_pauses_are_withdrawn_in_a_long_one_and_come_back(
    node: ScratchNode, kubelet: BlockingKubelet, tmp_path: Path
) -> None:
    broken = tmp_path / "broken"
    node.configure(f'{SECTION}config = {{ at = "device_list", how = "exits", during = "{broken}" }}\n')
    node.start()
    kubelet.until_allocatable(RESOURCE, 2)
    seen = watch(kubelet)
    broken.touch()
    kubelet.until_allocatable(RESOURCE, 0, seconds=120)
    assert guest(node)["restarts"] >= restarts_until_a_pause_of(lifecycle.ABSENCE)
    assert "its process ended: it exited with status 7" in guest(node)["reason"]
    assert set(seen[: seen.index(0)]) <= {2}
    assert kubelet.capacity(RESOURCE) == 2
    broken.unlink()
    kubelet.until_allocatable(RESOURCE, 2, seconds=120)
    kubelet.admit("pod", {RESOURCE: 2})
    assert len(kubelet.registrations) == 1


def restarts_until_a_pause_of(seconds: float) -> int:
    restarts = Restarts()
    while restarts.pause("") <= seconds:
        pass
    return restarts.count


@pytest.mark.whole
def test_devices_of_a_plugin_whose_python_is_gone_are_withdrawn_and_come_back_with_it(
    node: ScratchNode, kubelet: BlockingKubelet, program: Program
) -> None:
    node.configure(f'{SECTION}python = "{program.path}"\n')
    node.start()
    kubelet.until_allocatable(RESOURCE, 2)
    program.take_away()
    os.kill(pid(node), signal.SIGKILL)
    kubelet.until_allocatable(RESOURCE, 0, seconds=120)
    assert f"its Python, {program.path}, cannot be executed" in guest(node)["reason"]
    program.put_back()
    kubelet.until_allocatable(RESOURCE, 2, seconds=120)
    kubelet.admit("pod", {RESOURCE: 2})
    assert len(kubelet.registrations) == 1


class Told(ServedDevices):
    """Counts how often devices were withdrawn."""

    withdrawn = 0

    def withdraw(self, plugin: str, why: str) -> None:
        assert (plugin, bool(why)) == ("guest", True)
        self.withdrawn += 1


@pytest.mark.whole
def test_devices_stay_through_failing_starts_until_the_process_has_been_away_for_long(
    play: Play, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(guests: "Guests") -> None:
        guests.lifecycle.devices = told = Told()
        await guests.apply(guest=guests.section(python=str(program.path)))
        slot, first = guests.lifecycle.registry.slots["guest"], guests.pid()
        monkeypatch.setattr(lifecycle, "ABSENCE", 3600.0)
        program.take_away()
        os.kill(first, signal.SIGKILL)
        await guests.until(lambda: slot.retry_after >= 4)  # the second start has failed, too
        assert (slot.state, told.withdrawn) == ("failed", 0)
        monkeypatch.setattr(lifecycle, "ABSENCE", 0.0)
        await guests.until(lambda: told.withdrawn)
        program.put_back()
        await guests.until(lambda: slot.state == "running")
        assert (guests.pid() == first, slot.gone_at) == (False, 0.0)

    play(story)


def test_a_plugin_that_never_ran_offers_no_devices_from_its_first_failure_on(play: Play) -> None:
    async def story(guests: "Guests") -> None:
        guests.lifecycle.devices = told = Told()
        await guests.apply(guest=guests.section(at="start", how="raises"))
        assert (guests.state(), told.withdrawn) == ("failed", 1)

    play(story)
