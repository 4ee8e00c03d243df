"""A node that serves claims, everybody around it, and what must always be true of them.

Owns: which pods there are, what the scheduler and kubelet try again by themselves, the promises, and the end.
Refuses: to do any harm (`torture`).
"""

import json
import os
import signal
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final

from tests.ended import kill
from tests.node.dra.cards_guest import SIZE

from nodeplug.fields import parse_quantity
from nodeplug.hosts import CLAIMS
from nodeplug.testing import ScratchNode
from nodeplug.testing.dra import (
    DraKubelet,
    PrepareFailed,
    ResourceApi,
    Scheduler,
    UnprepareFailed,
    UnresolvableDevices,
)
from nodeplug.testing.dra.gates import results_of
from nodeplug.testing.waiting import until

SECTION: Final = "cards"
DRIVER: Final = "cards.nodeplug.io"
CARDS: Final = {"c0": 8, "c1": 8, "c2": 4}


class Lost(AssertionError):
    """A promise was broken."""


@dataclass
class Served:
    """A node that serves cards by claims, and those whom it serves.

    Attributes:
        node: with the daemon.
        folder: of the plugin.
        cdi: of the specs.
        configuration: of the node; more keys of the section may be appended.
    """

    node: ScratchNode
    api: ResourceApi
    scheduler: Scheduler
    kubelet: DraKubelet
    folder: Path
    cdi: Path
    configuration: str


@dataclass
class Cluster(Served):
    """Pods on it.

    Attributes:
        random: chooses.
        starting: pods that were placed and do not run yet, with their claims.
        waiting: pods that do not fit at present.
        living: pods that run.
        ending: pods that are to end.
        story: what was done, for people.
        ids: what each claim has got, by uid and request, from its first time on.
        kills: of the daemon.
        lives: pods that ended.
    """

    random: Random
    starting: dict[str, tuple[str, ...]] = field(default_factory=dict)
    waiting: dict[str, tuple[str, ...]] = field(default_factory=dict)
    living: dict[str, tuple[str, ...]] = field(default_factory=dict)
    ending: dict[str, tuple[str, ...]] = field(default_factory=dict)
    story: list[str] = field(default_factory=list)
    ids: dict[tuple[str, str], str] = field(default_factory=dict)
    kills: int = 0
    lives: int = 0
    orphaned: bool = False

    def delete(self, pod: str) -> None:
        """Have a pod end as soon as kubelet can."""
        if self.waiting.pop(pod, None) is not None:
            self.scheduler.free(pod)
            return
        self.ending[pod] = (self.living if pod in self.living else self.starting).pop(pod)

    # --- what others do by themselves -------------------------------------------------------------------------------

    def try_again(self) -> None:
        """Do once what the scheduler and kubelet do for ever."""
        for pod in self.scheduler.retry():
            self.starting[pod] = self.waiting.pop(pod)
        for pod in list(self.ending):
            with suppress(UnprepareFailed):
                self._end(pod)
        if self.orphaned:
            with suppress(UnprepareFailed):
                self.kubelet.reconcile()
                self.orphaned = False
        for pod, claims in list(self.starting.items()):
            if self._succeeds(partial(self.kubelet.admit, pod, claims)):
                self.living[pod] = self.starting.pop(pod)
        self._delete_unused_claims()

    def _end(self, pod: str) -> None:
        if pod in self.kubelet.pods:
            self.kubelet.end(pod)
        del self.ending[pod]
        self.scheduler.free(pod)
        self.lives += 1

    def _delete_unused_claims(self) -> None:
        used = {name for claims in self._claims.values() for name in claims}
        for claim in self.api.listed("resourceclaims"):
            if claim["metadata"]["name"] not in used:
                self.scheduler.delete(claim["metadata"]["name"])

    # --- what must be true ------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Look at what pods have.

        Raises:
            Lost: a promise was broken.
        """
        crimes = self.folder / "sold-twice"
        if crimes.exists():
            raise Lost(f"sold twice: {crimes.read_text()}")
        holders: dict[str, str] = {}
        for pod, claims in self.living.items():
            until(partial(self._resolves, pod), found=partial(self._why, pod))
            edits = self.kubelet.start_container(pod)
            for name in claims:
                self._look_at_claim(pod, name, edits.env, holders)

    def _look_at_claim(self, pod: str, name: str, env: Mapping[str, str], holders: dict[str, str]) -> None:
        info = self.kubelet.prepared.claims["default", name]
        got = {key.removeprefix("IDS_"): ids for key, ids in env.items() if key.startswith("IDS_")}
        for request, ids in got.items():
            if self.ids.setdefault((info.uid, request), ids) != ids:
                raise Lost(f"{pod}: claim {name} had {self.ids[info.uid, request]} and has {ids}; {self._tail}")
            for one in ids.split():
                if holders.setdefault(one, info.uid) != info.uid:
                    raise Lost(f"{pod}: part {one} is in two claims; {self._tail}")
        claim = self.api.get("resourceclaims", name, "default")
        for result in results_of(claim or {}):
            parts = got[result["request"]].split()
            wanted = parse_quantity(result["consumedCapacity"]["memory"]) // SIZE
            if len(parts) != wanted or {one.rpartition("-")[0] for one in parts} != {result["device"]}:
                raise Lost(f"{pod}: {result} became {parts}; {self._tail}")

    def settle(self) -> None:
        """End everything, and see that nothing is left.

        Raises:
            AssertionError: something is.
        """
        self._write_cards(CARDS)
        for pod in list(self._pods):
            if pod not in self.ending:
                self.delete(pod)

        def ended() -> bool:
            self.try_again()
            return not self._pods and not self.orphaned

        until(ended, found=lambda: f"{self._pods} {self._last_event}; {self._tail}")
        until(lambda: not self.left(), found=lambda: f"left: {self.left()}; {self._tail}")
        self.node.configure("")
        os.kill(serving(self.node), signal.SIGHUP)
        until(lambda: not self.api.slices(), found=lambda: f"slices stay; {self.node.log[-2000:]}")
        until(lambda: not list(self.kubelet.plugins_registry.iterdir()), found=lambda: "a socket stays")

    def left(self) -> list[str]:
        """What may not be there when every pod has ended: records, specs, what the plugin has granted, claims."""
        folders = (self.cdi, self.folder / "held", self.node.paths.journal / CLAIMS)
        found = [path for one in folders if one.is_dir() for path in one.rglob("*") if path.is_file()]
        # A killed write leaves its temporary file, which a later look removes when it is old enough to be nobody's.
        files = [str(path) for path in found if not path.name.startswith(".")]
        claims = [str(one["metadata"]["name"]) for one in self.api.listed("resourceclaims")]
        return files + claims + [str(place) for place in self.kubelet.prepared.claims]

    # --- the node ---------------------------------------------------------------------------------------------------

    def _kill(self) -> None:
        kill(serving(self.node))
        self.node.kill()  # of whom it takes the place, if it does
        self.kills += 1

    def _start(self) -> None:
        self.node.start()
        self.kubelet.until_registered(DRIVER)

    def _cards(self) -> dict[str, int]:
        found: dict[str, int] = json.loads((self.folder / "cards.json").read_text())
        return found

    def _write_cards(self, cards: Mapping[str, int]) -> None:
        new = self.folder / "cards.new"
        new.write_text(json.dumps(cards))
        new.rename(self.folder / "cards.json")

    def _usable(self, claims: Iterable[str]) -> bool:
        """Whether the API still has a pod's claims: a forced one has none, and no sandbox is made for it."""
        return all(self.api.get("resourceclaims", name, "default") for name in claims)

    def _succeeds(self, work: Callable[[], Any]) -> bool:
        try:
            work()
        except (PrepareFailed, UnresolvableDevices):
            return False
        return True

    def _quietly(self, work: Callable[[], Any]) -> None:
        with suppress(UnprepareFailed):
            work()

    def _resolves(self, pod: str) -> bool:
        return self._succeeds(lambda: self.kubelet.start_container(pod))

    def _why(self, pod: str) -> str:
        try:
            self.kubelet.start_container(pod)
        except UnresolvableDevices as error:
            return f"{pod}: {error}; {self._tail}"
        return f"it resolves now; {self._tail}"

    def _any(self, pods: Iterable[str]) -> str | None:
        known = list(pods)
        return self.random.choice(known) if known else None

    @property
    def _pods(self) -> list[str]:
        return [*self._claims]

    @property
    def _claims(self) -> dict[str, tuple[str, ...]]:
        return {**self.waiting, **self.starting, **self.living, **self.ending}

    @property
    def _last_event(self) -> str:
        return next(reversed(self.kubelet.events), "no event")

    @property
    def _tail(self) -> str:
        return f"after {len(self.story)} steps, the last ones: {' '.join(self.story[-12:])}"


def serving(node: ScratchNode) -> int:
    """Return the pid of the daemon that serves, be it a successor."""
    return int(node.status()["pid"])
