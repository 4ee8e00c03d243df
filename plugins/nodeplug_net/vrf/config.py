"""The network configuration of vrf: the keys of the reference plugin, read into values.

Owns: defaults, bounds and the reference's sentences.
Refuses: the kernel. Keys match without regard to case, as Go matches them.

Source: plugins/meta/vrf of the CNI plugins (parseConf).
"""

from dataclasses import dataclass
from typing import Final

from pydantic import Field

from nodeplug import CniRequest, InvalidRequest
from nodeplug_net.interface_config import Conf

_NAME_LIMIT: Final = 15


class _VrfConf(Conf):
    vrf_name: str = Field("", alias="vrfname")
    table: int = Field(0, ge=0, lt=1 << 32)


@dataclass(frozen=True, slots=True)
class VrfConfig:
    """What one attachment asks for.

    Attributes:
        name: of the VRF, in the container.
        table: its routing table; 0 for a free one, or that of a VRF that is there.
    """

    name: str
    table: int


def parse_vrf(request: CniRequest) -> VrfConfig:
    """Read the configuration of a request.

    Raises:
        InvalidRequest: a key is wrong.
    """
    try:
        conf = request.parse(_VrfConf)
    except InvalidRequest as error:
        raise InvalidRequest(f"failed to load netconf: {error}") from error
    name = conf.vrf_name
    if not name:
        raise InvalidRequest("configuration is expected to have a valid vrf name", details="there is no key 'vrfname'")
    if len(name.encode()) > _NAME_LIMIT or "/" in name or not name.isprintable() or name in {".", ".."} or " " in name:
        raise InvalidRequest(
            f"failed to load netconf: key 'vrfname': {name!r} is no name of an interface",
            details=f"at most {_NAME_LIMIT} bytes, without spaces and slashes",
        )
    return VrfConfig(name, conf.table)
