"""Claims and pods on a node whose daemon, kubelet and API server suffer whatever may happen.

Owns: random steps.
Refuses: to judge (`cluster`). Every choice comes from the seed; what the daemon does meanwhile does not, so a seed does
not repeat a run exactly.
"""

import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from tests.node.dra.cards_guest import HANG
from tests.node.dra.cluster import DRIVER, Cluster, Lost, serving
from tests.node.dra.objects import wants_part

from nodeplug.testing.dra import Pending, UnprepareFailed
from nodeplug.testing.waiting import until

_MOST: Final = 12
"""Pods at once."""


@dataclass
class DraTorture(Cluster):
    """What may happen."""

    _number: int = 0

    def play(self, steps: int) -> None:
        """Do so many random steps, and look after each."""
        known = self._weights()
        for step in self.random.choices([*known], weights=[*known.values()], k=steps):
            self.story.append(step.__name__)
            step()
            self.try_again()
            self.look()

    def _weights(self) -> Mapping[Callable[[], None], int]:
        """How often each thing happens; the daemon takes its time to start."""
        return {
            self.begin_pod: 30,
            self.end_pod: 20,
            self.force_pod: 6,
            self.share_claim: 4,
            self.restart_kubelet: 4,
            self.forget_pod: 2,
            self.new_sandbox: 4,
            self.kill_daemon: 2,
            self.kill_while_preparing: 2,
            self.kill_while_unpreparing: 2,
            self.kill_at_any_moment: 2,
            self.lose_spec: 1,
            self.harm_card: 4,
            self.exchange_plugin: 2,
            self.upgrade_daemon: 1,
            self.lose_api: 2,
            self.wipe_slices: 2,
            self.cut_watch: 2,
        }

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
            self.delete(pod)

    def force_pod(self) -> None:
        """Delete a pod with --force: its claims are free before kubelet has heard of it."""
        if pod := self._any(self.living):
            self.scheduler.free(pod)
            self.delete(pod)

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
        with Hanging(self.folder):
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
        self.delete(pod)
        with Hanging(self.folder):
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
            self.delete(pod)
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

    def exchange_plugin(self) -> None:
        """Change the section, so that the daemon exchanges the plugin."""
        self._number += 1
        self.node.configure(f"{self.configuration}config.mark = {self._number}\n")
        os.kill(serving(self.node), signal.SIGHUP)

    def upgrade_daemon(self) -> None:
        """Have another daemon take the place of the one that serves."""
        done = self.node.run("replace")
        if done.returncode:
            raise Lost(f"no daemon took over: {done.stdout}{done.stderr}; {self._tail}")
        until(lambda: any(one.connected for one in self.kubelet.instances.of(DRIVER)))

    def lose_api(self) -> None:
        """Have no API server for a while in which pods begin and end."""
        with self.api.failing(self.random.choice(["away", "broken", "lost answer", "slow", "conflict"])):
            self.begin_pod()
            self.end_pod()
            self.random.choice([self.harm_card, self.wipe_slices, self.kill_daemon, self.end_pod])()
            self.try_again()

    def wipe_slices(self) -> None:
        """Have somebody delete all slices."""
        self.api.wipe()

    def cut_watch(self) -> None:
        """Break every watch."""
        self.api.cut()


@dataclass
class Hanging:
    """For the length of a block, hooks of the plugin do not return."""

    folder: Path

    def __enter__(self) -> None:
        for name in ("in-allocate", "in-released"):
            (self.folder / name).unlink(missing_ok=True)
        (self.folder / HANG).touch()

    def __exit__(self, *_: object) -> None:
        (self.folder / HANG).unlink()
