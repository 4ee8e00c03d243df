"""Pods with three networks come and go while the daemon is killed at any moment: nothing of them stays.

Some end with a DEL, which is repeated until it succeeds, as kubelet does; of some the runtime never says a word again.
`NODEPLUG_NETWORK_LIVES` is how many there are.
"""

import itertools
import os
import random
import threading
from contextlib import suppress

import pytest
from tests.node.networks.conftest import Pods, bridge

from nodeplug.testing import CniError, Inventory, Sandbox
from nodeplug.testing.scratch_cni import run_in
from nodeplug.testing.waiting import until

pytestmark = pytest.mark.node
KEY = "k8s.v1.cni.cncf.io/networks"
LIVES = int(os.environ.get("NODEPLUG_NETWORK_LIVES", "20"))
FORGOTTEN = 0.1
"""Of so many the runtime sends no DEL: their namespace ends, and the daemon finds that out."""


def define(pods: Pods) -> None:
    blue = bridge("blue", "10.81.0.0/24", ipMasq=True)
    green = bridge("green", "10.82.0.0/24", ipMasq=True, macspoofchk=True)
    pods.api.definition("blue", blue)
    pods.api.definition("green", {"cniVersion": "1.0.0", "plugins": [green, {"type": "nodeplug-tuning", "mtu": 1400}]})
    pods.knows("blue")
    pods.knows("green")


def inventory(pods: Pods) -> Inventory:
    """Take down what there is on the host and below the daemon's folders.

    But for what a killed write of the journal left, which is no record, and goes when the plugin starts a minute later.
    """
    paths, root = pods.node.paths, pods.node.root
    folders = (paths.attachments, paths.spool, paths.journal, paths.run / "plugins", paths.state, root / "addresses")
    found = run_in(pods.host.netns, lambda: Inventory.take(*folders)).entries
    shared = ("mount ", "loop device ")  # with tests that run beside this one
    found -= {one for one in found if one.startswith(shared) and f"{pods.folder}/" not in one}
    return Inventory(frozenset(one for one in found if not (one.endswith(".tmp") and "/journal/" in one)))


class Killer(threading.Thread):
    """Kills the daemon after some time by chance, and starts it again, until it is told to stop."""

    def __init__(self, pods: Pods, chance: random.Random) -> None:
        super().__init__()
        self.pods, self.chance, self.ended, self.kills = pods, chance, threading.Event(), 0

    def run(self) -> None:
        while not self.ended.wait(self.chance.uniform(0.02, 0.8)):
            self.pods.node.kill()
            self.pods.node.start()
            self.kills += 1

    def stop(self) -> None:
        self.ended.set()
        self.join()


def live(pods: Pods, name: str, *, forgotten: bool) -> bool:
    """Attach a pod and end it; return whether it was attached."""
    attached = False
    with Sandbox(pods.folder / name) as pod:
        with suppress(CniError):
            pods.attach(name, pod, told={KEY: "blue,green@gr0"})
            attached = True
            assert pods.links(pod) == {"eth0", "net1", "gr0"}
        if not forgotten:
            until(lambda: ended(pods, name, pod))
    return attached


def ended(pods: Pods, name: str, pod: Sandbox) -> bool:
    try:
        pods.detach(name, pod)
    except CniError:
        return False
    return True


@pytest.mark.whole
def test_lives_with_a_daemon_that_is_killed_at_any_moment_leave_nothing(pods: Pods) -> None:
    seed = int(os.environ.get("NODEPLUG_SEED", "155"))
    define(pods)
    assert live(pods, "first", forgotten=False)  # whose bridges and tables stay
    before, chance = inventory(pods), random.Random(seed)
    killer = Killer(pods, random.Random(seed + 1))
    killer.start()
    attached = 0
    try:
        for life in itertools.count():
            if life >= LIVES and killer.kills >= LIVES / 4:  # an idle machine lives faster than daemons start
                break
            attached += live(pods, f"life{life}", forgotten=chance.random() < FORGOTTEN)
    finally:
        killer.stop()
    print(f"{life} lives, {attached} attached, {killer.kills} kills, seed {seed}")  # noqa: T201 - with -rP
    until(lambda: inventory(pods).since(before) == [], found=lambda: "\n".join(inventory(pods).since(before)))
    assert attached > 0
