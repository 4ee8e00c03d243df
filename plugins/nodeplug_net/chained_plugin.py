"""The hooks of plugins that change what another one before them in a list has made.

Owns: claims, and which method serves which verb.
Refuses: work, and example configurations.
"""

from collections.abc import Callable, Iterable
from typing import Protocol

from pydantic import BaseModel, ConfigDict

from nodeplug import CniCheck, CniStatus, Host, hookimpl
from nodeplug.fields import CniExecutable
from nodeplug_net import verbs_plugin
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


class Verbs(verbs_plugin.Verbs, Protocol):
    """What a plugin of this family does."""

    @property
    def containers(self) -> Containers:
        """Those that have been changed: `add` keeps them, `delete` and `collect` forget them."""

    def differences(self, request: CniCheck) -> Iterable[str]:
        """Name what is not as ADD left it."""


class ChainedPlugin(KeptPlugin, verbs_plugin.VerbsPlugin[Verbs]):
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
        super().__init__(verbs)
        self._names = config.names
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
    def cni_status(self, request: CniStatus) -> None:
        """Raise NotReady if an ADD would fail, LimitedConnectivity if a running container lacks something."""
        with kernel_errors():
            self._verbs.status(request)
            self._level.refuse_losses(request.network, request.host_netns)
