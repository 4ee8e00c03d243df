"""Who has which interface of the host: one record per attachment, written before the interface is moved.

Owns: the records, which end with the boot, when every interface is the host's again.
Refuses: to be the truth about the kernel. A record says under which name an interface is to come back, also
where the alias that says so was changed, or the container's namespace is gone.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from nodeplug import CniAttachmentRequest, CniRequest, Host
from nodeplug_net.attachment import Attachment, network_label

_PHASE = "device"


@dataclass(frozen=True, slots=True)
class Record:
    """One attachment.

    Attributes:
        label: of the attachment.
        device: the interface's name on the host.
        ifname: its name in the container.
    """

    label: str
    device: str
    ifname: str


class Records:
    """The records of the plugin. Any thread may call it."""

    def __init__(self, host: Host) -> None:
        self._journal = replace(host.journal, folder=host.run_dir / "devices")

    def recover(self) -> None:
        """Remove the records of an earlier boot."""
        for entry in self._journal.entries():
            if self._journal.is_stale(entry):
                self._journal.remove(entry.key)

    def note(self, request: CniAttachmentRequest, device: str) -> None:
        """Record that an attachment gets an interface; nobody else has it.

        Raises:
            PluginError: the folder cannot be written.
        """
        label = Attachment.of(request).label
        for other in self.of(request):
            if other.device == device and other.label != label:
                self.forget(request, other.label)
        self._journal.write(_key(request, label), phase=_PHASE, data={"device": device, "ifname": request.ifname})

    def get(self, request: CniAttachmentRequest) -> Record | None:
        """Return the record of an attachment."""
        label = Attachment.of(request).label
        return next((one for one in self.of(request) if one.label == label), None)

    def of(self, request: CniRequest, network: str = "") -> Iterator[Record]:
        """List the records of the request's host, or those of one of its networks."""
        prefix, suffix = network_label(network) if network else "", _suffix(request)
        for entry in list(self._journal.entries()):
            if not entry.key.endswith(suffix) or not entry.key.startswith(prefix) or self._journal.is_stale(entry):
                continue
            device, ifname = entry.data.get("device"), entry.data.get("ifname")
            if isinstance(device, str) and isinstance(ifname, str):
                yield Record(entry.key.removesuffix(suffix), device, ifname)

    def forget(self, request: CniRequest, label: str) -> None:
        """Remove the record of an attachment; succeed when there is none."""
        self._journal.remove(_key(request, label))


def _suffix(request: CniRequest) -> str:
    device, inode = request.host_netns.identity
    return f"@{device}:{inode}"


def _key(request: CniRequest, label: str) -> str:
    return f"{label}{_suffix(request)}"
