"""The network configuration of sbr: the one key of the reference plugin.

Owns: its bounds, and which addresses of a result are the interface's.
Refuses: the kernel. Keys match without regard to case, as Go matches them.

Source: plugins/meta/sbr of the CNI plugins (parseConfig, getIPCfgs).
"""

from pydantic import Field

from nodeplug import CniAdd, CniCheck, CniIp, CniRequest, InvalidRequest
from nodeplug_net.comparison import belongs
from nodeplug_net.interface_config import Conf


class _SbrConf(Conf):
    table: int | None = Field(None, gt=0, lt=1 << 32)


def parse_table(request: CniRequest) -> int | None:
    """Return the table that other plugins fill; None if each address gets one of its own.

    Raises:
        InvalidRequest: it is none.
    """
    try:
        return request.parse(_SbrConf).table
    except InvalidRequest as error:
        raise InvalidRequest(f"failed to parse network configuration: {error}") from error


def own_addresses(request: CniAdd | CniCheck) -> list[CniIp]:
    """Return the addresses of the previous result that are the interface's, or may be.

    Raises:
        InvalidRequest: there is no result, or no address in it.
    """
    before = request.prev_result
    if before is None:
        raise InvalidRequest(
            "This plugin must be called as chained plugin", details="put it after the plugin that gives addresses"
        )
    if not before.ips:
        raise InvalidRequest(
            f"No IP addresses supplied on interface: {request.ifname}",
            details="put it after the plugin that gives addresses",
        )
    return [ip for ip in before.ips if belongs(request, ip.interface)]
