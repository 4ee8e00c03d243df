"""What kubelet has of a daemon that was killed, from its next start until its plugins have loaded and listed."""

import json
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import grpc
import pytest
from tests.node.device.thing_guest import LATE

from nodeplug.pb import deviceplugin_v1beta1_pb2 as pb
from nodeplug.pb import deviceplugin_v1beta1_pb2_grpc as pb_grpc
from nodeplug.testing import BlockingKubelet, ScratchNode
from nodeplug.testing.kubelet import AdmissionError
from nodeplug.testing.waiting import until

pytestmark = pytest.mark.unprivileged
THING: Final = "example.com/thing"
OTHER: Final = "example.com/other"
SECTION: Final = '[plugins.{name}]\nuses = "thing_guest:Things"\nconfig.folder = "{folder}"\n'


def beside(work: Callable[[], object]) -> "Future[object]":
    """Do something in a thread, which a test that fails does not wait for."""
    done: Future[object] = Future()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return done


@dataclass
class Crashing:
    """A node whose daemon is killed and started again, with one plugin of its own for each resource."""

    node: ScratchNode
    kubelet: BlockingKubelet
    folder: Path

    def lists(self, *devices: str, section: str = "thing", resource: str = THING) -> None:
        (self.folder / section).mkdir(exist_ok=True)
        (self.folder / section / "devices.json").write_text(json.dumps({resource: devices}))

    def has(self, file: str, *, section: str = "thing") -> None:
        (self.folder / section / file).touch()

    def has_no(self, file: str, *, section: str = "thing") -> None:
        (self.folder / section / file).unlink()

    def configure(self, *sections: str) -> None:
        self.node.configure("".join(SECTION.format(name=name, folder=self.folder / name) for name in sections))

    def record(self, resource: str = THING) -> Path:
        """Return the file in which the list of a resource is remembered."""
        name = resource.replace("/", "%2F").replace(".", "%2E")
        return self.node.root / "run" / "nodeplug" / "devices" / f"{name}.json"

    def begin(self, count: int = 2) -> None:
        """Start, and wait until kubelet has the devices and a record of them is there."""
        self.node.start()
        self.kubelet.until_allocatable(THING, count)
        until(self.record().exists)

    def crash(self) -> None:
        self.node.kill()
        self.kubelet.until_allocatable(THING, 0)

    def start_late(self) -> "Future[object]":
        """Start again, with a plugin that does not return from its constructor; return the end of the start."""
        self.has(LATE)
        return beside(self.node.start)


@pytest.fixture
def crashing(short_path: Path) -> Iterator[Crashing]:
    node = ScratchNode(short_path, "", env={"PYTHONPATH": str(Path(__file__).parent)}, fork=True)
    with BlockingKubelet(short_path / "var" / "lib" / "kubelet") as kubelet:
        one = Crashing(node, kubelet, short_path)
        one.configure("thing")
        one.lists("d0", "d1")
        try:
            yield one
        finally:
            node.kill()


def test_kubelet_has_the_last_list_before_the_plugin_has_loaded(crashing: Crashing) -> None:
    crashing.begin()
    crashing.crash()
    started = crashing.start_late()
    crashing.kubelet.until_allocatable(THING, 2)
    crashing.has_no(LATE)
    started.result()
    assert crashing.kubelet.admit("pod", {THING: 2})[THING].envs == {"MARK_d0": "granted", "MARK_d1": "granted"}
    assert len(crashing.kubelet.registrations) == 2  # one by each daemon: the stream goes on when the plugin serves


def test_an_allocate_waits_until_the_plugin_has_listed(crashing: Crashing) -> None:
    crashing.begin()
    crashing.crash()
    crashing.start_late()
    crashing.kubelet.until_allocatable(THING, 2)
    admitted = beside(lambda: crashing.kubelet.admit("pod", {THING: 1})[THING].envs)
    with pytest.raises(TimeoutError):
        admitted.result(0.5)
    crashing.has_no(LATE)
    assert admitted.result() in ({"MARK_d0": "granted"}, {"MARK_d1": "granted"})


def test_an_allocate_of_a_device_that_has_gone_meanwhile_is_refused_and_says_so(crashing: Crashing) -> None:
    crashing.begin()
    crashing.crash()
    crashing.lists("d7")
    crashing.start_late()
    crashing.kubelet.until_allocatable(THING, 2)
    admitted = beside(lambda: crashing.kubelet.admit("pod", {THING: 1}))
    with pytest.raises(TimeoutError):
        admitted.result(0.3)
    crashing.has_no(LATE)
    with pytest.raises(AdmissionError, match=r"device 'd[01]' is not among the 1 devices of example.com/thing"):
        admitted.result()
    crashing.kubelet.until_allocatable(THING, 1)


def test_nothing_is_granted_from_a_record_while_the_plugin_cannot_list(crashing: Crashing) -> None:
    crashing.begin()
    crashing.crash()
    crashing.has("listless")
    crashing.node.start()
    crashing.kubelet.until_allocatable(THING, 2)
    until(lambda: "the list is gone" in crashing.node.log)
    admitted = beside(lambda: crashing.kubelet.admit("pod", {THING: 1})[THING].envs)
    with pytest.raises(TimeoutError):
        admitted.result(1)
    crashing.has_no("listless")
    assert admitted.result() in ({"MARK_d0": "granted"}, {"MARK_d1": "granted"})


def test_devices_that_the_plugin_does_not_confirm_become_unhealthy_after_a_while(crashing: Crashing) -> None:
    crashing.begin()
    crashing.crash()
    crashing.has("listless")
    section = SECTION.format(name="thing", folder=crashing.folder / "thing").replace("thing_guest", "impatient_guest")
    crashing.node.configure(f'{section}isolation = "thread"\n')
    crashing.node.start()
    crashing.kubelet.until_allocatable(THING, 2)
    crashing.kubelet.until_allocatable(THING, 0, 60)
    assert crashing.kubelet.capacity(THING) == 2
    (row,) = crashing.node.status()["resources"]
    assert "could not list it since the daemon started" in row["units"][0]["reason"]


def test_a_device_that_was_unhealthy_stays_so(crashing: Crashing) -> None:
    crashing.lists("d0", "d1!")
    crashing.begin(1)
    crashing.crash()
    crashing.start_late()
    crashing.kubelet.until(lambda: crashing.kubelet.allocatable(THING) > 0)
    assert (crashing.kubelet.allocatable(THING), crashing.kubelet.capacity(THING)) == (1, 2)


@pytest.mark.parametrize("way", ["refused", "failing"])
def test_the_devices_of_a_plugin_that_does_not_come_back_become_unhealthy(crashing: Crashing, way: str) -> None:
    crashing.begin()
    crashing.crash()
    started = crashing.start_late()
    crashing.kubelet.until_allocatable(THING, 2)
    crashing.has(way)
    crashing.has_no(LATE)
    started.result()
    crashing.kubelet.until_allocatable(THING, 0)
    assert crashing.kubelet.capacity(THING) == 2
    with pytest.raises(AdmissionError, match="no healthy devices present"):
        crashing.kubelet.admit("pod", {THING: 1})


def other_boot(path: Path) -> None:
    text = json.loads(path.read_text())
    path.write_text(json.dumps({**text, "boot_id": "d74e2be1-0000-0000-0000-000000000000"}))


def other_version(path: Path) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), "version": 2}))


def half(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def changed(path: Path) -> None:
    text = json.loads(path.read_text())
    path.write_text(json.dumps({**text, "devices": text["devices"].replace("A", "B")}))


def huge(path: Path) -> None:
    os.truncate(path, 1 << 33)


def fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (other_boot, "they are of another boot"),
        (other_version, "they are of version 2, and this daemon knows 1"),
        (half, "they are damaged"),
        (changed, "they are damaged"),
        (huge, "2097152 at most are read"),
        (fifo, "it is not a regular file"),
        (folder, "it is a directory"),
    ],
)
def test_a_record_that_cannot_be_used_is_dropped_with_a_word_and_holds_up_no_other(
    crashing: Crashing, damage: Callable[[Path], None], reason: str
) -> None:
    crashing.configure("thing", "other")
    crashing.lists("o0", section="other", resource=OTHER)
    crashing.begin()
    crashing.kubelet.until_allocatable(OTHER, 1)
    until(crashing.record(OTHER).exists)
    crashing.crash()
    damage(crashing.record())
    crashing.has(LATE, section="other")
    started = crashing.start_late()
    crashing.kubelet.until_allocatable(OTHER, 1)
    (line,) = [line for line in crashing.node.log.splitlines() if "are not used" in line]
    assert reason in line
    assert [one.resource_name for one in crashing.kubelet.registrations[2:]] == [OTHER]
    crashing.has_no(LATE)
    crashing.has_no(LATE, section="other")
    started.result()
    crashing.kubelet.until_allocatable(THING, 2)


def test_what_a_section_offered_that_is_gone_is_forgotten(crashing: Crashing) -> None:
    crashing.begin()
    crashing.crash()
    crashing.configure()
    crashing.node.start()
    until(lambda: not crashing.record().exists())
    assert f"{THING} is not offered any more: there is no section thing" in crashing.node.log
    assert len(crashing.kubelet.registrations) == 1


def test_a_section_that_goes_before_its_plugin_has_loaded_takes_its_devices_along(crashing: Crashing) -> None:
    crashing.begin()
    crashing.crash()
    crashing.start_late()
    crashing.kubelet.until_allocatable(THING, 2)
    crashing.configure()
    crashing.has_no(LATE)
    crashing.kubelet.until_allocatable(THING, 0)
    until(lambda: not crashing.record().exists())


def test_a_resource_that_the_plugin_claims_no_more_ends_when_it_has_loaded(crashing: Crashing) -> None:
    crashing.begin()
    crashing.crash()
    crashing.lists("d0", resource=OTHER)
    crashing.start_late()
    crashing.kubelet.until_allocatable(THING, 2)
    crashing.has_no(LATE)
    crashing.kubelet.until_allocatable(OTHER, 1)
    crashing.kubelet.until_allocatable(THING, 0)
    until(lambda: not crashing.record().exists())


def test_a_section_that_is_removed_is_taken_off_kubelet_and_forgotten(crashing: Crashing) -> None:
    crashing.begin()
    crashing.configure()
    crashing.kubelet.until_allocatable(THING, 0)
    until(lambda: not crashing.record().exists())


def test_another_plugin_that_is_there_first_takes_nothing_from_one_that_still_loads(crashing: Crashing) -> None:
    crashing.configure("thing", "other")
    crashing.lists("o0", section="other", resource=OTHER)
    crashing.begin()
    crashing.crash()
    crashing.start_late()
    crashing.kubelet.until_allocatable(OTHER, 1)
    assert crashing.kubelet.admit("pod", {OTHER: 1})[OTHER].envs == {"MARK_o0": "granted"}
    assert crashing.kubelet.allocatable(THING) == 2


def told(crashing: Crashing) -> "tuple[list[pb.ListAndWatchResponse], threading.Thread]":
    """Follow the list on a stream of our own, until it ends."""
    endpoint = crashing.kubelet.registrations[-1].endpoint
    path = crashing.node.paths.device_plugins / endpoint
    lists: list[pb.ListAndWatchResponse] = []
    opened = threading.Event()

    def follow() -> None:
        with grpc.insecure_channel(f"unix:{path}") as channel:
            try:
                for one in pb_grpc.DevicePluginStub(channel).ListAndWatch(pb.Empty()):
                    lists.append(one)
                    opened.set()
            except grpc.RpcError:
                pass

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    assert opened.wait(20)
    return lists, thread


def test_a_daemon_that_ends_tells_kubelet_nothing_of_its_devices(crashing: Crashing) -> None:
    crashing.begin()
    lists, following = told(crashing)
    assert crashing.node.stop() == 0
    following.join(20)
    assert [[(one.ID, one.health) for one in list_.devices] for list_ in lists] == [
        [("d0", "Healthy"), ("d1", "Healthy")]
    ]


def test_a_daemon_that_was_ended_begins_with_its_last_list_too(crashing: Crashing) -> None:
    crashing.begin()
    crashing.node.stop()
    crashing.kubelet.until_allocatable(THING, 0)
    crashing.start_late()
    crashing.kubelet.until_allocatable(THING, 2)
