"""Hardware addresses as networks write them.

Owns: the forms that Go's net.ParseMAC accepts for Ethernet, and the reference's sentence about all others.
Refuses: where an address is requested: that differs by plugin.
"""

import re
from typing import Final

from nodeplug import InvalidRequest

_MAC: Final = re.compile(r"[0-9A-Fa-f]{2}([:-][0-9A-Fa-f]{2}){5}|[0-9A-Fa-f]{4}(\.[0-9A-Fa-f]{4}){2}")


def ethernet_address(text: str) -> str:
    """Return a hardware address as `aa:bb:cc:dd:ee:ff`; empty if it is empty.

    Raises:
        InvalidRequest: it is none.
    """
    if text and not _MAC.fullmatch(text):
        words = f"invalid args {text} for MAC addr: address {text}: invalid MAC address"
        raise InvalidRequest(words, details="six bytes are wanted")
    return bytes.fromhex(re.sub(r"[:.-]", "", text)).hex(":") if text else ""
