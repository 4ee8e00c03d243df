"""What a container left that ended without a DEL, by the cache that libcni itself wrote of it."""

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from tests.real.consumers import PrivateNode

from nodeplug.testing import ScratchNode
from nodeplug.testing.waiting import until

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


OURS = {
    "cniVersion": "1.0.0",
    "name": "ours",
    "plugins": [
        {
            "type": "nodeplug-bridge",
            "bridge": "left0",
            "isGateway": True,
            "ipMasq": True,
            "ipam": {"type": "host-local", "subnet": "198.18.90.0/24"},
        },
        {"type": "nodeplug-portmap", "capabilities": {"portMappings": True}},
    ],
}
PORTS = '{"portMappings": [{"hostPort": 18090, "containerPort": 80, "protocol": "tcp"}]}'


def test_the_daemon_ends_what_libcni_alone_remembers(
    private_node: PrivateNode, short_path: Path, consumer: Callable[[str], Path]
) -> None:
    plugins = "[plugins.bridge]\n[plugins.portmap]\n"
    with ScratchNode(private_node.folder, plugins, beside=private_node.pid, fork=True) as daemon:
        assert daemon.run("install").returncode == 0
        (daemon.paths.cni_conf).mkdir(parents=True, exist_ok=True)
        (daemon.paths.cni_conf / "10-ours.conflist").write_text(json.dumps(OURS))
        environment = [f"CNI_PATH={daemon.paths.cni_bin}", f"NETCONFPATH={daemon.paths.cni_conf}"]
        for name, ports in (("lives", "{}"), ("ended", PORTS)):
            private_node.run("ip", "netns", "add", name)
            words = ["env", *environment, f"CAP_ARGS={ports}", str(consumer("tools") / "cnitool"), "add", "ours"]
            private_node.run(*words, f"/run/netns/{name}")
        assert "18090" in private_node.run("nft", "list", "ruleset")
        daemon.kill()
        private_node.run("ip", "netns", "delete", "ended")
        shutil.rmtree(daemon.paths.attachments)
        daemon.start()
        until(lambda: "network namespace /run/netns/ended is gone" in daemon.log, found=lambda: daemon.log[-2000:])
        assert "18090" not in private_node.run("nft", "list", "ruleset")
        reserved = private_node.run("ls", "/var/lib/cni/networks/ours").split()
        assert [one for one in reserved if one.startswith("198.")] == ["198.18.90.2"]
        assert private_node.run("ip", "-n", "lives", "-brief", "link", "show", "eth0") != ""
