"""What the daemon reads from outside, and how much of it: bytes, values and depth of JSON, seconds.

An empty list takes three bytes on the wire and seventy in memory, and an object with one key two hundred: a limit of
bytes alone does not bound memory. Values are counted before anything is parsed, by the marks that begin or separate
them; marks inside of texts count, too, so that the count is never too low.
"""

import json
from dataclasses import dataclass
from typing import Any, Final, NoReturn

__all__ = ["Input"]

DEPTH: Final = 1000
"""Python's parser refuses deeper JSON: its recursion limit (`sys.getrecursionlimit`), less the caller's own depth."""
_DENSE: Final = 16
"""Bytes that a value has at least, on average, in a long document that its sender means: a node has 20 to 40."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """One kind of bytes from outside.

    Attributes:
        what: it is, for the page.
        sender: who writes it, for the page.
        size: bytes at most.
        values: of JSON at most; 0 where it is no JSON.
        dense: a document with more bytes may have one more value for each 16 of them.
        seconds: in which it has to arrive whole; 0 where `time` says it.
        time: in words, for the page.
    """

    what: str
    sender: str
    size: int
    values: int = 0
    dense: bool = False
    seconds: float = 0.0
    time: str = "the deadline of its call"

    def loads(self, data: bytes | str) -> Any:
        """Parse JSON.

        Raises:
            ValueError: it is too long, has too many values, is nested too deeply, or is no JSON.
        """
        self._check_size(data)
        return self.parse(data)

    def parse(self, data: bytes | str) -> Any:
        """Parse JSON whose size the caller has checked; raise ValueError as `loads` does."""
        self.check_values(data)
        try:
            return json.loads(data, parse_constant=_refuse)
        except RecursionError:
            raise ValueError("it is nested too deeply") from None

    def check(self, data: bytes | str) -> None:
        """Raise ValueError for bytes that are too many, or have too many values."""
        self._check_size(data)
        self.check_values(data)

    def _check_size(self, data: bytes | str) -> None:
        if len(data) > self.size:
            raise ValueError(f"it has {len(data)} bytes, and the limit is {self.size}")

    def check_values(self, data: bytes | str) -> None:
        """Raise ValueError if there are too many values. The caller has checked the size."""
        if self.values and (found := values_in(data)) > (most := self.most_values(len(data))):
            raise ValueError(f"it has about {found} values, and the limit is {most}")

    def most_values(self, size: int) -> int:
        """Return how many values a document of a size may have."""
        return max(self.values, size // _DENSE) if self.dense else self.values


def values_in(data: bytes | str) -> int:
    """Return how many values JSON has at most, in a time that is short beside that of reading it."""
    if isinstance(data, str):
        return 1 + data.count(",") + data.count("[") + data.count("{")
    return 1 + data.count(b",") + data.count(b"[") + data.count(b"{")


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


EXEC_FRAME: Final = Input(
    what="a call of an entrypoint: arguments, environment and stdin; CNI configuration",
    sender="the container runtime, kubelet (root)",
    size=4 << 20,
    values=200_000,
    seconds=10,
)
DELEGATE_OUTPUT: Final = Input(
    what="stdout of a CNI plugin on CNI_PATH", sender="a foreign program", size=1 << 20, values=50_000
)
DELEGATE_ERRORS: Final = Input(what="stderr of a CNI plugin on CNI_PATH", sender="a foreign program", size=64 << 10)
EXTENDER_BODY: Final = Input(
    what="a request to a scheduler extender, up to `max_body`",
    sender="kube-scheduler, any local user",
    size=4 << 20,
    values=20_000,
    dense=True,
    seconds=60,
)
HTTP_BODY: Final = Input(what="a request for health or metrics", sender="any local user", size=64 << 10, seconds=10)
API_ANSWER: Final = Input(
    what="an answer of the API server", sender="the API server", size=64 << 20, values=2_000_000, seconds=30
)
API_CHANGE: Final = Input(
    what="one change in a watch",
    sender="the API server",
    size=8 << 20,
    values=200_000,
    time="eleven minutes of silence end the watch",
)
WORKER_MESSAGE: Final = Input(
    what="a message of a plugin's process", sender="plugin authors", size=64 << 20, values=1_000_000
)
WORKER_ASK: Final = Input(
    what="what a thread of a plugin's own asks of the daemon; eight at once of one process",
    sender="plugin authors",
    size=24 << 20,
    values=200_000,
    seconds=60,
)
VOLUME_OPTIONS: Final = Input(
    what="options of a volume in JSON, its Secret, tokens",
    sender="kubelet; pod and volume authors",
    size=4 << 20,
    values=50_000,
)
NODE_FILE: Final = Input(
    what="a file that a configuration names, or a record of the daemon's own",
    sender="root",
    size=16 << 20,
    values=2_000_000,
    time="as long as the disk takes; pipes and devices are refused",
)
INPUTS: Final = (
    EXEC_FRAME,
    DELEGATE_OUTPUT,
    DELEGATE_ERRORS,
    EXTENDER_BODY,
    HTTP_BODY,
    API_ANSWER,
    API_CHANGE,
    WORKER_MESSAGE,
    WORKER_ASK,
    VOLUME_OPTIONS,
    NODE_FILE,
)
"""The inputs of the daemon. Plugins define their own."""
