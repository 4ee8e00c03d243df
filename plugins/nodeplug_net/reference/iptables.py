"""The rules of the reference's plugins by way of iptables(8), which is executed for them.

Owns: listing and removing those in ip_tables, the kernel's older keeper of rules, which has no netlink: only in a
namespace whose table `nat` is in use there, so nodes with iptables-nft(8), nftables or nothing never execute anything;
and writing them for a container that is ours, with the program that the reference would execute.
Refuses: whose they are (`rules`), and iptables-nft(8)'s, which `nft` reads without executing it.
"""

import shlex
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from ipaddress import ip_network
from pathlib import Path
from typing import Final

from nodeplug_net.attachment import Attachment
from nodeplug_net.netlink.routes import Interface
from nodeplug_net.nftables.encoding import MULTICAST
from nodeplug_net.reference.programs import Programs, execute
from nodeplug_net.reference.rules import Rule, chain_of, iptables_comment_of

_NAMES: Final = {4: "ip_tables_names", 6: "ip6_tables_names"}
_LEGACY: Final = {4: ("iptables-legacy", "iptables"), 6: ("ip6tables-legacy", "ip6tables")}
_CHOSEN: Final = {4: ("iptables",), 6: ("ip6tables",)}


class LegacyRules:
    """The reference's rules in ip_tables, of the namespace that the calling thread is in."""

    def rules(self) -> list[Rule]:
        """List the rules of all containers; none where ip_tables has no table `nat`.

        Raises:
            NoProgram: it is missing.
            TryAgain: it fails, as while another program holds its lock.
        """
        return [rule for version in _NAMES if _is_in_use(version) for rule, _ in _listed(version)]

    def remove(self, rules: Sequence[Rule]) -> None:
        """Remove rules, and the chains to which no other rule jumps afterwards; succeed for what is gone.

        Raises:
            NoProgram: it is missing.
            TryAgain: it fails, as while another program holds its lock.
        """
        for version in dict.fromkeys(rule.version for rule in rules):
            present = list(_listed(version)) if _is_in_use(version) else []
            kept = {rule.chain for rule, _ in present if rule not in rules}
            doomed = [(rule, line) for rule, line in present if rule in rules]
            lines = [f"-D{line.removeprefix('-A')}" for _, line in doomed]
            for chain in dict.fromkeys(rule.chain for rule, _ in doomed if rule.chain not in kept):
                lines += [f"-F {chain}", f"-X {chain}"]
            if lines:
                _restore(_LEGACY[version], lines)


def versions_in_use(table: str = "nat") -> list[int]:
    """Return the versions of IP for which ip_tables has a table in the calling thread's namespace."""
    return [version for version in _NAMES if _is_in_use(version, table)]


def list_legacy(version: int, table: str = "nat", chain: str = "") -> list[str]:
    """List all rules of a table or of one of its chains, as commands.

    Raises:
        NoProgram: it is missing.
        TryAgain: it fails.
    """
    return _execute(_LEGACY[version], "", "-t", table, "-S", *([chain] if chain else [])).splitlines()


def restore_legacy(version: int, lines: Sequence[str], table: str = "nat") -> None:
    """Change a table in one transaction.

    Raises:
        NoProgram: it is missing.
        TryAgain: it fails.
    """
    _restore(_LEGACY[version], lines, table)


def list_chosen(version: int, table: str) -> list[str]:
    """List all chains and rules of a table, as commands, by the program that the reference executes.

    Raises:
        NoProgram: it is missing.
        TryAgain: it fails.
    """
    return _execute(_CHOSEN[version], "", "-t", table, "-S").splitlines()


def restore_chosen(version: int, table: str, lines: Sequence[str]) -> None:
    """Change a table in one transaction, by the program that the reference executes.

    Raises:
        NoProgram: it is missing.
        TryAgain: it fails, as while another program holds its lock.
    """
    _restore(_CHOSEN[version], lines, table)


def _is_in_use(version: int, table: str = "nat") -> bool:
    """Whether ip_tables has a table here: /proc/net would be the namespace of the process' first thread."""
    try:
        return table in Path("/proc/thread-self/net", _NAMES[version]).read_text().split()
    except OSError:
        return False


def write(entries: Iterable[tuple[Attachment, Interface]]) -> None:
    """Masquerade addresses as the reference does with iptables (ipmasq_iptables_linux.go).

    Raises:
        NoProgram: it is missing.
        TryAgain: it fails, as while another program holds its lock.
    """
    for version in _CHOSEN:
        mine = [(attachment, address) for attachment, address in entries if address.version == version]
        if mine:
            present = _execute(_CHOSEN[version], "", "-t", "nat", "-S").split()
            chains = dict.fromkeys(chain_of(attachment) for attachment, _ in mine)
            made = [f":{chain} - [0:0]" for chain in chains if chain not in present]
            _restore(_CHOSEN[version], [*made, *(line for one in mine for line in _lines(*one))])


def _lines(attachment: Attachment, address: Interface) -> list[str]:
    chain, comment = chain_of(attachment), f"-m comment --comment {quoted(iptables_comment_of(attachment))}"
    multicast = MULTICAST[address.version == 6]
    return [
        f"-A {chain} -d {address.network} {comment} -j ACCEPT",
        f"-A {chain} ! -d {multicast} {comment} -j MASQUERADE",
        f"-A POSTROUTING -s {address.ip} {comment} -j {chain}",
    ]


def quoted(text: str) -> str:
    """Write a word as iptables-restore(8) reads it."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _restore(programs: Programs, lines: Sequence[str], table: str = "nat") -> None:
    _execute(programs, "-restore", "--noflush", stdin="\n".join([f"*{table}", *lines, "COMMIT", ""]))


def _listed(version: int) -> Iterator[tuple[Rule, str]]:
    for line in _execute(_LEGACY[version], "", "-t", "nat", "-S", "POSTROUTING").splitlines():
        with suppress(ValueError):  # another program's: a comment with a line's end, a mask with holes
            words = shlex.split(line)
            options = dict(zip(words[2::2], words[3::2], strict=False))
            chain = options.get("-j", "")
            if words[:1] == ["-A"] and chain.startswith("CNI-") and "-s" in options:
                source = ip_network(options["-s"], strict=False)
                yield Rule(source, options.get("--comment", ""), chain, version), line


def _execute(programs: Programs, suffix: str, *arguments: str, stdin: str = "") -> str:
    return execute([name + suffix for name in programs], "-w", "5", *arguments, stdin=stdin)
