"""Which kinds of links this kernel has.

Owns: the probe, once for each kind, and the reason of the skip where a kernel lacks one.
Refuses: to load modules.
"""

import subprocess
from functools import cache

import pytest
from tests.programs import need

from nodeplug.testing.scratch_cni import new_netns, run_in


@cache
def has_kind(kind: str) -> bool:
    """Whether this kernel has a kind of link; one is made in a namespace of its own, and ends with it."""
    netns = new_netns()
    try:
        lower = ["link", "add", "lower0", "type", "veth", "peer", "name", "lower1"]
        below = ["link", "lower0"] if kind in {"vlan", "ipvlan", "macvlan"} else []
        data = {"vlan": ["id", "5"], "vrf": ["table", "5"]}.get(kind, [])
        words = ["ip", "link", "add", *below, "name", "probe0", "type", kind, *data]
        run_in(netns, lambda: subprocess.run(["ip", *lower], check=True))
        said = run_in(netns, lambda: subprocess.run(words, capture_output=True, text=True, check=False)).stderr
    finally:
        netns.close()
    return "Unknown device type" not in said and "not supported" not in said


def need_kind(kind: str) -> None:
    """Skip where the kernel lacks a kind of link, or nothing could make one."""
    need("ip")
    if not has_kind(kind):
        pytest.skip(f"needs a kernel with links of kind {kind}")
