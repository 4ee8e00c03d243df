"""The hooks of plugins whose interface is in the container's namespace alone.

Owns: claims, the keys that all of them have, which method serves which verb, and who is attached.
Refuses: work.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from pydantic import BaseModel, ConfigDict, Field

from nodeplug import CniAdd, CniCheck, CniDel, CniGc, CniResult, CniStatus, Host, hookimpl
from nodeplug.fields import CniExecutable
from nodeplug_net import DATA_DIR
from nodeplug_net.attachment import Attachment
from nodeplug_net.level.containers import Containers
from nodeplug_net.level.kept_plugin import KeptPlugin
from nodeplug_net.level.reconciler import IN_STATUS, REPAIR_CONTAINERS, Reconciler
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
    repair_containers: bool = REPAIR_CONTAINERS
    status_containers: bool = IN_STATUS


class Verbs(Protocol):
    """What a plugin of this family does; each raises PluginError, or OSError when the kernel refuses."""

    def recover(self) -> None:
        """Release what an earlier boot left."""

    def attach(self, request: CniAdd) -> CniResult:
        """Serve ADD; a failure leaves nothing behind."""

    def detach(self, request: CniDel) -> None:
        """Serve DEL: remove everything that can be removed, then report the first failure."""

    def differences(self, request: CniCheck) -> Iterable[str]:
        """Name what of the container's interface is not as the result says."""

    def check(self, request: CniCheck) -> None:
        """Serve CHECK: name every difference."""

    def collect(self, request: CniGc) -> None:
        """Serve GC."""

    def status(self, request: CniStatus) -> None:
        """Serve STATUS."""


class InnerPlugin(KeptPlugin):
    """A plugin."""

    isolation = "thread"

    def __init__(self, config: InnerConfig, host: Host, verbs: Verbs) -> None:
        self._names = config.names
        self._verbs = verbs
        self._containers = containers = Containers(verbs.differences)
        chosen = config.repair_containers
        self._level = Reconciler(
            host,
            chosen,
            containers.look,
            self._restore,
            containers.interest,
            chosen,
            containers,
            config.status_containers,
        )

    def _restore(self, label: str) -> None:
        with self._containers.repeated(label) as request:
            self._containers.keep(request, self._verbs.attach(request))

    @hookimpl
    def start(self) -> None:
        """Encode the messages that every ADD needs, and release what an earlier boot left."""
        warm_up()
        self._verbs.recover()
        self._level.start()

    @hookimpl
    def cni_add(self, request: CniAdd) -> CniResult:
        """Attach a container."""
        with kernel_errors():
            result = self._verbs.attach(request)
        self._containers.keep(request, result)
        return result

    @hookimpl
    def cni_del(self, request: CniDel) -> None:
        """Detach a container."""
        self._containers.forget(Attachment.of(request).label)
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
        self._containers.forget_invalid(request)
        with kernel_errors():
            self._verbs.collect(request)

    @hookimpl
    def cni_status(self, request: CniStatus) -> None:
        """Raise NotReady if an ADD would fail."""
        with kernel_errors():
            self._verbs.status(request)
            self._level.refuse_losses(request.network, request.host_netns)
