"""Attachments whose network namespace ended without a DEL, and those that only look so."""

import json
import subprocess
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from ipaddress import ip_interface
from pathlib import Path
from typing import Any

import pytest

from nodeplug import CniAdd, CniClaim, CniDel, CniIp, CniResult, TryAgain, bind, hookimpl, unmount
from nodeplug.cni.nsid import Sighting, gone
from nodeplug.testing import ExecRoad

pytestmark = pytest.mark.parametrize(
    "records", [pytest.param("memory", marks=pytest.mark.whole), "disk"], indirect=True
)

Env = Callable[..., dict[str, str]]
CONFIG = {"cniVersion": "1.0.0", "name": "net", "type": "test", "prevResult": {"cniVersion": "1.0.0"}, "own": 7}
RESULT = CniResult(ips=(CniIp(ip_interface("10.9.0.2/24")),))


class Plugin:
    """Remembers what it is asked, and fails at DEL when the test says so."""

    def __init__(self) -> None:
        self.deleted: list[CniDel] = []
        self.broken = False
        self.at_add: Callable[[], Any] = lambda: None

    @hookimpl
    def claims(self) -> list[CniClaim]:
        return [CniClaim("test")]

    @hookimpl
    def cni_add(self, request: CniAdd) -> CniResult:
        self.at_add()
        return RESULT

    @hookimpl
    def cni_del(self, request: CniDel) -> None:
        self.deleted.append(request)
        if self.broken:
            raise TryAgain("the bridge is on fire")

    @property
    def ended(self) -> list[str]:
        return [request.container_id for request in self.deleted]


@pytest.fixture
def plugin(road: ExecRoad) -> Plugin:
    plugin = Plugin()
    road.load("test", plugin)
    road.start()
    road.service.orphans.retry = 0.0
    return plugin


@pytest.fixture
def add(road: ExecRoad, env: Env, make_netns: Callable[[str], Path]) -> Callable[..., Path]:
    """Attach a container, in a fresh namespace unless one is given, and return the path of that."""

    def attach(container: str, where: Path | None = None) -> Path:
        path = where or make_netns(f"netns-{container}")
        done = road.call("test", env("ADD", CNI_CONTAINERID=container, CNI_NETNS=str(path), CNI_ARGS="K=V"), CONFIG)
        assert done.status == 0, done.stdout
        return path

    return attach


def remove(path: Path) -> None:
    """Do what a runtime does that gives a sandbox up."""
    unmount(str(path), lazy=True)
    path.unlink()


def look(road: ExecRoad) -> None:
    road.wait_for(road.service.orphans.look())


def until_ended(road: ExecRoad, plugin: Plugin, *containers: str) -> None:
    """The kernel destroys a namespace a moment after its last user has left."""
    end = time.monotonic() + 30
    while not set(containers) <= set(plugin.ended):
        assert time.monotonic() < end, plugin.ended
        look(road)
        time.sleep(0.02)


def recorded(road: ExecRoad) -> list[str]:
    return [record.key.container_id for record in road.attachments.list()]


def settled(road: ExecRoad, plugin: Plugin, add: Callable[..., Path]) -> None:
    """Look until the end of a namespace that ended now is seen: what ended earlier is seen then, too."""
    remove(add("witness"))
    until_ended(road, plugin, "witness")


def test_an_attachment_whose_namespace_is_gone_is_ended_by_the_daemon(
    road: ExecRoad, plugin: Plugin, add: Callable[..., Path]
) -> None:
    remove(add("c1"))
    until_ended(road, plugin, "c1")
    (request,) = plugin.deleted
    assert (request.claim, request.network, request.ifname, request.version) == ("test", "net", "eth0", "1.0.0")
    assert (request.args, request.path, request.netns) == ({"K": "V"}, (str(road.bin),), None)
    assert request.config == {key: value for key, value in CONFIG.items() if key != "prevResult"}
    assert request.prev_result == RESULT
    assert recorded(road) == []


def test_one_that_lives_is_left_alone(road: ExecRoad, plugin: Plugin, add: Callable[..., Path]) -> None:
    add("c1")
    settled(road, plugin, add)
    assert (plugin.ended, recorded(road)) == (["witness"], ["c1"])


@pytest.mark.programs("nsenter")
def test_a_namespace_without_its_path_lives_as_long_as_a_process_is_in_it(
    road: ExecRoad, plugin: Plugin, add: Callable[..., Path]
) -> None:
    path = add("c1")
    with subprocess.Popen(["/usr/bin/nsenter", f"--net={path}", "sleep", "60"]) as process:
        try:
            until_inside(process.pid, path)
            remove(path)
            settled(road, plugin, add)
            assert recorded(road) == ["c1"]
        finally:
            process.kill()
    until_ended(road, plugin, "c1")


def until_inside(pid: int, path: Path) -> None:
    end = time.monotonic() + 30
    while Path(f"/proc/{pid}/ns/net").stat().st_ino != path.stat().st_ino:
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.programs("unshare")
def test_a_namespace_lives_as_long_as_another_mount_namespace_has_it(
    road: ExecRoad, plugin: Plugin, add: Callable[..., Path]
) -> None:
    path = add("c1")
    command = ["/usr/bin/unshare", "--mount", "--propagation", "private", "sh", "-c", "echo; exec sleep 60"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            unmount(str(path))
            settled(road, plugin, add)
            assert recorded(road) == ["c1"]
        finally:
            process.kill()
    until_ended(road, plugin, "c1")


def test_a_path_that_shows_something_else_is_no_end_of_a_namespace(
    road: ExecRoad, plugin: Plugin, add: Callable[..., Path], make_netns: Callable[[str], Path]
) -> None:
    path = add("c1")
    bind(str(make_netns("other")), str(path))
    settled(road, plugin, add)
    assert recorded(road) == ["c1"]


def test_a_successor_with_the_id_of_a_namespace_does_not_hide_its_end(
    road: ExecRoad, plugin: Plugin, add: Callable[..., Path]
) -> None:
    path = add("c1")
    first = sighting_of(road, "c1")
    remove(path)
    until_gone(first)
    successors = ["s1"]
    add("s1")
    while sighting_of(road, successors[-1]).nsid != first.nsid:  # the kernel gives the lowest that is free
        successors.append(f"s{len(successors) + 1}")
        add(successors[-1])
    look(road)
    assert (plugin.ended, recorded(road)) == (["c1"], successors)


def until_gone(sighting: Sighting) -> None:
    end = time.monotonic() + 30
    while not gone([sighting]):
        assert time.monotonic() < end
        time.sleep(0.01)


def sighting_of(road: ExecRoad, container: str) -> Sighting:
    (found,) = [one.sighting for one in road.attachments.list() if one.key.container_id == container]
    assert found is not None
    return found


def test_a_del_that_comes_after_all_succeeds(
    road: ExecRoad, plugin: Plugin, add: Callable[..., Path], env: Env
) -> None:
    path = add("c1")
    remove(path)
    until_ended(road, plugin, "c1")
    done = road.call("test", env("DEL", CNI_CONTAINERID="c1", CNI_NETNS=str(path)), CONFIG)
    assert done.status == 0
    assert plugin.ended == ["c1", "c1"]


def test_a_failing_del_is_tried_again_and_its_record_stays(
    road: ExecRoad, plugin: Plugin, add: Callable[..., Path]
) -> None:
    plugin.broken = True
    remove(add("c1"))
    until_ended(road, plugin, "c1")
    assert recorded(road) == ["c1"]
    plugin.broken = False
    look(road)
    assert (plugin.ended[-1], recorded(road)) == ("c1", [])


def test_a_failing_del_waits_before_it_is_tried_again(road: ExecRoad, plugin: Plugin, add: Callable[..., Path]) -> None:
    road.service.orphans.retry = 3600.0
    plugin.broken = True
    remove(add("c1"))
    until_ended(road, plugin, "c1")
    look(road)
    assert plugin.ended == ["c1"]


def test_a_container_that_is_attached_anew_is_not_ended_for_its_former_namespace(
    road: ExecRoad, plugin: Plugin, add: Callable[..., Path]
) -> None:
    remove(add("c1"))
    path = add("c2")
    add("c1", path)
    settled(road, plugin, add)
    assert (plugin.ended, recorded(road)) == (["witness"], ["c2", "c1"])


def test_a_container_that_is_being_attached_anew_is_not_ended(
    road: ExecRoad, plugin: Plugin, add: Callable[..., Path]
) -> None:
    inside, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        inside.set()
        go_on.wait(30)

    former, path = add("c1"), add("c2")
    remove(former)
    until_gone(sighting_of(road, "c1"))
    with ThreadPoolExecutor(2) as pool:
        plugin.at_add = hold
        again = pool.submit(add, "c1", path)
        try:
            assert inside.wait(30)
            plugin.at_add = lambda: None
            looking = pool.submit(look, road)
            end = time.monotonic() + 30
            while len(road.admission._inside) < 2:  # the DEL has its place, and waits for the ADD
                assert time.monotonic() < end
                time.sleep(0.01)
        finally:
            go_on.set()
        again.result()
        looking.result()
    settled(road, plugin, add)
    assert (plugin.ended, recorded(road)) == (["witness"], ["c2", "c1"])


def test_what_a_former_daemon_left_is_ended_by_its_successor(
    road: ExecRoad, plugin: Plugin, add: Callable[..., Path]
) -> None:
    path = add("c1")
    road.stop()
    remove(path)
    road.start()
    until_ended(road, plugin, "c1")


@pytest.fixture
def edit(road: ExecRoad) -> Callable[[str, Any], None]:
    """Change a field of the one record."""

    def change(field: str, value: Any) -> None:
        (path,) = road.attachments.folder.glob("*.json")
        document = json.loads(path.read_text())
        document[field] = value
        path.write_text(json.dumps(document))

    return change


def test_what_an_earlier_boot_left_is_ended(
    road: ExecRoad, plugin: Plugin, add: Callable[..., Path], edit: Callable[[str, Any], None]
) -> None:
    add("c1")
    (record,) = road.attachments.list()
    assert record.sighting is not None
    edit("sighting", [*record.sighting.encode()[:-1], "another boot"])
    look(road)
    assert plugin.ended == ["c1"]


@pytest.mark.parametrize("field", ["sighting", "asked"])
def test_what_an_earlier_version_recorded_is_left_to_others(
    road: ExecRoad, plugin: Plugin, add: Callable[..., Path], edit: Callable[[str, Any], None], field: str
) -> None:
    path = add("c1")
    edit(field, None)
    remove(path)
    settled(road, plugin, add)
    assert recorded(road) == ["c1"]
