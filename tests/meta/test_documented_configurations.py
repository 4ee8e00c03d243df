"""Configurations on pages are accepted, and the texts of failures on them are the plugins' own."""

import ast
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from nodeplug import CniRequest, Netns, VolumeIdentify
from nodeplug.cni import codec
from nodeplug.config import Configuration, load
from nodeplug.exec.frame import Frame
from nodeplug.install.deployment import inspect
from nodeplug.install.ownership import marked_conflist
from nodeplug.loading.classes import validate_config
from nodeplug.loading.discovery import find
from nodeplug_net.bandwidth.config import parse_bandwidth
from nodeplug_net.bridge.config import parse_bridge
from nodeplug_net.dhcp.config import parse_dhcp
from nodeplug_net.firewall.config import check_firewall
from nodeplug_net.ipam.config import parse_config
from nodeplug_net.ipam.static_config import parse_static
from nodeplug_net.networks.config import parse_conf as parse_networks_conf
from nodeplug_net.portmap.config import check_portmap
from nodeplug_net.sbr.config import parse_table
from nodeplug_net.tuning.config import parse_tuning
from nodeplug_net.vrf.config import parse_vrf
from nodeplug_volumes.hostdir import HostDir
from nodeplug_volumes.loopfile import LoopFile
from nodeplug_volumes.tmpfs import Tmpfs

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
VOLUMES = ROOT / "docs" / "plugins" / "volumes.md"


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(), flags=re.DOTALL)


TABLES = [
    pytest.param(page, text, id=page.name) for page in PAGES for text in blocks(page, "toml") if "[plugins." in text
]
CONFLISTS = [pytest.param(text, id=page.name) for page in PAGES for text in blocks(page, "json") if '"plugins"' in text]


def accepted(text: str, folder: Path) -> tuple[Configuration, dict[str, Any]]:
    """Load a configuration, or a drop-in, and validate each plugin's own table, unless it has another Python."""
    head = "" if re.search(r"^version = ", text, re.MULTILINE) else "version = 1\n"
    file = folder / "nodeplug.toml"
    file.write_text(head + text)
    configuration = load(file)
    sections = configuration.plugins.items()
    here = {name: validate_config(name, find(one.uses or name), one.config) for name, one in sections if not one.python}
    return configuration, {name: here.get(name) for name, _ in sections}


@pytest.fixture
def importable(page: Path, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make the examples importable, and the plugin that a tutorial writes: its first Python block."""
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "examples"))
    if not page.name.startswith("tutorial-"):
        yield
        return
    (module,) = re.findall(r'^uses = "(\w+):', text, flags=re.MULTILINE)
    (tmp_path / f"{module}.py").write_text(blocks(page, "python")[0])
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop(module, None)


@pytest.mark.parametrize(("page", "text"), TABLES)
@pytest.mark.usefixtures("page", "importable")
def test_every_configuration_on_a_page_is_accepted(text: str, tmp_path: Path) -> None:
    configuration, configs = accepted(text, tmp_path)
    assert set(configs) == set(configuration.plugins) != set()


def requests(text: str) -> Iterator[CniRequest]:
    """Decode a DEL of each plugin of a list, as the runtime would send it."""
    document = json.loads(text)
    env = {"CNI_COMMAND": "DEL", "CNI_CONTAINERID": "c1", "CNI_IFNAME": "eth0", "CNI_PATH": "/opt/cni/bin"}
    for plugin in document["plugins"]:
        config = {**plugin, "name": document["name"], "cniVersion": document["cniVersion"]}
        host = Netns.current()
        try:
            yield codec.decode(Frame("cni", plugin["type"], env=env, stdin=json.dumps(config).encode()), (host,))
        finally:
            host.close()


CHAINED: Mapping[str, Callable[[CniRequest], object]] = {
    "nodeplug-loopback": lambda request: "ipam" not in request.config,
    "nodeplug-portmap": check_portmap,
    "nodeplug-bandwidth": parse_bandwidth,
    "nodeplug-sbr": lambda request: parse_table(request) is None,
    "nodeplug-tuning": lambda request: parse_tuning(request).files("eth0"),
    "nodeplug-vrf": parse_vrf,
    "nodeplug-firewall": check_firewall,
    "nodeplug-networks": parse_networks_conf,
}
"""How plugins read their keys that take no addresses."""


@pytest.mark.parametrize("text", CONFLISTS)
def test_every_network_on_a_page_can_be_installed_and_read(text: str, tmp_path: Path) -> None:
    assert marked_conflist("10-page.conflist", text.encode())
    for request in requests(text):
        if request.claim in CHAINED:
            assert CHAINED[request.claim](request)
            continue
        if request.config["ipam"]["type"] == "nodeplug-dhcp":
            assert parse_dhcp(request).options
        elif request.config["ipam"]["type"] == "static":
            assert parse_static(request).ips
        else:
            assert parse_config(request, tmp_path).ranges
        if request.claim == "nodeplug-bridge" and request.config["ipam"]["type"] != "nodeplug-dhcp":
            assert parse_bridge(request).is_default_gateway


def test_the_network_of_the_bridge_page_is_the_shipped_one(tmp_path: Path) -> None:
    shipped = (ROOT / "configs" / "cni" / "10-nodeplug.conflist").read_text()
    page = blocks(ROOT / "docs" / "plugins" / "bridge.md", "json")[0]
    (own,), (documented,) = list(requests(shipped)), list(requests(page))
    assert parse_bridge(own) == parse_bridge(documented)
    assert parse_config(own, tmp_path).ranges == parse_config(documented, tmp_path).ranges


def flex_volumes() -> dict[str, dict[str, str]]:
    """Read `flexVolume` blocks: by driver, its options."""
    found = {}
    for text in blocks(VOLUMES, "yaml"):
        driver = re.search(r"driver: (\S+)", text)
        options = dict(re.findall(r"^    (\w+): (\S+)$", text.partition("options:")[2], re.MULTILINE))
        assert driver is not None
        found[driver[1]] = options
    return found


def test_every_volume_on_the_page_is_one_that_its_driver_takes(tmp_path: Path) -> None:
    configuration, _ = accepted(blocks(VOLUMES, "toml")[0], tmp_path)
    plugins = {name: loaded.examined.plugin for name, loaded in inspect(configuration).plugins.items()}
    volumes = flex_volumes()
    loopfile, hostdir, tmpfs = (plugins[name] for name in ("loopfile", "hostdir", "tmpfs"))
    assert isinstance(loopfile, LoopFile)
    assert isinstance(hostdir, HostDir)
    assert isinstance(tmpfs, Tmpfs)
    named = {name: VolumeIdentify(driver=name, options=options) for name, options in volumes.items()}
    assert loopfile.volume_id(named["nodeplug/loopfile"]) == "orders"
    assert hostdir.volume_id(named["nodeplug/hostdir"]) == "models/llama/7b"
    assert "size=67108864" in tmpfs._mount_options(volumes["nodeplug/tmpfs"], None)
    assert len(volumes) == 3


# --- texts of failures


def texts(source: Path) -> Iterator[str]:
    """Every string of a module but its docstrings; what is filled in stands as NUL."""
    nodes = list(ast.walk(ast.parse(source.read_text())))
    described = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "\0" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in described:
            yield node.value


@cache
def said() -> list[str]:
    return [text for root in ("plugins", "supervisor") for path in (ROOT / root).rglob("*.py") for text in texts(path)]


def failures() -> list[str]:
    found = []
    for page in sorted((ROOT / "docs" / "plugins").glob("*.md")):
        table = page.read_text().partition("## Failure texts")[2]
        found += re.findall(r"^\| `(.*?)`", table, re.MULTILINE)
    return found


@pytest.mark.xdist_group("texts of failures")  # all sources are read once for all of them
@pytest.mark.parametrize("text", failures())
def test_every_text_of_a_failure_is_one_that_a_plugin_says(text: str) -> None:
    # A value stands between quotes where the code writes its repr.
    pieces = [re.escape(piece.strip()) for piece in text.replace("'...'", "...").split("...")]
    pattern = re.compile(".*".join(pieces), re.DOTALL)
    assert any(pattern.search(one) for one in said())
