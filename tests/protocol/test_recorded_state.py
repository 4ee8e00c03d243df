"""What earlier versions wrote on nodes is read by today's codecs, file by file; see tests/node/state."""

import json
from pathlib import Path

import pytest
from tests.node.state import tree
from tests.node.state.shapes import kind_of

from nodeplug.cni.attachments import Attachments
from nodeplug.config import Supervisor
from nodeplug.contract.journal import Journal
from nodeplug.contract.values import Secrets
from nodeplug.device.podresources import decode_state
from nodeplug.exec.frame import Frame
from nodeplug.install.upkeep import read_record
from nodeplug.volumes.ledger import Ledger
from nodeplug_gpu.mps.record import Record

BOOT = "5a17ba5e-0000-4000-8000-000000000001"
ROOT = "/tmp/np-12345678"


def lay(version: str, part: str, folder: Path) -> dict[str, bytes]:
    """Write the files of a part below a folder, whose own path they do not know."""
    recorded = tree.FIXTURES / version / part
    values = {**dict.fromkeys(tree.placeholders(recorded), "7"), "BOOT_ID": BOOT, "ROOT": ROOT}
    files = tree.contents(recorded, values)
    for path, data in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
    return files


@pytest.fixture(params=tree.versions())
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_every_version_from_0_1_0_on_is_recorded() -> None:
    assert "0.1.0" in tree.versions()


@pytest.mark.parametrize("part", ["network", "volumes", "devices"])
def test_every_file_of_the_state_folders_is_of_a_known_kind(version: str, part: str, tmp_path: Path) -> None:
    files = lay(version, part, tmp_path)
    folders = ("run/nodeplug/", "var/lib/nodeplug/", "var/lib/cni/networks/")
    assert [path for path, data in files.items() if path.startswith(folders) and not kind_of(path, data)] == []


def test_attachments_are_read(version: str, tmp_path: Path) -> None:
    lay(version, "network", tmp_path)
    found = Attachments(tmp_path / "run/nodeplug/attachments").list()
    assert {str(one.key) for one in found} == {"pods/c1/eth0", "pods/c2/eth0", "pods/c3/eth0", "foreign/f1/eth0"}
    for one in found:
        assert one.sighting is not None
        assert one.sighting.boot_id == BOOT
        assert one.asked is not None
        assert one.result.ips


@pytest.mark.parametrize(("part", "plugin", "count"), [("network", "bridge", 4), ("devices", "gpu", 3)])
def test_records_of_plugins_are_read(version: str, part: str, plugin: str, count: int, tmp_path: Path) -> None:
    lay(version, part, tmp_path)
    folder = tmp_path / "var/lib/nodeplug/journal" / plugin
    journal = Journal(folder, BOOT)
    assert len(journal.entries()) == count
    assert [entry for entry in journal.entries() if journal.is_stale(entry) or journal.read(entry.key) != entry] == []
    assert list(folder.glob("*.damaged")) == []


def test_the_ledger_of_volumes_is_read(version: str, tmp_path: Path) -> None:
    lay(version, "volumes", tmp_path)
    folder = tmp_path / "var/lib/nodeplug/journal/flexvolume"
    ledger = Ledger(Journal(folder, BOOT), Path(ROOT) / "run/nodeplug/staging")
    assert sorted(one.phase for one in ledger.targets()) == ["published"] * 6 + ["publishing", "unpublishing"]
    assert sorted(one.phase for one in ledger.all_staged()) == ["staged"] * 4 + ["staging"]
    assert [one for one in ledger.targets() if ledger.target(one.path) != one] == []
    for one in filter(lambda one: ledger.owns(one.volume), ledger.all_staged()):
        assert ledger.plan(one.volume.driver, one.volume.volume_id) == one.volume


def test_a_secret_has_the_mark_that_it_had(version: str, tmp_path: Path) -> None:
    lay(version, "volumes", tmp_path)
    ledger = Ledger(Journal(tmp_path / "var/lib/nodeplug/journal/flexvolume", BOOT), tmp_path)
    mark = ledger.secret_mark(Secrets({"password": b"secret"}))
    assert [one for one in ledger.all_staged() if one.volume.volume_id.endswith(f"+{mark}")] != []


def test_the_deferred_del_is_read(version: str, tmp_path: Path) -> None:
    files = lay(version, "network", tmp_path)
    (data,) = [data for path, data in files.items() if path.endswith(".frame")]
    frame = Frame.decode(data)
    assert (frame.style, frame.name, frame.env["CNI_COMMAND"]) == ("cni", "nodeplug-bridge", "DEL")
    assert frame.env["CNI_CONTAINERID"] == "c3"
    assert json.loads(frame.stdin)["prevResult"]["ips"]
    assert frame.encode() == data


def test_holders_are_read(version: str, tmp_path: Path) -> None:
    lay(version, "devices", tmp_path)
    held = decode_state((tmp_path / "var/lib/nodeplug/holders.json").read_bytes())
    assert {holder.pod for _, holder in held} == {"trainer", "server", "notebook", "reader"}


@pytest.mark.parametrize("part", ["network", "volumes"])
def test_the_record_of_the_installation_is_read(version: str, part: str, tmp_path: Path) -> None:
    lay(version, part, tmp_path)
    record = read_record(Supervisor(root=tmp_path).paths)
    assert record is not None
    assert {path.is_relative_to(ROOT) for path in record} == {True}


def test_the_record_of_an_mps_daemon_is_read(version: str, tmp_path: Path) -> None:
    lay(version, "devices", tmp_path)
    (file,) = tmp_path.glob("run/nodeplug/plugins/gpu/mps/*/daemon.json")
    assert Record.read(file) == Record(7, "7", exclusive=True, shm=64 << 20)
