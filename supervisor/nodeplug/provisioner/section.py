"""The provisioner that a configuration asks for, or none.

Owns: that a node without a provisioner imports none: its client of the API server takes a tenth of the daemon's start.
Refuses: to provision.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from nodeplug.config import Configuration
from nodeplug.contract.journal import Journal
from nodeplug.csi.drivers import CsiDrivers

if TYPE_CHECKING:
    from nodeplug.csi.driver import Driver


class Provisioning(Protocol):
    """What the daemon needs of it."""

    async def run(self) -> None:
        """Provision until cancelled."""

    def status(self) -> Sequence[Mapping[str, str]]:
        """Say what it cannot do at present, and why; nothing if all is well."""


class NoProvisioner:
    """Does nothing, and is never at fault."""

    async def run(self) -> None:
        """Return at once."""

    def status(self) -> Sequence[Mapping[str, str]]:
        """Return nothing."""
        return ()


def provisioner_of(configuration: Configuration, csi: CsiDrivers, node: str, journal: Journal) -> Provisioning:
    """Return the provisioner of a configuration."""
    if configuration.provisioner is None or not configuration.provisioner.enabled:
        return NoProvisioner()
    named = configuration.provisioner.kubeconfig or configuration.kubeconfig
    section = configuration.provisioner.model_copy(update={"kubeconfig": named})
    from nodeplug.provisioner.provisioner import Provisioner  # noqa: PLC0415 - only who has one pays for it

    def drivers() -> "Mapping[str, Driver]":
        return {name: one.driver for name, one in csi.served.items() if name in section.drivers or not section.drivers}

    return Provisioner(drivers, node, journal, section)
