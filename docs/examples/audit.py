"""An audit of every network attachment, whichever plugin makes it."""

from collections.abc import Generator

from nodeplug import Claim, CniAdd, CniResult, Host, hookimpl


class Audit:
    def __init__(self, config: object, host: Host) -> None:
        self.log = host.log

    @hookimpl
    def claims(self) -> list[Claim]:
        return []

    @hookimpl(wrapper=True)
    def cni_add(self, request: CniAdd) -> Generator[None, CniResult, CniResult]:
        result = yield  # the plugin that owns the claim runs here; what it raises is raised here
        addresses = ", ".join(str(ip.address) for ip in result.ips)
        self.log.info("container %s got %s in network %s", request.container_id, addresses, request.network)
        return result
