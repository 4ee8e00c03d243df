"""What is known of the attachments with a lease: one record each, until they end.

Owns: the records, in the plugin's folder below /run, where they end with the boot as the containers do: the lease, who
asked for it, and where its interface is found again; and the one lock under which they change.
Refuses: to be the truth about an address: that is the server. One record that an ADD left unfinished says what to
give back.
"""

import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from nodeplug import CniAdd, Host, InvalidNetns, Netns
from nodeplug_net.attachment import Attachment
from nodeplug_net.dhcp.config import DhcpConfig, client_id
from nodeplug_net.dhcp.exchange import Client
from nodeplug_net.dhcp.lease import Lease

ASKING: Final = "asking"
BOUND: Final = "bound"
EXPIRED: Final = "expired"


def now() -> float:
    """Return the time in which leases are counted, which goes on while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(frozen=True, slots=True)
class Holding:
    """One attachment with a lease.

    Attributes:
        attachment: whose it is.
        path: of its namespace, as the runtime gave it.
        netns: device and inode of that namespace.
        client: as the server knows it.
        via: the host's interface into the network, or empty.
        lease: what was granted, or only offered.
        phase: `ASKING` until there is an ACK, `EXPIRED` after the lease.
    """

    attachment: Attachment
    path: str
    netns: tuple[int, int]
    client: Client
    via: str
    lease: Lease
    phase: str = ASKING

    @classmethod
    def of(cls, request: CniAdd, config: DhcpConfig, mac: bytes, lease: Lease, *, broadcast: bool) -> "Holding":
        """Make the one of an ADD."""
        client = Client(mac, client_id(request), config.options, broadcast)
        path, identity = request.netns.path, request.netns.identity
        return cls(Attachment.of(request), path, identity, client, config.via, lease)

    @property
    def key(self) -> str:
        """The label of the attachment."""
        return self.attachment.label

    def open(self) -> Netns | None:
        """Open the namespace; None if it is gone, and maybe another one in its place."""
        try:
            found = Netns.open(self.path)
        except InvalidNetns:
            return None
        if found.identity == self.netns:
            return found
        found.close()
        return None

    def encode(self) -> Mapping[str, Any]:
        """Return it for a record."""
        one, client = self.attachment, self.client
        return {
            "attachment": [one.network, one.container_id, one.ifname],
            "path": self.path,
            "netns": list(self.netns),
            "mac": client.mac.hex(),
            "identifier": client.identifier.hex(),
            "options": {str(code): value.hex() for code, value in client.options.items()},
            "broadcast": client.broadcast,
            "via": self.via,
            "lease": self.lease.encode(),
        }

    @classmethod
    def decode(cls, data: Mapping[str, Any], phase: str) -> "Holding":
        """Read it from a record.

        Raises:
            ValueError: something is none of what it should be.
            KeyError: something is missing.
            TypeError: something has another form.
        """
        network, container_id, ifname = map(str, data["attachment"])
        device, inode = map(int, data["netns"])
        options = {int(code): bytes.fromhex(value) for code, value in dict(data["options"]).items()}
        mac, identifier = bytes.fromhex(data["mac"]), bytes.fromhex(data["identifier"])
        client = Client(mac, identifier, options, bool(data["broadcast"]))
        lease = Lease.decode(data["lease"])
        attachment = Attachment(network, container_id, ifname)
        return cls(attachment, str(data["path"]), (device, inode), client, str(data["via"]), lease, phase)


class Leases:
    """The records of one plugin. Any thread may call it.

    Attributes:
        lock: held while a record changes, and while a message is sent about one: what DEL has ended stays so.
        granted: when a server granted or prolonged a lease of a network last, since the daemon started.
    """

    def __init__(self, host: Host) -> None:
        self._journal = replace(host.journal, folder=host.run_dir / "leases")
        self._known: dict[str, Holding] = {}
        self.lock = threading.RLock()
        self.granted: dict[str, float] = {}

    def recover(self) -> None:
        """Read what was recorded in this boot, and remove all else."""
        for entry in self._journal.entries():
            try:
                holding = Holding.decode(entry.data, entry.phase)
            except (ValueError, KeyError, TypeError, AttributeError):
                holding = None
            if holding is None or holding.key != entry.key or self._journal.is_stale(entry):
                self._journal.remove(entry.key)
            else:
                self._known[holding.key] = holding

    def note(self, holding: Holding) -> None:
        """Record an attachment.

        Raises:
            PluginError: the folder cannot be written.
        """
        with self.lock:
            self._journal.write(holding.key, phase=holding.phase, data=holding.encode())
            self._know(holding)

    def _know(self, holding: Holding) -> None:
        self._known[holding.key] = holding
        if holding.phase == BOUND:
            self.granted[holding.attachment.network] = now()

    def change(self, former: Holding, changed: Holding) -> bool:
        """Replace what is known unless it has changed meanwhile; return whether it was so.

        Raises:
            PluginError: the folder cannot be written; what is known has changed all the same.
        """
        with self.lock:
            if self._known.get(former.key) != former:
                return False
            self._know(changed)
            self._journal.write(changed.key, phase=changed.phase, data=changed.encode())
            return True

    def take(self, key: str) -> Holding | None:
        """Return what is known of an attachment, and let nobody else work on it; its record stays until `forget`."""
        with self.lock:
            return self._known.pop(key, None)

    def forget(self, key: str) -> None:
        """Remove the record of an attachment; succeed when there is none."""
        with self.lock:
            if key not in self._known:
                self._journal.remove(key)

    def get(self, key: str) -> Holding | None:
        """Return what is known of an attachment."""
        return self._known.get(key)

    def all(self) -> list[Holding]:
        """Return what is known of every attachment."""
        with self.lock:
            return list(self._known.values())

    def of(self, network: str) -> Iterator[Holding]:
        """Return what is known of a network's attachments."""
        return (one for one in self.all() if one.attachment.network == network)
