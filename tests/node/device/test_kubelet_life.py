"""Random lives of the stand-in with one plugin: whatever happens, its books are in order."""

import asyncio
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodeplug.pb import deviceplugin_v1beta1_pb2 as pb
from nodeplug.testing import AdmissionError, Kubelet
from nodeplug.testing.kubelet import ContainerKey
from nodeplug.testing.kubelet.recording import RecordingPlugin

pytestmark = pytest.mark.unprivileged

RESOURCE = "example.com/thing"
NAMES = [f"d{number}" for number in range(6)]
steps = st.lists(
    st.one_of(
        st.tuples(st.just("admit"), st.integers(0, 4), st.integers(0, 4)),
        st.tuples(st.just("remove"), st.integers(0, 30), st.just(0)),
        st.tuples(st.just("finish"), st.integers(0, 30), st.just(0)),
        st.tuples(st.just("flip"), st.integers(0, 5), st.just(0)),
        st.tuples(st.sampled_from(["register", "end", "restart", "reboot"]), st.just(0), st.just(0)),
    ),
    max_size=25,
)


@dataclass
class Life:
    """A kubelet and its plugin, and what a test believes of them."""

    kubelet: Kubelet
    plugin: RecordingPlugin
    pods: list[str] = field(default_factory=list)
    born: int = 0

    async def admit(self, size: int, first: int) -> None:
        """Run a pod of an init container, when `first` is not 0, and an app container."""
        self.born += 1
        pod = f"pod{self.born}"
        before, given_before = self.owned(), len(self.plugin.allocated)
        try:
            if first:
                await self.kubelet.admit(pod, {RESOURCE: first}, container="prepare", init=True, lenient=True)
            got = await self.kubelet.admit(pod, {RESOURCE: size}, lenient=True)
        except AdmissionError:
            self.check_given(given_before, before)
            return
        self.pods.append(pod)
        self.check_given(given_before, before)
        entry = self.kubelet.ledger.entries.get((ContainerKey("default", pod, "main"), RESOURCE))
        assert (entry is None) == (not got)
        assert entry is None or len(entry.ids) == size

    def owned(self) -> frozenset[str]:
        return frozenset(
            name
            for (key, _), entry in self.kubelet.ledger.entries.items()
            if key.pod in self.pods
            for name in entry.ids
        )

    def check_given(self, since: int, owned: frozenset[str]) -> None:
        for ids in self.plugin.allocated[since:]:
            assert not ids & owned, "a device of another pod"
            assert all(self.plugin.healthy[name] for name in ids), "an unhealthy device"

    async def remove(self, number: int, _: int, *, finished: bool = False) -> None:
        if self.pods:
            pod = self.pods.pop(number % len(self.pods))
            (self.kubelet.finish_pod if finished else self.kubelet.remove_pod)(pod)

    async def finish(self, number: int, _: int) -> None:
        await self.remove(number, 0, finished=True)

    async def flip(self, number: int, _: int) -> None:
        self.plugin.mark(**{NAMES[number]: not self.plugin.healthy[NAMES[number]]})

    async def register(self, *_: int) -> None:
        await self.end()
        await self.plugin.register()

    async def end(self, *_: int) -> None:
        await self.plugin.stop()

    async def restart(self, *_: int) -> None:
        await self.kubelet.restart()
        await self.plugin.stop()
        rejected = await self.kubelet.readmit()
        self.pods = [pod for pod in self.pods if ("default", pod) not in rejected]

    async def reboot(self, *_: int) -> None:
        rejected = await self.kubelet.reboot()
        await self.plugin.stop()
        self.pods = [pod for pod in self.pods if ("default", pod) not in rejected]

    async def settle(self) -> None:
        """Wait until kubelet knows the plugin's devices, which are none when it is away."""
        healthy = sum(self.plugin.healthy.values()) if self.plugin.server is not None else 0
        await self.kubelet.until_allocatable(RESOURCE, healthy)
        if self.plugin.server is not None:
            wanted = {name for name, good in self.plugin.healthy.items() if good}

            def listed() -> bool:
                table = self.kubelet.resources[RESOURCE].table
                return table is not None and table.healthy.keys() == wanted

            await self.kubelet.until(listed)
            assert self.kubelet.capacity(RESOURCE) == len(NAMES)

    def check(self) -> None:
        entries = self.kubelet.ledger.entries.items()
        holders: dict[str, set[str]] = {}
        for (key, _), entry in entries:
            for name in entry.ids:
                holders.setdefault(name, set()).add(key.pod)
        assert all(len(pods) == 1 for pods in holders.values()), "one device, two pods"
        assert holders.keys() <= self.kubelet.ledger.in_use.get(RESOURCE, set())


async def live(root: Path, life: list[tuple[str, int, int]], *, old_style: bool, seed: int) -> None:
    async with asyncio.timeout(60), Kubelet(root, old_style=old_style, seed=seed) as kubelet:
        options = pb.DevicePluginOptions(get_preferred_allocation_available=bool(seed % 2))
        plugin = RecordingPlugin(RESOURCE, kubelet.device_plugins, dict.fromkeys(NAMES, True), options=options)
        lived = Life(kubelet, plugin)
        try:
            for verb, *numbers in [("register", 0, 0), *life]:
                await getattr(lived, verb)(*numbers)
                await lived.settle()
                lived.check()
        finally:
            await plugin.stop()


@pytest.mark.whole
@settings(max_examples=80)
@given(life=steps, old_style=st.booleans(), seed=st.integers(0, 9))
def test_books_are_in_order_in_every_life(life: list[tuple[str, int, int]], *, old_style: bool, seed: int) -> None:
    with tempfile.TemporaryDirectory(prefix="np") as folder:
        asyncio.run(live(Path(folder), life, old_style=old_style, seed=seed))
