"""Where a spooled DEL runs: in the host namespace of its ADD, which nobody has passed along."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from nodeplug import CniAdd, CniClaim, CniDel, CniResult, Netns, hookimpl, unmount
from nodeplug.testing import ExecRoad

pytestmark = pytest.mark.programs("nsenter")

Env = Callable[..., dict[str, str]]
CONFIG = {"cniVersion": "1.0.0", "name": "net", "type": "test"}


class Plugin:
    def __init__(self) -> None:
        self.hosts: list[tuple[int, int]] = []

    @hookimpl
    def claims(self) -> list[CniClaim]:
        return [CniClaim("test")]

    @hookimpl
    def cni_add(self, request: CniAdd) -> CniResult:
        return CniResult()

    @hookimpl
    def cni_del(self, request: CniDel) -> None:
        here = Netns.current()
        self.hosts.append(here.identity)
        here.close()


def identity(path: Path | str) -> tuple[int, int]:
    netns = Netns.open(str(path))
    try:
        return netns.identity
    finally:
        netns.close()


def add_and_spool_a_del(road: ExecRoad, env: Env, host: Path) -> Plugin:
    plugin = Plugin()
    road.load("test", plugin)
    script = str(road.script("test"))
    command = ["/usr/bin/nsenter", f"--net={host}", script]
    with road:
        subprocess.run(command, input=json.dumps(CONFIG).encode(), env=env("ADD"), check=True, capture_output=True)
    subprocess.run(command, input=json.dumps(CONFIG).encode(), env=env("DEL"), check=True, capture_output=True)
    return plugin


def replay(road: ExecRoad) -> None:
    road.start()
    road.wait_for(road.spool.replay(road.service.replay))
    road.stop()


@pytest.mark.usefixtures("no_leak")
def test_a_spooled_del_runs_in_the_host_namespace_of_its_add(
    road: ExecRoad, env: Env, make_netns: Callable[[str], Path]
) -> None:
    host = make_netns("other-host")
    plugin = add_and_spool_a_del(road, env, host)
    replay(road)
    assert plugin.hosts == [identity(host)]


def test_a_host_namespace_that_a_process_alone_keeps_is_found(
    road: ExecRoad, env: Env, make_netns: Callable[[str], Path]
) -> None:
    host = make_netns("other-host")
    wanted = identity(host)
    with subprocess.Popen(["/usr/bin/nsenter", f"--net={host}", "sleep", "60"]) as process:
        try:
            plugin = add_and_spool_a_del(road, env, host)
            unmount(str(host), lazy=True)
            replay(road)
        finally:
            process.kill()
    assert plugin.hosts == [wanted]


@pytest.mark.usefixtures("no_leak")
def test_a_spooled_del_whose_host_namespace_is_gone_runs_in_the_daemons(
    road: ExecRoad, env: Env, make_netns: Callable[[str], Path]
) -> None:
    host = make_netns("other-host")
    plugin = add_and_spool_a_del(road, env, host)
    unmount(str(host), lazy=True)
    replay(road)
    assert plugin.hosts == [identity("/proc/self/ns/net")]
    assert road.spool.count() == 0


def test_a_spooled_del_without_a_record_of_its_add_runs_in_the_daemons(
    road: ExecRoad, env: Env, make_netns: Callable[[str], Path]
) -> None:
    plugin = add_and_spool_a_del(road, env, make_netns("other-host"))
    for attachment in road.attachments.list():
        road.attachments.forget(attachment.key)
    replay(road)
    assert plugin.hosts == [identity("/proc/self/ns/net")]
