"""Names computed from an attachment, so that every verb finds what ADD made without a record.

Owns: the host veth's name, and the label that links and masquerade entries carry.
Refuses: state. DEL without namespace, result and journal computes the same names again.
"""

import hashlib
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from nodeplug import CniAttachmentRequest

HOST_VETH: Final = re.compile(r"veth[0-9a-f]{8}")
"""NetworkManager leaves names that start with veth alone."""
OURS: Final = "nodeplug "
"""What every label begins with."""
LABEL_LIMIT: Final = 127
"""nft prints comments of up to 128 bytes, including NUL; an interface alias may have 255."""
_NETWORK_LIMIT: Final = 36
_CONTAINER_LIMIT: Final = 64
_IFNAME_LIMIT: Final = 15


@dataclass(frozen=True, slots=True)
class Attachment:
    """One interface of one container in one network, which is what CNI calls an attachment."""

    network: str
    container_id: str
    ifname: str

    @classmethod
    def of(cls, request: CniAttachmentRequest) -> "Attachment":
        """Return the attachment that a request is about."""
        return cls(request.network, request.container_id, request.ifname)

    @property
    def host_veth(self) -> str:
        """`veth` and eight hexadecimal digits of a digest of the three names."""
        return f"veth{_digest(f'{self.network}{chr(0)}{self.container_id}{chr(0)}{self.ifname}')[:8]}"

    @property
    def label(self) -> str:
        """`nodeplug <network> <container> <ifname>`, at most `LABEL_LIMIT` characters."""
        return f"{self.container_label}{self.ifname}"

    @property
    def container_label(self) -> str:
        """The prefix of the labels of all attachments of the container to the network."""
        return f"{network_label(self.network)}{_short(self.container_id, _CONTAINER_LIMIT)} "


def of_label(label: str) -> Attachment | None:
    """Return whose a label is; None if its names were shortened, or if it is no label."""
    words = label.split(" ")
    if len(words) != 4 or words[0] != "nodeplug" or "~" in label:
        return None
    return Attachment(*words[1:])


def network_label(network: str) -> str:
    """Return the prefix of the labels of all attachments of a network."""
    return f"{OURS}{_short(network, _NETWORK_LIMIT)} "


def _short(name: str, limit: int) -> str:
    """Shorten a name to a limit; no CNI name contains `~`, so a shortened name equals no other."""
    return name if len(name) <= limit else f"{name[: limit - 17]}~{_digest(name)[:16]}"


@lru_cache(maxsize=256)  # a call asks for its names again and again
def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()
