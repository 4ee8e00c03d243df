"""The records of attachments."""

import signal
import subprocess
import sys
from ipaddress import ip_interface
from pathlib import Path

import pytest

from nodeplug import CniIp, CniResult, ValidAttachment
from nodeplug.cni.attachments import Attachment, Attachments, Key

KEY = Key("bridge", "net", "c1", "eth0")
RESULT = CniResult(ips=(CniIp(ip_interface("10.0.0.2/24")),))


@pytest.fixture
def attachments(tmp_path: Path) -> Attachments:
    return Attachments(tmp_path / "attachments")


def test_what_is_recorded_is_found(attachments: Attachments) -> None:
    attachments.record(Attachment(KEY, "/ns", RESULT, 5.0))
    assert attachments.find(KEY) == Attachment(KEY, "/ns", RESULT, 5.0)


def test_what_is_forgotten_is_gone_and_may_be_forgotten_again(attachments: Attachments) -> None:
    attachments.record(Attachment(KEY, "/ns", RESULT))
    attachments.forget(KEY)
    attachments.forget(KEY)
    assert attachments.find(KEY) is None


@pytest.mark.parametrize(
    "other",
    [
        Key("portmap", "net", "c1", "eth0"),
        Key("bridge", "net2", "c1", "eth0"),
        Key("bridge", "net", "c2", "eth0"),
        Key("bridge", "net", "c1", "eth1"),
    ],
)
def test_every_part_of_the_key_counts(attachments: Attachments, other: Key) -> None:
    attachments.record(Attachment(KEY, "/ns", RESULT))
    assert attachments.find(other) is None


def test_all_are_listed_oldest_first(attachments: Attachments) -> None:
    later, earlier = Key("a", "net", "c1", "eth0"), Key("b", "net", "c1", "eth0")
    attachments.record(Attachment(later, "", RESULT, 2.0))
    attachments.record(Attachment(earlier, "", RESULT, 1.0))
    assert [item.key for item in attachments.list()] == [earlier, later]


def test_there_is_nothing_before_the_first(attachments: Attachments) -> None:
    assert attachments.list() == ()


@pytest.mark.parametrize("data", [b"", b"[]", b'{"claim": 1}', b"\xff", b"[" * 100_000])
def test_a_damaged_file_counts_as_none(attachments: Attachments, data: bytes) -> None:
    attachments.record(Attachment(KEY, "/ns", RESULT))
    (path,) = attachments.folder.iterdir()
    path.write_bytes(data)
    assert attachments.find(KEY) is None
    assert attachments.list() == ()


def test_a_record_that_cannot_be_written_fails_no_call(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    Attachments(tmp_path / "file").record(Attachment(KEY, "/ns", RESULT))


def test_gc_forgets_what_is_not_valid_in_its_network(attachments: Attachments) -> None:
    kept, gone = KEY, Key("bridge", "net", "c2", "eth0")
    elsewhere, other = Key("bridge", "net2", "c2", "eth0"), Key("portmap", "net", "c2", "eth0")
    for key in (kept, gone, elsewhere, other):
        attachments.record(Attachment(key, "", RESULT))
    attachments.forget_invalid("bridge", "net", [ValidAttachment(container_id="c1", ifname="eth0")])
    assert {item.key for item in attachments.list()} == {kept, elsewhere, other}


def test_only_the_owner_may_read_the_folder(attachments: Attachments) -> None:
    attachments.record(Attachment(KEY, "/ns", RESULT))
    assert attachments.folder.stat().st_mode & 0o777 == 0o700


KILLED_BEFORE_ITS_RENAME = """
import os, signal, sys
from pathlib import Path
from nodeplug import CniResult
from nodeplug.cni.attachments import Attachment, Attachments, Key
sys.addaudithook(lambda event, _: os.kill(os.getpid(), signal.SIGKILL) if event == "os.rename" else None)
Attachments(Path(sys.argv[1])).record(Attachment(Key("bridge", "net", "c1", "eth0"), "/netns", CniResult()))
"""


def test_what_a_killed_daemon_half_wrote_goes_with_the_del(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED_BEFORE_ITS_RENAME, str(tmp_path)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert len(list(tmp_path.iterdir())) == 1
    Attachments(tmp_path).forget(Key("bridge", "net", "c1", "eth0"))
    assert list(tmp_path.iterdir()) == []
