"""`nodeplug demo`: a pod's whole life against a real daemon, step by step.

Owns: the story, its node (a temporary folder and its own namespaces), and the check that nothing is left.
Refuses: stand-ins of its own: the callers are those of `nodeplug.testing`, the daemon a `nodeplug serve` process.

It runs as root or as an ordinary user, by starting itself again with `unshare` in its own user, network and mount
namespace: a process with threads cannot enter a user namespace.
"""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from ipaddress import ip_interface
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.text import Text

from nodeplug.cli import tables
from nodeplug.commands import console
from nodeplug.contract.errors import NotReady, PluginError
from nodeplug.contract.mounts import mounted_at
from nodeplug.contract.values import Pod
from nodeplug.install.scripts import find_scripts
from nodeplug.process.environment import copy_environment
from nodeplug.testing import (
    AdmissionError,
    CniRuntime,
    FlexCaller,
    FlexVolume,
    Kubelet,
    Sandbox,
    ScratchNode,
    folders,
    namespaces,
)
from nodeplug.testing.inventory import Inventory

_INSIDE: Final = "NODEPLUG_DEMO_INSIDE"
DRIVER: Final = "nodeplug/tmpfs"
_TOLD_PATIENCE: Final = 10.0
_KILLED: Final = "hostdev"
RESOURCE: Final = "demo.nodeplug.io/fuse" if Path("/dev/fuse").exists() else "demo.nodeplug.io/null"
UNITS: Final = 4
MEMORY: Final = "demo.nodeplug.io/gpu-mem"
SHARERS: Final = {"trainer": 5, "server": 2}
"""Units of GPU memory by pod: both fit on the larger card (8 units) and leave 1 there, and 4 on the other."""
POD: Final = Pod(name="web", namespace="default", uid="0001")
CACHE: Final = FlexVolume("cache", {"size": "8Mi"})


def run() -> int:
    """Play the demo in its own namespaces; return the exit status, 0 when everything worked and nothing was left.

    Raises:
        NotReady: this user may not create namespaces here.
    """
    if os.environ.get(_INSIDE):
        return _play(console())
    return _start_again_inside()


def _start_again_inside() -> int:
    inside = namespaces.command(network=True)
    probe = subprocess.run([*inside, "true"], check=False, capture_output=True, text=True)
    if probe.returncode and os.geteuid() != 0:
        raise NotReady("this machine does not let an ordinary user make namespaces; run the demo as root")
    if probe.returncode:
        raise NotReady(f"root cannot make namespaces here: {probe.stderr.strip()}")
    command = [*inside, sys.executable, "-m", "nodeplug", "demo"]
    return subprocess.run(command, env={**copy_environment(), _INSIDE: "1"}, check=False).returncode


def _play(screen: Console) -> int:
    started = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="nodeplug-demo-", dir="/tmp"))
    try:
        with ExitStack() as stage:
            left = asyncio.run(_Story(screen, folder, stage).tell())
    except PluginError as error:
        screen.print(f"[red]✗ {error}[/red]")
        return 1
    finally:
        folders.unmount_below(folder)  # mounts of a failed demo, in its own namespace
        folders.remove(folder)
    if left:
        screen.print("[red]✗ something is left:[/red]", *left, sep="\n  ")
        return 1
    seconds = time.monotonic() - started
    screen.print(f"[green]✓ nothing is left: no link, mount, address, nft rule or file ({seconds:.1f} s)[/green]")
    return 0


@dataclass(slots=True)
class _Story:
    """One node, one pod with two sandboxes, from admission to removal."""

    console: Console
    folder: Path
    cleanup: ExitStack

    @property
    def _pools(self) -> Path:
        return self.folder / "addresses"

    async def tell(self) -> list[str]:
        before = await asyncio.to_thread(Inventory.take)
        node = self._node()
        async with Kubelet(node.root / "var" / "lib" / "kubelet") as kubelet:
            await self._devices(kubelet)
            await self._gpus(node, kubelet)
            runtime, sandboxes = self._network(node)
            flex = self._volume(node)
            await asyncio.to_thread(self._status, node)
            await self._kill_plugin(node, kubelet)
            await asyncio.to_thread(self._crash, node, runtime)
            await self._end(kubelet, runtime, flex)
        for sandbox in sandboxes.values():
            sandbox.close()
        await asyncio.to_thread(node.stop)
        after = await asyncio.to_thread(Inventory.take, self._pools)
        return leftovers(after.since(before), self.folder)

    def _node(self) -> ScratchNode:
        root = self.folder / "n"
        root.mkdir()
        config = (find_scripts().parent / "configs" / "demo.toml").read_text(encoding="utf-8")
        for allocator in ("bridge", "host-local"):  # leave the machine's own pools alone
            config += f'[plugins.{allocator}.config]\ndata_dir = "{self._pools}"\n'
        node = ScratchNode(root, config, whole=True)
        with self._step("daemon", "nodeplug serve --config configs/demo.toml") as told:
            self.cleanup.callback(node.stop)
            node.start()
            names = [plugin["name"] for plugin in node.status()["plugins"] if plugin["state"] == "running"]
            told.append(f"pid {node.pid} runs {', '.join(names)}")
        with self._step("install", "nodeplug install") as told:
            done = node.run("install")
            if done.returncode:
                raise PluginError(f"nodeplug install failed: {done.stderr.strip()}")
            told.append(", ".join(sorted(path.name for path in node.paths.cni_bin.glob("[!.]*"))))
        return node

    async def _devices(self, kubelet: Kubelet) -> None:
        with self._step("kubelet", "Register, ListAndWatch") as told:
            await kubelet.until_allocatable(RESOURCE, UNITS)
            told.append(", ".join(f"{name}: {kubelet.allocatable(name)}" for name in sorted(kubelet.resources)))
        with self._step("devices", f"pod web asks for one {RESOURCE}") as told:
            granted = await kubelet.admit("web", {RESOURCE: 1})
            nodes = [f"{spec.host_path} ({spec.permissions})" for spec in granted[RESOURCE].devices]
            told.append(f"Allocate grants {', '.join(nodes)}")

    async def _gpus(self, node: ScratchNode, kubelet: Kubelet) -> None:
        wanted = ", ".join(f"{name} for {units}" for name, units in SHARERS.items())
        with self._step("gpu", f"pods ask for units of GPU memory: {wanted}") as told:
            await kubelet.until(lambda: kubelet.allocatable(MEMORY) > 0)
            for name, units in SHARERS.items():
                env = (await kubelet.admit(name, {MEMORY: units}))[MEMORY].envs
                told.append(
                    f"{name} gets {env['ALIYUN_COM_GPU_MEM_CONTAINER']} of {env['ALIYUN_COM_GPU_MEM_DEV']} units"
                )
                told[-1] += f" of {env['NVIDIA_VISIBLE_DEVICES']}"
        left = kubelet.allocatable(MEMORY) - sum(SHARERS.values())
        with self._step("gpu", f"a pod asks for {left}, which is all that is left, on both cards together") as told:
            try:
                await kubelet.admit("large", {MEMORY: left})
            except AdmissionError as error:
                told.append(f"kubelet refuses it: {re.sub('^.* desc = |, which is unexpected$', '', str(error))}")
            await kubelet.until(lambda: kubelet.allocatable(MEMORY) < kubelet.capacity(MEMORY))
            withheld = kubelet.capacity(MEMORY) - kubelet.allocatable(MEMORY)
            told.append(f"{withheld} free on the other card is withheld: the next such pod waits for a scheduler")
        before, faults = kubelet.allocatable(MEMORY), node.paths.run / "plugins" / "gpu" / "simulated-faults.json"
        with self._step("gpu", "a card falls off the bus") as told:
            faults.write_text('{"cards": {"0": {"lost": true}}}', encoding="utf-8")
            await kubelet.until(lambda: kubelet.allocatable(MEMORY) < before)
            told.append(f"kubelet has {kubelet.allocatable(MEMORY)} healthy units of {kubelet.capacity(MEMORY)}")
        await asyncio.to_thread(_until_told, node)
        await asyncio.to_thread(self._picture, node)
        with self._step("gpu", "the card is back") as told:
            faults.unlink()
            await kubelet.until_allocatable(MEMORY, before)
            told.append(f"after its probation kubelet has {before} healthy units again")

    def _picture(self, node: ScratchNode) -> None:
        env = {**copy_environment(), "FORCE_COLOR": "1"} if self.console.is_terminal else None
        done = subprocess.run(node.command("gpu"), capture_output=True, text=True, check=False, env=env)
        self.console.print(Text.from_ansi(f"\n$ nodeplug gpu\n{done.stdout}{done.stderr}"))
        done.check_returncode()

    def _network(self, node: ScratchNode) -> tuple[CniRuntime, dict[str, Sandbox]]:
        source = find_scripts().parent / "configs" / "cni" / "10-nodeplug.conflist"
        runtime = CniRuntime.load(source, [node.paths.cni_bin])
        for plugin in runtime.conflist["plugins"]:
            plugin.get("ipam", {})["dataDir"] = str(self._pools)
        sandboxes, addresses = {}, {}
        for name in ("web", "client"):
            sandboxes[name] = Sandbox(self.folder / name)
            with self._step("network", f"CNI ADD {name}") as told:
                result = runtime.add(f"sandbox-{name}", sandboxes[name].path)
                addresses[name] = [ip_interface(ip["address"]).ip for ip in result["ips"]]
                told.append("eth0 has " + ", ".join(map(str, addresses[name])))
        for address in addresses["web"]:
            with self._step("network", f"client pings {address}") as told:
                told.append(f"answered in {sandboxes['client'].ping(address):.2f} ms")
        return runtime, sandboxes

    def _volume(self, node: ScratchNode) -> FlexCaller:
        flex = FlexCaller(node.paths.flexvolume, node.root / "var" / "lib" / "kubelet", DRIVER)
        with self._step("volume", f"FlexVolume mount of {DRIVER} for pod web, size 8Mi") as told:
            target = flex.mount(POD, CACHE)
            (target / "hello").write_text("written by the pod\n")
            found = mounted_at(str(target))
            told.append(f"{found.fs_type} ({','.join(found.options)})" if found else "nothing is mounted")
        with self._step("volume", "the pod writes more than its volume holds") as told:
            try:
                (target / "big").write_bytes(bytes(9 << 20))
            except OSError as error:
                told.append(f"{error.strerror}: the limit holds, the node's disk is not touched")
        return flex

    def _status(self, node: ScratchNode) -> None:
        _until_told(node)
        self.console.print()
        self.console.print(tables.status(node.status()))

    async def _kill_plugin(self, node: ScratchNode, kubelet: Kubelet) -> None:
        before = _process(await asyncio.to_thread(node.status))
        with self._step("crash", f"kill -9 of plugin {_KILLED}, process {before}; the pod web has its device") as told:
            os.kill(before, signal.SIGKILL)
            least = kubelet.allocatable(RESOURCE)
            while (after := _process(await asyncio.to_thread(node.status))) in {0, before}:
                least = min(least, kubelet.allocatable(RESOURCE))
            told.append(f"it is started again as process {after}; kubelet never saw fewer than {least} devices")
        with self._step("crash", f"another pod asks for one {RESOURCE}") as told:
            granted = await kubelet.admit("late", {RESOURCE: 1})
            told.append(f"Allocate grants {granted[RESOURCE].devices[0].host_path}")

    def _crash(self, node: ScratchNode, runtime: CniRuntime) -> None:
        with self._step("crash", "kill -9 of the daemon; CNI DEL client arrives meanwhile") as told:
            node.kill()
            runtime.delete("sandbox-client", self.folder / "client")
            told.append("DEL succeeds, kept in the spool")
        with self._step("crash", "the daemon is started again") as told:
            node.start()
            told.append(f"DEL is replayed, {node.status()['spool']} left in the spool")

    async def _end(self, kubelet: Kubelet, runtime: CniRuntime, flex: FlexCaller) -> None:
        with self._step("remove", "unmount, DEL, DEL once more, pod gone") as told:
            flex.unmount(POD, CACHE.name)
            for _ in range(2):  # containerd always sends two
                runtime.delete("sandbox-web", self.folder / "web")
            for name in ("web", "late", *SHARERS):
                kubelet.remove_pod(name)
            await kubelet.until_allocatable(RESOURCE, UNITS)
            told.append(f"kubelet has {kubelet.allocatable(RESOURCE)} devices to give again")

    @contextmanager
    def _step(self, act: str, what: str) -> Iterator[list[str]]:
        """Show the step at once, and its result when it is done."""
        told: list[str] = []
        started = time.perf_counter()
        with self.console.status(f"{act}: {what}"):
            yield told
        spent = (time.perf_counter() - started) * 1e3
        self.console.print(f"[green]✓[/green] [bold]{act:8}[/bold] {what} [dim]{spent:.0f} ms[/dim]")
        for line in told:
            self.console.print(f"           {line}", style="cyan", soft_wrap=True)


def _process(status: Mapping[str, Any]) -> int:
    """Return the process of the plugin that is killed; 0 while it has none."""
    (row,) = [one for one in status["plugins"] if one["name"] == _KILLED]
    return int(row["process"]["pid"]) if row["process"] and row["state"] == "running" else 0


def _until_told(node: ScratchNode) -> None:
    """Wait until kubelet reports the holders of the devices; on timeout, the demo shows what it has."""
    end = time.monotonic() + _TOLD_PATIENCE
    wanted = {RESOURCE: 1, MEMORY: sum(SHARERS.values())}
    while time.monotonic() < end:
        allocated = {one["resource"]: one["allocated"] for one in node.status()["resources"]}
        if all(allocated.get(name) == count for name, count in wanted.items()):
            gpus = json.loads(node.run("gpu", "--json").stdout or "{}")
            if not any(card["unconfirmed_units"] for one in gpus.values() for card in one["cards"]):
                return
        time.sleep(0.1)


def leftovers(difference: list[str], folder: Path) -> list[str]:
    """Drop what stays by design, and changes by others: loop devices belong to the whole machine.

    By design stay: the bridge with its addresses, its nftables table without pod addresses, the allocator's two files.
    """
    kept = re.compile(
        r"\+ (link nodeplug0|address \S+ on nodeplug0|nft (table|chain|rule|set) nodeplug_masquerade.*"
        r"|file .*/(lock|last_reserved_ip\.\d+))"
    )
    foreign = re.compile(rf"[+-] loop device (?!.*{re.escape(str(folder))}).*")
    return [line for line in difference if not kept.fullmatch(line) and not foreign.fullmatch(line)]
