"""fuse through the FlexVolume front: real programs that serve, die and hang."""

import json
import os
import re
import resource
import signal
import subprocess
import sys
import threading
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from tests.fuse_programs import shared_folder
from tests.node.killing import every_step
from tests.own_descriptors import open_descriptors

from nodeplug import (
    NotFound,
    NotReady,
    TryAgain,
    VolumeId,
    VolumeStage,
    VolumeStats,
    VolumeStatsRequest,
    VolumeUnstage,
    mounted_at,
    mounts,
)
from nodeplug.testing.waiting import until
from nodeplug_volumes.fuse import volume
from nodeplug_volumes.fuse.config import FuseConfig
from nodeplug_volumes.fuse.plugin import Fuse
from nodeplug_volumes.fuse.room import Record, Room
from nodeplug_volumes.fuse.server import Server, strays

pytestmark = [pytest.mark.node, pytest.mark.usefixtures("has_fuse")]
DRIVER = "nodeplug/fuse"
PATIENCE = 30
SECRET = "kubernetes.io/secret/"


@pytest.fixture
def source() -> Iterator[Path]:
    with shared_folder() as folder:
        (folder / "data").mkdir()
        (folder / "data").chmod(0o777)
        (folder / "hello").rename(folder / "data" / "hello")
        yield folder


@pytest.fixture
def bindfs(source: Path) -> dict[str, Any]:
    return {
        "command": ["bindfs", "-f", f"{source}/{{folder}}", "{mountpoint}"],
        "options": {"folder": {"pattern": "[a-z]+", "default": "data"}},
    }


@pytest.fixture
def make_plugin(make_host: Any, area: Path) -> Iterator[Callable[..., Fuse]]:
    """Make a plugin; the same programs again act as a restart of the daemon."""
    started: list[Fuse] = []

    def make(**programs: dict[str, Any]) -> Fuse:
        config = FuseConfig.model_validate({"programs": programs, "check_interval": "100ms"})
        plugin = Fuse(config, make_host("fuse"))
        plugin.start()
        started.append(plugin)
        return plugin

    yield make
    for plugin in started:
        plugin.stop()
    for folder in (area / "hosts" / "fuse").glob("*/volumes/*/"):
        for pid in strays(Room(folder)):
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)


@pytest.fixture
def plugin(make_plugin: Any, bindfs: dict[str, Any]) -> Fuse:
    made: Fuse = make_plugin(files=bindfs)
    return made


@pytest.fixture
def node(make_node: Any, plugin: Fuse) -> Any:
    return make_node(fuse=plugin)


@pytest.fixture
def target(node: Any) -> Path:
    path: Path = node.target("a")
    return path


def volumes(plugin: Fuse) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = list(plugin.inspect()["volumes"])
    return found


def pid_of(plugin: Fuse) -> int:
    (volume,) = volumes(plugin)
    pid: int = volume["pid"]
    return pid


def condition_of(plugin: Fuse) -> str:
    (volume,) = volumes(plugin)
    text: str = volume["condition"]
    return text


def run_dir(plugin: Fuse) -> Path:
    return plugin._host.run_dir


def status_of(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}


def test_a_pod_reads_and_writes_what_a_program_serves(node: Any, target: Path, source: Path) -> None:
    assert node.mount(DRIVER, target, {}) == {"status": "Success"}
    assert (target / "hello").read_text() == "world"
    (target / "new").write_text("written")
    assert (source / "data" / "new").read_text() == "written"
    found = mounted_at(str(target))
    assert found is not None
    assert found.fs_type == "fuse.files"
    assert {"nosuid", "nodev"} <= set(found.options)


def test_an_unmount_of_the_last_pod_ends_the_program_and_leaves_nothing(
    node: Any, plugin: Fuse, target: Path, area: Path
) -> None:
    other = node.target("b")
    node.mount(DRIVER, target, {})
    node.mount(DRIVER, other, {})
    (volume,) = volumes(plugin)
    assert volume["pods"] == 2
    assert node.unmount(DRIVER, target) == {"status": "Success"}
    assert (other / "hello").read_text() == "world"
    assert node.unmount(DRIVER, other) == {"status": "Success"}
    assert (node.mounted, node.records, volumes(plugin)) == ([], [], [])
    assert not Path(f"/proc/{volume['pid']}").exists()
    assert list((area / "hosts" / "fuse").glob("*/volumes/*")) == []


def test_a_program_has_a_user_of_its_own_and_no_rights(node: Any, plugin: Fuse, target: Path) -> None:
    node.mount(DRIVER, target, {})
    node.mount(DRIVER, node.target("b"), {"program": "files"})
    users = {status_of(volume["pid"])["Uid"].split()[0] for volume in volumes(plugin)}
    assert len(users) == 2
    assert min(map(int, users)) >= 2_000_000_000
    status = status_of(volumes(plugin)[0]["pid"])
    assert (status["CapEff"], status["CapPrm"], status["NoNewPrivs"], status["Groups"]) == ("0" * 16, "0" * 16, "1", "")


def test_a_program_has_the_user_and_the_limits_that_its_administrator_gives(
    make_node: Any, make_plugin: Any, bindfs: dict[str, Any]
) -> None:
    plugin = make_plugin(files=bindfs | {"user": "daemon", "memory": "512Mi", "tasks": 64})
    node = make_node(fuse=plugin)
    assert node.mount(DRIVER, node.target("a"), {}) == {"status": "Success"}
    limits = Path(f"/proc/{pid_of(plugin)}/limits").read_text()
    assert status_of(pid_of(plugin))["Uid"].split()[0] == "1"
    assert " ".join(limits.partition("Max data size")[2].split()[:2]) == f"{512 << 20} {512 << 20}"
    assert " ".join(limits.partition("Max processes")[2].split()[:2]) == "64 64"


def test_a_pod_that_may_only_read_cannot_write(node: Any, target: Path) -> None:
    node.mount(DRIVER, target, {"kubernetes.io/readwrite": "ro"})
    with pytest.raises(OSError, match="Read-only file system"):
        (target / "new").write_text("")


# --- a program that ends


def ended(plugin: Fuse) -> int:
    """Kill the program, and wait until another one serves; return its pid."""
    former = pid_of(plugin)
    os.kill(former, signal.SIGKILL)
    until(lambda: pid_of(plugin) not in {0, former} and not condition_of(plugin), PATIENCE)
    return pid_of(plugin)


def test_a_program_that_dies_is_started_again_and_each_pod_has_its_files_again(
    node: Any, plugin: Fuse, target: Path
) -> None:
    reader = node.target("b")
    node.mount(DRIVER, target, {})
    node.mount(DRIVER, reader, {"kubernetes.io/readwrite": "ro"})
    for _ in range(2):
        ended(plugin)
        assert (target / "hello").read_text() == "world"
        assert (reader / "hello").read_text() == "world"
        (target / "written").write_text("again")
        with pytest.raises(OSError, match="Read-only file system"):
            (reader / "new").write_text("")
    for path in (target, reader):
        assert node.unmount(DRIVER, path) == {"status": "Success"}
    assert (node.mounted, volumes(plugin)) == ([], [])


CONTAINER = """
import ctypes, sys
libc = ctypes.CDLL(None, use_errno=True)
target, place, flag = sys.argv[1:]
def call(result):
    if result: raise OSError(ctypes.get_errno(), "mount")
call(libc.unshare(0x20000))
call(libc.mount(b"", b"/", b"", ctypes.c_ulong(16384 | (1 << 19)), None))
call(libc.mount(target.encode(), place.encode(), b"", ctypes.c_ulong(4096 | 16384), None))
call(libc.mount(b"", place.encode(), b"", ctypes.c_ulong(16384 | (1 << int(flag))), None))
print("ready", flush=True)
for line in sys.stdin:
    try:
        print(open(place + "/hello").read(), flush=True)
    except OSError as error:
        print(error.strerror, flush=True)
"""
SLAVE, PRIVATE = "19", "18"


@pytest.fixture
def start_container(area: Path) -> Iterator[Callable[[Path, str], Callable[[], str]]]:
    """Start what a runtime makes of a volume: a mount namespace with a copy of the pod's mount; ask it for a file."""
    started: list[subprocess.Popen[str]] = []
    subprocess.run(["mount", "--bind", area, area], check=True)
    subprocess.run(["mount", "--make-shared", area], check=True)

    def start(target: Path, propagation: str) -> Callable[[], str]:
        place = area / f"container-{len(started)}"
        place.mkdir()
        command = [sys.executable, "-c", CONTAINER, str(target), str(place), propagation]
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        started.append(child)
        to_it, from_it = child.stdin, child.stdout
        assert to_it is not None
        assert from_it is not None
        assert from_it.readline() == "ready\n"

        def ask() -> str:
            to_it.write("read\n")
            to_it.flush()
            return from_it.readline().strip()

        return ask

    yield start
    for child in started:
        child.kill()
        child.communicate()


@pytest.mark.whole
@pytest.mark.programs("mount")
def test_a_container_that_asks_for_propagation_has_its_files_again_and_another_one_is_told_about(
    start_container: Any, make_node: Any, make_plugin: Any, bindfs: dict[str, Any]
) -> None:
    plugin = make_plugin(files=bindfs)
    node = make_node(fuse=plugin)
    target, other = node.target("a"), node.target("b")
    node.mount(DRIVER, target, {})
    node.mount(DRIVER, other, {})
    follows = start_container(target, SLAVE)
    assert follows() == "world"
    ended(plugin)
    assert follows() == "world"
    ended(plugin)
    assert follows() == "world"
    stays = start_container(other, PRIVATE)
    assert stays() == "world"
    former = pid_of(plugin)
    os.kill(former, signal.SIGKILL)
    until(lambda: "one container still see" in condition_of(plugin), PATIENCE)
    assert "start these containers again" in condition_of(plugin)
    assert stays() == "Transport endpoint is not connected"
    assert follows() == "world"
    assert pid_of(plugin) != former


# --- a daemon that ends


def test_the_next_daemon_adopts_a_program_and_its_pods_notice_nothing(
    make_node: Any, make_plugin: Any, bindfs: dict[str, Any]
) -> None:
    plugin = make_plugin(files=bindfs)
    node = make_node(fuse=plugin)
    target = node.target("a")
    node.mount(DRIVER, target, {})
    with (target / "hello").open() as held:
        pid = pid_of(plugin)
        plugin.stop()
        successor = make_plugin(files=bindfs)
        assert pid_of(successor) == pid
        assert held.read() == "world"
    os.kill(pid, signal.SIGKILL)
    until(lambda: pid_of(successor) not in {0, pid} and not condition_of(successor), PATIENCE)
    assert (target / "hello").read_text() == "world"
    assert make_node(fuse=successor).unmount(DRIVER, target) == {"status": "Success"}
    assert volumes(successor) == []


def test_a_program_that_ended_without_a_daemon_is_started_again_by_the_next_one(
    make_node: Any, make_plugin: Any, bindfs: dict[str, Any]
) -> None:
    plugin = make_plugin(files=bindfs)
    target = make_node(fuse=plugin).target("a")
    make_node(fuse=plugin).mount(DRIVER, target, {})
    pid = pid_of(plugin)
    plugin.stop()
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    successor = make_plugin(files=bindfs)
    until(lambda: pid_of(successor) not in {0, pid} and not condition_of(successor), PATIENCE)
    assert (target / "hello").read_text() == "world"
    assert make_node(fuse=successor).unmount(DRIVER, target) == {"status": "Success"}


@pytest.mark.whole
def test_a_daemon_that_is_killed_at_any_step_of_a_start_leaves_nothing_after_the_next_ones_unstage(
    area: Path, make_plugin: Any, source: Path, make_host: Any
) -> None:
    folder, staging = make_host("fuse").state_dir.parent, area / "staged"

    def assert_nothing_is_left() -> None:
        plugin = make_plugin(files={"command": ["bindfs", "-f", str(source / "data"), "{mountpoint}"]})
        plugin.volume_unstage(VolumeUnstage(driver=DRIVER, volume_id=VolumeId("x"), staging_path=str(staging)))
        assert [one.target for one in mounts() if Path(one.target).is_relative_to(area)] == []
        assert list(folder.glob("*/volumes/*")) == []
        until(lambda: not any(str(folder).encode() in seen(one) for one in Path("/proc").glob("[0-9]*/environ")), 10)
        staging.rmdir()

    words = [str(folder), str(source / "data"), str(staging)]
    for _ in every_step("tests.node.volumes.killed_fuse", words, least=10, prepare=staging.mkdir):
        assert_nothing_is_left()
    assert_nothing_is_left()  # nor after the one that was not killed


def seen(environment: Path) -> bytes:
    with suppress(OSError):
        return environment.read_bytes()
    return b""


# --- a program that hangs


def stats_of(plugin: Fuse) -> VolumeStats:
    (volume,) = volumes(plugin)
    return plugin.volume_stats(
        VolumeStatsRequest(driver=DRIVER, volume_id=VolumeId(volume["volume"]), mount_path="/anywhere")
    )


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take a program for hung that does not answer within one second, instead of five."""
    monkeypatch.setattr(volume, "LOOK_TIMEOUT", 1.0)


@pytest.fixture
def hung(impatient: None, node: Any, plugin: Fuse, target: Path) -> int:
    """The pid of a program that does not answer any more, and is known not to."""
    node.mount(DRIVER, target, {})
    pid = pid_of(plugin)
    os.kill(pid, signal.SIGSTOP)
    until(lambda: "does not answer" in condition_of(plugin), PATIENCE)
    return pid


@pytest.mark.usefixtures("hung")
def test_a_program_that_hangs_holds_no_call_and_its_condition_says_so(node: Any, plugin: Fuse) -> None:
    assert stats_of(plugin).condition == "program 'files' does not answer"
    assert stats_of(plugin).total > 0
    answer = node.mount(DRIVER, node.target("b"), {})
    assert "program 'files' does not answer" in answer["message"]
    assert [path for path in node.mounted if path.endswith("/b")] == []


def test_a_pod_ends_although_the_program_of_its_volume_hangs(
    node: Any, plugin: Fuse, target: Path, hung: int, area: Path
) -> None:
    waiting = subprocess.Popen(["cat", target / "hello"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert node.unmount(DRIVER, target) == {"status": "Success"}
    assert (node.mounted, node.records, volumes(plugin)) == ([], [], [])
    assert not Path(f"/proc/{hung}").exists()
    assert list((area / "hosts" / "fuse").glob("*/volumes/*")) == []
    assert waiting.communicate(timeout=PATIENCE)
    assert waiting.returncode != 0


def test_a_program_that_answers_again_is_served_on(node: Any, plugin: Fuse, target: Path, hung: int) -> None:
    os.kill(hung, signal.SIGCONT)
    until(lambda: condition_of(plugin) == "", PATIENCE)
    assert pid_of(plugin) == hung
    assert (target / "hello").read_text() == "world"
    assert node.mount(DRIVER, node.target("b"), {}) == {"status": "Success"}


@pytest.mark.usefixtures("impatient")
def test_a_program_that_hangs_is_replaced_where_its_administrator_says_so(
    make_node: Any, make_plugin: Any, bindfs: dict[str, Any]
) -> None:
    plugin = make_plugin(files=bindfs | {"restart_after_hang": "100ms"})
    target = make_node(fuse=plugin).target("a")
    make_node(fuse=plugin).mount(DRIVER, target, {})
    former = pid_of(plugin)
    os.kill(former, signal.SIGSTOP)
    until(lambda: pid_of(plugin) not in {0, former} and not condition_of(plugin), PATIENCE)
    assert (target / "hello").read_text() == "world"
    assert not Path(f"/proc/{former}").exists()


# --- a server that is away for a while


@pytest.fixture
def fragile(source: Path) -> dict[str, Any]:
    """A program that starts only while its server, a file, is there."""
    (source / "up").write_text("")
    script = f'test -e {source}/up || exit 9; exec bindfs -f {source}/data "$1"'
    return {"command": ["sh", "-c", script, "sh", "{mountpoint}"]}


@pytest.fixture
def away(make_node: Any, make_plugin: Any, fragile: dict[str, Any], source: Path) -> tuple[Any, Fuse]:
    """A node whose pod "a" has a volume that cannot be served just now."""
    plugin = make_plugin(files=fragile)
    node = make_node(fuse=plugin)
    node.mount(DRIVER, node.target("a"), {})
    (source / "up").unlink()
    os.kill(pid_of(plugin), signal.SIGKILL)
    until(lambda: "it is not served" in condition_of(plugin), PATIENCE)
    return node, plugin


@pytest.mark.whole
def test_a_pod_that_comes_during_an_outage_waits_and_the_one_that_was_there_has_its_files_again(
    away: tuple[Any, Fuse], source: Path, area: Path
) -> None:
    node, plugin = away
    one, two = area / "pods" / "a", node.target("b")
    assert "ended with status 9" in node.mount(DRIVER, two, {})["message"]
    assert mounted_at(str(two)) is None
    (source / "up").write_text("")
    until(lambda: condition_of(plugin) == "", PATIENCE)
    assert (one / "hello").read_text() == "world"
    assert node.mount(DRIVER, two, {}) == {"status": "Success"}
    for path in (one, two):
        assert node.unmount(DRIVER, path) == {"status": "Success"}
    assert (node.mounted, node.records, volumes(plugin)) == ([], [], [])
    assert list((area / "hosts" / "fuse").glob("*/volumes/*")) == []


def test_a_pod_that_comes_first_after_an_outage_brings_all_others_their_files_back(
    away: tuple[Any, Fuse], source: Path
) -> None:
    node, plugin = away
    plugin.stop()  # no watch, so that it is this pod that comes first
    (source / "up").write_text("")
    assert node.mount(DRIVER, node.target("b"), {}) == {"status": "Success"}
    assert [(node.target(name) / "hello").read_text() for name in "ab"] == ["world", "world"]


def test_the_end_of_the_last_pod_during_an_outage_leaves_nothing(away: tuple[Any, Fuse], area: Path) -> None:
    node, plugin = away
    node.mount(DRIVER, node.target("b"), {})
    assert node.unmount(DRIVER, area / "pods" / "a") == {"status": "Success"}
    assert (node.mounted, node.records, volumes(plugin)) == ([], [], [])
    assert list((area / "hosts" / "fuse").glob("*/volumes/*")) == []


def test_a_volume_that_a_pod_still_has_is_not_ended(node: Any, plugin: Fuse, target: Path) -> None:
    node.mount(DRIVER, target, {})
    (volume,) = volumes(plugin)
    request = VolumeUnstage(driver=DRIVER, volume_id=VolumeId(volume["volume"]), staging_path=str(node.area / "none"))
    with pytest.raises(TryAgain, match="still have it"):
        plugin.volume_unstage(request)
    assert (target / "hello").read_text() == "world"
    assert pid_of(plugin) == volume["pid"]


@pytest.mark.programs("mount")
def test_containers_that_see_a_former_program_keep_no_pod_out_and_the_present_one_may_save_what_it_holds(
    start_container: Any, make_node: Any, make_plugin: Any, source: Path
) -> None:
    script = f'bindfs -f {source}/data "$1"; sleep 1; echo saved > {source}/data/saved'
    plugin = make_plugin(files={"command": ["sh", "-c", script, "sh", "{mountpoint}"]})
    node = make_node(fuse=plugin)
    one, two = node.target("a"), node.target("b")
    node.mount(DRIVER, one, {})
    start_container(one, PRIVATE)
    os.kill(pid_of(plugin), signal.SIGKILL)
    until(lambda: "one container still see" in condition_of(plugin), PATIENCE)
    assert node.mount(DRIVER, two, {}) == {"status": "Success"}
    for path in (one, two):
        assert node.unmount(DRIVER, path) == {"status": "Success"}
    assert (source / "data" / "saved").read_text() == "saved\n"


@pytest.mark.usefixtures("impatient")
def test_a_program_that_answers_again_may_save_what_it_holds_although_nobody_has_looked_since(
    make_node: Any, make_plugin: Any, source: Path
) -> None:
    script = f'bindfs -f {source}/data "$1"; sleep 1; echo saved > {source}/data/saved'
    plugin = make_plugin(files={"command": ["sh", "-c", script, "sh", "{mountpoint}"]})
    node = make_node(fuse=plugin)
    node.mount(DRIVER, node.target("a"), {})
    (own,) = [pid for pid in strays(Room.of(run_dir(plugin), volumes(plugin)[0]["volume"])) if pid != pid_of(plugin)]
    os.kill(own, signal.SIGSTOP)
    until(lambda: "does not answer" in condition_of(plugin), PATIENCE)
    plugin.stop()
    os.kill(own, signal.SIGCONT)
    assert node.unmount(DRIVER, node.target("a")) == {"status": "Success"}
    assert (source / "data" / "saved").read_text() == "saved\n"


def test_a_program_without_a_pid_has_no_last_words_and_the_daemons_other_children_stay_its_own(area: Path) -> None:
    child = subprocess.Popen(["sh", "-c", "exit 3"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    room = Room.of(area, "x")
    assert Server(room, "files").last_words(Record("x", "files", {}, "/anywhere", 1, 1)) == ""
    assert child.wait() == 3


def test_a_watch_that_is_closed_while_the_plugin_stops_is_asked_nothing(node: Any, plugin: Fuse, target: Path) -> None:
    assert node.mount(DRIVER, target, {}) == {"status": "Success"}
    (watched,) = plugin._volumes.values()
    assert node.unmount(DRIVER, target) == {"status": "Success"}
    watched.ask_to_leave()
    watched.leave()
    watched.close()


def test_a_daemon_with_more_descriptors_than_select_knows_serves_volumes(node: Any, plugin: Fuse, target: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, limits[1]), limits[1]))
    with ExitStack() as held:
        held.callback(resource.setrlimit, resource.RLIMIT_NOFILE, limits)
        for _ in range(1100):
            held.callback(os.close, os.open(os.devnull, os.O_RDONLY))
        assert node.mount(DRIVER, target, {}) == {"status": "Success"}
        ended(plugin)
        assert (target / "hello").read_text() == "world"
        assert node.unmount(DRIVER, target) == {"status": "Success"}
        assert node.mounted == []


KILLED_WHILE_IT_CUTS = """
import os, signal, sys
from pathlib import Path
from nodeplug_volumes import responding
from nodeplug_volumes.fuse.room import Record, Room
from nodeplug_volumes.fuse.server import Server
responding._CONNECTIONS = "/no/such/folder"
responding._abort = lambda connection: os.kill(os.getpid(), signal.SIGKILL)
room = Room.of(Path(sys.argv[1]), sys.argv[2])
Server(room, "files").end(room.read(), at_once=True)
"""


@pytest.mark.usefixtures("target", "hung")
def test_a_daemon_that_is_killed_while_it_cuts_a_connection_leaves_no_mount_for_the_next_one(
    node: Any, plugin: Fuse, make_plugin: Any, bindfs: dict[str, Any]
) -> None:
    plugin.stop()
    command = [sys.executable, "-c", KILLED_WHILE_IT_CUTS, str(run_dir(plugin)), volumes(plugin)[0]["volume"]]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    assert "fusectl" in [one.fs_type for one in mounts() if Path(one.target).is_relative_to(node.area)]
    make_plugin(files=bindfs)
    assert "fusectl" not in [one.fs_type for one in mounts() if Path(one.target).is_relative_to(node.area)]
    assert list(run_dir(plugin).glob("connections/*")) == []


@pytest.mark.parametrize("before", [0, 200, 370, 385, 390, 395])
def test_a_secret_is_masked_in_any_form_and_also_where_the_output_is_cut(
    make_node: Any, make_plugin: Any, before: int
) -> None:
    script = f"""
        printf "%s %s %s %s" "$TOKEN" geheim%2F4711%2Bx%3D geheim%2f4711%2bx%3d Z2VoZWltLzQ3MTEreD0=
        head -c {before} /dev/zero | tr "\\0" .; exit 1"""
    plugin = make_plugin(
        tells={"command": ["sh", "-c", script, "{mountpoint}"], "secrets": {"token": {"environment": "TOKEN"}}}
    )
    node = make_node(fuse=plugin)
    given = {f"{SECRET}token": b64encode(b"geheim/4711+x=").decode()}
    message = node.mount(DRIVER, node.target("a"), given)["message"]
    assert "program 'tells' ended with status 1" in message
    assert not re.search("heim|4711|ehei|Z2Vo|MTEre|ZWlt", message), message


# --- what is refused, and what is said


def test_a_program_that_does_not_start_says_why_and_leaves_nothing(
    make_node: Any, make_plugin: Any, area: Path
) -> None:
    plugin = make_plugin(broken={"command": ["sh", "-c", "echo no such bucket >&2; exit 3", "{mountpoint}"]})
    node = make_node(fuse=plugin)
    answer = node.mount(DRIVER, node.target("a"), {})
    assert "program 'broken' ended with status 3: no such bucket" in answer["message"]
    assert (node.mounted, volumes(plugin)) == ([], [])
    assert list((area / "hosts" / "fuse").glob("*/volumes/*")) == []


def test_a_program_that_never_answers_is_ended(make_node: Any, make_plugin: Any) -> None:
    plugin = make_plugin(slow={"command": ["sh", "-c", "sleep 1000", "{mountpoint}"], "start_timeout": "500ms"})
    node = make_node(fuse=plugin)
    answer = node.mount(DRIVER, node.target("a"), {})
    assert "program 'slow' has not answered 0.5 s after its start" in answer["message"]
    assert (node.mounted, volumes(plugin)) == ([], [])


def test_a_program_that_is_not_installed_is_told(make_node: Any, make_plugin: Any) -> None:
    plugin = make_plugin(none={"command": ["no-such-program", "{mountpoint}"]})
    node = make_node(fuse=plugin)
    assert "no-such-program cannot be executed" in node.mount(DRIVER, node.target("a"), {})["message"]
    with pytest.raises(NotReady, match="programs are missing on this node: no-such-program"):
        plugin.health()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"folder": "../etc"}, "option folder is '../etc'; it has to match '[a-z]+'"),
        ({"folder": ""}, "it has to match"),
        ({"o": "allow_root"}, "program 'files' has no option 'o'; it has folder"),
        ({"program": "sh"}, "option program is 'sh'; this node has: files"),
    ],
)
def test_a_pod_chooses_only_what_its_program_declares(
    node: Any, target: Path, options: dict[str, str], message: str
) -> None:
    assert message in node.mount(DRIVER, target, options)["message"]
    assert node.mounted == []


TELLS = 'cat /tmp/secrets/key; echo "$TOKEN"; ls -ln /tmp/secrets/key; exit 1'


def test_a_secret_reaches_the_program_alone(
    make_node: Any, make_plugin: Any, bindfs: dict[str, Any], area: Path, caplog: pytest.LogCaptureFixture
) -> None:
    secrets = {"key": {}, "token": {"environment": "TOKEN"}}
    given = {f"{SECRET}key": b64encode(b"geheim-1").decode(), f"{SECRET}token": b64encode(b"geheim-2").decode()}
    plugin = make_plugin(
        files=bindfs | {"secrets": secrets}, tells={"command": ["sh", "-c", TELLS, "{mountpoint}"], "secrets": secrets}
    )
    node = make_node(fuse=plugin)
    target = node.target("a")
    assert node.mount(DRIVER, target, {"program": "files"} | given) == {"status": "Success"}
    pid = pid_of(plugin)
    assert Path(f"/proc/{pid}/root/tmp/secrets/key").read_bytes() == b"geheim-1"
    assert b"TOKEN=geheim-2" in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    assert Path(f"/proc/{pid}/root/tmp/secrets/key").stat().st_mode & 0o777 == 0o400
    assert b"geheim" not in Path(f"/proc/{pid}/cmdline").read_bytes()
    on_disk = [
        path for path in area.rglob("*") if path.is_file() and "private" not in path.parts and "pods" not in path.parts
    ]
    assert on_disk != []
    assert [path for path in on_disk if b"geheim" in path.read_bytes()] == []
    os.kill(pid, signal.SIGKILL)
    until(lambda: pid_of(plugin) not in {0, pid} and not condition_of(plugin), PATIENCE)
    assert Path(f"/proc/{pid_of(plugin)}/root/tmp/secrets/key").read_bytes() == b"geheim-1"
    node.unmount(DRIVER, target)
    answer = node.mount(DRIVER, target, {"program": "tells"} | given)
    assert "program 'tells' ended with status 1" in answer["message"]
    assert "geheim" not in json.dumps(answer) + caplog.text


@pytest.mark.parametrize("name", ["other", "key"])
def test_a_secret_that_no_program_takes_and_a_missing_one_are_refused(
    make_node: Any, make_plugin: Any, bindfs: dict[str, Any], name: str
) -> None:
    plugin = make_plugin(files=bindfs | {"secrets": {"key": {}, "more": {}} if name == "key" else {}})
    node = make_node(fuse=plugin)
    answer = node.mount(DRIVER, node.target("a"), {f"{SECRET}{name}": b64encode(b"geheim").decode()})
    assert ("lacks more" if name == "key" else "has other, which the program does not take") in answer["message"]


def test_volumes_that_come_and_go_leave_no_descriptor_and_no_thread_open(node: Any, target: Path) -> None:
    def watches() -> int:
        return sum(thread.name.startswith("fuse:") for thread in threading.enumerate())

    assert node.mount(DRIVER, target, {}) == {"status": "Success"}
    node.unmount(DRIVER, target)
    before = len(open_descriptors()), watches()
    for _ in range(3):
        node.mount(DRIVER, target, {})
        node.unmount(DRIVER, target)
        node.mount(DRIVER, target, {"folder": "none"})
    until(lambda: len(open_descriptors()) <= before[0])  # other threads have some for a moment
    assert watches() == before[1]


def test_a_volume_that_is_not_staged_is_not_found(plugin: Fuse) -> None:
    with pytest.raises(NotFound, match="is not staged on this node"):
        plugin.volume_stats(VolumeStatsRequest(driver=DRIVER, volume_id=VolumeId("x"), mount_path="/anywhere"))
    assert volumes(plugin) == []


def test_a_volume_may_be_staged_anywhere_on_the_node(plugin: Fuse, area: Path) -> None:
    """Also where what the program needs itself lies below the same folder."""
    staging = area / "staged"
    staging.mkdir()
    plugin.volume_stage(VolumeStage(driver=DRIVER, volume_id=VolumeId("x"), staging_path=str(staging)))
    assert (staging / "hello").read_text() == "world"
    plugin.volume_unstage(VolumeUnstage(driver=DRIVER, volume_id=VolumeId("x"), staging_path=str(staging)))
    assert mounted_at(str(staging)) is None
