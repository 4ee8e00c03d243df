"""The daemon as a process: start, reload, crash, stop."""

import resource
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.suites import divided

from nodeplug import PluginError
from nodeplug.exec.client import ask
from nodeplug.process.descriptor_reserve import KEPT, MOST
from nodeplug.testing import ScratchNode
from nodeplug.testing.waiting import until

PLUGIN = """
import time
from nodeplug import CniClaim, CniResult, DeviceClaim, hookimpl
from pydantic import BaseModel

class Plugin:
    class Config(BaseModel, extra="forbid"):
        claim: str
        slow: float = 0
        fail: bool = False

    def __init__(self, config, host):
        self.config, self.host = config, host
        self.made = time.time()

    @hookimpl
    def claims(self):
        return [CniClaim(self.config.claim)]

    @hookimpl
    def start(self):
        time.sleep(self.config.slow)
        if self.config.fail:
            raise OSError("no hardware")
        (self.host.run_dir / "started").write_text(str(self.made))

    @hookimpl
    def cni_add(self, request):
        return CniResult()

    @hookimpl
    def cni_del(self):
        return None
"""


def section(name: str, **config: Any) -> str:
    values = "\n".join(
        f"{key} = {str(value).lower() if not isinstance(value, str) else repr(value)}" for key, value in config.items()
    )
    return f'[plugins.{name}]\nuses = "scratch_plugin:Plugin"\n[plugins.{name}.config]\nclaim = "{name}"\n{values}\n'


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Callable[..., ScratchNode]]:
    (tmp_path / "scratch_plugin.py").write_text(PLUGIN)
    root = tmp_path / "n"
    root.mkdir()
    nodes: list[ScratchNode] = []

    def make(plugins: str = "", **more: Any) -> ScratchNode:
        env = {"PYTHONPATH": str(tmp_path), **more.pop("env", {})}
        nodes.append(ScratchNode(root, plugins, env=env, **{"fork": True, **more}))
        return nodes[-1]

    yield make
    for made in nodes:
        made.stop()


def states(node: ScratchNode) -> dict[str, str]:
    return {plugin["name"]: plugin["state"] for plugin in node.status()["plugins"]}


def started(node: ScratchNode, name: str) -> str:
    return (node.paths.run / "plugins" / name / "started").read_text()


def test_sigterm_ends_it_with_status_0_and_without_a_traceback(node: Callable[..., ScratchNode]) -> None:
    scratch = node(section("a"))
    scratch.start()
    assert scratch.stop() == 0
    assert "Traceback" not in scratch.log
    assert not scratch.paths.exec_socket.exists()


def test_it_takes_more_descriptors_than_the_soft_limit_of_a_service(node: Callable[..., ScratchNode]) -> None:
    scratch = node()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, limits[1]))
    try:
        scratch.start()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert resource.prlimit(scratch.pid, resource.RLIMIT_NOFILE)[0] == min(limits[1], MOST) - KEPT


def test_a_second_daemon_for_the_same_socket_is_refused(node: Callable[..., ScratchNode]) -> None:
    scratch = node()
    scratch.start()
    second = scratch.run("serve")
    assert second.returncode == 1
    assert f"{scratch.paths.exec_socket}" in second.stderr
    assert "Traceback" not in second.stderr
    assert scratch.status()["pid"] == scratch.pid


def test_a_socket_left_by_a_killed_daemon_is_replaced(node: Callable[..., ScratchNode]) -> None:
    scratch = node()
    scratch.start()
    scratch.kill()
    assert scratch.paths.exec_socket.exists()
    scratch.start()
    assert scratch.status()["ready"]


def test_a_release_that_is_installed_over_it_does_not_change_the_version_that_it_says(
    node: Callable[..., ScratchNode], tmp_path: Path
) -> None:
    scratch = node()
    scratch.start()
    version = scratch.status()["version"]
    later = tmp_path / "nodeplug-99.0.0.dist-info"
    later.mkdir()
    (later / "METADATA").write_text("Metadata-Version: 2.1\nName: nodeplug\nVersion: 99.0.0\n")
    assert scratch.status()["version"] == version != "99.0.0"


def test_the_socket_is_for_its_owner_alone(node: Callable[..., ScratchNode]) -> None:
    scratch = node()
    scratch.start()
    assert scratch.paths.exec_socket.stat().st_mode & 0o777 == 0o600


def test_a_changed_file_reloads_and_touches_only_what_changed(node: Callable[..., ScratchNode]) -> None:
    scratch = node(section("kept") + section("gone"))
    scratch.start()
    kept = started(scratch, "kept")
    scratch.configure(section("kept") + section("new"))
    until(lambda: states(scratch) == {"kept": "running", "new": "running"})
    assert started(scratch, "kept") == kept


def test_sighup_loads_a_refused_plugin_again_when_its_module_is_there_now(
    node: Callable[..., ScratchNode], tmp_path: Path
) -> None:
    scratch = node('[plugins.late]\nuses = "late:Plugin"\n[plugins.late.config]\nclaim = "late"')
    scratch.start()
    assert states(scratch) == {"late": "refused"}
    (tmp_path / "late.py").write_text(PLUGIN)
    scratch.reload()
    until(lambda: states(scratch) == {"late": "running"})


def test_sighup_reloads(node: Callable[..., ScratchNode]) -> None:
    scratch = node(section("a"))
    scratch.start()
    scratch.reload()
    until(lambda: states(scratch) == {"a": "running"})
    assert scratch.status()["pid"] == scratch.pid


def test_a_broken_new_configuration_keeps_the_running_one_and_says_so(node: Callable[..., ScratchNode]) -> None:
    scratch = node(section("a"))
    scratch.start()
    scratch.configure("[plugins.a")
    until(lambda: not scratch.status()["ready"])
    assert "is not TOML" in scratch.status()["reasons"]["configuration"]
    assert states(scratch) == {"a": "running"}


def test_a_mended_configuration_makes_it_ready_again(node: Callable[..., ScratchNode]) -> None:
    scratch = node(section("a"))
    scratch.start()
    scratch.configure("[plugins.a")
    until(lambda: not scratch.status()["ready"])
    scratch.configure(section("a"))
    until(lambda: scratch.status()["ready"])


def test_a_configuration_that_cannot_be_used_ends_the_start_with_status_1(node: Callable[..., ScratchNode]) -> None:
    scratch = node("[plugin.a]")
    done = scratch.run("serve")
    assert done.returncode == 1
    assert 'plugin: unknown key; did you mean "plugins"? allowed: version, supervisor, provisioner' in done.stderr
    assert "Traceback" not in done.stderr


def test_one_refused_and_one_failing_plugin_leave_the_third_serving(node: Callable[..., ScratchNode]) -> None:
    scratch = node(section("good") + section("failing", fail=True) + section("refused", colour="red"))
    scratch.start()
    assert states(scratch) == {"good": "running", "failing": "failed", "refused": "refused"}
    assert set(scratch.status()["reasons"]) == {"failing", "refused"}


def test_a_slow_start_of_one_plugin_does_not_hold_up_the_socket(node: Callable[..., ScratchNode]) -> None:
    scratch = node(section("slow", slow=30) + section("quick"))
    scratch.start()
    assert states(scratch) == {"slow": "starting", "quick": "running"}


def test_an_unknown_control_request_is_an_error(node: Callable[..., ScratchNode]) -> None:
    scratch = node()
    scratch.start()
    with pytest.raises(PluginError, match="no known request in 1 arguments; known: status"):
        ask(scratch.paths.exec_socket, "dance")


def test_systemd_is_told_when_it_is_ready(node: Callable[..., ScratchNode], tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(10)
        scratch = node(section("a"), env={"NOTIFY_SOCKET": str(tmp_path / "notify")})
        scratch.start()
        assert systemd.recv(4096).startswith(b"READY=1")
        scratch.stop()
        assert b"STOPPING=1" in systemd.recv(4096)


def get(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_health_readiness_and_metrics_are_served(node: Callable[..., ScratchNode], free_port: int) -> None:
    scratch = node(section("good") + section("failing", fail=True), supervisor=f'listen = "127.0.0.1:{free_port}"')
    scratch.start()
    assert get(free_port, "/healthz")[0] == 200
    status, body = get(free_port, "/readyz")
    assert (status, "no hardware" in body) == (503, True)
    assert 'nodeplug_plugin_running{plugin="good"} 1.0' in get(free_port, "/metrics")[1]


def test_every_series_of_a_scrape_is_in_the_manual(node: Callable[..., ScratchNode], free_port: int) -> None:
    scratch = node(section("good"), supervisor=f'listen = "127.0.0.1:{free_port}"')
    scratch.start()
    page = get(free_port, "/metrics")[1]
    scraped = {line.partition(" ")[0].partition("{")[0] for line in page.splitlines() if not line.startswith("#")}
    manual = (Path(__file__).parents[2] / "docs" / "operating.md").read_text()
    assert [name for name in sorted(scraped) if not name.startswith("process_") and f"`{name}`" not in manual] == []


def test_a_read_only_state_folder_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "n" / "var").mkdir(parents=True)
    (tmp_path / "n" / "var" / "lib").write_text("a file in the way")
    scratch = ScratchNode(tmp_path / "n", "")
    done = scratch.run("serve")
    assert done.returncode == 1
    assert f"cannot make the folder {tmp_path / 'n' / 'var' / 'lib'}" in done.stderr


def test_the_process_holds_no_descriptor_per_reload(node: Callable[..., ScratchNode]) -> None:
    scratch = node(section("a"))
    scratch.start()

    def descriptors() -> int:
        return len(list(Path(f"/proc/{scratch.pid}/fd").iterdir()))

    def reload(name: str) -> None:
        scratch.configure(section(name))
        until(lambda: states(scratch) == {name: "running"})

    reload("first")  # some are opened at a daemon's start and stay, perhaps after it answers
    before = descriptors()
    for number in range(5):
        reload(f"b{number}")
    # What an exchange had open may be closed a little later, and what stays may be opened late.
    until(lambda: descriptors() < before + 5, found=lambda: f"{before}, and after five reloads {descriptors()}")


def test_recent_calls_hold_one_record_per_request_refused_ones_included(node: Callable[..., ScratchNode]) -> None:
    scratch = node(section("a"))
    scratch.start()
    assert scratch.run("install").returncode == 0
    env = {"CNI_COMMAND": "ADD", "CNI_PATH": "/nowhere"}
    refused = subprocess.run([scratch.paths.cni_bin / "a"], env=env, input=b"{", capture_output=True, check=False)
    assert refused.returncode == 1
    recent = [(call["verb"], call["outcome"]) for call in scratch.status()["recent"] if call["claim"] == "cni:a"]
    assert recent == [("ADD", "InvalidEnvironment")]


LISTLESS = """
from nodeplug import CniClaim, DeviceClaim, hookimpl

class Plugin:
    def __init__(self, config, host): ...

    @hookimpl
    def claims(self):
        return [DeviceClaim("example.com/listless")]

    @hookimpl
    def device_list(self):
        return (device for device in [])
"""


def test_a_plugin_whose_devices_cannot_be_listed_is_not_ready_and_says_why(tmp_path: Path, short_path: Path) -> None:
    (tmp_path / "listless.py").write_text(LISTLESS)
    scratch = ScratchNode(short_path, '[plugins.listless]\nuses = "listless:Plugin"', env={"PYTHONPATH": str(tmp_path)})
    with scratch:
        until(lambda: not scratch.status()["ready"])
        reason = "example.com/listless: plugin 'listless' returned generator from device_list; expected a list or tuple"
        assert scratch.status()["reasons"]["listless"].startswith(reason)
        assert scratch.status()["plugins"][0]["reason"].startswith(reason)


BLOCKING = """
import time
from nodeplug import CniClaim, DeviceClaim, hookimpl

class Plugin:
    def __init__(self, config, host):
        time.sleep(3600)

    @hookimpl
    def claims(self):
        return []
"""


@pytest.mark.parametrize("command", divided(["install", "check-config"], {"install"}))
def test_a_constructor_that_blocks_is_named_at_its_deadline(tmp_path: Path, command: str) -> None:
    (tmp_path / "blocking.py").write_text(BLOCKING)
    section = '[plugins.blocking]\nuses = "blocking:Plugin"\ndeadline = { claims = "500ms" }'
    done = ScratchNode(tmp_path / "n", section, env={"PYTHONPATH": str(tmp_path)}).run(command)
    assert done.returncode == 1
    assert "load of plugin 'blocking' did not end within 0.5 s" in done.stderr
