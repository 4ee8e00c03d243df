"""Values, answers and errors of the contract as they cross the wire.

Owns: the JSON of requests and answers, by the annotations of the hooks; errors by their class in the contract; what is
left of an exception that is none.
Refuses: pickles, whose reader runs what the writer wants: a worker may belong to another user.
"""

import json
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import is_dataclass
from types import NoneType
from typing import Any, Final, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError

from nodeplug.contract.errors import WIRES, DelegateFailed, InvalidRequest, PluginError, bounded, clip, text_of
from nodeplug.contract.hookspecs import ANSWERS, HOOKS
from nodeplug.contract.tracebacks import TRACE, traced
from nodeplug.contract.values import (
    Claim,
    CniClaim,
    CniRecord,
    CniRequest,
    CniResult,
    DeviceClaim,
    ExclusiveClaim,
    ExtenderClaim,
    Holding,
    VolumeClaim,
)
from nodeplug.worker.wire import Broken, Message

_CLAIMS: Final[Mapping[str, type[Claim]]] = {
    one.kind: one for one in (CniClaim, DeviceClaim, VolumeClaim, ExtenderClaim, ExclusiveClaim)
}
_ERRORS: Final[Mapping[str, type[PluginError]]] = {one.__name__: one for one in WIRES}
_REQUESTS: Final[Mapping[str, type[CniRequest]]] = {
    get_type_hints(HOOKS[hook])["request"].__name__: get_type_hints(HOOKS[hook])["request"]
    for hook in ("cni_add", "cni_del", "cni_check", "cni_gc", "cni_status")
}
_ADAPTERS: Final[dict[Any, "TypeAdapter[Any]"]] = {}
_OF_HOOK: Final[dict[tuple[str, str], "TypeAdapter[Any]"]] = {}
_WITH_REQUEST: Final = frozenset(name for name, hook in HOOKS.items() if "request" in hook.__annotations__)
_NOTHING: Final = b"null"
"""What most hooks return."""
_MISTAKES: Final = 3
"""Mistakes of a value that are told."""


def has_request(hook: str) -> bool:
    """Whether a hook takes a request."""
    return hook in _WITH_REQUEST


def _of_hook(hook: str, what: str) -> "TypeAdapter[Any]":
    return _of(get_type_hints(HOOKS[hook])[what]) if (hook, what) not in _OF_HOOK else _OF_HOOK[hook, what]


def _of(kind: Any) -> "TypeAdapter[Any]":
    if kind not in _ADAPTERS:
        # A dataclass brings its own, see `Request`. JSON has no infinity, and a metric may be infinite.
        config = None if is_dataclass(kind) else ConfigDict(ser_json_inf_nan="constants")
        _ADAPTERS[kind] = TypeAdapter(kind, config=config)
    return _ADAPTERS[kind]


def prepare(hooks: Sequence[str]) -> None:
    """Make what hooks need, so that their first calls do not pay for it."""
    for hook in hooks:
        hints = get_type_hints(HOOKS[hook])
        for what in hints:
            _OF_HOOK[hook, what] = _of(hints[what])


def write_request(hook: str, request: object, descriptors: list[int]) -> bytes:
    """Write the request of a hook; append the descriptors that have to go with it.

    Raises:
        InvalidRequest: it cannot cross, as a text that is not UTF-8 cannot.
    """
    return _write(_of_hook(hook, "request"), request, f"the request of {hook}", InvalidRequest, descriptors)


def read_request(hook: str, message: Message) -> Any:
    """Read the request of a hook, whose namespaces are the descriptors of the message; raise Broken if it is none."""
    return _read(_of_hook(hook, "request"), message)


def write_answer(hook: str, answer: object) -> bytes:
    """Write what a hook has returned, after its class was checked; raise PluginError for wrong types inside it."""
    if answer is None:
        return _NOTHING
    return _write(_of_hook(hook, "return"), answer, f"what {hook} returned", PluginError)


def read_answer(hook: str, message: Message) -> Any:
    """Read what a hook has returned; raise Broken if it is something else."""
    if message.body == _NOTHING and NoneType in ANSWERS[hook].types:
        return None
    return _read(_of_hook(hook, "return"), message)


def write_claims(claims: Sequence[Claim]) -> list[Any]:
    """Write claims for a head; a subclass of a plugin's own counts as its class in the contract."""
    return [[one.kind, _of(_CLAIMS[one.kind]).dump_python(one, mode="json")] for one in claims]


def read_claims(document: object) -> tuple[Claim, ...]:
    """Read claims from a head; raise Broken for anything else."""
    try:
        pairs = [(_CLAIMS[kind], fields) for kind, fields in document]  # type: ignore[attr-defined]
        return tuple(_of(cls).validate_json(json.dumps(fields), strict=True) for cls, fields in pairs)
    except (TypeError, ValueError, KeyError) as error:
        raise Broken(f"its claims are none: {text_of(error)}") from None


def write_holdings(holdings: Sequence[Holding]) -> bytes:
    """Write what `Host.holders` returns."""
    return _write(_of(Sequence[Holding]), holdings, "who holds what", PluginError)


def read_holdings(message: Message) -> Sequence[Holding]:
    """Read what `Host.holders` returns."""
    holdings: Sequence[Holding] = _read(_of(Sequence[Holding]), message)
    return holdings


def write_records(records: Sequence[CniRecord]) -> bytes:
    """Write what `Host.attachments` returns."""
    return _write(_of(Sequence[CniRecord]), records, "its attachments", PluginError)


def read_records(message: Message) -> Sequence[CniRecord]:
    """Read what `Host.attachments` returns."""
    records: Sequence[CniRecord] = _read(_of(Sequence[CniRecord]), message)
    return records


def write_delegated(request: CniRequest, descriptors: list[int]) -> tuple[str, bytes]:
    """Write a request of any verb that goes to a delegate; return the name of its class, too."""
    cls = next(cls for cls in type(request).__mro__ if cls.__name__ in _REQUESTS)
    return cls.__name__, _write(_of(cls), request, "the request of the delegate", InvalidRequest, descriptors)


def read_delegated(name: str, message: Message) -> CniRequest:
    """Read a request that goes to a delegate."""
    if name not in _REQUESTS:
        raise Broken(f"{name!r} is no request of CNI")
    request: CniRequest = _read(_of(_REQUESTS[name]), message)
    return request


def write_result(result: CniResult | None) -> bytes:
    """Write what a delegate has returned."""
    return _write(_of(CniResult | None), result, "the result of the delegate", PluginError)


def read_result(message: Message) -> CniResult | None:
    """Read what a delegate has returned."""
    result: CniResult | None = _read(_of(CniResult | None), message)
    return result


def _write(
    adapter: "TypeAdapter[Any]",
    value: object,
    what: str,
    failure: type[PluginError],
    descriptors: list[int] | None = None,
) -> bytes:
    try:
        return adapter.dump_json(value, context=descriptors, warnings="error")
    except (PydanticSerializationError, ValueError, TypeError, RecursionError) as error:
        raise failure(f"{what} cannot cross to another process: {clip(text_of(error))}") from None


def _read(adapter: "TypeAdapter[Any]", message: Message) -> Any:
    try:
        message.limits.check(message.body)
    except ValueError as error:
        raise Broken(f"a value of it is too large: {error}") from None
    try:
        return adapter.validate_json(message.body, strict=True, context=message.descriptors)
    except ValidationError as error:
        mistakes = error.errors(include_url=False, include_input=False, include_context=False)[:_MISTAKES]
        told = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in mistakes)
        raise Broken(f"a value of it is wrong: {clip(told)}") from None


# --- errors -----------------------------------------------------------------------------------------------------


class Stray(Exception):
    """An exception in another process that is no PluginError.

    Attributes:
        kind: the name of its class.
        frames: its traceback, without its text.
        whole: the same with its text, and with the exceptions that led to it.
    """

    def __init__(self, kind: str, text: str, frames: str, whole: str) -> None:
        super().__init__(text)
        self.kind, self.frames, self.whole = kind, frames, whole


_FRAMES: Final = 20


def write_error(error: BaseException, more: Callable[[PluginError], Mapping[str, Any]] = lambda _: {}) -> Message:
    """Write what a hook has raised; `more` adds to the head of an error of the contract."""
    if isinstance(error, PluginError):
        plain = bounded(error)
        cls = next(cls.__name__ for cls in type(plain).__mro__ if cls.__name__ in _ERRORS)
        code = {"code": plain.code} if isinstance(plain, DelegateFailed) else {}
        head = {"op": "error", "class": cls, "message": plain.message, "details": plain.details}
        return Message(head | code | dict(more(error)))
    frames = "".join(traceback.format_tb(error.__traceback__, limit=-_FRAMES))
    try:
        whole = traced(error)
    except BaseException:
        whole = f"{frames}(its text cannot be read)"
    return Message(
        {
            "op": "stray",
            "kind": clip(type(error).__name__, 100),
            "text": text_of(error),
            "frames": clip(frames, TRACE),
            "whole": whole,
        }
    )


def read_error(message: Message) -> Exception:
    """Return the exception that a message stands for; raise Broken if it stands for none."""
    if message.op == "stray":
        return Stray(message.text("kind"), message.text("text"), message.text("frames"), message.text("whole"))
    if message.op != "error":
        raise Broken(f"an answer is due, and it says {message.op!r}")
    cls = _ERRORS.get(message.text("class"), PluginError)
    texts, code = (message.text("message"), message.text("details")), message.head.get("code")
    if issubclass(cls, DelegateFailed):
        return DelegateFailed(texts[0], code=code if type(code) is int else WIRES[cls].cni, details=texts[1])
    plain = cls.__new__(cls)
    PluginError.__init__(plain, texts[0], details=texts[1])
    return plain
