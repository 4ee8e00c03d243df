"""`nodeplug.testing.host`: what a plugin is given in a unit test."""

from pathlib import Path
from typing import Any, cast

import pytest

from nodeplug import CniAdd, CniRecord, CniResult, DeviceId, Holding, NotFound, NotReady, ResourceName
from nodeplug.testing import host

ADD = CniAdd.__new__(CniAdd)
"""A request that nobody reads."""


def test_the_folders_are_there_and_apart(tmp_path: Path) -> None:
    given = host(tmp_path)
    assert (given.state_dir.is_dir(), given.run_dir.is_dir()) == (True, True)
    assert given.state_dir != given.run_dir


def test_the_same_folder_again_is_a_restart_and_another_boot_id_a_reboot(tmp_path: Path) -> None:
    host(tmp_path).journal.write("key", phase="begun")
    entry = host(tmp_path).journal.read("key")
    assert entry is not None
    assert not host(tmp_path).journal.is_stale(entry)
    assert host(tmp_path, boot_id="boot-2").journal.is_stale(entry)


def test_the_log_is_that_of_the_plugin(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    host(tmp_path, plugin="fuse").log.warning("the device is gone")
    (record,) = caplog.records
    assert (record.name, record.message) == ("nodeplug.plugin.fuse", "the device is gone")


def test_a_refresh_is_recorded_and_passed_on(tmp_path: Path) -> None:
    passed: list[str] = []
    given = host(tmp_path, refresh=passed.append)
    given.refresh("example.com/a")
    assert given.refreshed == passed == ["example.com/a"]


def test_a_wish_to_be_asked_for_health_is_recorded_and_passed_on(tmp_path: Path) -> None:
    passed: list[str] = []
    given = host(tmp_path, refresh_health=lambda: passed.append("asked"))
    given.refresh_health()
    assert (len(given.health_refreshed), passed) == (1, ["asked"])


def test_a_wish_to_tell_the_cluster_something_new_is_recorded_and_passed_on(tmp_path: Path) -> None:
    passed: list[str] = []
    given = host(tmp_path, refresh_cluster=lambda: passed.append("asked"))
    given.refresh_cluster()
    assert (len(given.cluster_refreshed), passed) == (1, ["asked"])


def test_a_delegate_is_recorded_and_answers(tmp_path: Path) -> None:
    answer = CniResult()
    given = host(tmp_path, delegate=lambda *_: answer)
    assert given.delegate(ADD, "host-local", {"name": "net"}) is answer
    assert [(one.plugin_type, one.config) for one in given.delegated] == [("host-local", {"name": "net"})]


def test_without_a_delegate_there_is_no_other_plugin(tmp_path: Path) -> None:
    given = host(tmp_path)
    with pytest.raises(NotFound, match="no plugin 'host-local'; give host"):
        given.delegate(ADD, "host-local", {})
    assert len(given.delegated) == 1


def test_holders_are_those_of_the_resource(tmp_path: Path) -> None:
    mine = cast("Any", Holding)(
        namespace="default", pod="web", container="main", resource=ResourceName("example.com/a"), ids=(DeviceId("a-0"),)
    )
    given = host(tmp_path, holders=[mine])
    assert list(given.holders("example.com/a")) == [mine]
    assert list(given.holders("example.com/b")) == []


def test_holders_can_be_unknown(tmp_path: Path) -> None:
    def unknown(_: ResourceName) -> Any:
        raise NotReady("kubelet does not tell")

    with pytest.raises(NotReady):
        host(tmp_path, holders=unknown).holders("example.com/a")


def test_attachments_are_those_that_the_test_gives(tmp_path: Path) -> None:
    record = CniRecord(
        claim="x",
        network="net",
        version="1.1.0",
        config={},
        container_id="c1",
        ifname="eth0",
        netns="/run/netns/c1",
        namespace=(4, 1),
        host=(4, 2),
        result=CniResult(),
    )
    assert list(host(tmp_path, attachments=lambda: [record]).attachments()) == [record]
    assert list(host(tmp_path).attachments()) == []


def test_what_former_sections_left_is_that_of_their_hosts(tmp_path: Path) -> None:
    (tmp_path / "former").mkdir()
    (tmp_path / "now").mkdir()
    former = host(tmp_path / "former")
    former.journal.write("key", phase="begun")
    (found,) = host(tmp_path / "now", former=[former]).former_sections()
    assert [entry.key for entry in found.journal.entries()] == ["key"]
    assert (found.state_dir, found.run_dir) == (former.state_dir, former.run_dir)
    assert host(tmp_path / "now").former_sections() == []
