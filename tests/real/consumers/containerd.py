"""containerd on a private node, with every folder of its own.

Owns: its configuration, its process, and the two images that a test needs, made from busybox without a registry.
Refuses: pulling: no name here leads to a registry.
"""

import hashlib
import io
import json
import subprocess
import tarfile
import time
import uuid
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Final, Self

import grpc
from tests.programs import may_execute
from tests.real.consumers.cri import Cri
from tests.real.consumers.ending import end
from tests.real.consumers.private_node import ENV, PrivateNode

from nodeplug.contract.errors import PluginError

BUSYBOX: Final = "registry.local/test/busybox:1"
PAUSE: Final = "registry.local/test/pause:1"
_PATIENCE: Final = 30.0
_APPLETS: Final = (
    "sh",
    "sleep",
    "cat",
    "ls",
    "id",
    "stat",
    "mount",
    "echo",
    "dd",
    "env",
    "wget",
    "httpd",
    "ip",
    "ping",
    "ping6",
)
_ENTRYPOINTS: Final = {
    BUSYBOX: ["/bin/sh"],
    PAUSE: ["/bin/sh", "-c", 'trap "exit 0" TERM INT; while :; do sleep 3600 & wait $!; done'],
}
# oom_score_adj may only be raised where CAP_SYS_RESOURCE is withheld, and runc fails on it.
_OLD: Final = """version = 2
root = "{folder}/root"
state = "{folder}/state"
grpc.address = "{folder}/c.sock"
debug.level = "debug"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  restrict_oom_score_adj = true
  cni = {{bin_dir = "{bin}", conf_dir = "{conf}", max_conf_num = {networks}}}
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
  options = {{BinaryName = "runc", SystemdCgroup = false, Root = "{folder}/runc"}}
[plugins."io.containerd.internal.v1.opt"]
  path = "{folder}/opt"
"""
_CURRENT: Final = """version = 3
root = "{folder}/root"
state = "{folder}/state"
[grpc]
  address = "{folder}/c.sock"
[debug]
  level = "debug"
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "{pause}"
[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = true
  cni = {{bin_dirs = ["{bin}"], conf_dir = "{conf}", max_conf_num = {networks}}}
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
  options = {{BinaryName = "runc", SystemdCgroup = false, Root = "{folder}/runc"}}
[plugins."io.containerd.internal.v1.opt"]
  path = "{folder}/opt"
[plugins."io.containerd.nri.v1.nri"]
  disable = true
"""


def write_images(archive: Path, busybox: Path = Path("/bin/busybox")) -> None:
    """Write BUSYBOX and PAUSE into one archive in the format of `docker save`."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        for name in ("bin", "dev", "etc", "proc", "root", "run", "sys", "tmp"):
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(entry)
        tar.add(busybox, "bin/busybox")
        for applet in _APPLETS:
            entry = tarfile.TarInfo(f"bin/{applet}")
            entry.type, entry.linkname = tarfile.SYMTYPE, "busybox"
            tar.addfile(entry)
    write_archive(archive, layer.getvalue(), _ENTRYPOINTS)


def write_archive(archive: Path, layer: bytes, entrypoints: Mapping[str, Sequence[str]]) -> None:
    """Write images of one layer into an archive in the format of `docker save`.

    Args:
        archive: to write.
        layer: a tar of all files.
        entrypoints: of each image, by its name.
    """
    digest = f"sha256:{hashlib.sha256(layer).hexdigest()}"
    files = {"layer.tar": layer}
    manifest = []
    for number, (name, entrypoint) in enumerate(entrypoints.items()):
        config = {"Env": ["PATH=/bin"], "Entrypoint": entrypoint}
        image = {"os": "linux", "config": config, "rootfs": {"type": "layers", "diff_ids": [digest]}}
        files[f"{number}.json"] = json.dumps({"architecture": _architecture(), **image}).encode()
        manifest.append({"Config": f"{number}.json", "RepoTags": [name], "Layers": ["layer.tar"]})
    files["manifest.json"] = json.dumps(manifest).encode()
    with tarfile.open(archive, "w") as tar:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))


def _architecture() -> str:
    machine = subprocess.run(["uname", "-m"], capture_output=True, text=True, check=True).stdout.strip()
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(machine, machine)


class Containerd:
    """The process and its CRI client.

    Args:
        node: where it runs.
        folder: an existing folder of its own, with a short path.
        bin_dir: its CNI executables.
        conf_dir: its network configurations.
        networks: how many of them each pod joins, in the order of their names: `eth0`, `eth1` and so on.
        programs: the folder of containerd, its shim and ctr; None: those of PATH.
    """

    def __init__(
        self,
        node: PrivateNode,
        folder: Path,
        bin_dir: Path,
        conf_dir: Path,
        networks: int = 1,
        programs: Path | None = None,
    ) -> None:
        self.node, self.folder = node, folder
        self._env = ENV if programs is None else {**ENV, "PATH": f"{programs}:{ENV['PATH']}"}
        self.socket = folder / "c.sock"
        self.log_path = folder / "containerd.log"
        conf_dir.mkdir(parents=True, exist_ok=True)  # it watches the folder that exists when it starts
        config = _OLD if self.version < (2, 0) else _CURRENT
        (folder / "containerd.toml").write_text(
            config.format(folder=folder, pause=PAUSE, bin=bin_dir, conf=conf_dir, networks=networks), encoding="utf-8"
        )
        self.cri = Cri(self.socket, f"/{node.cgroup}")
        self._process: subprocess.Popen[bytes] | None = None

    @cached_property
    def version(self) -> tuple[int, int]:
        """Its release, such as (1, 6): 2.0 and later call STATUS and GC, apply CDI, and read another configuration.

        Raises:
            PluginError: it cannot be run.
        """
        said = self._run("containerd", "--version")
        major, minor, *_ = said.split()[2].removeprefix("v").split(".")
        return int(major), int(minor)

    def start(self) -> None:
        """Start it, wait until it answers, and give it the images.

        Raises:
            PluginError: it did not answer in time; the message carries the end of its log.
        """
        may_execute("mkfs.erofs", "modprobe")  # to know which snapshots it can make
        # It hands its environment and its working directory to every plugin.
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                self.node.command("containerd", "-c", str(self.folder / "containerd.toml")),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._env,
                cwd="/",
            )
        late = time.monotonic() + _PATIENCE
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > late:
                raise PluginError(f"containerd does not answer:\n{self.log[-4000:]}")
            time.sleep(0.1)
        archive = self.folder / "images.tar"
        if not archive.exists():
            write_images(archive)
            self.ctr("images", "import", str(archive))

    def _answers(self) -> bool:
        try:
            self.ctr("version")
            self.cri.call("Version")
        except (PluginError, grpc.RpcError):
            return False
        return True

    def ctr(self, *arguments: str) -> str:
        """Run `ctr` in CRI's containerd namespace and return what it printed.

        Raises:
            PluginError: it failed.
        """
        return self._run("ctr", "-a", str(self.socket), "-n", "k8s.io", *arguments)

    def _run(self, *command: str) -> str:
        return self.node.run("env", f"PATH={self._env['PATH']}", *command)

    def execute(self, container: str, *command: str) -> str:
        """Run a command in a container, or in a sandbox's own one, and return what it printed.

        Raises:
            PluginError: it failed.
        """
        return self.ctr("tasks", "exec", "--exec-id", uuid.uuid4().hex, container, *command)

    @property
    def log(self) -> str:
        """What it logged so far."""
        return self.log_path.read_text(encoding="utf-8", errors="replace") if self.log_path.exists() else ""

    def clear(self) -> None:
        """Stop and remove every sandbox."""
        for sandbox in self.cri.sandboxes():
            self.cri.stop(sandbox)
            self.cri.remove(sandbox)

    def stop(self) -> None:
        """End it; sandboxes go on."""
        process, self._process = self._process, None
        end(process, _PATIENCE)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self.cri.close()
