"""The protocol between the driver process and the daemon: one JSON object per line.

Owns: encoding and decoding of frames, both pure; any bytes decode to a frame or raise `GarbledFrame`.
Refuses: pipes, processes, NVML.

A line is `{"v": 4, "kind": K, ...}`, where K names one of the classes of `FRAMES` and the other keys are its fields.
Tuples are lists, and a mapping is a list of pairs. The daemon and its driver process are started from the same files,
so the version only guards against a process that outlived an upgrade.
"""

import json
import types
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, Final, Literal, Union, get_args, get_origin, get_type_hints

from nodeplug_gpu.cards import Card, CardPair, DriverState, GpuEvent, GpuProcess, Telemetry, Uuid

VERSION: Final = 4
LIMIT: Final = 8 << 20
"""The longest line that is read, in bytes; 64 cards with a thousand processes each need 6 MiB."""


class GarbledFrame(ValueError):
    """The bytes are not a frame; the message says what is wrong."""


@dataclass(frozen=True, slots=True)
class PollResult:
    """What one poll found; the fields are those of `nodeplug_gpu.cards.Snapshot`."""

    state: DriverState
    reason: str = ""
    driver_version: str = ""
    cards: tuple[Card, ...] = ()
    telemetry: Mapping[Uuid, Telemetry] = field(default_factory=lambda: types.MappingProxyType({}))
    processes: tuple[GpuProcess, ...] = ()
    taken: float = 0.0
    unreadable: tuple[str, ...] = ()
    cuda_version: int = 0
    mig_capable: bool = False
    pairs: tuple[CardPair, ...] = ()
    limits: Mapping[Uuid, str] = field(default_factory=lambda: types.MappingProxyType({}))


EVENT_SET_CALLS: Final = frozenset({"nvmlEventSetCreate", "nvmlEventSetFree", "nvmlEventSetWait_v2"})
"""They are about no card: while one hangs there are no events, and the cards can still be polled."""


@dataclass(frozen=True, slots=True)
class Pending:
    """An NVML call that has not returned yet.

    Attributes:
        call: the symbol, and the card that it asks about.
        seconds: how long it has lasted.
        slow_factor: how many times the usual limit it may last: attaching to a card takes seconds.
        card: NVML's index of the card that it asks about; None for the driver as a whole.
    """

    call: str
    seconds: float
    slow_factor: int = 1
    card: int | None = None


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Sent at regular intervals, whatever the NVML calls do."""

    pending: tuple[Pending, ...] = ()


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line for the daemon's log."""

    level: Literal["debug", "info", "warning", "error"]
    message: str


@dataclass(frozen=True, slots=True)
class ExitNotice:
    """The process exits by itself, for a new one to start.

    Attributes:
        reason: a sentence.
        planned: nothing is wrong with the cards; the library or the set of cards was replaced.
    """

    reason: str
    planned: bool = False


@dataclass(frozen=True, slots=True)
class LimitOrder:
    """What the daemon asks the process to do: a hard limit of a card's memory for a cgroup. No frame: a line of stdin.

    Attributes:
        number: of the order, which its answer repeats.
        card: the card's UUID.
        cgroup: its folder, as a full path.
        size: bytes that all processes in it may allocate together.
    """

    number: int
    card: Uuid
    cgroup: str
    size: int


@dataclass(frozen=True, slots=True)
class LimitAnswer:
    """The answer to a `LimitOrder`.

    Attributes:
        number: of the order.
        hard: the limit that the driver has now, in bytes; 0 where the order failed.
        error: why it failed, as a sentence.
    """

    number: int
    hard: int = 0
    error: str = ""


Frame = PollResult | GpuEvent | Heartbeat | LogLine | ExitNotice | LimitAnswer
FRAMES: Final[Mapping[str, type[Frame]]] = {
    "poll": PollResult,
    "event": GpuEvent,
    "heartbeat": Heartbeat,
    "log": LogLine,
    "exit": ExitNotice,
    "limit": LimitAnswer,
}
_KINDS: Final = {frame: kind for kind, frame in FRAMES.items()}


def encode(frame: Frame) -> bytes:
    """Write a frame with its newline.

    Raises:
        ValueError: a time is not finite.
    """
    body = {"v": VERSION, "kind": _KINDS[type(frame)], "frame": _plain(frame)}
    return json.dumps(body, separators=(",", ":"), allow_nan=False).encode() + b"\n"


def decode(line: bytes) -> Frame:
    """Read one line.

    Raises:
        GarbledFrame: the line is not a frame of this version.
    """
    if len(line) > LIMIT:
        raise GarbledFrame(f"a frame has at most {LIMIT} bytes, this one has {len(line)}")
    try:
        body = json.loads(line, parse_constant=_refuse)
    except (ValueError, RecursionError):
        raise GarbledFrame(f"not a frame of the driver process: {line[:80]!r}") from None
    if not isinstance(body, dict) or body.get("v") != VERSION:
        raise GarbledFrame(f"not a frame of version {VERSION}: {line[:80]!r}")
    kind = body.get("kind")
    if not isinstance(kind, str) or kind not in FRAMES:
        raise GarbledFrame(f"a frame is one of {', '.join(FRAMES)}; found {str(kind)[:40]!r}")
    frame: Frame = _record(FRAMES[kind], body.get("frame"), kind)
    return frame


def _refuse(constant: str) -> None:
    raise ValueError(constant)


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return {one.name: _plain(getattr(value, one.name)) for one in fields(value)}
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    if isinstance(value, Mapping):
        return [[_plain(key), _plain(one)] for key, one in value.items()]
    return value


_HINTS: Final[dict[type, dict[str, Any]]] = {}


def _record(cls: Any, body: object, where: str) -> Any:
    hints = _HINTS.setdefault(cls, get_type_hints(cls))
    if not isinstance(body, dict) or body.keys() != hints.keys():
        raise GarbledFrame(f"{where} has the fields {', '.join(hints)}; found {str(body)[:80]}")
    return cls(**{name: _value(hint, body[name], f"{where}.{name}") for name, hint in hints.items()})


def _value(hint: Any, body: object, where: str) -> Any:
    hint = getattr(hint, "__supertype__", hint)
    origin = get_origin(hint)
    if origin is not None:
        return _compound(origin, get_args(hint), body, where)
    if is_dataclass(hint):
        return _record(hint, body, where)
    # An int is not a float here, and a bool is not an int: each must be written as its own type.
    if type(body) is not hint:
        raise GarbledFrame(f"{where} is of type {hint.__name__}; found {str(body)[:80]!r}")

    return body


def _compound(origin: Any, inner: tuple[Any, ...], body: object, where: str) -> Any:
    if origin is Literal:
        if body not in inner:
            raise GarbledFrame(f"{where} is one of {', '.join(map(str, inner))}; found {str(body)[:40]!r}")
        return body
    if origin in {types.UnionType, Union}:
        return None if body is None else _value(inner[0], body, where)
    if not isinstance(body, list):
        raise GarbledFrame(f"{where} is a list; found {str(body)[:80]!r}")
    if origin is tuple:
        hints = [inner[0]] * len(body) if inner[-1] is Ellipsis else inner
        if len(hints) != len(body):
            raise GarbledFrame(f"{where} has {len(hints)} parts; found {len(body)}")
        return tuple(_value(hint, one, where) for hint, one in zip(hints, body, strict=True))
    if not all(isinstance(pair, list) and len(pair) == 2 for pair in body):
        raise GarbledFrame(f"{where} is a list of pairs; found {str(body)[:80]!r}")
    return types.MappingProxyType({_value(inner[0], k, where): _value(inner[1], v, where) for k, v in body})
