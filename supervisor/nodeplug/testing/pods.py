"""Callers for the pods of one test: runtimes with their sandboxes, kubelet's side of volume drivers, kube-scheduler.

Owns: the end of every pod that a test left running.
Refuses: pytest, so that other tools can use it too; the fixtures of `pytest_nodeplug` are a thin layer on it.
"""

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from nodeplug.contract.errors import NotReady
from nodeplug.contract.values import Pod
from nodeplug.testing.cni_runtime import CniRuntime
from nodeplug.testing.csi_caller import CsiCaller, CsiDriverSpec
from nodeplug.testing.flex_caller import FlexCaller
from nodeplug.testing.sandbox import Sandbox
from nodeplug.testing.scheduler import Scheduler
from nodeplug.testing.scratch_node import ScratchNode

FlexCallerFactory = Callable[[str], FlexCaller]
"""Creates a stand-in for kubelet's side of one FlexVolume driver: `flex_caller("example.com/scratch")`."""
CsiCallerFactory = Callable[..., CsiCaller]
"""Creates a stand-in for kubelet's side of one CSI driver: `csi_caller("scratch.example.com")`."""


SchedulerFactory = Callable[..., Scheduler]
"""Creates a stand-in for kube-scheduler with one extender: `kube_scheduler("example", weight=5)`."""
_LISTENS: Final = 60.0


def url_prefix(node: ScratchNode, claim: str, patience: float = _LISTENS) -> str:
    """Wait until a daemon serves extenders, and return the `urlPrefix` of one.

    Raises:
        NotReady: it does not.
    """
    end = time.monotonic() + patience
    while True:
        found = node.status()["extender"] or {"listens": False, "problem": "there is no table [extender]"}
        if found["listens"]:
            return f"{found['address']}/{claim}"
        if time.monotonic() > end:
            raise NotReady(f"the daemon does not serve extenders: {found['problem'] or 'it does not listen yet'}")
        time.sleep(0.02)


def ensure_running(node: ScratchNode) -> None:
    """Restart a daemon that a test left killed or stopped, as systemd would."""
    if not node.running:
        node.stop()
        node.start()


class CniRuntimeFactory:
    """Creates container runtimes and sandboxes on one node.

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
        """Create a runtime for a network: a decoded network list, or its file."""
        path = [self._node.paths.cni_bin]
        runtime = CniRuntime.load(conflist, path) if isinstance(conflist, Path) else CniRuntime(conflist, path)
        self._runtimes.append(runtime)
        return runtime

    def sandbox(self, name: str) -> Sandbox:
        """Create the network namespace of a pod."""
        made = Sandbox(self._node.root / f"sandbox-{name}")
        self._sandboxes.append(made)
        return made

    def close(self) -> None:
        """End the pods: DEL of what is still attached, then remove the sandboxes.

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
    """Creates stand-ins for kubelet's side of FlexVolume drivers on one node, and ends the pods.

    Args:
        node: its entrypoints are installed.
    """

    def __init__(self, node: ScratchNode) -> None:
        self._node = node
        self._callers: list[FlexCaller] = []

    def __call__(self, driver: str) -> FlexCaller:
        """Create the caller of one driver, `vendor/driver`."""
        caller = FlexCaller(self._node.paths.flexvolume, self._node.root / "var" / "lib" / "kubelet", driver)
        self._callers.append(caller)
        return caller

    def close(self) -> None:
        """End the pods: unmount what is still mounted.

        Raises:
            FlexFailure: of an unmount that fails.
        """
        for caller in self._callers:
            pods = caller.kubelet_root / "pods"
            for target in pods.glob(f"*/volumes/{caller.driver.replace('/', '~')}/*"):
                caller.unmount(Pod(uid=target.relative_to(pods).parts[0]), target.name)


class CsiCallers:
    """Creates stand-ins for kubelet's side of CSI drivers on one node, and ends the pods.

    Args:
        node: it has `csi = true`.
    """

    def __init__(self, node: ScratchNode) -> None:
        self._node = node
        self._callers: list[CsiCaller] = []

    def __call__(self, driver: str, spec: CsiDriverSpec | None = None) -> CsiCaller:
        """Create the caller of one driver, `driver.vendor`, with what its CSIDriver object says."""
        root = self._node.paths.plugins_registry.parent
        caller = CsiCaller(root, driver, CsiDriverSpec() if spec is None else spec)
        self._callers.append(caller)
        return caller

    def close(self) -> None:
        """End the pods: unmount what is still mounted.

        Raises:
            CsiFailure: of an unmount that fails.
        """
        for caller in self._callers:
            for pod, name in caller.volumes():
                caller.unmount(pod, name)


class Schedulers:
    """Creates stand-ins for kube-scheduler that ask extenders of one node.

    Args:
        node: it has an `[extender]` table.
    """

    def __init__(self, node: ScratchNode) -> None:
        self._node = node
        self._made: list[Scheduler] = []

    def __call__(self, claim: str, **options: Any) -> Scheduler:
        """Create the scheduler of one extender, with more of its configuration; see `Scheduler`."""
        made = Scheduler(url_prefix(self._node, claim), **options)
        self._made.append(made)
        return made

    def close(self) -> None:
        """End the connections."""
        for made in self._made:
            made.close()
