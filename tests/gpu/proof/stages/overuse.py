"""Stage 3: a container that uses more than its units: what NVML tells of its memory, then a warning and two signals.

Owns: one process in a cgroup that is named as a container's, with kubelet's link to its log.
Refuses: containers: the mapping from pid to pod is by cgroup and log alone, on any node.
"""

import os
import signal
from pathlib import Path
from typing import Final

from tests.gpu.proof.clients import Client
from tests.gpu.proof.machine import CGROUPS, GIB, Machine
from tests.gpu.proof.node import MEM, Node, node
from tests.gpu.proof.patience import until
from tests.gpu.proof.stage import Disproved, Notes, Skipped

LOGS: Final = Path("/var/log/containers")
_UNITS, _USED = 2, 4
_STEP: Final = GIB
_OFF: Final = 64 << 20
"""Bytes by which NVML may be off what the process has allocated, beside its context."""
_ENTRY: Final = 'overuse = { grace = "3s", kill_after = "3s", tolerance = "256Mi" }'


def run(machine: Machine, notes: Notes) -> None:
    """Allocate beyond the units, and follow what the daemon does."""
    machine.need_root("a cgroup and a link in /var/log/containers")
    machine.need_cuda()
    machine.need_whole_card()
    machine.need_units(2 * _USED)
    files = container(notes, "overuse")
    with node(machine, _ENTRY) as one:
        granted = one.admit("overuse", _UNITS)
        with Client(machine, one.place(granted, cgroups=files)) as client:
            client.do("start")
            context = _used(one, client, 0)
            notes.figure("context of the process", context, "bytes")
            for _ in range(_USED * GIB // _STEP):
                client.do("allocate", size=_STEP)
            told = _used(one, client, _USED * GIB) - context
            notes.figure("told by NVML beside the context", told, "bytes")
            notes.expect(abs(told - _USED * GIB) <= _OFF, f"NVML tells {told} of {_USED * GIB} bytes")
            _signals(one, client, notes)


def container(notes: Notes, pod: str) -> list[str]:
    """Make the cgroups of a container and the link to its log; return the cgroups' files of processes."""
    name = os.urandom(32).hex()
    hierarchies = [CGROUPS] if (CGROUPS / "cgroup.procs").exists() else [CGROUPS / "pids"]
    if not os.access(hierarchies[0] / "cgroup.procs", os.W_OK):
        raise Skipped("needs control groups that can be written")
    files = []
    for hierarchy in hierarchies:
        group = hierarchy / f"nodeplug-proof-{os.getpid()}.slice" / f"cri-containerd-{name}.scope"
        if not group.parent.exists():
            notes.undo("rmdir", str(group.parent))
        notes.undo("rmdir", str(group))
        group.mkdir(parents=True, exist_ok=True)
        files.append(str(group / "cgroup.procs"))
    if not LOGS.exists():
        notes.undo("rmdir", str(LOGS))
        LOGS.mkdir(parents=True)
    link = LOGS / f"{pod}_default_main-{name}.log"
    notes.undo("unlink", str(link))
    link.symlink_to(f"/var/log/pods/default_{pod}_proof/main/0.log")
    return files


def _used(one: Node, client: Client, least: int) -> int:
    """Wait until the container's memory is known, and return it."""

    def told() -> int:
        found = [held for held in one.card().get("containers", ()) if held["pod"] == "overuse"]
        return int(found[0]["used_bytes"] or 0) if found and client.pid in found[0]["pids"] else 0

    try:
        until(lambda: told() > least, 15, lambda: str(one.card().get("containers")))
    except AssertionError as error:
        raise Disproved(f"pid {client.pid} is not told with its memory in this pid namespace: {error}") from error
    return told()


def _signals(one: Node, client: Client, notes: Notes) -> None:
    """Wait for the warning, for SIGTERM, to which the client does not listen, and for SIGKILL."""
    notes.figure("resource", MEM)
    for said in ("was allocated", "get SIGTERM", "get SIGKILL"):
        try:
            until(lambda said=said: said in one.scratch.log, 30)  # type: ignore[misc] # mypy cannot infer the default
        except AssertionError:
            raise Disproved(f"the daemon never logged `{said}`: {one.scratch.log[-600:]}") from None
    ended = client.ended_by(10)
    notes.expect(ended == -signal.SIGKILL, f"the client ended with {ended}, and not by SIGKILL")
    notes.seen("the container was warned about, then its process got SIGTERM and SIGKILL")
