"""Encodes the common messages ahead of the first call.

Owns: the list of what an ordinary ADD and DEL send.
Refuses: to be required: a message that is missing here is encoded when it is first sent.
"""

from ipaddress import IPv4Network

from nodeplug_net.netlink import messages
from nodeplug_net.nftables import masquerade_messages


def warm_up() -> None:
    """Import the encoder, and encode; about 0.05 s, once per process."""
    messages.get_link_by_name()
    messages.get_link_by_index()
    messages.mark_port(hairpin=False, isolated=False)
    messages.delete_link()
    messages.dump_addresses()
    messages.set_flags(messages.IFF_UP, messages.IFF_UP)
    for mtu in (False, True):
        for mac in (False, True):
            messages.create_veth(mtu=mtu, mac=mac)
    masquerade_messages.dump_sets()
    masquerade_messages.dump_rules()
    masquerade_messages.rebuild([IPv4Network("192.0.2.0/24")])
