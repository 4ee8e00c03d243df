"""The network configuration of sbr: the one key of the reference plugin.

Owns: its bounds, and which addresses of a result are the interface's.
Refuses: the kernel. Keys match without regard to case, as Go matches them.

Source: plugins/meta/sbr of the CNI plugins (parseConfig, getIPCfgs).
"""

from pydantic import Field

from nodeplug import CniAdd, CniCheck, CniIp, CniRequest, CniResult, InvalidRequest
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


def chained(request: CniAdd | CniCheck) -> CniResult:
    """Return the previous result.

    Raises:
        InvalidRequest: there is none.
    """
    if request.prev_result is None:
        raise InvalidRequest(
            "This plugin must be called as chained plugin", details="put it after the plugin that gives addresses"
        )
    return request.prev_result


def own_addresses(request: CniAdd | CniCheck) -> list[CniIp]:
    """Return the addresses of the previous result that are the interface's, or may be.

    Raises:
        InvalidRequest: there is no result, or no address in it.
    """
    found = chained(request).ips
    if not found:
        raise InvalidRequest(
            f"No IP addresses supplied on interface: {request.ifname}",
            details="put it after the plugin that gives addresses",
        )
    return [ip for ip in found if belongs(request, ip.interface)]
