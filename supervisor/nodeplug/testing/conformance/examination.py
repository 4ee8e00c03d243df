"""One plugin under examination: what rules use to look at it, alone and in the daemon of a node.

Owns: which rules failed so far, what was seen of the plugin without a daemon, and that the next rule gets an untouched
node.
Refuses: to judge. The node itself is `nodeplug.testing.rig`'s.
"""

import os
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, Self, TypeVar

from nodeplug.commands import toml
from nodeplug.contract.errors import PluginError
from nodeplug.testing.conformance.rehearsal import Rehearsal, rehearse
from nodeplug.testing.conformance.report import Style
from nodeplug.testing.conformance.subject import Subject
from nodeplug.testing.conformance.verdict import Broken, NotApplicable
from nodeplug.testing.inventory import Inventory
from nodeplug.testing.isolation import IN_WORDS, Isolation
from nodeplug.testing.kubelet import BlockingKubelet
from nodeplug.testing.processes import marked
from nodeplug.testing.rig import DEVICE_POLL, NodeRig
from nodeplug.testing.scratch_node import ScratchNode

SECTION: Final = "subject"
"""The section of the examined plugin in the configuration of the node."""
_SUPERVISOR: Final = 'node_name = "node-1"\n'
_LINES: Final = 6
T = TypeVar("T")


class Examination:
    """What rules use.

    Args:
        subject: the plugin.
        folder: an existing empty folder with a short path.
        patience: seconds for whatever should be quick, on a machine that has nothing else to do.

    Attributes:
        failed: the names of the rules that failed so far.
        isolation: how the daemon runs the plugin.
        asked: whether the current rule has needed the daemon.
        folder: what belongs to the current node and to its containers.
        rig: the current node, with its network and kubelet.
        closing: what rules want closed with the node.
        network: the `Network` of the rules for CNI, once there is one.
        granted: what the plugin granted on this node, once a rule has asked.
        rounds: the `Rounds` of the rules for processes, once there are some.
        claimed: the `ClaimedNode` of the rules for claims, once there is one.
        poll: seconds between two lists in the daemon of the next node.
    """

    def __init__(self, subject: Subject, folder: Path, patience: float) -> None:
        self._told = subject
        self._patience = patience
        self._folder = folder
        self._turn = 0
        self._rehearsals: dict[str, Rehearsal] = {}
        self.failed: set[str] = set()
        self.isolation: Isolation = "thread"
        self.asked = False
        self.poll = DEVICE_POLL
        self._begin()

    def _begin(self) -> None:
        self._turn += 1
        self.folder = self._folder / str(self._turn)
        self.rig = NodeRig(
            self.folder / "n", python_path=self._told.python_path, supervisor=_SUPERVISOR, device_poll=self.poll
        )
        self.subject = self._told.within(self.rig.scratch)
        self._stopped = True
        self.closing = ExitStack()
        self.network: Any = None
        self.granted: Any = None
        self.rounds: Any = None
        self.claimed: Any = None

    @property
    def patience(self) -> float:
        """Seconds for whatever should be quick, at the machine's current pace."""
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
        """Remove everything, so that the next rule finds an untouched node."""
        self.close()
        self._begin()

    def turn(self, isolation: Isolation, failed: set[str]) -> None:
        """Have the daemon run the plugin in this way from now on, on an untouched node.

        Args:
            isolation: the way.
            failed: the rules that failed whatever the way is.
        """
        self.isolation, self.failed, self.poll = isolation, failed, DEVICE_POLL
        self.renew()

    def close(self) -> None:
        """End the containers and the node."""
        self.closing.close()
        self.rig.close()

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
            # A folder of its own, outside what `renew` removes: it is looked at only once.
            place, scratch = self._folder / folder, self._folder / f"{folder}-scratch"
            place.mkdir(exist_ok=True)
            scratch.mkdir(exist_ok=True)
            subject = self._told.within(scratch)
            self._rehearsals[script] = rehearse(subject, place, script, self.patience, self.rig.on_host, self.rig.env)
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
        """Refuse rules about what a plugin does when it cannot even be loaded; the contract's rules say why.

        Raises:
            NotApplicable: it cannot be loaded.
        """
        if style != "contract" and "claims" not in self.rehearsal().document:
            raise NotApplicable(f"the plugin cannot be loaded: {self.rehearsal().why_short}")

    def require_isolation(self, isolation: Collection[Isolation]) -> None:
        """Refuse what is not judged in the way in which the plugin runs.

        Raises:
            NotApplicable: it is not.
        """
        if self.isolation not in isolation:
            raise NotApplicable(f"it is judged {IN_WORDS[next(iter(isolation))]} alone")

    def require_passed(self, name: str) -> None:
        """Refuse what builds on a rule that failed: one mistake is reported once.

        Raises:
            NotApplicable: it failed.
        """
        if name in self.failed:
            raise NotApplicable(f"{name} failed")

    def another_rig(self, name: str) -> tuple[NodeRig, Subject]:
        """Return one more node, which ends with the current one, and the plugin as it is configured there.

        Args:
            name: of its folder; keep it short.
        """
        rig = NodeRig(self.folder / name, python_path=self._told.python_path, supervisor=_SUPERVISOR)
        self.closing.callback(rig.close)
        return rig, self._told.within(rig.scratch)

    # --- the plugin in the daemon of a node

    def on_host(self, work: Callable[[], T]) -> T:
        """Run a function in the host's namespace; processes that it starts are there too."""
        self.asked = True
        return self.rig.on_host(work)

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
                assert self.rig.kubelet  # first: the daemon registers at once then, otherwise it looks once a second
            self.start()
        return node

    def _place(self) -> ScratchNode:
        if self.isolation == "process" and self.rehearsal().document.get("wrappers"):
            raise NotApplicable("it wraps hooks of other plugins, so it runs as a thread of the daemon")
        self.asked = True
        if self.rig.node is not None:
            return self.rig.node
        return self.rig.place(self.sections(self.subject))

    def sections(self, subject: Subject, **keys: Any) -> str:
        """Return the `[plugins.*]` tables of a node, in TOML.

        Args:
            subject: the plugin, with the paths of that node.
            keys: more of its section.
        """
        own = {"uses": subject.uses, "isolation": self.isolation, "config": subject.config, **keys}
        return toml({"plugins": {SECTION: own, **subject.beside}})

    def stop(self) -> int:
        """Stop the daemon, which must have run on this node; whoever needs it next starts it again.

        Returns:
            Its exit status; 0 when it had been stopped before.

        Raises:
            Broken: it never ran here, and does not come up.
        """
        if self.rig.node is None:
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
        while (state := self._state()) != ("running", ""):
            if time.monotonic() > end or state[0] == "refused" or not node.running:
                raise Broken(f"in the daemon the plugin is {state[0]}: {state[1]}")
            time.sleep(0.05)

    def row(self) -> dict[str, Any]:
        """Return what `nodeplug status --json` says of the plugin.

        Raises:
            PluginError: the daemon does not answer.
        """
        return next(dict(row) for row in self._place().status()["plugins"] if row["name"] == SECTION)

    @property
    def pid(self) -> int:
        """The process in which the plugin runs now: the daemon's, or its own.

        Raises:
            NotApplicable: it has none at the moment.
        """
        if self.isolation == "thread":
            return self.node.pid
        process = self.row()["process"]
        if process is None:
            raise NotApplicable("its process ended meanwhile")
        return int(process["pid"])

    def _state(self) -> tuple[str, str]:
        """Return the state of the plugin with the reason, which a busy daemon may report late."""
        try:
            found = self.row()
        except PluginError as error:
            return "unknown", str(error)
        return found["state"], "" if found["state"] == "running" else found["reason"]

    def restart_after_kill(self) -> None:
        """Kill the daemon and start it again."""
        self.node.kill()
        self.start()

    @property
    def kubelet(self) -> BlockingKubelet:
        """Kubelet's stand-in, running, on the folders of the node, which runs too."""
        assert self.node
        return self.rig.kubelet

    def inventory(self) -> Inventory:
        """Look at what the host's namespace and the node's folders hold."""
        self._place()
        return self.rig.inventory()

    def left_processes(self) -> list[str]:
        """Return the command lines of processes that are left of the stopped node, after some time."""
        end = time.monotonic() + min(self.patience, 5.0)
        while (left := sorted(command for _, command in marked(self.rig.folder))) and time.monotonic() < end:
            time.sleep(0.1)
        return left

    def left_since(self, before: Inventory, *, files: bool = True) -> list[str]:
        """Return what differs from before; see `NodeRig.left_since`."""
        return self.rig.left_since(before, min(self.patience, 5.0), files=files)


def _end_of(text: str) -> str:
    """Return the last lines: the reason stands at the end of a traceback."""
    return "\n".join(text.strip().splitlines()[-_LINES:])
