"""What runs in a worker: the plugin, and a fresh thread for each call of it.

Owns: loading the plugin as the daemon would, its calls, and the end with the daemon's end of the control socket.
Refuses: deadlines, quarantine, and to go on without the daemon.
"""

import ctypes
import errno
import logging
import os
import resource
import signal
import sys
import threading
import time
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from nodeplug.contract.errors import PluginError, TryAgain
from nodeplug.contract.values import CniRequest
from nodeplug.loading.answers import check_answer
from nodeplug.loading.classes import Found, Misconfigured, Place, PluginRefused
from nodeplug.loading.examination import Examined, construct
from nodeplug.worker.encoding import has_request, prepare, read_request, write_answer, write_claims, write_error
from nodeplug.worker.host import REQUEST, Door, ToDaemon, make_host
from nodeplug.worker.wire import (
    VERSION,
    Broken,
    Channel,
    Closed,
    Control,
    Message,
    NoDescriptorLeft,
    of_another_release,
)

LOG: Final = logging.getLogger(__name__)
_PR_SET_PDEATHSIG: Final = 1
_AGAIN: Final = 0.5
_DENIED: Final = (os.strerror(errno.EPERM), os.strerror(errno.EACCES), "No module named")
"""What is said where the kernel refuses something: a folder that cannot be read has no modules."""
_STATUS: Final = Path("/proc/self/status")


class Inside:
    """The plugin of this process, and its calls."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self._door = Door(control)
        self._name = ""
        self._examined = Examined()

    def run(self) -> None:
        """Serve the daemon until it closes the control socket."""
        try:
            self._control.send({"op": "hello", "wire": VERSION})
            while True:
                message = self._control.receive()
                channel = Channel.adopt(message.descriptors.pop())
                try:
                    self._begin(channel)
                except RuntimeError as error:
                    self._refuse(channel, error)
        except NoDescriptorLeft as error:
            self._end(error)
        except Closed:
            return

    def _end(self, error: NoDescriptorLeft) -> None:
        """Ask the daemon to end this process, which can receive no more calls, and to start it again."""
        most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        text = f"it could not receive a message: {error}; its limit is {most} files (LimitNOFILE of the daemon's unit)"
        with suppress(Closed):
            self._control.send({"op": "refusal", "message": text})

    def _begin(self, channel: Channel) -> None:
        """Have a fresh thread wait for a call, so that no call waits for the start of one."""
        threading.Thread(target=self._serve, args=(channel,), name="waits for a call", daemon=True).start()

    def _refuse(self, channel: Channel, error: RuntimeError) -> None:
        whose = f"the process of plugin {self._name!r}" if self._name else "a plugin's process"
        text = f"{whose} cannot start another thread ({error}); raise its `tasks`, or TasksMax of the daemon's unit"
        with suppress(Closed):
            channel.receive(first=True).close()
            channel.send(write_error(TryAgain(text)))
        channel.close()

    def _serve(self, channel: Channel) -> None:
        """Serve one call in this thread, and leave the channel to the next one."""
        try:
            message = channel.receive(first=True)
        except NoDescriptorLeft as error:
            self._end(error)
            return channel.close()
        except Closed:
            return channel.close()
        self._door.here.channel = channel
        try:
            answer = self._load(message) if message.op == "load" else self._call(message)
        except BaseException as error:
            answer = _failed(error)
        finally:
            message.close()
        self._door.here.channel = None
        try:
            channel.send(answer)
        except Closed:  # the daemon has given this process up
            channel.close()
            return None
        while True:
            try:
                return self._begin(channel)
            except RuntimeError as error:  # no thread is left: the next call on it waits until there is one
                LOG.warning("a thread cannot be started: %s", error)
                time.sleep(_AGAIN)

    def _load(self, message: Message) -> Message:
        head = message.head
        self._name, threading.current_thread().name = head["host"]["plugin"], "load"
        log = logging.getLogger()
        log.handlers = [ToDaemon(self._control)]
        log.setLevel(max(head["level"], logging.WARNING) if head["level"] > logging.DEBUG else head["level"])
        for ours in ("nodeplug", "plugin"):
            logging.getLogger(ours).setLevel(head["level"])
        found = Place(**head["place"]).load() if head["place"] else _find(head["uses"])
        if head["chooses"] and found.asks_for_thread:
            return Message({"op": "answer", "thread": "its class asks for that"})
        examined = self._examined = construct(
            self._name,
            found,
            tomllib.loads(head["config"]),
            lambda: make_host(self._door, head["host"]),
            lambda _place, text: text,
        )
        if examined.wrappers:
            return Message({"op": "answer", "thread": "it wraps hooks of other plugins"})
        prepare([*examined.hooks])
        return Message(
            {
                "op": "answer",
                "distribution": examined.distribution,
                "claims": write_claims(examined.claims),
                "hooks": sorted(examined.hooks),
            }
        )

    def _call(self, message: Message) -> Message:
        hook = message.text("hook")
        arguments: dict[str, Any] = {"request": read_request(hook, message)} if has_request(hook) else {}
        REQUEST.set(message.text("id"))
        threading.current_thread().name = message.text("name")
        if isinstance(request := arguments.get("request"), CniRequest):
            request.host_netns.enter()  # the thread ends with its call
        answer = check_answer(self._name, hook, self._examined.callers[hook](**arguments))
        return Message({"op": "answer"}, write_answer(hook, answer))


def _find(uses: str) -> Found:
    """Find a class where only this Python can: among the distributions that are installed for it."""
    from nodeplug.loading.discovery import place_of  # noqa: PLC0415 - most need no metadata of distributions

    try:
        return place_of(uses).load(f"for {sys.executable}")
    except PluginRefused as error:
        raise PluginRefused(f"{error} (asked of {sys.executable})") from error


def _failed(error: BaseException) -> Message:
    """Write what was raised; where the kernel refused it, say as whom the plugin runs, if as less than the daemon."""
    message = write_error(error, _mistakes)
    text = "text" if message.op == "stray" else "message"
    said = message.head.get(text, "")
    if not any(words in said for words in _DENIED) or "\nNoNewPrivs:\t1" not in _STATUS.read_text(encoding="utf-8"):
        return message
    whom = f"its process runs as user {os.geteuid()}; `user` and `capabilities` of its section say what it may do"
    return Message({**message.head, text: f"{said} ({whom})"}, message.body)


def _mistakes(error: PluginError) -> Mapping[str, Any]:
    if not isinstance(error, Misconfigured):
        return {}
    return {"mistakes": [[list(one.location), one.text] for one in error.mistakes]}


def _end_with(daemon: int) -> None:
    """Have the kernel end this process with the daemon, even if it hangs."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != daemon:
        os._exit(0)  # noqa: TID251 - the daemon has gone


def main(arguments: list[str]) -> int:
    """Run a worker on the descriptor of its control socket, if the daemon speaks this wire."""
    os.chdir("/")
    control = Control.adopt(int(arguments[0]))
    _end_with(int(arguments[2]))
    if int(arguments[1]) != VERSION:
        control.send({"op": "refusal", "message": of_another_release(VERSION, arguments[1])})
        return 1
    try:
        Inside(control).run()
    except Broken as error:
        LOG.error("the daemon broke the wire: %s", error)
    # Threads of the plugin, exit handlers and destructors are not waited for: they may hang.
    os._exit(0)  # noqa: TID251 - this process is a plugin's, and the daemon needs it no more
