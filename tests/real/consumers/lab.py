"""A whole node: the daemon, containerd, and a kubelet with pods that use both.

Owns: their start and end in the right order, and what a test asks of all three together: pods, the devices of one
resource as kubelet lists them, the inventory.
Refuses: what runs in the pods, and which plugins there are.
"""

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.ended import kill
from tests.real.consumers.api_server import ApiServer
from tests.real.consumers.containerd import Containerd
from tests.real.consumers.control_plane import ControlPlane
from tests.real.consumers.kubelet_process import KubeletProcess, pod
from tests.real.consumers.private_node import PrivateNode

from nodeplug.contract.errors import PluginError
from nodeplug.testing.inventory import Inventory
from nodeplug.testing.scratch_node import ScratchNode
from nodeplug.testing.waiting import until

COLLECTED: Final = 90.0
"""Seconds; kubelet looks once a minute for sandboxes that it lost sight of (its container garbage collection)."""


@dataclass(frozen=True, slots=True)
class Lab:
    """A node with a daemon, a containerd and a kubelet that run.

    Attributes:
        folder: everything lies below it.
        name: the resource whose devices are asked for.
        api: kubelet's API server that is acted out, or None.
        control_plane: the real one, or None; without either, kubelet is standalone.
    """

    folder: Path
    name: str
    private: PrivateNode
    daemon: ScratchNode
    containerd: Containerd
    kubelet: KubeletProcess
    api: ApiServer | None = None
    control_plane: ControlPlane | None = None

    @property
    def watched(self) -> tuple[Path, ...]:
        """Where a pod could leave files, the record of the devices' holders aside."""
        state, library = self.daemon.paths.state, self.private.folder / "var/lib"
        return (
            *(state / name for name in ("journal", "spool", "plugins")),
            *(self.daemon.paths.run, library / "cni", library / "kubelet/pods", library / "kubelet/plugins"),
        )

    def inventory(self) -> Inventory:
        """Take the inventory of the node."""
        return self.private.inventory(*self.watched)

    def since(self, before: Inventory) -> list[str]:
        """Remove every pod but the residents, give kubelet time to collect, and return what came and went."""
        self.kubelet.clear()
        return self.private.inventory_since(before, *self.watched, patience=COLLECTED)

    def resource(self) -> dict[str, Any]:
        """Return what the daemon tells about the resource."""
        return next(entry for entry in self.daemon.status()["resources"] if entry["resource"] == self.name)

    def allocations(self) -> int:
        """Return how many calls of Allocate the daemon remembers."""
        return sum(call["verb"] == "Allocate" for call in self.daemon.status()["recent"])

    def lists_taken(self) -> int:
        """Return how many lists of devices kubelet has logged."""
        return len(re.findall(f'State pushed for device plugin"? (?:resource=")?{self.name}', self.kubelet.log))

    def streams_ended(self) -> int:
        """Return how many streams of devices kubelet has seen end."""
        return self.kubelet.log.count("istAndWatch ended unexpectedly")

    def until_listed(self, action: Callable[[], object]) -> None:
        """Do something that makes the daemon send a list, and wait until kubelet has taken it in.

        Raises:
            PluginError: that took too long.
        """
        before = self.lists_taken()
        action()
        self.kubelet.wait_for("a list of devices", lambda: self.lists_taken() > before)
        time.sleep(1.0)  # it logs before it stores; and it may have disconnected what was registered just now
        self.kubelet.wait_for("its stream", lambda: self.resource()["registered"] and self.resource()["streams"])

    def reload(self, plugins: str) -> None:
        """Change the configuration, and wait until the daemon has it.

        Raises:
            PluginError: that took too long.
        """
        before = self.daemon.log.count("configuration reloaded")
        self.daemon.configure(plugins)
        self.kubelet.wait_for("a reload", lambda: self.daemon.log.count("configuration reloaded") > before)

    def kill_while_held(self, verb: str, start: Callable[[], object]) -> None:
        """Start something, and kill the daemon inside its call (see the plugin `hold`).

        Raises:
            PluginError: the call did not come.
        """
        with self.held(verb, start):
            self.daemon.kill()

    @contextmanager
    def held(self, verb: str, start: Callable[[], object]) -> Iterator[None]:
        """Start something, and keep its call back for the length of a block (see the plugin `hold`).

        Raises:
            PluginError: the call did not come.
        """
        hold, held = (self.folder / f"{word}-{verb}" for word in ("hold", "held"))
        hold.touch()
        try:
            start()
            self.kubelet.wait_for(f"a {verb} that is held", held.exists)
            yield
        finally:
            hold.unlink()
            held.unlink(missing_ok=True)

    @contextmanager
    def successors(self) -> Iterator[Callable[[], None]]:
        """Lend what replaces the daemon by another one; at the end the daemon is a child of this process again.

        Raises:
            PluginError: a daemon was not replaced.
        """
        last = 0

        def replace() -> None:
            nonlocal last
            done = self.daemon.run("replace")
            if done.returncode != 0:
                raise PluginError(f"nodeplug replace ended with {done.returncode}: {done.stderr}\n{self.daemon.log}")
            last = self.daemon.status()["pid"]

        try:
            yield replace
        finally:
            if last:
                kill(last)
                until(lambda: not self.daemon.running)
                self.until_listed(self.daemon.start)

    def put(self, name: str, script: str = "", **more: Any) -> None:
        """Give kubelet a pod; the arguments are those of `pod`."""
        self.kubelet.put(pod(name, script, **more))

    def run(self, name: str, script: str = "", **more: Any) -> dict[str, Any]:
        """Give kubelet a pod, wait until it runs, and return it.

        Raises:
            PluginError: that took too long.
        """
        self.put(name, script, **more)
        return self.kubelet.running(name)

    def devices_of(self, name: str) -> list[str]:
        """Return the resource's devices that a pod's container sees: nodes called like it, that can be read."""
        word = self.name.rpartition("/")[2]
        listed = self.kubelet.execute(name, "/bin/ls", "/dev").split()
        found = sorted(device for device in listed if device.startswith(word))
        for device in found:
            self.kubelet.execute(name, "/bin/dd", f"if=/dev/{device}", "of=/dev/null", "bs=1", "count=1")
        return found

    def mount_type(self, name: str, path: str) -> str:
        """Return the filesystem type at a mount point of a pod's container."""
        lines = self.kubelet.execute(name, "/bin/cat", "/proc/mounts").splitlines()
        return next(fields[2] for fields in map(str.split, lines) if fields[1] == path)


@contextmanager
def open_lab(
    private: PrivateNode,
    folder: Path,
    program: Path,
    plugins: str,
    *,
    resource: str,
    conflists: Sequence[Path],
    env: Mapping[str, str] | None = None,
    with_api: bool = False,
    runtime: Path | None = None,
    control_plane: Path | ControlPlane | None = None,
    authorization: str = "AlwaysAllow",
    registration: str = "register",
    csi: bool = False,
) -> Iterator[Lab]:
    """Start everything, and end everything.

    Args:
        private: the node; its folder is the daemon's root.
        folder: an existing folder with a short path for containerd and kubelet.
        program: the kubelet.
        plugins: the `[plugins.*]` tables of the daemon.
        resource: a resource of these plugins; the lab is ready when kubelet has its devices.
        conflists: network configurations; each pod joins all of them.
        env: more environment for the daemon.
        with_api: give kubelet an API server: pods come from there and not from manifests.
        runtime: the folder of containerd, its shim and ctr; None: those of PATH.
        control_plane: the folder of kube-apiserver and its like: a real API server, whose scheduler places the pods;
            or one that runs already and that the node joins.
        authorization: of that API server, such as RBAC: kubelet, scheduler and test are administrators.
        csi: the daemon serves CSI drivers; with `with_api` it does anyway.
        registration: how devices are registered, `device_registration` of the daemon.

    Raises:
        PluginError: something did not start; the message carries the end of its log.
    """
    supervisor = f'listen = ""\npodresources_poll = "1s"\ndevice_registration = "{registration}"'
    csi = csi or with_api
    if csi:  # the file is written when there is a server: the daemon starts first
        supervisor += f'\ncsi = true\nkubeconfig = "{folder}/kubeconfig"\ncsi_node_poll = "1s"'
    with ExitStack() as stack:
        daemon = ScratchNode(private.folder, plugins, supervisor=supervisor, env=env, beside=private.pid, fork=True)
        stack.enter_context(daemon)
        arguments = [word for path in conflists for word in ("--conflist", str(path))]
        installed = daemon.run("install", *arguments)
        if installed.returncode != 0:
            raise PluginError(f"nodeplug install ended with {installed.returncode}: {installed.stderr}")
        folders = [folder / name for name in ("c", "k")]
        for path in folders:
            path.mkdir()
        paths = daemon.paths
        containerd = Containerd(
            private, folders[0], paths.cni_bin, paths.cni_conf, networks=len(conflists), programs=runtime
        )
        stack.enter_context(containerd)
        api = stack.enter_context(ApiServer(private)) if with_api else None
        cluster = control_plane if isinstance(control_plane, ControlPlane) else None
        if isinstance(control_plane, Path):
            (folder / "p").mkdir()
            cluster = stack.enter_context(ControlPlane(private, folder / "p", control_plane, authorization))
        if csi and (server := api or cluster) is not None:
            (folder / "kubeconfig").write_text(server.kubeconfig)
        kubelet = KubeletProcess(private, folders[1], program, containerd, paths.flexvolume, api or cluster)
        lab = Lab(folder, resource, private, daemon, containerd, kubelet, api, cluster)
        stack.callback(containerd.clear)
        lab.until_listed(lambda: stack.enter_context(kubelet))
        yield lab
        kubelet.clear()  # the sandboxes of residents end with containerd's
