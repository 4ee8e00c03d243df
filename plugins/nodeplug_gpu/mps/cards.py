"""Which cards have an MPS control daemon.

Owns: a daemon for each card that is shared by MPS, and the transition between two ways of sharing a card, or between
two daemons.
Refuses: to stop a daemon that has clients: while containers hold a card, its daemon goes on, and the card is not
allocated in another way.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Final

from nodeplug import Host
from nodeplug_gpu.allocations import GRACE_PERIOD
from nodeplug_gpu.cards import Card, Uuid
from nodeplug_gpu.config import GpuConfig, Mps, Resource
from nodeplug_gpu.ids import card_key
from nodeplug_gpu.inventory import Inventory
from nodeplug_gpu.limits import NO_CAPS, Caps, caps_of, mps_of
from nodeplug_gpu.mps.daemon import STARTING, ControlDaemon, clean_up, end_process
from nodeplug_gpu.mps.folders import Folders
from nodeplug_gpu.mps.record import Record, recorded

SETTLE_TIME: Final = 5.0
"""Seconds for which a card must have been withdrawn, so that no allocation of it is under way."""
_STOP_TIMEOUT: Final = 5.0


def _not_held(_uuid: Uuid) -> bool:
    return False


@dataclass(slots=True)
class MpsDaemons:
    """The daemons of all cards. Called in one thread; `reason` and `still_running` may be called by any.

    Attributes:
        former: the run folders of sections that had the cards before.
    """

    host: Host
    driver_root: Path
    changed: Callable[[], None]
    former: Sequence[Path] = ()
    _daemons: dict[Uuid, ControlDaemon] = field(default_factory=dict)
    _ending: dict[Uuid, ControlDaemon] = field(default_factory=dict)
    _adopted: bool = False
    _outdated: dict[Uuid, str] = field(default_factory=dict)
    _idle_since: dict[Uuid, float] = field(default_factory=dict)
    _withdrawn: dict[Uuid, float] = field(default_factory=dict)
    _capped_otherwise: set[Uuid] = field(default_factory=set)

    def reconcile(
        self,
        wanted: Mapping[Uuid, tuple[Card, Mps]],
        held: Callable[[Uuid], bool] = _not_held,
        cards: Iterable[Card] = (),
        caps: Mapping[Uuid, Caps] = MappingProxyType({}),
    ) -> None:
        """Run a daemon for each of these cards, and no other.

        Args:
            wanted: cards, with their configuration.
            held: whether a container may hold a card: then its daemon goes on.
            cards: all that are present.
            caps: what no client of a card may exceed; none for those that are not named.
        """
        self._ending = {uuid: daemon for uuid, daemon in self._ending.items() if daemon.runs}
        if not self._adopted:
            self._adopted = True
            self._adopt(wanted.keys(), {card_key(card.uuid): card for card in cards})
        for uuid in self._daemons.keys() - wanted.keys():
            if not held(uuid):
                self.host.log.info("%s is no longer shared by MPS: its control daemon is stopped", uuid)
                self._end(uuid)
        for uuid in self._daemons.keys() & wanted.keys():
            self._replace_outdated(uuid, held)
        for uuid in wanted.keys() - self._daemons.keys() - self._ending.keys():
            card, config = wanted[uuid]
            self._daemons[uuid] = self._daemon(card, config, caps.get(uuid, NO_CAPS))
            self._daemons[uuid].start()

    def _end(self, uuid: Uuid) -> None:
        for table in (self._outdated, self._idle_since, self._withdrawn):
            table.pop(uuid, None)
        self._capped_otherwise.discard(uuid)
        self._ending[uuid] = self._daemons.pop(uuid)
        self._ending[uuid].end()

    def _replace_outdated(self, uuid: Uuid, held: Callable[[Uuid], bool]) -> None:
        """Stop a daemon that would be started with other settings now, once it surely has no client.

        The card must have had no holder for a while, as kubelet reports late; then it is withdrawn for a while, as an
        allocation may be under way.
        """
        why, now = self._daemons[uuid].outdated, time.monotonic()
        if why and self._outdated.get(uuid) != why:
            self.host.log.warning(
                "%s: its MPS control daemon is replaced when no container holds the card: %s", uuid, why
            )
            self._outdated[uuid] = why
        self._withhold(uuid, withheld=bool(why) and not held(uuid) and self._daemons[uuid].former_caps)
        if not why or held(uuid):
            self._idle_since.pop(uuid, None)
            if self._withdrawn.pop(uuid, None) is not None:
                self.changed()
        elif now - self._idle_since.setdefault(uuid, now) < GRACE_PERIOD:
            return
        elif uuid not in self._withdrawn:
            self._withdrawn[uuid] = now
            self.changed()
        elif now - self._withdrawn[uuid] >= SETTLE_TIME:
            self._end(uuid)

    def _withhold(self, uuid: Uuid, *, withheld: bool) -> None:
        """Note whether a card waits for its daemon's replacement: new containers would run under its former caps."""
        if withheld != (uuid in self._capped_otherwise):
            (self._capped_otherwise.add if withheld else self._capped_otherwise.discard)(uuid)
            self.changed()

    def has(self, uuid: Uuid) -> bool:
        """Whether a card has a daemon, of this process or of one before."""
        return uuid in self._daemons or self._record(uuid) is not None

    def reason(self, uuid: Uuid) -> str:
        """Return why no client can connect to a card's daemon; empty when it can."""
        if uuid in self._ending:
            return "its former MPS control daemon is stopping"
        if uuid in self._withdrawn or uuid in self._capped_otherwise:
            return f"its MPS control daemon is about to be replaced: {self._outdated.get(uuid, '')}"
        daemon = self._daemons.get(uuid)
        return daemon.reason if daemon is not None else self._first_reason(uuid)

    def still_running(self, uuid: Uuid) -> str:
        """Return why a card cannot be allocated without MPS; empty when it can."""
        if uuid in self._daemons or uuid in self._ending or self._record(uuid) is not None:
            return "its MPS control daemon still runs; it is stopped when no container holds the card"
        return ""

    def stop(self) -> None:
        """End the threads; the daemons go on for their clients."""
        daemons = list(self._daemons.values())
        for daemon in daemons:
            daemon.leave()
        for daemon in daemons:
            daemon.join()

    def _daemon(self, card: Card, config: Mps, caps: Caps = NO_CAPS) -> ControlDaemon:
        why, folders = self._first_reason(card.uuid), self._folders(card.uuid)
        return ControlDaemon(card, config, self.driver_root, folders, self.host, self.changed, why, caps)

    def _folders(self, uuid: Uuid) -> Folders:
        return Folders.of(self.host.run_dir, uuid, self.former)

    def _record(self, uuid: Uuid) -> Record | None:
        return Record.read(self._folders(uuid).record)

    def _first_reason(self, uuid: Uuid) -> str:
        """Return why clients cannot connect before a daemon is watched: a predecessor's may serve them already."""
        folders = self._folders(uuid)
        return "" if folders.ready and recorded(folders.record) is not None else STARTING

    def _adopt(self, wanted: Iterable[Uuid], cards: Mapping[str, Card]) -> None:
        """Adopt the daemons of an earlier configuration; that of a card that is gone has lost its clients."""
        known = {card_key(uuid) for uuid in wanted}
        left = [file.parent for run_dir in self.former for file in run_dir.glob("mps/*/daemon.json")]
        for root in [*(self.host.run_dir / "mps").glob("*"), *left]:
            folders, card = Folders(root), cards.get(root.name)
            record = Record.read(folders.record)
            if root.name in known:
                continue
            if record is None:  # a start that was killed may have mounted something
                clean_up(folders, self.host)
            elif card is None:
                self.host.log.info(
                    "the MPS control daemon %d of a card that is no longer present is stopped", record.pid
                )
                if record.runs:
                    end_process(record.pid, _STOP_TIMEOUT)
                clean_up(folders, self.host)
            elif card.uuid not in self._daemons:
                self._daemons[card.uuid] = self._daemon(card, Mps(exclusive_process=record.exclusive))
                if record.runs:
                    self._daemons[card.uuid].start()


@dataclass(frozen=True, slots=True)
class MpsReconciler:
    """Runs MPS on the cards of the entries that want it."""

    daemons: MpsDaemons
    config: GpuConfig

    def reconcile(self, inventory: Inventory) -> None:
        """Run a daemon per card; while the driver does not run, nothing is known about cards, and nothing changes."""
        if inventory.snapshot.state != "running":
            return
        present = {
            card.uuid for card in inventory.snapshot.cards if not card.mig
        }  # MPS serves no card in MIG mode here
        wanted: dict[Uuid, tuple[Card, Mps]] = {}
        caps: dict[Uuid, Caps] = {}
        for entry in self.config.resources:
            mps = mps_of(entry)
            if mps is not None:
                cards = [member.card for member in inventory.members_of(entry.resource) if member.card.uuid in present]
                wanted.update({card.uuid: (card, mps) for card in cards if self._may_start(card.uuid, inventory)})
                caps |= {card.uuid: caps_of(entry, card) for card in cards}
        self.daemons.reconcile(
            wanted,
            lambda uuid: uuid in present and (bool(inventory.allocations_unknown) or uuid in inventory.allocated),
            inventory.snapshot.cards,
            caps,
        )

    def _may_start(self, uuid: Uuid, inventory: Inventory) -> bool:
        """Whether a daemon may serve a card: a new one would lock out containers that use the card without MPS."""
        return uuid not in inventory.draining or self.daemons.has(uuid)

    def not_ready_reason(self, entry: Resource, uuid: Uuid) -> str:
        """Return why a card is not allocatable yet."""
        return self.daemons.reason(uuid) if mps_of(entry) is not None else self.daemons.still_running(uuid)

    def starting(self, entry: Resource, inventory: Inventory) -> bool:
        """Whether cards of an entry wait for daemons that have neither answered nor failed yet."""
        return mps_of(entry) is not None and any(
            member.reason == STARTING for member in inventory.members_of(entry.resource)
        )

    def stop(self) -> None:
        """Leave the daemons to their clients."""
        self.daemons.stop()
