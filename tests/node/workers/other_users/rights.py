"""The user, groups and capabilities of a process, as the kernel tells them."""

from collections.abc import Mapping
from pathlib import Path

from nodeplug.config.privileges import CAPABILITIES

NOBODY = 65534
NET_ADMIN = 1 << CAPABILITIES["CAP_NET_ADMIN"]
SETS = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")


def state(pid: int) -> Mapping[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    return {name: text.strip() for name, _, text in (line.partition(":") for line in lines)}


def capabilities(pid: int) -> set[int]:
    found = state(pid)
    return {int(found[name], 16) for name in SETS}
