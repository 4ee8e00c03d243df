"""What the reference's firewall accepts in ip_tables, by way of iptables-legacy(8), which is executed for it.

Owns: finding and removing the rules of addresses, only in a namespace whose table `filter` of ip_tables is in use.
Refuses: iptables-nft(8)'s, which are in the table that is ours, too, and writing any: see `firewall.obstacles`.
"""

import logging
from collections.abc import Collection, Iterator

from nodeplug_net.firewall.config import OWN, Address
from nodeplug_net.firewall.messages import TABLE
from nodeplug_net.reference.iptables import list_legacy, restore_legacy, versions_in_use
from nodeplug_net.reference.programs import NoProgram


def accept(address: Address) -> tuple[str, str]:
    """Return the rules of an address, as iptables -S prints them (getPrivChainRules)."""
    whole = f"{address}/{address.max_prefixlen}"
    return (
        f"-A {OWN} -d {whole} -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
        f"-A {OWN} -s {whole} -j ACCEPT",
    )


class LegacyFirewall:
    """The rules in ip_tables, of the namespace that the calling thread is in.

    Args:
        log: where it is said that rules cannot be seen; an attachment ends all the same.
    """

    def __init__(self, log: logging.LoggerAdapter[logging.Logger]) -> None:
        self._log = log

    def accepts(self, addresses: Collection[Address]) -> bool:
        """Whether all rules of addresses are there.

        Raises:
            TryAgain: iptables-legacy(8) fails, as while another program holds its lock.
        """
        present = {line for _, lines in self._listed() for line in lines}
        return bool(addresses) and all(line in present for address in addresses for line in accept(address))

    def remove(self, addresses: Collection[Address]) -> None:
        """Remove the rules of addresses; succeed for what is gone.

        Raises:
            TryAgain: iptables-legacy(8) fails, as while another program holds its lock.
        """
        theirs = {line for address in addresses for line in accept(address)}
        for version, lines in self._listed():
            doomed = [f"-D{line.removeprefix('-A')}" for line in lines if line in theirs]
            if doomed:
                restore_legacy(version, doomed, TABLE)

    def _listed(self) -> Iterator[tuple[int, list[str]]]:
        try:
            for version in versions_in_use(TABLE):
                yield version, list_legacy(version, TABLE)
        except NoProgram as error:
            self._log.warning("%s", error)
