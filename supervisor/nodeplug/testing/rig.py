"""A node for tests and rules: a folder, a network, the real daemon and kubelet, and the proof that nothing is left.

Owns: creating each of them on demand, removing all of them, including mounts and loop devices, and what only this node
can have created.
Refuses: judgement of the plugin, and pytest: `nodeplug try`, the fixtures of `pytest_nodeplug` and the rules of
conformance are thin layers on it. Only the kernel of the machine is used: every path is below the folder.
"""

import fcntl
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Final, Self, TypeVar

from pyroute2 import IPRoute

from nodeplug.contract.errors import PluginError
from nodeplug.contract.netns import Netns
from nodeplug.process.environment import copy_environment
from nodeplug.testing import forked
from nodeplug.testing.dra.resource_api import ResourceApi
from nodeplug.testing.folders import remove, unmount_below
from nodeplug.testing.fronts import serves_claims
from nodeplug.testing.inventory import Inventory
from nodeplug.testing.isolation import Isolation
from nodeplug.testing.kubelet import BlockingKubelet
from nodeplug.testing.place_holder import filled
from nodeplug.testing.processes import MARK, kill_marked
from nodeplug.testing.scratch_cni import new_netns, run_in
from nodeplug.testing.scratch_node import ScratchNode

DEVICE_POLL: Final = 0.2
"""Seconds between two lists in the daemon of a rig, unless it is told otherwise."""
# A test changes something and waits for it: the daemon polls often, and installs what a changed configuration claims.
# Compiling the entrypoints would cost each test more than their slower start.
_SUPERVISOR: Final = f"""
listen = ""
install = true
csi = true
native_entrypoints = false
podresources_poll = {DEVICE_POLL}
"""
_EXTENDER: Final = '\n[extender]\nlisten = "127.0.0.1:0"\n'
_DRA: Final = '\n[dra]\nkubeconfig = "{file}"\n'
_NODE: Final = "node-1"
"""Its name, where an API server is acted out: the daemon takes it for that of the machine otherwise."""
_NETWORK: Final = ("link ", "address ", "nft ")
_LOOP_CLR_FD: Final = 0x4C01  # linux/loop.h
T = TypeVar("T")


class LeftBehind(AssertionError):
    """A test left something behind; each line of the message is one thing."""


class NodeRig:
    """One node and what surrounds it; nothing runs before it is needed.

    Args:
        folder: is created; keep its path short: a socket's has at most 107 bytes.
        python_path: folders from which the daemon imports; by default what this process can import.
        supervisor: more keys of `[supervisor]`, in TOML.
        device_poll: seconds between two lists in the daemon.

    Attributes:
        folder: the root of the node.
        scratch: an empty folder in it, for which `{scratch}` stands in a configuration.
        env: the environment of every process that loads the plugin.
        untouched: the inventory before the first start of the daemon.
    """

    def __init__(
        self, folder: Path, *, python_path: Sequence[str] = (), supervisor: str = "", device_poll: float = DEVICE_POLL
    ) -> None:
        self.folder = folder
        self.scratch = scratch_of(folder)
        self.scratch.mkdir(parents=True)
        self.env: Mapping[str, str] = {
            **copy_environment(),
            "PYTHONPATH": os.pathsep.join(python_path or forked.search_path()),
        }
        self.untouched = Inventory(frozenset())
        self._supervisor = f"{_SUPERVISOR}device_poll = {device_poll}\n{supervisor}"
        self._netns: Netns | None = None
        self._network_asked = False
        self._node: ScratchNode | None = None
        self._kubelet: BlockingKubelet | None = None
        self._api: ResourceApi | None = None
        forked.prepare(self.env)  # before there is a network that would live as long as it

    @property
    def netns(self) -> Netns | None:
        """The network namespace that acts as the host's; None for an ordinary user, who may not create one."""
        if not self._network_asked:
            self._network_asked = True
            with suppress(PermissionError):
                self._netns = _host_netns()
        return self._netns

    def on_host(self, work: Callable[[], T]) -> T:
        """Run a function in the host's namespace, in a fresh thread; processes that it starts are there too."""
        return run_in(self.netns, work)

    @property
    def node(self) -> ScratchNode | None:
        """The node once it is placed."""
        return self._node

    def place(self, plugins: str, isolation: Isolation | None = None) -> ScratchNode:
        """Configure the node, which does not run yet.

        Args:
            plugins: the `[plugins.*]` tables, in TOML.
            isolation: how plugins run whose sections do not say; by default as the daemon decides.
        """
        env = {"PYTHONPATH": self.env["PYTHONPATH"], MARK: str(self.folder)}
        supervisor = self._supervisor
        if (api := self._api_for(plugins)) is not None:
            (file := self.folder / "kubeconfig").write_text(api.kubeconfig, encoding="utf-8")
            supervisor = f"{_named(supervisor)}{_DRA.format(file=file)}"
        supervisor += "" if "[extender]" in plugins else _EXTENDER
        self._node = ScratchNode(self.folder, plugins, supervisor=supervisor, env=env, fork=True, isolation=isolation)
        self._node.api = api
        self.untouched = self.inventory()
        return self._node

    def _api_for(self, plugins: str) -> ResourceApi | None:
        """Act out an API server if a section serves claims."""
        if self._api is None and serves_claims(plugins):
            self._api = self.on_host(lambda: ResourceApi(_NODE))
        return self._api

    @property
    def kubelet(self) -> BlockingKubelet:
        """Kubelet's stand-in, running, on the node's folders."""
        if self._kubelet is None:
            self._kubelet = BlockingKubelet(self.folder / "var" / "lib" / "kubelet")
            self._kubelet.start()
        return self._kubelet

    def inventory(self, *, files: bool = True) -> Inventory:
        """Take the inventory of what only this node can have created: its network, and what is below its folder.

        Args:
            files: also in the folders in which records and the plugin's own files are.
        """
        places: list[Path] = []
        if files and self._node is not None:
            paths = self._node.paths
            places = [self.scratch, paths.attachments, paths.spool, paths.journal]
        seen = self.on_host(lambda: Inventory.take(*places)).entries
        network = _NETWORK if self.netns is not None else ()
        return Inventory(frozenset(one for one in seen if one.startswith(network) or f"{self.folder}/" in one))

    def left_since(self, before: Inventory, patience: float, *, files: bool = True) -> list[str]:
        """Return what differs from before, after some time: the kernel ends namespaces asynchronously.

        Args:
            before: an earlier inventory.
            patience: seconds to wait for it to vanish.
            files: whether files count as well.
        """
        end = time.monotonic() + patience
        while True:
            seen = self.inventory().since(before)
            left = [line for line in seen if files or not line[2:].startswith("file ")]
            if not left or time.monotonic() > end:
                return left
            time.sleep(0.1)

    def close(self) -> None:
        """End every process and thread, and remove every namespace, mount and loop device below the folder."""
        if self._kubelet is not None:
            self._kubelet.close()
        if self._node is not None:
            self._node.stop()
        if self._api is not None:
            self._api.close()
        kill_marked(self.folder)
        with suppress(PluginError):  # the removal of the folder reports what is still mounted
            unmount_below(self.folder)
        _detach_loops(self.folder)
        if self._netns is not None:
            self._netns.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextmanager
def scratch_node(
    plugins: str, *, may_stay: Sequence[str] = (), isolation: Isolation | None = None
) -> Iterator[ScratchNode]:
    """Run a node whose entrypoints are installed, in a folder and a network of its own.

    The calling thread, and all threads and processes that it starts, are in that network too. What this process can
    import, the daemon can import as well.

    Args:
        plugins: the `[plugins.*]` tables, in TOML; `{scratch}` stands for an empty folder of the node.
        may_stay: regular expressions; what one of them matches as a whole may be left at the end.
        isolation: how plugins run whose sections do not say; by default as the daemon decides.

    Raises:
        NotReady: the daemon does not start; the message carries the end of its log.
        LeftBehind: at the end, with links, mounts, loop devices and nftables objects that were not there before.
    """
    folder = Path(tempfile.mkdtemp(prefix="np-", dir="/tmp"))
    with ExitStack() as stack:
        stack.callback(remove, folder)
        rig = stack.enter_context(NodeRig(folder))
        if rig.netns is not None:
            stack.enter_context(rig.netns.entered())
        node = rig.place(filled(plugins, rig.scratch), isolation)
        # As on a node where kubelet ran before: the daemon notices kubelet by inotify, not once a second.
        node.paths.device_plugins.mkdir(parents=True)
        node.start()
        yield node
        node.stop()
        came = rig.inventory(files=False).since(rig.untouched)
        if left := [line for line in came if not _may_stay(line, may_stay)]:
            raise LeftBehind("the plugin left behind:\n" + "\n".join(left))


def scratch_of(root: Path) -> Path:
    """Return the folder that `{scratch}` means on a node."""
    return root / "scratch"


@contextmanager
def own_network() -> Iterator[None]:
    """Move the calling thread, and all threads and processes that it starts, into a fresh network namespace.

    Raises:
        PermissionError: the caller is not root.
    """
    with closing(_host_netns()) as netns, netns.entered():
        yield


def _host_netns() -> Netns:
    """Create a network namespace like a host's: its loopback is up."""
    made = new_netns()
    with made.entered(), IPRoute() as route:
        route.link("set", index=route.link_lookup(ifname="lo")[0], state="up")
    return made


def _named(supervisor: str) -> str:
    return supervisor if "node_name" in supervisor else f'{supervisor}node_name = "{_NODE}"\n'


def _may_stay(line: str, patterns: Sequence[str]) -> bool:
    return any(re.fullmatch(pattern, line.removeprefix("+ ")) for pattern in patterns)


def _detach_loops(folder: Path) -> None:
    for backing in Path("/sys/block").glob("loop*/loop/backing_file"):
        with suppress(OSError):
            if Path(backing.read_text(encoding="utf-8").strip()).is_relative_to(folder):
                with open(f"/dev/{backing.parts[3]}", "rb") as device:  # noqa: PTH123 - a device, for its descriptor
                    fcntl.ioctl(device, _LOOP_CLR_FD)
