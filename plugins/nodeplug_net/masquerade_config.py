"""The keys of masquerading, which bridge and ptp have alike, read into a value.

Owns: the reference's two keys, ours beside them, and which backends have a name.
Refuses: addresses, and the kernel (see `nftables.masquerade`).
"""

from typing import Final

from nodeplug import InvalidRequest
from nodeplug_net.interface_config import Conf
from nodeplug_net.nftables.masquerade import Masquerading

_BACKENDS: Final = frozenset({"", "iptables", "nftables"})
"""Either is masqueraded with nf_tables: for the container it comes to the same."""


class MasqueradeConf(Conf):
    """What is masqueraded, and how."""

    ip_masq: bool = False
    ip6_masq: bool | None = None
    ip_masq_same_subnet: bool = False
    ip_masq_drop_invalid: bool = False
    ip_masq_backend: str = ""

    @property
    def masquerading(self) -> Masquerading:
        """What is asked for; `ip6Masq` decides for IPv6 where it is given."""
        six = self.ip_masq if self.ip6_masq is None else self.ip6_masq
        versions = (4,) * self.ip_masq + (6,) * six
        return Masquerading(versions, same_subnet=self.ip_masq_same_subnet, strict=self.ip_masq_drop_invalid)

    def check_backend(self) -> None:
        """Check the key `ipMasqBackend`, which counts only where anything is masqueraded.

        Raises:
            InvalidRequest: there is no such backend.
        """
        if self.masquerading.versions and self.ip_masq_backend not in _BACKENDS:
            known = " and ".join(sorted(_BACKENDS - {""}))
            raise InvalidRequest(f'unknown ipmasq backend "{self.ip_masq_backend}"', details=f"known are {known}")
