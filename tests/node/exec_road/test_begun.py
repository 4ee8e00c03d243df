"""ADDs of which a daemon saw only the beginning: what they made is ended although no DEL comes."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.node.exec_road.test_orphans import CONFIG, Plugin, remove, settled, until_ended

from nodeplug import CniDel, CniResult, PluginError, ValidAttachment
from nodeplug.cni.attachments import Asked, Attachment, Attachments, Begun, Key
from nodeplug.testing import ExecRoad, forked

Env = Callable[..., dict[str, str]]
KEY = Key("test", "net", "c1", "eth0")


@pytest.fixture
def plugin(road: ExecRoad) -> Plugin:
    plugin = Plugin()
    road.load("test", plugin)
    road.start()
    road.service.orphans.retry = 0.0
    return plugin


def fail() -> None:
    raise PluginError("half is made")


@pytest.fixture
def add(road: ExecRoad, env: Env, make_netns: Callable[[str], Path]) -> Callable[..., Path]:
    """Attach a container in a fresh namespace; whether that succeeds is the plugin's matter."""

    def attach(container: str, where: Path | None = None) -> Path:
        path = where or make_netns(f"netns-{container}")
        road.call("test", env("ADD", CNI_CONTAINERID=container, CNI_NETNS=str(path), CNI_ARGS="K=V"), CONFIG)
        return path

    return attach


def test_an_add_has_begun_before_its_plugin_is_called_and_until_it_is_recorded(
    road: ExecRoad, plugin: Plugin, add: Callable[..., Path]
) -> None:
    seen: list[Begun] = []
    plugin.at_add = lambda: seen.extend(road.attachments.begun())
    path = add("c1")
    (begun,) = seen
    assert (begun.key, begun.netns) == (KEY, str(path))
    own = {key: value for key, value in CONFIG.items() if key != "prevResult"}
    assert begun.asked == Asked("1.0.0", own, {"K": "V"}, (str(road.bin),))
    (record,) = road.attachments.list()
    assert (record.sighting, record.host) == (begun.sighting, begun.host)
    assert road.attachments.begun() == ()


def test_what_a_failed_add_left_is_ended_with_its_namespace_if_no_del_comes(
    road: ExecRoad, plugin: Plugin, add: Callable[..., Path]
) -> None:
    plugin.at_add = fail
    path = add("c1")
    plugin.at_add = lambda: None
    settled(road, plugin, add)
    assert plugin.ended == ["witness"]
    remove(path)
    until_ended(road, plugin, "c1")
    request: CniDel = plugin.deleted[-1]
    assert (request.network, request.ifname, request.args, request.netns) == ("net", "eth0", {"K": "V"}, None)
    assert request.prev_result is None
    assert list(road.attachments.folder.iterdir()) == []


def test_a_del_forgets_an_add_that_failed(road: ExecRoad, plugin: Plugin, add: Callable[..., Path], env: Env) -> None:
    plugin.at_add = fail
    add("c1")
    road.call("test", env("DEL"), CONFIG)
    assert list(road.attachments.folder.iterdir()) == []


def test_what_an_add_made_stays_when_another_of_it_fails(
    road: ExecRoad, plugin: Plugin, add: Callable[..., Path]
) -> None:
    path = add("c1")
    plugin.at_add = fail
    add("c1", path)
    assert road.attachments.begun() == ()
    plugin.at_add = lambda: None
    settled(road, plugin, add)
    assert (plugin.ended, [one.key for one in road.attachments.list()]) == (["witness"], [KEY])


def put(folder: Path, program: str) -> str:
    path = folder / "killed.py"
    path.write_text(program)
    return str(path)


KILLED_WITHIN = """
import os, signal, sys
from pathlib import Path
from nodeplug.cni.attachments import Attachment, Attachments, Begun, Key
from nodeplug import CniResult

left = int(sys.argv[2])
def die(event, arguments):
    global left
    if event in {"open", "os.rename", "os.remove"} and sys.argv[1] in str(arguments[0]):
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(die)
folder, key = Attachments(Path(sys.argv[1])), Key("test", "net", "c1", "eth0")
folder.begin(Begun(key, "/netns", 1.0))
folder.record(Attachment(key, "/netns", CniResult(), 2.0))
"""


def test_a_daemon_that_is_killed_at_any_write_has_begun_or_recorded_its_add(tmp_path: Path, short_path: Path) -> None:
    attachments, program = Attachments(tmp_path), put(short_path, KILLED_WITHIN)
    seen = []
    for step in range(10):
        killed = forked.run(program, [str(tmp_path), str(step)], os.environ).returncode == -signal.SIGKILL
        seen.append((len(attachments.begun()), len(attachments.list())))
        attachments.forget(KEY)
        assert list(tmp_path.iterdir()) == []
        if not killed:
            break
    assert seen == [(0, 0), (1, 0), (1, 0), (0, 1), (0, 1)]


@pytest.mark.parametrize("data", [b"", b"{", b"[]"])
def test_what_a_killed_daemon_had_not_written_is_nothing_and_goes(tmp_path: Path, data: bytes) -> None:
    attachments = Attachments(tmp_path)
    attachments.begin(Begun(KEY, "/netns"))
    (path,) = tmp_path.iterdir()
    path.write_bytes(data)
    assert attachments.begun() == ()
    assert path.exists()  # it may be a write in progress
    os.utime(path, (1.0, 1.0))
    assert attachments.begun() == ()
    assert not path.exists()


def test_gc_forgets_an_add_that_began_and_is_not_valid(tmp_path: Path) -> None:
    attachments, other = Attachments(tmp_path), Key("test", "net", "c2", "eth0")
    attachments.begin(Begun(KEY, "/netns"))
    attachments.begin(Begun(other, "/netns"))
    attachments.forget_invalid("test", "net", [ValidAttachment(container_id="c1", ifname="eth0")])
    assert [one.key for one in attachments.begun()] == [KEY]


def test_an_add_that_began_anew_is_another(tmp_path: Path) -> None:
    attachments, first, second = Attachments(tmp_path), Begun(KEY, "/a", 1.0), Begun(KEY, "/b", 2.0)
    attachments.begin(first)
    assert attachments.is_known(first)
    attachments.begin(second)
    assert (attachments.is_known(first), attachments.is_known(second)) == (False, True)
    attachments.record(Attachment(KEY, "/b", CniResult(), 3.0))
    assert not attachments.is_known(second)


KILLED_IN_GC = """
import os, signal, sys
from pathlib import Path
from nodeplug import ValidAttachment
from nodeplug.cni.attachments import Attachments

left = int(sys.argv[2])
def die(event, arguments):
    global left
    if event == "os.remove" and sys.argv[1] in str(arguments[0]):
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(die)
Attachments(Path(sys.argv[1])).forget_invalid("test", "net", [ValidAttachment(container_id="c2", ifname="eth0")])
"""


def test_a_gc_that_is_killed_at_any_removal_forgets_no_valid_attachment_and_is_repeated(
    tmp_path: Path, short_path: Path
) -> None:
    attachments, seen, program = Attachments(tmp_path), set(), put(short_path, KILLED_IN_GC)
    for step in range(20):
        for number in (1, 2, 3):
            key = Key("test", "net", f"c{number}", "eth0")
            attachments.record(Attachment(key, "/netns", CniResult(), float(number)))
        attachments.begin(Begun(Key("test", "net", "c4", "eth0"), "/netns"))
        killed = forked.run(program, [str(tmp_path), str(step)], os.environ).returncode == -signal.SIGKILL
        seen.add((tuple(one.key.container_id for one in attachments.list()), len(attachments.begun())))
        attachments.forget_invalid("test", "net", [ValidAttachment(container_id="c2", ifname="eth0")])
        assert [one.key.container_id for one in attachments.list()] == ["c2"]
        assert len(list(tmp_path.iterdir())) == 1
        if not killed:
            break
    assert seen == {(("c1", "c2", "c3"), 1), (("c2", "c3"), 1), (("c2",), 1), (("c2",), 0)}
