"""Attachments whose namespace still exists where ADD found it: what a plugin is told of its own after a restart.

Owns: the comparison of each record with the namespace that its path shows now.
Refuses: guesses. A path may show another namespace by now, which has nothing to do with the attachment.
"""

from collections.abc import Collection, Iterator

from nodeplug.cni.attachments import Asked, Attachment, Attachments
from nodeplug.cni.nsid import Sighting, shows
from nodeplug.contract.errors import InvalidNetns
from nodeplug.contract.netns import Netns
from nodeplug.contract.values import CniRecord


def survivors(attachments: Attachments, claims: Collection[str]) -> Iterator[tuple[float, CniRecord]]:
    """Yield the attachments of some claims that have not ended, oldest first, and since when; may block.

    Args:
        attachments: the records.
        claims: names under which plugins are executed.
    """
    for one in attachments.list():
        if one.key.claim in claims and one.sighting is not None and one.asked is not None:
            namespace = _shown(one.netns, one.sighting)
            if namespace is not None:
                yield one.time, _record(one, one.asked, namespace)


def _shown(path: str, sighting: Sighting) -> tuple[int, int] | None:
    """Return device and inode of the namespace at a path, if it is the one that was seen."""
    try:
        netns = Netns.open(path)
    except InvalidNetns:
        return None
    try:
        return netns.identity if shows(sighting, netns) else None
    finally:
        netns.close()


def _record(one: Attachment, asked: Asked, namespace: tuple[int, int]) -> CniRecord:
    return CniRecord(
        claim=one.key.claim,
        network=one.key.network,
        version=asked.version,
        config=asked.config,
        path=asked.path,
        container_id=one.key.container_id,
        ifname=one.key.ifname,
        args=asked.args,
        netns=one.netns,
        namespace=namespace,
        host=one.host,
        result=one.result,
    )
