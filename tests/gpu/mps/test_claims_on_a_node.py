"""Cards by claims in the real daemon, with MPS: what containers get, who is said to have it, and that it ends."""

import os
import signal
import socket
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from nodeplug.commands import inspect
from nodeplug.testing import ScratchNode, folders
from nodeplug.testing.dra import DraKubelet, DraTimeouts, ResourceApi, Scheduler
from nodeplug.testing.waiting import until
from nodeplug_gpu.mps.record import recorded

pytestmark = pytest.mark.node

NODE, DRIVER = "node-1", "gpu.nodeplug.io"
CARD = "GPU-aaaaaaaa"
TIMEOUTS = DraTimeouts(retry=0.1, poll=0.02, wipe=2.0, health=0.1, call=20)


class Claimed:
    """A node with one card of 8 GiB that claims share, and kubelet, API server and scheduler, acted out."""

    def __init__(self, folder: Path, driver_root: Path, stack: ExitStack) -> None:
        root = folder / "n"
        self.api = stack.enter_context(ResourceApi(NODE))
        (folder / "kubeconfig").write_text(self.api.kubeconfig)
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        self.kubelet = stack.enter_context(
            DraKubelet(root / "var/lib/kubelet", self.api, [root / "var/run/cdi"], timeouts=TIMEOUTS)
        )
        plugin = (
            f'[plugins.gpu]\nserve = "dra"\n[plugins.gpu.config]\ndriver = "simulated"\npoll = "100ms"\n'
            f'driver_root = "{driver_root}"\nsimulated = [{{ memory = "8GiB", uuid = "{CARD}" }}]\n'
            '[[plugins.gpu.config.resources]]\nsharing = "memory"\nwithhold = "always"\nmps = {}\n'
        )
        supervisor = (
            f'node_name = "{NODE}"\nlisten = "{self.address}"\nkubeconfig = "{folder}/kubeconfig"\n'
            'podresources_poll = "200ms"'
        )
        self.node = stack.enter_context(ScratchNode(root, plugin, fork=True, supervisor=supervisor))
        self.scheduler = Scheduler(self.api)
        self.scheduler.add_class("gpu", f'device.driver == "{DRIVER}"')
        self.kubelet.until_registered(DRIVER)
        until(lambda: [one for made in self.api.slices() for one in made["spec"].get("devices") or ()])
        until(lambda: self.card["allocatable"])

    def run(self, name: str, amount: str, **uses: tuple[str, ...]) -> Any:
        """Run a pod with an amount of the card; return what each container gets."""
        wanted = {"deviceClassName": "gpu", "capacity": {"requests": {"memory": amount}}}
        self.scheduler.claim(name, {"name": "gpu", "exactly": wanted})
        self.scheduler.place(f"pod-{name}", [name])
        return self.kubelet.until_admitted(f"pod-{name}", [name], uses or None)

    @property
    def card(self) -> dict[str, Any]:
        (card,) = inspect("gpu", self.node.config_path, self.node.root)["gpu"]["cards"]
        return dict(card)

    def metrics(self, name: str) -> list[str]:
        page = urllib.request.urlopen(f"http://{self.address}/metrics").read().decode()
        return sorted(
            line.rpartition(" ")[2] for line in page.splitlines() if line.startswith(f"nodeplug_gpu_{name}{{")
        )


@pytest.fixture
def claimed(short_path: Path, driver_root: Path) -> Iterator[Claimed]:
    with ExitStack() as stack:
        stack.callback(lambda: folders.unmount_below(short_path))
        yield Claimed(short_path, driver_root, stack)
    for record in short_path.rglob("daemon.json"):
        if (pid := recorded(record)) is not None:
            os.kill(pid, signal.SIGKILL)
    folders.unmount_below(short_path)


@pytest.mark.whole
def test_claims_have_limits_names_and_figures_of_their_own_and_end(claimed: Claimed) -> None:
    got = claimed.run("five", "5Gi", main=("five",), side=("five",))
    for container in ("main", "side"):
        assert got[container].env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == f"0={5 << 10}M"
        assert "/dev/shm" in got[container].mounts
    for name in ("one", "two"):  # no container of these pods uses the claim, as far as kubelet tells
        claimed.run(name, "1Gi", main=())

    def told() -> list[tuple[str, str, list[str], int]]:
        found = claimed.card["containers"]
        return sorted((one["pod"], one["container"], one["claims"], one["units"]) for one in found)

    wanted = [("", "", ["default/one"], 1), ("", "", ["default/two"], 1)]
    wanted += [("pod-five", "main", ["default/five"], 5), ("pod-five", "side", ["default/five"], 5)]
    until(lambda: told() == wanted, found=lambda: str(told()))
    assert (claimed.card["allocated_units"], claimed.card["unconfirmed_units"]) == (7, 0)
    until(lambda: len(claimed.metrics("container_allocated_bytes")) == 3)
    assert list(map(float, claimed.metrics("memory_allocated_bytes"))) == [float(7 << 30)]
    (driver,) = claimed.node.status()["dra"]
    assert {one["claim"]: one["containers"] for one in driver["claims"]} == {
        "default/five": ["pod-five/main", "pod-five/side"],
        "default/one": [],
        "default/two": [],
    }
    shown = claimed.node.run("gpu").stdout
    assert "pod-five/side" in shown
    assert "claim default/one" in shown
    assert "withheld" not in shown
    for name in ("five", "one", "two"):
        claimed.kubelet.until_ended(f"pod-{name}")
    until(lambda: (claimed.card["allocated_units"], claimed.card["containers"]) == (0, []))
    assert "not exported" not in claimed.node.log
