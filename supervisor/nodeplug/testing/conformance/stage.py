"""The stage on which rules run: a scratch folder, a host namespace, the real daemon, and kubelet's stand-in.

Owns: making each of them when a rule asks for it, and taking all of them away, mounts and loop devices included.
Refuses: to judge. Nothing of the machine is used but its kernel: every path lies below the scratch folder.
"""

import fcntl
import os
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Final, Self, TypeVar

from nodeplug.config.toml_text import toml
from nodeplug.contract.errors import PluginError
from nodeplug.contract.mounts import mounts, unmount
from nodeplug.contract.netns import Netns
from nodeplug.testing import forked
from nodeplug.testing.conformance.rehearsal import Rehearsal, rehearse
from nodeplug.testing.conformance.report import Style
from nodeplug.testing.conformance.subject import Subject
from nodeplug.testing.conformance.verdict import Broken, NotApplicable
from nodeplug.testing.inventory import Inventory
from nodeplug.testing.kubelet import BlockingKubelet
from nodeplug.testing.scratch_cni import new_netns, run_in
from nodeplug.testing.scratch_node import ScratchNode

SECTION: Final = "subject"
"""The section of the examined plugin in the configuration of the node."""
DEVICE_POLL: Final = 0.2
"""Seconds between two lists in the daemon."""
_SUPERVISOR: Final = f"""
listen = ""
install = true
native_entrypoints = false
node_name = "node-1"
device_poll = {DEVICE_POLL}
podresources_poll = {DEVICE_POLL}
"""
_LINES: Final = 6
_LOOP_CLR_FD: Final = 0x4C01  # linux/loop.h
T = TypeVar("T")


class Stage:
    """What rules use.

    Args:
        subject: the plugin.
        folder: an existing empty folder with a short path.
        patience: seconds for whatever should be quick, on a machine that has nothing else to do.

    Attributes:
        failed: the names of the rules that failed so far.
        closing: what rules want closed with the stage.
        network: the `Network` of the rules for CNI, once there is one.
        granted: what the plugin granted on this stage, once a rule has asked.
        untouched: what was there before the first start of the daemon.
    """

    def __init__(self, subject: Subject, folder: Path, patience: float) -> None:
        self._told = subject
        self._patience = patience
        self._folder = folder
        self._turn = 0
        self._rehearsals: dict[str, Rehearsal] = {}
        self.failed: set[str] = set()
        self._begin()
        forked.prepare(self.env)  # before there is a network that would live as long as it

    def _begin(self) -> None:
        self._turn += 1
        self.folder = self._folder / str(self._turn)
        self.scratch = self.folder / "scratch"
        self.scratch.mkdir(parents=True)
        self.subject = self._told.within(self.scratch)
        self._netns: Netns | None = None
        self._node: ScratchNode | None = None
        self._stopped = True
        self._kubelet: BlockingKubelet | None = None
        self.closing = ExitStack()
        self.network: Any = None
        self.granted: Any = None
        self.untouched = Inventory(frozenset())

    @property
    def patience(self) -> float:
        """Seconds for whatever should be quick, at the machine's present pace."""
        return self._patience * self.slowness

    @property
    def slowness(self) -> float:
        """How many times longer everything takes because processes queue for the machine's cores; at least 1."""
        return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def renew(self) -> None:
        """Take everything away, so that the next rule finds an untouched stage."""
        self.close()
        self._begin()

    def close(self) -> None:
        """End every process and thread, and take away every namespace, mount and loop device below the folder."""
        self.closing.close()
        if self._kubelet is not None:
            self._kubelet.close()
        if self._node is not None:
            self._node.stop()
        for mount in reversed(mounts()):
            if Path(mount.target).is_relative_to(self.folder):
                with suppress(PluginError):
                    unmount(mount.target, lazy=True)
        _detach_loops(self.folder)
        if self._netns is not None:
            self._netns.close()

    # --- the plugin alone

    def rehearsal(self) -> Rehearsal:
        """Return what was seen of the plugin's life without a daemon, from construction to stop."""
        return self._rehearse("life")

    def after_kill(self) -> Rehearsal:
        """Return what was seen when the plugin started after its process had been killed."""
        if "again" not in self._rehearsals:
            self._rehearse("kill", folder="killed")
            self._rehearse("again", folder="killed")
        return self._rehearsals["again"]

    def _rehearse(self, script: Any, folder: str = "alone") -> Rehearsal:
        if script not in self._rehearsals:
            # A folder of its own, outside of what `renew` takes away: it is looked at once.
            place, scratch = self._folder / folder, self._folder / f"{folder}-scratch"
            place.mkdir(exist_ok=True)
            scratch.mkdir(exist_ok=True)
            subject = self._told.within(scratch)
            self._rehearsals[script] = rehearse(subject, place, script, self.patience, self.on_host, self.env)
        return self._rehearsals[script]

    @property
    def hooks(self) -> frozenset[str]:
        """The hooks of the plugin."""
        return frozenset(self.rehearsal().document.get("hooks", ()))

    @property
    def claims(self) -> Mapping[str, tuple[str, ...]]:
        """The names that the plugin claims, by kind."""
        found: dict[str, tuple[str, ...]] = {}
        for kind, name in self.rehearsal().document.get("claims", ()):
            found[kind] = (*found.get(kind, ()), name)
        return found

    def require_loaded(self, style: Style) -> None:
        """Refuse rules about what a plugin does when it cannot even be loaded; the contract's rules tell why.

        Raises:
            NotApplicable: it cannot be loaded.
        """
        if style != "contract" and "claims" not in self.rehearsal().document:
            raise NotApplicable(f"the plugin cannot be loaded: {self.rehearsal().why_short}")

    def require_passed(self, name: str) -> None:
        """Refuse what builds on a rule that failed: one mistake is told once.

        Raises:
            NotApplicable: it failed.
        """
        if name in self.failed:
            raise NotApplicable(f"{name} failed")

    @property
    def env(self) -> Mapping[str, str]:
        """The environment of every process that loads the plugin."""
        return {**os.environ, "PYTHONPATH": os.pathsep.join(self.subject.python_path)}

    # --- the node

    @property
    def netns(self) -> Netns | None:
        """The network namespace that stands for the host's; None without root."""
        if self._netns is None and os.geteuid() == 0:
            self._netns = new_netns()
        return self._netns

    def on_host(self, work: Callable[[], T]) -> T:
        """Run a function in the host's namespace; processes that it starts are there too."""
        return run_in(self.netns, work)

    @property
    def node(self) -> ScratchNode:
        """The daemon with the plugin, running; one that ended by itself is not started again.

        Raises:
            Broken: the daemon or the plugin does not come up.
        """
        self.require_passed("daemon-runs-it")
        node = self._place()
        if self._stopped:
            if "device" in self.claims:
                self._listen(node)  # first: the daemon registers at once then, and else looks for kubelet once a second
            self.start()
        return node

    def _place(self) -> ScratchNode:
        if self._node is None:
            root = self.folder / "n"
            root.mkdir()
            sections = {SECTION: {"uses": self.subject.uses, "config": self.subject.config}, **self.subject.beside}
            env = {"PYTHONPATH": self.env["PYTHONPATH"]}
            self._node = ScratchNode(root, toml({"plugins": sections}), supervisor=_SUPERVISOR, env=env, fork=True)
            self.untouched = self.inventory()
        return self._node

    def stop(self) -> int:
        """Let the daemon, which ran on this stage, end; whoever needs it next starts it again.

        Returns:
            Its exit status; 0 when it had been stopped before.

        Raises:
            Broken: it never ran here, and does not come up.
        """
        if self._node is None:
            _ = self.node
        self._stopped = True
        return self._place().stop()

    def start(self) -> None:
        """Start the daemon and wait until the plugin runs.

        Raises:
            Broken: it does not.
        """
        node, self._stopped = self._place(), False
        try:
            self.on_host(node.start)
        except PluginError as error:
            raise Broken(_end_of(str(error))) from None
        end = time.monotonic() + self.patience
        while (state := self._state(node)) != ("running", ""):
            if time.monotonic() > end or state[0] == "refused" or not node.running:
                raise Broken(f"in the daemon the plugin is {state[0]}: {state[1]}")
            time.sleep(0.05)

    @staticmethod
    def _state(node: ScratchNode) -> tuple[str, str]:
        """Return the state of the plugin with the reason, which a busy daemon may be late to tell."""
        try:
            found = next(row for row in node.status()["plugins"] if row["name"] == SECTION)
        except PluginError as error:
            return "unknown", str(error)
        return found["state"], "" if found["state"] == "running" else found["reason"]

    def restart_after_kill(self) -> None:
        """Kill the daemon and start it again."""
        self.node.kill()
        self.start()

    @property
    def kubelet(self) -> BlockingKubelet:
        """Kubelet's stand-in, running, on the node's folders."""
        return self._listen(self.node)

    def _listen(self, node: ScratchNode) -> BlockingKubelet:
        if self._kubelet is None:
            self._kubelet = BlockingKubelet(node.root / "var" / "lib" / "kubelet")
            self._kubelet.start()
        return self._kubelet

    def inventory(self) -> Inventory:
        """Look at what the host's namespace and the scratch folder hold."""
        paths, own = self._place().paths, (f"{self.scratch}", f"{self.folder}/n/")
        seen = self.on_host(lambda: Inventory.take(self.scratch, paths.attachments, paths.spool, paths.journal))
        return Inventory(
            frozenset(
                one for one in seen.entries if one.startswith(("link ", "nft ")) or any(path in one for path in own)
            )
        )

    def left_since(self, before: Inventory, *, files: bool = True) -> list[str]:
        """Return what differs from before, once it has had time to go: the kernel ends namespaces behind our back.

        Args:
            before: an earlier look.
            files: whether files count as well.
        """
        end = time.monotonic() + min(self.patience, 5.0)
        while True:
            seen = self.inventory().since(before)
            left = [line for line in seen if files or not line[2:].startswith("file ")]
            if not left or time.monotonic() > end:
                return left
            time.sleep(0.05)


def _end_of(text: str) -> str:
    """Return the last lines: the reason stands at the end of a traceback."""
    return "\n".join(text.strip().splitlines()[-_LINES:])


def _detach_loops(folder: Path) -> None:
    for backing in Path("/sys/block").glob("loop*/loop/backing_file"):
        with suppress(OSError):
            if Path(backing.read_text(encoding="utf-8").strip()).is_relative_to(folder):
                with open(f"/dev/{backing.parts[3]}", "rb") as device:  # noqa: PTH123 - a device, for its descriptor
                    fcntl.ioctl(device, _LOOP_CLR_FD)
