"""One `[plugins.<name>]` section, as everybody meets it.

Owns: the instance that stands for the section, the gate before it, the calls inside it, how long each may take, and
how the section is, in words. Whether a plugin may be called now is said here and nowhere else.
Refuses: to change by itself: `lifecycle` leads instances through their lives, `runner` runs the calls, and `registry`
says which claims lead here.

The gate follows the state: open while the plugin runs; held during an exchange: calls wait, each within its deadline;
closed otherwise: calls are refused with the reason. It stands before claims alone: an instance's own life passes by it.
"""

import asyncio
import itertools
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from nodeplug.config import PluginSection
from nodeplug.contract.errors import Ending, TryAgain
from nodeplug.contract.values import Claim
from nodeplug.hosting.hook_call import HookCall

LOG: Final = logging.getLogger(__name__)
State = Literal["starting", "running", "failed", "refused", "ended"]
FIRST_RETRY: Final = 1.0
"""Seconds between the first start that failed and the next."""
OVERDUE_LIMIT: Final = 4
"""How many overdue calls quarantine a plugin; the first that returns sets it free."""
ASIDES: Final = frozenset({"inspect", "metrics"})
"""Hooks whose overdue calls quarantine nothing: each has one key, and no caller of a plugin needs them."""
DEFAULT_DEADLINES: Final[Mapping[str, float]] = {
    "claims": 60,  # loading as a whole: the import, the constructor and claims()
    "prepare": 60,
    "start": 60,
    "stop": 10,
    "health": 5,
    "inspect": 5,
    "metrics": 5,
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
}
"""Seconds per hook; every other hook has 120. A plugin's section may say otherwise."""
_OTHER_DEADLINE: Final = 120.0


@dataclass(slots=True, eq=False)
class Instance:
    """One construction of a section's plugin, from its loading to its stop.

    Attributes:
        slot: of its section.
        section: the configuration that it is made from.
        distribution: whose class it is; empty until it is found.
        plugin: the object, once it is constructed and examined; so is what follows.
        claims: what it answers to.
        hooks: the hooks that it implements.
        wrappers: the hooks of others that it wraps.
        callers: by hook name; calls the plugin and, once it is taken in, all wrappers, also those that come later.
        begun: its `prepare` was called, or its `start` has succeeded, so that its `stop` is due.
        beginning: done when a `start` that is under way has ended.
        number: tells instances apart.
    """

    slot: "Slot"
    section: PluginSection
    distribution: str = ""
    plugin: object = None
    claims: tuple[Claim, ...] = ()
    hooks: frozenset[str] = frozenset()
    wrappers: frozenset[str] = frozenset()
    callers: dict[str, Callable[..., Any]] = field(default_factory=dict)
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
    def who(self) -> str:
        """The plugin by section and distribution, for messages."""
        return f"plugin {self.name!r} of {self.distribution}"

    def now(self) -> "Instance":
        """Return where a call for it goes now, as a route does: to this very instance, whatever became of its slot."""
        return self


@dataclass(slots=True, eq=False)
class Slot:
    """Everything about one section. Used from the event loop alone, but for reading.

    Attributes:
        name: the section's name.
        deadlines: seconds by hook, where they differ from the defaults.
        instance: the one that serves or is to; without one, the last attempt.
        loaded: the same, once it is taken in: its claims lead here, whether the gate lets calls in or not.
        state: "refused" cannot be loaded; "failed" its start raised or its loading hangs; "ended" with the daemon.
        fault: why it is refused, failed or not healthy; empty when all is well.
        outdone_by: who has what it claims, if that is why it is refused.
        rejected: why a newer section is not in force, and this one still is; empty when there is none.
        retry_at: `time.monotonic()` of the next start, when failed.
        retry_after: seconds of the present backoff.
        calls: inside it, by what they are about; one call per key runs at a time.
        overdue: those of them that were answered without their hook.
        visits: other plugins' calls that are inside it, by delegation; each is done when that one has left.
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
    visits: "set[asyncio.Future[None]]" = field(default_factory=set)
    _held: "asyncio.Future[None] | None" = None

    def __post_init__(self) -> None:
        self.instance = Instance(self, PluginSection())

    @property
    def reason(self) -> str:
        """Everything that is wrong with it; empty when all is well."""
        return "; ".join(filter(None, (self.fault, self.rejected)))

    @property
    def loading(self) -> bool:
        """Whether it loads for the first time: what it will claim is not known yet."""
        return self.state == "starting" and self.loaded is None and not self.fault

    # --- the gate -----------------------------------------------------------------------------------------------

    def enter(self, state: State, fault: str = "") -> None:
        """Go over to a state; the calls that wait at the gate go on, to the plugin or to its refusal."""
        self.state, self.fault, held, self._held = state, fault, self._held, None
        if held is not None:
            held.set_result(None)

    def hold(self) -> None:
        """Let calls wait at the gate, each within its deadline, until a state is entered."""
        if self._held is None:
            self._held = asyncio.get_running_loop().create_future()

    def check(self) -> None:
        """Succeed when calls may come in, now or after a wait.

        Raises:
            Ending: the daemon ends.
            TryAgain: the plugin does not run, and no exchange is under way; the message says why.
        """
        if self.state == "ended":
            raise Ending("the daemon is ending; ask again in a moment")
        if self.state != "running" and self._held is None:
            why = f"its start failed: {self.fault}" if self.state == "failed" else f"it is {self.state}"
            raise TryAgain(f"plugin {self.name!r} is not running: {why}")

    def obstacle(self, key: str | None, *, gated: bool) -> "tuple[str, asyncio.Future[Any]] | None":
        """Return what a call has to wait for, in words, and what is done when that may be over; None: it may begin.

        Args:
            key: what the call is about; None when that does not matter.
            gated: whether it has to wait while the gate is held.
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
    def quarantined(self) -> bool:
        """Whether so many calls hang that new ones are refused."""
        return sum(call.hook not in ASIDES for call in self.overdue) >= OVERDUE_LIMIT

    def check_quarantine(self) -> None:
        """Raise TryAgain when too many calls hang."""
        if self.quarantined:
            raise TryAgain(
                f"plugin {self.name!r} is quarantined: {OVERDUE_LIMIT} of its calls have not come back; "
                "see `nodeplug status` for the calls, and restart the daemon if they never end"
            )

    def let_in(self, call: HookCall) -> None:
        """Have a call inside until its hook has really ended."""
        self.calls[call.key] = call
        call.outcome.add_done_callback(lambda _: self._let_out(call))

    def leave_behind(self, call: HookCall) -> None:
        """Note that nobody waits for a call any more, though its hook goes on."""
        if not call.outcome.done():
            self.overdue.add(call)
            LOG.warning("%s of plugin %s is overdue in thread %s", call.hook, call.plugin, call.name)

    def _let_out(self, call: HookCall) -> None:
        del self.calls[call.key]
        if call in self.overdue:
            self.overdue.remove(call)
            LOG.warning("the overdue %s of plugin %s ended after %.1f s", call.hook, call.plugin, call.call.age)
        if not call.outcome.cancelled():
            call.outcome.exception()  # seen: an overdue call's error has nobody left to tell but the log

    def inside(self) -> "set[asyncio.Future[Any]]":
        """Return the calls that are inside and may still end in time; each is done when it has ended."""
        return {call.outcome for call in self.calls.values() if call not in self.overdue} | self.visits


@dataclass(frozen=True, slots=True)
class Route:
    """The way to one claim, as it was when somebody asked for it.

    Attributes:
        slot: of its owner.
        hooks: the hooks that the owner implements.
        callers: by hook name; calls the owner and all wrappers. Kept up to date when plugins come and go.
        now: returns the way as it is now: the claim may have got another owner, or its owner another instance. Raises
            what `Registry.route` does.
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
