"""What plugins of this daemon attached because another plugin asked them to, recorded as what runtimes ask for is.

Owns: when such a record is written and removed: by the delegated verbs, and with the last that is known of its
container. A plugin that starts is told of these attachments too (`survivors`), so that it looks after them as before.
Refuses: to end an attachment, since that is the duty of whoever delegated it, and to fail a call: see `attachments`.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from nodeplug.cni.attachments import Asked, Attachment, Attachments, Key
from nodeplug.cni.nsid import sight
from nodeplug.contract.values import CniAdd, CniAttachmentRequest, CniDel, CniGc, CniRequest, CniResult
from nodeplug.hosting.call import CURRENT
from nodeplug.process.lane import Lane, Unanswered

_CNI: Final = "cni:"


@dataclass(slots=True)
class Delegates:
    """The records, for the threads of calls.

    Attributes:
        attachments: of this daemon; those of delegates are beside them.
    """

    attachments: Attachments
    _at_once: bool = field(init=False)
    _lane: Lane = field(default_factory=lambda: Lane("the folder of attachment records"))

    def __post_init__(self) -> None:
        self._at_once = self.attachments.are_in_memory

    def note(self, request: CniRequest, result: CniResult | None) -> None:
        """Note what a delegated verb has done; the calling thread is in the request's host namespace."""
        if isinstance(request, CniAdd) and result is not None:
            attached = _attached(request, result)
            self._write(lambda: self.attachments.delegated.record(attached))
        elif isinstance(request, CniDel):
            key = _key(request)
            self._write(lambda: self.attachments.delegated.forget(key))
        elif isinstance(request, CniGc) and request.valid is not None:
            claim, network, valid = request.claim, request.network, request.valid
            self._write(lambda: self.attachments.delegated.forget_invalid(claim, network, valid))

    def _write(self, work: Callable[[], None]) -> None:
        if self._at_once:
            work()
            return
        with suppress(Unanswered):  # a record that is left goes with its container
            self._lane.wait(self._lane.begin(work))


def _key(request: CniAttachmentRequest) -> Key:
    return Key(request.claim, request.network, request.container_id, request.ifname)


def _attached(request: CniAdd, result: CniResult) -> Attachment:
    call = CURRENT.get()
    return Attachment(
        _key(request),
        request.netns.path,
        result,
        host=request.host_netns.identity,
        sighting=sight(request.netns),
        asked=Asked(request.version, request.config, request.args, request.path),
        by=call.claim.removeprefix(_CNI) if call is not None else "",
    )
