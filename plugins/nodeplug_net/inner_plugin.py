"""The hooks of plugins whose interface is in the container's namespace alone.

Owns: claims, the keys that all of them have, and which method serves which verb.
Refuses: work.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from pydantic import BaseModel, ConfigDict, Field

from nodeplug import Claim, CniAdd, CniCheck, CniClaim, CniDel, CniGc, CniResult, CniStatus, hookimpl
from nodeplug.fields import CniExecutable
from nodeplug_net import DATA_DIR
from nodeplug_net.undo import kernel_errors
from nodeplug_net.warm import warm_up


class InnerConfig(BaseModel):
    """The section of the configuration."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    names: tuple[CniExecutable, ...] = ()
    data_dir: Path = Field(
        DATA_DIR,
        description="where IPAM type host-local reserves addresses unless a network's ipam.dataDir says otherwise",
    )


class Verbs(Protocol):
    """What a plugin of this family does; each raises PluginError, or OSError when the kernel refuses."""

    def recover(self) -> None:
        """Release what an earlier boot left."""

    def attach(self, request: CniAdd) -> CniResult:
        """Serve ADD; a failure leaves nothing behind."""

    def detach(self, request: CniDel) -> None:
        """Serve DEL: remove everything that can be removed, then report the first failure."""

    def check(self, request: CniCheck) -> None:
        """Serve CHECK: name every difference."""

    def collect(self, request: CniGc) -> None:
        """Serve GC."""

    def status(self, request: CniStatus) -> None:
        """Serve STATUS."""


class InnerPlugin:
    """A plugin."""

    isolation = "thread"

    def __init__(self, names: Sequence[str], verbs: Verbs) -> None:
        self._names = names
        self._verbs = verbs

    @hookimpl
    def claims(self) -> Sequence[Claim]:
        """Claim the configured names."""
        return [CniClaim(name) for name in self._names]

    @hookimpl
    def start(self) -> None:
        """Encode the messages that every ADD needs, and release what an earlier boot left."""
        warm_up()
        self._verbs.recover()

    @hookimpl
    def cni_add(self, request: CniAdd) -> CniResult:
        """Attach a container."""
        with kernel_errors():
            return self._verbs.attach(request)

    @hookimpl
    def cni_del(self, request: CniDel) -> None:
        """Detach a container."""
        with kernel_errors():
            self._verbs.detach(request)

    @hookimpl
    def cni_check(self, request: CniCheck) -> None:
        """Compare an attachment with its result."""
        with kernel_errors():
            self._verbs.check(request)

    @hookimpl
    def cni_gc(self, request: CniGc) -> None:
        """Release what belongs to attachments that are gone."""
        with kernel_errors():
            self._verbs.collect(request)

    @hookimpl
    def cni_status(self, request: CniStatus) -> None:
        """Raise NotReady if an ADD would fail."""
        with kernel_errors():
            self._verbs.status(request)
