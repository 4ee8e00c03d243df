"""A real kubelet on a private node with its containerd, standalone or with an API server.

Owns: its configuration, its process, the pods of its manifest folder, and looking at all pods.
Refuses: to build it (see `make kubelet` and `make consumers`), and the API server's objects (see `api_server`).
"""

import http.client
import json
import re
import subprocess
import time
from collections.abc import Callable, Collection, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Self

from tests.programs import may_execute
from tests.real.consumers.api_server import ApiServer
from tests.real.consumers.containerd import BUSYBOX, PAUSE, Containerd
from tests.real.consumers.control_plane import ControlPlane
from tests.real.consumers.ending import end
from tests.real.consumers.private_node import ADDRESS, ENV, PrivateNode

from nodeplug.contract.errors import PluginError
from nodeplug.testing.inventory import make_cgroup

_PATIENCE: Final = 60.0
_COLLECTED: Final = 180.0
"""Seconds in which a pod must end: kubelet 1.20 removes the sandboxes of some in a look that it takes once a minute."""
_READ_ONLY_PORT: Final = 10255
_RELIST: Final = 2.0
"""Seconds within which kubelet sees what its runtime runs; it loses sight of a pod that is removed sooner."""
_CONFIG: Final = """apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
staticPodPath: {folder}/manifests
volumePluginDir: {flex}
enableControllerAttachDetach: false
fileCheckFrequency: 1s
syncFrequency: 5s
nodeStatusUpdateFrequency: 1s
volumeStatsAggPeriod: 10s
cgroupDriver: cgroupfs
cgroupRoot: /{cgroup}
enforceNodeAllocatable: []
failSwapOn: false
oomScoreAdj: 0
makeIPTablesUtilChains: false
address: 127.0.0.1
readOnlyPort: 10255
healthzPort: 10248
authentication: {{anonymous: {{enabled: true}}, webhook: {{enabled: false}}}}
authorization: {{mode: AlwaysAllow}}
resolvConf: /dev/null
evictionHard: {{memory.available: "10Mi"}}
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
"""
# Control groups of version 1, and images that no registry knows, are refused by default; an API server in memory speaks
# JSON alone. What is a flag to kubelet 1.20 is no longer one.
_CURRENT: Final = """containerRuntimeEndpoint: unix://{socket}
failCgroupV1: false
imagePullCredentialsVerificationPolicy: NeverVerify
contentType: application/json
"""


def pod(
    name: str,
    script: str,
    *,
    limits: Mapping[str, int] | None = None,
    volumes: Mapping[str, Mapping[str, Any]] | None = None,
    devices: Mapping[str, Mapping[str, Any]] | None = None,
    fs_group: int | None = None,
    propagation: str = "None",
) -> dict[str, Any]:
    """Return a pod of one container that runs `script` and then waits.

    Args:
        name: use each name once: kubelet takes the same manifest for the same pod, whose devices are allocated already.
        script: for sh; the container ends, and is started again, when a line of it fails.
        limits: extended resources.
        volumes: by mount path, a volume source such as `{"flexVolume": {...}}`.
        devices: the same for block volumes, by the path of the device.
        fs_group: the pod's fsGroup.
        propagation: of its mounts, such as "HostToContainer".
    """
    sources = {f"v{number}": (path, source) for number, (path, source) in enumerate((volumes or {}).items())}
    raw = {f"d{number}": (path, source) for number, (path, source) in enumerate((devices or {}).items())}
    container = {
        "name": "main",
        "image": BUSYBOX,
        "imagePullPolicy": "IfNotPresent",
        "command": ["/bin/sh", "-ec", f'trap "exit 0" TERM\n{script}\nwhile :; do sleep 3600 & wait $!; done'],
        "resources": {"limits": {key: str(value) for key, value in (limits or {}).items()}},
        "volumeMounts": [
            {"name": key, "mountPath": path, "mountPropagation": propagation} for key, (path, _) in sources.items()
        ],
        "volumeDevices": [{"name": key, "devicePath": path} for key, (path, _) in raw.items()],
    }
    spec: dict[str, Any] = {
        "terminationGracePeriodSeconds": 1,
        "containers": [container],
        "volumes": [{"name": key, **source} for key, (_, source) in (sources | raw).items()],
    }
    if fs_group is not None:
        spec["securityContext"] = {"fsGroup": fs_group}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"}, "spec": spec}


class Manifests:
    """Static pods: files in a folder that kubelet reads again and again."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def schedule(self, manifest: Mapping[str, Any]) -> None:
        """Write a pod's manifest in one step."""
        name = manifest["metadata"]["name"]
        temporary = self._folder.parent / f"{name}.new"
        temporary.write_text(json.dumps(manifest), encoding="utf-8")
        temporary.rename(self._folder / f"{name}.json")

    def delete(self, name: str) -> None:
        """Remove a manifest."""
        (self._folder / f"{name}.json").unlink()

    def scheduled(self) -> list[str]:
        """Return the names of all pods here."""
        return [path.stem for path in self._folder.glob("*.json")]


class KubeletProcess:
    """kubelet on a private node.

    Args:
        node: where it runs; `/var/lib/kubelet` is the node's own.
        folder: an existing folder of its own.
        program: the executable.
        containerd: its runtime, running.
        flexvolume_dir: where FlexVolume drivers are installed.
        api: its API server, acted out or real; without one it is standalone: static pods, no Secrets, no node status.

    Attributes:
        residents: names of pods that `clear` leaves alone.
    """

    def __init__(
        self,
        node: PrivateNode,
        folder: Path,
        program: Path,
        containerd: Containerd,
        flexvolume_dir: Path,
        api: ApiServer | ControlPlane | None = None,
    ) -> None:
        self.node, self.folder, self.program, self.containerd = node, folder, program, containerd
        self.log_path = folder / "kubelet.log"
        self.residents: set[str] = set()
        manifests = folder / "manifests"
        manifests.mkdir()
        self._pods: Manifests | ApiServer | ControlPlane = api or Manifests(manifests)
        config = _CONFIG.format(folder=folder, flex=flexvolume_dir, cgroup=node.cgroup)
        if not self.old:
            config += _CURRENT.format(socket=containerd.socket)
        (folder / "kubelet.yaml").write_text(config, encoding="utf-8")
        if api is not None:
            (folder / "kubeconfig").write_text(api.kubeconfig, encoding="utf-8")
        self._process: subprocess.Popen[bytes] | None = None

    @cached_property
    def old(self) -> bool:
        """Whether it is the 1.20 of `make kubelet`.

        Raises:
            PluginError: it cannot be run.
        """
        return self.node.run(str(self.program), "--version").startswith("Kubernetes v1.20.")

    def _flags(self) -> list[str]:
        flags = [
            *(f"--config={self.folder}/kubelet.yaml", "--root-dir=/var/lib/kubelet", "--v=4"),
            *(f"--hostname-override={self.node.name}", f"--node-ip={ADDRESS}"),
        ]
        with_api = (self.folder / "kubeconfig").exists()
        if with_api:
            flags.append(f"--kubeconfig={self.folder}/kubeconfig")
        if self.old:
            flags += ["--container-runtime=remote", f"--pod-infra-container-image={PAUSE}"]
            flags.append(f"--container-runtime-endpoint=unix://{self.containerd.socket}")
            flags += ["--kube-api-content-type=application/json"] * with_api
        return flags

    def start(self) -> None:
        """Start it and wait until it is healthy.

        Raises:
            PluginError: it ended or did not become healthy in time; the message carries the end of its log.
        """
        may_execute("systemd-run")  # to know whether systemd can mount for it
        make_cgroup(self.node.cgroup)  # a runtime may have removed it with the last of its containers
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                self.node.command(str(self.program), *self._flags()),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**ENV, "HOME": str(self.folder), "AWS_EC2_METADATA_DISABLED": "true"},
                cwd="/",
            )
        self.wait_for("kubelet's health", self._healthy)

    def _healthy(self) -> bool:
        if self._process is None or self._process.poll() is not None:
            said = self.log
            why = [line for line in said.splitlines() if re.match(r"F\d{4} ", line)]  # what klog.Fatal wrote
            raise PluginError(f"kubelet ended: {' '.join(why[-1:])}\n{said[-4000:]}")
        try:
            # Each port has its own server, and they begin in no order.
            return self._get("/healthz", 10248) == "ok" and bool(self._get("/pods", _READ_ONLY_PORT))
        except OSError:
            return False

    def _get(self, path: str, port: int) -> str:
        with self.node.netns.entered():  # the connection stays in the namespace that it was opened in
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
            connection.connect()
        try:
            connection.request("GET", path)
            return connection.getresponse().read().decode()
        finally:
            connection.close()

    @property
    def log(self) -> str:
        """What it logged so far, earlier processes included."""
        return self.log_path.read_text(encoding="utf-8", errors="replace") if self.log_path.exists() else ""

    def wait_for(
        self,
        what: str,
        holds: Callable[[], Any],
        patience: float = _PATIENCE,
        about: Callable[[], Collection[str]] | None = None,
    ) -> Any:
        """Return the first true answer of `holds`.

        Args:
            what: is waited for.
            holds: asked again and again.
            patience: seconds.
            about: the words that matter in kubelet's log when patience is over.

        Raises:
            PluginError: there was none in time; the message carries the end of kubelet's log, or what it says about
                these words.
        """
        late = time.monotonic() + patience
        while not (answer := holds()):
            if time.monotonic() > late:
                words = about() if about else ()
                lines = [line for line in self.log.splitlines() if not words or any(word in line for word in words)]
                said = "\n".join(line[:400] for line in lines[-60:])
                about_them = f" ({', '.join(words)})" if words else ""
                raise PluginError(f"{what}{about_them} did not come true within {patience:g} s; kubelet's log:\n{said}")
            time.sleep(0.1)
        return answer

    def put(self, manifest: Mapping[str, Any]) -> None:
        """Give it a pod: by the API server where there is one, else a static one."""
        self._pods.schedule(manifest)

    def drop(self, name: str) -> None:
        """Take a pod away and wait until nothing of it is mounted or kept.

        Raises:
            PluginError: that took too long.
        """
        time.sleep(_RELIST)
        found = self.find(name)
        self._pods.delete(name)
        folder = self.node.folder / "var/lib/kubelet/pods" / str(found and self.uid(found))
        self.wait_for(f"the end of pod {name}", lambda: not self.find(name) and not folder.exists(), _COLLECTED)

    def pods(self) -> list[dict[str, Any]]:
        """Return every pod as kubelet tells it."""
        return list(json.loads(self._get("/pods", _READ_ONLY_PORT)).get("items") or [])

    def measured(self, name: str) -> dict[str, tuple[int, int]]:
        """Return capacity and usage in bytes of a pod's volumes, by their names, as kubelet's summary tells them."""
        summary = json.loads(self._get("/stats/summary", _READ_ONLY_PORT))
        volumes = [one for pod in summary["pods"] if pod["podRef"]["name"] == name for one in pod.get("volume", ())]
        return {one["name"]: (one["capacityBytes"], one["usedBytes"]) for one in volumes if "capacityBytes" in one}

    def find(self, name: str) -> dict[str, Any] | None:
        """Return one pod, or None."""
        names = {name, f"{name}-{self.node.name}"}  # of a static pod
        return next((pod for pod in self.pods() if pod["metadata"]["name"] in names), None)

    @staticmethod
    def uid(found: Mapping[str, Any]) -> str:
        """Return the name of a pod's folder."""
        return str(found["metadata"]["uid"])

    def running(self, name: str) -> dict[str, Any]:
        """Wait until a pod's container runs, and return the pod.

        Raises:
            PluginError: that took too long.
        """

        def ready() -> dict[str, Any] | None:
            found = self.find(name)
            status = found["status"] if found else {}
            states = [entry["state"] for entry in status.get("containerStatuses") or []]
            return found if status.get("phase") == "Running" and states and "running" in states[0] else None

        return dict(self.wait_for(f"a running pod {name}", ready))

    def failed(self, name: str) -> str:
        """Wait until a pod is refused, and return reason and message.

        Raises:
            PluginError: that took too long.
        """

        def refused() -> dict[str, Any] | None:
            found = self.find(name)
            return found["status"] if found and found["status"].get("phase") == "Failed" else None

        status = self.wait_for(f"a refused pod {name}", refused)
        return f"{status.get('reason')}: {status.get('message')}"

    def container(self, name: str) -> str:
        """Return the id of a pod's container."""
        found = self.running(name)
        return str(found["status"]["containerStatuses"][0]["containerID"]).removeprefix("containerd://")

    def execute(self, name: str, *command: str) -> str:
        """Run a command in a pod's container and return what it printed.

        Raises:
            PluginError: it failed.
        """
        return self.containerd.execute(self.container(name), *command)

    def clear(self) -> None:
        """Take every pod but the residents away and wait until nothing of them is left.

        Raises:
            PluginError: that took too long.
        """
        if names := set(self._pods.scheduled()) - self.residents:
            time.sleep(_RELIST)
        for name in names:
            self._pods.delete(name)
        pods = self.node.folder / "var/lib/kubelet/pods"

        stay = {self.uid(self.running(name)) for name in self.residents}

        def left() -> set[str]:
            known = {path.name for path in pods.iterdir()} | self.node.pods_in_cgroups()
            return set(self._pods.scheduled()) - self.residents | known - stay

        self.wait_for("the end of all pods", lambda: not left(), _COLLECTED, about=left)

    def stop(self) -> None:
        """End it; its pods go on."""
        process, self._process = self._process, None
        end(process, 20)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
