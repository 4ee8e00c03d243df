"""Delegation to foreign executables on CNI_PATH, and to plugins of the same daemon."""

import json
import os
import threading
from collections.abc import Callable
from ipaddress import ip_interface
from pathlib import Path
from typing import Any, cast

import pytest

from nodeplug import (
    CniAdd,
    CniCheck,
    CniClaim,
    CniDel,
    CniGc,
    CniIp,
    CniRequest,
    CniResult,
    CniStatus,
    Exhausted,
    NotReady,
    hookimpl,
)
from nodeplug.testing import ExecRoad

Env = Callable[..., dict[str, str]]
CONFIG = {"cniVersion": "1.1.0", "name": "net", "type": "test", "ipam": {"type": "foreign", "odd": [1, None]}}
ANSWER = '{"cniVersion": "1.0.0", "ips": [{"address": "10.1.0.5/16"}]}'


class Delegator:
    """Hands every verb to the delegate that the configuration names."""

    def __init__(self, road: ExecRoad) -> None:
        self.road = road
        self.results: list[Any] = []

    @hookimpl
    def claims(self) -> list[CniClaim]:
        return [CniClaim("test")]

    def pass_on(self, request: CniRequest) -> CniResult | None:
        result = self.road.delegation(request, request.config["ipam"]["type"], request.config)
        self.results.append(result)
        return result

    @hookimpl
    def cni_add(self, request: CniAdd) -> CniResult:
        return cast("CniResult", self.pass_on(request))

    @hookimpl
    def cni_del(self, request: CniDel) -> None:
        self.pass_on(request)

    @hookimpl
    def cni_check(self, request: CniCheck) -> None:
        self.pass_on(request)

    @hookimpl
    def cni_gc(self, request: CniGc) -> None:
        self.pass_on(request)

    @hookimpl
    def cni_status(self, request: CniStatus) -> None:
        self.pass_on(request)


class Ipam:
    """A delegate in the same daemon."""

    def __init__(self) -> None:
        self.requests: list[CniRequest] = []
        self.free = True

    @hookimpl
    def claims(self) -> list[CniClaim]:
        return [CniClaim("own-ipam")]

    @hookimpl
    def health(self) -> None:
        if not self.free:
            raise NotReady("0 of 254 addresses are free")

    @hookimpl
    def cni_add(self, request: CniAdd) -> CniResult:
        self.requests.append(request)
        if not self.free:
            raise Exhausted("no address is left in 10.1.0.0/16: 65533 of 65533 are in use")
        return CniResult(ips=(CniIp(ip_interface("10.1.0.9/16")),))

    @hookimpl
    def cni_del(self, request: CniDel) -> None:
        self.requests.append(request)


@pytest.fixture
def delegator(road: ExecRoad) -> Delegator:
    plugin = Delegator(road)
    road.load("delegator", plugin)
    road.start()
    return plugin


def foreign(road: ExecRoad, body: str, name: str = "foreign") -> None:
    path = road.bin / name
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


@pytest.mark.usefixtures("delegator")
def test_a_foreign_delegate_gets_the_environment_and_the_whole_configuration(
    road: ExecRoad, env: Env, tmp_path: Path
) -> None:
    foreign(road, f"env > {tmp_path}/env; cat > {tmp_path}/stdin; echo '{ANSWER}'")
    call = env("ADD", CNI_ARGS="A=1;B=2")
    assert road.call("test", call, CONFIG).status == 0
    assert json.loads((tmp_path / "stdin").read_text()) == CONFIG
    seen = dict(line.split("=", 1) for line in (tmp_path / "env").read_text().splitlines())
    assert {name: value for name, value in seen.items() if name.startswith("CNI_")} == call


@pytest.mark.usefixtures("delegator")
@pytest.mark.parametrize(("said", "passed"), [("none", ""), ("IgnoreUnknown=1;A=1;", "IgnoreUnknown=1;A=1")])
def test_a_foreign_delegate_is_asked_to_end_what_no_add_could_read(
    road: ExecRoad, env: Env, tmp_path: Path, said: str, passed: str
) -> None:
    """Go's library refuses such pairs in every verb, and a refused DEL would be repeated for ever."""
    foreign(road, f"env > {tmp_path}/env")
    assert road.call("test", env("DEL", CNI_ARGS=said), CONFIG).status == 0
    seen = dict(line.split("=", 1) for line in (tmp_path / "env").read_text().splitlines())
    assert seen["CNI_ARGS"] == passed


def test_a_foreign_result_of_another_version_is_understood(road: ExecRoad, env: Env, delegator: Delegator) -> None:
    foreign(road, """echo '{"cniVersion":"0.4.0","ips":[{"version":"4","address":"10.1.0.5/16"}]}'""")
    done = road.call("test", env("ADD"), CONFIG)
    assert done.document == {"cniVersion": "1.1.0", "ips": [{"address": "10.1.0.5/16"}]}


@pytest.mark.usefixtures("delegator")
def test_a_foreign_delegate_runs_in_the_callers_host_namespace(road: ExecRoad, env: Env, tmp_path: Path) -> None:
    foreign(road, f"readlink /proc/self/ns/net > {tmp_path}/ns; echo '{ANSWER}'")
    assert road.call("test", env("ADD"), CONFIG).status == 0
    assert (tmp_path / "ns").read_text().strip() == os.readlink("/proc/self/ns/net")


def test_a_delegate_runs_there_even_if_the_plugin_has_moved_meanwhile(road: ExecRoad, env: Env, tmp_path: Path) -> None:
    class Moved(Delegator):
        @hookimpl
        def cni_add(self, request: CniAdd) -> CniResult:
            with request.netns.entered():
                return cast("CniResult", self.pass_on(request))

    road.load("moved", Moved(road))
    road.start()
    foreign(road, f"readlink /proc/self/ns/net > {tmp_path}/ns; echo '{ANSWER}'")
    assert road.call("test", env("ADD"), CONFIG).status == 0
    assert (tmp_path / "ns").read_text().strip() == os.readlink("/proc/self/ns/net")


def test_a_namespace_that_has_no_path_here_reaches_the_delegate_by_descriptor(
    road: ExecRoad, env: Env, tmp_path: Path, netns: Path
) -> None:
    class Elsewhere(Delegator):
        @hookimpl
        def cni_add(self, request: CniAdd) -> CniResult:
            # As if the caller's mount namespace were another one: the path as spelled is nowhere to be found.
            object.__setattr__(request.netns, "path", "/elsewhere/netns")
            return cast("CniResult", self.pass_on(request))

    road.load("elsewhere", Elsewhere(road))
    road.start()
    foreign(
        road,
        f'stat -L -c %i "$CNI_NETNS" > {tmp_path}/inode; '
        'printf \'{"interfaces":[{"name":"eth0","sandbox":"%s"}]}\' "$CNI_NETNS"',
    )
    done = road.call("test", env("ADD"), CONFIG)
    assert int((tmp_path / "inode").read_text()) == netns.stat().st_ino
    assert done.document["interfaces"] == [{"name": "eth0", "sandbox": "/elsewhere/netns"}]


@pytest.mark.usefixtures("delegator")
@pytest.mark.parametrize("verb", ["DEL", "GC", "STATUS"])
def test_every_verb_is_delegated_as_it_is(road: ExecRoad, env: Env, tmp_path: Path, verb: str) -> None:
    foreign(road, f"echo $CNI_COMMAND >> {tmp_path}/verbs")
    done = road.call("test", env(verb), CONFIG)
    assert (done.status, done.stdout) == (0, b"")
    assert (tmp_path / "verbs").read_text().split() == [verb]


@pytest.mark.usefixtures("delegator")
def test_the_error_of_a_delegate_keeps_its_code_and_is_followed_by_del(
    road: ExecRoad, env: Env, tmp_path: Path
) -> None:
    foreign(
        road,
        f"""echo $CNI_COMMAND >> {tmp_path}/verbs; echo '{{"code": 123, "msg": "no", "details": "why"}}'; exit 1""",
    )
    done = road.call("test", env("ADD"), CONFIG)
    assert done.status == 1
    assert (done.document["code"], done.document["msg"]) == (123, "no")
    assert done.document["details"].startswith("why; request ")
    assert (tmp_path / "verbs").read_text().split() == ["ADD", "DEL"]


@pytest.mark.usefixtures("delegator")
@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("exit 3", "netplugin failed with no error message: exit status 3"),
        ("kill -9 $$", "netplugin failed with no error message: signal: killed"),
        ("echo boom >&2; exit 1", 'netplugin failed: "boom'),
        ("echo Traceback; exit 1", 'netplugin failed but error parsing its diagnostic message "Traceback'),
        ("exit 0", "failed to unmarshal raw result"),
        ("echo Traceback", "failed to unmarshal raw result"),
        ("echo '[]'", "failed to unmarshal raw result"),
        ("""echo '{"ips":[{"address":"10.0.0.1"}]}'""", "failed to unmarshal raw result"),
    ],
)
def test_an_answer_that_is_no_cni_is_999_with_the_words_of_libcni(
    road: ExecRoad, env: Env, body: str, text: str
) -> None:
    foreign(road, body)
    done = road.call("test", env("ADD"), CONFIG)
    assert done.document["code"] == 999
    assert done.document["msg"].startswith(text)


@pytest.mark.usefixtures("delegator")
def test_stderr_of_a_delegate_is_passed_on(road: ExecRoad, env: Env) -> None:
    foreign(road, f"echo a remark >&2; echo '{ANSWER}'")
    done = road.call("test", env("ADD"), CONFIG)
    assert (done.status, done.stderr) == (0, b"a remark\n")


@pytest.mark.usefixtures("delegator")
def test_a_missing_delegate_is_named_with_where_it_was_looked_for(road: ExecRoad, env: Env) -> None:
    done = road.call("test", env("ADD"), CONFIG)
    assert done.document["msg"].startswith(f'failed to find plugin "foreign" in path [{road.bin}]')


@pytest.mark.usefixtures("delegator")
@pytest.mark.parametrize("name", ["../foreign", ""])
def test_a_delegate_name_that_is_no_file_name_is_code_7(road: ExecRoad, env: Env, name: str) -> None:
    done = road.call("test", env("ADD"), {**CONFIG, "ipam": {"type": name}})
    assert done.document["code"] == 7


def test_a_delegate_that_hangs_is_killed_with_its_children(road: ExecRoad, env: Env, tmp_path: Path) -> None:
    object.__setattr__(road.delegation, "timeout", 0.3)
    road.load("delegator", Delegator(road))
    road.start()
    foreign(road, f"sleep 1000 & echo $! > {tmp_path}/child; wait")
    done = road.call("test", env("DEL"), CONFIG)
    assert done.document["code"] == 11
    state = Path(f"/proc/{(tmp_path / 'child').read_text().strip()}/stat")
    for _ in range(200):
        if not state.exists() or state.read_text().split()[2] == "Z":
            break
        threading.Event().wait(0.02)
    assert not state.exists() or state.read_text().split()[2] == "Z"


@pytest.mark.usefixtures("delegator")
def test_a_delegate_that_is_being_copied_over_is_tried_again(road: ExecRoad, env: Env) -> None:
    path = road.bin / "foreign"
    path.write_bytes(Path("/bin/true").read_bytes())
    path.chmod(0o755)
    writer = os.open(path, os.O_WRONLY)
    closing = threading.Timer(0.5, os.close, (writer,))
    closing.start()
    done = road.call("test", env("DEL"), CONFIG)
    closing.join()
    assert (done.status, done.stdout) == (0, b"")


def test_a_claim_of_this_daemon_is_called_without_a_process(road: ExecRoad, env: Env) -> None:
    ipam = Ipam()
    road.registry.load("ipam", ipam, "this process")
    road.load("delegator", Delegator(road))
    road.start()
    own = {**CONFIG, "ipam": {"type": "own-ipam"}}
    done = road.call("test", env("ADD"), own)
    assert done.document["ips"] == [{"address": "10.1.0.9/16"}]
    assert [(request.claim, request.config) for request in ipam.requests] == [("own-ipam", own)]
    assert not (road.bin / "own-ipam").exists()


def test_an_own_delegate_keeps_its_error_and_its_health(road: ExecRoad, env: Env) -> None:
    ipam = Ipam()
    ipam.free = False
    road.registry.load("ipam", ipam, "this process")
    road.load("delegator", Delegator(road))
    road.start()
    own = {**CONFIG, "ipam": {"type": "own-ipam"}}
    assert road.call("test", env("ADD"), own).document["code"] == 11
    assert road.call("test", env("STATUS"), own).document["code"] == 50
    assert road.call("test", env("GC"), own).status == 0
