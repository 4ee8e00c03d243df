"""A plugin in a process of its own, as an object with hooks: who calls it need not know.

Owns: loading it there, and the methods that take each call over.
Refuses: the life of the process (`nodeplug.worker.process`), and when it is needed (`lifecycle`).
"""

import logging
import threading
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Any, Final

import tomli_w

from nodeplug.config import PluginSection
from nodeplug.config.mistakes import Location, Mistake
from nodeplug.contract.errors import InvalidRequest, PluginError, text_of
from nodeplug.contract.hookspecs import ANSWERS, hookimpl
from nodeplug.contract.host import Host
from nodeplug.hosting.call import CURRENT
from nodeplug.hosting.hook_call import HookCall
from nodeplug.loading.classes import Misconfigured, Place, PluginRefused
from nodeplug.loading.dispatch import callers
from nodeplug.loading.examination import Examined, check_claims
from nodeplug.worker.answering import about
from nodeplug.worker.encoding import has_request, prepare, read_claims, read_error
from nodeplug.worker.process import Worker
from nodeplug.worker.wire import Broken, Message

LOG: Final = logging.getLogger(__name__)


class NeedsThread(Exception):
    """A plugin is to run in the daemon instead; the message says why."""


def load(
    worker: Worker, place: Place | str, section: PluginSection, host: Host, tell: Callable[[Location, str], str]
) -> Examined:
    """Load the plugin of a section in a process, which finds its class itself if it gets a name. May block.

    Raises:
        NeedsThread: its class asks for a thread, where the section leaves it the choice, or it has wrappers.
        PluginRefused: it cannot be loaded.
        TryAgain: the process ended.
    """
    head = {
        "place": asdict(place) if isinstance(place, Place) else None,
        "uses": place.uses if isinstance(place, Place) else place,
        "config": tomli_w.dumps(section.config),
        "host": about(host),
        "chooses": section.isolation is None and not section.python,
        "level": logging.getLogger("nodeplug").getEffectiveLevel(),
    }
    reply = worker.load(host, head)
    try:
        if reply.op != "answer":
            raise _refusal(reply, tell)
        if "thread" in reply.head:
            raise NeedsThread(reply.text("thread"))
        return _examined(worker, reply)
    except Broken as error:
        worker.kill(error.why)
        raise PluginRefused(f"plugin {worker.name!r} cannot be loaded: its process broke the wire: {error}") from None
    finally:
        reply.close()


def begin(worker: Worker, hook: str, request: object, call: HookCall, *, waited_for: bool) -> bool:
    """Begin a call from the event loop; return whether nobody need run it.

    A thread goes on with a call whose plugin asks something of its host, with a long request, and with a long answer.
    With `waited_for`, a thread waits for the call anyway, and hears the answer itself.
    """
    try:
        conversation = worker.begin(hook, request, call.call.id, call.name)
    except PluginError as error:
        call.work = partial(_raise, error)
        return False
    if conversation is None:
        return False
    if waited_for:
        call.work = conversation.answer
        return False

    def heard() -> None:
        call.loop.remove_reader(conversation)
        call.finish(conversation.answer, at_once=conversation.has_reply())

    if conversation.said:
        call.loop.add_reader(conversation, heard)
    else:
        call.finish(conversation.answer, at_once=False)
    return True


def _raise(error: PluginError) -> None:
    raise error


def _examined(worker: Worker, reply: Message) -> Examined:
    hooks = _hooks(reply)
    claims = read_claims(reply.head.get("claims"))
    try:
        check_claims("it", claims, hooks)
    except (PluginRefused, InvalidRequest) as error:
        raise Broken(f"its claims are not those of a plugin that was examined: {text_of(error)}") from None
    prepare([*hooks])
    plugin = type("PluginInProcess", (), {hook: hookimpl(_method(worker, hook)) for hook in hooks})()
    return Examined(plugin, reply.text("distribution"), claims, hooks, frozenset(), callers(plugin, hooks, ()))


def _hooks(reply: Message) -> frozenset[str]:
    names = reply.head.get("hooks")
    if not isinstance(names, list) or not set(ANSWERS).issuperset(names):
        raise Broken("its hooks are none of the contract")
    return frozenset(names)


def _method(worker: Worker, hook: str) -> Callable[..., Any]:
    """Make the method of a hook; what the plugin asks of its host meanwhile is done in the same thread of the call."""

    def call(request: object) -> Any:
        call = CURRENT.get()
        return worker.call(hook, request, call.id if call is not None else "", threading.current_thread().name)

    def with_request(_: object, request: object) -> Any:
        return call(request)

    def without(_: object) -> Any:
        return call(None)

    method = with_request if has_request(hook) else without
    method.__name__ = hook
    return method


def _refusal(reply: Message, tell: Callable[[Location, str], str]) -> Exception:
    mistakes = reply.head.get("mistakes")
    if isinstance(mistakes, list):
        return Misconfigured([_mistake(one) for one in mistakes], tell)
    error = read_error(reply)
    return PluginRefused(str(error)) if type(error) is PluginError else error


def _mistake(document: object) -> Mistake:
    match document:
        case [[*location], str(text)]:
            return Mistake(tuple(part if isinstance(part, int) else str(part) for part in location), text)
    raise Broken("its mistakes are none")
