"""A daemon that is killed at any of its requests to the API server: the next one finishes what is asked for, once.

Which requests there are is found by doing it: the daemon is killed at the first, just before the server gets it and
just after it has done it, then at the second, and so on, until all is done before the next one comes.
"""

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Final

import pytest
from tests.real.consumers import ControlPlane
from tests.real.consumers.api_proxy import ApiProxy, Crash, Moment
from tests.real.consumers.claims import CLAIMS, CORE, DRIVER, STORAGE, Cluster, provisioning
from tests.real.provisioner_work import FINALIZER, TOTAL, WORK, is_of_claims, is_tidy, made, remove_class
from tests.suites import divided

from nodeplug import VolumeRoom
from nodeplug.contract.errors import NotReady
from nodeplug.provisioner.objects import storage_capacity
from nodeplug.testing.acted_api.store import Where

pytestmark = pytest.mark.programs("mkfs.ext4")

MOMENTS: Final[tuple[Moment, ...]] = ("before", "after")


@pytest.fixture(scope="module")
def proxy(cluster: ControlPlane) -> Iterator[ApiProxy]:
    """The way of the daemon to the API server."""
    with ApiProxy(cluster) as made:
        yield made


@pytest.fixture(scope="module")
def killed(cluster: ControlPlane, proxy: ApiProxy) -> Iterator[Cluster]:
    """A daemon with loopfile and a provisioner that has the rights of the manifests alone."""

    def kubeconfig(token: str) -> str:
        proxy.token = token
        return proxy.kubeconfig

    with provisioning(cluster, kubeconfig, f'max_total = "{TOTAL}Mi"\n', fork=True) as made:
        yield made


@pytest.fixture(autouse=True)
def no_claims(killed: Cluster) -> Iterator[None]:
    """Every claim of a test goes with it, and every class but the printed one."""
    yield
    for one in killed.call("GET", f"{CORE}/persistentvolumes")["items"]:
        one["spec"]["persistentVolumeReclaimPolicy"] = "Delete"
        killed.call("PUT", f"{CORE}/persistentvolumes/{one['metadata']['name']}", one)
    for one in killed.call("GET", f"{STORAGE}/storageclasses")["items"]:
        if one["metadata"]["name"] != DRIVER:
            remove_class(killed, one["metadata"]["name"])
    for one in killed.call("GET", CLAIMS)["items"]:
        killed.delete(one["metadata"]["name"])
    killed.until("the end of all", lambda: not killed.names() and not killed.volumes())


def is_of_one(verb: str, where: Where) -> bool:
    """Whether a request is for one claim or volume; what all are is asked by every daemon that starts."""
    return bool(where.name) and is_of_claims(verb, where)


def is_change(verb: str, _: Where) -> bool:
    return verb != "GET"


def is_creation(verb: str, where: Where) -> bool:
    return (verb, where.resource) == ("POST", "persistentvolumes")


@dataclass(frozen=True)
class Killer:
    """Who kills the daemon."""

    cluster: Cluster
    proxy: ApiProxy

    def arm(self, number: int, moment: Moment, counts: Callable[[str, Where], bool]) -> Crash:
        """Choose a request at which it is killed."""
        crash = Crash(number, moment, counts, lambda: os.kill(self.cluster.daemon.pid, signal.SIGKILL))
        self.proxy.crash = crash
        return crash

    def strikes(self, crash: Crash, over: Callable[[], bool]) -> bool:
        """Wait until the daemon is killed, or all is over; whether it is killed, and not started again."""

        def decided() -> bool:
            return crash.happened.is_set() or (over() and len(crash.seen) <= crash.number)

        self.cluster.until(f"request {crash.number} or the last", decided)
        self.proxy.crash = None
        if crash.happened.is_set():
            self.cluster.daemon.kill()
        return crash.happened.is_set()


@pytest.fixture
def killer(killed: Cluster, proxy: ApiProxy) -> Killer:
    return Killer(killed, proxy)


@pytest.mark.parametrize("what", divided(WORK, {"a claim gets a volume"}, ()))
def test_what_a_killed_daemon_has_begun_is_done_once_and_leaves_nothing(killer: Killer, what: str) -> None:
    for number in count():
        crash = struck(killer, what, number, "before")
        # What only reads has changed nothing: after it is before the next one.
        if crash is not None and not crash.seen[-1].startswith("GET "):
            crash = struck(killer, what, number, "after")
        if crash is None:
            return


def struck(killer: Killer, what: str, number: int, moment: Moment) -> Crash | None:
    """Have the work done with a crash at a request; None if it does not take so many."""
    cluster, name = killer.cluster, f"{'-'.join(what.split())}-{moment}-{number}"
    work = WORK[what]
    work.prepare(cluster, name)
    crash = killer.arm(number, moment, work.counts)
    work.begin(cluster, name)
    happened = killer.strikes(crash, lambda: work.told(cluster, name) and work.done(cluster, name))
    if happened:
        cluster.daemon.start()
    cluster.until(f"the end, killed {moment} the last of {crash.seen}", lambda: work.done(cluster, name))
    told = Counter(line for line in cluster.events(name).splitlines() if "ExternalProvisioning" not in line)
    assert max(told.values(), default=0) <= 1, told
    assert happened or work.asks <= set(crash.seen)
    return crash if happened else None


@pytest.mark.soak
def test_what_is_left_over_of_a_claim_that_is_gone_is_deleted_by_a_daemon_that_is_killed_at_it(killer: Killer) -> None:
    cluster = killer.cluster
    for number in count():
        name = f"gone-{number}"
        crash = killer.arm(0, "before", is_creation)
        cluster.claim(name)
        assert killer.strikes(crash, lambda: False)
        assert len(cluster.names()) == 1  # an image that no object of the cluster tells of
        cluster.delete(name)
        crash = killer.arm(number, "before", is_of_one)
        with suppress(NotReady):  # it may be killed before it answers
            cluster.daemon.start()
        happened = killer.strikes(crash, lambda: is_tidy(cluster))
        if happened:
            cluster.daemon.start()
        cluster.until(f"the end, killed before the last of {crash.seen}", lambda: is_tidy(cluster))
        if not happened:
            assert {"GET persistentvolumeclaims", "GET persistentvolumes"} <= set(crash.seen)
            return


def test_a_volume_that_was_kept_in_the_last_moment_is_not_deleted(killer: Killer) -> None:
    cluster = killer.cluster
    made(cluster, "kept")
    name = cluster.volume_of("kept")["metadata"]["name"]
    image = cluster.names()

    def kept() -> None:
        volume = cluster.call("GET", f"{CORE}/persistentvolumes/{name}")
        volume["spec"]["persistentVolumeReclaimPolicy"] = "Retain"
        cluster.call("PUT", f"{CORE}/persistentvolumes/{name}", volume)

    # The provisioner has decided to delete it by then, and asks once more.
    crash = killer.proxy.crash = Crash(0, "ahead", lambda verb, where: (verb, where.name) == ("GET", name), kept)
    cluster.delete("kept")
    cluster.until("the question", crash.happened.is_set)
    killer.proxy.crash = None

    def is_let_go() -> bool:
        return FINALIZER not in cluster.call("GET", f"{CORE}/persistentvolumes/{name}")["metadata"].get(
            "finalizers", ()
        )

    cluster.until("the end of the finalizer", is_let_go)
    assert cluster.names() == image


LOST: Final = "lost"


def lose(cluster: Cluster, name: str) -> None:
    """Leave in the cluster what a node leaves that never comes back: a volume of a claim that is gone, and room."""
    there = {"key": f"{DRIVER}/node", "operator": "In", "values": [LOST]}
    volume = {
        "metadata": {
            "name": name,
            "annotations": {"pv.kubernetes.io/provisioned-by": DRIVER, "provisioner.nodeplug/node": LOST},
            "finalizers": [FINALIZER],
        },
        "spec": {
            "capacity": {"storage": "32Mi"},
            "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Delete",
            "storageClassName": DRIVER,
            "claimRef": {"namespace": "default", "name": name, "uid": name},
            "csi": {"driver": DRIVER, "volumeHandle": name},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [there]}]}},
        },
    }
    cluster.call("POST", f"{CORE}/persistentvolumes", volume)
    room = storage_capacity(
        DRIVER, DRIVER, LOST, "kube-system", {f"{DRIVER}/node": LOST}, VolumeRoom(available=1 << 30)
    )
    cluster.call("POST", f"{STORAGE}/namespaces/kube-system/csistoragecapacities", room)
    cluster.until(
        "its release", lambda: cluster.call("GET", f"{CORE}/persistentvolumes/{name}")["status"]["phase"] == "Released"
    )


def lost(cluster: Cluster) -> list[str]:
    """Return what there is of the lost node."""
    rooms = cluster.call("GET", f"{STORAGE}/namespaces/kube-system/csistoragecapacities")["items"]
    theirs = [one["metadata"]["name"] for one in rooms if LOST in one["nodeTopology"]["matchLabels"].values()]
    return [*cluster.volumes(), *theirs]


@pytest.mark.soak
def test_a_lost_node_is_forgotten_by_a_command_that_is_killed_and_given_again(killed: Cluster, tmp_path: Path) -> None:
    control = killed.control
    with ApiProxy(control, control.token) as proxy:
        (tmp_path / "kubeconfig").write_text(proxy.kubeconfig)
        words = ["csi", "forget-node", LOST, "--apply", f"--kubeconfig={tmp_path}/kubeconfig"]
        command = [sys.executable, "-m", "nodeplug", *words]
        for number in count():
            for moment in MOMENTS:
                name = f"lost-{moment}-{number}"
                lose(killed, name)
                process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
                proxy.crash = crash = Crash(number, moment, is_change, process.kill)
                said, _ = process.communicate(timeout=60)
                proxy.crash = None
                if crash.happened.is_set():
                    subprocess.run(command, check=True, capture_output=True)
                assert lost(killed) == [], said
                if not crash.happened.is_set():
                    assert {"DELETE persistentvolumes", "DELETE csistoragecapacities"} <= set(crash.seen)
                    return
