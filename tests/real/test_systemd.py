"""A real systemd runs the daemon by the unit that the installation writes."""

import json
import secrets
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.real.consumers.systemd import Systemd

from nodeplug.testing import namespaces
from nodeplug.testing.inventory import cgroups_of, make_cgroup
from nodeplug.testing.waiting import until

pytestmark = [pytest.mark.real, pytest.mark.node]

NODEPLUG = str(Path(sys.executable).with_name("nodeplug"))
SOURCE = Path(__file__).parents[2] / "deploy" / "nodeplug.service"
UNIT = "/etc/systemd/system/nodeplug.service"


@dataclass(frozen=True)
class Machine:
    """A node whose first process is systemd."""

    systemd: Systemd
    config: Path

    def nodeplug(self, *words: str) -> Any:
        return json.loads(self.systemd.run(NODEPLUG, *words, "--config", str(self.config), "--json"))

    def refused(self, *words: str) -> str:
        done = self.systemd.ask(NODEPLUG, *words, "--config", str(self.config))
        assert done.returncode == 1
        return " ".join(done.stderr.split())

    def show(self, what: str) -> str:
        return self.systemd.run("systemctl", "show", "--value", "-p", what, "nodeplug").strip()

    def until_another(self, pid: str) -> str:
        """Wait until another daemon than this one serves."""
        until(lambda: self.show("MainPID") not in {"0", pid} and self.show("ActiveState") == "active")
        return self.show("MainPID")


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    folder = tmp_path_factory.mktemp("node")
    config = folder / "nodeplug.toml"
    places = {name: folder / name for name in ("state_dir", "cni_bin_dir", "cni_conf_dir", "flexvolume_dir")}
    lines = [f'{name} = "{path}"' for name, path in places.items()]
    config.write_text("\n".join(["version = 1", "[supervisor]", 'listen = ""', *lines, "[plugins.bridge]", ""]))
    with Systemd() as systemd:
        yield Machine(systemd, config)


@pytest.fixture
def installed(machine: Machine) -> Machine:
    machine.nodeplug("install", "--systemd")
    return machine


def test_the_systemd_of_these_tests_leaves_cgroups_of_the_machine_alone() -> None:
    name = f"nodeplug-systemd-{secrets.token_hex(4)}"
    make_cgroup(name)
    made = cgroups_of(name)
    try:
        with Systemd() as systemd:
            systemd.run("systemctl", "daemon-reload")
            assert "/.." not in systemd.run("cat", "/proc/1/cgroup")
            assert cgroups_of(name) == made
    finally:
        for path in cgroups_of(name):
            path.rmdir()


def test_the_installation_starts_the_daemon_and_has_it_started_with_the_node(machine: Machine) -> None:
    told = machine.nodeplug("install", "--systemd")
    assert told["systemd"]["steps"] == ["daemon-reload", "enable nodeplug.service", "start nodeplug.service"]
    assert told["systemd"]["state"] == "active"
    assert UNIT in told["created"]
    assert machine.systemd.run("systemctl", "is-enabled", "nodeplug").strip() == "enabled"
    assert machine.nodeplug("status")["plugins"][0]["name"] == "bridge"


def test_a_second_installation_changes_nothing(installed: Machine) -> None:
    pid = installed.show("MainPID")
    told = installed.nodeplug("install", "--systemd")
    assert (told["systemd"]["steps"], told["created"], told["updated"]) == ([], [], [])
    assert installed.show("MainPID") == pid


def test_a_killed_daemon_is_started_again(installed: Machine) -> None:
    pid = installed.show("MainPID")
    installed.systemd.run("kill", "-KILL", pid)
    installed.until_another(pid)


def test_the_watchdog_ends_a_frozen_daemon_and_drop_ins_stay(installed: Machine) -> None:
    drop_in = f"{UNIT}.d/override.conf"
    installed.systemd.run("mkdir", "-p", f"{UNIT}.d")
    installed.systemd.run("sh", "-c", f"printf '[Service]\\nWatchdogSec=2\\nTimeoutAbortSec=1\\n' >{drop_in}")
    installed.systemd.run("systemctl", "daemon-reload")
    installed.systemd.run("systemctl", "restart", "nodeplug")
    assert installed.nodeplug("install", "--systemd")["systemd"]["steps"] == []
    pid = installed.show("MainPID")
    installed.systemd.run("kill", "-STOP", pid)
    installed.until_another(pid)
    assert installed.show("Result") == "success"
    assert "WatchdogSec=2" in installed.systemd.run("cat", drop_in)


def test_a_reload_puts_another_daemon_in_its_place_which_systemd_follows(installed: Machine) -> None:
    pid, restarts = installed.show("MainPID"), installed.show("NRestarts")
    installed.systemd.run("systemctl", "reload", "nodeplug")
    other = installed.until_another(pid)
    assert installed.show("NRestarts") == restarts
    assert installed.nodeplug("status")["pid"] == int(other)


def test_a_unit_that_somebody_has_changed_is_refused_and_stays(installed: Machine) -> None:
    installed.systemd.run("sed", "-i", "s/RestartSec=1/RestartSec=9/", UNIT)
    try:
        for words in (("install", "--systemd"), ("uninstall", "--systemd")):
            assert "has been changed since" in installed.refused(*words)
        assert "RestartSec=9" in installed.systemd.run("cat", UNIT)
        assert installed.show("ActiveState") == "active"
    finally:
        installed.systemd.run("sed", "-i", "s/RestartSec=9/RestartSec=1/", UNIT)


def test_a_unit_of_another_version_is_replaced_and_its_daemon_too(installed: Machine) -> None:
    older = installed.config.with_name("older.py")
    older.write_text(
        "from pathlib import Path\nfrom nodeplug.install import systemd\n"
        f"path = Path({UNIT!r}); text = path.read_text().split(chr(10), 2)[2].replace('RestartSec=1', 'RestartSec=2')\n"
        "path.write_text(f'{systemd.MARKER}{systemd._DIGEST}{systemd._digest(text)}\\n{text}')\n"
    )
    installed.systemd.run(sys.executable, str(older))
    pid = installed.show("MainPID")
    told = installed.nodeplug("install", "--systemd")
    assert told["systemd"]["steps"] == ["daemon-reload", "reload nodeplug.service"]
    assert installed.show("RestartUSec") == "1s"
    installed.until_another(pid)


def test_a_copy_of_the_unit_of_the_sources_is_taken_over(installed: Machine) -> None:
    installed.systemd.run("cp", str(SOURCE), UNIT)
    told = installed.nodeplug("install", "--systemd")
    assert told["updated"] == [UNIT]
    assert f"ExecStart={NODEPLUG} serve" in installed.systemd.run("cat", UNIT)


def test_the_way_back_stops_the_daemon_and_removes_unit_and_entrypoints(installed: Machine) -> None:
    told = installed.nodeplug("uninstall", "--systemd")
    assert told["systemd"] == {
        "unit": UNIT,
        "steps": ["disable --now nodeplug.service", "daemon-reload"],
        "state": "",
    }
    assert UNIT in told["removed"]
    assert installed.show("LoadState") in {"not-found", "masked"} or installed.show("ActiveState") == "inactive"
    assert not list((installed.config.parent / "cni_bin_dir").iterdir())
    assert installed.nodeplug("uninstall", "--systemd")["systemd"]["steps"] == []


def test_a_node_with_another_service_manager_is_told_what_to_do(tmp_path: Path) -> None:
    config = tmp_path / "nodeplug.toml"
    config.write_text("version = 1\n")
    command = f"mount -t tmpfs tmpfs /run && {NODEPLUG} install --systemd --remove-all --config {config}"
    inside = [*namespaces.command(network=False), "sh", "-c", command]
    done = subprocess.run(inside, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "systemd does not run here" in " ".join(done.stderr.split())


def test_another_place_than_the_node_has_no_unit(tmp_path: Path) -> None:
    config = tmp_path / "nodeplug.toml"
    config.write_text("version = 1\n")
    command = [NODEPLUG, "install", "--systemd", "--remove-all", "--config", str(config), "--root", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "name one of the two" in " ".join(done.stderr.split())
