"""What a node holds, before and after: the proof that nothing was left behind.

Owns: links, addresses, mounts, loop devices, nftables objects, cgroups, and whatever lies in folders (journal entries,
spooled calls, reserved addresses, sockets), as the kernel shows them in the calling thread's namespaces; and the
difference of two inventories, as text.
Refuses: judgement: the caller decides what may differ.
"""

import errno
import ipaddress
import os
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from nodeplug.contract.mounts import mounts

CGROUPS: Final = Path("/sys/fs/cgroup")
_PAUSE: Final = 0.1
_ADDRESS_BYTES: Final = (4, 16)
_FILE_KINDS: Final = {
    stat.S_IFREG: "file",
    stat.S_IFLNK: "symlink",
    stat.S_IFSOCK: "socket",
    stat.S_IFIFO: "pipe",
    stat.S_IFCHR: "device",
    stat.S_IFBLK: "device",
}


@dataclass(frozen=True, slots=True)
class Inventory:
    """One inventory; each entry is a short text such as `link veth1a2b3c4d`, its kind first."""

    entries: frozenset[str]

    @classmethod
    def take(cls, *folders: Path, cgroups: str = "") -> "Inventory":
        """Take the inventory now.

        Args:
            folders: everything below them but the folders themselves counts as well; a missing one is empty.
            cgroups: cgroups with this prefix, directly below a hierarchy's root, count with all below them.
        """
        kernel = [*_links(), *_addresses(), *_mounts(), *_loops(), *_nftables()]
        groups = [f"cgroup {path}" for path in cgroups_of(cgroups)] if cgroups else []
        return cls(frozenset([*kernel, *groups, *_files(folders)]))

    def since(self, before: "Inventory") -> list[str]:
        """Return what came (`+ ...`) and what went (`- ...`), sorted."""
        came = [f"+ {entry}" for entry in self.entries - before.entries]
        return sorted(came + [f"- {entry}" for entry in before.entries - self.entries])


def describe(difference: Iterable[str]) -> str:
    """Return a difference as a text: what is left behind and what is lost, kind by kind, one entry per line."""
    lines = []
    for sign, entries in groupby(sorted(difference), key=lambda entry: entry[0]):
        lines.append("left behind:" if sign == "+" else "lost:")
        lines += [f"  {entry[2:]}" for entry in entries]
    return "\n".join(lines)


@contextmanager
def leaves_nothing(*folders: Path, cgroups: str = "", patience: float = 0.0) -> Iterator[None]:
    """Take the inventory before and after a block, in the calling thread's namespaces.

    Args:
        folders: see `Inventory.take`.
        cgroups: see `Inventory.take`.
        patience: seconds that callers get to finish their clean-up.

    Raises:
        AssertionError: something was left behind or lost; the message lists it.
    """
    before = Inventory.take(*folders, cgroups=cgroups)
    yield
    end = time.monotonic() + patience
    while difference := Inventory.take(*folders, cgroups=cgroups).since(before):
        if time.monotonic() >= end:
            raise AssertionError(describe(difference))
        time.sleep(_PAUSE)


def cgroups_of(prefix: str) -> list[Path]:
    """Return the cgroups with a prefix and all below them, the deepest first.

    Version 1 has a tree for each controller; some are mounted twice.
    """
    tops = (*CGROUPS.glob(f"{prefix}*"), *CGROUPS.glob(f"*/{prefix}*"))
    # os.walk copes with groups that vanish meanwhile.
    found = {Path(path) for top in tops for path, _, _ in os.walk(top)}
    return sorted(found, key=lambda path: len(path.parts), reverse=True)


def make_cgroup(name: str) -> None:
    """Make a cgroup directly below each hierarchy's root.

    In the cpuset hierarchy of version 1 it takes its processors and memory nodes from the root: processes may enter.
    """
    trees = [path for path in CGROUPS.iterdir() if (path / "cgroup.procs").exists()]
    for tree in trees or [CGROUPS]:
        made = tree / name
        made.mkdir(exist_ok=True)
        for setting in ("cpuset.cpus", "cpuset.mems"):
            if trees and (made / setting).exists() and (tree / setting).exists():
                (made / setting).write_text((tree / setting).read_text(encoding="ascii"), encoding="ascii")


def _links() -> Iterator[str]:
    lines = Path("/proc/thread-self/net/dev").read_text(encoding="utf-8").splitlines()[2:]
    return (f"link {line.partition(':')[0].strip()}" for line in lines)


def _addresses() -> Iterator[str]:
    """Addresses of a wider scope than their link: those of a link come and go with its carrier."""
    from pyroute2 import IPRoute  # noqa: PLC0415 - a tenth of a second, wanted only here
    from pyroute2.netlink.rtnl import rt_scope  # noqa: PLC0415

    with IPRoute() as netlink:
        names = {link["index"]: link.get_attr("IFLA_IFNAME") for link in netlink.get_links()}
        for entry in netlink.get_addr():
            if entry["scope"] < rt_scope["link"]:
                # Across a tunnel or veth that knows its peer, IFA_ADDRESS is the peer's.
                address = entry.get_attr("IFA_LOCAL") or entry.get_attr("IFA_ADDRESS")
                yield f"address {address}/{entry['prefixlen']} on {names.get(entry['index'], entry['index'])}"


def _mounts() -> Iterator[str]:
    return (f"mount {mount.fs_type} on {mount.target}" for mount in mounts())


def _loops() -> Iterator[str]:
    for path in Path("/sys/block").glob("loop*/loop/backing_file"):
        try:
            yield f"loop device {path.parts[3]} of {path.read_text(encoding='utf-8').strip()}"
        except OSError:  # detached between the two reads
            continue


def _files(folders: Iterable[Path]) -> Iterator[str]:
    found = (Path(root, name) for folder in folders for root, dirs, files in os.walk(folder) for name in dirs + files)
    for path in found:
        try:
            kind = _FILE_KINDS.get(stat.S_IFMT(path.lstat().st_mode))
        except FileNotFoundError:  # removed between the two reads
            continue
        if kind:
            yield f"{kind} {path}"


def _nftables() -> Iterator[str]:
    from pyroute2 import NetlinkError  # noqa: PLC0415 - as above

    try:
        yield from _nft_objects()
    except NetlinkError as error:
        if error.code != errno.EPERM:  # an ordinary user sees no nftables, and cannot have created any
            raise


def _nft_objects() -> Iterator[str]:
    from pyroute2.nftables.main import NFTables  # noqa: PLC0415 - as above

    with NFTables(nfgen_family=0) as tables:
        for table in tables.get_tables():
            yield f"nft table {table.get_attr('NFTA_TABLE_NAME')}"
        for chain in tables.get_chains():
            yield f"nft chain {chain.get_attr('NFTA_CHAIN_TABLE')} {chain.get_attr('NFTA_CHAIN_NAME')}"
        for rule in tables.get_rules():
            yield f"nft rule {rule.get_attr('NFTA_RULE_TABLE')} {rule.get_attr('NFTA_RULE_HANDLE')}"
        sets = [
            (entry["nfgen_family"], entry.get_attr("NFTA_SET_TABLE"), entry.get_attr("NFTA_SET_NAME"))
            for entry in tables.get_sets()
        ]
    for family, table, name in sets:
        yield f"nft set {table} {name}"
        for key in _elements(family, table, name):
            yield f"nft element {table} {name} {key}"


def _elements(family: int, table: str, name: str) -> Iterator[str]:
    from pyroute2.netlink import NLM_F_DUMP, NLM_F_REQUEST  # noqa: PLC0415 - as above
    from pyroute2.netlink.nfnetlink import nftsocket  # noqa: PLC0415
    from pyroute2.nftables.main import NFTables  # noqa: PLC0415

    request: Any = nftsocket.nft_set_elem_list_msg()
    request["attrs"] = [("NFTA_SET_ELEM_LIST_TABLE", table), ("NFTA_SET_ELEM_LIST_SET", name)]
    with NFTables(nfgen_family=family) as tables:
        for answer in tables.request_get(request, nftsocket.NFT_MSG_GETSETELEM, NLM_F_DUMP | NLM_F_REQUEST):
            for element in answer.get_attr("NFTA_SET_ELEM_LIST_ELEMENTS") or ():
                yield _key(element.get_attr("NFTA_SET_ELEM_KEY").get_attr("NFTA_DATA_VALUE"))


def _key(value: Any) -> str:
    """Return an element's key as an address where it has the length of one."""
    data = bytes.fromhex(value.replace(":", "")) if isinstance(value, str) else bytes(value)
    return str(ipaddress.ip_address(data)) if len(data) in _ADDRESS_BYTES else data.hex()
