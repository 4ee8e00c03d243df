"""A daemon of its own with a hostile plugin, and beside it innocent ones."""

import json
import re
import socket
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from nodeplug.exec.frame import Frame, Reply
from nodeplug.testing import ScratchNode
from nodeplug.testing.waiting import until

NEIGHBOUR = '[plugins.neighbour]\nuses = "worker_guest:Guest"\nisolation = "thread"\nconfig = { name = "other" }\n'


def hostile(isolation: str, how: str, more: str = "", once: Path | None = None) -> str:
    """Return the section of a plugin that goes wrong in its calls; with `once` in the first alone."""
    return (
        f'[plugins.hostile]\nuses = "worker_guest:Guest"\nisolation = "{isolation}"\n{more}'
        f'[plugins.hostile.config]\nat = "volume_is_attached"\nhow = "{how}"\n'
        + (f'once = "{once}"\n' if once is not None else "")
    )


class Node:
    """The daemon, and calls of its plugins: that of `thing` is the hostile one."""

    def __init__(self, root: Path, plugins: str, within: Sequence[str] = (), supervisor: str = "") -> None:
        self.scratch = ScratchNode(
            root,
            plugins,
            supervisor=f'listen = ""\n{supervisor}',
            env={"PYTHONPATH": str(Path(__file__).parent)},
            within=within,
            fork=True,
        )

    def ask(self, driver: str = "thing", volume: str = "v") -> socket.socket:
        """Send a call of a plugin, and leave its answer to be read."""
        peer = socket.socket(socket.AF_UNIX)
        peer.connect(str(self.scratch.paths.exec_socket))
        options = json.dumps({"name": volume})
        peer.sendall(Frame("flex", f"/x/example~{driver}/{driver}", ("isattached", options, "n")).encode())
        return peer

    def call(self, driver: str = "thing", volume: str = "v") -> str:
        """Return the error of a call, or nothing; `no answer` if the daemon ended."""
        with self.ask(driver, volume) as peer:
            data = b""
            with suppress(ConnectionError):
                data = b"".join(iter(lambda: peer.recv(1 << 20), b""))
        if not data:
            return "no answer"
        answer = json.loads(Reply.decode(data).stdout)
        return "" if answer["status"] == "Success" else str(answer["message"])

    def plugin(self, name: str = "hostile") -> dict[str, Any]:
        (row,) = [row for row in self.scratch.status()["plugins"] if row["name"] == name]
        return dict(row)

    def until_started_again(self, name: str = "hostile") -> str:
        """Wait until the process of a plugin has been ended and another one serves; return why."""
        until(lambda: self.plugin(name)["restarts"] == 1 and self.plugin(name)["state"] == "running")
        return str(self.plugin(name)["restarted"])

    def until_ended(self) -> None:
        """Wait until the daemon has ended, as the kernel ends one."""
        until(lambda: not self.scratch.running)

    def memory(self, key: str) -> int:
        """Return bytes of the daemon, such as VmRSS or its peak, VmHWM."""
        text = Path(f"/proc/{self.scratch.pid}/status").read_text(encoding="ascii")
        return int(re.findall(rf"^{key}:\s+(\d+)", text, re.MULTILINE)[0]) << 10

    def descriptors(self) -> dict[str, str]:
        """Return what the daemon's descriptors lead to."""
        found = {}
        for one in Path(f"/proc/{self.scratch.pid}/fd").iterdir():
            with suppress(FileNotFoundError):
                found[one.name] = str(one.readlink())
        return found

    def folder(self) -> str:
        return str(Path(f"/proc/{self.scratch.pid}/cwd").readlink())
