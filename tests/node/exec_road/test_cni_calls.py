"""CNI calls from the script to a plugin and back."""

import json
import os
import subprocess
import threading
from collections.abc import Callable
from ipaddress import ip_address, ip_interface, ip_network
from pathlib import Path
from typing import Any, cast

import pytest

from nodeplug import (
    CniAdd,
    CniCheck,
    CniClaim,
    CniDel,
    CniGc,
    CniInterface,
    CniIp,
    CniResult,
    CniRoute,
    ContainerGone,
    NotReady,
    TryAgain,
    hookimpl,
)
from nodeplug.testing import CniError, CniRuntime, ExecRoad

Env = Callable[..., dict[str, str]]
CONFIG = {"cniVersion": "1.0.0", "name": "net", "type": "test"}
RESULT = CniResult(
    interfaces=(CniInterface("eth0", mac="aa:bb:cc:00:00:01", sandbox="/sandbox", mtu=1500),),
    ips=(CniIp(ip_interface("10.9.0.2/24"), gateway=ip_address("10.9.0.1"), interface=0),),
    routes=(CniRoute(ip_network("0.0.0.0/0")),),
)


class Plugin:
    """Remembers what it is asked, and does what the test says."""

    def __init__(self, act: Callable[[Any], Any] = lambda _: RESULT, name: str = "test") -> None:
        self.requests: list[Any] = []
        self.act = act
        self.name = name

    @hookimpl
    def claims(self) -> list[CniClaim]:
        return [CniClaim(self.name)]

    @hookimpl
    def cni_add(self, request: CniAdd) -> CniResult:
        self.requests.append(request)
        return cast("CniResult", self.act(request))

    @hookimpl
    def cni_del(self, request: CniDel) -> None:
        self.requests.append(request)


class Complete(Plugin):
    @hookimpl
    def cni_check(self, request: CniCheck) -> None:
        self.requests.append(request)

    @hookimpl
    def cni_gc(self, request: CniGc) -> None:
        self.requests.append(request)


class Unwell(Plugin):
    @hookimpl
    def health(self) -> None:
        raise NotReady("the pool is empty")


def serve(road: ExecRoad, plugin: Plugin) -> Plugin:
    road.load("tested", plugin)
    road.start()
    return plugin


@pytest.mark.usefixtures("no_leak")
def test_an_add_reaches_the_plugin_and_its_result_the_caller(road: ExecRoad, env: Env) -> None:
    plugin = serve(road, Plugin())
    done = road.call("test", env("ADD", CNI_ARGS="IgnoreUnknown=1;K8S_POD_NAME=web"), CONFIG)
    assert (done.status, done.stderr) == (0, b"")
    assert done.document["ips"] == [{"address": "10.9.0.2/24", "gateway": "10.9.0.1", "interface": 0}]
    (request,) = plugin.requests
    assert (request.network, request.container_id, request.ifname) == ("net", "c1", "eth0")
    assert request.args == {"IgnoreUnknown": "1", "K8S_POD_NAME": "web"}


def test_the_plugin_starts_in_the_callers_namespace_and_sees_the_containers(
    road: ExecRoad, env: Env, netns: Path
) -> None:
    seen: list[str] = []

    def look(request: CniAdd) -> CniResult:
        seen.append(os.readlink("/proc/thread-self/ns/net"))
        with request.netns.entered():
            seen.append(os.readlink("/proc/thread-self/ns/net"))
        return RESULT

    serve(road, Plugin(look))
    assert road.call("test", env("ADD"), CONFIG).status == 0
    assert seen == [os.readlink("/proc/self/ns/net"), f"net:[{netns.stat().st_ino}]"]


@pytest.mark.programs("nsenter")
def test_a_caller_in_another_host_namespace_is_served_there(
    road: ExecRoad, env: Env, make_netns: Callable[[str], Path]
) -> None:
    other = make_netns("other-host")
    seen: list[str] = []

    def look(request: CniAdd) -> CniResult:
        seen.append(os.readlink("/proc/thread-self/ns/net"))
        return RESULT

    serve(road, Plugin(look))
    script = road.script("test")
    done = subprocess.run(
        ["nsenter", f"--net={other}", str(script)], input=json.dumps(CONFIG).encode(), env=env("ADD"), check=True
    )
    assert done.returncode == 0
    assert seen == [f"net:[{other.stat().st_ino}]"]


@pytest.mark.usefixtures("no_leak")
def test_the_callers_own_namespace_is_refused_before_the_plugin_runs(road: ExecRoad, env: Env) -> None:
    plugin = serve(road, Plugin())
    done = road.call("test", env("ADD", CNI_NETNS="/proc/self/ns/net"), CONFIG)
    assert done.status == 1
    assert done.document["code"] == 8
    assert plugin.requests == []


def test_the_callers_own_namespace_is_accepted_when_overridden(road: ExecRoad, env: Env) -> None:
    serve(road, Plugin())
    own = env("ADD", CNI_NETNS="/proc/self/ns/net", CNI_NETNS_OVERRIDE="True")
    assert road.call("test", own, CONFIG).status == 0


def test_an_add_without_a_namespace_at_its_path_is_refused(road: ExecRoad, env: Env, tmp_path: Path) -> None:
    serve(road, Plugin())
    (tmp_path / "leftover").touch()
    done = road.call("test", env("ADD", CNI_NETNS=str(tmp_path / "leftover")), CONFIG)
    assert (done.status, done.document["code"]) == (1, 8)


@pytest.mark.parametrize("path", [None, "", "/does/not/exist"])
def test_a_del_without_namespace_succeeds(road: ExecRoad, env: Env, path: str | None) -> None:
    plugin = serve(road, Plugin())
    done = road.call("test", env("DEL", CNI_NETNS=path), CONFIG)
    assert (done.status, done.stdout) == (0, b"")
    assert plugin.requests[0].netns is None


@pytest.mark.usefixtures("no_leak")
def test_a_fifo_as_namespace_hangs_nobody(road: ExecRoad, env: Env, tmp_path: Path) -> None:
    serve(road, Plugin())
    os.mkfifo(tmp_path / "fifo")
    assert road.call("test", env("DEL", CNI_NETNS=str(tmp_path / "fifo")), CONFIG).status == 0


def test_an_error_of_the_plugin_keeps_its_code_and_details(road: ExecRoad, env: Env) -> None:
    def fail(_: CniAdd) -> CniResult:
        raise ContainerGone("it went", details="c1")

    serve(road, Plugin(fail))
    done = road.call("test", env("ADD"), CONFIG)
    assert done.status == 1
    document = done.document
    details, _, request = document.pop("details").partition("; request ")
    assert document == {"cniVersion": "1.0.0", "code": 3, "msg": "it went"}
    assert (details, len(request)) == ("c1", 8)


def test_a_stray_exception_is_999_without_a_traceback(road: ExecRoad, env: Env) -> None:
    def fail(_: CniAdd) -> CniResult:
        raise KeyError("oops")

    serve(road, Plugin(fail))
    done = road.call("test", env("ADD"), CONFIG)
    assert done.document["code"] == 999
    assert "request" in done.document["msg"]
    assert b"Traceback" not in done.stdout + done.stderr


@pytest.mark.parametrize("answer", [None, {"ips": []}, "text"])
def test_an_answer_of_the_wrong_type_is_999(road: ExecRoad, env: Env, answer: object) -> None:
    serve(road, Plugin(lambda _: answer))
    assert road.call("test", env("ADD"), CONFIG).document["code"] == 999


def test_a_result_with_addresses_of_the_wrong_type_is_999(road: ExecRoad, env: Env) -> None:
    serve(road, Plugin(lambda _: CniResult(ips=(CniIp(cast("Any", "10.0.0.1/24")),))))
    old = {**CONFIG, "cniVersion": "0.4.0"}
    assert road.call("test", env("ADD"), old).document["code"] == 999


@pytest.mark.parametrize("stdin", [b"", b"{", b"[]", b"\0\n", b'{"name":"net"\xff}', b"[" * 100_000])
def test_junk_on_stdin_is_code_6(road: ExecRoad, env: Env, stdin: bytes) -> None:
    serve(road, Plugin())
    assert road.call("test", env("ADD"), stdin).document["code"] == 6


def test_a_name_that_nobody_serves_is_an_error_that_says_so(road: ExecRoad, env: Env) -> None:
    serve(road, Plugin())
    done = road.call("other", env("ADD"), CONFIG)
    assert done.status == 1
    assert "no enabled plugin serves cni 'other'" in done.document["msg"]


def test_a_plugin_that_is_not_running_is_code_11_and_50_for_status(road: ExecRoad, env: Env) -> None:
    serve(road, Plugin())
    road.registry.slots["tested"].enter("failed", "no licence")
    assert road.call("test", env("ADD"), CONFIG).document["code"] == 11
    assert road.call("test", env("STATUS"), {**CONFIG, "cniVersion": "1.1.0"}).document["code"] == 50


def test_check_and_gc_that_a_plugin_leaves_out_succeed(road: ExecRoad, netns: Path) -> None:
    serve(road, Plugin())
    runtime = CniRuntime({"name": "net", "cniVersion": "1.1.0", "plugins": [{"type": "test"}]}, [road.bin])
    runtime.add("c1", netns)
    runtime.check("c1")
    runtime.gc([("c1", "eth0")])
    runtime.status()


def test_status_says_what_health_says(road: ExecRoad, netns: Path) -> None:
    serve(road, Unwell())
    runtime = CniRuntime({"name": "net", "cniVersion": "1.1.0", "plugins": [{"type": "test"}]}, [road.bin])
    with pytest.raises(CniError, match="the pool is empty") as caught:
        runtime.status()
    assert caught.value.code == 50


def test_a_status_that_hangs_does_not_quarantine_the_plugin(road: ExecRoad, env: Env) -> None:
    release = threading.Event()

    class Hung(Plugin):
        @hookimpl
        def cni_status(self) -> None:
            release.wait(30)

    serve(road, Hung())
    road.registry.slots["tested"].deadlines = {"cni_status": 0.1}
    try:
        for _ in range(6):
            assert road.call("test", env("STATUS"), {**CONFIG, "cniVersion": "1.1.0"}).document["code"] == 50
        assert road.call("test", env("ADD"), CONFIG).status == 0
    finally:
        release.set()


def test_a_passing_condition_is_50_for_status(road: ExecRoad, netns: Path) -> None:
    class Busy(Plugin):
        @hookimpl
        def cni_status(self) -> None:
            raise TryAgain("reloading")

    serve(road, Busy())
    runtime = CniRuntime({"name": "net", "cniVersion": "1.1.0", "plugins": [{"type": "test"}]}, [road.bin])
    with pytest.raises(CniError) as caught:
        runtime.status()
    assert caught.value.code == 50


@pytest.mark.parametrize("version", ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"])
def test_a_life_of_an_attachment_in_every_version(road: ExecRoad, netns: Path, version: str) -> None:
    plugin = serve(road, Complete())
    runtime = CniRuntime({"name": "net", "cniVersion": version, "plugins": [{"type": "test"}]}, [road.bin])
    result = runtime.add("c1", netns)
    assert result["cniVersion"] == version
    if version >= "0.4.0":
        runtime.check("c1")
        assert plugin.requests[-1].prev_result.ips == RESULT.ips
    runtime.delete("c1", netns)
    assert plugin.requests[-1].prev_result is not None
    runtime.delete("c1")
    assert plugin.requests[-1].prev_result is None


def test_a_del_without_prev_result_gets_the_recorded_one(road: ExecRoad, env: Env) -> None:
    plugin = serve(road, Plugin())
    road.call("test", env("ADD"), CONFIG)
    assert [item.key.container_id for item in road.attachments.list()] == ["c1"]
    road.call("test", env("DEL"), CONFIG)
    assert plugin.requests[-1].prev_result == RESULT
    assert road.attachments.list() == ()


@pytest.mark.parametrize(
    ("said", "valid"),
    [
        ({}, None),
        ({"cni.dev/valid-attachments": None}, ()),
        ({"cni.dev/valid-attachments": []}, ()),
        ({"cni.dev/attachments": [{"containerID": "c1", "ifname": "eth0"}]}, ("c1",)),
    ],
)
def test_gc_tells_absent_from_empty(road: ExecRoad, env: Env, said: dict[str, Any], valid: Any) -> None:
    plugin = serve(road, Complete())
    done = road.call("test", env("GC"), {**CONFIG, "cniVersion": "1.1.0", **said})
    assert (done.status, done.stdout) == (0, b"")
    got = plugin.requests[0].valid
    assert (None if got is None else tuple(item.container_id for item in got)) == valid


def test_gc_forgets_what_is_not_valid(road: ExecRoad, env: Env) -> None:
    serve(road, Complete())
    for container in ("c1", "c2"):
        road.call("test", env("ADD", CNI_CONTAINERID=container), CONFIG)
    said = {"cni.dev/valid-attachments": [{"containerID": "c2", "ifname": "eth0"}]}
    road.call("test", env("GC"), {**CONFIG, "cniVersion": "1.1.0", **said})
    assert [item.key.container_id for item in road.attachments.list()] == ["c2"]


@pytest.mark.parametrize(
    ("version", "result", "words"),
    [
        ("0.2.0", CniResult(), "cannot convert: no valid IP addresses"),
        ("1.0.0", CniResult(ips=("10.0.0.1",)), "is no CNI result"),  # type: ignore[arg-type]
    ],
)
@pytest.mark.usefixtures("no_leak")
def test_an_add_whose_result_cannot_be_converted_is_undone(
    road: ExecRoad, env: Env, version: str, result: CniResult, words: str
) -> None:
    plugin = serve(road, Plugin(lambda _: result))
    done = road.call("test", env("ADD", CNI_ARGS="A=1"), {**CONFIG, "cniVersion": version})
    assert words in done.document["msg"]
    added, deleted = plugin.requests
    assert isinstance(deleted, CniDel)
    assert (deleted.container_id, deleted.ifname, deleted.config, deleted.args, deleted.netns) == (
        added.container_id,
        added.ifname,
        added.config,
        added.args,
        None,
    )


def test_a_repeated_add_that_cannot_be_converted_leaves_what_the_first_made(road: ExecRoad, env: Env) -> None:
    plugin = serve(road, Plugin(lambda _: CniResult()))
    assert road.call("test", env("ADD"), {**CONFIG, "cniVersion": "1.0.0"}).status == 0
    done = road.call("test", env("ADD"), {**CONFIG, "cniVersion": "0.2.0"})
    assert "cannot convert" in done.document["msg"]
    assert [type(request) for request in plugin.requests] == [CniAdd, CniAdd]


class Ipam(Plugin):
    @hookimpl
    def claims(self) -> list[CniClaim]:
        return [CniClaim(self.name, uses_netns=False)]

    @hookimpl
    def cni_check(self, request: CniCheck) -> None:
        self.requests.append(request)


@pytest.mark.parametrize("place", ["/dev/null", "/no/such/netns", "dummy"])
def test_an_ipam_plugin_is_called_whatever_netns_says(road: ExecRoad, env: Env, place: str) -> None:
    plugin = serve(road, Ipam(act=lambda _: CniResult(ips=RESULT.ips)))
    done = road.call("test", env("ADD", CNI_NETNS=place), CONFIG)
    assert done.status == 0, done.document
    checked = {**CONFIG, "prevResult": {**done.document, "cniVersion": "1.0.0"}}
    assert road.call("test", env("CHECK", CNI_NETNS=place), checked).status == 0
    assert road.call("test", env("DEL", CNI_NETNS=place), CONFIG).status == 0
    added, looked, deleted = plugin.requests
    assert [(one.netns.path, one.netns.is_open) for one in (added, looked)] == [(place, False)] * 2
    assert deleted.netns is None
