"""Each page of a CNI plugin has every key that the plugin reads, and none that it does not, beside the reference's."""

import re
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path

import pytest
from pydantic import BaseModel
from pydantic.alias_generators import to_camel

PAGES = Path(__file__).parents[2] / "docs" / "plugins"
MODELS: Mapping[str, tuple[str, ...]] = {
    "bandwidth": ("bandwidth.config:_BandwidthConf",),
    "bridge": ("bridge.config:NetConf",),
    "dhcp": ("dhcp.config:_IpamConf",),
    "dummy": ("interface_config:DelegationConf",),
    "firewall": ("firewall.config:FirewallConf",),
    "host-device": ("host_device.config:NetConf",),
    "host-local": ("ipam.config:_IpamConf",),
    "ipvlan": ("ipvlan.config:NetConf",),
    "loopback": (),
    "macvlan": ("macvlan.config:NetConf",),
    "portmap": ("portmap.config:PortmapConf",),
    "ptp": ("ptp.config:NetConf",),
    "sbr": ("sbr.config:_SbrConf",),
    "static": ("ipam.static_config:_IpamConf",),
    "tap": ("tap.config:NetConf",),
    "tuning": ("tuning.config:_TuningConf", "tuning.config:_FolderConf"),
    "vlan": ("vlan.config:NetConf",),
    "vrf": ("vrf.config:_VrfConf",),
}
OF_CALLS = {"type", "args", "runtimeConfig", "capabilities", "cniVersion", "name"}
"""Keys of every configuration, and those that runtimes fill in: a page tells of them in words."""
HEADS = re.compile(r"^\| key(?: of `ipam`)? \| default \| in the reference \| meaning \|$", re.MULTILINE)
OTHERS = {"fuse", "hostdev", "image", "network", "volumes"}
"""Pages of plugins that are none of CNI's."""


def read(model: type[BaseModel]) -> Iterator[str]:
    for name, field in model.model_fields.items():
        yield field.alias or to_camel(name)


def keys_of(page: str) -> set[str]:
    """The keys in the page's table; what is in `args.cni` or sent by a runtime counts for none."""
    heads = list(HEADS.finditer(page))
    rows = [row for head in heads for row in page[head.end() :].partition("\n\n")[0].splitlines()[2:]]
    cells = [row.split(" | ")[0] for row in rows]
    return {
        key for cell in cells for key in re.findall(r"`([^`]+)`", cell) if "." not in key and "capability" not in cell
    }


def test_every_plugin_of_the_family_has_a_page_here() -> None:
    assert {path.stem for path in PAGES.glob("*.md")} - OTHERS == set(MODELS)


@pytest.mark.parametrize("name", MODELS)
def test_a_page_has_the_keys_that_the_plugin_reads(name: str) -> None:
    known: set[str] = set()
    for one in MODELS[name]:
        module, _, found = one.partition(":")
        known |= set(read(getattr(import_module(f"nodeplug_net.{module}"), found)))
    page = (PAGES / f"{name}.md").read_text()
    assert set(map(str.lower, keys_of(page))) == set(map(str.lower, known - OF_CALLS))  # as the reference reads them


@pytest.mark.parametrize("name", [name for name in MODELS if MODELS[name]])
def test_a_page_says_of_every_key_what_the_reference_has(name: str) -> None:
    page = (PAGES / f"{name}.md").read_text()
    (head,) = HEADS.finditer(page)
    rows = page[head.end() :].partition("\n\n")[0].splitlines()[2:]
    assert [row for row in rows if not re.split(r" ?\| ?", row)[3]] == []
