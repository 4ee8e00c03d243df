"""Each FUSE program has a cgroup of its own, where the daemon may make one: its limits end it alone, and are told."""

import json
import os
import secrets
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.fuse_programs import shared_folder
from tests.node.workers.own_cgroups import OwnCgroups, own_cgroups, skip_without
from tests.started import until_all_run

from nodeplug import InvalidRequest, Pod, TryAgain, mounts, unmount
from nodeplug.exec.client import ask
from nodeplug.testing import FlexCaller, FlexVolume, ScratchNode, folders
from nodeplug.testing.inventory import CGROUPS
from nodeplug.testing.waiting import until
from nodeplug.worker import cgroup
from nodeplug.worker.cgroups import PROGRAM, Cgroups
from nodeplug.worker.hierarchies import members
from nodeplug.worker.programs import Programs
from nodeplug_volumes.fuse import server
from nodeplug_volumes.fuse.config import FuseConfig
from nodeplug_volumes.fuse.plugin import Fuse

pytestmark = [pytest.mark.node, pytest.mark.usefixtures("has_fuse")]
DRIVER = "nodeplug/fuse"
POD = Pod(name="web", uid="uid-1")
PATIENCE = 30
TOLD = "program 'files' ended: it exceeded its memory of 64 MiB"
EATS = "exec tail /dev/zero"
CHILD_EATS = "tail /dev/zero & wait; sleep 1000"


@pytest.fixture
def source() -> Iterator[Path]:
    with shared_folder() as folder:
        os.mkfifo(folder / "eat")
        (folder / "eat").chmod(0o666)
        yield folder


def script_of_eater(source: Path, how: str = EATS) -> str:
    """Return a script that serves a folder, and eats memory when it is told to by `let_one_eat`."""
    return f'bindfs -f {source} "$1" & until read word < {source}/eat; do :; done; {how}'


def let_one_eat(source: Path) -> None:
    """Tell one of the programs that serve a folder: they all read the same pipe, and one of them gets the word."""

    def told() -> bool:
        with suppress(OSError):  # none reads it yet
            pipe = os.open(source / "eat", os.O_WRONLY | os.O_NONBLOCK)
            os.write(pipe, b"\n")
            os.close(pipe)
            return True
        return False

    until(told, PATIENCE)


def eater(source: Path, how: str = EATS) -> dict[str, Any]:
    """Return a program that serves a folder, and eats memory when it is told to."""
    script = script_of_eater(source, how)
    options = {"which": {"default": "one"}}
    return {"command": ["sh", "-c", script, "sh", "{mountpoint}", "{which}"], "options": options, "memory": "64Mi"}


@pytest.fixture
def own() -> Iterator[OwnCgroups]:
    with own_cgroups() as found:
        skip_without(found, "memory")
        skip_without(found, "pids")
        yield found


@pytest.fixture
def make_plugin(make_host: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Fuse]]:
    """Make a plugin; the same programs again act as a restart of the daemon, which looks for cgroups anew."""
    started: list[Fuse] = []
    monkeypatch.setattr(server, "_END", 1.0)  # the shells of these programs heed no SIGTERM

    def make(*, cgroups: bool = True, outside: str = "", **programs: dict[str, Any]) -> Fuse:
        config = FuseConfig.model_validate({"programs": programs, "check_interval": "100ms"})
        plugin = Fuse(config, replace(make_host("fuse"), cgroups=Programs(Cgroups(cgroups, outside), "fuse")))
        plugin.start()
        started.append(plugin)
        return plugin

    yield make
    for plugin in started:
        plugin.stop()


def programs(own: OwnCgroups) -> list[Path]:
    return sorted(one for folder in set(own.folders.values()) for one in folder.glob(f"{PROGRAM}*"))


def volumes(plugin: Fuse) -> list[dict[str, Any]]:
    return list(plugin.inspect()["volumes"])


def pid_of(plugin: Fuse, options: str = "one") -> int:
    return int(next(one["pid"] for one in volumes(plugin) if options in one["volume"]))


def serves(target: Path) -> bool:
    """Whether a pod reads its file; while a program is started again it does not."""
    with suppress(OSError):
        return (target / "hello").read_text() == "world"
    return False


@pytest.mark.parametrize("how", [pytest.param(EATS, marks=pytest.mark.whole), CHILD_EATS])
def test_a_program_that_exceeds_its_memory_ends_alone_and_serves_again_and_says_why(
    how: str, own: OwnCgroups, make_node: Any, make_plugin: Any, source: Path
) -> None:
    plugin = make_plugin(files=eater(source, how))
    node = make_node(fuse=plugin)
    target, other = node.target("a"), node.target("b")
    for path, which in ((target, "one"), (other, "two")):
        assert node.mount(DRIVER, path, {"which": which}) == {"status": "Success"}
    before = {one["volume"]: one["pid"] for one in volumes(plugin)}
    let_one_eat(source)
    until(lambda: any(one["last_end"] and one["pid"] not in before.values() for one in volumes(plugin)), PATIENCE)
    until(lambda: all(one["pid"] for one in volumes(plugin)) and serves(target) and serves(other), PATIENCE)
    (ended,) = [one for one in volumes(plugin) if one["last_end"]]
    assert ended["last_end"] == TOLD
    assert [volume for volume, pid in before.items() if not Path(f"/proc/{pid}").exists()] == [ended["volume"]]
    for path in (target, other):
        assert node.unmount(DRIVER, path) == {"status": "Success"}
    assert (node.mounted, programs(own)) == ([], [])


def test_a_program_has_a_cgroup_of_its_own_also_without_limits_and_it_goes_with_the_last_pod(
    own: OwnCgroups, make_node: Any, make_plugin: Any, source: Path
) -> None:
    program = {"command": ["sh", "-c", f'bindfs -f {source} "$1" & wait', "sh", "{mountpoint}"]}
    plugin = make_plugin(files=program)
    node = make_node(fuse=plugin)
    assert node.mount(DRIVER, node.target("a"), {}) == {"status": "Success"}
    for folder in programs(own):
        assert len(members(folder)) == 2
        assert volumes(plugin)[0]["pid"] in members(folder)
        assert os.getpid() not in members(folder)
    assert len(programs(own)) == len({own.of("memory"), own.of("pids")})
    assert node.unmount(DRIVER, node.target("a")) == {"status": "Success"}
    assert programs(own) == []


def test_a_program_starts_no_more_tasks_than_its_limit(
    own: OwnCgroups, make_node: Any, make_plugin: Any, source: Path
) -> None:
    script = f'for i in 1 2 3 4 5 6 7 8 9; do sleep 1000 & done 2>/dev/null; exec bindfs -f {source} "$1"'
    plugin = make_plugin(files={"command": ["sh", "-c", script, "sh", "{mountpoint}"], "tasks": 8, "user": "daemon"})
    node = make_node(fuse=plugin)
    answer = node.mount(DRIVER, node.target("a"), {})
    assert answer["status"] == "Failure"
    assert "program 'files' ended with status" in answer["message"]
    assert (node.mounted, programs(own)) == ([], [])


def test_the_next_daemon_finds_the_cgroup_of_a_program_again(
    own: OwnCgroups, make_node: Any, make_plugin: Any, source: Path
) -> None:
    plugin = make_plugin(files=eater(source))
    target = make_node(fuse=plugin).target("a")
    make_node(fuse=plugin).mount(DRIVER, target, {})
    pid = pid_of(plugin, "")
    plugin.stop()
    successor = make_plugin(files=eater(source))
    assert (pid_of(successor, ""), len(programs(own)) > 0) == (pid, True)
    let_one_eat(source)
    until(lambda: volumes(successor)[0]["last_end"] == TOLD, PATIENCE)
    until(lambda: pid_of(successor, "") not in {0, pid} and serves(target), PATIENCE)
    assert make_node(fuse=successor).unmount(DRIVER, target) == {"status": "Success"}
    assert programs(own) == []


def test_a_program_that_runs_is_left_alone_when_the_node_was_short_and_a_child_of_it_was_ended(
    own: OwnCgroups, make_node: Any, make_plugin: Any, source: Path
) -> None:
    eats = f"(echo 1000 > /proc/self/oom_score_adj; exec tail /dev/zero); touch {source}/eaten; sleep 1000"
    program = eater(source, eats) | {"memory": None}
    plugin = make_plugin(files=program)
    target = make_node(fuse=plugin).target("a")
    assert make_node(fuse=plugin).mount(DRIVER, target, {}) == {"status": "Success"}
    pid = pid_of(plugin, "")
    with short_of_memory(own):
        let_one_eat(source)
        until((source / "eaten").exists, PATIENCE)
    plugin.stop()
    successor = make_plugin(files=program)  # which decides at its first look
    (volume,) = successor._volumes.values()
    until(lambda: volume.usage is not None, PATIENCE)
    assert (pid_of(successor, ""), volumes(successor)[0]["last_end"]) == (pid, "")
    os.kill(pid, signal.SIGKILL)
    until(lambda: pid_of(successor, "") not in {0, pid} and serves(target), PATIENCE)
    assert "had no memory left" in volumes(successor)[0]["last_end"]
    assert make_node(fuse=successor).unmount(DRIVER, target) == {"status": "Success"}


@contextmanager
def short_of_memory(own: OwnCgroups) -> Iterator[None]:
    """Leave little memory to the cgroup in which all programs of the test are."""
    folder, size = own.of("memory"), 512 << 20
    limit = folder / ("memory.max" if own.is_unified("memory") else "memory.limit_in_bytes")
    limit.write_text(str(size))
    try:
        yield
    finally:
        limit.write_text("max" if own.is_unified("memory") else "-1")


@pytest.mark.whole
def test_a_program_starts_again_beside_a_cgroup_that_cannot_be_removed(
    own: OwnCgroups, make_node: Any, make_plugin: Any, source: Path
) -> None:
    plugin = make_plugin(files=eater(source))
    node = make_node(fuse=plugin)
    target = node.target("a")
    assert node.mount(DRIVER, target, {}) == {"status": "Success"}
    pid, former = pid_of(plugin, ""), programs(own)
    stuck = [folder / "stuck" for folder in former]  # acts as a process that does not die: the folder stays
    for one in stuck:
        one.mkdir()
    let_one_eat(source)
    until(lambda: pid_of(plugin, "") not in {0, pid} and serves(target), PATIENCE)
    beside = set(programs(own)) - set(former)
    assert [pid_of(plugin, "") in members(folder) for folder in beside] == [True] * len(former)
    for one in stuck:
        one.rmdir()
    assert node.unmount(DRIVER, target) == {"status": "Success"}
    assert programs(own) == []


def test_cgroups_of_one_name_that_cannot_be_removed_do_not_become_ever_more(
    own: OwnCgroups, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cgroup, "_PATIENCE", 0.1)
    cgroups, stuck = Programs(Cgroups(True), "fuse"), []
    for _ in range(8):
        cgroups.make("volume1")
        new = [folder / "stuck" for folder in programs(own) if folder / "stuck" not in stuck]
        for one in new:
            one.mkdir()
        stuck += new
    with pytest.raises(TryAgain, match="does not die"):
        cgroups.make("volume1")
    for one in stuck:
        one.rmdir()
    Cgroups(True).prepare()
    assert programs(own) == []


def test_the_next_daemon_removes_a_cgroup_whose_program_has_ended_without_one(own: OwnCgroups) -> None:
    Programs(Cgroups(True), "fuse").make("volume1", memory=64 << 20)
    assert programs(own) != []
    Cgroups(True).prepare()
    assert programs(own) == []


def test_without_cgroups_the_limits_are_those_of_each_process_and_the_log_says_so(
    make_node: Any, make_plugin: Any, source: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plugin = make_plugin(cgroups=False, files={"command": ["bindfs", "-f", str(source), "{mountpoint}"], "tasks": 64})
    assert "no cgroup limits the tasks of files: `cgroups` is false" in caplog.text
    node = make_node(fuse=plugin)
    assert node.mount(DRIVER, node.target("a"), {}) == {"status": "Success"}
    limits = Path(f"/proc/{pid_of(plugin, '')}/limits").read_text()
    assert " ".join(limits.partition("Max processes")[2].split()[:2]) == "64 64"
    assert node.unmount(DRIVER, node.target("a")) == {"status": "Success"}


SECTION = """
[plugins.fuse]
isolation = "{isolation}"
[plugins.fuse.config]
check_interval = "100ms"
[plugins.fuse.config.programs.files]
command = {command}
memory = "64Mi"
"""


@pytest.mark.whole
@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_on_a_node_a_program_keeps_its_cgroup_while_its_daemon_is_killed_and_is_ended_alone_under_the_next(
    isolation: str, own: OwnCgroups, source: Path
) -> None:
    root = Path(tempfile.mkdtemp(prefix="np-", dir="/var/tmp")).resolve()
    command = json.dumps(["sh", "-c", script_of_eater(source), "sh", "{mountpoint}"])
    section = SECTION.format(isolation=isolation, command=command)
    supervisor = 'listen = ""\ncgroups = true\nnative_entrypoints = false\n'
    node = ScratchNode(root, section, supervisor=supervisor)

    def volume() -> dict[str, Any]:
        (found,) = ask(node.paths.exec_socket, "inspect", "fuse")["fuse"]["volumes"]
        return dict(found)

    try:
        node.start()
        assert node.run("install").returncode == 0
        kubelet = FlexCaller(node.paths.flexvolume, root / "kubelet", DRIVER, timeout=60)
        target = kubelet.mount(POD, FlexVolume("data", {}))
        pid, before = volume()["pid"], programs(own)
        assert all(pid in members(folder) for folder in before)
        node.kill()
        node.start()
        until_all_run(node)
        assert (volume()["pid"], programs(own)) == (pid, before)
        let_one_eat(source)
        until(lambda: volume()["last_end"] == TOLD and volume()["pid"] not in {0, pid}, PATIENCE)
        until(lambda: serves(target), PATIENCE)
        kubelet.unmount(POD, "data")
        assert programs(own) == []
    finally:
        node.kill()
        for path in reversed([one.target for one in mounts() if Path(one.target).is_relative_to(root)]):
            unmount(path, lazy=True)
        folders.remove(root)


def test_a_name_that_would_lead_out_of_the_daemons_cgroup_is_refused(own: OwnCgroups) -> None:
    with pytest.raises(InvalidRequest, match="1 to 64 letters and digits"):
        Programs(Cgroups(True), "fuse").remove("../x")
    assert programs(own) == []


def _gone(folder: Path) -> bool:
    for one in (*(child for child in folder.iterdir() if child.is_dir()), folder):
        with suppress(OSError):
            one.rmdir()
    return not folder.exists()


@pytest.fixture
def elsewhere() -> Iterator[str]:
    """A cgroup that is not below the daemon's, by its name from the roots on."""
    name = f"/nodeplug-test-{secrets.token_hex(4)}"
    yield name
    for folder in CGROUPS.glob(f"*{name}"):
        for one in folder.iterdir():  # of a test that has failed
            for pid in members(one) if one.is_dir() else ():
                os.kill(pid, signal.SIGKILL)
        until(partial(_gone, folder))


def test_a_program_of_a_daemon_in_a_container_is_in_no_cgroup_that_ends_with_that(
    own: OwnCgroups, make_node: Any, make_plugin: Any, source: Path, elsewhere: str
) -> None:
    program = {"command": ["bindfs", "-f", str(source), "{mountpoint}"], "memory": "128Mi"}
    plugin = make_plugin(outside=elsewhere, files=program)
    node = make_node(fuse=plugin)
    assert node.mount(DRIVER, node.target("a"), {}) == {"status": "Success"}
    mine = {folder.name for folder in own.folders.values()}
    text = Path(f"/proc/{volumes(plugin)[0]['pid']}/cgroup").read_text()
    assert [name for name in mine if name in text] == []
    assert elsewhere in text
    assert programs(own) == []
    assert plugin.inspect()["no_cgroup_limits"] == {}
    plugin.stop()
    successor = make_plugin(outside=elsewhere, files=program)  # which leaves it alone
    assert serves(node.target("a"))
    assert make_node(fuse=successor).unmount(DRIVER, node.target("a")) == {"status": "Success"}
