"""One `[plugins.<name>]` section, as the rest of the daemon sees it.

Owns: the instance that stands for the section, the gate before it, the calls inside it, how long each may take, and the
state of the section in words. Only this module decides whether a plugin may be called now.
Refuses: to change by itself: `lifecycle` leads instances through their lives, `runner` runs the calls, and `registry`
knows which claims lead here.

The gate follows the state: open while the plugin runs; held during an exchange: calls wait, each within its deadline;
closed otherwise: calls are refused with the reason. Only claims pass it: an instance's life-cycle hooks do not.
"""

import asyncio
import itertools
import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from nodeplug.config import PluginSection
from nodeplug.config.privileges import Privileges
from nodeplug.contract.errors import Ending, TryAgain
from nodeplug.contract.values import Claim
from nodeplug.hosting import overdue
from nodeplug.hosting.hook_call import HookCall
from nodeplug.hosting.overdue import CallSubject
from nodeplug.loading.dispatch import callers
from nodeplug.loading.examination import Examined
from nodeplug.worker.process import Worker

LOG: Final = logging.getLogger(__name__)
State = Literal["starting", "running", "failed", "refused", "ended"]
FIRST_RETRY: Final = 1.0
"""Seconds between the first failed start and the next."""
LAST_RETRY: Final = 60.0
"""Seconds between two starts at most."""
LONG_LIFE: Final = 120.0
"""Seconds after which the end of a process counts as the first one."""
DEFAULT_DEADLINES: Final[Mapping[str, float]] = {
    "claims": 60,  # loading as a whole: the import, the constructor and claims()
    "prepare": 60,
    "start": 60,
    "stop": 10,
    "health": 5,
    "inspect": 5,
    "metrics": 5,
    "cluster_report": 5,
    "device_list": 30,
    "device_allocate": 10,
    "device_prefer": 5,
    "device_prestart": 25,
    "device_released": 30,
    "cni_add": 60,
    "cni_del": 60,
    "cni_check": 30,
    "cni_gc": 60,
    "cni_status": 5,
    "volume_wait_attached": 600,
    # kube-scheduler waits for 5 s (`httpTimeout`), and then nobody reads the reason
    **dict.fromkeys(("extender_filter", "extender_prioritize", "extender_preempt", "extender_bind"), 4),
}
"""Seconds per hook; every other hook has 120. A plugin's section may override them."""
_OTHER_DEADLINE: Final = 120.0


@dataclass(slots=True, eq=False)
class Instance:
    """One construction of a section's plugin, from its loading to its stop.

    Attributes:
        examined: what was found when it was constructed; empty before.
        callers: by hook name; calls the plugin and, once registered, all wrappers, later ones included.
        wrapped: its hooks that other plugins wrap, so that a call of one needs a thread of the daemon.
        wrapped_by: the instances of those, in load order.
        isolation: where it runs, or is to run.
        worker: the process that it runs in; None for a thread of the daemon, and until there is one.
        privileges: what it runs with; None until that is known.
        instead_of: the instance whose place it is to take, if only that one's; it is not needed when another has it.
        abandoned: nobody waits for its construction any more.
        begun: its `prepare` was called, or its `start` has succeeded, so its `stop` must be called.
        beginning: done when a `start` in progress has ended.
    """

    slot: "Slot"
    section: PluginSection
    examined: Examined = field(default_factory=Examined)
    callers: dict[str, Callable[..., Any]] = field(default_factory=dict)
    wrapped: frozenset[str] = frozenset()
    wrapped_by: "tuple[Instance, ...]" = ()
    isolation: Literal["thread", "process"] = "thread"
    worker: Worker | None = None
    privileges: Privileges | None = None
    instead_of: "Instance | None" = None
    abandoned: bool = False
    begun: bool = False
    beginning: asyncio.Future[None] | None = None
    number: int = field(default_factory=itertools.count(1).__next__)

    @property
    def name(self) -> str:
        """The section's name."""
        return self.slot.name

    @property
    def uses(self) -> str:
        """The entry-point name or `module:Class` of the plugin."""
        return self.section.uses or self.name

    @property
    def distribution(self) -> str:
        """Where its class comes from; empty until it is constructed."""
        return self.examined.distribution

    @property
    def claims(self) -> tuple[Claim, ...]:
        """What it serves."""
        return self.examined.claims

    @property
    def hooks(self) -> frozenset[str]:
        """The hooks that it implements."""
        return self.examined.hooks

    @property
    def who(self) -> str:
        """The plugin by section and distribution, for messages."""
        return f"plugin {self.name!r} of {self.distribution}"

    def elsewhere(self, hook: str) -> Worker | None:
        """Return the process that a hook runs in, if nothing is around it in this one."""
        return self.worker if hook not in self.wrapped else None

    @property
    def dead(self) -> bool:
        """Whether its process has ended, so that only another instance can serve."""
        return self.worker is not None and not self.worker.alive

    def end_process(self) -> None:
        """End the process that it runs in, if there is one, as soon as no call is inside. Does not wait."""
        self.abandoned = True  # first: the thread that makes a process looks at it afterwards
        if self.worker is not None:
            self.worker.end()

    def kill_process(self, why: str) -> None:
        """End the process that it runs in now, with every call inside it."""
        self.end_process()
        if self.worker is not None:
            self.worker.kill(why)

    def anew(self) -> "Instance":
        """Return another instance of the same section, to take the place of this one, if it has one."""
        return Instance(self.slot, self.section, instead_of=self if self.slot.loaded is not None else None)

    def take(self, examined: Examined) -> None:
        """Become the instance of a plugin that was constructed."""
        self.examined = examined
        self.callers.update(examined.callers)

    def wrap(self, others: Iterable["Instance"]) -> None:
        """Build the callers again if the plugins that wrap its hooks have changed. Building them takes 2 ms.

        Args:
            others: instances with wrappers, in load order.
        """
        if (wrapped_by := tuple(one for one in others if one.examined.wrappers & self.hooks)) == self.wrapped_by:
            return
        self.wrapped_by = wrapped_by
        wrappers = [(one.examined.plugin, one.examined.wrappers) for one in wrapped_by]
        self.wrapped = self.hooks.intersection(*[[hook for _, hooks in wrappers for hook in hooks]])
        self.callers.update(callers(self.examined.plugin, self.hooks, wrappers))

    def now(self) -> "Instance":
        """Return this instance, whatever became of its slot; a `Route` returns the present owner instead."""
        return self


@dataclass(slots=True)
class Restarts:
    """How often a process had to be started again.

    Attributes:
        count: since the daemon started.
        why: the last one ended.
    """

    count: int = 0
    why: str = ""
    _pause: float = 0.0
    _last: float = -math.inf

    def pause(self, why: str) -> float:
        """Note that a process has ended; return the seconds until the next may start: none if it lived long."""
        now = time.monotonic()
        self._pause = 0.0 if now - self._last > LONG_LIFE else min(max(2 * self._pause, FIRST_RETRY), LAST_RETRY)
        self.count, self.why, self._last = self.count + 1, why, now
        return self._pause


@dataclass(slots=True, eq=False)
class Slot:
    """Everything about one section. Used only from the event loop, except for reading.

    Attributes:
        deadlines: seconds by hook, where they differ from the defaults.
        instance: the one that serves or is to serve; without one, the last attempt.
        loaded: the same, once registered: its claims lead here, whether the gate is open or not.
        state: "refused" cannot be loaded; "failed" its start raised or its loading hangs; "ended" with the daemon.
        fault: why it is refused, failed or unhealthy; empty otherwise.
        outdone_by: who has what it claims, if that is why it is refused.
        rejected: why a newer section is not in force and this one still is; empty when there is none.
        retry_at: `time.monotonic()` of the next start, when failed.
        retry_after: seconds of the present backoff.
        calls: inside it, by key; one call per key runs at a time.
        overdue: those whose callers were answered before the hook ended.
        others_returned: `time.monotonic()` when a call last returned in time that works on nothing that hangs.
        visits: other plugins' calls inside it, by delegation; each is done when that call has left.
        restarts: of its process, that nobody asked for.
        gone_at: `time.monotonic()` when its process ended, until another one serves or its devices are withdrawn.
        owner: user and group to whom its folders were given; None: to nobody yet.
    """

    name: str
    deadlines: Mapping[str, float] = field(default_factory=dict)
    instance: Instance = field(init=False)
    loaded: Instance | None = None
    state: State = "refused"
    fault: str = ""
    outdone_by: str = ""
    rejected: str = ""
    retry_at: float = 0.0
    retry_after: float = FIRST_RETRY
    calls: dict[str, HookCall] = field(default_factory=dict)
    overdue: set[HookCall] = field(default_factory=set)
    others_returned: float = -math.inf
    visits: "set[asyncio.Future[None]]" = field(default_factory=set)
    restarts: Restarts = field(default_factory=Restarts)
    gone_at: float = 0.0
    owner: tuple[int, int] | None = None
    _held: "asyncio.Future[None] | None" = None

    def __post_init__(self) -> None:
        self.instance = Instance(self, PluginSection())

    @property
    def reason(self) -> str:
        """Everything that is wrong with it; empty when nothing is."""
        return "; ".join(filter(None, (self.fault, self.rejected)))

    @property
    def loading(self) -> bool:
        """Whether it is loading for the first time, so that its claims are not known yet."""
        return self.state == "starting" and self.loaded is None and not self.fault

    # --- the gate -----------------------------------------------------------------------------------------------

    def enter(self, state: State, fault: str = "") -> None:
        """Change to a state; calls that wait at the gate go on, to the plugin or to its refusal."""
        self.state, self.fault, held, self._held = state, fault, self._held, None
        if held is not None:
            held.set_result(None)

    def hold(self) -> None:
        """Make calls wait at the gate, each within its deadline, until a state is entered."""
        if self._held is None:
            self._held = asyncio.get_running_loop().create_future()

    @property
    def held(self) -> bool:
        """Whether calls wait at the gate."""
        return self._held is not None

    def check(self) -> None:
        """Return if calls may come in, now or after a wait.

        Raises:
            Ending: the daemon ends.
            TryAgain: the plugin is not running, and no exchange is in progress; the message has the reason.
        """
        if self.state == "ended":
            raise Ending("the daemon is ending; ask again in a moment")
        if self.state != "running" and self._held is None:
            why = f"its start failed: {self.fault}" if self.state == "failed" else f"it is {self.state}"
            raise TryAgain(f"plugin {self.name!r} is not running: {why}")

    def obstacle(self, key: str | None, *, gated: bool) -> "tuple[str, asyncio.Future[Any]] | None":
        """Return what a call must wait for, in words, and a future for when that may be over; None: it may begin.

        A call without a key waits for no other call. Only a `gated` one waits while the gate is held.
        """
        if gated and self._held is not None:
            return f"plugin {self.name!r} is being reloaded and does not run", self._held
        earlier = self.calls.get(key) if key is not None else None
        if earlier is not None:
            return f"an earlier call for {key!r} of plugin {self.name!r} is still running", earlier.outcome
        return None

    # --- the calls inside ---------------------------------------------------------------------------------------

    def deadline(self, hook: str) -> float:
        """Return how many seconds a hook may take."""
        own = self.deadlines.get(hook)
        return own if own is not None else DEFAULT_DEADLINES.get(hook, _OTHER_DEADLINE)

    @property
    def quarantined(self) -> str:
        """Why new calls for some subject, or all of them, are refused; empty if none are."""
        return "; ".join(f"it {one}" for one in overdue.obstacles(self.overdue))

    def is_stuck(self, most: int) -> bool:
        """Whether its calls have missed so many deadlines that its process has to be ended."""
        return overdue.is_stuck(self.overdue, most, time.monotonic() - self.others_returned)

    def check_quarantine(self, hook: str, subject: CallSubject) -> None:
        """Raise TryAgain when too many calls of this kind hang. Any thread may ask."""
        if why := overdue.obstacle(tuple(self.overdue), hook, subject):
            alone = self.instance.worker is not None
            end = "its process is ended if they never do" if alone else "restart the daemon if they never do"
            raise TryAgain(f"plugin {self.name!r} {why}; see `nodeplug status` for the calls; {end}")

    def let_in(self, call: HookCall) -> None:
        """Keep a call inside until its hook has really ended."""
        self.calls[call.key] = call
        call.leave = lambda: self._let_out(call)

    def leave_behind(self, call: HookCall) -> None:
        """Note that nobody waits for a call any more, although its hook goes on."""
        if not call.outcome.done():
            self.overdue.add(call)
            LOG.warning("%s of plugin %s is overdue in thread %s", call.hook, call.plugin, call.name)

    def _let_out(self, call: HookCall) -> None:
        del self.calls[call.key]
        if call in self.overdue:
            self.overdue.remove(call)
            LOG.warning("the overdue %s of plugin %s ended after %.1f s", call.hook, call.plugin, call.age)
        elif call.subject.name and not any(one.subject.is_same(call.subject) for one in self.overdue):
            self.others_returned = time.monotonic()
        if not call.outcome.cancelled():
            call.outcome.exception()  # marked as retrieved: only the log is left to tell of an overdue call's error

    def inside(self) -> "set[asyncio.Future[Any]]":
        """Return a future for each call inside that may still end in time."""
        return {call.outcome for call in self.calls.values() if call not in self.overdue} | self.visits


@dataclass(frozen=True, slots=True)
class Route:
    """The route to one claim, as it was when it was looked up.

    Attributes:
        callers: by hook name; calls the owner and all wrappers. Kept up to date when plugins come and go.
        now: returns the present route, since the claim's owner or its instance may have changed; raises what
            `Registry.route` does.
    """

    slot: Slot
    hooks: frozenset[str]
    callers: Mapping[str, Callable[..., Any]]
    claim: Claim
    now: Callable[[], "Route"] = field(repr=False, compare=False)

    @property
    def plugin(self) -> str:
        """The owner's section name."""
        return self.slot.name

    def elsewhere(self, hook: str) -> Worker | None:
        """Return the process that a hook runs in, if nothing is around it in this one."""
        return self.slot.loaded.elsewhere(hook) if self.slot.loaded is not None else None
