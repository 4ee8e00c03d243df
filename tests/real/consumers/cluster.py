"""A cluster of one node on which nobody has installed nodeplug yet: everything else is there, at the usual paths.

Owns: the node's folders, the start and end of containerd, the control plane and kubelet, helm, and the image of
deploy/Containerfile in containerd.
Refuses: the daemon: the cluster starts it, in a pod.
"""

import json
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.real.consumers.containerd import Containerd
from tests.real.consumers.control_plane import PORT, ControlPlane
from tests.real.consumers.kubelet_process import KubeletProcess
from tests.real.consumers.private_node import ENV, PrivateNode

from nodeplug.contract.errors import PluginError

FOLDERS: Final = ("/var/lib/nodeplug", "/opt/cni", "/etc/cni", "/usr/libexec/kubernetes")
"""Of the node, besides those that kubelet and libcni hard-wire."""
FLEXVOLUME: Final = "/usr/libexec/kubernetes/kubelet-plugins/volume/exec"
IMAGE: Final = "registry.local/nodeplug"
NAMESPACE: Final = "nodeplug"
_DAEMONS: Final = f"/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets/nodeplug"
_ROLLED_OUT: Final = 240.0
"""Seconds: the next pod starts, takes over, is ready, and the one before ends."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """One node, a control plane with rights, and helm."""

    folder: Path
    node: PrivateNode
    api: ControlPlane
    containerd: Containerd
    kubelet: KubeletProcess
    helm_program: Path

    def helm(self, *arguments: str) -> str:
        """Run helm as an administrator.

        Raises:
            PluginError: it failed.
        """
        env = {**ENV, "KUBECONFIG": str(self.api.folder / "kubeconfig"), "HOME": str(self.folder)}
        done = subprocess.run(
            self.node.command(str(self.helm_program), *arguments),
            env=env,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        if done.returncode != 0:
            raise PluginError(f"helm {' '.join(arguments)} ended with {done.returncode}: {done.stderr}{done.stdout}")
        return done.stdout

    def pods(self) -> list[dict[str, Any]]:
        """Return the pods of the daemon, those that end included."""
        selector = "labelSelector=app.kubernetes.io%2Fname%3Dnodeplug"
        return list(self.api.call("GET", f"/api/v1/namespaces/{NAMESPACE}/pods?{selector}")["items"])

    def rolled_out(self) -> dict[str, Any]:
        """Wait until one pod of the newest kind is ready and no other is left; return it.

        Raises:
            PluginError: that took too long; the message carries what pods and their daemons say.
        """

        def done() -> dict[str, Any] | None:
            daemons, pods = self.api.call("GET", _DAEMONS), self.pods()
            status = daemons["status"]
            current = status.get("observedGeneration") == daemons["metadata"]["generation"]
            updated = status.get("updatedNumberScheduled") == 1 == status.get("numberReady")
            return pods[0] if current and updated and len(pods) == 1 else None

        try:
            return dict(self.kubelet.wait_for("a rollout", done, _ROLLED_OUT))
        except PluginError as error:
            raise PluginError(f"{error}\n{self.told()}") from error

    def told(self) -> str:
        """Return what there is to know of the daemon's pods."""
        logs = sorted(self.node.folder.glob("var/log/pods/nodeplug_*/*/*.log"))
        said = [f"{path.parent}:\n{path.read_text(errors='replace')[-4000:]}" for path in logs]
        return "\n".join([*(json.dumps(one["status"].get("containerStatuses")) for one in self.pods()), *said])

    def nodeplug(self, *arguments: str) -> str:
        """Run a nodeplug command in the pod of the daemon, as `kubectl exec` does.

        Raises:
            PluginError: it failed.
        """
        (pod,) = [one for one in self.pods() if "deletionTimestamp" not in one["metadata"]]
        (state,) = pod["status"]["containerStatuses"]
        container = str(state["containerID"]).removeprefix("containerd://")
        return self.containerd.execute(container, "nodeplug", *arguments)

    def wait_for(self, what: str, holds: Callable[[], Any]) -> Any:
        """Return the first true answer of `holds`; see `KubeletProcess.wait_for`."""
        return self.kubelet.wait_for(what, holds)

    def install(self, chart: Path, *settings: str, values: Sequence[Path] = ()) -> dict[str, Any]:
        """Install or upgrade the chart, with the image that containerd has, and wait for the rollout."""
        given = [word for path in values for word in ("--values", str(path))]
        cgroup = f"programCgroup=/{self.node.cgroup}/programs"
        image = ("image.repository=" + IMAGE, "image.tag=test", "image.pullPolicy=Never")
        reached = ("apiServer.host=127.0.0.1", f"apiServer.port={PORT}")
        for one in (*image, *reached, cgroup, *settings):
            given += ["--set", one]
        self.helm(
            "upgrade", "--install", "nodeplug", str(chart), "--namespace", NAMESPACE, "--create-namespace", *given
        )
        return self.rolled_out()


@contextmanager
def open_cluster(
    node: PrivateNode, folder: Path, *, kubernetes: Path, runtime: Path, helm: Path, image: Path
) -> Iterator[Cluster]:
    """Start everything, and end everything.

    Args:
        node: with the FOLDERS to itself.
        folder: an existing folder with a short path.
        kubernetes: the folder of kubelet and the control plane.
        runtime: the folder of containerd, its shim and ctr.
        helm: the program.
        image: the archive that `.ci/build-image` has made.

    Raises:
        PluginError: something did not start; the message carries the end of its log.
    """
    for name in ("c", "k", "p"):
        (folder / name).mkdir()
    for path in ("opt/cni/bin", "etc/cni/net.d", FLEXVOLUME.lstrip("/")):
        (node.folder / path).mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        containerd = Containerd(node, folder / "c", Path("/opt/cni/bin"), Path("/etc/cni/net.d"), programs=runtime)
        stack.enter_context(containerd)
        stack.callback(containerd.clear)
        containerd.ctr("images", "import", str(image))
        containerd.ctr("images", "tag", f"{IMAGE}:test", f"{IMAGE}:next")
        api = ControlPlane(node, folder / "p", kubernetes, "Node,RBAC", accounts=True)
        stack.enter_context(api)
        kubelet = KubeletProcess(node, folder / "k", kubernetes / "kubelet", containerd, Path(FLEXVOLUME), api)
        stack.enter_context(kubelet)
        yield Cluster(folder, node, api, containerd, kubelet, helm)
