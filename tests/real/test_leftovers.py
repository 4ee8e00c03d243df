"""What the reference's plugins reserved for a container that ended without a DEL, and libcni's own cache of it."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

from tests.real.consumers import PrivateNode

CONFLIST = {
    "cniVersion": "1.0.0",
    "name": "net",
    "plugins": [{"type": "ptp", "ipam": {"type": "host-local", "subnet": "198.18.89.0/24"}}],
}


def test_the_addresses_of_a_container_that_ended_without_a_del_are_freed(
    private_node: PrivateNode, short_path: Path, consumer: Callable[[str], Path]
) -> None:
    (short_path / "10-net.conflist").write_text(json.dumps(CONFLIST))
    environment = (f"CNI_PATH={consumer('cni')}", f"NETCONFPATH={short_path}")
    tool = str(consumer("tools") / "cnitool")
    for name in ("ended", "lives"):
        private_node.run("ip", "netns", "add", name)
        private_node.run("env", *environment, tool, "add", "net", f"/run/netns/{name}")
    private_node.run("ip", "netns", "delete", "ended")
    private_node.run("sh", "-c", "touch -d '1 hour ago' /var/lib/cni/networks/net/198.*")
    command = (sys.executable, "-m", "nodeplug", "net", "gc", "--json")
    rows = {row["address"]: (row["state"], row["freed"]) for row in json.loads(private_node.run(*command))}
    assert rows == {"198.18.89.2": ("left over", True), "198.18.89.3": ("held", False)}
    assert "198.18.89.2" not in private_node.run("ls", "/var/lib/cni/networks/net")
