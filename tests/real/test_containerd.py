"""containerd through CRI: a real runtime makes and removes pod sandboxes on our network."""

import json
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from tests.real.consumers import Containerd, Cri, PrivateNode, Restarts
from tests.suites import divided

from nodeplug.testing import ScratchNode
from nodeplug.testing.waiting import until

PUBLISHED = Path(__file__).parents[2] / "configs" / "cni" / "10-nodeplug.conflist"
DOZENS = 36
PLUGINS = """
[plugins.bridge]
[plugins.host-local]
[plugins.loopback.config]
names = ["loopback"]
"""


@dataclass(frozen=True)
class Lab:
    """A daemon and a containerd that calls it."""

    private: PrivateNode
    daemon: ScratchNode
    containerd: Containerd

    @property
    def cri(self) -> Cri:
        return self.containerd.cri

    @property
    def watched(self) -> tuple[Path, Path]:
        """Where a pod could leave files: the daemon's state, and what libcni and host-local keep."""
        return self.private.folder / "var", self.daemon.paths.run

    def install(self, conflist: Path) -> None:
        done = self.daemon.run("install", "--conflist", str(conflist))
        assert done.returncode == 0, done.stderr + done.stdout

    def difference_of(self, life: Callable[[], object]) -> list[str]:
        """Return what `life` left; an undisturbed bystander makes what stays on purpose, such as the bridge."""
        bystander = self.cri.run("bystander")
        self.end(self.cri.run("first"))
        before = self.private.inventory(*self.watched)
        life()
        difference = self.private.inventory_since(before, *self.watched)
        self.private.run("ping", "-c", "1", "-W", "2", self.cri.address(bystander))
        self.end(bystander)
        return difference

    def end(self, sandbox: str) -> None:
        self.cri.stop(sandbox)
        self.cri.remove(sandbox)

    def wait_for(self, what: str, holds: Callable[[], bool], patience: float = 20.0) -> None:
        until(holds, patience, lambda: what)


@pytest.fixture
def make_lab(
    private_node: PrivateNode, short_path: Path, runtime: Path | None
) -> Callable[..., AbstractContextManager[Lab]]:
    @contextmanager
    def make(conflist: Path | None = PUBLISHED, *, inside: bool = True) -> Iterator[Lab]:
        beside = private_node.pid if inside else None
        daemon = ScratchNode(private_node.folder, PLUGINS, beside=beside, fork=True)
        folder = short_path / "c"
        folder.mkdir()
        with ExitStack() as stack:
            stack.callback(lambda: sys.stdout.write(daemon.log))  # shown when the test fails
            stack.enter_context(daemon)
            containerd = Containerd(private_node, folder, daemon.paths.cni_bin, daemon.paths.cni_conf, programs=runtime)
            lab = Lab(private_node, daemon, containerd)
            installed = daemon.run("install")
            assert installed.returncode == 0, installed.stderr
            if conflist is not None:
                lab.install(conflist)
            stack.enter_context(containerd)
            yield lab

    return make


@pytest.fixture
def lab(make_lab: Callable[..., AbstractContextManager[Lab]]) -> Iterator[Lab]:
    with make_lab() as made:
        yield made


def variant(folder: Path, **changes: Any) -> Path:
    """Write our published conflist with other keys; `plugin` and `ipam` change the keys of the bridge."""
    conflist = json.loads(PUBLISHED.read_text())
    conflist["plugins"][0] |= changes.pop("plugin", {})
    conflist["plugins"][0]["ipam"] |= changes.pop("ipam", {})
    path = folder / PUBLISHED.name
    path.write_text(json.dumps(conflist | changes))
    return path


def test_a_sandbox_gets_an_address_and_leaves_nothing(lab: Lab) -> None:
    def life() -> None:
        sandbox = lab.cri.run("pod")
        address = lab.cri.address(sandbox)
        assert address.startswith("10.88.")
        lab.private.run("ping", "-c", "1", "-W", "2", address)
        lab.end(sandbox)

    assert lab.difference_of(life) == []


def test_the_second_del_which_has_neither_netns_nor_result_succeeds(lab: Lab) -> None:
    sandbox = lab.cri.run("pod")
    lab.cri.stop(sandbox)
    calls_before = deletes(lab)
    lab.cri.remove(sandbox)
    assert deletes(lab) == calls_before + 1


def deletes(lab: Lab) -> int:
    return sum(
        call["verb"] == "DEL" and call["claim"] == "cni:nodeplug-bridge" and call["outcome"] == "ok"
        for call in lab.daemon.status()["recent"]
    )


def test_a_daemon_in_namespaces_of_its_own_serves_the_node_that_the_descriptors_name(
    make_lab: Callable[..., AbstractContextManager[Lab]], short_path: Path
) -> None:
    conflist = variant(short_path, ipam={"dataDir": str(short_path / "addresses")})
    with make_lab(conflist, inside=False) as lab:

        def life() -> None:
            sandbox = lab.cri.run("pod")
            lab.private.run("ping", "-c", "1", "-W", "2", lab.cri.address(sandbox))
            lab.end(sandbox)

        assert lab.difference_of(life) == []


@pytest.mark.parametrize("version", divided(["0.3.1", "0.4.0", "1.0.0"], {"0.4.0"}, ()))
def test_every_version_that_containerd_knows_is_served(
    make_lab: Callable[..., AbstractContextManager[Lab]], short_path: Path, version: str
) -> None:
    with make_lab(variant(short_path, cniVersion=version)) as lab:
        assert lab.difference_of(lambda: lab.end(lab.cri.run("pod"))) == []


def test_containerd_2_serves_a_list_of_version_1_1_0_and_1_6_fails_each_add(
    make_lab: Callable[..., AbstractContextManager[Lab]], short_path: Path
) -> None:
    with make_lab(variant(short_path, cniVersion="1.1.0")) as lab:
        if lab.containerd.version >= (2, 0):
            assert lab.difference_of(lambda: lab.end(lab.cri.run("pod"))) == []
        else:
            with pytest.raises(grpc.RpcError, match="unsupported CNI result version"):
                lab.cri.run("pod")


@pytest.mark.parametrize("generation", ["current"], indirect=True, scope="session")
def test_containerd_2_learns_by_status_that_the_daemon_is_away_and_back(
    make_lab: Callable[..., AbstractContextManager[Lab]], short_path: Path
) -> None:
    with make_lab(variant(short_path, cniVersion="1.1.0")) as lab:
        assert lab.cri.conditions()["NetworkReady"] == (True, "")
        lab.daemon.kill()
        ready, message = lab.cri.conditions()["NetworkReady"]
        assert not ready
        assert "Network plugin returns error: " in message
        lab.daemon.start()
        assert lab.cri.conditions()["NetworkReady"] == (True, "")


def test_a_running_containerd_notices_the_conflist_that_install_writes(
    make_lab: Callable[..., AbstractContextManager[Lab]],
) -> None:
    with make_lab(None) as lab:
        assert not lab.cri.conditions()["NetworkReady"][0]
        lab.install(PUBLISHED)
        lab.wait_for("a ready network", lambda: lab.cri.conditions()["NetworkReady"][0])
        assert "nodeplug" in [network["Config"]["Name"] for network in json.loads(lab.cri.loaded())["Networks"]]
        lab.end(lab.cri.run("pod"))


def test_the_text_of_a_failed_add_reaches_the_caller_and_the_failure_leaves_nothing(
    make_lab: Callable[..., AbstractContextManager[Lab]], short_path: Path
) -> None:
    one_address = {"ranges": [[{"subnet": "10.66.0.0/30"}]]}
    with make_lab(variant(short_path, ipam=one_address)) as lab:
        holder = lab.cri.run("holder")
        before = lab.private.inventory(*lab.watched)
        with pytest.raises(
            grpc.RpcError,
            match=r'"nodeplug-bridge" failed \(add\): failed to allocate for range 0: no IP .*10\.66\.0',
        ):
            lab.cri.run("pod")
        assert lab.private.inventory_since(before, *lab.watched) == []
        lab.end(holder)
        lab.end(lab.cri.run("pod"))


def test_capabilities_annotations_and_capital_letters_do_no_harm(
    make_lab: Callable[..., AbstractContextManager[Lab]], short_path: Path
) -> None:
    names = ("portMappings", "bandwidth", "dns", "io.kubernetes.cri.pod-annotations")
    with make_lab(variant(short_path, plugin={"capabilities": dict.fromkeys(names, True)})) as lab:

        def life() -> None:
            sandbox = lab.cri.run(
                "pod",
                annotations={"kubernetes.io/ingress-bandwidth": "10M", "example.com/Note": 'Ünïcode " and \n'},
                ports=[{"container_port": 80, "host_port": 18080, "host_ip": "127.0.0.1"}],
                servers=["10.88.0.1"],
            )
            assert lab.cri.address(sandbox).startswith("10.88.")
            lab.end(sandbox)

        assert lab.difference_of(life) == []


def test_a_sandbox_that_is_removed_while_the_daemon_is_away_is_cleaned_up_at_its_return(lab: Lab) -> None:
    def life() -> None:
        sandbox = lab.cri.run("pod")
        lab.daemon.kill()
        lab.end(sandbox)
        assert [path for path in lab.daemon.paths.spool.iterdir() if path.suffix == ".frame"]
        lab.daemon.start()

    assert lab.difference_of(life) == []


def test_a_sandbox_that_is_asked_for_while_the_daemon_is_away_waits_for_it(lab: Lab) -> None:
    lab.daemon.kill()
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(lab.cri.run, "pod")
        time.sleep(1.0)
        assert not asked.done()
        lab.daemon.start()
        lab.end(asked.result())


@pytest.mark.soak
def test_sandboxes_live_through_reloads_and_a_refused_configuration(lab: Lab) -> None:
    def life() -> None:
        sandbox = lab.cri.run("old")
        lab.daemon.configure(PLUGINS + "[plugins.tmpfs]\n")
        lab.wait_for("the new plugin", lambda: "tmpfs" in {plugin["name"] for plugin in lab.daemon.status()["plugins"]})
        lab.daemon.configure(PLUGINS + "[plugins.bridge]\n")  # twice the same table
        lab.end(lab.cri.run("new"))
        lab.daemon.configure(PLUGINS)
        lab.wait_for(
            "the old configuration",
            lambda: "tmpfs" not in {plugin["name"] for plugin in lab.daemon.status()["plugins"]},
        )
        lab.private.run("ping", "-c", "1", "-W", "2", lab.cri.address(sandbox))
        lab.end(sandbox)

    assert lab.difference_of(life) == []


def persist(what: Callable[[], Any], patience: float = 300.0) -> Any:
    """Try until it succeeds, as kubelet does; a runtime answers each lost call with an error."""
    end = time.monotonic() + patience
    while True:
        try:
            return what()
        except grpc.RpcError:
            if time.monotonic() > end:
                raise
            time.sleep(0.2)


@pytest.mark.soak
def test_dozens_of_sandboxes_in_parallel_survive_a_daemon_that_is_restarted_again_and_again(lab: Lab) -> None:
    restarts = Restarts(lab.daemon)

    def one(number: int) -> str:
        with restarts.during("creation"):
            sandbox = persist(lambda: lab.cri.run(f"pod-{number}"))
        address = lab.cri.address(sandbox)
        with restarts.during("removal"):
            persist(lambda: lab.cri.stop(sandbox))
            persist(lambda: lab.cri.remove(sandbox))
        return address

    def life() -> None:
        with restarts, ThreadPoolExecutor(12) as pool:
            for first in range(0, 5 * DOZENS, DOZENS):
                addresses = list(pool.map(one, range(first, first + DOZENS)))
                assert all(address.startswith("10.88.") for address in addresses)
                if restarts.hit_all("creation", "removal"):
                    break
        assert restarts.hit_all("creation", "removal")

    assert lab.difference_of(life) == []
