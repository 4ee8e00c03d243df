"""The hooks of plugins that change what another one before them in a list has made.

Owns: claims, and which method serves which verb.
Refuses: work, and example configurations.
"""

from collections.abc import Callable, Iterable
from typing import Protocol

from pydantic import BaseModel, ConfigDict

from nodeplug import CniAdd, CniCheck, CniDel, CniGc, CniResult, CniStatus, Host, hookimpl
from nodeplug.fields import CniExecutable
from nodeplug_net.level.containers import Containers
from nodeplug_net.level.events import Interest
from nodeplug_net.level.kept_plugin import KeptPlugin
from nodeplug_net.level.reconciler import IN_STATUS, REPAIR_CONTAINERS, Reconciler
from nodeplug_net.netlink.messages import get_link_by_name
from nodeplug_net.undo import kernel_errors


class ChainedConfig(BaseModel):
    """The section of the configuration."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    names: tuple[CniExecutable, ...] = ()
    repair_containers: bool = REPAIR_CONTAINERS
    status_containers: bool = IN_STATUS


class Verbs(Protocol):
    """What a plugin of this family does; each raises PluginError, or OSError when the kernel refuses."""

    @property
    def containers(self) -> Containers:
        """Those that have been changed: `add` keeps them, `delete` and `collect` forget them."""

    def add(self, request: CniAdd) -> CniResult:
        """Serve ADD; a failure leaves everything as it was."""

    def delete(self, request: CniDel) -> None:
        """Serve DEL."""

    def differences(self, request: CniCheck) -> Iterable[str]:
        """Name what is not as ADD left it."""

    def check(self, request: CniCheck) -> None:
        """Serve CHECK: name every difference."""

    def collect(self, request: CniGc) -> None:
        """Serve GC."""

    def status(self, request: CniStatus) -> None:
        """Serve STATUS."""


class ChainedPlugin(KeptPlugin):
    """A plugin.

    Args:
        config: its section.
        host: of the plugin.
        verbs: what it does.
        interest: which events are about its containers, besides those in their namespaces.
    """

    isolation = "thread"

    def __init__(
        self, config: ChainedConfig, host: Host, verbs: Verbs, interest: Callable[[], Interest] | None = None
    ) -> None:
        self._names = config.names
        self._verbs = verbs
        containers, chosen = verbs.containers, config.repair_containers
        containers.differences, containers.chained = verbs.differences, True
        self._level = Reconciler(
            host,
            chosen,
            containers.look,
            self._restore,
            interest or containers.interest,
            chosen,
            containers,
            config.status_containers,
        )

    def _restore(self, label: str) -> None:
        with self._verbs.containers.repeated(label) as request:
            self._verbs.add(request)

    @hookimpl
    def start(self) -> None:
        """Encode the message that every call needs, and observe what is changed."""
        get_link_by_name()
        self._level.start()

    @hookimpl
    def cni_add(self, request: CniAdd) -> CniResult:
        """Change what the plugins before have made; their result is passed on."""
        with kernel_errors():
            return self._verbs.add(request)

    @hookimpl
    def cni_del(self, request: CniDel) -> None:
        """Undo it."""
        with kernel_errors():
            self._verbs.delete(request)

    @hookimpl
    def cni_check(self, request: CniCheck) -> None:
        """Compare it with what is asked for."""
        with kernel_errors():
            self._verbs.check(request)

    @hookimpl
    def cni_gc(self, request: CniGc) -> None:
        """Forget and end what belongs to no valid attachment."""
        with kernel_errors():
            self._verbs.collect(request)

    @hookimpl
    def cni_status(self, request: CniStatus) -> None:
        """Raise NotReady if an ADD would fail, LimitedConnectivity if a running container lacks something."""
        with kernel_errors():
            self._verbs.status(request)
            self._level.refuse_losses(request.network, request.host_netns)
