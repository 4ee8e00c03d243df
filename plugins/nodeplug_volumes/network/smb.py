"""smb: a share of an SMB server (CIFS, Samba, Windows, Azure Files).

Owns: what is mounted, and the credentials, which mount.cifs(8) reads from a file in memory while it mounts.
Refuses: secrets in arguments, and mount options that are not listed.

Options: `server`, `share` (with a folder below it, if wanted), `mountOptions` ("vers=3.1.1,seal"). The Secret has
`username`, `password`, and may have `domain`.
"""

import re
from collections.abc import Mapping
from typing import ClassVar, Final

from pydantic import Field

from nodeplug import InvalidRequest, Secrets
from nodeplug.fields import FlexDriver
from nodeplug_volumes.network import words
from nodeplug_volumes.network.nfs import SERVER
from nodeplug_volumes.network.volumes import NetworkConfig, NetworkVolumes

_SHARE: Final = re.compile(r"[A-Za-z0-9_$][^\0-\x1f\x7f\\:*?\"<>|,]{0,511}")
_SECRETS: Final = ("username", "password", "domain")
_OF_KUBELET: Final = "csi.storage.k8s.io/"


class SmbConfig(NetworkConfig):
    """`[plugins.smb.config]`."""

    driver: FlexDriver = Field("nodeplug/smb", description="the FlexVolume driver's name, vendor/driver")


class Smb(NetworkVolumes):
    """The plugin."""

    Config = SmbConfig
    fs_type = "cifs"
    helper = "mount.cifs"
    package = "cifs-utils"
    options = ("server", "share")
    known_words: ClassVar[Mapping[str, str]] = words.SMB

    def source(self, options: Mapping[str, str]) -> str:
        """Return server and share, as UNC with slashes."""
        server, share = self.server(options), options.get("share", "").strip("/")
        if not SERVER.fullmatch(server):
            raise InvalidRequest(f"option server is {server[:80]!r}; it must be a name or an address, IPv6 in brackets")
        if not _SHARE.fullmatch(share) or ".." in share.split("/"):
            raise InvalidRequest(
                f"option share is {share[:80]!r}; it must be a share, or a folder of one, without '..'"
            )
        return f"//{server}/{share}"

    def credentials(self, given: Secrets) -> str:
        """Return the file for mount.cifs(8)."""
        own = {name: value for name, value in given.items() if not name.startswith(_OF_KUBELET)}
        if unknown := sorted(set(own) - set(_SECRETS)):
            raise InvalidRequest(
                f"the Secret of an smb volume has {', '.join(unknown)}; it takes: {', '.join(_SECRETS)}"
            )
        return "".join(f"{name}={_line(name, own[name])}\n" for name in _SECRETS if name in own)


def _line(name: str, value: bytes) -> str:
    try:
        text = value.decode()
    except UnicodeDecodeError:
        raise InvalidRequest(f"secret {name} is not UTF-8") from None
    if any(character in text for character in "\n\r\0"):
        raise InvalidRequest(f"secret {name} has a line break or a zero byte, which mount.cifs cannot read")
    return text
