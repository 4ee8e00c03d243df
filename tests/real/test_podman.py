"""podman 4 with its CNI backend: a real runtime gets its network from us, with the conflist that we publish."""

import json
import shutil
import subprocess
import tarfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.programs import may_execute, need
from tests.real.consumers import PrivateNode, Restarts

from nodeplug.testing import ScratchNode, folders
from nodeplug.testing.inventory import cgroups_of
from nodeplug.testing.waiting import until

DOZENS = 24
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
# Locks in /dev/shm are the machine's: a podman that starts with new folders frees those of every other.
lock_type = "file"
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
    within: tuple[str, ...]
    addresses: Path
    network: str

    def try_(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        env = {
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": str(self.folder),
            "CONTAINERS_CONF": str(self.folder / "containers.conf"),
            "CONTAINERS_STORAGE_CONF": str(self.folder / "storage.conf"),
        }
        command = [*self.within, "podman", *arguments]
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
        shown = subprocess.run([*self.within, "cat", "/proc/net/dev"], capture_output=True, text=True, check=True)
        return sorted(line.split(":")[0].strip() for line in shown.stdout.splitlines()[2:])

    def reserved(self) -> list[str]:
        """Addresses that the store holds."""
        return sorted(path.name for path in self.addresses.glob("*/*") if path.name[0].isdigit() or ":" in path.name)


def make_image(folder: Path) -> Path:
    root = folder / "rootfs"
    for name in ("bin", "dev", "etc", "proc", "sys", "run", "tmp"):
        (root / name).mkdir(parents=True)
    shutil.copy("/bin/busybox", root / "bin" / "busybox")
    for applet in ("sh", "httpd", "wget", "sleep", "cat", "ip"):
        (root / "bin" / applet).symlink_to("busybox")
    archive = folder / "rootfs.tar"
    with tarfile.open(archive, "w") as tar:
        tar.add(root, arcname=".")
    return archive


def publish(source: Path, target: Path, addresses: Path) -> str:
    """Install our published conflist as an admin would, with the address store moved below the test's folder.

    It offers `ips` besides, as each list does that `podman network create` writes.
    """
    conflist = json.loads(source.read_text())
    conflist["plugins"][0]["capabilities"] = {"ips": True}
    for plugin in conflist["plugins"]:
        plugin.get("ipam", {})["dataDir"] = str(addresses)
    target.mkdir()
    (target / source.name).write_text(json.dumps(conflist))
    return str(conflist["name"])


def named(folder: str) -> list[str]:
    """Return the commands of all processes that have a folder in their arguments."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip())
    return [command for command in found if folder in command]


@contextmanager
def podman_in(folder: Path, within: Sequence[str], daemon: ScratchNode, conflist: Path = PUBLISHED) -> Iterator[Podman]:
    """Give podman folders of its own and an image, and clear up after it."""
    need("podman", "runc", "busybox")
    may_execute("modprobe")  # podman executes it where it is installed
    home = folder / "podman"
    home.mkdir()
    network = publish(conflist, home / "net.d", folder / "addresses")
    (home / "containers.conf").write_text(CONTAINERS_CONF.format(bin=daemon.paths.cni_bin, folder=home))
    (home / "storage.conf").write_text(STORAGE_CONF.format(folder=home))
    podman = Podman(home, tuple(within), folder / "addresses", network)
    podman("import", "--quiet", str(make_image(folder)), IMAGE)
    try:
        yield podman
    finally:
        podman("rm", "--all", "--force", "--time", "0")
        podman("rmi", "--force", IMAGE)
        # conmon starts a podman that clears up after its container, and that mounts the store anew if it comes late.
        until(lambda: not named(str(home)), found=lambda: named(str(home)))
        folders.unmount_below(home)
    for cgroup in cgroups_of("libpod_parent"):
        with suppress(OSError):  # in use by another podman
            cgroup.rmdir()


@pytest.fixture
def podman(node: ScratchNode, short_path: Path, consumer_netns: Path) -> Iterator[Podman]:
    with podman_in(short_path, ("nsenter", f"--net={consumer_netns}"), node) as made:
        yield made


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


@pytest.mark.parametrize("wanted", [["10.88.7.7"], ["10.88.7.8", "fd10:88::7:8"]], ids=["in CNI_ARGS", "as capability"])
def test_asked_for_addresses_are_given(podman: Podman, wanted: list[str]) -> None:
    options = ",".join(f"ip={address}" for address in wanted)
    podman(
        *("run", "--detach", "--name", "fixed", "--network", f"{podman.network}:{options}"), IMAGE, "/bin/sleep", "100"
    )
    shown = podman("exec", "fixed", "/bin/ip", "-o", "address", "show", "dev", "eth0")
    assert [f" {address}/" in shown for address in wanted] == [True] * len(wanted)


def persist(podman: Podman, name: str, cgroup: str) -> None:
    """Start a container, and start it anew when its network was lost, as a service that is restarted."""
    end = time.monotonic() + 90.0
    command = ("run", "--detach", "--name", name, "--network", podman.network, "--cgroup-parent", f"/{cgroup}")
    while (done := podman.try_(*command, IMAGE, "/bin/sleep", "1000")).returncode != 0:
        assert time.monotonic() < end, done.stderr
        podman("rm", "--force", "--time", "0", name)


@pytest.mark.soak
def test_dozens_of_containers_in_parallel_survive_a_daemon_that_is_restarted_again_and_again(
    private_node: PrivateNode, short_path: Path
) -> None:
    plugins = '[plugins.bridge]\n[plugins.loopback.config]\nnames = ["loopback"]\n'
    daemon = ScratchNode(private_node.folder, plugins, beside=private_node.pid, fork=True)
    with ExitStack() as stack:
        stack.enter_context(daemon)
        assert daemon.run("install").returncode == 0
        podman = stack.enter_context(podman_in(short_path, private_node.command(), daemon))
        restarts = Restarts(daemon)

        def one(number: int) -> str:
            name = f"container-{number}"
            with restarts.during("creation"):
                persist(podman, name, private_node.cgroup)
            address = podman.address(name)
            with restarts.during("removal"):
                podman("rm", "--force", "--time", "0", name)
            return address

        persist(podman, "bystander", private_node.cgroup)
        one(0)  # makes what stays on purpose, such as the folder of its cgroup
        watched = (podman.addresses, private_node.folder / "var", daemon.paths.run)
        before = private_node.inventory(*watched)
        with restarts, ThreadPoolExecutor(6) as pool:
            for first in range(1, 5 * DOZENS, DOZENS):
                addresses = list(pool.map(one, range(first, first + DOZENS)))
                assert all(address.startswith("10.88.") for address in addresses)
                if restarts.hit_all("creation", "removal"):
                    break
        assert restarts.hit_all("creation", "removal")
        assert private_node.inventory_since(before, *watched) == []
        private_node.run("ping", "-c", "1", "-W", "2", podman.address("bystander"))
