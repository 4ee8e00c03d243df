"""What the stages about MPS share: the daemons of a node, and how much its clients may have.

Owns: which processes of MPS run, and the end of them: the control daemon outlives nodeplug by design.
Refuses: the card's compute mode: `exclusive_process = false` everywhere.
"""

import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.gpu.proof.clients import Client
from tests.gpu.proof.machine import Machine
from tests.gpu.proof.node import MPS, Node, node
from tests.gpu.proof.running import descendants
from tests.gpu.proof.stage import Disproved, Notes

from nodeplug_gpu.mps.client import PIPES
from nodeplug_gpu.mps.record import recorded

SERVER: Final = "nvidia-cuda-mps-server"
STEP: Final = 64 << 20


@dataclass(frozen=True, slots=True)
class Mps:
    """A node whose card has an MPS control daemon."""

    node: Node

    @property
    def control(self) -> int:
        """The pid of the control daemon; 0 without one."""
        found = (recorded(record) for record in self.node.run_dir.rglob("daemon.json"))
        return next((pid for pid in found if pid is not None), 0)

    @property
    def server(self) -> int:
        """The pid of the server, which the control daemon starts for the first client; 0 without one."""
        for pid in descendants(self.control) if self.control else ():
            try:
                if SERVER.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                    return pid
            except OSError:
                continue
        return 0

    def kill_server(self) -> None:
        """Kill the server."""
        kill(self.server, "server of MPS below its control daemon")

    def client(self, granted: Any, env: Mapping[str, str | None] | None = None, **more: Any) -> Client:
        """Start a client of a pod, with other variables where they are named; None removes one."""
        place = self.node.place(granted)
        found = {name: value for name, value in {**place.env, **(env or {})}.items() if value is not None}
        # The daemon shows its clients its own card alone, as device 0; a UUID is another card's name to them.
        found.pop("CUDA_VISIBLE_DEVICES", None)
        return Client(self.node.machine, self.node.place(granted, **{"env": found} | more))


def leave_no_mount_point(notes: Notes) -> None:
    """Note that the folder goes which clients have the pipes mounted on: they share /tmp with the node."""
    if not Path(PIPES).exists():
        notes.undo("rmdir", PIPES)


@contextmanager
def mps(machine: Machine, notes: Notes) -> Iterator[Mps]:
    """Run a node with MPS. The control daemon outlives it by design; the runner ends what is left of a stage."""
    leave_no_mount_point(notes)
    with node(machine, MPS) as one:
        yield Mps(one)


def kill(pid: int, what: str) -> None:
    """Kill a process that was found; 0 would be a whole group.

    Raises:
        Disproved: none was found.
    """
    if not pid:
        raise Disproved(f"there is no {what} that could be killed")
    os.kill(pid, signal.SIGKILL)


def limit_of(granted: Any) -> int:
    """Return the bytes that a process of a container may allocate, as its variables say."""
    text = granted.envs["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"]
    if not text.endswith("M"):
        raise Disproved(f"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT is {text}")
    return int(text.partition("=")[2][:-1]) << 20


def told(one: Node, pid: int) -> int:
    """Return what NVML tells of a process's memory through the daemon's own poll; 0 where it does not list it."""
    for card in one.report()["cards"]:
        for held in (*card["containers"], *card["unallocated_containers"]):
            if pid in held.get("pids", ()):
                return int(held["used_bytes"] or 0)
    return 0
