"""Claims and pods on a node whose daemon, kubelet and API server suffer whatever may happen.

Owns: random steps, what kubelet and the scheduler try again by themselves, and what must be true after each step.
Every choice comes from the seed; what the daemon does meanwhile does not, so a seed does not repeat a run exactly.
"""

import json
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final

from tests.node.dra.cards_guest import HANG, SIZE
from tests.node.dra.objects import wants_part

from nodeplug.fields import parse_quantity
from nodeplug.hosts import CLAIMS
from nodeplug.testing import ScratchNode
from nodeplug.testing.dra import (
    DraKubelet,
    Pending,
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
_MOST: Final = 12
"""Pods at once."""


class Lost(AssertionError):
    """A promise was broken."""


@dataclass
class DraTorture:
    """One node and everybody around it.

    Attributes:
        node: its daemon is killed.
        folder: of the plugin.
        cdi: of the specs.
        random: chooses.
        starting: pods that were placed and do not run yet, with their claims.
        living: pods that run, with their claims.
        ending: pods that are to end.
        story: what was done, for people.
        ids: what each claim has got, by uid and request, from its first time on.
        kills: of the daemon.
        lives: pods that ended.
    """

    node: ScratchNode
    api: ResourceApi
    scheduler: Scheduler
    kubelet: DraKubelet
    folder: Path
    cdi: Path
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
    _number: int = 0

    # --- steps ------------------------------------------------------------------------------------------------------

    def play(self, steps: int) -> None:
        """Do so many random steps, and look after each."""
        known: Mapping[Callable[[], None], int] = {
            self.begin_pod: 30,
            self.end_pod: 20,
            self.force_pod: 6,
            self.share_claim: 4,
            self.restart_kubelet: 4,
            self.forget_pod: 2,
            self.new_sandbox: 4,
            self.kill_daemon: 3,
            self.kill_while_preparing: 3,
            self.kill_while_unpreparing: 3,
            self.kill_at_any_moment: 3,
            self.lose_spec: 1,
            self.harm_card: 4,
            self.wipe_slices: 2,
            self.cut_watch: 2,
        }
        for step in self.random.choices([*known], weights=[*known.values()], k=steps):
            self.story.append(step.__name__)
            step()
            self.try_again()
            self.look()

    def begin_pod(self) -> None:
        """Make a pod with a claim of one or two requests."""
        if len(self._pods) >= _MOST:
            return
        self._number += 1
        pod, claim = f"p{self._number}", f"claim-{self._number}"
        sizes = self.random.choices(range(1, 7), k=self.random.choice([1, 1, 1, 2]))
        requests = [wants_part(f"{size}Gi", f"r{index}") for index, size in enumerate(sizes)]
        self.scheduler.claim(claim, *requests, pod=pod if self.random.random() < 0.7 else "")
        self._place(pod, (claim,))

    def share_claim(self) -> None:
        """Make a pod that uses a claim of another one."""
        if not self.living or len(self._pods) >= _MOST:
            return
        self._number += 1
        claims = self.random.choice(list(self.living.values()))
        if all(self.api.get("resourceclaims", one, "default") for one in claims):
            self._place(f"p{self._number}", claims)

    def _place(self, pod: str, claims: tuple[str, ...]) -> None:
        try:
            self.scheduler.place(pod, claims)
        except Pending:
            self.waiting[pod] = claims
        else:
            self.starting[pod] = claims

    def end_pod(self) -> None:
        """Delete a pod, whatever it does."""
        if pod := self._any([*self.living, *self.starting, *self.waiting]):
            self._delete(pod)

    def force_pod(self) -> None:
        """Delete a pod with --force: its claims are free before kubelet has heard of it."""
        if pod := self._any(self.living):
            self.scheduler.free(pod)
            self._delete(pod)

    def _delete(self, pod: str) -> None:
        if self.waiting.pop(pod, None) is not None:
            self.scheduler.free(pod)
            return
        self.ending[pod] = (self.living if pod in self.living else self.starting).pop(pod)

    def restart_kubelet(self) -> None:
        """Restart kubelet, which deletes all slices."""
        self.kubelet.restart()
        self.kubelet.until_registered(DRIVER)

    def forget_pod(self) -> None:
        """Have a pod's object go while kubelet is away."""
        self.kubelet.stop()
        if (pod := self._any(self.living)) is not None:
            self.kubelet.forget(pod)
            self.scheduler.free(pod)
            del self.living[pod]
            self.orphaned = True
        self.kubelet.start()
        self.kubelet.until_registered(DRIVER)

    def new_sandbox(self) -> None:
        """Have a sandbox made anew, after a restart of kubelet or without."""
        if self.random.random() < 0.5:
            self.restart_kubelet()
        if (pod := self._any(self.living)) is not None and self._usable(self.living[pod]):
            until(lambda: self._succeeds(lambda: self.kubelet.new_sandbox(pod)), found=lambda: self._last_event)

    def kill_daemon(self) -> None:
        """Kill the daemon, do something without it, and start it."""
        self._kill()
        self.random.choice([self.begin_pod, self.end_pod, self.force_pod, self.kubelet.restart])()
        self.try_again()
        self._start()

    def kill_while_preparing(self) -> None:
        """Kill the daemon while the plugin grants."""
        self.begin_pod()
        if not self.starting:
            return
        pod, claims = self.random.choice([*self.starting.items()])
        with self._hanging():
            thread = threading.Thread(target=self._succeeds, args=(partial(self.kubelet.admit, pod, claims),))
            thread.start()
            entered = self.folder / "in-allocate"
            until(lambda: entered.exists() or not thread.is_alive())
            self._kill()
        thread.join()
        self._start()

    def kill_while_unpreparing(self) -> None:
        """Kill the daemon while the plugin hears of the end of a claim."""
        if (pod := self._any(self.living)) is None:
            return
        self._delete(pod)
        with self._hanging():
            with suppress(UnprepareFailed):
                self._end(pod)
            if self.random.random() < 0.5:
                time.sleep(self.random.random() / 10)
            self._kill()
        self._start()

    def kill_at_any_moment(self) -> None:
        """Kill the daemon some milliseconds after kubelet has begun to start one pod and to end another."""
        self.begin_pod()
        threads = [
            threading.Thread(target=self._succeeds, args=(partial(self.kubelet.admit, pod, claims),))
            for pod, claims in self.starting.items()
        ]
        if (pod := self._any(self.living)) is not None:
            self._delete(pod)
            threads.append(threading.Thread(target=self._quietly, args=(partial(self.kubelet.end, pod),)))
        for thread in threads:
            thread.start()
        time.sleep(self.random.random() / 20)
        self._kill()
        for thread in threads:
            thread.join()
        self._start()

    def lose_spec(self) -> None:
        """Remove one spec or all; nothing but the daemon brings them back."""
        found = sorted(self.cdi.glob("*.json"))
        for path in found if self.random.random() < 0.3 else found[:1]:
            path.unlink()
        if self.random.random() < 0.8:  # or else its timer has to do it
            self._kill()
            self._start()

    def harm_card(self) -> None:
        """Have a card smoke, or be well again."""
        cards = self._cards()
        card = self.random.choice(sorted(cards))
        self._write_cards({**cards, card: -cards[card]})

    def wipe_slices(self) -> None:
        """Have somebody delete all slices."""
        self.api.wipe()

    def cut_watch(self) -> None:
        """Break every watch."""
        self.api.cut()

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
                self._delete(pod)

        def ended() -> bool:
            self.try_again()
            return not self._pods and not self.orphaned

        until(ended, found=lambda: f"{self._pods} {self._last_event}; {self._tail}")
        until(lambda: not self.left(), found=lambda: f"left: {self.left()}; {self._tail}")
        self.node.configure("")
        self.node.reload()
        until(lambda: not self.api.slices(), found=lambda: f"slices stay; {self.node.log[-2000:]}")
        until(lambda: not list(self.kubelet.plugins_registry.iterdir()), found=lambda: "a socket stays")

    def left(self) -> list[str]:
        """What may not be there when every pod has ended: records, specs, what the plugin has granted, claims."""
        folders = (self.cdi, self.folder / "held", self.node.paths.journal / CLAIMS)
        files = [str(path) for one in folders if one.is_dir() for path in one.rglob("*") if path.is_file()]
        claims = [str(one["metadata"]["name"]) for one in self.api.listed("resourceclaims")]
        return files + claims + [str(place) for place in self.kubelet.prepared.claims]

    # --- the node ---------------------------------------------------------------------------------------------------

    def _kill(self) -> None:
        self.node.kill()
        self.kills += 1

    def _start(self) -> None:
        self.node.start()
        self.kubelet.until_registered(DRIVER)

    def _hanging(self) -> "_Hanging":
        return _Hanging(self.folder)

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


@dataclass
class _Hanging:
    """For the length of a block, hooks of the plugin do not return."""

    folder: Path

    def __enter__(self) -> None:
        for name in ("in-allocate", "in-released"):
            (self.folder / name).unlink(missing_ok=True)
        (self.folder / HANG).touch()

    def __exit__(self, *_: object) -> None:
        (self.folder / HANG).unlink()
