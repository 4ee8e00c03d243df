"""The process of one plugin, as the daemon sees it.

Owns: its life from the first byte to the last, every call in it, and why it ended.
Refuses: to start another one (`nodeplug.hosting` does), to wait for its exit longer than a moment, and to trust it:
what it sends is checked, and one that breaks the wire is killed.

One thread per worker attends to its control socket. A call has its own channel and waits in the thread of the call.
"""

import logging
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from typing import Any, Final

from nodeplug.config.privileges import Privileges
from nodeplug.contract.errors import TryAgain
from nodeplug.contract.host import Host
from nodeplug.contract.inputs import WORKER_ASK
from nodeplug.worker.answering import answer, write_record
from nodeplug.worker.asks import Asks
from nodeplug.worker.conversation import Conversation, hook_call, is_long
from nodeplug.worker.encoding import write_error
from nodeplug.worker.incomplete import Incomplete
from nodeplug.worker.limits import Limits
from nodeplug.worker.log_allowance import LogAllowance
from nodeplug.worker.output import Output
from nodeplug.worker.shortage import SHORT
from nodeplug.worker.spawning import spawn
from nodeplug.worker.wire import (
    UNASKED,
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
_EXIT: Final = 2.0
"""Seconds that a process has to end after the daemon has closed its socket, and again after SIGKILL."""
LAST_CALLS: Final = 60.0
"""Seconds that calls in a process that is not needed any more have to end."""
_REST: Final = 0.002
"""Seconds between two messages on a control socket, at least: one who sends without end waits."""
_IDLE: Final = 16
"""Channels, each with a thread in the process, that wait for calls."""


class Worker:
    """One process. Any thread may use it; `ended` is called once, in a thread of its own.

    Args:
        name: of the plugin's section.
        ended: is told why, unless the daemon itself ended it.
        privileges: what it runs with; by default those of the daemon.
        limits: what it may have; one with more is killed.
        python: the path of its own Python; by default it has this one, and its packages.
    """

    def __init__(
        self,
        name: str,
        ended: Callable[[str], None],
        privileges: Privileges = Privileges(),  # noqa: B008 - frozen
        limits: Limits = Limits(),  # noqa: B008 - frozen
        python: str = "",
    ) -> None:
        self.name, self.privileges, self._limits, self._python = name, privileges, limits, python
        self.pid, self.started, self.why = 0, time.monotonic(), ""
        self._ended = ended
        self._wanted = 0.0
        self._host: Host | None = None
        self._gone = threading.Event()
        self._greeted = threading.Event()
        """Set once it is known whether the process speaks this wire: by its hello, or by its end."""
        self._changing = threading.Lock()
        self._channels: set[Channel] = set()
        self._idle: list[Channel] = []
        self._asks = Asks(name, self._ask)
        self._allowance, self._incomplete = LogAllowance(name), Incomplete()
        try:
            self._start()
        except BaseException:
            self._limits.end(self.pid)
            raise

    def _start(self) -> None:
        try:
            output = Output(self.name, self._allowance)
        except (OSError, RuntimeError) as error:
            raise self._unattended(error) from error
        try:
            mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            try:
                about = (self.privileges, self._limits.entrances, self._python)
                self.pid = spawn(theirs.fileno(), output.end, *about)
            except BaseException:
                mine.close()
                raise
            finally:
                theirs.close()
        finally:
            output.release()
        self._control, self._exit = Control(mine), -1
        try:
            self._exit = os.pidfd_open(self.pid)
            threading.Thread(target=self._attend, name=f"worker of {self.name}"[:100], daemon=True).start()
        except (OSError, RuntimeError) as error:  # a process that nobody attends to would stay
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            mine.close()
            if self._exit >= 0:
                os.close(self._exit)
            raise self._unattended(error) from error

    def _unattended(self, error: Exception) -> TryAgain:
        text = f"the daemon cannot attend to the process of plugin {self.name!r} ({error})"
        return TryAgain(f"{text}; raise TasksMax or LimitNOFILE of its unit")

    @property
    def alive(self) -> bool:
        """Whether calls can still reach the plugin."""
        return not self.why and not self._wanted

    # --- calls ----------------------------------------------------------------------------------------------------

    def load(self, host: Host, head: Mapping[str, Any]) -> Message:
        """Load the plugin; return the daemon's end of the talk about it: an answer, an error or what is left of one.

        Raises:
            TryAgain: the process ended.
        """
        self._host = host
        self._greeted.wait()  # a loading that takes too long is ended, so this ends
        if self.why:
            raise self.left("its loading")
        return self._begun(Message({"op": "load", **head}), "its loading").reply()

    def call(self, hook: str, request: object, request_id: str, name: str) -> Any:
        """Call a hook in the process.

        Args:
            hook: which the plugin implements.
            request: None for a hook without one.
            request_id: for the log.
            name: of the thread in the process, so that a hanging call can be found.

        Raises:
            TryAgain: the process ended.
            PluginError: the hook raised it.
            Stray: the hook raised something else.
        """
        return self._begun(hook_call(hook, request, request_id, name), hook).answer()

    def announce(self) -> None:
        """Wake the process for a call that is about to come, from any thread. Never waits."""
        with self._changing:
            if self._idle:
                self._idle[-1].announce()

    def begin(self, hook: str, request: object, request_id: str, name: str) -> Conversation | None:
        """Send a call without waiting, as the event loop must; None if a thread has to do it.

        Raises:
            InvalidRequest: the request cannot cross.
        """
        with self._changing:
            if not self._idle or is_long(request):
                return None
            channel = self._idle.pop()
            self._channels.add(channel)
        conversation = Conversation(self, channel, hook)
        try:
            conversation.say_at_once(hook_call(hook, request, request_id, name))
        except BaseException:
            self.leave(channel, usable=True)
            raise
        return conversation

    def _begun(self, message: Message, what: str) -> Conversation:
        try:
            conversation = Conversation(self, self._taken(), what)
        except Closed:
            raise self.left(what) from None
        conversation.say(message)
        return conversation

    def _taken(self) -> Channel:
        """Take a channel on which a thread of the process waits, or have one opened."""
        with self._changing:
            channel = self._idle.pop() if self._idle else None
            if channel is not None:
                self._channels.add(channel)
        if channel is None:
            channel = self._control.open({"op": "call"}, self._incomplete)
            with self._changing:
                self._channels.add(channel)
        if self.why:  # nobody would close it any more
            channel.shut()
        return channel

    def leave(self, channel: Channel, *, usable: bool) -> None:
        """Give back the channel of a call that has ended."""
        with self._changing:
            self._channels.discard(channel)
            last = self._wanted and not self._channels
            usable = usable and not self.why and len(self._idle) < _IDLE
            if usable:
                self._idle.append(channel)
        if not usable:
            channel.abandon()
        if last:
            self._control.shut()

    def answered(self, message: Message) -> Message:
        """Answer a request of the plugin in this thread."""
        try:
            if self._host is None:
                raise Broken(f"nobody asked for its {message.op!r}")
            return answer(self._host, message)
        except Broken:
            raise
        except Exception as error:
            return write_error(error)
        finally:
            message.discard()

    def left(self, what: str) -> TryAgain:
        """Return the error of a call whose channel is closed, when it is known why. May wait."""
        if not self._gone.wait(_EXIT):
            self.kill("it closed the channel of a call and lived on")
            self._gone.wait(_EXIT)
        return TryAgain(f"the process of plugin {self.name!r} ended during {what}: {self.why}; ask again")

    def given_up(self, why: str, what: str) -> TryAgain:
        """Kill the process, and return the error of the call that failed. May wait."""
        self.kill(why)
        return self.left(what)

    # --- its life -------------------------------------------------------------------------------------------------

    def kill(self, why: str) -> None:
        """End the process and every call in it now."""
        with self._changing:
            if self._gone.is_set():
                return
            self.why = self.why or why
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._exit, signal.SIGKILL)
        self._shut()

    def end(self) -> None:
        """End the process because it is not needed any more, once the calls in it have ended. Does not wait."""
        with self._changing:
            self._wanted = self._wanted or time.monotonic()
            idle = not self._channels
        if idle:
            self._control.shut()

    def _attend(self) -> None:
        """Listen to the control socket until it ends, then see to the end of the process."""
        look = select.poll()
        look.register(self._control.fileno(), select.POLLIN)
        look.register(self._exit, select.POLLIN)
        try:
            while True:
                ready = {descriptor for descriptor, _ in look.poll(self._limits.pause * 1000)}
                if excess := self._limits.excess(self.pid):
                    self.kill(excess)
                if self._wanted and time.monotonic() - self._wanted > LAST_CALLS:
                    self.kill(f"its calls did not end within {LAST_CALLS:g} s")
                if self._control.fileno() in ready:
                    began = time.monotonic()
                    self._listen()
                    time.sleep(max(_REST, time.monotonic() - began))
                elif self._exit in ready:
                    break  # what it had sent is read; a child that it left may hold the socket
        except Closed:
            pass
        except Broken as error:
            self.kill(error.why)
        except Exception as error:  # such as no thread for a request of the plugin's own: nobody would listen any more
            LOG.exception("the daemon cannot listen to the process of plugin %s", self.name)
            self.kill(f"the daemon cannot listen to it: {error}")
        self._bury()

    def _listen(self) -> None:
        """Hear one message."""
        try:
            message = self._control.receive()
        except NoDescriptorLeft as error:
            self._has_lost(error)
            return
        try:
            self._hear(message)
        finally:
            message.discard()

    def _hear(self, message: Message) -> None:
        if message.descriptors and message.op != "ask":
            raise Broken(UNASKED)
        match message.op:
            case "log":
                write_record(message.head, self.name, self._allowance)
            case "refresh" if self._host is not None:
                self._host.refresh(message.text("resource"))
            case "refresh_health" if self._host is not None:
                self._host.refresh_health()
            case "refresh_cluster" if self._host is not None:
                self._host.refresh_cluster()
            case "ask" if len(message.descriptors) == 1 and self._host is not None:
                self._asks.take(Channel.adopt(message.descriptors.pop(), WORKER_ASK, self._incomplete))
            case "hello":
                if message.head.get("wire") != VERSION:
                    self.kill(of_another_release(message.head.get("wire"), VERSION))
                self._greeted.set()
            case "refusal":
                self.kill(message.text("message"))
            case unknown:
                raise Broken(f"nobody asked for its {unknown!r}")

    def _ask(self, channel: Channel) -> None:
        """Answer a request of a thread of the plugin's own."""
        try:
            message = channel.receive(first=True)
            with self._asks.elsewhere() if message.op == "delegate" else nullcontext():
                answer = self.answered(message)
            try:
                channel.send(answer)
            finally:
                answer.close()
        except NoDescriptorLeft as error:
            self._has_lost(error)
        except Closed:
            return
        except Broken as error:
            self.kill(error.why)
        finally:
            channel.abandon()

    def _has_lost(self, error: NoDescriptorLeft) -> None:
        """Log a request of the plugin that was lost. The plugin gets TryAgain."""
        LOG.warning("a request of plugin %s is lost: %s; raise LimitNOFILE of the daemon's unit", self.name, error)

    def _bury(self) -> None:
        """See to the end of the process and of every call in it, also when the process does not die."""
        exited = select.poll()
        exited.register(self._exit, select.POLLIN)
        if not exited.poll(_EXIT * 1000):
            self.kill("" if self._wanted else "it closed its socket and lived on")
            exited.poll(_EXIT * 1000)
        # Its children in its own process group end with it. While it is not reaped, nobody else can have the number.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        status = os.waitid(os.P_PIDFD, self._exit, os.WEXITED | os.WNOHANG)
        with self._changing:
            self.why = self.why or ("" if self._wanted else self._told(status))
        if not self._wanted:  # first, so that a caller who asks again at once finds the gate held
            self._ended(self.why)
        with self._changing:
            self._gone.set()
        self._shut()
        if status is None:
            LOG.warning("process %d of plugin %s does not die: it hangs in the kernel", self.pid, self.name)
            os.waitid(os.P_PIDFD, self._exit, os.WEXITED)
        os.close(self._exit)
        self._control.abandon()
        self._limits.end(self.pid)

    def _told(self, status: "os.waitid_result | None") -> str:
        if status is None:
            return "it does not die"
        if status.si_code == os.CLD_EXITED:
            return f"it exited with status {status.si_status}"
        if status.si_status == signal.SIGKILL and self._limits.was_ended_for_memory():
            return SHORT
        known = {one.value: one.name for one in signal.Signals}
        return f"it was killed by {known.get(status.si_status, f'signal {status.si_status}')}"

    def _shut(self) -> None:
        """Wake every call in the process with Closed."""
        with self._changing:
            channels = list(self._channels)
            idle, self._idle = self._idle, []
        self._greeted.set()
        self._control.shut()
        for channel in idle:
            channel.abandon()
        for channel in channels:
            channel.shut()
        self._asks.close()
