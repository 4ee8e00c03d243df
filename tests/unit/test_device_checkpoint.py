"""Kubelet's own ledger on disk: only what is sure is taken from it."""

import json
from pathlib import Path
from typing import Any

import pytest

from nodeplug.contract.values import DeviceId, ResourceName
from nodeplug.device.checkpoint import LedgerEntry, Unlisted, read_ledger
from nodeplug.device.holders import Holder

THING = ResourceName("example.com/thing")


def ids(*names: str) -> frozenset[DeviceId]:
    return frozenset(map(DeviceId, names))


def written(folder: Path, *entries: Any, **more: Any) -> Path:
    file = folder / "kubelet_internal_checkpoint"
    file.write_text(json.dumps({"Data": {"PodDeviceEntries": list(entries)}, **more}))
    return file


def entry(pod: str, container: str, devices: Any) -> dict[str, Any]:
    return {"PodUID": pod, "ContainerName": container, "ResourceName": THING, "DeviceIDs": devices}


@pytest.mark.parametrize("devices", [{"-1": ["a"], "0": ["b"]}, ["a", "b"]], ids=["by NUMA node", "as old kubelets"])
def test_entries_are_read_in_both_forms(devices: Any, tmp_path: Path) -> None:
    assert read_ledger(written(tmp_path, entry("u1", "warm", devices))) == [
        LedgerEntry("u1", "warm", THING, ids("a", "b"))
    ]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"Data": null}', '{"Data": {"PodDeviceEntries": [1]}}'])
def test_a_file_that_cannot_be_understood_says_nothing(text: str, tmp_path: Path) -> None:
    (tmp_path / "f").write_text(text)
    assert read_ledger(tmp_path / "f") == []
    assert read_ledger(tmp_path / "none") == []


def test_what_the_list_names_is_left_to_it(tmp_path: Path) -> None:
    listed = {(THING, Holder("default", "pod", "work")): ids("a")}
    entries = [LedgerEntry("u1", "warm", THING, ids("a", "b")), LedgerEntry("u1", "work", THING, ids("a"))]
    assert Unlisted().take(entries, listed, None) == {(THING, Holder("default", "pod", "warm")): ids("b")}


def test_a_pod_that_has_no_listed_container_is_known_by_its_uid() -> None:
    entries = [LedgerEntry("u1", "warm", THING, ids("a"))]
    assert Unlisted().take(entries, {}, None) == {(THING, Holder("?", "u1", "warm")): ids("a")}


def test_a_container_that_was_listed_once_and_is_no_more_is_gone() -> None:
    unlisted, entries = Unlisted(), [LedgerEntry("u1", "work", THING, ids("a"))]
    assert unlisted.take(entries, {(THING, Holder("default", "pod", "work")): ids("a")}, None) == {}
    assert unlisted.take(entries, {}, None) == {}


def test_a_pod_without_a_folder_is_gone(tmp_path: Path) -> None:
    entries = [LedgerEntry("u1", "warm", THING, ids("a")), LedgerEntry("u2", "warm", THING, ids("b"))]
    found = Unlisted().take(entries, {}, frozenset({"u2"}))
    assert found == {(THING, Holder("?", "u2", "warm")): ids("b")}
