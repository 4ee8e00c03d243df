"""Bad input to the plugins that choose addresses, the reference's and ours: as `test_reference_errors`."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.real.refused import INTERNAL, NAMES_GO_TYPES, Bad, Programs, local, mistakes, programs_with, ranges

SECTIONS = ("host-local", "static")
V4 = {"subnet": "10.77.0.0/24"}


@pytest.fixture(scope="module")
def programs(consumer: Callable[[str], Path]) -> Iterator[Programs]:
    with programs_with(consumer("cni"), *SECTIONS) as made:
        yield made


def fixed(*addresses: str, **keys: Any) -> dict[str, Any]:
    return {"ipam": {"type": "static", "addresses": [{"address": one} for one in addresses]}, **keys}


FULL = local({"subnet": "10.77.0.0/29", "rangeStart": "10.77.0.2", "rangeEnd": "10.77.0.2"})
HOST_LOCAL = {
    "no-ipam": Bad("host-local", {}),
    "ipam-null": Bad("host-local", local(None)),
    "ipam-empty": Bad("host-local", local({})),
    "ipam-a-list": Bad(
        "host-local",
        {"ipam": []},
        says="key 'ipam': input should be a valid dictionary or instance of _IpamConf, found []",
        why=NAMES_GO_TYPES,
    ),
    "subnet-no-prefix": Bad("host-local", local({"subnet": "10.77.0.0"})),
    "subnet-empty": Bad("host-local", local({"subnet": ""})),
    "subnet-bad": Bad("host-local", local({"subnet": "10.77.0/24"})),
    "subnet-number": Bad(
        "host-local",
        local({"subnet": 10}),
        says="key 'ipam.subnet': input should be a valid string, found 10",
        why=NAMES_GO_TYPES,
    ),
    "subnet-big-prefix": Bad("host-local", local({"subnet": "10.77.0.0/33"})),
    "ranges-without-subnet": Bad("host-local", ranges([{}])),
    "ranges-empty-set": Bad("host-local", ranges([])),
    "ranges-empty": Bad("host-local", ranges()),
    "ranges-flat": Bad(
        "host-local",
        ranges(V4),
        says="key 'ipam.ranges[0]': input should be a valid tuple, found {'subnet': '10.77.0.0/24'}",
        why=NAMES_GO_TYPES,
    ),
    "too-small-31": Bad("host-local", local({"subnet": "10.77.0.0/31"})),
    "too-small-host-bits": Bad("host-local", local({"subnet": "10.77.0.1/31"})),
    "too-small-32": Bad("host-local", local({"subnet": "10.77.0.1/32"})),
    "too-small-127": Bad("host-local", local({"subnet": "fd77::/127"})),
    "too-small-128": Bad("host-local", local({"subnet": "fd77::1/128"})),
    "host-bits": Bad("host-local", local({"subnet": "10.77.0.1/24"})),
    "host-bits-6": Bad("host-local", local({"subnet": "fd77::1/64"})),
    "start-bad": Bad("host-local", local({**V4, "rangeStart": "10.77.0"})),
    "end-bad": Bad("host-local", local({**V4, "rangeEnd": "x"})),
    "gateway-bad": Bad("host-local", local({**V4, "gateway": "10.77.0.1/24"})),
    "start-outside": Bad("host-local", local({**V4, "rangeStart": "10.78.0.2"})),
    "start-family": Bad("host-local", local({**V4, "rangeStart": "fd77::2"})),
    "end-outside": Bad("host-local", local({**V4, "rangeEnd": "10.78.0.2"})),
    "end-outside-6": Bad("host-local", local({"subnet": "fd77::/64", "rangeEnd": "fd78::1"})),
    "end-before-start": Bad("host-local", local({**V4, "rangeStart": "10.77.0.9", "rangeEnd": "10.77.0.8"})),
    "mixed-families": Bad("host-local", ranges([V4, {"subnet": "fd77::/64"}])),
    "overlap-within": Bad("host-local", ranges([V4, {"subnet": "10.77.0.0/25"}])),
    "overlap-start": Bad(
        "host-local",
        ranges(
            [
                {**V4, "rangeStart": "10.77.0.10", "rangeEnd": "10.77.0.20"},
                {**V4, "rangeStart": "10.77.0.20", "rangeEnd": "10.77.0.30"},
            ]
        ),
    ),
    "overlap-between": Bad("host-local", ranges([V4], [V4])),
    "overlap-between-later": Bad("host-local", ranges([{"subnet": "10.76.0.0/24"}], [V4], [V4])),
    "overlap-second-set": Bad("host-local", ranges([{"subnet": "10.76.0.0/24"}], [V4, V4])),
    "overlap-with-runtime": Bad("host-local", local(V4, runtimeConfig={"ipRanges": [[V4]]})),
    "two-of-a-family": Bad("host-local", ranges([V4], [{"subnet": "10.78.0.0/24"}], cniVersion="0.2.0"), code=1),
    "two-of-a-family-0.1": Bad("host-local", ranges([V4], [{"subnet": "10.78.0.0/24"}], cniVersion="0.1.0"), code=1),
    "two-of-a-family-no-version": Bad("host-local", ranges([V4], [{"subnet": "10.78.0.0/24"}], cniVersion=""), code=1),
    "two-of-a-family-6": Bad(
        "host-local", ranges([{"subnet": "fd77::/64"}], [{"subnet": "fd78::/64"}], cniVersion="0.2.0"), code=1
    ),
    "args-ip-bad": Bad("host-local", local(V4), {"CNI_ARGS": "IP=10.77.0"}, code=4),
    "args-ip-prefix-bad": Bad("host-local", local(V4), {"CNI_ARGS": "IP=10.77.0.5/40"}, code=4),
    "args-invalid-pair": Bad("host-local", local(V4), {"CNI_ARGS": "none"}, code=4),
    "args-trailing": Bad("host-local", local(V4), {"CNI_ARGS": "IgnoreUnknown=1;"}, code=4),
    "args-two-equals": Bad("host-local", local(V4), {"CNI_ARGS": "IP=1=2"}, code=4),
    "args-unknown": Bad("host-local", local(V4), {"CNI_ARGS": "A=1;B=2"}, code=4),
    "args-unknown-not-ignored": Bad("host-local", local(V4), {"CNI_ARGS": "IgnoreUnknown=False;A=1"}, code=4),
    "args-ignore-bad": Bad("host-local", local(V4), {"CNI_ARGS": "IgnoreUnknown=Yes;A=1"}, code=4),
    "args-lower-case": Bad("host-local", local(V4), {"CNI_ARGS": "ip=10.77.0.5"}, code=4),
    "args-quoted": Bad("host-local", local(V4), {"CNI_ARGS": 'a"b\\\t'}, code=4),
    "args-check": Bad(
        "host-local",
        local(V4, prevResult={"cniVersion": "1.1.0"}),
        {"CNI_COMMAND": "CHECK", "CNI_ARGS": "none"},
        code=INTERNAL,
        says="host-local: Failed to find address added by container c0",
        why="arguments choose an address for ADD; a container that was attached with others is whole",
    ),
    "ips-bad": Bad("host-local", local(V4, args={"cni": {"ips": ["10.77.0"]}})),
    "runtime-ips-bad": Bad("host-local", local(V4, runtimeConfig={"ips": ["x"]})),
    "ips-empty": Bad("host-local", local(V4, args={"cni": {"ips": [""]}})),
    "requested-outside": Bad("host-local", local(V4), {"CNI_ARGS": "IP=10.78.0.5"}),
    "requested-gateway": Bad("host-local", local(V4), {"CNI_ARGS": "IP=10.77.0.1"}),
    "requested-broadcast": Bad("host-local", local(V4), {"CNI_ARGS": "IP=10.77.0.255"}),
    "requested-network": Bad("host-local", local(V4), {"CNI_ARGS": "IP=10.77.0.0"}),
    # Not two of one range set: which of them is left over is chance with the reference.
    "requested-one-of-no-range": Bad("host-local", local(V4, args={"cni": {"ips": ["10.77.0.5", "10.99.0.6"]}})),
    "requested-taken": Bad(
        "host-local",
        local(V4),
        {"CNI_CONTAINERID": "c1", "CNI_ARGS": "IP=10.77.0.5"},
        code=11,
        before=({"CNI_ARGS": "IP=10.77.0.5"},),
    ),
    "full": Bad("host-local", FULL, {"CNI_CONTAINERID": "c1"}, code=11, before=({},)),
    "full-second-set": Bad(
        "host-local",
        ranges([V4], [{"subnet": "10.78.0.0/29", "rangeStart": "10.78.0.2", "rangeEnd": "10.78.0.2"}]),
        {"CNI_CONTAINERID": "c1"},
        code=11,
        before=({},),
    ),
    "resolv-conf-missing": Bad("host-local", local({**V4, "resolvConf": "/no/such/file"})),
    "resolv-conf-folder": Bad("host-local", local({**V4, "resolvConf": "/proc"})),
    "route-bad": Bad("host-local", local({**V4, "routes": [{"dst": "10.0.0.0"}]})),
    "route-gw-bad": Bad("host-local", local({**V4, "routes": [{"dst": "10.0.0.0/8", "gw": "x"}]})),
    "check-nothing": Bad(
        "host-local",
        local(V4, prevResult={"cniVersion": "1.1.0", "ips": [{"address": "10.77.0.2/24"}]}),
        {"CNI_COMMAND": "CHECK"},
        code=INTERNAL,
    ),
    "data-dir-is-a-file": Bad(
        "host-local",
        local({**V4, "dataDir": "/dev/null"}),
        code=INTERNAL,
        says="cannot open the lock of /dev/null/net: Not a directory",
        why="the first system call of ours is another one",
    ),
}
STATIC = {
    "no-ipam": Bad("static", {}),
    "address-no-prefix": Bad("static", fixed("10.77.0.5")),
    "address-bad": Bad("static", fixed("10.77.0.5/24", "x/24")),
    "address-mask": Bad("static", fixed("10.77.0.5/255.255.255.0")),
    "address-empty": Bad("static", fixed("")),
    "gateway-bad": Bad("static", {"ipam": {"addresses": [{"address": "10.77.0.5/24", "gateway": "10.77.0"}]}}),
    "route-bad": Bad("static", {"ipam": {"routes": [{"dst": "10.0.0.0"}]}}),
    "args-ip-no-prefix": Bad("static", fixed(), {"CNI_ARGS": "IP=10.77.0.5"}, code=4),
    "args-ip-second-bad": Bad("static", fixed(), {"CNI_ARGS": "IP=10.77.0.5/24, 10.77.0.6"}, code=4),
    "args-gateway-bad": Bad("static", fixed(), {"CNI_ARGS": "IP=10.77.0.5/24;GATEWAY=10.77.0.1/24"}, code=4),
    "args-gateway-second-bad": Bad("static", fixed(), {"CNI_ARGS": "GATEWAY=10.77.0.1, x"}, code=4),
    "args-invalid-pair": Bad("static", fixed(), {"CNI_ARGS": "none"}, code=4),
    "args-unknown": Bad("static", fixed(), {"CNI_ARGS": "A=1;B=2"}, code=4),
    "ips-no-prefix": Bad("static", fixed(args={"cni": {"ips": ["10.77.0.5"]}})),
    "ips-empty": Bad("static", fixed(args={"cni": {"ips": [""]}})),
    "runtime-ips-no-prefix": Bad("static", fixed(runtimeConfig={"ips": ["10.77.0.5/24", "10.77.0.6"]})),
    "ips-bad-and-runtime-ips": Bad(
        "static", fixed(args={"cni": {"ips": ["x"]}}, runtimeConfig={"ips": ["10.77.0.5/24"]})
    ),
    "two-of-a-family": Bad("static", fixed("10.77.0.5/24", "10.78.0.5/24", cniVersion="0.2.0"), code=1),
    "two-of-a-family-no-version": Bad("static", fixed("fd77::5/64", "fd78::5/64", cniVersion=""), code=1),
    "nothing-0.2": Bad("static", fixed(cniVersion="0.2.0"), code=INTERNAL),
    "check-another-gateway": Bad(
        "static",
        {
            "ipam": {"addresses": [{"address": "10.77.0.5/24", "gateway": "10.77.0.1"}]},
            "prevResult": {"cniVersion": "1.1.0", "ips": [{"address": "10.77.0.5/24", "gateway": "10.77.0.2"}]},
        },
        {"CNI_COMMAND": "CHECK"},
        code=INTERNAL,
    ),
}
TABLES = {"host-local": HOST_LOCAL, "static": STATIC}


@pytest.mark.parametrize(
    "bad",
    [pytest.param(bad, id=f"{table}-{name}") for table, cases in TABLES.items() for name, bad in cases.items()],
)
def test_bad_input_is_refused_in_the_words_of_the_reference(programs: Programs, bad: Bad) -> None:
    assert mistakes(programs, bad) == []
