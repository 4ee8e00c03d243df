"""Every CNI plugin that people copy removes a link that the kernel removes at the same moment."""

import importlib.util
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from pyroute2 import IPRoute

from nodeplug.cli.scaffold import Names, write
from nodeplug.testing.rig import own_network

ROOT = Path(__file__).parents[3]


def example(_: Path) -> tuple[Path, str]:
    return ROOT / "docs" / "examples" / "wire.py", "Wire"


def tutorial(folder: Path) -> tuple[Path, str]:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "tutorial-cni.md").read_text(), re.DOTALL)
    (folder / "tutorial.py").write_text(next(block for block in blocks if "class Wire:" in block))
    return folder / "tutorial.py", "Wire"


def scaffold(folder: Path) -> tuple[Path, str]:
    names = Names.of("mine")
    write("cni", names, folder / "package")
    return next((folder / "package" / "src").rglob("__init__.py")), names.cls


def zoo(_: Path) -> tuple[Path, str]:
    return ROOT / "tests" / "node" / "conformance" / "zoo" / "zoo_cni.py", "Tame"


def vanishing() -> Any:
    """Find that a link is gone the moment it is to be removed, as after the death of its container's namespace."""
    route = IPRoute()
    real = route.link

    def link(command: str, **keywords: Any) -> Any:
        if command == "del":
            real(command, **keywords)
        return real(command, **keywords)

    route.link = link
    return route


@pytest.mark.parametrize("place", [example, tutorial, scaffold, zoo])
def test_del_succeeds_when_the_link_vanishes_meanwhile(
    place: Callable[[Path], tuple[Path, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, name = place(tmp_path)
    spec = importlib.util.spec_from_file_location(f"copied_{place.__name__}", file)
    assert spec is not None
    assert spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    request = Mock(network="net", container_id="c1", ifname="eth0", config={"ipam": {"type": "host-local"}})
    named = getattr(module, "node_end", None) or getattr(module, "host_end", None)
    link = named(request) if named else module.end_of("c1", "eth0")
    plugin = getattr(module, name)(Mock(leases=tmp_path), Mock())
    with own_network():
        with IPRoute() as route:
            route.link("add", ifname=link, kind="veth", peer={"ifname": "peer0"})
        monkeypatch.setattr(module, "IPRoute", vanishing)
        plugin.cni_del(request)
        plugin.cni_del(request)
