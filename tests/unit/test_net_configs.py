"""The configuration files that are shipped for the CNI family."""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from nodeplug_net.bandwidth.plugin import BandwidthConfig
from nodeplug_net.bridge.plugin import BridgeConfig
from nodeplug_net.dhcp.plugin import DhcpPluginConfig
from nodeplug_net.dummy.plugin import DummyConfig
from nodeplug_net.host_device.plugin import HostDeviceConfig
from nodeplug_net.ipam.host_local import HostLocalConfig
from nodeplug_net.ipam.ranges import RangeConf, parse_range_set
from nodeplug_net.ipam.static import StaticConfig
from nodeplug_net.ipvlan.plugin import IpvlanConfig
from nodeplug_net.loopback import LoopbackConfig
from nodeplug_net.macvlan.plugin import MacvlanConfig
from nodeplug_net.networks.config import NetworksConfig
from nodeplug_net.ptp.plugin import PtpConfig
from nodeplug_net.sbr.plugin import SbrConfig
from nodeplug_net.tap.plugin import TapConfig
from nodeplug_net.tuning.plugin import TuningConfig
from nodeplug_net.vlan.plugin import VlanConfig
from nodeplug_net.vrf.plugin import VrfPluginConfig

CONFIGS = Path(__file__).parents[2] / "configs"
MODELS: dict[str, type[BaseModel]] = {
    "bridge": BridgeConfig,
    "host-device": HostDeviceConfig,
    "dhcp": DhcpPluginConfig,
    "host-local": HostLocalConfig,
    "loopback": LoopbackConfig,
    "macvlan": MacvlanConfig,
    "ptp": PtpConfig,
    "static": StaticConfig,
    "dummy": DummyConfig,
    "ipvlan": IpvlanConfig,
    "tap": TapConfig,
    "vlan": VlanConfig,
    "bandwidth": BandwidthConfig,
    "sbr": SbrConfig,
    "tuning": TuningConfig,
    "vrf": VrfPluginConfig,
    "networks": NetworksConfig,
}


@pytest.mark.parametrize("plugin", list(MODELS))
def test_the_shipped_file_shows_every_key_with_its_default(plugin: str) -> None:
    tables = tomllib.loads((CONFIGS / "plugins.d" / "net.toml").read_text())["plugins"]
    model = MODELS[plugin]
    shown: dict[str, Any] = tables[plugin]["config"]
    assert set(shown) == set(model.model_fields)
    assert model.model_validate(shown) == model()


@pytest.mark.parametrize("plugin", list(MODELS))
def test_an_unknown_key_is_refused(plugin: str) -> None:
    with pytest.raises(ValidationError, match="Extra inputs are not permitted"):
        MODELS[plugin].model_validate({"name": "x"})


def test_the_shipped_network_is_dual_stack_and_loads_on_old_runtimes() -> None:
    network = json.loads((CONFIGS / "cni" / "10-nodeplug.conflist").read_text())
    assert network["cniVersion"] == "1.0.0"  # containerd 1.6 loads a 1.1.0 list and then fails every ADD
    plugin = network["plugins"][0]
    assert plugin["type"] in BridgeConfig().names
    sets = [parse_range_set([RangeConf(**one) for one in ranges]) for ranges in plugin["ipam"]["ranges"]]
    assert [ranges.version for ranges in sets] == [4, 6]
