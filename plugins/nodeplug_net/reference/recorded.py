"""What plugins recorded of running containers, as a command finds it: with a daemon and without one.

Owns: finding the records in /run, whose they are, and whether the container is still there.
Refuses: to change one; `Records.forget` removes its file, and the daemon that runs forgets it then. It only marks the
folders.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Generic

from nodeplug import Journal, Netns, read_bounded
from nodeplug_net.attachment import OURS, Attachment, network_label, of_label
from nodeplug_net.dataplane import names_of_links
from nodeplug_net.ipam.ranges import Address
from nodeplug_net.ipam.store import parse_address, parse_owner
from nodeplug_net.leftovers.evidence import Evidence
from nodeplug_net.nftables.sockets import Identity
from nodeplug_net.records import LEAVING, Record, Records, W


@dataclass(frozen=True, slots=True)
class Recorded(Generic[W]):
    """One attachment.

    Attributes:
        records: those of its plugin.
        attachment: whose it is; None if its label was shortened and no file of an address names it.
        ended: whether its container is gone: somebody who does not know nodeplug ended it.
    """

    records: Records[W]
    record: Record[W]
    attachment: Attachment | None
    ended: bool

    def forget(self) -> None:
        """Remove the record."""
        self.records.forget(self.record.namespace, self.record.label)


@dataclass(frozen=True)
class Node:
    """Where a command looks.

    Attributes:
        run: the daemon's folder in /run.
        addresses: where host-local keeps its files; names that labels shorten are found there.
        network: the name of one; all if it is empty.
    """

    run: Path
    addresses: Path
    network: str = ""

    @cached_property
    def identity(self) -> Identity:
        """Of the namespace that the calling thread is in."""
        current = Netns.current()
        try:
            return current.identity
        finally:
            current.close()

    @property
    def prefix(self) -> str:
        """What the labels of attachments begin with that are concerned."""
        return network_label(self.network) if self.network else OURS

    @cached_property
    def named(self) -> Mapping[str, Attachment]:
        """The attachments with an address, by label."""
        return {whose.label: whose for whose in _owners(self.addresses)}

    @cached_property
    def links(self) -> frozenset[str]:
        """The names of the interfaces here."""
        return names_of_links()

    @cached_property
    def held(self) -> Mapping[Address, str]:
        """The addresses that namespaces of this node have."""
        return Evidence.gather(()).addresses

    def whose(self, label: str) -> Attachment | None:
        """Return whose a label is."""
        return of_label(label) or self.named.get(label)

    @contextmanager
    def leaving(self, *folders: str) -> Iterator[None]:
        """Mark folders of records while their attachments may have the reference's rules and ours.

        The mark names the network, or none for all. It stays if this is cut off, until attachments of as many networks
        have been handed over.

        Args:
            folders: of the records, below those of sections.

        Raises:
            OSError: the mark cannot be made.
        """
        marks = [path / LEAVING for folder in folders for path in sorted(self.run.glob(f"plugins/*/{folder}"))]
        for mark in marks:
            former = mark.read_text() if mark.exists() else self.network
            mark.write_text(self.network if former == self.network else "")
        yield
        for mark in marks:
            if self.network in {"", mark.read_text()}:
                mark.unlink()

    def recorded(
        self,
        folder: str,
        decode: Callable[[Mapping[str, Any]], W],
        addresses: Callable[[W], Iterator[Address]],
    ) -> Iterator[Recorded[W]]:
        """List what was recorded of attachments of the namespace that the calling thread is in.

        Args:
            folder: of the records, below those of sections.
            decode: reads what an attachment asked for.
            addresses: returns those of its container.

        Raises:
            PluginError: some namespace cannot be seen, so that nobody knows whether a container is gone.
            OSError: the kernel refuses.
        """
        for path in sorted(self.run.glob(f"plugins/*/{folder}")):
            records = Records(Journal(path), decode)
            records.read()
            for record in sorted(records.of(self.identity), key=lambda one: one.label):
                if record.label.startswith(self.prefix):
                    whose = self.whose(record.label)
                    there = whose is not None and whose.host_veth in self.links
                    ended = not there and not any(one in self.held for one in addresses(record.wanted))
                    yield Recorded(records, record, whose, ended)


def _owners(addresses: Path) -> Iterator[Attachment]:
    for file in addresses.glob("*/*"):
        if parse_address(file.name) is not None:
            with suppress(OSError):  # released meanwhile, or a folder
                yield Attachment(file.parent.name, *parse_owner(read_bounded(file).decode(errors="replace")))
