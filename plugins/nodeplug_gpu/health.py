"""The health of cards and of their MIG instances, from what the driver reports.

Owns: a state per card and per instance, the transitions between states, and the reason in a sentence.

    healthy ──minor fault──▶ suspect ──more of them, or a fatal one──▶ unhealthy
       ▲                        │ they expire                             │ the evidence is gone
       └────────────────────────┘◀──────probation without a fault──── recovering

A suspect card stays allocatable; an unhealthy or recovering one is not. Each relapse doubles the next probation, up to
an hour: a card that keeps failing must not keep killing pods. An instance lives the same life, by the evidence against
it alone; what its card suffers is not repeated there. One that is made anew has another UUID, and begins healthy.

Refuses: I/O, a clock (times are passed in), whose evidence it is (`attribution` knows), and to count against a card
what its driver or an application did.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from nodeplug_gpu.attribution import Attribution
from nodeplug_gpu.cards import GpuEvent, Snapshot, Telemetry, Uuid
from nodeplug_gpu.config import Health
from nodeplug_gpu.xid import described, severity

State = Literal["healthy", "suspect", "unhealthy", "recovering"]
GONE: Final = "it is no longer present"
MAX_PROBATION: Final = 3600.0
_LOST: Final = frozenset({15, 16})
"""NVML's GPU_IS_LOST and RESET_REQUIRED: no number of retries helps."""
_RECOVERY: Final = {
    1: "the driver asks for a reset of the card",
    2: "the driver asks for a reboot of the node",
    4: "the driver asks to drain the card and reset it",
    6: "the driver asks for a reset of the card's bus",
    7: "the driver asks for a reboot of the system",
}
"""Values of NVML_FI_DEV_GET_GPU_RECOVERY_ACTION that no workload survives; 3 and 5 concern links to other cards."""


@dataclass(frozen=True, slots=True)
class Condition:
    """The health of a card or an instance.

    Attributes:
        state: see the module.
        reason: why it is not healthy.
        since: when it entered this state.
        faults: times of the minor faults that still count.
        relapses: how often it failed again during or right after a probation.
        quiet_since: when the last evidence against it was seen.
        ecc: the last count of uncorrected errors, to see it grow.
    """

    state: State = "healthy"
    reason: str = ""
    since: float = 0.0
    faults: tuple[float, ...] = ()
    relapses: int = 0
    quiet_since: float = 0.0
    ecc: int | None = None

    @property
    def allocatable(self) -> bool:
        """Whether a container may get it."""
        return self.state in {"healthy", "suspect"}


@dataclass(slots=True)
class HealthMonitor:
    """The conditions of all cards ever seen, and of their instances. Not safe for threads: its owner serialises."""

    config: Health
    _conditions: dict[Uuid, Condition] = field(default_factory=dict)
    _instances: set[Uuid] = field(default_factory=set)
    _attribution: Attribution = field(default_factory=Attribution)
    _driver: str = ""

    def condition(self, uuid: Uuid) -> Condition:
        """Return the health of a card or an instance.

        While the driver does not run, every card is unhealthy for that reason alone; instances are as they were.
        """
        own = self._conditions.get(uuid)
        if own is None:
            return Condition("unhealthy", self._driver or GONE)
        if self._driver and own.state != "unhealthy" and uuid not in self._instances:
            return replace(own, state="unhealthy", reason=self._driver)
        return own

    def observe(self, snapshot: Snapshot, events: Sequence[GpuEvent], now: float) -> None:
        """Evaluate a snapshot and the events since the one before."""
        self._driver = (
            ""
            if snapshot.state == "running"
            else f"the driver is {snapshot.state}: {snapshot.reason or 'no answer yet'}"
        )
        if snapshot.state == "running":
            self._see_instances({one.uuid for card in snapshot.cards for one in card.instances}, now)
        for uuid, event in self._attribution.attributed(events, snapshot, self.config, now):
            if uuid in self._conditions:
                self._on_event(uuid, event, now)
        if snapshot.state == "running":
            self._attribution.see(snapshot)
            self._on_running(snapshot, now)

    def _on_running(self, snapshot: Snapshot, now: float) -> None:
        present = {card.uuid for card in snapshot.cards}
        for card in snapshot.cards:
            self._on_snapshot(card.uuid, snapshot.telemetry.get(card.uuid, Telemetry()), snapshot.taken, now)
            for one in card.instances:
                self._look(one.uuid, snapshot.taken, now)
        for uuid in self._conditions.keys() - present - self._instances:
            self._fail(uuid, GONE, now)
        for uuid, reason in self._attribution.unexplained(now):
            if uuid in present:
                self._fault(uuid, reason, now)

    def _see_instances(self, present: set[Uuid], now: float) -> None:
        """Have a condition for each instance that is there; one that was ill is known for a while when it is gone."""
        for uuid in present - self._instances:
            self._conditions[uuid] = Condition(since=now, quiet_since=now)
        self._instances |= present
        for uuid in self._instances - present:
            before = self._conditions[uuid]
            if before == Condition(since=before.since, quiet_since=before.quiet_since) or (
                now - before.quiet_since > MAX_PROBATION
            ):
                self._instances.discard(uuid)
                del self._conditions[uuid]

    def forget(self, uuid: Uuid) -> None:
        """Drop a card that is gone and that no container holds."""
        self._conditions.pop(uuid, None)

    # --- evidence -----------------------------------------------------------------------------------------------------

    def _on_event(self, uuid: Uuid, event: GpuEvent, now: float) -> None:
        if not self.config.enabled:
            return
        match event.kind:
            case "xid":
                level = severity(event.code, self.config)
                if level == "fatal":
                    self._fail(uuid, described(event.code), now)
                elif level == "minor":
                    self._fault(uuid, described(event.code), now)
            case "recovery" if event.code in _RECOVERY:
                self._fail(uuid, _RECOVERY[event.code], now)
            case "unavailable":
                self._fail(uuid, "the driver reports the card as unavailable", now)
            case "ecc":
                self._ecc(uuid, "an uncorrected ECC error", now)
            case "retirement":
                self._fault(uuid, "the retirement of a memory page failed", now)
            case _:  # a MIG mode change shows in the next snapshot; other recovery actions concern other cards
                return

    def _on_snapshot(self, uuid: Uuid, telemetry: Telemetry, taken: float, now: float) -> None:
        before = self._conditions.setdefault(uuid, Condition(since=now, quiet_since=now, ecc=telemetry.uncorrected_ecc))
        evidence = self._evidence(telemetry)
        if evidence:
            self._fail(uuid, evidence, now)
        elif telemetry.error and self.config.enabled:
            self._fault(uuid, f"the driver answers {telemetry.error}", now)
        elif self.config.enabled and before.ecc is not None and (telemetry.uncorrected_ecc or 0) > before.ecc:
            self._ecc(uuid, f"{(telemetry.uncorrected_ecc or 0) - before.ecc} new uncorrected ECC errors", now)
        else:
            self._look(uuid, taken, now)
        if telemetry.uncorrected_ecc is not None:
            self._conditions[uuid] = replace(self._conditions[uuid], ecc=telemetry.uncorrected_ecc)

    def _look(self, uuid: Uuid, taken: float, now: float) -> None:
        """Count a snapshot without evidence; one that is older than the last evidence says nothing about it."""
        before = self._conditions[uuid]
        if before.allocatable or taken > before.quiet_since:
            self._pass(uuid, now)

    def _ecc(self, uuid: Uuid, reason: str, now: float) -> None:
        if self._attribution.ecc(uuid, reason, now):
            self._fault(uuid, reason, now)

    def _evidence(self, telemetry: Telemetry) -> str:
        if telemetry.error_code in _LOST:
            return f"the driver answers {telemetry.error}"
        if self.config.enabled and telemetry.recovery_action in _RECOVERY:
            return _RECOVERY[telemetry.recovery_action]
        return ""

    # --- transitions --------------------------------------------------------------------------------------------------

    def _fail(self, uuid: Uuid, reason: str, now: float) -> None:
        before = self._conditions[uuid]
        relapses = before.relapses + (before.state == "recovering" or self._recently_recovered(before, now))
        since = before.since if before.state == "unhealthy" else now
        if before.state == "unhealthy":
            relapses = before.relapses
        self._conditions[uuid] = replace(
            before, state="unhealthy", reason=reason, since=since, quiet_since=now, relapses=relapses, faults=()
        )

    def _fault(self, uuid: Uuid, reason: str, now: float) -> None:
        before = self._conditions[uuid]
        faults = (*self._recent_faults(before, now), now)
        if before.state in {"unhealthy", "recovering"} or len(faults) >= self.config.strikes:
            times = f" ({len(faults)} faults in {self.config.window:g} s)" if before.allocatable else ""
            self._fail(uuid, reason + times, now)
            return
        since = before.since if before.state == "suspect" else now
        self._conditions[uuid] = replace(
            before, state="suspect", reason=reason, since=since, faults=faults, quiet_since=now
        )

    def _pass(self, uuid: Uuid, now: float) -> None:
        before = self._conditions[uuid]
        faults = self._recent_faults(before, now)
        match before.state:
            case "unhealthy":
                after = replace(before, state="recovering", since=now, reason=f"on probation after: {before.reason}")
            case "recovering" if now - before.quiet_since >= self._probation(before):
                after = replace(before, state="healthy", reason="", since=now)
            case "suspect" if not faults:
                after = replace(before, state="healthy", reason="", since=now, faults=())
            case "healthy" if before.relapses and not self._recently_recovered(before, now):
                after = replace(before, relapses=0)
            case _:
                after = replace(before, faults=faults)
        self._conditions[uuid] = after

    def _recent_faults(self, condition: Condition, now: float) -> tuple[float, ...]:
        return tuple(time for time in condition.faults if now - time < self.config.window)

    def _probation(self, condition: Condition) -> float:
        return min(self.config.probation * 2.0 ** min(condition.relapses, 16), MAX_PROBATION)

    def _recently_recovered(self, condition: Condition, now: float) -> bool:
        recently = now - condition.since < max(self._probation(condition), self.config.window)
        return condition.state == "healthy" and condition.quiet_since < condition.since and recently
