"""Which container a process belongs to.

Owns: the mapping of a pid by its cgroup to a container id, and from there to namespace, pod and container by the links
that kubelet makes to log files: `/var/log/containers/<pod>_<namespace>_<container>-<id>.log`, which leads to
`/var/log/pods/<namespace>_<pod>_<uid>/<container>/<number>.log`. A name longer than 255 bytes loses the end of its id
(kubelet, logSymlink); what is left of it and the link's target identify the container all the same.
Refuses: to ask the API server or a runtime: both may be away, and the names on disk are the same for all runtimes.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from nodeplug_gpu.holders import Container

_ID: Final = re.compile(r"[0-9a-f]{64}")
_LOG: Final = re.compile(
    r"(?P<pod>[a-z0-9.-]+)_(?P<namespace>[a-z0-9-]+)_(?P<container>[a-z0-9-]+)-(?P<id>[0-9a-f]{64})\.log"
)
_TARGET: Final = re.compile(r"(?P<namespace>[a-z0-9-]+)_(?P<pod>[a-z0-9.-]+)_[^/_]+/(?P<container>[a-z0-9-]+)/[^/]+")
_CUT_NAME: Final = 255
_SHORT_ID: Final = 12
"""Digits of the short ids that runtimes print."""


@dataclass(frozen=True, slots=True)
class Containers:
    """The containers at one moment: the log folder is read once.

    Attributes:
        proc: where proc(5) is mounted, with the pids that the driver reports: the host's.
        logs: kubelet's folder of log links.
    """

    proc: Path = Path("/proc")
    logs: Path = Path("/var/log/containers")
    _names: dict[str, Container] = field(default_factory=dict)
    _read: list[bool] = field(default_factory=list)

    def of(self, pid: int) -> Container | None:
        """Return the container of a process; None for one that has ended, or is in no container of kubelet's."""
        try:
            groups = (self.proc / str(pid) / "cgroup").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return None
        # The last id of a path is the innermost: a pod's container, not a container in which kubelet itself runs.
        for line in groups.splitlines():
            for found in reversed(_ID.findall(line)):
                container = self._by_id().get(found) or self._by_part(found)
                if container is not None:
                    return container
        return None

    def named(self, container_id: str) -> Container | None:
        """Return the container of an id; None where kubelet has no log of it."""
        return self._by_id().get(container_id) or self._by_part(container_id)

    def _by_id(self) -> Mapping[str, Container]:
        if not self._read:
            self._read.append(True)
            try:
                names = [path.name for path in self.logs.iterdir()]
            except OSError:
                names = []
            for name in names:
                match = _LOG.fullmatch(name)
                if match is not None:
                    self._names[match["id"]] = Container(match["namespace"], match["pod"], match["container"])
                elif len(name) == _CUT_NAME:
                    self._names.update(self._cut(name))
        return self._names

    def _by_part(self, wanted: str) -> Container | None:
        return next((one for part, one in self._names.items() if wanted.startswith(part)), None)

    def _cut(self, name: str) -> Mapping[str, Container]:
        """Read a link whose name has lost a part of the id, and return what is left of it with the container."""
        try:
            match = _TARGET.fullmatch("/".join((self.logs / name).readlink().parts[-3:]))
        except OSError:
            return {}
        if match is None:
            return {}
        part = name.removeprefix(f"{match['pod']}_{match['namespace']}_{match['container']}-").removesuffix(".log")
        known = len(part) >= _SHORT_ID and set(part) <= set("0123456789abcdef")
        return {part: Container(match["namespace"], match["pod"], match["container"])} if known else {}
