"""A plugin for another version of the contract is told what to do; one for this version is loaded."""

import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
from pydantic import BaseModel

import nodeplug
from nodeplug import API, Claim, CniClaim, Host, PluginClass, hookimpl
from nodeplug.contract import before
from nodeplug.hosting.registry import Registry
from nodeplug.loading.classes import PluginRefused
from nodeplug.loading.discovery import find, installed
from nodeplug_gpu.plugin import Gpu
from nodeplug_hostdev import HostDev
from nodeplug_net.bridge.plugin import Bridge
from nodeplug_net.ipam.host_local import HostLocal
from nodeplug_net.loopback import Loopback
from nodeplug_volumes.hostdir import HostDir
from nodeplug_volumes.loopfile import LoopFile
from nodeplug_volumes.tmpfs import Tmpfs

BUNDLED: Final[tuple[PluginClass, ...]] = (Bridge, Gpu, HostDev, HostDir, HostLocal, LoopFile, Loopback, Tmpfs)
"""The type checker holds each to what a plugin class is."""
Distribute = Callable[[Mapping[str, str]], None]


@pytest.fixture
def distribute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Distribute:
    """Install a distribution "acme" with entry points, by group, that name its class `Disk`."""

    def make(names: Mapping[str, str]) -> None:
        info = tmp_path / "acme-2.3.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 2.3\n")
        points = "".join(f"[{group}]\n{name} = acme_disk:Disk\n" for group, name in names.items())
        (info / "entry_points.txt").write_text(points)
        (tmp_path / "acme_disk.py").write_text("class Disk:\n    pass\n")
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, "acme_disk", raising=False)

    return make


def test_every_bundled_plugin_is_found_by_an_entry_point_of_this_version() -> None:
    names = [name for name, point in installed().items() if point.group == f"nodeplug.v{API}"]
    assert {find(name).cls for name in names} >= set(BUNDLED)


def test_a_plugin_for_this_version_is_found(distribute: Distribute) -> None:
    distribute({"nodeplug.v1": "acme"})
    assert find("acme").distribution == "acme 2.3"


def test_a_plugin_for_the_contract_before_version_1_is_told_where_to_look(distribute: Distribute) -> None:
    distribute({"nodeplug": "acme"})
    said = re.escape(
        "plugin 'acme' of acme 2.3 is written for the contract before version 1; move its entry point to the group "
        "'nodeplug.v1' and follow the table in docs/hooks.md"
    )
    with pytest.raises(PluginRefused, match=said):
        find("acme")


def test_a_plugin_for_a_later_version_is_told_which_nodeplug_it_needs(distribute: Distribute) -> None:
    distribute({"nodeplug.v12": "acme"})
    with pytest.raises(PluginRefused, match="for version 12 of the contract and this nodeplug speaks version 1"):
        find("acme")


@pytest.mark.parametrize("other", ["nodeplug", "nodeplug.v0", "nodeplug.v2"])
def test_a_distribution_for_several_versions_serves_the_one_that_is_spoken(distribute: Distribute, other: str) -> None:
    distribute({other: "acme", "nodeplug.v1": "acme", f"{other}.more": "acme"})
    assert find("acme").cls.__name__ == "Disk"


def test_groups_of_other_things_are_no_plugins(distribute: Distribute) -> None:
    distribute({"nodeplug.commands": "acme", "nodeplug.v1.beta": "acme2", "nodeplugs": "acme3"})
    assert not installed().keys() & {"acme", "acme2", "acme3"}


def old(hook: str, argument: str) -> object:
    """A plugin with one hook as it was written before version 1."""
    scope: dict[str, Any] = {"hookimpl": hookimpl}
    exec(f"@hookimpl\ndef {hook}(self, {argument}): ...", scope)

    class Old:
        @hookimpl
        def claims(self) -> list[Claim]:
            return []

    setattr(Old, hook, scope[hook])
    return Old()


@pytest.mark.parametrize(("hook", "argument"), before.ARGUMENTS)
def test_an_old_argument_of_a_hook_is_answered_with_the_new_signature(hook: str, argument: str) -> None:
    with pytest.raises(PluginRefused) as caught:
        Registry().load("old", old(hook, argument), "acme 2.3")
    said = f"{hook} has no argument {argument!r} since API 1: write {before.ARGUMENTS[hook, argument]}"
    assert said in str(caught.value)


@pytest.mark.parametrize("hook", before.HOOKS)
def test_a_hook_that_is_gone_says_what_to_write_instead(hook: str) -> None:
    with pytest.raises(PluginRefused) as caught:
        Registry().load("old", old(hook, "request"), "acme 2.3")
    assert f"there is no hook {hook!r} since API 1: write {before.HOOKS[hook]}" in str(caught.value)


@pytest.mark.parametrize("name", before.NAMES)
def test_a_name_that_is_gone_says_what_to_write_instead(name: str) -> None:
    with pytest.raises(ImportError, match=f"{name} was removed in API 1: .*; see docs/hooks.md, From 0.1 to 1.0"):
        getattr(nodeplug, name)


def test_a_name_that_never_was_is_an_ordinary_mistake() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Clam'"):
        getattr(nodeplug, "Clam")  # noqa: B009 - a type checker would refuse the plain way


def test_a_config_that_is_no_model_is_refused() -> None:
    with pytest.raises(PluginRefused, match="its Config is no pydantic model; derive it from BaseModel"):
        find(f"{__name__}:Unmodelled")


class Unmodelled:
    class Config:
        size = 1

    def __init__(self, config: BaseModel, host: Host) -> None: ...

    @hookimpl
    def claims(self) -> list[CniClaim]:
        return []
