"""The configuration of the firewall: the keys of the reference's `firewall`, read into values.

Owns: types, and the reference's sentences (meta/firewall); which addresses and which bridge rules are about.
Refuses: firewalld: it is told over D-Bus what to let pass, which nodeplug does not speak. Keys match without regard to
case, as Go matches them.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any, Final

from nodeplug import CniAttachmentRequest, CniRequest, CniResult, InvalidRequest
from nodeplug_net.interface_config import Conf

ADMIN: Final = "CNI-ADMIN"
FORWARD: Final = "FORWARD"
OWN: Final = "CNI-FORWARD"
STAGE_1: Final = "CNI-ISOLATION-STAGE-1"
STAGE_2: Final = "CNI-ISOLATION-STAGE-2"
FIREWALLD: Final = "firewalld"
_SAME_BRIDGE, _ISOLATED = "same-bridge", "isolated"
_POLICIES: Final = frozenset({"", "open", _SAME_BRIDGE, _ISOLATED})
_CHAIN: Final = re.compile(r"[^\s!-]\S{0,27}")
"""What iptables(8) takes for the name of a chain (XT_EXTENSION_MAXNAMELEN)."""
_TAKEN: Final = frozenset({"INPUT", FORWARD, "OUTPUT", OWN, STAGE_1, STAGE_2})
_TARGETS: Final = frozenset({"ACCEPT", "DROP", "RETURN", "QUEUE"})
_IFNAME_LIMIT: Final = 15

Address = IPv4Address | IPv6Address


class FirewallConf(Conf):
    """The keys of the reference plugin, under its names."""

    backend: str = ""
    iptables_admin_chain_name: str = ""
    firewalld_zone: str = ""
    ingress_policy: str = ""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What an attachment asks for, as it can be recorded.

    Attributes:
        addresses: of the container; their packets are accepted.
        admin: the administrator's chain.
        bridge: that other bridges are kept from; empty for the policy `open`.
        isolated: whether the containers of the bridge are kept from each other, too.
    """

    addresses: tuple[Address, ...]
    admin: str = ADMIN
    bridge: str = ""
    isolated: bool = False

    @property
    def versions(self) -> list[int]:
        """Of IP."""
        return sorted({one.version for one in self.addresses})

    @property
    def policy(self) -> str:
        """The ingress policy by its name."""
        return "open" if not self.bridge else _ISOLATED if self.isolated else _SAME_BRIDGE

    def encode(self) -> dict[str, Any]:
        """Encode it for a record."""
        return {
            "addresses": [str(one) for one in self.addresses],
            "admin": self.admin,
            "bridge": self.bridge,
            "isolated": self.isolated,
        }

    @classmethod
    def decode(cls, data: Mapping[str, Any]) -> "Wanted":
        """Decode a record.

        Raises:
            ValueError: it is none (also KeyError and TypeError are).
        """
        addresses = tuple(map(ip_address, data["addresses"]))
        return cls(addresses, str(data["admin"]), str(data["bridge"]), bool(data["isolated"]))


def check_firewall(request: CniRequest) -> FirewallConf:
    """Read the configuration of a request.

    Raises:
        InvalidRequest: a key is wrong; the sentence is the reference's where it has one.
    """
    try:
        conf = request.parse(FirewallConf)
    except InvalidRequest as error:
        raise InvalidRequest(f"failed to load netconf: {error}") from error
    if conf.backend == FIREWALLD:
        raise InvalidRequest(
            'backend "firewalld" is not served: rules are written to table filter alone; set "backend": "iptables", or '
            "go on with the reference's firewall"
        )
    admin = conf.iptables_admin_chain_name
    if admin and (not _CHAIN.fullmatch(admin) or admin in _TAKEN | _TARGETS):
        raise InvalidRequest(
            f"key 'iptablesAdminChainName' is the name of a chain of your own, at most 28 characters, found {admin!r}"
        )
    if conf.ingress_policy not in _POLICIES:
        raise InvalidRequest(f'unknown ingress policy: "{conf.ingress_policy}"')
    return conf


def parse_firewall(request: CniAttachmentRequest) -> Wanted:
    """Read what a request asks for.

    Raises:
        InvalidRequest: a key is wrong, or the previous result is missing; the sentence is the reference's.
    """
    conf = check_firewall(request)
    result = request.prev_result
    if result is None:
        raise InvalidRequest("missing prevResult from earlier plugin")
    policy = conf.ingress_policy
    bridge = _bridge(result, policy) if policy in {_SAME_BRIDGE, _ISOLATED} else ""
    addresses = tuple(dict.fromkeys(one.address.ip for one in result.ips))
    return Wanted(addresses, conf.iptables_admin_chain_name or ADMIN, bridge, isolated=policy == _ISOLATED)


def _bridge(result: CniResult, policy: str) -> str:
    """Return the bridge: the first interface of the result, as the reference takes it."""
    # What is in a container has its name there: the rules would part the host's own interface of that name from others.
    if not result.interfaces or result.interfaces[0].sandbox:
        raise InvalidRequest(
            f'interface needs to be set for ingress policy "{policy}", make sure to chain "firewall" plugin with '
            '"bridge"'
        )
    name = result.interfaces[0].name
    if not name:
        raise InvalidRequest("got empty bridge name")
    if len(name.encode()) > _IFNAME_LIMIT:
        raise InvalidRequest(f"the first interface of prevResult is a bridge of this host, found {name!r}")
    return name
