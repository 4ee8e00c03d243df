"""Messages of traffic control as another library reads them, those of kinds that a kernel may lack among them."""

import struct
from typing import Any

from pyroute2.netlink.rtnl.tcmsg import tcmsg

from nodeplug_net.netlink import traffic_control as tc
from nodeplug_net.netlink.traffic_control import Rate

RATE = Rate(1_000_000, 1_562_500, 125_000)
FAST = Rate(10**10, 1_562_500, 125_000)


def read(message: bytearray) -> tuple[Any, Any, Any]:
    """Return the kind, the parent, and the options of a message."""
    found = tcmsg(bytes(message))
    found.decode()
    return found.get_attr("TCA_KIND"), found["parent"], found.get_attr("TCA_OPTIONS")


def test_a_fair_queue_stands_below_the_limited_class_with_its_times() -> None:
    kind, parent, options = read(tc.add_fair_queue(7, 5_000, 100_000))
    assert (kind, parent) == ("fq_codel", 0x10001)
    assert dict(options["attrs"]) == {"TCA_FQ_CODEL_TARGET": 5_000, "TCA_FQ_CODEL_INTERVAL": 100_000}


def test_a_token_bucket_is_at_the_root() -> None:
    kind, parent, options = read(tc.add_tbf(7, RATE))
    found = options.get_attr("TCA_TBF_PARMS")
    assert (kind, parent) == ("tbf", 0xFFFFFFFF)
    assert (found["rate"], found["limit"], found["buffer"]) == (1_000_000, 125_000, 1_562_500)


def test_a_rate_above_four_gigabytes_a_second_has_an_attribute_of_its_own() -> None:
    _, _, options = read(tc.add_tbf(7, FAST))
    assert options.get_attr("TCA_TBF_PARMS")["rate"] == (1 << 32) - 1
    assert struct.pack("=HHQ", 12, 4, 10**10) in tc.add_tbf(7, FAST)  # TCA_TBF_RATE64
    assert struct.pack("=HH", 12, 4) not in tc.add_tbf(7, RATE)


def test_what_htb_does_not_classify_goes_to_its_default() -> None:
    kind, _, options = read(tc.add_htb(7, default=1))
    assert kind == "htb"
    assert options.get_attr("TCA_HTB_INIT")["defcls"] == 1
