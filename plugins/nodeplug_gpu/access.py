"""How a container gets access to its cards.

Owns: NVIDIA_VISIBLE_DEVICES and what stands for it, the device nodes, and the CDI names of an allocation.
Refuses: which cards, and the CDI spec (`cdi` writes it).
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from nodeplug import DeviceMount, DeviceNode, Grant, NotReady
from nodeplug_gpu.beside import beside
from nodeplug_gpu.cards import Card, MigInstance
from nodeplug_gpu.config import Access

VISIBLE: Final = "NVIDIA_VISIBLE_DEVICES"
LIST_FOLDER: Final = "/var/run/nvidia-container-devices"
"""Where NVIDIA's runtime looks for names of devices; the variable, by that value, says that there is a list."""
CONTROL_NODES: Final = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset")
_REQUIRED: Final = "nvidiactl"
_ANNOTATION: Final = "cdi.k8s.io/"
_MINOR: Final = re.compile(r"^DeviceFileMinor:\s*([0-9]+)\s*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class GpuDevice:
    """A card, or one MIG instance of it."""

    card: Card
    instance: MigInstance | None = None

    @property
    def uuid(self) -> str:
        """The UUID by which CUDA and the container runtime know it."""
        return self.instance.uuid if self.instance is not None else self.card.uuid

    @property
    def index(self) -> str:
        """The same by NVML's index: `0`, and `0:1` for an instance."""
        if self.instance is None:
            return str(self.card.index)
        return f"{self.card.index}:{self.card.instances.index(self.instance)}"


@dataclass(frozen=True, slots=True)
class NodePaths:
    """Where things are on the node.

    Attributes:
        dev: the kernel driver's device nodes.
        capabilities: of MIG instances.
        run: the plugin's own folder for what does not survive a reboot.
        former: the run folders of sections that had the cards before; known from `start` on.
        cdi: where runtimes look for CDI specs, the folder that overrides the other last.
        node: the node's own root as it is seen here, in a pod perhaps.
        programs: whether what is below that root are the node's programs, and not those of an image.
        host_dev: the node's device nodes, where they are not the driver's.
        cgroups: where cgroup v2 should be mounted; in a pod, too.
    """

    dev: Path = field(default=Path("/dev"))
    capabilities: Path = field(default=Path("/proc/driver/nvidia/capabilities"))
    run: Path = field(default=Path("/run/nodeplug/plugins/gpu"))
    former: list[Path] = field(default_factory=list)
    cdi: tuple[Path, ...] = (Path("/etc/cdi"), Path("/var/run/cdi"))
    node: Path = Path("/")
    programs: bool = True
    host_dev: Path = Path("/dev")
    cgroups: Path = Path("/sys/fs/cgroup")

    def on_node(self, path: Path) -> str:
        """Return a path as the node has it: kubelet and the runtime go by that."""
        return f"/{path.relative_to(self.node)}" if path.is_relative_to(self.node) else str(path)


def grant(access: Access, gpus: Sequence[GpuDevice], paths: NodePaths) -> Grant:
    """Return what makes devices usable in a container.

    Raises:
        NotReady: a device node that the container needs is missing.
    """
    visible = _visible(access, gpus)
    nodes = device_nodes(gpus, paths) if access.device_nodes else ()
    names = tuple(f"{access.cdi_kind}={gpu.uuid}" for gpu in gpus)
    annotations = {}
    if access.cdi == "annotation":
        annotations = {annotation_key(access.cdi_kind, names): ",".join(names)}
    named = Grant(nodes=nodes, annotations=annotations, cdi=names if access.cdi == "field" else ())
    return Grant.merged([visible, named, beside(access, paths)])


def _visible(access: Access, gpus: Sequence[GpuDevice]) -> Grant:
    """Return what tells NVIDIA's runtime the cards: a variable, or /dev/null mounted once for each."""
    if access.visible_devices == "none":
        return Grant()
    names = [gpu.uuid if access.visible_devices == "uuid" else gpu.index for gpu in gpus]
    if access.device_list == "envvar":
        return Grant(env={VISIBLE: ",".join(names)})
    mounts = tuple(DeviceMount("/dev/null", f"{LIST_FOLDER}/{name}") for name in names)
    return Grant(env={VISIBLE: LIST_FOLDER}, mounts=mounts)


def cdi_names(granted: Grant) -> Iterator[tuple[str, str]]:
    """Yield kind and name of each CDI device of a grant."""
    texts = [text for key, text in granted.annotations.items() if key.startswith(_ANNOTATION)]
    for full in (*granted.cdi, *(name for text in texts for name in text.split(","))):
        kind, _, name = full.partition("=")
        yield kind, name


def annotation_key(kind: str, names: Sequence[str]) -> str:
    """Return the key of CDI's annotation: `cdi.k8s.io/<plugin>_<id>`, at most 63 characters after the slash."""
    plugin = re.sub(r"[^A-Za-z0-9.-]", "-", kind)
    return f"{_ANNOTATION}{plugin}_{names[0].rpartition('=')[2]}"[: len(_ANNOTATION) + 63]


def device_nodes(gpus: Sequence[GpuDevice], paths: NodePaths) -> tuple[DeviceNode, ...]:
    """Return the device nodes of devices, control nodes first.

    Raises:
        NotReady: a required one is missing.
    """
    control = [paths.dev / name for name in CONTROL_NODES]
    cards = [paths.dev / f"nvidia{minor}" for minor in dict.fromkeys(gpu.card.minor for gpu in gpus)]
    caps = [node for gpu in gpus if gpu.instance is not None for node in _capability_nodes(gpu, paths)]
    needed = [paths.dev / _REQUIRED, *cards, *caps]
    for node in needed:
        if not node.exists():
            raise NotReady(f"{node} does not exist; is the kernel driver loaded, and did nvidia-modprobe run?")
    present = [*(node for node in control if node.exists()), *cards, *dict.fromkeys(caps)]
    return tuple(
        DeviceNode(paths.on_node(node), f"/dev/{node.relative_to(paths.dev)}", permissions="rw") for node in present
    )


def _capability_nodes(gpu: GpuDevice, paths: NodePaths) -> list[Path]:
    """Return the two nodes of /dev/nvidia-caps that open a MIG instance (NVIDIA, MIG user guide, "Device nodes")."""
    instance = gpu.instance
    if instance is None:
        return []
    folder = paths.capabilities / f"gpu{gpu.card.minor}" / "mig" / f"gi{instance.gpu_instance}"
    nodes = []
    for file in (folder / "access", folder / f"ci{instance.compute_instance}" / "access"):
        try:
            found = _MINOR.search(file.read_text(encoding="ascii"))
        except OSError as error:
            raise NotReady(f"{file} cannot be read: {error.strerror}; was the MIG instance destroyed?") from error
        if found is None:
            raise NotReady(f"{file} has no DeviceFileMinor")
        nodes.append(paths.dev / "nvidia-caps" / f"nvidia-cap{found[1]}")
    return nodes
