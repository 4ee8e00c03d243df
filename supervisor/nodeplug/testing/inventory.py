"""What a node holds, before and after: the proof that nothing was left behind.

Owns: links, mounts, loop devices, nftables objects and files, as the kernel tells them in the calling thread's
namespaces, and the difference of two looks.
Refuses: judgement: what may differ is the caller's business.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nodeplug.mounts import mounts


@dataclass(frozen=True, slots=True)
class Inventory:
    """One look; each entry is a short text such as `link veth1a2b3c4d`."""

    entries: frozenset[str]

    @classmethod
    def take(cls, *folders: Path) -> "Inventory":
        """Look now.

        Args:
            folders: every regular file below them counts as well.
        """
        return cls(frozenset([*_links(), *_mounts(), *_loops(), *_nftables(), *_files(folders)]))

    def since(self, before: "Inventory") -> list[str]:
        """Return what came (`+ ...`) and what went (`- ...`), sorted."""
        came = [f"+ {entry}" for entry in self.entries - before.entries]
        return sorted(came + [f"- {entry}" for entry in before.entries - self.entries])


def _links() -> Iterator[str]:
    lines = Path("/proc/thread-self/net/dev").read_text(encoding="utf-8").splitlines()[2:]
    return (f"link {line.partition(':')[0].strip()}" for line in lines)


def _mounts() -> Iterator[str]:
    return (f"mount {mount.fs_type} on {mount.target}" for mount in mounts())


def _loops() -> Iterator[str]:
    for path in Path("/sys/block").glob("loop*/loop/backing_file"):
        try:
            yield f"loop device {path.parts[3]} of {path.read_text(encoding='utf-8').strip()}"
        except OSError:  # detached between the two looks
            continue


def _files(folders: Iterable[Path]) -> Iterator[str]:
    return (f"file {path}" for folder in folders for path in folder.rglob("*") if path.is_file())


def _nftables() -> Iterator[str]:
    from pyroute2.nftables.main import NFTables  # noqa: PLC0415 - a tenth of a second, wanted only here

    with NFTables(nfgen_family=0) as tables:
        for table in tables.get_tables():
            yield f"nft table {table.get_attr('NFTA_TABLE_NAME')}"
        for rule in tables.get_rules():
            yield f"nft rule {rule.get_attr('NFTA_RULE_TABLE')} {rule.get_attr('NFTA_RULE_HANDLE')}"
        sets = [
            (entry["nfgen_family"], entry.get_attr("NFTA_SET_TABLE"), entry.get_attr("NFTA_SET_NAME"))
            for entry in tables.get_sets()
        ]
    for family, table, name in sets:
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
                yield str(element.get_attr("NFTA_SET_ELEM_KEY").get_attr("NFTA_DATA_VALUE"))
