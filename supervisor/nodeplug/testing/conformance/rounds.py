"""Rounds of calls to a plugin in a process of its own, and what that process had after each few of them.

Owns: what a round is, by the claims and hooks of the plugin, and when enough of them were seen.
Refuses: to judge, and to mind that a call is refused: other rules are about that.
"""

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Final

from nodeplug.contract.errors import PluginError
from nodeplug.exec.client import ask
from nodeplug.testing import processes
from nodeplug.testing.conformance.device import sockets
from nodeplug.testing.conformance.driver import Volume
from nodeplug.testing.conformance.examination import SECTION, Examination
from nodeplug.testing.conformance.extender import filter_once
from nodeplug.testing.conformance.network import Network
from nodeplug.testing.conformance.plugin_socket import PluginSocket
from nodeplug.testing.conformance.verdict import Broken, NotApplicable

ROUNDS: Final = 10
"""Between two samples."""
_LOOKS: Final = 4
"""How many times in a row a process must have grown; one that has not is looked at no longer."""
_FAST: Final = 10
"""Calls in a round that take no executable."""
POLL: Final = 0.05
"""Seconds between two lists meanwhile: each round has at least one."""
_MORE_MEMORY: Final = 2 << 20
_MORE_DESCRIPTORS: Final = ROUNDS // 2

Call = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Sample:
    """What a process had at one time: bytes of memory, and how many descriptors of what."""

    memory: int
    descriptors: Counter[str]


@dataclass(slots=True)
class Rounds:
    """What was seen.

    Attributes:
        calls: what a round consists of, in words.
        samples: in order; each but the first is one after `ROUNDS` rounds more.
    """

    calls: str
    samples: list[Sample] = field(default_factory=list)

    @property
    def memory_grows(self) -> bool:
        """Whether there was notably more memory in each sample than in the one before."""
        return self._grows(lambda sample: sample.memory, _MORE_MEMORY)

    @property
    def descriptors_grow(self) -> bool:
        """Whether there were notably more descriptors in each sample than in the one before."""
        return self._grows(lambda sample: sample.descriptors.total(), _MORE_DESCRIPTORS)

    def _grows(self, of: Callable[[Sample], int], more: int) -> bool:
        values = [of(sample) for sample in self.samples]
        return all(after - before >= more for before, after in pairwise(values))


def rounds(exam: Examination) -> Rounds:
    """Play rounds until it is known whether memory or descriptors grow; once for all rules.

    Raises:
        NotApplicable: there is nothing to call, or the process ended meanwhile.
        Broken: the plugin does not run.
    """
    if not isinstance(exam.rounds, Rounds):
        with ExitStack() as stack:
            exam.rounds = _played(exam, dict(_calls(exam, stack)))
    return exam.rounds


def play_once(exam: Examination) -> None:
    """Play one round."""
    with ExitStack() as stack:
        for _, call in _calls(exam, stack):
            call()


def _played(exam: Examination, calls: dict[str, Call]) -> Rounds:
    if not calls:
        raise NotApplicable("there is nothing to call again and again here")
    seen, pid = Rounds(", ".join(calls)), exam.pid
    while not seen.samples or (len(seen.samples) <= _LOOKS and (seen.memory_grows or seen.descriptors_grow)):
        for _ in range(ROUNDS):
            end = time.monotonic() + POLL * exam.slowness
            for call in calls.values():
                call()
            time.sleep(max(0.0, end - time.monotonic()) if "device" in exam.claims else 0.0)
        try:
            open_now = Counter(name.partition(":[")[0] for name in processes.descriptors(pid).values())
            seen.samples.append(Sample(processes.memory(pid), open_now))
        except OSError:
            raise NotApplicable("its process ended meanwhile") from None
    return seen


def _calls(exam: Examination, stack: ExitStack) -> Iterator[tuple[str, Call]]:
    """Say what a round consists of: each is a name and a function that raises nothing."""
    node = exam.node
    if "inspect" in exam.hooks:
        yield "inspect", _often(partial(ask, node.paths.exec_socket, "inspect", SECTION))
    if "device" in exam.claims:
        yield "device_list", lambda: None  # the daemon itself calls it often
        with suppress(Broken, NotApplicable):
            for resource, path in sockets(exam).items():
                socket = stack.enter_context(PluginSocket(path, exam.patience))
                if ids := sorted(socket.devices()):
                    yield f"Allocate of {resource}", _often(partial(_allocate, socket, ids))
    for claim in exam.claims.get("extender", ()) if "extender_filter" in exam.hooks else ():
        yield f"filter of {claim}", _often(partial(filter_once, exam, claim))
    if os.geteuid() != 0:
        return
    if "cni" in exam.claims:
        with suppress(Broken, NotApplicable):
            network = Network.of(exam)
            yield "ADD and DEL", _quiet(partial(_attach, network))
    for driver in exam.claims.get("volume", ()):
        with suppress(Broken, NotApplicable):
            volume = Volume(exam, driver)
            volume.mount()
            _unmount(volume)
            yield f"mount and unmount of {driver}", _quiet(partial(_mount, volume))


def _often(call: Call) -> Call:
    def calls() -> None:
        for _ in range(_FAST):
            _quiet(call)()

    return calls


def _quiet(call: Call) -> Call:
    def quiet() -> None:
        with suppress(PluginError, Broken):
            call()

    return quiet


def _allocate(socket: PluginSocket, ids: list[str]) -> None:
    socket.allocate(socket.choose(ids, 1))


def _attach(network: Network) -> None:
    with network.container() as container:
        network.attach(container)
        network.detach(container)


def _mount(volume: Volume) -> None:
    volume.mount()
    _unmount(volume)


def _unmount(volume: Volume) -> None:
    volume.unmount()
    volume.release()
