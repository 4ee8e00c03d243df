"""The tutorial's plugin as a scheduler sees it: what the claim on the page asks for is there."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from nodeplug import ResourceName
from nodeplug.dra.names import class_name, driver_name
from nodeplug.dra.pools import pool_of
from nodeplug.dra.slices import slices_of
from nodeplug.fields import parse_quantity
from nodeplug.testing import host

PAGE = (Path(__file__).parents[3] / "docs" / "tutorial-device.md").read_text()
RESOURCE = ResourceName("example.com/licence")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, flags=re.DOTALL)


@pytest.fixture
def devices(tmp_path: Path) -> list[dict[str, Any]]:
    """What is published with the page's plugin and its last configuration."""
    module: dict[str, Any] = {"__name__": "nodeplug_licence"}
    exec(compile(blocks("python")[0], "tutorial-device.md", "exec"), module)
    (section,) = tomllib.loads(blocks("toml")[-1])["plugins"].values()
    assert section["serve"] == "dra"
    plugin = module["Licence"](module["LicenceConfig"](**section["config"]), host(tmp_path))
    pool = pool_of("node", RESOURCE, plugin.device_list())
    (only,) = slices_of(driver_name("licence"), "node", "uid", pool, 1, "NoSchedule")
    found: list[dict[str, Any]] = only["spec"]["devices"]
    return found


def test_the_claim_of_the_tutorial_finds_its_device(devices: list[dict[str, Any]]) -> None:
    (claim,) = [one for one in blocks("yaml") if "ResourceClaimTemplate" in one]
    assert f"deviceClassName: {class_name(RESOURCE)}\n" in claim
    chosen = re.search(r'attributes\["([^"]+)"\]\.(\w+) == "([^"]+)"', claim)
    wanted = re.search(r"requests:\n +(\w+): (\d+)", claim)
    assert chosen is not None
    assert wanted is not None
    assert chosen[1] == driver_name("licence")
    (device,) = [one for one in devices if one["attributes"][chosen[2]] == {"string": chosen[3]}]
    assert device["allowMultipleAllocations"]
    assert parse_quantity(device["capacity"][wanted[1]]["value"]) >= int(wanted[2])
