"""Host ports of the reference's portmap in ip_tables, by way of iptables-legacy(8), which is executed for them.

Owns: listing and removing those, only in a namespace whose table `nat` of ip_tables is in use.
Refuses: whose they are, and iptables-nft(8)'s (`ports`).
"""

import shlex
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise

from nodeplug_net.portmap.config import Forward
from nodeplug_net.reference.iptables import list_legacy, restore_legacy, versions_in_use


@dataclass(frozen=True, slots=True)
class _Jump:
    """One rule that jumps to a container's chain, as iptables-legacy(8) lists it."""

    line: str
    chain: str
    comment: str


class LegacyPorts:
    """The reference's host ports in ip_tables, of the namespace that the calling thread is in."""

    def remove(self, chosen: Callable[[str, str], bool]) -> None:
        """Remove the chains of containers, with the rules that jump there.

        Args:
            chosen: whether a chain goes, by its name and by the comment of a rule that jumps there.

        Raises:
            NoProgram: iptables-legacy(8) is missing.
            TryAgain: it fails, as while another program holds its lock.
        """
        for version in versions_in_use():
            doomed = [jump for jump in _jumps(version) if chosen(jump.chain, jump.comment)]
            lines = [f"-D{jump.line.removeprefix('-A')}" for jump in doomed]
            for chain in dict.fromkeys(jump.chain for jump in doomed):
                lines += [f"-F {chain}", f"-X {chain}"]
            if lines:
                restore_legacy(version, lines)

    def has(self, chains: Collection[str]) -> bool:
        """Whether a rule jumps to one of these chains.

        Raises:
            NoProgram: iptables-legacy(8) is missing.
            TryAgain: it fails, as while another program holds its lock.
        """
        return any(jump.chain in chains for version in versions_in_use() for jump in _jumps(version))

    def leads_to(self, chain: str, forward: Forward) -> bool:
        """Whether a container's chain sends packets for a port to it.

        Raises:
            NoProgram: iptables-legacy(8) is missing.
            TryAgain: it fails, as while another program holds its lock.
        """
        if forward.version not in versions_in_use():
            return False
        target = str(forward.target) if forward.version == 4 else f"[{forward.target}]"
        wanted = f"--to-destination {target}:{forward.container_port}"
        own = (line for line in list_legacy(forward.version) if line.startswith(f"-A {chain} "))
        return any(f"--dport {forward.host_port} " in line and wanted in line for line in own)


def _jumps(version: int) -> Iterator[_Jump]:
    for line in list_legacy(version):
        with suppress(ValueError):  # another program's: a comment with a line's end
            words = shlex.split(line)
            options = dict(pairwise(words))
            chain = options.get("-j", "")
            if (
                words[:1] == ["-A"]
                and words[1].startswith("CNI-HOSTPORT-")
                and chain.startswith(("CNI-DN-", "CNI-SN-"))
            ):
                yield _Jump(line, chain, options.get("--comment", ""))
