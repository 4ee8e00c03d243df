"""A lease whose container is gone, and for which no DEL came: `nodeplug net gc` names it, and removes its record."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.node.dhcp.lab import SERVER, Place, granting, serving
from tests.node.dhcp.test_faults import NETWORK
from tests.programs import need

from nodeplug import Netns
from nodeplug.testing import host
from nodeplug.testing.scratch_cni import ScratchCni
from nodeplug_net.dhcp.plugin import Dhcp, DhcpPluginConfig

ADDRESS = SERVER + 0x1_0000 + os.getpid() % 0xFFFF
"""Of this process alone: the command looks for it in every network namespace of the machine."""


@pytest.fixture
def lease(scratch: ScratchCni, place: Place, pod: Callable[[], Netns]) -> Path:
    """The record of a lease of c1, by a daemon that is gone."""
    own = replace(host(scratch.folder, plugin="dhcp"), run_dir=scratch.folder / "daemon" / "plugins" / "dhcp")
    plugin = Dhcp(DhcpPluginConfig(), own)
    with serving(place, granting(yiaddr=ADDRESS)):
        scratch.on_host(plugin.start)
        scratch.add(plugin, NETWORK, "c1", pod())
        plugin.stop()
    (found,) = own.run_dir.glob("leases/*.json")
    return found


@pytest.fixture
def cached(scratch: ScratchCni) -> Callable[[Path], None]:
    """Write what libcni caches of the ADD of c1 in some namespace."""

    def cache(netns: Path) -> None:
        folder = scratch.folder / "results"
        folder.mkdir()
        known = {"kind": "cniCacheV1", "containerId": "c1", "ifName": "eth0", "networkName": "net"}
        (folder / "net-c1-eth0").write_text(json.dumps({**known, "netns": str(netns)}))

    return cache


def gc(scratch: ScratchCni, lease: Path, options: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Run the command where no daemon runs; what it tells of leases."""
    run = lease.parents[3]
    words = ["--run-dir", str(run), "--root", str(scratch.folder), "--data-dir", str(scratch.folder / "none")]
    words += ["--cache-dir", str(scratch.folder / "results"), "--tuning-dir", str(scratch.folder / "none"), "--json"]
    command = [sys.executable, "-m", "nodeplug", "net", "gc", *words, *options]
    said = scratch.on_host(lambda: subprocess.run(command, capture_output=True, text=True, check=True)).stdout
    return [one for one in json.loads(said) if one["kind"] == "lease"]


@pytest.mark.whole
def test_a_lease_whose_namespace_is_gone_is_shown_with_the_reason_and_freed(
    scratch: ScratchCni, lease: Path, cached: Callable[[Path], None]
) -> None:
    cached(scratch.folder / "pod")
    (shown,) = gc(scratch, lease, ["--dry-run"])
    assert (shown["address"], shown["network"], shown["container_id"], shown["ifname"]) == (
        str(ADDRESS), "net", "c1", "eth0",
    )  # fmt: skip
    assert shown["why"] == f"network namespace {scratch.folder}/pod of its container is gone"
    assert (shown["state"], shown["freed"], lease.exists()) == ("left over", False, True)
    assert gc(scratch, lease) == [{**shown, "freed": True}]
    assert (gc(scratch, lease), lease.exists()) == ([], False)


@pytest.mark.whole
def test_a_lease_of_which_nothing_else_is_known_stays_until_an_administrator_asks(
    scratch: ScratchCni, lease: Path
) -> None:
    (row,) = gc(scratch, lease)
    assert (row["state"], row["freed"], lease.exists()) == ("unknown", False, True)
    (row,) = gc(scratch, lease, ["--unknown"])
    assert (row["freed"], lease.exists()) == (True, False)


def test_a_lease_whose_address_a_namespace_has_is_held(
    scratch: ScratchCni, lease: Path, cached: Callable[[Path], None]
) -> None:
    cached(scratch.folder / "pod")
    need("ip", "unshare")
    words = ["ip", "address", "add", f"{ADDRESS}/24", "dev", "lo"]
    with subprocess.Popen(["unshare", "--net", "sh", "-c", f"{' '.join(words)}; echo; cat"], stdin=-1, stdout=-1) as it:
        assert it.stdout is not None
        it.stdout.readline()
        (row,) = gc(scratch, lease, ["--unknown"])
        it.terminate()
    assert (row["state"], lease.exists()) == ("held", True)
    assert "has the address" in row["why"]
