"""Addresses of containers whose namespace ended without a DEL, under the real daemon."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodeplug.testing import Sandbox, ScratchNode
from nodeplug.testing.waiting import until

SUPERVISOR = 'listen = ""\ninstall = true'


@pytest.fixture
def node(short_path: Path) -> Iterator[ScratchNode]:
    with ScratchNode(short_path, "[plugins.bridge]\n", supervisor=SUPERVISOR, fork=True) as made:
        yield made


def attach(node: ScratchNode, container: str, sandbox: Sandbox) -> None:
    config = {
        "cniVersion": "1.0.0",
        "name": "net",
        "type": "nodeplug-bridge",
        "bridge": "orphans0",
        "isGateway": True,
        "ipam": {
            "type": "host-local",
            "dataDir": str(node.root / "addresses"),
            "ranges": [[{"subnet": "10.77.0.0/24"}], [{"subnet": "fd00:77::/64"}]],
        },
    }
    env = {
        "CNI_COMMAND": "ADD",
        "CNI_CONTAINERID": container,
        "CNI_NETNS": str(sandbox.path),
        "CNI_IFNAME": "eth0",
        "CNI_PATH": str(node.paths.cni_bin),
    }
    program = node.paths.cni_bin / "nodeplug-bridge"
    until(program.exists)  # the daemon installs it beside what it serves already
    done = subprocess.run([program], env=env, input=json.dumps(config).encode(), capture_output=True, check=False)
    assert done.returncode == 0, done.stdout


def holders(node: ScratchNode) -> set[str]:
    """Return who holds an address."""
    files = [path for path in (node.root / "addresses" / "net").glob("*") if not path.name.startswith(("last", "lock"))]
    return {path.read_text().split()[0] for path in files}


def recorded(node: ScratchNode) -> set[str]:
    return {entry["container_id"] for entry in node.status()["attachments"]}


def until_held_by(node: ScratchNode, *containers: str) -> None:
    until(lambda: (holders(node), recorded(node)) == (set(containers), set(containers)), found=lambda: holders(node))


@pytest.mark.whole
def test_addresses_come_back_when_a_namespace_ends_without_a_del(node: ScratchNode, short_path: Path) -> None:
    with Sandbox(short_path / "lives") as living:
        attach(node, "lives", living)
        for number in range(3):
            with Sandbox(short_path / f"ends{number}") as ending:
                attach(node, f"ends{number}", ending)
        assert holders(node) == {"lives", "ends0", "ends1", "ends2"}
        until_held_by(node, "lives")
        assert living.links() == ("eth0", "lo")


def test_addresses_come_back_when_a_namespace_ended_while_the_daemon_was_away(
    node: ScratchNode, short_path: Path
) -> None:
    with Sandbox(short_path / "lives") as living:
        attach(node, "lives", living)
        with Sandbox(short_path / "ends") as ending:
            attach(node, "ends", ending)
            node.kill()
        assert holders(node) == {"lives", "ends"}
        node.start()
        until_held_by(node, "lives")
