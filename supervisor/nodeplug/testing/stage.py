"""One node for one test: the daemon in a short folder and a network of its own, and the proof that nothing is left.

Owns: the order of setting up and taking down, the end of every pod that a test left running, and what may remain.
Refuses: pytest, so that other tools can use it too; the fixtures of `pytest_nodeplug` are a thin layer on it.
"""

import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

from pyroute2 import IPRoute

from nodeplug.contract.values import Pod
from nodeplug.testing import forked
from nodeplug.testing.cni_runtime import CniRuntime
from nodeplug.testing.flex_caller import FlexCaller
from nodeplug.testing.folders import mounted_below, remove, unmount_below
from nodeplug.testing.inventory import Inventory
from nodeplug.testing.place_holder import filled
from nodeplug.testing.sandbox import Sandbox
from nodeplug.testing.scratch_cni import new_netns
from nodeplug.testing.scratch_node import ScratchNode

# A test changes something and waits for it: the daemon looks often, and installs what a changed configuration claims.
# Compiling the entrypoints would cost each test more than their slower start.
_SUPERVISOR: Final = """
listen = ""
install = true
native_entrypoints = false
device_poll = "200ms"
podresources_poll = "200ms"
"""
_NETWORK: Final = ("link ", "address ", "route ", "nft ")

FlexCallerFactory = Callable[[str], FlexCaller]
"""Makes kubelet's side of one FlexVolume driver: `flex_caller("example.com/scratch")`."""


class LeftBehind(AssertionError):
    """After the end of a test something is left of it; each line of the text is one thing."""


@contextmanager
def own_network() -> Iterator[bool]:
    """Move the calling thread, and all threads and processes that it starts, into a fresh network namespace.

    Yields:
        Whether that worked: an ordinary user stays where it is.
    """
    try:
        netns = new_netns()
    except PermissionError:
        yield False
        return
    try:
        with netns.entered():
            with IPRoute() as route:
                route.link("set", index=route.link_lookup(ifname="lo")[0], state="up")
            yield True
    finally:
        netns.close()


@contextmanager
def scratch_node(plugins: str, *, may_stay: Sequence[str] = ()) -> Iterator[ScratchNode]:
    """Run a node whose entrypoints are installed, in a folder and a network of its own.

    What this process can import, the daemon can import as well.

    Args:
        plugins: the `[plugins.*]` tables, in TOML; `{scratch}` stands for an empty folder of the node.
        may_stay: regular expressions; what one of them matches as a whole may be left at the end.

    Raises:
        NotReady: the daemon does not start; the message carries the end of its log.
        LeftBehind: at the end, with links, mounts, loop devices and nftables objects that were not there before.
    """
    search = os.pathsep.join(forked.search_path())
    forked.prepare({**os.environ, "PYTHONPATH": search})  # before there is a network that would live as long as it
    folder = Path(tempfile.mkdtemp(prefix="np-", dir="/tmp"))  # a socket's path has at most 107 bytes
    with ExitStack() as stack:
        stack.callback(remove, folder)
        private = stack.enter_context(own_network())
        before = _look(folder, private=private)
        stack.callback(unmount_below, folder)
        scratch = scratch_of(folder)
        scratch.mkdir()
        plugins = filled(plugins, scratch)
        node = ScratchNode(folder, plugins, supervisor=_SUPERVISOR, env={"PYTHONPATH": search}, fork=True)
        # As on a node where kubelet ran before: the daemon sees kubelet come by inotify then, not once a second.
        node.paths.device_plugins.mkdir(parents=True)
        stack.callback(node.stop)
        node.start()
        yield node
        node.stop()
        left = [line for line in _look(folder, private=private).since(before) if not _may_stay(line, may_stay)]
        if left:
            raise LeftBehind("the plugin left behind:\n" + "\n".join(left))


def scratch_of(root: Path) -> Path:
    """Return the folder for which `{scratch}` stands on a node."""
    return root / "scratch"


def ensure_running(node: ScratchNode) -> None:
    """Start a daemon that a test left killed or stopped, as systemd would."""
    if not node.running:
        node.stop()
        node.start()


def _look(folder: Path, *, private: bool) -> Inventory:
    """Take what this node alone can have made: all of its own network, and what lies below its folder."""
    if not private:
        return Inventory(frozenset(f"mount on {target}" for target in mounted_below(folder)))
    entries = Inventory.take().entries
    return Inventory(frozenset(one for one in entries if one.startswith(_NETWORK) or f"{folder}/" in one))


def _may_stay(line: str, patterns: Sequence[str]) -> bool:
    return any(re.fullmatch(pattern, line.removeprefix("+ ")) for pattern in patterns)


class CniRuntimeFactory:
    """Makes container runtimes and sandboxes on one node.

        runtime = cni_runtime({"cniVersion": "1.0.0", "name": "net", "plugins": [{"type": "example-wire"}]})
        pod = cni_runtime.sandbox("pod")
        runtime.add("pod", pod.path)

    Args:
        node: its entrypoints are installed.
    """

    def __init__(self, node: ScratchNode) -> None:
        self._node = node
        self._runtimes: list[CniRuntime] = []
        self._sandboxes: list[Sandbox] = []

    def __call__(self, conflist: Mapping[str, Any] | Path) -> CniRuntime:
        """Make a runtime for a network: a decoded network list, or the file of one."""
        path = [self._node.paths.cni_bin]
        runtime = CniRuntime.load(conflist, path) if isinstance(conflist, Path) else CniRuntime(conflist, path)
        self._runtimes.append(runtime)
        return runtime

    def sandbox(self, name: str) -> Sandbox:
        """Make the network namespace of a pod."""
        made = Sandbox(self._node.root / f"sandbox-{name}")
        self._sandboxes.append(made)
        return made

    def close(self) -> None:
        """End the pods: DEL of what is still attached, then the sandboxes go.

        Raises:
            CniError: of a DEL that fails.
        """
        with ExitStack() as stack:
            for sandbox in self._sandboxes:
                stack.callback(sandbox.close)
            for runtime in self._runtimes:
                for attached in reversed(list(runtime.cache.all())):
                    runtime.delete(attached.container_id, attached.netns, attached.ifname)


class FlexCallers:
    """Makes kubelet's side of FlexVolume drivers on one node, and ends the pods.

    Args:
        node: its entrypoints are installed.
    """

    def __init__(self, node: ScratchNode) -> None:
        self._node = node
        self._callers: list[FlexCaller] = []

    def __call__(self, driver: str) -> FlexCaller:
        """Make the caller of one driver, `vendor/driver`."""
        caller = FlexCaller(self._node.paths.flexvolume, self._node.root / "var" / "lib" / "kubelet", driver)
        self._callers.append(caller)
        return caller

    def close(self) -> None:
        """End the pods: unmount what is still there.

        Raises:
            FlexFailure: of an unmount that fails.
        """
        for caller in self._callers:
            pods = caller.kubelet_root / "pods"
            for target in pods.glob(f"*/volumes/{caller.driver.replace('/', '~')}/*"):
                caller.unmount(Pod(uid=target.relative_to(pods).parts[0]), target.name)
