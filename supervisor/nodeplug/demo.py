"""`nodeplug demo`: a pod's whole life against a real daemon, shown step by step.

Owns: the story, its stage (a temporary folder and namespaces of its own), and the proof that nothing is left.
Refuses: acting of its own: the callers are those of `nodeplug.testing`, the daemon is `nodeplug serve` as a process.

It runs as root or as an ordinary user: it starts itself again in a user, network and mount namespace of its own (the
util-linux tool `unshare`, because a process with threads cannot enter a user namespace).
"""

import asyncio
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from ipaddress import ip_interface
from pathlib import Path
from typing import Final

from rich.console import Console

from nodeplug import tables
from nodeplug.errors import NotReady, PluginError
from nodeplug.install.scripts import find_scripts
from nodeplug.mounts import mounted_at
from nodeplug.testing import CniRuntime, FlexCaller, FlexVolume, Kubelet, Sandbox, ScratchNode
from nodeplug.testing.inventory import Inventory
from nodeplug.values import Pod

_INSIDE: Final = "NODEPLUG_DEMO_INSIDE"
DRIVER: Final = "nodeplug/tmpfs"
_PIPE_WIDTH: Final = 130
RESOURCE: Final = "demo.nodeplug.io/fuse" if Path("/dev/fuse").exists() else "demo.nodeplug.io/null"
UNITS: Final = 4
POD: Final = Pod(name="web", namespace="default", uid="0001")
CACHE: Final = FlexVolume("cache", {"size": "8Mi"})


def run() -> int:
    """Play the demo in namespaces of its own.

    Returns:
        The exit status: 0 when everything worked and nothing was left.

    Raises:
        NotReady: this machine does not let an ordinary user make namespaces.
    """
    if os.environ.get(_INSIDE):
        return _Demo(_console()).play()
    return _start_again_inside()


def _console() -> Console:
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=_PIPE_WIDTH)


def _start_again_inside() -> int:
    unshare = shutil.which("unshare")
    if unshare is None:
        raise NotReady("the demo needs the tool `unshare` of util-linux; install util-linux, then try again")
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    inside = [unshare, *user, "--net", "--mount", "--propagation", "private", "--"]
    if user and subprocess.run([*inside, "true"], check=False, capture_output=True).returncode:
        raise NotReady("this machine does not let an ordinary user make namespaces; run the demo as root")
    command = [*inside, sys.executable, "-m", "nodeplug", "demo"]
    return subprocess.run(command, env={**os.environ, _INSIDE: "1"}, check=False).returncode


@dataclass(slots=True)
class _Demo:
    """The stage and the story."""

    console: Console
    started: float = field(default_factory=time.monotonic)

    def play(self) -> int:
        """Set up, play, clean up, count what is left."""
        folder = Path(tempfile.mkdtemp(prefix="nodeplug-demo-", dir="/tmp"))
        try:
            with ExitStack() as stage:
                left = asyncio.run(_Story(self.console, folder, stage).tell())
        except PluginError as error:
            self.console.print(f"[red]✗ {error}[/red]")
            return 1
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        seconds = time.monotonic() - self.started
        if left:
            self.console.print("[red]✗ something is left:[/red]", *left, sep="\n  ")
            return 1
        self.console.print(
            f"[green]✓ nothing is left: no link, mount, address, nft rule or file ({seconds:.1f} s)[/green]"
        )
        return 0


@dataclass(slots=True)
class _Story:
    """One node, one pod with two sandboxes, from admission to removal."""

    console: Console
    folder: Path
    stage: ExitStack

    async def tell(self) -> list[str]:
        """Play every act and return what was left behind."""
        before = await asyncio.to_thread(Inventory.take)
        node = self._node()
        async with Kubelet(node.root / "var" / "lib" / "kubelet") as kubelet:
            await self._devices(kubelet)
            runtime, sandboxes = self._network(node)
            flex = self._volume(node)
            await asyncio.to_thread(self._status, node)
            await asyncio.to_thread(self._crash, node, runtime)
            await self._end(kubelet, runtime, flex)
        for sandbox in sandboxes.values():
            sandbox.close()
        await asyncio.to_thread(node.stop)
        after = await asyncio.to_thread(Inventory.take, self.folder / "addresses")
        return _leftovers(after.since(before))

    def _node(self) -> ScratchNode:
        root = self.folder / "n"
        root.mkdir()
        config = (find_scripts().parent / "configs" / "demo.toml").read_text(encoding="utf-8")
        node = ScratchNode(root, config, whole=True)
        with self._step("daemon", "nodeplug serve --config configs/demo.toml") as told:
            self.stage.callback(node.stop)
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

    def _network(self, node: ScratchNode) -> tuple[CniRuntime, dict[str, Sandbox]]:
        source = find_scripts().parent / "configs" / "cni" / "10-nodeplug.conflist"
        runtime = CniRuntime.load(source, [node.paths.cni_bin])
        for plugin in runtime.conflist["plugins"]:
            plugin.get("ipam", {})["dataDir"] = str(self.folder / "addresses")
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
        time.sleep(0.3)  # one poll of podresources: who holds what
        self.console.print()
        self.console.print(tables.status(node.status()))

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
            kubelet.remove_pod("web")
            await kubelet.until_allocatable(RESOURCE, UNITS)
            told.append(f"kubelet has {kubelet.allocatable(RESOURCE)} devices to give again")

    @contextmanager
    def _step(self, act: str, what: str) -> Iterator[list[str]]:
        """Show what is tried at once, and what came of it when it is done."""
        told: list[str] = []
        started = time.perf_counter()
        with self.console.status(f"{act}: {what}"):
            yield told
        spent = (time.perf_counter() - started) * 1e3
        self.console.print(f"[green]✓[/green] [bold]{act:8}[/bold] {what} [dim]{spent:.0f} ms[/dim]")
        for line in told:
            self.console.print(f"           {line}", style="cyan", soft_wrap=True)


def _leftovers(difference: list[str]) -> list[str]:
    """Drop what stays for the next pod by design: the bridge, its nftables table, the allocator's own two files."""
    kept = re.compile(r"\+ (link nodeplug0|nft (table|rule) .*|file .*/(lock|last_reserved_ip\.\d+))")
    return [line for line in difference if not kept.fullmatch(line)]
