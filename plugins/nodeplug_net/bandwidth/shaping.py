"""What limits a container's traffic in the kernel, on the host's side of its veth pair.

Owns: which qdiscs, classes and filters a limit comes to, in which order they are made, and how they are compared.
Refuses: finding the links, and their end (see `verbs`).

What a container receives leaves its host end, whose root is a token bucket. What it sends comes in there, where nothing
can wait: a filter sends it through an ifb link first, which has a token bucket of its own. Where peers are told apart,
the root is htb, whose unclassified packets are not limited.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import IPv4Network

from nodeplug_net.bandwidth.config import BandwidthConfig, Limit
from nodeplug_net.bandwidth.rates import fair_times, queue_of, rate_of, references, same
from nodeplug_net.lower_link import creating
from nodeplug_net.netlink import traffic_control as tc
from nodeplug_net.netlink.connection import Netlink, Request
from nodeplug_net.netlink.links import Link, up_request
from nodeplug_net.netlink.traffic_control import Subnet


@dataclass(slots=True)
class Shaping:
    """What is limited through one socket of the host's namespace.

    Attributes:
        netlink: the socket.
        fair: whether the kernel may have fq_codel; False as soon as it says that it has none.
    """

    netlink: Netlink
    fair: bool = True

    def limit(self, link: Link, limit: Limit, config: BandwidthConfig | None = None) -> None:
        """Limit what leaves a link; what an earlier ADD made is replaced.

        Args:
            link: the host end, or an ifb link.
            limit: of it.
            config: with the peers that are told apart; None for all alike.

        Raises:
            PluginError: the kernel refuses.
        """
        rate, what = rate_of(limit, link.mtu), f"limit the rate of interface {link.name}"
        requests = list(_removals(link))
        if config is None or not config.subnets:
            requests.append(Request(tc.add_tbf(link.index, rate), what))
        else:
            quantum = link.mtu + 14
            requests.append(Request(tc.add_htb(link.index, default=0 if config.shaped else 1), what))
            requests.append(Request(tc.add_shaped_class(link.index, rate, quantum), what))
            flow = tc.SHAPED if config.shaped else tc.FIRST
            requests += [
                Request(tc.classify(link.index, flow, _priority(one), one), f"{what} from {one}")
                for one in config.subnets
            ]
        with creating("create qdisc: {}"):
            self.netlink.ask(*requests)
            self._bound_queue(link, rate)

    def _bound_queue(self, link: Link, rate: tc.Rate) -> None:
        """Let fq_codel keep the queue short, or at least bound it."""
        what = f"bound the queue of interface {link.name}"
        if self.fair:
            request = Request(tc.add_fair_queue(link.index, *fair_times(rate, link.mtu)), what, tc.UNKNOWN_KIND)
            self.fair = not self.netlink.ask(request)[0].error
        if not self.fair:
            self.netlink.ask(Request(tc.add_queue(link.index, queue_of(rate)), what))

    def divert(self, link: Link, ifb: Link, config: BandwidthConfig) -> None:
        """Send what comes in at a host end through an ifb link first, which comes up.

        Raises:
            PluginError: the kernel refuses.
        """
        with creating("create ingress qdisc: {}"):
            self.netlink.ask(
                up_request(ifb.index, ifb.name),
                tc.absent_is_fine(tc.delete_ingress(link.index), f"remove the filters of interface {link.name}"),
                Request(tc.add_ingress(link.index), f"filter what interface {link.name} receives"),
            )
        what = f"redirect what interface {link.name} receives to {ifb.name}"
        if config.shaped:
            filters = [tc.redirect(link.index, ifb.index, _priority(one), one) for one in config.shaped]
        else:
            filters = [tc.pass_unshaped(link.index, _priority(one), one) for one in config.unshaped]
            filters.append(tc.redirect(link.index, ifb.index, 3 if config.unshaped else 1))
        with creating("add filter: {}"):
            self.netlink.ask(*(Request(one, what) for one in filters))

    def free(self, link: Link) -> None:
        """Remove every limit of a host end, if there is any."""
        self.netlink.ask(
            *_removals(link),
            tc.absent_is_fine(tc.delete_ingress(link.index), f"remove the filters of interface {link.name}"),
        )

    def differences(self, link: Link, limit: Limit) -> Iterator[tuple[str, str]]:
        """Compare a link with its limit; yield the reference's sentence and what it is about."""
        found = tc.qdiscs(self.netlink, link.index, link.name)
        shaped = [one.rate for one in found if one.rate and (one.kind == "tbf" or one.handle == tc.SHAPED)]
        if not shaped:
            yield "Failed to find qdisc", f"interface {link.name} has no limit"
            return
        wanted, has = rate_of(limit, link.mtu), shaped[0]
        if not has.limit:  # htb's queue is its leaf's
            wanted = tc.Rate(wanted.speed, wanted.buffer, 0)
        if same(has, wanted) or same(has, references(limit)):
            return
        for name, one, other, unit in (
            ("Rate", has.speed, wanted.speed, "bytes a second"),
            ("Limit", has.limit, wanted.limit, "bytes"),
            ("Buffer", has.buffer, wanted.buffer, "ticks"),
        ):
            if one != other:
                yield f"{name} doesn't match", f"interface {link.name} has {one} {unit}, not {other}"

    def diverted(self, link: Link, ifb: Link) -> bool:
        """Whether a filter sends what comes in at a host end to an ifb link."""
        return ifb.index in tc.redirects_to(self.netlink, link.index, link.name)


def _removals(link: Link) -> Iterator[Request]:
    for kind in ("tbf", "htb"):
        yield tc.absent_is_fine(tc.delete_root(link.index, kind), f"remove the limit of interface {link.name}")


def _priority(subnet: Subnet) -> int:
    """Return the place of a filter: one priority can have one protocol."""
    return 1 if isinstance(subnet, IPv4Network) else 2
