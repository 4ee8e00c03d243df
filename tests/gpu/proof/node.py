"""The daemon beside the kubelet stand-in, with the machine's own driver.

Owns: their configuration, what `nodeplug gpu` says, and the processes of the daemon.
Refuses: MPS in exclusive mode: that is a setting of the card.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.gpu.proof.clients import Place
from tests.gpu.proof.machine import ROOT, Machine
from tests.gpu.proof.patience import until
from tests.gpu.proof.running import descendants

from nodeplug import PluginError
from nodeplug.commands import inspect
from nodeplug.testing import BlockingKubelet, ScratchNode

MEM: Final = "aliyun.com/gpu-mem"
MPS: Final = "mps = { exclusive_process = false }"
_READY: Final = 30.0


@dataclass(frozen=True, slots=True)
class Node:
    """A running daemon and its kubelet."""

    scratch: ScratchNode
    kubelet: BlockingKubelet
    machine: Machine

    def report(self) -> Mapping[str, Any]:
        """Return what `nodeplug gpu --json` prints of the section."""
        return dict(inspect("gpu", self.scratch.config_path, self.scratch.root)["gpu"])

    def card(self) -> Mapping[str, Any]:
        """Return what it says of the card that is tried; nothing while it cannot be asked."""
        with suppress(PluginError):
            for card in self.report()["cards"]:
                if card["uuid"] == self.machine.card["uuid"]:
                    return dict(card)
        return {}

    def until_card(self, seconds: float = _READY, **wanted: Any) -> Mapping[str, Any]:
        """Wait until some keys of the card have these values, and return it."""
        until(lambda: wanted.items() <= self.card().items(), seconds, self.state)
        return self.card()

    def state(self) -> str:
        """Return what a wait that was in vain has found."""
        return f"{self.units()} units; {self.card()}; the log ends with {self.scratch.log[-800:]}"

    def units(self) -> int:
        """Return how many units kubelet can give."""
        return self.kubelet.allocatable(MEM)

    def admit(self, pod: str, units: int) -> Any:
        """Admit a pod, and return what its container is given."""
        return self.kubelet.admit(pod, {MEM: units})[MEM]

    def place(self, granted: Any, **more: Any) -> Place:
        """Return where a client of that container would run: with its variables and mounts, and the card it sees."""
        env = dict(granted.envs)
        # What a container runtime makes of it; MPS clients see the card of their daemon.
        env.setdefault("CUDA_VISIBLE_DEVICES", env.get("NVIDIA_VISIBLE_DEVICES", self.machine.card["uuid"]))
        mounts = [(mount.host_path, mount.container_path, mount.read_only) for mount in granted.mounts]
        return Place(**{"env": env, "mounts": mounts} | more)

    def configure(self, entry: str = "", *, enabled: bool = True) -> None:
        """Have the running daemon share the card otherwise, or leave it alone."""
        self.scratch.configure(section(self.machine, entry, enabled=enabled))

    def streams(self) -> int:
        """Return how many lists kubelet is being told."""
        return self.kubelet.call(self._streams)

    async def _streams(self) -> int:
        return self.kubelet.stand_in.streams(MEM)

    def processes(self) -> Mapping[int, str]:
        """Return the command lines of the daemon and what it has started, by pid."""
        found: dict[int, str] = {}
        for pid in (self.scratch.pid, *descendants(self.scratch.pid)):
            with suppress(OSError):
                found[pid] = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        return found

    def driver_process(self) -> int:
        """Return the pid of the process that has NVIDIA's library; 0 while there is none."""
        return next((pid for pid, line in self.processes().items() if "nodeplug_gpu.driver.child" in line), 0)

    @property
    def run_dir(self) -> Path:
        """The plugin's run folder."""
        found = (path for path in self.scratch.root.rglob("gpu") if path.parent.name == "plugins")
        return next(path for path in found if "run" in path.parts)


def section(machine: Machine, entry: str = "", more: str = "", poll: str = "1s", *, enabled: bool = True) -> str:
    """Return the section of the plugin, in TOML; `entry` begins with `sharing` where it is not by memory."""
    sharing = "" if entry.startswith("sharing") else 'sharing = "memory"\ncount_resource = ""\n'
    return (
        f'[plugins.gpu]\nuses = "nodeplug_gpu.plugin:Gpu"\nenabled = {str(enabled).lower()}\n'
        f'[plugins.gpu.config]\npoll = "{poll}"\ndriver_root = "{machine.driver_root}"\n{more}\n'
        f"[[plugins.gpu.config.resources]]\n{sharing}"
        f'cards = {{ uuid = ["{machine.card["uuid"]}"] }}\n{entry}\n'
    )


@contextmanager
def node(machine: Machine, entry: str = "", more: str = "", poll: str = "1s") -> Iterator[Node]:
    """Run a node whose card is shared by units of 1 GiB, until the block ends.

    Args:
        machine: whose driver is used.
        entry: more keys of the entry, in TOML.
        more: more keys of the section's configuration.
        poll: how often cards are polled.
    """
    paths = os.pathsep.join(filter(None, [*_paths(), os.environ.get("PYTHONPATH")]))
    scratch = ScratchNode(
        machine.folder,
        section(machine, entry, more, poll),
        supervisor='listen = ""\ndevice_poll = "200ms"\npodresources_poll = "200ms"',
        env={"PYTHONPATH": paths},
    )
    with BlockingKubelet(machine.folder / "var" / "lib" / "kubelet") as kubelet:
        scratch.start()
        try:
            made = Node(scratch, kubelet, machine)
            until(made.units, _READY, made.state)
            yield made
        finally:
            scratch.stop()


def _paths() -> Sequence[str]:
    return [str(ROOT / "supervisor"), str(ROOT / "plugins")]
