"""static: addresses that stand in the configuration (plugin `static`).

Owns: the hooks: another plugin (the reference's, or a third party's) delegates its IPAM here.
Refuses: state. DEL and GC have nothing to end, and STATUS nothing that could run out.
"""

from collections.abc import Sequence
from typing import ClassVar

from pydantic import BaseModel, ConfigDict, Field

from nodeplug import Claim, CniAdd, CniCheck, CniClaim, CniDel, CniResult, Example, Host, hookimpl
from nodeplug.fields import CniExecutable
from nodeplug_net.ipam.static_config import check_static, parse_static


class StaticConfig(BaseModel):
    """`[plugins.static.config]`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    names: tuple[CniExecutable, ...] = Field(
        ("nodeplug-static",), description="executables on CNI_PATH; add 'static' to take the reference plugin over"
    )


class Static:
    """The plugin."""

    Config = StaticConfig
    isolation = "thread"
    example: ClassVar[Example] = {
        "cni": {
            "type": "nodeplug-static",
            "ipam": {"addresses": [{"address": "10.88.0.5/24", "gateway": "10.88.0.1"}]},
        },
    }

    def __init__(self, config: StaticConfig, host: Host) -> None:
        self._names = config.names
        self._host = host

    @hookimpl
    def claims(self) -> Sequence[Claim]:
        """Claim the configured names."""
        return [CniClaim(name, uses_netns=False) for name in self._names]

    @hookimpl
    def cni_add(self, request: CniAdd) -> CniResult:
        """Return the addresses, routes and dns of the configuration."""
        return parse_static(request)

    @hookimpl
    def cni_del(self, request: CniDel) -> None:
        """Succeed: nothing is reserved."""

    @hookimpl
    def cni_check(self, request: CniCheck) -> None:
        """Compare the gateways of the result with those of the configuration."""
        check_static(request)
