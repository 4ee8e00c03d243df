"""How many functions of nodeplug one request enters on its road, and how many threads: `python -m bench.roads`.

As root. No machine makes these figures better: an ADD of `bridge` with `host-local`, an Allocate of `hostdev`, and a
mount and an unmount of `tmpfs`, each through its real caller. Counted is what every one of several requests entered, in
the daemon and its bundled plugins; comprehensions are no functions. With `--list` the functions are named.
"""

import argparse
import asyncio
import json
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Final, Self

from nodeplug import Claim, Host, Pod, hookimpl
from nodeplug.testing import Kubelet, ScratchNode
from nodeplug.testing.flex_caller import FlexVolume
from nodeplug.testing.pods import CniRuntimeFactory, FlexCallers
from nodeplug.testing.rig import scratch_node
from nodeplug.testing.waiting import until

RESOURCE: Final = "bench.nodeplug.io/null"
PLUGINS: Final = f"""
[plugins.bridge.config]
data_dir = "{{scratch}}/addresses"
[plugins.tmpfs]
[plugins.hostdev]
[[plugins.hostdev.config.resources]]
resource = "{RESOURCE}"
[[plugins.hostdev.config.resources.groups]]
count = 4
nodes = [{{ path = "/dev/null" }}]
[plugins.roads]
uses = "bench.roads:Roads"
isolation = "thread"
"""
NETWORK: Final = {
    "cniVersion": "1.1.0",
    "name": "net",
    "plugins": [
        {
            "type": "nodeplug-bridge",
            "bridge": "br0",
            "isDefaultGateway": True,
            "ipMasq": True,
            "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.88.0.0/24"}]]},
        }
    ],
}
TIMES: Final = 8
"""How often each request is made: what one of them enters by chance, a clock of the daemon's own, drops out."""
_SOURCES: Final = tuple(str(Path(__file__).parents[1] / folder) for folder in ("supervisor", "plugins"))
_BEGIN, _END, _ROAD = "begin", "end", "road.json"


@dataclass(frozen=True, slots=True)
class Road:
    """What a request always takes.

    Attributes:
        entered: the functions, as `module.name`.
        threads: how many it starts.
    """

    entered: frozenset[str]
    threads: int

    @classmethod
    def read(cls, file: Path) -> Self:
        """Read what the plugin wrote."""
        told = json.loads(file.read_text())
        return cls(frozenset(told["entered"]), told["threads"])

    def __str__(self) -> str:
        return f"{len(self.entered)} functions, {self.threads} threads"


class Roads:
    """A plugin that notes the functions which the daemon enters between two files, `begin` and `end`."""

    def __init__(self, config: dict[str, object], host: Host) -> None:
        del config
        self._folder = host.run_dir
        self._entered: set[str] | None = None
        self._threads = 0
        self._loop_watched = False
        self._run = asyncio.events.Handle._run  # noqa: SLF001 - the loop's thread is reached by nothing else

    @hookimpl
    def claims(self) -> Sequence[Claim]:
        """Claim nothing."""
        return []

    @hookimpl
    def start(self) -> None:
        """Watch the loop, and every thread from now on."""
        threading.setprofile(self._note)
        begin = threading.Thread.start

        def counted(thread: threading.Thread) -> None:
            self._threads += 1
            begin(thread)

        def watched(handle: Any) -> None:
            if not self._loop_watched:
                self._loop_watched = True
                sys.setprofile(self._note)
            self._run(handle)

        setattr(asyncio.events.Handle, "_run", watched)  # noqa: B010 - mypy knows the method as final
        threading.Thread(target=self._obey, name="bench:roads", daemon=True).start()
        setattr(threading.Thread, "start", counted)  # noqa: B010 - as above

    def _note(self, frame: FrameType, event: str, _: object) -> None:
        entered, code = self._entered, frame.f_code
        if event != "call" or entered is None or not code.co_filename.startswith(_SOURCES):
            return
        if not code.co_name.startswith("<"):
            entered.add(f"{Path(code.co_filename).stem}.{code.co_qualname}")

    def _obey(self) -> None:
        while True:
            time.sleep(0.01)
            if (self._folder / _BEGIN).exists():
                self._entered, self._threads = set(), 0
                (self._folder / _BEGIN).unlink()
            if (self._folder / _END).exists():
                entered, self._entered = self._entered, None
                told = {"entered": sorted(entered or ()), "threads": self._threads}
                (self._folder / _ROAD).write_text(json.dumps(told))
                (self._folder / _END).unlink()


def road_of(node: ScratchNode, request: Callable[[int], object]) -> Road:
    """Make a request several times; return what each of them took."""
    folder, seen = node.paths.run / "plugins" / "roads", []
    request(0)  # what is made once, a bridge or a module, is no part of the road
    for number in range(1, TIMES + 1):
        _tell(folder / _BEGIN)
        request(number)
        _tell(folder / _END)
        seen.append(Road.read(folder / _ROAD))
    entered = frozenset.intersection(*(one.entered for one in seen))
    if not entered:
        raise RuntimeError("no request entered a function of nodeplug: the plugin that counts is not in the daemon")
    return Road(entered, min(one.threads for one in seen))


def _tell(file: Path) -> None:
    file.touch()
    until(lambda: not file.exists(), found=lambda: f"the plugin has not taken {file}")


def measure() -> dict[str, Road]:
    """Return the road of each request."""
    roads: dict[str, Road] = {}
    with scratch_node(PLUGINS, may_stay=[".*"]) as node:
        networks, volumes = CniRuntimeFactory(node), FlexCallers(node)
        runtime, driver = networks(NETWORK), volumes("nodeplug/tmpfs")
        roads["ADD"] = road_of(node, lambda n: runtime.add(f"c{n}", networks.sandbox(f"c{n}").path))
        roads["Allocate"] = asyncio.run(_allocations(node))
        volume = FlexVolume("data", {"size": "1Mi"})
        roads["mount"] = road_of(node, lambda n: driver.mount(Pod(uid=f"p{n}"), volume))
        roads["unmount"] = road_of(node, lambda n: driver.unmount(Pod(uid=f"p{n}"), volume.name))
        volumes.close()
        networks.close()
    return roads


async def _allocations(node: ScratchNode) -> Road:
    loop = asyncio.get_running_loop()
    async with Kubelet(node.root / "var/lib/kubelet") as kubelet:
        await kubelet.until_allocatable(RESOURCE, 4)

        def admit(number: int) -> None:
            asyncio.run_coroutine_threadsafe(kubelet.admit(f"p{number}", {RESOURCE: 1}), loop).result()
            kubelet.remove_pod(f"p{number}")

        return await asyncio.to_thread(road_of, node, admit)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="bench.roads", description=__doc__)
    parser.add_argument("--list", action="store_true", help="name the functions, too")
    named = parser.parse_args().list
    for request, road in measure().items():
        print(f"{request}: {road}")
        if named:
            print("".join(f"  {name}\n" for name in sorted(road.entered)), end="")


if __name__ == "__main__":
    main()
