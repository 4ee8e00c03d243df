"""A node of its own on this machine: network, mount and host name namespaces for real consumers.

Owns: the namespaces, what is mounted in them, every process and cgroup that a consumer leaves behind, and the inventory
as seen from inside.
Refuses: to start the daemon or a consumer by itself: they take `pid`, or `command` as their prefix.

Inside, `/run` is an empty tmpfs, so namespaces and sockets that consumers put there never reach the machine, and the
folders that kubelet and libcni hard-wire lie below the node's own folder, as do the kernel's settings that kubelet
changes. Several nodes live side by side: each has a cgroup of its own in every hierarchy, for all that it runs.
"""

import json
import os
import re
import secrets
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

from tests.programs import need_command
from tests.real.consumers.hard_wired import HardWired

from nodeplug.contract.errors import PluginError
from nodeplug.contract.netns import Netns
from nodeplug.testing import forked, namespaces
from nodeplug.testing.inventory import CGROUPS, Inventory, cgroups_of, make_cgroup
from nodeplug.testing.waiting import PATIENCE

_REPOSITORY: Final = Path(__file__).parents[3]
ADDRESS: Final = "10.230.0.2"
"""The node's own address, on a link without peers."""
KUBELETS: Final = ("kubepods", "burstable", "besteffort")
ENV: Final = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
KERNEL_SETTINGS: Final = tuple(
    f"/proc/sys/{name}"
    for name in (
        "vm/overcommit_memory",
        "vm/panic_on_oom",
        "kernel/panic",
        "kernel/panic_on_oops",
        "kernel/keys/root_maxkeys",
        "kernel/keys/root_maxbytes",
    )
)
"""What kubelet sets at its start (its container manager, setupKernelTunables). No namespace keeps them apart: inside,
files lie over them."""
# A bind mount that stays in its parent's peer group shows each volume twice, and kubelet then never unmounts one.
_SETUP: Final = """
root=$1 name=$2 address=$3 settings=$4; shift 4
mount --make-rshared /
mount -t tmpfs tmpfs /run
for path in $settings; do
    mkdir -p "$root${path%/*}"
    cat "$path" >"$root$path"
    mount --bind "$root$path" "$path"
done
for path in "$@"; do
    mount --bind "$root$path" "$path"; mount --make-private "$path"; mount --make-shared "$path"
done
hostname "$name"
ip link set lo up
ip link add uplink0 type bridge
ip address add "$address/24" dev uplink0
ip link set uplink0 up
ip route add default via "${address%.*}.1"
echo ready
exec sleep infinity
"""
PASSING = re.compile(r"/journal/(bridge/network%20|.*/\.[^/]*\.tmp$)")
"""Records of what networks need, noted with the first pod and forgotten at some look after the last one; what a kill
left of a write, which goes with the first look that is a minute later."""


class PrivateNode:
    """Namespaces that live until they are closed.

    Args:
        folder: an existing folder with a short path; `/var/lib/kubelet` and its like lie below it.
        name: the host name inside.
        more: further folders that it has to itself, below its own one.

    Attributes:
        cgroup: the name of its own cgroup, directly below each hierarchy's root: the parent of every consumer's.

    Raises:
        PluginError: the kernel or a missing tool refused; the message carries what was printed.
    """

    def __init__(self, folder: Path, name: str = "private-node", more: Sequence[str] = ()) -> None:
        self.folder, self.name = folder, name
        self.cgroup = f"nodeplug-node-{secrets.token_hex(4)}"
        self._hard_wired = HardWired(more)
        for path in self._hard_wired.paths:
            (folder / path.lstrip("/")).mkdir(parents=True, exist_ok=True)
        make_cgroup(self.cgroup)
        settings = " ".join(KERNEL_SETTINGS)
        own_node = namespaces.command(network=True, host_name=True)
        self._holder = subprocess.Popen(
            [*own_node, "sh", "-ec", _SETUP, "sh", str(folder), name, ADDRESS, settings, *self._hard_wired.paths],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=ENV,
            cwd="/",
        )
        assert self._holder.stdout is not None
        if (said := self._holder.stdout.readline()) != b"ready\n":
            rest = self._holder.stdout.read()
            self._reap()
            raise PluginError(f"cannot make a private node: {(said + rest).decode(errors='replace').strip()}")
        self.netns = Netns.open(f"/proc/{self.pid}/ns/net")
        try:
            self._inherited = frozenset(self._look())
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        """The process whose namespaces these are."""
        return self._holder.pid

    def join(self, other: "PrivateNode", number: int) -> str:
        """Lay a cable to another node; return this one's address at its end.

        Args:
            other: to where.
            number: of the cable, 1 to 250: no two of one node have the same.
        """
        mine, theirs, end = f"10.231.{number}.1", f"10.231.{number}.2", f"cable{number}"
        inside = str(other.pid)
        self.run("ip", "link", "add", end, "type", "veth", "peer", "name", end, "netns", inside)
        for node, address in ((self, mine), (other, theirs)):
            node.run("ip", "address", "add", f"{address}/30", "dev", end)
            node.run("ip", "link", "set", end, "up")
        return mine

    def command(self, *arguments: str) -> list[str]:
        """Return the argument list that executes a program inside, in the process that is started with it."""
        return [*namespaces.entering(self.pid), *arguments]

    def run(self, *arguments: str) -> str:
        """Run a program inside and return what it printed.

        Raises:
            PluginError: it failed.
        """
        need_command(arguments)
        done = subprocess.run(
            self.command(*arguments), env=ENV, cwd="/", capture_output=True, text=True, timeout=60, check=False
        )
        if done.returncode != 0:
            raise PluginError(f"{' '.join(arguments)} ended with {done.returncode}: {done.stderr}{done.stdout}")
        return done.stdout

    def inventory(self, *folders: Path) -> Inventory:
        """Take an inventory from inside, the cgroups of consumers included.

        What the machine had mounted when the node was made is left out, and so are loop devices on other folders, the
        node's own cgroup and kubelet's in it, which come with its first pods and which containerd 2 removes with the
        last one, and the version 2 tree beside version 1 trees, in which runc makes folders that kubelet 1.20 does not
        know of.
        """
        cgroups = [
            f"cgroup {path}"
            for path in cgroups_of(self.cgroup)
            if path.name not in (self.cgroup, *KUBELETS) and not path.is_relative_to(CGROUPS / "unified")
        ]
        return Inventory(frozenset([*self._look(*folders), *cgroups]) - self._inherited)

    def _look(self, *folders: Path) -> list[str]:
        env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(_REPOSITORY), *forked.search_path()])}
        words = [str(folder) for folder in folders]
        done = forked.run("tests.real.printed_inventory", words, env, repeated=True, beside=self.pid, timeout=60)
        if done.returncode != 0:
            raise PluginError(f"no inventory could be taken: {done.stderr}")
        entries: list[str] = json.loads(done.stdout)
        return [entry for entry in entries if not entry.startswith("loop ") or str(self.folder) in entry]

    def inventory_since(self, before: Inventory, *folders: Path, patience: float = PATIENCE) -> list[str]:
        """Return what came and went since `before`, after waiting for consumers to finish their clean-up."""
        end = time.monotonic() + patience
        while (difference := self._since(before, *folders)) and time.monotonic() < end:
            time.sleep(0.25)
        return difference

    def _since(self, before: Inventory, *folders: Path) -> list[str]:
        """Compare, without what comes and goes by itself."""
        return [line for line in self.inventory(*folders).since(before) if not PASSING.search(line)]

    def pods_in_cgroups(self) -> set[str]:
        """Return the UIDs of the pods for which kubelet keeps cgroups; it removes them after all else."""
        found = [path for path in cgroups_of(self.cgroup) if not path.is_relative_to(CGROUPS / "unified")]
        return {path.name.removeprefix("pod") for path in found if path.name.startswith("pod")}

    def close(self) -> None:
        """End every process inside and in its cgroups, and drop the namespaces; the machine is as before."""
        end = time.monotonic() + 10
        while (left := set(self._inside()) | set(self._in_cgroups())) and time.monotonic() < end:
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)
        self.netns.close()
        self._reap()

    def _reap(self) -> None:
        self._holder.kill()
        self._holder.wait()
        if self._holder.stdout is not None:
            self._holder.stdout.close()
        self._hard_wired.leave()
        for path in cgroups_of(self.cgroup):
            with suppress(OSError):  # a hierarchy that is mounted twice shows it twice
                path.rmdir()

    def _inside(self) -> Iterator[int]:
        wanted = Path(f"/proc/{self.pid}/ns/mnt").stat().st_ino
        for pid in (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()):
            with suppress(OSError):
                if pid != self.pid and Path(f"/proc/{pid}/ns/mnt").stat().st_ino == wanted:
                    yield pid

    def _in_cgroups(self) -> Iterator[int]:
        for path in cgroups_of(self.cgroup):
            with suppress(OSError):
                yield from map(int, (path / "cgroup.procs").read_text(encoding="utf-8").split())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
