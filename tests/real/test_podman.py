"""podman 4 with its CNI backend: a real runtime gets its network from us, with the conflist that we publish."""

import json
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from nodeplug import mounts, unmount
from nodeplug.testing import ScratchNode

IMAGE = "registry.local/test/busybox:1"
PUBLISHED = Path(__file__).parents[2] / "configs" / "cni" / "10-nodeplug.conflist"
CONTAINERS_CONF = """
[containers]
default_ulimits = ["nofile=20000:20000", "nproc=4096:4096"]
[network]
network_backend = "cni"
cni_plugin_dirs = ["{bin}"]
network_config_dir = "{folder}/net.d"
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
runtime = "runc"
tmp_dir = "{folder}/rt"
"""
STORAGE_CONF = """
[storage]
driver = "overlay"
runroot = "{folder}/run"
graphroot = "{folder}/root"
"""


@dataclass(frozen=True)
class Podman:
    """podman with every folder of its own, in a network namespace of its own."""

    folder: Path
    netns: Path
    addresses: Path
    network: str

    def try_(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        env = {
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": str(self.folder),
            "CONTAINERS_CONF": str(self.folder / "containers.conf"),
            "CONTAINERS_STORAGE_CONF": str(self.folder / "storage.conf"),
        }
        command = ["nsenter", f"--net={self.netns}", "podman", *arguments]
        return subprocess.run(command, env=env, cwd="/", capture_output=True, text=True, timeout=60, check=False)

    def __call__(self, *arguments: str) -> str:
        done = self.try_(*arguments)
        assert done.returncode == 0, f"podman {' '.join(arguments)}:\n{done.stdout}{done.stderr}"
        return done.stdout.strip()

    def address(self, name: str) -> str:
        return self(
            "inspect", name, "--format", f'{{{{(index .NetworkSettings.Networks "{self.network}").IPAddress}}}}'
        )

    def links(self) -> list[str]:
        shown = subprocess.run(
            ["nsenter", f"--net={self.netns}", "cat", "/proc/net/dev"], capture_output=True, text=True, check=True
        )
        return sorted(line.split(":")[0].strip() for line in shown.stdout.splitlines()[2:])

    def reserved(self) -> list[str]:
        """Addresses that the store holds."""
        return sorted(path.name for path in self.addresses.glob("*/*") if path.name[0].isdigit() or ":" in path.name)


def make_image(folder: Path) -> Path:
    root = folder / "rootfs"
    for name in ("bin", "dev", "etc", "proc", "sys", "run", "tmp"):
        (root / name).mkdir(parents=True)
    shutil.copy("/bin/busybox", root / "bin" / "busybox")
    for applet in ("sh", "httpd", "wget", "sleep", "cat"):
        (root / "bin" / applet).symlink_to("busybox")
    archive = folder / "rootfs.tar"
    with tarfile.open(archive, "w") as tar:
        tar.add(root, arcname=".")
    return archive


def publish(source: Path, target: Path, addresses: Path) -> str:
    """Install our published conflist as an admin would, with the address store moved below the test's folder."""
    conflist = json.loads(source.read_text())
    for plugin in conflist["plugins"]:
        plugin.get("ipam", {})["dataDir"] = str(addresses)
    target.mkdir()
    (target / source.name).write_text(json.dumps(conflist))
    return str(conflist["name"])


@pytest.fixture
def podman(node: ScratchNode, short_path: Path, consumer_netns: Path) -> Iterator[Podman]:
    for package, binary in (("podman", "podman"), ("runc", "runc"), ("busybox-static", "busybox")):
        if shutil.which(binary) is None:
            pytest.skip(f"{package} is missing: apt-get install {package}")
    home = short_path / "podman"
    home.mkdir()
    network = publish(PUBLISHED, home / "net.d", short_path / "addresses")
    (home / "containers.conf").write_text(CONTAINERS_CONF.format(bin=node.paths.cni_bin, folder=home))
    (home / "storage.conf").write_text(STORAGE_CONF.format(folder=home))
    podman = Podman(home, consumer_netns, short_path / "addresses", network)
    podman("import", "--quiet", str(make_image(short_path)), IMAGE)
    yield podman
    podman("rm", "--all", "--force", "--time", "0")
    podman("rmi", "--force", IMAGE)
    for mount in mounts():
        if mount.target.startswith(str(home)):
            unmount(mount.target)


def serve(podman: Podman, name: str, *options: str) -> str:
    """Start a web server that serves its own folder, and return its address."""
    (podman.folder / "www").mkdir(exist_ok=True)
    (podman.folder / "www" / "hello").write_text(f"hello from {name}")
    volume = f"{podman.folder / 'www'}:/www:ro"
    podman(
        *("run", "--detach", "--name", name, "--network", podman.network, "--volume", volume, *options),
        *(IMAGE, "/bin/httpd", "-f", "-p", "8080", "-h", "/www"),
    )
    return podman.address(name)


def fetch(podman: Podman, address: str) -> str:
    return podman(
        *("run", "--rm", "--network", podman.network, IMAGE),
        *("/bin/wget", "-q", "-O", "-", f"http://{address}:8080/hello"),
    )


def test_two_containers_reach_each_other_and_leave_nothing(podman: Podman, node: ScratchNode) -> None:
    address = serve(podman, "server")
    assert fetch(podman, address) == "hello from server"
    assert podman.reserved().count(address) == 1
    podman("rm", "--force", "--time", "0", "server")
    assert podman.reserved() == []
    assert [link for link in podman.links() if link.startswith("veth")] == []
    assert node.status()["attachments"] == []


def test_a_container_keeps_its_address_through_a_daemon_restart(podman: Podman, node: ScratchNode) -> None:
    address = serve(podman, "server")
    node.kill()
    node.start()
    assert podman.address("server") == address
    assert fetch(podman, address) == "hello from server"


def test_a_container_removed_while_the_daemon_is_away_leaves_nothing_after_its_return(
    podman: Podman, node: ScratchNode
) -> None:
    serve(podman, "server")
    node.kill()
    podman("rm", "--force", "--time", "0", "server")
    assert node.paths.spool.exists()
    node.start()
    assert podman.reserved() == []
    assert [link for link in podman.links() if link.startswith("veth")] == []


def test_network_commands_of_podman_work_without_the_daemon(podman: Podman, node: ScratchNode) -> None:
    node.stop()
    assert podman.network in podman("network", "ls", "--format", "{{.Name}}").split()


def test_a_static_address_and_mac_are_given(podman: Podman) -> None:
    podman(
        *("run", "--detach", "--name", "fixed", "--network", f"{podman.network}:mac=aa:bb:cc:dd:ee:0f"),
        *(IMAGE, "/bin/sleep", "100"),
    )
    shown = podman("exec", "fixed", "/bin/cat", "/sys/class/net/eth0/address")
    assert shown == "aa:bb:cc:dd:ee:0f"
