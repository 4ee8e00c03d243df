"""What the kernel's part of an ADD is: system calls of the daemon's threads, as strace sees them.

Owns: tracing the daemon during a few ADDs, and summing the times by what the calls are about.
Refuses: to say how long an ADD takes: a traced one is slower. Without strace, or without leave to trace, there is none.
"""

import json
import re
import shutil
import signal
import statistics
import subprocess
import time
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from bench.cni import Engine

_ATTACHING: Final = 1.0
_LINE: Final = re.compile(r"^(\d+)\s+(?:<\.\.\. )?(\w+).*<([\d.]+)>$")
Shares = dict[str, float]


def add(engine: Engine, paths: list[Path], daemon: int, out: Path) -> Shares:
    """Trace one ADD per namespace, and undo them.

    Returns:
        Per ADD, medians: seconds in netlink and in files, and the number of netlink requests; empty without strace.
    """
    if shutil.which("strace") is None:
        return {}
    command = ["strace", "-f", "-T", "-o", str(out), "-p", str(daemon)]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as strace:
        with suppress(subprocess.TimeoutExpired):
            strace.wait(_ATTACHING)
        added = [engine.call("ADD", f"t{number}", path) for number, path in enumerate(paths)]
        if strace.poll() is None:
            strace.send_signal(signal.SIGINT)
    for number, path in enumerate(paths):
        engine.call("DEL", f"t{number}", path, json.loads(added[number].stdout))
    time.sleep(_ATTACHING)  # the kernel frees the links
    return _shares(out.read_text(errors="replace").splitlines() if out.exists() else [], str(engine.data))


def _shares(lines: Iterable[str], data: str) -> Shares:
    threads: dict[str, Shares] = defaultdict(lambda: {"netlink": 0.0, "files": 0.0, "requests": 0.0})
    for line in lines:
        found = _LINE.match(line)
        if not found:
            continue
        thread, call, seconds = found.groups()
        about = _about(line, data)
        if about:
            threads[thread][about] += float(seconds)
        threads[thread]["requests"] += call == "sendto" and "nlmsg" in line
    return _medians([shares for shares in threads.values() if shares["requests"]])


def _about(line: str, data: str) -> str:
    if "nlmsg" in line or "NETLINK" in line:
        return "netlink"
    return "files" if "/proc/sys" in line or data in line else ""


def _medians(threads: list[Shares]) -> Shares:
    return {name: statistics.median(shares[name] for shares in threads) for name in threads[0]} if threads else {}
