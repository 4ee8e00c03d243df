"""The health of cards, from what the driver reports.

Owns: a state per card, the transitions between states, and the reason in a sentence.

    healthy ──minor fault──▶ suspect ──more of them, or a fatal one──▶ unhealthy
       ▲                        │ they expire                             │ the evidence is gone
       └────────────────────────┘◀──────probation without a fault──── recovering

A suspect card stays allocatable; an unhealthy or recovering one is not. Each relapse doubles the next probation, up to
an hour: a card that keeps failing must not keep killing pods.

Refuses: I/O, a clock (times are passed in), and to count against a card what its driver or an application did.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal

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
    """The health of a card.

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
        """Whether a container may get the card."""
        return self.state in {"healthy", "suspect"}


@dataclass(slots=True)
class HealthMonitor:
    """The conditions of all cards that were ever seen. Not safe for threads: its owner serialises calls."""

    config: Health
    _conditions: dict[Uuid, Condition] = field(default_factory=dict)
    _driver: str = ""

    def condition(self, uuid: Uuid) -> Condition:
        """Return the health of a card; while the driver does not run, every card is unhealthy for that reason alone."""
        own = self._conditions.get(uuid)
        if own is None:
            return Condition("unhealthy", self._driver or GONE)
        if self._driver and own.state != "unhealthy":
            return replace(own, state="unhealthy", reason=self._driver)
        return own

    def observe(self, snapshot: Snapshot, events: Sequence[GpuEvent], now: float) -> None:
        """Evaluate a snapshot and the events since the one before."""
        self._driver = (
            ""
            if snapshot.state == "running"
            else f"the driver is {snapshot.state}: {snapshot.reason or 'no answer yet'}"
        )
        for event in events:
            if event.card is not None and event.card in self._conditions:
                self._on_event(event.card, event, now)
        if snapshot.state != "running":
            return
        present = {card.uuid for card in snapshot.cards}
        for uuid in present:
            self._on_snapshot(uuid, snapshot.telemetry.get(uuid, Telemetry()), snapshot.taken, now)
        for uuid in self._conditions.keys() - present:
            self._fail(uuid, GONE, now)

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
                self._fault(uuid, "an uncorrected ECC error", now)
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
            self._fault(uuid, f"{(telemetry.uncorrected_ecc or 0) - before.ecc} new uncorrected ECC errors", now)
        elif before.allocatable or taken > before.quiet_since:  # a snapshot older than the event says nothing about it
            self._pass(uuid, now)
        if telemetry.uncorrected_ecc is not None:
            self._conditions[uuid] = replace(self._conditions[uuid], ecc=telemetry.uncorrected_ecc)

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
