"""The error tree, and the one table that maps it onto the four wires.

Owns: the situations that a plugin (or the host) can name, and what each caller gets.
Refuses: I/O, logging, knowledge of any encoder. The codecs look rows up here and write the bytes themselves.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal

__all__ = [
    "AlreadyExists",
    "ContainerGone",
    "DeadlineExceeded",
    "DelegateFailed",
    "Exhausted",
    "InProgress",
    "InUse",
    "IncompatibleVersion",
    "InvalidEnvironment",
    "InvalidNetns",
    "InvalidRequest",
    "LimitedConnectivity",
    "NotFound",
    "NotReady",
    "NotSupported",
    "OutOfRange",
    "PluginError",
    "TryAgain",
    "Uncertain",
    "Undecodable",
]

FlexStatus = Literal["Failure", "Not supported"]
SHOWN: Final = 4096
"""Characters of a foreign text (of plugins, callers, programs) that an answer, the log or a status shows."""
HELD: Final = 1 << 19
"""Characters of an error's text that are held until it is shown: a mask must find a secret whole, in every form."""


class PluginError(Exception):
    """A plugin failed; the root of every error that crosses a wire.

    The message is read by the owner of a pod: say what was asked, what was found and what to do.
    Never put a secret into it. `details` is extra text for CNI's `details` and for logs. `request` is the host's: the
    id of the request under which the daemon's log has more.
    """

    # For a plugin's own subclass whose constructor does not call this one.
    message: str = "no reason was given"
    details: str = ""
    request: str = ""

    def __init__(self, message: str, *, details: str = "") -> None:
        super().__init__(message)
        # Plugins pass exceptions instead of a text, and three encoders rely on text.
        self.message = str(message)
        self.details = str(details)

    def __str__(self) -> str:
        return f"{self.message}; {self.details}" if self.details else self.message


class InvalidRequest(PluginError):
    """The request decodes but asks for something that cannot be right."""


class InvalidEnvironment(InvalidRequest):
    """A variable of the exec protocol is missing or malformed; the message names it (CNI SPEC, code 4)."""


class InvalidNetns(InvalidRequest):
    """CNI_NETNS is not a network namespace, or is the caller's own (skel's code 8)."""


class Undecodable(InvalidRequest):
    """The bytes are not what the protocol says they are."""


class AlreadyExists(InvalidRequest):
    """What the request names already exists with other properties; with the same ones it is not an error."""


class OutOfRange(InvalidRequest):
    """A number, such as the size of a volume, is beyond what is possible; the message has the limit."""


class IncompatibleVersion(PluginError):
    """The request speaks a version that is not served, or asks for a verb that its version lacks."""


class NotSupported(PluginError):
    """The plugin does not do this at all.

    Never for a transient condition: kubelet caches a FlexVolume "Not supported" until the driver is probed again.
    """


class Exhausted(PluginError):
    """No address, device or space is left; put the numbers into the message."""


class NotFound(PluginError):
    """What the request names does not exist."""


class InUse(PluginError):
    """What should be changed or removed is in use; the message says by whom."""


class ContainerGone(PluginError):
    """The container is unknown and never needs a DEL (CNI code 3). Never a default: it makes runtimes skip DEL."""


class TryAgain(PluginError):
    """A transient condition; the caller should retry."""


class Ending(TryAgain):
    """The daemon is stopping and did not start the call, or cannot finish it now; an entrypoint spools its DEL."""


class DeadlineExceeded(TryAgain):
    """The call outlasted its deadline."""


class InProgress(TryAgain):
    """An earlier request about the same object is still in progress."""


class UnknownPlace(TryAgain):
    """A list was to go on at a place that is none of its; its caller begins at the first page (CSI, `next_token`)."""


class Uncertain(TryAgain):
    """A failure whose undo failed too: something may be left, and the caller must undo or retry."""


class NotReady(PluginError):
    """The plugin cannot serve now (CNI STATUS code 50)."""


class LimitedConnectivity(NotReady):
    """Not ready, and existing containers may have limited connectivity (CNI STATUS code 51)."""


class DelegateFailed(PluginError):
    """A foreign CNI plugin failed; its own code is kept.

    Args:
        message: the delegate's `msg`.
        code: the delegate's `code`.
        details: the delegate's `details`.
    """

    def __init__(self, message: str, *, code: int, details: str = "") -> None:
        super().__init__(message, details=details)
        self.code = code


@dataclass(frozen=True, slots=True)
class Wire:
    """What one error means on each wire: a CNI code, the name of a `grpc.StatusCode`, a FlexVolume status, HTTP's.

    A scheduler extender says an error with status 200 where the answer of the verb has a field for it: kube-scheduler
    reads no body of another status.
    """

    cni: int
    grpc: str
    flex: FlexStatus = "Failure"
    http: int = 500


_OWN: Final = ("nodeplug.loading.classes", "nodeplug.process.lane")
"""Modules of the host with further classes of errors."""
WIRES: Final[Mapping[type[PluginError], Wire]] = {
    PluginError: Wire(999, "INTERNAL"),
    InvalidRequest: Wire(7, "INVALID_ARGUMENT", http=400),
    InvalidEnvironment: Wire(4, "INVALID_ARGUMENT", http=400),
    InvalidNetns: Wire(8, "INVALID_ARGUMENT", http=400),
    Undecodable: Wire(6, "INVALID_ARGUMENT", http=400),
    AlreadyExists: Wire(7, "ALREADY_EXISTS", http=409),
    OutOfRange: Wire(7, "OUT_OF_RANGE", http=400),
    IncompatibleVersion: Wire(1, "FAILED_PRECONDITION", http=400),
    NotSupported: Wire(4, "UNIMPLEMENTED", "Not supported", http=501),
    Exhausted: Wire(11, "RESOURCE_EXHAUSTED", http=429),
    NotFound: Wire(999, "NOT_FOUND", http=404),
    InUse: Wire(999, "FAILED_PRECONDITION", http=409),
    ContainerGone: Wire(3, "NOT_FOUND", http=404),
    TryAgain: Wire(11, "UNAVAILABLE", http=503),
    Ending: Wire(11, "UNAVAILABLE", http=503),
    DeadlineExceeded: Wire(11, "DEADLINE_EXCEEDED", http=504),
    InProgress: Wire(11, "ABORTED", http=409),
    UnknownPlace: Wire(11, "ABORTED", http=409),
    Uncertain: Wire(11, "UNAVAILABLE", http=503),
    NotReady: Wire(50, "UNAVAILABLE", http=503),
    LimitedConnectivity: Wire(51, "UNAVAILABLE", http=503),
    DelegateFailed: Wire(999, "INTERNAL", http=502),
}


def wire(error: PluginError) -> Wire:
    """Look up the row of an error: its own class, or the nearest ancestor (a plugin may subclass).

    Returns:
        The row; for `DelegateFailed` with the delegate's own CNI code.
    """
    row = next(WIRES[cls] for cls in type(error).__mro__ if cls in WIRES)
    if isinstance(error, DelegateFailed):
        return replace(row, cni=error.code)
    return row


def with_request(text: str, error: PluginError) -> str:
    """Return a text with the request id of an error at its end, unless it has that already."""
    return text if not error.request or error.request in text else f"{text} (request {error.request})"


def text_of(error: BaseException) -> str:
    """Return the bounded text of any exception, even if its `__str__` raises."""
    try:
        return clip(str(error), HELD)
    except BaseException:
        return "(its text cannot be read)"


def clip(text: str, limit: int = SHOWN) -> str:
    """Return a text of at most `limit` characters, and a mark that says how much was cut off."""
    # A subclass of str is code of whoever made it: what leaves here is plain text.
    plain = str.__str__(text)
    return plain if len(plain) <= limit else f"{plain[:limit]} ...[{len(plain) - limit} more characters]"


def bounded(error: PluginError) -> PluginError:
    """Return an error that plugin code raised in a form that is safe to keep and to show.

    A class of the plugin counts as its base class in the contract: its `__str__` is plugin code, and errors are written
    on the event loop. Call this in the thread of the plugin's call.
    """
    cls = next(cls for cls in type(error).__mro__ if cls in WIRES or cls.__module__ in _OWN)
    assert issubclass(cls, PluginError)  # noqa: S101 - for the type checker: PluginError is in every such order
    texts = [_read(error, name) for name in ("message", "details")]
    if type(error) is cls and texts == [error.message, error.details]:
        return error
    if issubclass(cls, DelegateFailed):
        code = getattr(error, "code", 0)
        return DelegateFailed(texts[0], code=code if type(code) is int else WIRES[DelegateFailed].cni, details=texts[1])
    plain = cls.__new__(cls)
    PluginError.__init__(plain, texts[0], details=texts[1])
    return plain


def _read(error: PluginError, name: str) -> str:
    try:
        text = getattr(error, name)
        return clip(text if isinstance(text, str) else str(text), HELD)
    except BaseException:
        return f"(its {name} cannot be read)"
