"""What a neighbour's ADD takes while the worst that strangers may send is under way: `python -m bench.worst_inputs`.

One daemon attaches and detaches a container by bridge and host-local. Meanwhile, in short turns one after the other:
nobody sends anything; two unrelated programs use the processor; and each of the inputs that the daemon has to bound.
A whole run writes `bench/results/worst_inputs.json` and the table of `docs/performance.md`; it needs root.
"""

import argparse
import datetime as dt
import gzip
import hashlib
import http.client
import io
import json
import os
import platform
import socket
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from bench import cni, page
from bench.daemon import rss_mib, with_run_in_memory
from bench.figures import flat
from bench.frames import ask
from bench.measure import Summary
from nodeplug.exec.frame import Frame
from nodeplug.testing import ScratchNode, folders, namespaces
from nodeplug.testing.acted_api.handler import ApiHandler, Listening
from nodeplug.testing.pods import url_prefix
from nodeplug.testing.waiting import until

ROOT: Final = Path(__file__).parents[1]
INSIDE: Final = "NODEPLUG_BENCH_INSIDE"
INPUTS: Final = ("bodies", "scrapes", "stdout", "stderr", "devices", "folders", "links", "answers")
"""What is sent, in the order of the turns."""
_MIB: Final = 1 << 20
_ANSWER: Final = b'{"metadata": {}, "items": [' + b"[]," * (20 * _MIB) + b"[]]}"
_BUSY: Final = "while True: pass"
_ENDLESS: Final = "#!/bin/sh\nexec cat /dev/zero {}\n"
_PAUSE: Final = 0.002
"""Seconds between two lives of the neighbour."""
_OBSERVED: Final = "127.0.0.1:9808"


def main() -> int:
    """Parse, go into namespaces of our own, measure, tell."""
    parser = argparse.ArgumentParser(prog="bench.worst_inputs", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="short turns: shows that it runs; writes no page")
    arguments = parser.parse_args()
    if INSIDE not in os.environ:
        command = [*namespaces.command(network=True), sys.executable, "-m", "bench.worst_inputs", *sys.argv[1:]]
        return subprocess.run(command, env={**os.environ, INSIDE: "1"}, check=False).returncode
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    kernel = platform.release().partition("-")[0]
    rounds, seconds = (1, 0.5) if arguments.quick else (6, 5.0)
    figures: dict[str, Any] = {
        "date": dt.datetime.now(tz=dt.UTC).date().isoformat(),
        "machine": f"{os.cpu_count()} CPUs, Linux {kernel}, Python {platform.python_version()}",
        "quick": arguments.quick,
        **measure(rounds, seconds),
        "load_average": os.getloadavg()[0],
    }
    page.keep("worst_inputs", figures)
    return 0


def measure(rounds: int, seconds: float) -> dict[str, float]:
    """Return all figures by name.

    Args:
        rounds: how often each input has its turn.
        seconds: how long a turn is.
    """
    folder = Path(tempfile.mkdtemp(prefix="np-", dir="/tmp"))
    try:
        with ExitStack() as stack:
            api = stack.enter_context(_Api.listening())
            node = stack.enter_context(_daemon(folder, api))
            first, second = stack.enter_context(cni.namespaces(folder, 2))
            senders = _senders(node, folder, api, second)
            series: dict[str, list[float]] = {who: [] for who in senders}
            life = _Neighbour(node, folder, first).life
            life()  # the first one makes the bridge
            memory = [rss_mib(node.pid)]
            for who, sends in [*senders.items()] * rounds:
                with sends():
                    series[who] += _lives(life, seconds)
                memory.append(rss_mib(node.pid))
            figures = {"memory_before_mib": memory[0], "memory_most_mib": max(memory)}
    finally:
        folders.unmount_below(folder)
        folders.remove(folder)
    for who, taken in series.items():
        figures |= flat(f"beside_{who}", Summary.of(taken)) | {f"beside_{who}_longest_ms": max(taken) * 1e3}
    return figures | {"worst_p99_ms": max(figures[f"beside_{who}_p99_ms"] for who in INPUTS)}


def _lives(life: Callable[[], float], seconds: float) -> list[float]:
    taken: list[float] = []
    end = time.monotonic() + seconds
    while not taken or time.monotonic() < end:
        taken.append(life())
        time.sleep(_PAUSE)
    return taken


# --- the neighbour


@dataclass(frozen=True, slots=True)
class _Neighbour:
    """A container that is attached and detached over and over."""

    node: ScratchNode
    folder: Path
    netns: Path

    def life(self) -> float:
        """Attach it and detach it; return the seconds of ADD."""
        config = _network("neighbour", self.folder / "addresses")
        seconds = ask(self.node, _frame(self.node, "ADD", config, self.netns), _both(self.netns))
        ask(self.node, _frame(self.node, "DEL", config, self.netns), _both(self.netns))
        return seconds


def _network(name: str, addresses: Path, **ipam: object) -> dict[str, Any]:
    of_pool = {"type": "host-local", "dataDir": str(addresses), "ranges": [[{"subnet": "10.77.0.0/16"}]]}
    return {"cniVersion": "1.0.0", "name": name, "type": "nodeplug-bridge", "bridge": name, "ipam": of_pool | ipam}


def _both(netns: Path) -> tuple[str, str]:
    return "/proc/self/ns/net", str(netns)


def _frame(node: ScratchNode, verb: str, config: Mapping[str, Any], netns: Path) -> Frame:
    env = {
        "CNI_COMMAND": verb,
        "CNI_CONTAINERID": str(config["name"]),
        "CNI_IFNAME": "eth0",
        "CNI_NETNS": str(netns),
        "CNI_PATH": str(node.paths.cni_bin),
    }
    return Frame("cni", str(node.paths.cni_bin / "nodeplug-bridge"), (), env, json.dumps(config).encode())


# --- what strangers send


def _senders(node: ScratchNode, folder: Path, api: "_Api", netns: Path) -> dict[str, Callable[[], Any]]:
    extender = urlsplit(url_prefix(node, "placing"))
    body = b'{"Pod":{"metadata":{}},"NodeNames":[' + b"[]," * ((4 * _MIB - 100) // 3) + b"[]]}"

    def attaching(**ipam: object) -> Callable[[], str]:
        config = _network("tenant", folder / "tenant", **ipam)
        return lambda: str(ask(node, _frame(node, "ADD", config, netns), _both(netns)))

    def mounting(name: str) -> Callable[[], str]:
        arguments = ("mount", str(folder / f"target-{name}"), json.dumps({"path": name}))
        return lambda: str(ask(node, Frame("flex", "/nodeplug~image/image", arguments)))

    return {
        "nobody": nullcontext,
        "programs": _programs,
        "bodies": lambda: _sending(8, lambda: _request(extender.netloc, f"{extender.path}/filter", body), "values"),
        "scrapes": lambda: _sending(8, lambda: _request(_OBSERVED, "/metrics", None), "nodeplug_"),
        "stdout": lambda: _sending(4, attaching(type="endless"), "endless was killed: it wrote more than"),
        "stderr": lambda: _sending(4, attaching(type="shouting"), "shouting was killed: it wrote more than"),
        "devices": lambda: _sending(4, attaching(resolvConf="/dev/zero"), "not a regular file"),
        "folders": lambda: _sending(4, mounting("folders"), "with a path of"),
        "links": lambda: _sending(4, mounting("links"), "and there is room for"),
        "answers": api.failing,
    }


@contextmanager
def _sending(count: int, send: Callable[[], str], expected: str) -> Iterator[None]:
    """Send something over and over by so many threads for the length of a block.

    Args:
        count: of threads.
        send: returns what is answered.
        expected: a text in the answer to what has arrived.

    Raises:
        RuntimeError: no answer had the text, so what the daemon did was not what is measured.
    """
    ended = threading.Event()
    answers: deque[str] = deque(maxlen=1000)

    def repeat() -> None:
        while not ended.is_set():
            try:
                answers.append(send())
            except (RuntimeError, OSError, http.client.HTTPException) as error:
                answers.append(str(error))

    threads = [threading.Thread(target=repeat) for _ in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join()
    if not any(expected in answer for answer in answers):
        raise RuntimeError(f"no answer says {expected!r}: {[*answers][-3:]}")


@contextmanager
def _programs() -> Iterator[None]:
    programs = [subprocess.Popen([sys.executable, "-IS", "-c", _BUSY]) for _ in range(2)]
    try:
        yield
    finally:
        for program in programs:
            program.kill()
            program.wait()


def _request(place: str, path: str, body: bytes | None) -> str:
    connection = http.client.HTTPConnection(place, timeout=60)
    try:
        connection.request("GET" if body is None else "POST", path, body)
        return connection.getresponse().read().decode(errors="replace")
    finally:
        connection.close()


class _Api:
    """An API server without objects, whose answers are larger than anything that the daemon reads if it is told so."""

    def __init__(self) -> None:
        self.large = threading.Event()
        self.given = 0
        self.ended = threading.Event()
        self.watching: set[socket.socket] = set()
        self._listening = Listening(type("Handler", (_Handler,), {"api": self}))
        self.kubeconfig = self._listening.kubeconfig

    @classmethod
    @contextmanager
    def listening(cls) -> Iterator["_Api"]:
        """Serve for the length of a block."""
        api = cls()
        try:
            yield api
        finally:
            api.ended.set()
            api.cut()
            api._listening.close()

    @contextmanager
    def failing(self) -> Iterator[None]:
        """Give large answers for the length of a block.

        Raises:
            RuntimeError: nobody asked.
        """
        before = self.given
        self.large.set()
        self.cut()
        try:
            yield
        finally:
            self.large.clear()
        if self.given == before:
            raise RuntimeError("the daemon asked the API server for nothing")

    def cut(self) -> None:
        """Break every watch that is open."""
        for connection in [*self.watching]:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


class _Handler(ApiHandler):
    api: _Api

    def do_GET(self) -> None:  # noqa: N802 - so http.server finds it
        """Answer as asked, or with far too much."""
        _, query = self.asked()
        if self.api.large.is_set():
            self.api.given += 1
            self.head(200, len(_ANSWER))
            self.wfile.write(_ANSWER)
        elif query.get("watch") in {"1", "true"}:
            self.head(200, None)
            self.api.watching.add(self.connection)
            self.api.ended.wait(60)
            self.api.watching.discard(self.connection)
        else:
            self.answer(200, {"metadata": {"resourceVersion": "1"}, "items": []})


# --- the daemon


@contextmanager
def _daemon(folder: Path, api: _Api) -> Iterator[ScratchNode]:
    root = with_run_in_memory(folder / "n")
    (folder / "kubeconfig").write_text(api.kubeconfig)
    images = folder / "images"
    _image(images / "folders", _layer(("d/" * 60_000 + "f", "")))
    _image(images / "links", _layer(("f", ""), *((f"l{number}", "f") for number in range(200_000))))
    toml = f"""
[plugins.bridge]
[plugins.host-local]
[plugins.image.config.roots.main]
path = "{images}"
[plugins.placing]
uses = "bench.placing:Placing"
[extender]
listen = "127.0.0.1:0"
[networks]
kubeconfig = "{folder}/kubeconfig"
paths = ["{folder}"]
"""
    supervisor = f'listen = "{_OBSERVED}"\ninstall = true\nnode_name = "node-1"'
    with ScratchNode(root, toml, supervisor=supervisor, env={"PYTHONPATH": str(ROOT)}) as node:
        until(lambda: {row["state"] for row in node.status()["plugins"]} == {"running"})
        for name, more in (("endless", ""), ("shouting", ">&2")):
            program = node.paths.cni_bin / name
            program.write_text(_ENDLESS.format(more))
            program.chmod(0o755)
        yield node


def _layer(*entries: tuple[str, str]) -> bytes:
    """Return a layer with files of a megabyte, and with hard links to them where a target is given."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, target in entries:
            info = tarfile.TarInfo(name)
            if target:
                info.type, info.linkname = tarfile.LNKTYPE, target
            else:
                info.size = _MIB
            archive.addfile(info, None if target else io.BytesIO(bytes(_MIB)))
    return gzip.compress(packed.getvalue(), 1)


def _image(root: Path, layer: bytes) -> None:
    """Write an OCI image layout with one layer (image-spec 1.1, image-layout.md)."""
    (root / "blobs" / "sha256").mkdir(parents=True)
    (root / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    document = "application/vnd.oci.image"

    def blob(media_type: str, content: bytes) -> dict[str, Any]:
        digest = hashlib.sha256(content).hexdigest()
        (root / "blobs" / "sha256" / digest).write_bytes(content)
        return {"mediaType": f"{document}.{media_type}", "digest": f"sha256:{digest}", "size": len(content)}

    layers = [blob("layer.v1.tar+gzip", layer)]
    manifest = {"schemaVersion": 2, "mediaType": f"{document}.manifest.v1+json", "layers": layers}
    described = blob("manifest.v1+json", json.dumps(manifest).encode())
    (root / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [described]}))


if __name__ == "__main__":
    sys.exit(main())
