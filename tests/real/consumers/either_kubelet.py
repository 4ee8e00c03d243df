"""A kubelet that is acted out and a real one, behind one face, so that one life can be lived with both.

Owns: pods, restarts and rejections as both tell them.
Refuses: judgement: a test compares.
"""

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

from tests.real.consumers.kubelet_process import KubeletProcess, pod

from nodeplug.contract.errors import PluginError
from nodeplug.testing.kubelet import AdmissionError, Kubelet

_REJECTED: Final = ("Pod Allocate failed due to ", "Pod was rejected: Allocate failed due to ")


@dataclass(frozen=True)
class Asks:
    """A container, and what it asks for."""

    limits: Mapping[str, int]
    name: str = "main"
    init: bool = False


class Node(Protocol):
    """Kubelet, acted out or real."""

    root: Path

    async def admit(self, name: str, containers: Sequence[Asks]) -> str:
        """Run a pod; return the sentence of its rejection, or nothing."""

    async def remove(self, name: str) -> None:
        """Take a pod away."""

    async def restart(self) -> None:
        """Start anew and meet all pods."""

    async def rejected(self) -> list[str]:
        """Return which pods ran before the restart and were then rejected by the device manager, with the sentences."""

    async def until_ended(self, resource: str) -> None:
        """Wait until the end of a stream is taken in."""


@dataclass
class Acted:
    """The stand-in."""

    kubelet: Kubelet
    root: Path
    rejections: list[str] = field(default_factory=list)

    async def admit(self, name: str, containers: Sequence[Asks]) -> str:
        """Run a pod; return the sentence of its rejection, or nothing."""
        try:
            for asks in containers:
                await self.kubelet.admit(name, asks.limits, container=asks.name, init=asks.init)
            for asks in containers:
                await self.kubelet.start_container(name, asks.name)
        except AdmissionError as error:
            return str(error)
        return ""

    async def remove(self, name: str) -> None:
        """Take a pod away."""
        self.kubelet.remove_pod(name)

    async def restart(self) -> None:
        """Start anew and meet all pods."""
        await self.kubelet.restart()
        again = await self.kubelet.readmit()
        self.rejections = sorted(f"{name}: {error}" for (_, name), error in again.items())

    async def rejected(self) -> list[str]:
        """Return which pods ran before the restart and were rejected after it."""
        return self.rejections

    async def until_ended(self, resource: str) -> None:
        """Wait until the end of a stream is taken in."""
        await self.kubelet.until_allocatable(resource, 0)


def manifest(name: str, containers: Sequence[Asks]) -> dict[str, Any]:
    """Return a static pod in the host's network, which needs no CNI plugin."""
    parts = []
    for asks in containers:
        (container,) = pod(name, "exit 0" if asks.init else "", limits=asks.limits)["spec"]["containers"]
        parts.append((asks.init, {**container, "name": asks.name}))
    made = pod(name, "")
    made["spec"]["hostNetwork"] = True
    made["spec"]["initContainers"] = [container for init, container in parts if init]
    made["spec"]["containers"] = [container for init, container in parts if not init]
    return made


def rejection_of(status: Mapping[str, Any]) -> str:
    """Return the device manager's sentence in the status of a pod that was rejected.

    Raises:
        PluginError: it was rejected by somebody else.
    """
    found = re.fullmatch("Pod (?:was rejected: )?Allocate failed due to (.*), which is unexpected", status["message"])
    if found is None or status["reason"] != "UnexpectedAdmissionError":
        raise PluginError(f"not rejected by the device manager: {status}")
    return found[1]


@dataclass
class Real:
    """Kubelet."""

    kubelet: KubeletProcess
    root: Path
    ran: dict[str, set[str]] = field(default_factory=dict)

    async def admit(self, name: str, containers: Sequence[Asks]) -> str:
        """Run a pod; return the sentence of its rejection, or nothing."""
        await asyncio.to_thread(self.kubelet.put, manifest(name, containers))
        status = await asyncio.to_thread(self.kubelet.wait_for, f"pod {name}", lambda: self._settled(name))
        if status["phase"] != "Failed":
            return ""
        return rejection_of(status)

    def _settled(self, name: str) -> Any:
        found = self.kubelet.find(name)
        status = found["status"] if found else {}
        states = [entry["state"] for entry in status.get("containerStatuses") or []]
        settled = status.get("phase") == "Failed" or (states and all("running" in state for state in states))
        return status if settled else None

    async def remove(self, name: str) -> None:
        """Take a pod away."""
        await asyncio.to_thread(self.kubelet.drop, name)

    async def restart(self) -> None:
        """Start anew and meet all pods."""
        self.ran = {
            name: {entry["containerID"].removeprefix("containerd://") for entry in status["containerStatuses"]}
            for name, status in (await self._statuses()).items()
            if status["phase"] == "Running"
        }
        await asyncio.to_thread(self.kubelet.stop)
        await asyncio.to_thread(self.kubelet.start)
        await asyncio.to_thread(self.kubelet.wait_for, "pods", self.kubelet.pods)

    async def _statuses(self) -> dict[str, dict[str, Any]]:
        pods, suffix = await asyncio.to_thread(self.kubelet.pods), f"-{self.kubelet.node.name}"
        return {found["metadata"]["name"].removesuffix(suffix): found["status"] for found in pods}

    async def rejected(self) -> list[str]:
        """Return which pods ran before the restart and were rejected after it."""
        statuses = await self._statuses()
        failed = {name: statuses[name] for name in self.ran if statuses[name].get("message", "").startswith(_REJECTED)}
        ids = set().union(*(self.ran[name] for name in failed))

        def ended() -> bool:
            lines = self.kubelet.containerd.ctr("tasks", "ls").splitlines()
            return not ids & {line.split()[0] for line in lines if "RUNNING" in line}

        # Their devices are free when their containers have ended.
        await asyncio.to_thread(self.kubelet.wait_for, "the end of what was rejected", ended)
        await asyncio.sleep(2)  # it looks for the ends of containers once a second
        return sorted(f"{name}: {rejection_of(status)}" for name, status in failed.items())

    async def until_ended(self, resource: str) -> None:
        """Wait until the end of a stream is taken in."""
        text = f'istAndWatch ended unexpectedly for device plugin"? (?:err=.* resource=")?{resource}'
        await asyncio.to_thread(self.kubelet.wait_for, "the end", lambda: re.search(text, self.kubelet.log))
        await asyncio.sleep(1)  # it logs before it stores
